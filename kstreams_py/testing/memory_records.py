"""The records of the cluster in memory, as stored and as read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.errors import RecordTooLarge
from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.records import Message, TopicPartition, too_large, with_bad_headers

RECORD_OVERHEAD: Final = 70
"""The approximate size in bytes of a batch with one record, not counting its key, value and headers."""


class Content(NamedTuple):
    """A record without its place; the timestamp is in milliseconds since 1970."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    timestamp: int

    def find_excess(self, topic: str, limit: int) -> RecordTooLarge | None:
        """Returns an error if a batch with only this record exceeds `limit` bytes, otherwise None."""
        size = RECORD_OVERHEAD + len(self.key or b"") + len(self.value or b"")
        for name, value in self.headers or ():
            size += len(name) + len(value or b"")
        if size <= limit:
            return None
        return RecordTooLarge(
            f"a record ({size} bytes) is larger than topic {topic!r} takes ({limit}): raise the topic's "
            "max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record smaller"
        )

    def output(self, partition: TopicPartition) -> Output:
        """Returns the record as an Output to this partition."""
        return (*partition[:1], self.value, self.key, partition.partition, None, None, self.timestamp, self.headers)


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A record at its place: a records.Message."""

    _partition: TopicPartition
    _offset: int
    _content: Content

    def __len__(self) -> int:
        return len(self._content.value or b"")

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._content.key

    def value(self) -> bytes | None:
        return self._content.value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._content.headers

    def timestamp(self) -> tuple[int, int]:
        return 1, self._content.timestamp


def milliseconds(now: float) -> int:
    """Returns the timestamp for a record without one; at least 1: a clock may start at 0, but no client writes 0."""
    return max(1, int(now * 1000))


def as_read(m: Message, value_bytes_max: int | None) -> Message:
    """Returns the record, or in its place an Unreadable if it cannot be read: see kafka/unreadable.py."""
    if value_bytes_max is not None and len(m.value() or b"") > value_bytes_max:
        return too_large(m, value_bytes_max)
    try:
        for name, _ in m.headers() or ():
            name.encode()
    except UnicodeEncodeError as error:
        return with_bad_headers(m, error)
    return m


POSITIONS: Final = TopicPartition(POSITIONS_TOPIC, 0)
"""The partition that keeps the committed offsets of all groups."""


class Marker(NamedTuple):
    """The end of a transaction in a partition: it takes an offset, and readers do not see it."""

    producer_id: int
    commits: bool


class Markers:
    """Writes markers. Markers of a held partition wait for its release; markers of a skipped partition are lost."""

    def __init__(self, write: Callable[[TopicPartition, Marker], None]) -> None:
        self._write = write
        self.skipped: set[TopicPartition] = set()
        """Partitions that get no markers: their open transactions hang."""
        self._held: set[TopicPartition] = set()
        self._late: list[tuple[TopicPartition, Marker]] = []

    def write(self, partition: TopicPartition, marker: Marker) -> None:
        """Writes a marker, lets it wait, or loses it."""
        if partition in self.skipped:
            return
        if partition in self._held:
            self._late.append((partition, marker))
        else:
            self._write(partition, marker)

    def hold(self, partition: TopicPartition) -> None:
        """Makes the markers of a partition wait from now on. POSITIONS stands for the offsets of all groups."""
        self._held.add(partition)

    def release(self, partition: TopicPartition) -> None:
        """Writes the waiting markers of a partition."""
        self._held.discard(partition)
        late, self._late = self._late, []
        for each in late:
            self.write(*each)

    def are_late(self, producer_id: int) -> bool:
        """Returns whether any markers of a producer are still waiting."""
        return any(marker.producer_id == producer_id for _, marker in self._late)
