"""Reads the records of a topic: committed ones up to the last stable offsets, or all of them; follows the topic."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import merge
from typing import Final

from kstreams_py.errors import BrokerUnavailable, Retriable, TopicError
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.operations.pages import Pages
from kstreams_py.operations.records.topic import check_partition
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.steps.environment import Environment


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


logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""Seconds between two looks for new records."""

DESCRIBE_SECONDS: Final = 5.0
"""Seconds between two looks at the topic, which may grow or be deleted."""


class Tail:
    """Reads the records of all partitions of a topic, or of one."""

    def __init__(
        self, environment: Environment, topic: TopicInfo, partition: int | None = None, *, uncommitted: bool = False
    ) -> None:
        """Raises UserMistake for a partition that the topic does not have.

        - `uncommitted`: also reads records of open and aborted transactions, up to the last record.
        """
        self._uncommitted = Uncommitted(environment.cluster, topic) if uncommitted else None
        self._cluster = self._uncommitted or environment.cluster
        self._clock, self._sleep = environment.clock, environment.sleep
        self._pages = Pages(self._cluster, Attempts(f"reading {topic.name}", topic.name, environment.sleep))
        self._topic = topic
        if partition is not None:
            check_partition(topic, partition)
        self._only = partition
        numbers = range(topic.partitions) if partition is None else [partition]
        self.partitions = [TopicPartition(topic.name, number) for number in numbers]

    def starts(self, since: int | None = None) -> Positions:
        """Returns the first offset of each partition; with `since`, as `Cluster.starts` returns it (ms since 1970)."""
        return dict(self._cluster.starts(self.partitions, since))

    def take_fate(self, m: Message) -> Fate | None:
        """Returns why readers of committed records do not see a record; None if they do. Call it once per record."""
        return None if self._uncommitted is None else self._uncommitted.take_fate(m)

    def ends(self) -> Positions:
        """Returns the last stable offset of each partition; with `uncommitted`, its end offset."""
        return dict(self._cluster.ends(self.partitions))

    def newest(self, count: int, ends: Mapping[TopicPartition, int]) -> Sequence[Message]:
        """Returns the `count` newest records before these ends across all partitions, sorted by timestamp."""
        starts = self.starts()
        found = [self._newest_of(tp, starts[tp], end, count) for tp, end in ends.items()]
        return deque(merge(*found, key=_time), maxlen=count)

    def _newest_of(self, tp: TopicPartition, low: int, end: int, count: int) -> Sequence[Message]:
        window = 2 * count + 2  # with one record in each transaction, every other offset is a marker
        while True:
            start = max(low, end - window)
            found = deque(self._pages.between(tp, start, end), maxlen=count)
            if len(found) == count or start <= low:
                return found
            window *= 8

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Message]:
        """Yields the records between these offsets, in the order of each partition, merged by timestamp."""
        return merge(*(self._pages.between(tp, starts[tp], end) for tp, end in ends.items()), key=_time)

    def follow(
        self, starts: Mapping[TopicPartition, int], goes_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Message]:
        """Yields the records from these offsets on as they are committed, while `goes_on` returns True.

        Waits for a broker that does not answer, with one warning. Raises TopicError if the topic is deleted.
        """
        positions, described, is_away = dict(starts), self._clock(), False
        while goes_on():
            try:
                if self._clock() - described >= DESCRIBE_SECONDS:
                    positions, described = self._with_new_partitions(positions), self._clock()
                ends = {tp: end for tp, end in self._cluster.ends(list(positions)).items() if end > positions[tp]}
                for m in self.read(positions, ends):
                    positions[TopicPartition(m.topic(), m.partition())] = m.offset() + 1
                    yield m
                positions |= ends
            except (Retriable, BrokerUnavailable) as error:
                if not is_away:
                    logger.warning("%s; waiting", error)
                is_away = True
            else:
                is_away = False
                if ends:
                    continue
            self._sleep(POLL_SECONDS)

    def _with_new_partitions(self, positions: Positions) -> Positions:
        found = self._cluster.topics([self._topic.name]).get(self._topic.name)
        if found is None or found.topic_id != self._topic.topic_id:
            raise TopicError(f"topic {self._topic.name!r} was deleted while it was read")
        numbers = range(found.partitions) if self._only is None else ()
        return {TopicPartition(found.name, number): 0 for number in numbers} | positions


def _time(m: Message) -> int:
    return m.timestamp()[1]
