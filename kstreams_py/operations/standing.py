"""Reads where the tasks of a graph stand, and decides as a worker would what their next start does; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from kstreams_py.errors import InputLost, KStreamsError, RecoveryUndecidable, Retriable, TopicError
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.groups import GroupInfo
from kstreams_py.kafka.transactions import find_command, place_options
from kstreams_py.operations.committed import CommittedReader, find_all_topics
from kstreams_py.operations.positions import partitions_of
from kstreams_py.operations.task_status import TaskStatus, plan_of
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.choices_journal import ChoicesJournal
from kstreams_py.processing.committers import open_journal
from kstreams_py.processing.environment import Environment
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.recovery import Recovery, show
from kstreams_py.records import Positions, TopicPartition

REFUSALS = (InputLost, RecoveryUndecidable, TopicError)
"""The errors by which a start ends that finds positions, journals or topics that it cannot go on with."""

FIRST = "ends or waits for a transaction, then decides: "
"""A worker ends those of its own slot, which died, and waits for all others."""


def read_status(graph: Graph, environment: Environment, admin: GroupAdmin) -> Iterator[TaskStatus]:
    """Yields the status of each task, in the order of the graph. Raises UserMistake if a topic is missing."""
    found = find_all_topics(graph, environment.cluster)
    groups = admin.describe([f"{graph.name}.{each.id}" for each in graph.processors])
    for processor in graph.processors:
        yield from _Tasks(graph, processor, environment, found, groups[f"{graph.name}.{processor.id}"]).read()


class _Tasks:
    """The tasks of one processor."""

    def __init__(
        self,
        graph: Graph,
        processor: Processor,
        environment: Environment,
        topics: Mapping[str, TopicInfo],
        group: GroupInfo,
    ) -> None:
        self._cluster = environment.cluster
        self._find = find_command(place_options(environment.settings.bootstrap_servers))
        self._committed = CommittedReader(graph, environment)
        self._processor = processor
        self._name, self._group = f"{graph.name}.{processor.id}", group
        self._inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
        self._partitions = partitions_of(processor, topics)
        self._beginning = Beginning(environment, graph, processor, self._inputs)
        self._journal = open_journal(graph, processor, environment, topics, "")
        journal = graph.journal(processor)
        existing = self._cluster.topics([graph.beginnings, *([journal] if journal else [])])
        self._was_started, self._has_journal = graph.beginnings in existing, journal in existing
        """The first start creates both topics."""

    def read(self) -> Iterator[TaskStatus]:
        pending = self._cluster.pending(self._name, self._partitions)
        committed = self._committed.read(
            self._processor, [tp for tp in self._partitions if tp not in pending.partitions]
        )
        starts, ends = self._cluster.starts(self._partitions), self._cluster.ends(self._partitions)
        highs = self._cluster.ends(self._partitions, committed=False)
        for number in sorted({tp.partition for tp in self._partitions}):
            mine = [tp for tp in self._partitions if tp.partition == number]
            at = {tp: committed[tp] for tp in mine if tp in committed}
            refused = False
            try:
                if any(tp in pending.partitions for tp in mine):
                    plan = FIRST + pending.describe(time.time(), self._find)
                else:
                    plan = self._plan(number, mine, at, starts)
            except Retriable as error:
                plan = FIRST + str(error)
            except REFUSALS as error:
                plan, refused = f"ends with {type(error).__name__}: {error}", True
            yield TaskStatus(
                self._processor.id,
                number,
                {tp.topic: offset for tp, offset in at.items()},
                sum(max(0, ends[tp] - at[tp]) for tp in mine) if len(at) == len(mine) else None,
                self._holder(number),
                tuple(self._hidden(tp, ends[tp]) for tp in mine if ends[tp] < highs[tp]),
                plan,
                refused,
            )

    def _plan(self, number: int, mine: list[TopicPartition], at: Positions, starts: Positions) -> str:
        """What the next start does with a task. Raises Retriable, and REFUSALS."""
        if lost := [tp for tp, offset in at.items() if offset < starts[tp]]:
            (tp, *_) = lost
            raise InputLost(
                f"{tp} begins at offset {starts[tp]}, and its committed offset is {at[tp]}: set it (`kstreams recover "
                "reset`)"
            )
        missing = [tp for tp in mine if tp not in at]
        look = self._beginning.plan if self._was_started else self._beginning.first
        positions = at | (look(missing) if missing else {})
        offsets = {tp.topic: offset for tp, offset in positions.items()}
        begins = "" if not missing else f"begins at {show({tp.topic: positions[tp] for tp in missing})}; "
        if self._processor.stores_offsets:
            return f"goes on at the offsets that {self._processor.target} has, whatever is committed"
        if isinstance(self._journal, DeliveryJournal):
            recovery = self._journal.look(number, offsets) if self._has_journal else Recovery("1a")
            moved = {topic: max(offset, recovery.offsets.get(topic, 0)) for topic, offset in offsets.items()}
            return begins + plan_of(recovery, moved)
        if isinstance(self._journal, ChoicesJournal) and self._has_journal:
            left = self._journal.newest(number).after(offsets)
            if left.runs:
                order = ", ".join(f"{topic} through {last}" for topic, last in left.runs)
                return f"{begins}goes on at {show(offsets)}, first in the recorded order: {order}"
        return begins.removesuffix("; ") if missing and not at else f"{begins}goes on at {show(offsets)}"

    def _holder(self, number: int) -> str:
        for member in self._group.members:
            if any(tp.partition == number and tp.topic in self._inputs for tp in member.partitions):
                return f"{member.instance or member.client_id} on {member.host}"
        return ""

    def _hidden(self, tp: TopicPartition, end: int) -> str:
        try:
            found = "; ".join(each.describe(time.time()) for each in self._cluster.open_transactions(tp))
        except KStreamsError as error:
            found = f"which ones is not known: {error}"
        return f"transactions are open on {tp}, and hide what is behind offset {end}: {found}"
