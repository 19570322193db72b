"""The markers of transactions in memory, which can be held back by partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kstreams_py.kafka.groups import POSITIONS_TOPIC
from kstreams_py.records import TopicPartition

POSITIONS: Final = TopicPartition(POSITIONS_TOPIC, 0)
"""The partition that keeps the committed offsets of all groups."""


class Marker(NamedTuple):
    """The end of a transaction in a partition: it takes an offset, and readers do not see it."""

    producer_id: int
    commits: bool


class Markers:
    """Writes markers. Markers of held partitions wait until these are released, and those of skipped ones are lost."""

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
        """Returns whether markers of a producer wait."""
        return any(marker.producer_id == producer_id for _, marker in self._late)
