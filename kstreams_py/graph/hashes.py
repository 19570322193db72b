"""The delivery hash: 128 bits that depend on which records a step reads, not on their contents or Python's hash().

The *place* of a step is `hash_prefix` of its (first) input and that record's offset. The delivery hash of a step that
reads one record is its place; the hash of a join does not tell its place. A cut compares places with committed offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

pack_offset: Final[Callable[[int], bytes]] = struct.Struct(">Q").pack

_pack_length: Final[Callable[[int], bytes]] = struct.Struct(">I").pack


def hash_prefix(processor: str, topic: str, topic_id: str, partition: int) -> bytes:
    """Returns the first 8 bytes of a task's delivery hashes, for steps that read one record: BLAKE2b of all arguments.

    - `processor`: `graph.processor`.
    - `topic_id`: the broker's id of the topic ("" if it has none): a topic that is created again repeats no hash.

    With `pack_offset(offset)` appended, the hash is cheap, unique to the offset, and sorts in the order of the records.
    """
    # "snapshot" is part of the format: another word would change every delivery hash
    return blake2b(_canonical("snapshot", processor, topic, topic_id, partition), digest_size=8).digest()


def joined_hash(processor: str, records: Iterable[tuple[str, str, int, int]]) -> bytes:
    """Returns the delivery hash of a step that reads several records: 16 bytes of BLAKE2b.

    - `records`: topic, topic id, partition and offset of each.
    """
    parts = [part for record in sorted(records) for part in record]
    return blake2b(_canonical("snapshot", processor, *parts), digest_size=16).digest()


def snapshot_hash(processor: str, inputs: Iterable[tuple[str, str, int, int]]) -> bytes:
    """Returns 16 bytes that name a snapshot: BLAKE2b of each input's topic, topic id, partition and next offset."""
    parts = [part for each in sorted(inputs) for part in each]
    return blake2b(_canonical("journal", processor, *parts), digest_size=16).digest()


def _canonical(*parts: str | int) -> bytes:
    """Encodes parts, each after its length, so that no two lists of parts give the same bytes."""
    raw = [str(part).encode() for part in parts]
    return b"".join([each for part in raw for each in (_pack_length(len(part)), part)])
