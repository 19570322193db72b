"""Reads the records of a cluster whatever became of their transactions, and tells what did."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.records import Message, Positions, TopicPartition


class Fate(StrEnum):
    """Why readers of committed records do not see a record."""

    PENDING = "pending"
    """Its transaction is open, or one that began before it is."""
    ABORTED = "aborted"
    """Its transaction was aborted: no such reader will ever see it."""
    UNKNOWN = "unknown"
    """It was aborted, or compacted away after it was read."""


class Uncommitted:
    """In place of a cluster, whose committed records only are read otherwise."""

    def __init__(self, cluster: Cluster, topic: TopicInfo) -> None:
        self._cluster = cluster
        self._of_unseen = Fate.UNKNOWN if topic.is_compacted else Fate.ABORTED
        self._fates: dict[tuple[TopicPartition, int], Fate] = {}

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """As of Cluster."""
        return self._cluster.topics(names)

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        """As of Cluster."""
        return self._cluster.starts(partitions, since)

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        """The offset after the last record of each partition."""
        return self._cluster.ends(partitions, committed=False)

    def read(self, partition: TopicPartition, start: int = 0, limit: int | None = None) -> Sequence[Message]:
        """Records of a partition from `start` on, `limit` at most; `take_fate` tells what became of each."""
        # first: what is before this offset is decided, so that the committed records that are read last are all
        stable = self._cluster.ends([partition])[partition]
        found = self._cluster.read(partition, start, limit, committed=False)
        if not found:
            return found
        committed = {m.offset() for m in self._cluster.read(partition, start, len(found))}
        # last: what retention has deleted in between is missing among the committed records whatever became of it
        first = self._cluster.starts([partition])[partition]
        for offset in (m.offset() for m in found):
            if offset >= stable:
                self._fates[partition, offset] = Fate.PENDING
            elif offset >= first and offset not in committed:
                self._fates[partition, offset] = self._of_unseen
        return found

    def take_fate(self, m: Message) -> Fate | None:
        """What had become of a record when it was read; None if it is committed, or was deleted since.

        To be asked once of each.
        """
        return self._fates.pop((TopicPartition(m.topic(), m.partition()), m.offset()), None)
