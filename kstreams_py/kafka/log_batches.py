"""Reads batches of a partition as they are stored, with markers, and records that brokers keep in their own topics.

Kafka's group coordinator (OffsetCommitKey.json, OffsetCommitValue.json) and transaction coordinator
(TransactionLogKey.json, TransactionLogValue.json) define the formats.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.records import TopicPartition

OFFSET_COMMIT_KEYS: Final = (0, 1)
"""Versions of the keys of committed offsets; other versions belong to groups and their members."""

FLEXIBLE: Final = 1
"""The first version of TransactionLogValue whose lengths are varints."""

PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
"""Statuses of TransactionLogValue that decide the outcome of the transaction."""


class Batch(NamedTuple):
    """A batch of records, or a marker.

    - `first`: the offset of the batch's first record.
    - `size`: how many records the batch has.
    - `producer_id`: -1 if there is none.
    - `commits`: whether a marker commits; None for records.
    - `records`: the keys and values, if the reader asked for them.
    """

    first: int
    size: int
    producer_id: int
    is_transactional: bool
    commits: bool | None = None
    records: tuple[tuple[bytes | None, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Log:
    """The batches of a partition from an offset on. `is_complete`: whether they reach the partition's end."""

    batches: tuple[Batch, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """The decision of a transaction coordinator about a transaction; `updated_at` is in seconds since 1970."""

    producer_id: int
    commits: bool
    partitions: frozenset[TopicPartition]
    updated_at: float


def committed_offsets(batches: Iterable[Batch]) -> dict[str, dict[TopicPartition, int]]:
    """Returns, by group, the last offset that records of __consumer_offsets commit for each partition."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for key, value in (record for batch in batches for record in batch.records):
        if key is None or value is None:
            continue
        fields = _Fields(key)
        if fields.take(">h") in OFFSET_COMMIT_KEYS:
            group, topic, partition = fields.text(), fields.text(), fields.take(">i")
            found.setdefault(group, {})[TopicPartition(topic, partition)] = struct.unpack_from(">q", value, 2)[0]
    return found


def prepared(batches: Iterable[Batch], transactional_id: str) -> Iterator[Prepared]:
    """Yields the decisions about an id's transactions in batches of __transaction_state, in order."""
    wanted = log_key(transactional_id)
    for key, value in (record for batch in batches for record in batch.records):
        if key == wanted and value is not None and (found := _prepared(value)) is not None:
            yield found


def log_key(transactional_id: str) -> bytes:
    """Returns the key of the records of a transactional id in __transaction_state."""
    name = transactional_id.encode()
    return struct.pack(">hh", 0, len(name)) + name


def _prepared(value: bytes) -> Prepared | None:
    fields = _Fields(value)
    fields.is_flexible = fields.take(">h") >= FLEXIBLE
    producer_id = fields.take(">q")
    fields.skip(6)  # the epoch, the timeout
    status = fields.take(">b")
    if status not in (PREPARE_COMMIT, PREPARE_ABORT):
        return None
    partitions = set()
    for _ in range(fields.length(4)):
        topic = fields.text()
        partitions |= {TopicPartition(topic, fields.take(">i")) for _ in range(fields.length(4))}
        if fields.is_flexible:
            fields.varint()  # tagged fields: Kafka 4.3 has none here
    return Prepared(producer_id, status == PREPARE_COMMIT, frozenset(partitions), fields.take(">q") / 1000)


class _Fields:
    """The fields of a record in Kafka's own format, one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self.is_flexible = False

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self.skip(struct.calcsize(form))
        return int(value)

    def skip(self, count: int) -> None:
        self._at += count

    def length(self, size: int) -> int:
        """Returns a length, which takes `size` bytes unless the format is flexible; 0 for null."""
        return max(0, self.varint() - 1 if self.is_flexible else self.take({2: ">h", 4: ">i"}[size]))

    def text(self) -> str:
        count = self.length(2)
        self.skip(count)
        return self._data[self._at - count : self._at].decode()

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(">B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
