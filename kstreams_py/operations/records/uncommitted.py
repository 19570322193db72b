"""Reads all records of a cluster, and tells which are of open and which of aborted transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.records import Message, Positions, TopicPartition


class Fate(StrEnum):
    """The reason why readers of committed records do not see a record."""

    PENDING = "pending"
    """Its transaction is open, or an earlier one is."""
    ABORTED = "aborted"
    """Its transaction was aborted: those readers will never see it."""
    UNKNOWN = "unknown"
    """Its transaction was aborted, or compaction deleted it after it was read."""


class Uncommitted:
    """Stands in for a cluster, and also reads records that are not committed."""

    def __init__(self, cluster: Cluster, topic: TopicInfo) -> None:
        self._cluster = cluster
        self._of_unseen = Fate.UNKNOWN if topic.is_compacted else Fate.ABORTED
        self._fates: dict[tuple[TopicPartition, int], Fate] = {}

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        """Same as `Cluster.topics`."""
        return self._cluster.topics(names)

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        """Same as `Cluster.starts`."""
        return self._cluster.starts(partitions, since)

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the end offset of each partition: the one after its last record."""
        return self._cluster.ends(partitions, committed=False)

    def read(self, partition: TopicPartition, start: int = 0, limit: int | None = None) -> Sequence[Message]:
        """Returns at most `limit` records of a partition from `start` on; `take_fate` tells which are uncommitted."""
        # read this first: all transactions before this offset have ended, so the committed records are complete
        stable = self._cluster.ends([partition])[partition]
        found = self._cluster.read(partition, start, limit, committed=False)
        if not found:
            return found
        committed = {m.offset() for m in self._cluster.read(partition, start, len(found))}
        # read this last: records that retention deleted meanwhile are missing from the committed ones, but not aborted
        first = self._cluster.starts([partition])[partition]
        for offset in (m.offset() for m in found):
            if offset >= stable:
                self._fates[partition, offset] = Fate.PENDING
            elif offset >= first and offset not in committed:
                self._fates[partition, offset] = self._of_unseen
        return found

    def take_fate(self, m: Message) -> Fate | None:
        """Returns why a record was not visible when it was read; None if it was committed, or has been deleted since.

        Call it once for each record.
        """
        return self._fates.pop((TopicPartition(m.topic(), m.partition()), m.offset()), None)
