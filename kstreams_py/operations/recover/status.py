"""Reads where the tasks of a graph stand, and decides like a worker what their next start does; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from kstreams_py.errors import InputLost, KStreamsError, Retriable, UserMistake
from kstreams_py.graph.channels import topic_readers
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.kafka.groups import GroupInfo
from kstreams_py.kafka.transactions import OpenTransaction, find_command_at
from kstreams_py.operations.committed import CommittedReader
from kstreams_py.operations.recover.positions import partitions_of
from kstreams_py.operations.recover.task_status import JournalTail, TaskStatus, UndeclaredProcessor, reset_command
from kstreams_py.processing.beginning import changelogs_begun, options_of, read_begun, undeclared
from kstreams_py.processing.journal.records import type_of
from kstreams_py.processing.journal.recovery import show
from kstreams_py.processing.starts.next_start import NextStart, StartDecision
from kstreams_py.processing.starts.refusals import REFUSALS
from kstreams_py.processing.topics import find_topics, missing_topics, preview_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

FIRST = "ends or waits for a transaction, then decides: "
"""A worker ends transactions that its own slot left open when it died, and waits for all others."""


def read_status(graph: Graph, environment: Environment, admin: GroupAdmin) -> Iterator[TaskStatus]:
    """Yields the status of each task, in the order of the graph; only one for a processor with a missing input.

    Then yields the status of each partition of the topics that tasks over channels read, under the tasks' names.
    """
    found = find_topics(graph, environment.cluster)
    refusal: UserMistake | None = None
    try:
        preview_topics(graph, environment.cluster)
    except UserMistake as error:  # in this case, no worker of the graph starts
        refusal = error
    groups = admin.describe([*graph.groups])
    shown = "" if refusal is None else _ends_with(refusal)
    for processor in graph.processors:
        if missing := [topic.name for topic in processor.inputs if topic.name not in found]:
            why = _ends_with(refusal or missing_topics(graph, missing, "start with --create-topics"))
            yield TaskStatus(processor.id, 0, {}, None, "", (), why, None, "", is_refused=True, refusal=why)
            continue
        group = groups[group_of(graph.name, processor.id)]
        is_whole = len(found) == len(graph.topics)
        counts = {found[topic.name].partitions for topic in processor.inputs}
        # if only topics that it does not read are missing, examine its tasks nevertheless
        stops = refusal if is_whole or len(counts) > 1 else None
        tasks = _Tasks(graph, processor, environment, found, group, stops)
        try:
            yield from (replace(each, is_refused=True, refusal=shown) if shown else each for each in tasks.read())
        finally:
            tasks.close()
    for channel, readers in topic_readers(graph.tasks).items():
        name, read = ", ".join(task.id for task in readers), group_of(graph.name, channel.name)
        if channel.name not in found:
            why = _ends_with(refusal or missing_topics(graph, [channel.name], "start with --create-topics"))
            yield TaskStatus(name, 0, {}, None, "", (), why, is_refused=True, refusal=why)
            continue
        for each in _read_group(name, read, groups[read], found[channel.name], environment):
            yield replace(each, is_refused=True, refusal=shown) if shown else each


def _read_group(
    name: str, group: str, info: GroupInfo, topic: TopicInfo, environment: Environment
) -> Iterator[TaskStatus]:
    """Yields the status of each partition of a topic that tasks over channels read."""
    cluster, servers = environment.cluster, environment.settings.bootstrap_servers
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    committed = cluster.group_offsets(group, partitions).committed
    starts, ends = cluster.starts(partitions), cluster.ends(partitions)
    for tp in partitions:
        at, is_refused = committed.get(tp), False
        if at is None:
            plan = f"begins at {show({tp.topic: starts[tp]})}"
        elif is_refused := not starts[tp] <= at <= ends[tp]:
            to = min(max(at, starts[tp]), ends[tp])
            plan = _ends_with(
                InputLost(
                    f"{tp} has the offsets from {starts[tp]} to {ends[tp]}, and the committed one is {at}: set it "
                    f"(`{reset_command(servers, group, tp, to)}`)"
                )
            )
        else:
            plan = f"goes on at {show({tp.topic: at})}"
        yield TaskStatus(
            name,
            tp.partition,
            {} if at is None else {tp.topic: at},
            None if at is None else max(0, ends[tp] - at),
            _find_holder(info, {tp.topic}, tp.partition),
            (*_describe_open(cluster, [tp]),),
            plan,
            is_refused=is_refused,
        )


def find_undeclared(graph: Graph, environment: Environment, admin: GroupAdmin) -> list[UndeclaredProcessor]:
    """Returns the processors that have begun to read inputs and that the graph no longer declares."""
    cluster = environment.cluster
    if graph.beginnings not in cluster.topics([graph.beginnings]):
        return []
    begun = read_begun(cluster, graph.beginnings)[0]
    started = {each.processor for each in begun}
    gone, states = undeclared(begun, {each.id for each in graph.processors}), changelogs_begun(begun)
    found = []
    for processor, partitions in gone.items():
        group, forget = group_of(graph.name, processor), show_command(graph, "recover forget", processor)
        unseen, heirs, alike = "", tuple[str, ...](), list[str]()
        try:
            committed = cluster.group_offsets(group, partitions).committed
            alike = _find_alike(graph, committed, has_state=bool(states[processor]))
            heirs = _find_heirs(graph, cluster, committed, alike)
            members = admin.describe([group])[group].members
        except KStreamsError as error:  # a user with rights to the graph's other groups may lack them here
            committed, members, unseen = {}, (), str(error)
        move = _show_move(graph, [each for each in alike if each not in started], options_of(committed))
        held = tuple(map(str, members))
        found.append(UndeclaredProcessor(processor, group, committed, held, move, forget, unseen, heirs))
    return found


def _find_alike(graph: Graph, committed: Positions, *, has_state: bool) -> list[str]:
    """Returns the processors that one with these positions may have been renamed to: they read the same topics."""
    read = {tp.topic for tp in committed}
    alike = [each for each in graph.processors if {topic.name for topic in each.inputs} == read]
    return [each.id for each in alike if (each.state is not None) == has_state]


def _show_move(graph: Graph, names: Collection[str], positions: list[str]) -> str:
    """Returns the commands that give positions to these processors; if there are none, the command's form in words."""
    if names:
        return " or ".join(f"`{show_command(graph, 'recover reset', each, *positions)}`" for each in names)
    then = f", then `{' '.join(positions)}`" if positions else ""
    return f"`{show_command(graph, 'recover reset')}`, then its id{then}"


def _find_heirs(graph: Graph, cluster: Cluster, committed: Positions, heirs: Collection[str]) -> tuple[str, ...]:
    """Returns the processors that one with these positions may have been renamed to; none unless all reached them."""
    now = [cluster.group_offsets(group_of(graph.name, each), committed.keys()).committed for each in heirs]
    return tuple(heirs) if all(each.get(tp, -1) >= at for each in now for tp, at in committed.items()) else ()


class _Tasks:
    """The tasks of one processor."""

    def __init__(
        self,
        graph: Graph,
        processor: Processor,
        environment: Environment,
        topics: Mapping[str, TopicInfo],
        group: GroupInfo,
        refusal: UserMistake | None,
    ) -> None:
        """`refusal`: why the tasks cannot be examined; None if they can."""
        self._cluster = environment.cluster
        self._find = find_command_at(environment.settings.bootstrap_servers)
        self._committed = CommittedReader(graph, environment)
        self._processor = processor
        self._name, self._group = group_of(graph.name, processor.id), group
        self._refusal = refusal
        self._partitions = partitions_of(processor, topics)
        self._start = NextStart(graph, processor, environment, topics)
        self._outputs = [
            TopicPartition(name, n)
            for name in processor.written
            if name in topics
            for n in range(topics[name].partitions)
        ]
        if (delivered := graph.delivered(processor)) is not None:
            self._outputs += [TopicPartition(delivered, number) for number in range(self._start.journaled)]

    def read(self) -> Iterator[TaskStatus]:
        pending = self._cluster.pending(self._name, self._partitions)
        committed = self._committed.read(
            self._processor, [tp for tp in self._partitions if tp not in pending.partitions]
        )
        starts, ends = self._cluster.starts(self._partitions), self._cluster.ends(self._partitions)
        on_outputs = self._describe_writers()
        for number in sorted({tp.partition for tp in self._partitions}):
            mine = [tp for tp in self._partitions if tp.partition == number]
            at = {tp: committed[tp] for tp in mine if tp in committed}
            journal = [TopicPartition(self._start.backing, number)] if number < self._start.journaled else []
            tail, decision, refused = self._tail(journal), StartDecision(""), False
            try:
                if any(tp in pending.partitions for tp in mine):
                    decision = StartDecision(FIRST + pending.describe(time.time(), self._find))
                elif self._refusal is not None:
                    raise self._refusal
                else:
                    decision = self._start.decide(number, mine, at, starts)
            except Retriable as error:
                decision = StartDecision(FIRST + str(error))
            except REFUSALS as error:
                decision, refused = StartDecision(_ends_with(error)), True
            yield TaskStatus(
                self._processor.id,
                number,
                {tp.topic: offset for tp, offset in at.items()},
                sum(max(0, ends[tp] - at[tp]) for tp in mine) if len(at) == len(mine) else None,
                _find_holder(self._group, {tp.topic for tp in mine}, number),
                (*_describe_open(self._cluster, [*mine, *journal]), *on_outputs),
                decision.text,
                tail,
                decision.branch,
                refused,
                new_name_of=decision.new_name_of,
                begins_empty=decision.begins_empty,
                growth=self._start.growth,
                away=decision.away,
            )

    def close(self) -> None:
        """Frees the states that it has read."""
        self._start.close()

    def _tail(self, journal: Collection[TopicPartition]) -> JournalTail | None:
        for tp in journal:
            if (m := self._cluster.newest(tp)) is not None:
                return JournalTail(type_of(m), m.offset())
        return None

    def _describe_writers(self) -> list[str]:
        """Returns a line for each open transaction on outputs; one transaction may write to many partitions."""
        cluster = self._cluster.named(self._processor.cluster)
        found: dict[tuple[int, int], tuple[OpenTransaction, list[TopicPartition]]] = {}
        try:
            for tp in _find_hidden(cluster, self._outputs):
                for each in cluster.open_transactions(tp):
                    found.setdefault((each.producer_id, each.epoch), (each, []))[1].append(tp)
        except KStreamsError as error:
            return [f"it is unknown which transactions are open on its outputs: {error}"]
        return [
            f"a transaction is open on {', '.join(map(str, partitions))}: {each.describe(time.time())}"
            for each, partitions in found.values()
        ]


def _find_holder(group: GroupInfo, topics: Collection[str], number: int) -> str:
    """Returns the member of a group that has a partition number of these topics, as text; "" if there is none."""
    for member in group.members:
        if any(tp.partition == number and tp.topic in topics for tp in member.partitions):
            return str(member)
    return ""


def _describe_open(cluster: Cluster, partitions: Collection[TopicPartition]) -> Iterator[str]:
    """Yields a line for each of these partitions that has open transactions."""
    for tp, end in _find_hidden(cluster, partitions).items():
        try:
            found = "; ".join(each.describe(time.time()) for each in cluster.open_transactions(tp))
        except KStreamsError as error:
            found = f"which ones is unknown: {error}"
        yield f"transactions are open on {tp}, and hide records from offset {end} on: {found}"


def _ends_with(error: KStreamsError) -> str:
    return f"ends with {type(error).__name__}: {error}"


def _find_hidden(cluster: Cluster, partitions: Collection[TopicPartition]) -> Positions:
    """Returns the partitions with open transactions, and their last stable offsets."""
    ends, highs = cluster.ends(partitions), cluster.ends(partitions, committed=False)
    return {tp: ends[tp] for tp in partitions if ends[tp] < highs[tp]}
