"""The delivery hash: 128 bits that depend on which records a step reads, not on their contents or Python's hash().

The *place* of a step is `hash_prefix` of its (first) input and that record's offset: of a step that reads one record it
is the delivery hash. A cut compares it with committed offsets. From the hash of a join no place can be found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

pack_offset: Final[Callable[[int], bytes]] = struct.Struct(">Q").pack


def hash_prefix(processor: str, topic: str, topic_id: str, partition: int) -> bytes:
    """The first 8 bytes of the delivery hash of a task's steps that read one record: BLAKE2b of all arguments.

    - `processor`: `graph.processor`.
    - `topic_id`: the broker's id of the topic ("" if it has none): a topic that is created again repeats no hash.

    With `pack_offset(offset)` appended, the hash is unique to the offset, cheap, and sorted as the records are.
    """
    # "snapshot" is a part of the format: with another word every delivery hash would change
    return blake2b(_canonical("snapshot", processor, topic, topic_id, partition), digest_size=8).digest()


def joined_hash(processor: str, records: Iterable[tuple[str, str, int, int]]) -> bytes:
    """The delivery hash of a step that reads several records: 16 bytes of BLAKE2b.

    `records` has (topic, topic id, partition, offset) of each.
    """
    parts = [part for record in sorted(records) for part in record]
    return blake2b(_canonical("snapshot", processor, *parts), digest_size=16).digest()


def snapshot_hash(processor: str, inputs: Iterable[tuple[str, str, int, int]]) -> bytes:
    """16 bytes that name a snapshot of a task: BLAKE2b of (topic, topic id, partition, next offset) of each input."""
    parts = [part for each in sorted(inputs) for part in each]
    return blake2b(_canonical("journal", processor, *parts), digest_size=16).digest()


def _canonical(*parts: str | int) -> bytes:
    """Parts as bytes, each with its length in front, so that no two lists of parts give the same bytes."""
    raw = [str(part).encode() for part in parts]
    return b"".join(struct.pack(">I", len(part)) + part for part in raw)
