"""Reads the committed records of a topic, up to its last stable offsets, and follows them; all records if asked."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Final

from kstreams_py.errors import BrokerUnavailable, Retriable, TopicError
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.pages import Pages
from kstreams_py.operations.records.topic import check_partition
from kstreams_py.operations.records.uncommitted import Fate, Uncommitted
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.environment import Environment
from kstreams_py.records import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2
"""Seconds between two looks for new records."""

DESCRIBE_SECONDS: Final = 5.0
"""Seconds between two looks at the topic, which may grow or be deleted."""


class Tail:
    """The records of a topic, of all partitions or of one."""

    def __init__(
        self, environment: Environment, topic: TopicInfo, partition: int | None = None, *, uncommitted: bool = False
    ) -> None:
        """Raises UserMistake for a partition that the topic does not have.

        - `uncommitted`: also the records of transactions that are open or aborted; the ends are those of all records.
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
        """The first offset of each partition, or that of the first record since a time (milliseconds since 1970)."""
        return dict(self._cluster.starts(self.partitions, since))

    def take_fate(self, m: Message) -> Fate | None:
        """Why readers of committed records do not see a record; None if they do. To be asked once of each."""
        return None if self._uncommitted is None else self._uncommitted.take_fate(m)

    def ends(self) -> Positions:
        """The last stable offset of each partition, or with `uncommitted` its last offset."""
        return dict(self._cluster.ends(self.partitions))

    def newest(self, count: int, ends: Mapping[TopicPartition, int]) -> Sequence[Message]:
        """The `count` newest records before these ends, of all partitions together, by their timestamps."""
        starts = self.starts()
        found = [self._newest_of(tp, starts[tp], end, count) for tp, end in ends.items()]
        return deque(merge(*found, key=_time), maxlen=count)

    def _newest_of(self, tp: TopicPartition, low: int, end: int, count: int) -> Sequence[Message]:
        window = 2 * count + 2  # transactions of one record have a marker for each
        while True:
            start = max(low, end - window)
            found = deque(self._pages.between(tp, start, end), maxlen=count)
            if len(found) == count or start <= low:
                return found
            window *= 8

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Message]:
        """Yields the records between these offsets, in the order of each partition, and merged by their timestamps."""
        return merge(*(self._pages.between(tp, starts[tp], end) for tp, end in ends.items()), key=_time)

    def follow(
        self, starts: Mapping[TopicPartition, int], goes_on: Callable[[], bool] = lambda: True
    ) -> Iterator[Message]:
        """Yields the records from these offsets on, as they are committed, for as long as `goes_on` returns True.

        Waits for a broker that is away, with one warning. Raises TopicError if the topic is deleted.
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
                    logger.warning("%s; it is waited for", error)
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
