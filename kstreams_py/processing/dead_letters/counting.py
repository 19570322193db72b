"""Counts the waiting dead letters; each call reads a bounded part of the topics.

The offsets of a topic are not a count: they include transaction markers, aborted records, and the dead letters of other
graphs. So each dead letter and each mark is read once, and a count continues from the offsets that it has reached. When
nothing is new, a count takes four requests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from kstreams_py.errors import BrokerUnavailable, DecodeError, KStreamsError, Retriable, TopicError
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import dead_letters
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.dead_letters.letters import parse
from kstreams_py.processing.dead_letters.marks import marked_place
from kstreams_py.processing.dead_letters.waiting import PartitionLetters, WaitingCount
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.steps.environment import Environment

PAGE: Final = 200
"""Records in the first page of a partition; a record may take a megabyte."""

PAGE_BYTES: Final = 1_000_000
"""The next page has twice as many records if a page has fewer bytes than this."""

PAGE_MAX: Final = 6_400
"""The maximum number of records in a page."""


class LetterCounter:
    """Counts the waiting dead letters of a graph, in each of its dead-letter topics."""

    def __init__(self, graph: Graph, environment: Environment) -> None:
        """Makes no request."""
        self._graph = graph
        self._cluster = environment.cluster
        self._clock = environment.clock
        self._marks = TopicPartition(graph.replayed, 0)
        self._places: dict[str, str] = {}
        """The name of the cluster that has each dead-letter topic."""
        self._decode: dict[str, Callable[[bytes], Any]] = {}
        for topic in graph.topics.values():
            if topic.value is dead_letters():
                self._places[topic.name] = topic.cluster
                self._decode[topic.name] = bind(topic.value, environment.registry, f"{topic.name}-value").deserialize
        self._counts = dict.fromkeys(self._places, WaitingCount())
        self._topics: dict[str, TopicInfo] = {}
        self._behind = set[str]()
        """The clusters with an end offset below one already reached: a new leader may lag for a moment."""
        self._starts: Positions = {}
        self._ends: Positions = {}
        self._restart()

    def _restart(self) -> None:
        self._partitions: dict[TopicPartition, PartitionLetters] = {}
        self._next_mark = 0
        self._whole = set[str]()
        """The topics whose dead letters have all been counted at least once."""

    @property
    def topics(self) -> list[str]:
        """The names of the dead-letter topics."""
        return [*self._places]

    def count(self, seconds: float) -> Mapping[str, WaitingCount]:
        """Continues the count for about this many `seconds`; returns the newest count of each topic.

        Once complete, a count may lag behind its topic. While no broker answers, it stays the same.
        """
        if not self._places:
            return self._counts
        failed, has_marks = dict[str, KStreamsError](), False
        for place in dict.fromkeys(["", *self._places.values()]):
            names = [name for name, of in self._places.items() if of == place]
            try:
                failed |= self._describe(place, names if place else [*names, self._marks.topic])
            except KStreamsError as error:
                failed |= dict.fromkeys(names if place else self._places, error)
        deadline = self._clock() + seconds
        if len(failed) < len(self._places):
            try:
                has_marks = self._follow_marks(deadline)
            except KStreamsError as error:
                failed = dict.fromkeys(self._places, error)
        self._counts = {
            name: self._explain(name, failed[name])
            if name in failed
            else self._count(name, deadline, has_marks=has_marks)
            for name in self._places
        }
        return self._counts

    def find_oldest(self, topic: str) -> int | None:
        """Returns the timestamp of the first dead letter that waits, in milliseconds; None if none waits."""
        waiting = {tp: letters.find_first() for tp, letters in self._partitions.items() if tp.topic == topic}
        cluster = self._cluster.named(self._places[topic])
        found = [cluster.read(tp, first, 1) for tp, first in waiting.items() if first is not None]
        return min((m.timestamp()[1] for page in found for m in page), default=None)

    def _describe(self, place: str, names: list[str]) -> dict[str, KStreamsError]:
        """Asks a cluster for topics and their offsets; returns an error for each dead-letter topic that does not exist.

        Starts over if a topic was deleted, created again or lost its newest records, or if old marks were deleted.
        """
        cluster = self._cluster.named(place)
        found = cluster.topics(names)
        partitions = [TopicPartition(name, n) for name, info in found.items() for n in range(info.partitions)]
        starts, ends = cluster.starts(partitions), cluster.ends(partitions)
        before = {name: info for name in names if (info := self._topics.get(name)) is not None}
        reached = {tp: letters.next for tp, letters in self._partitions.items()} | {self._marks: self._next_mark}
        was_behind = place in self._behind
        if is_behind := any(end < reached.get(tp, 0) for tp, end in ends.items()):
            self._behind.add(place)
        else:
            self._behind.discard(place)
        if (
            any(name not in found or found[name].topic_id != info.topic_id for name, info in before.items())
            or (is_behind and was_behind)
            or starts.get(self._marks, 0) > self._starts.get(self._marks, sys.maxsize)
        ):
            self._restart()
        elif found.keys() > before.keys():
            self._next_mark = 0  # the marks of a topic that was not known yet were skipped
        self._topics = {name: info for name, info in self._topics.items() if name not in names} | found
        self._starts, self._ends = self._starts | starts, self._ends | ends
        return {
            name: TopicError(f"topic {name!r} does not exist: run `{show_command(self._graph, 'topics create')}`")
            for name in names
            if name not in found and name in self._places
        }

    def _follow_marks(self, deadline: float) -> bool:
        """Reads new marks until the deadline; returns whether all marks are read."""
        end = self._ends.get(self._marks, 0) if self._marks.topic in self._topics else 0
        self._next_mark = self._read("", self._marks, self._next_mark, end, deadline, self._take_mark)
        return self._next_mark >= end

    def _take_mark(self, m: Message) -> None:
        """Notes a mark or its tombstone. Raises DecodeError for an unreadable value: the record may be a mark."""
        try:
            place = marked_place(m, self._topics)
        except ValueError:
            return  # `kstreams dead-letters list` names such records
        is_deletion = m.value() is None
        if place is not None:
            letters = self._partition(TopicPartition(*place[:2]))
            (letters.unmark if is_deletion else letters.mark)(place.offset)

    def _count(self, name: str, deadline: float, *, has_marks: bool) -> WaitingCount:
        """Continues the count of a dead-letter topic."""
        is_whole, counted = has_marks, 0
        try:
            for number in range(self._topics[name].partitions):
                tp = TopicPartition(name, number)
                letters = self._partition(tp)
                letters.delete_before(self._starts[tp])
                letters.next = self._read(
                    self._places[name], tp, letters.next, self._ends[tp], deadline, self._take_letter
                )
                is_whole &= letters.next >= self._ends[tp]
                counted += letters.count()
        except KStreamsError as error:
            return self._explain(name, error)
        if is_whole:
            self._whole.add(name)
        # until all marks are read, replayed dead letters would be counted as waiting
        return WaitingCount(counted, name in self._whole) if has_marks or name in self._whole else WaitingCount()

    def _take_letter(self, m: Message) -> None:
        try:
            letter = parse(m, self._decode[m.topic()])
        except DecodeError:
            return  # `kstreams dead-letters list` names such records
        if letter.is_of(self._graph.name):
            self._partition(TopicPartition(m.topic(), m.partition())).add(m.offset())

    def _explain(self, name: str, error: KStreamsError) -> WaitingCount:
        if isinstance(error, Retriable | BrokerUnavailable) and name in self._whole:
            return self._counts[name]
        return WaitingCount(why=str(error))

    def _partition(self, tp: TopicPartition) -> PartitionLetters:
        return self._partitions.setdefault(tp, PartitionLetters())

    def _read(
        self, place: str, tp: TopicPartition, at: int, end: int, deadline: float, take: Callable[[Message], None]
    ) -> int:
        """Passes `take` the committed records before `end`, until the deadline; returns the offset after the last."""
        limit, cluster = PAGE, self._cluster.named(place)
        while at < end and self._clock() < deadline:
            page: list[Any] = [*cluster.read(tp, at, limit)]
            for m in page:
                take(m)
            at = max(end, at) if len(page) < limit else page[-1].offset() + 1
            if limit < PAGE_MAX and sum(map(len, page)) < PAGE_BYTES:
                limit *= 2
        return at
