"""Says what follows from moves of positions: what is written again, what stays, and what the next start refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from kstreams_py.errors import InputLost, KStreamsError, TopicError, UserMistake
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.sink import Evidence
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.recover.positions import Move, partitions_of
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.starts.states import RestoredStates
from kstreams_py.processing.topics import preview_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

NAMED: Final = 8
"""The maximum number of partitions that one line names."""


def describe_consequences(
    graph: Graph,
    environment: Environment,
    topics: Mapping[str, TopicInfo],
    committed: Mapping[str, Positions],
    moves: Sequence[Move],
) -> Iterator[str]:
    """Yields a line for each consequence of moves, by processor.

    - `topics`: the inputs of the processors.
    - `committed`: the committed offsets of the processors, by their ids.
    """
    try:
        preview_topics(graph, environment.cluster)
    except UserMistake as error:
        yield _refused(error)
        return
    was_started = graph.beginnings in environment.cluster.topics([graph.beginnings])
    for processor in graph.processors:
        if mine := [move for move in moves if move.processor == processor.id]:
            found = _Moved(graph, processor, environment, topics, committed[processor.id], mine, was_started)
            yield from (f"{processor.id}: {line}" for line in found.lines())


def _refused(error: KStreamsError) -> str:
    return f"the next start ends with {type(error).__name__}: {error}"


class _Moved:
    """One processor whose positions are moved."""

    def __init__(
        self,
        graph: Graph,
        processor: Processor,
        environment: Environment,
        topics: Mapping[str, TopicInfo],
        committed: Positions,
        moves: Sequence[Move],
        was_started: bool,
    ) -> None:
        self._graph, self._processor, self._environment = graph, processor, environment
        self._topics, self._committed, self._moves = topics, committed, moves
        self._new = {move.partition: move.new for move in moves}
        inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
        self._beginning = Beginning(environment, graph, processor, inputs)
        self._was_started = was_started

    def lines(self) -> Iterator[str]:
        if self._processor.stores_offsets:
            yield (
                f"it goes on at the offsets that {self._processor.target} has; the group's count only for "
                "partitions without offsets there"
            )
        elif any(move.again or self._has_expired(move) for move in self._moves):
            yield _again(self._graph, self._processor)
        partitions = partitions_of(self._processor, self._topics)
        if kept := [tp for tp in partitions if tp in self._committed and tp not in self._new]:
            yield f"the positions of {_name_some(kept)} stay"
        states = dict(self._states(partitions))
        refused = {number for number, (_, is_refused) in states.items() if is_refused}
        new = [tp for tp in partitions if tp not in self._committed and tp not in self._new]
        try:
            if begins := self._begins([tp for tp in new if tp.partition not in refused]):
                yield f"begins at {', '.join(f'{tp}@{at}' for tp, at in sorted(begins.items()))}"
        except InputLost as error:
            yield _refused(error)
        yield from (line for line, _ in states.values())
        if self._was_started and (growth := self._beginning.growth):
            yield growth

    def _has_expired(self, move: Move) -> bool:
        """Returns whether the processor has read a partition whose committed offset no longer exists."""
        return (
            move.old is None
            and self._was_started
            and any(
                (each.processor, each.topic, each.partition) == (self._processor.id, *move.partition)
                for each in self._beginning.read()
            )
        )

    def _begins(self, partitions: Sequence[TopicPartition]) -> Positions:
        """Returns where the next start begins to read partitions without a committed offset. Raises InputLost."""
        if not partitions:
            return {}
        return (self._beginning.plan if self._was_started else self._beginning.first)(partitions)

    def _states(self, partitions: Sequence[TopicPartition]) -> Iterator[tuple[int, tuple[str, bool]]]:
        """Yields what the next start does with tasks that do not just keep their state, and whether it refuses."""
        if (changelog := changelog_of(self._graph.name, self._processor)) is None:
            return
        existing = self._environment.cluster.topics([changelog])
        states = RestoredStates(self._graph, self._processor, self._environment, {**self._topics, **existing})
        moved, after = {tp.partition for tp in self._new}, self._committed | self._new
        try:
            for number, group in groupby(sorted(partitions, key=_number), key=_number):
                mine = [*group]
                at = {tp: after[tp] for tp in mine if tp in after}
                # a reset forgets that a state was begun
                begun = self._beginning if self._was_started and number not in moved else None
                try:
                    if states.check(number, at, mine, begun):
                        where = ", ".join(f"{tp}@{o}" for tp, o in at.items())
                        yield number, (f"its state begins empty at {where}{self._disk}", False)
                except (InputLost, TopicError) as error:
                    yield number, (_refused(error), True)
                except KStreamsError as error:
                    why = f"whether the next start of partition {number} is refused is not known: {error}"
                    yield number, (why, False)
        finally:
            states.close()

    @property
    def _disk(self) -> str:
        """What to delete first for a state on disk, because no command knows the directories of other machines."""
        state = self._processor.state
        if state is None or not state.on_disk:
            return ""
        return f", once directory {self._graph.name}/{state.name} in state_directory is deleted on each machine"


def _name_some(partitions: Sequence[TopicPartition]) -> str:
    left = len(partitions) - NAMED
    return ", ".join(map(str, partitions[:NAMED])) + (f" and {left} others" if left > 0 else "")


def _again(graph: Graph, processor: Processor) -> str:
    """Returns what becomes of the outputs of records that a processor reads again."""
    letters = "; dead letters are written again, too" if processor.errors is not None else ""
    if processor.target is not None and processor.target.evidence is Evidence.HASH:
        return f"rows of records that are read again are in {processor.target}, which stores none twice{letters}"
    if not processor.outputs:
        return f"its function is called again for records that are read again{letters}"
    names = [topic.name for topic in processor.outputs]
    readers = [each.id for each in graph.processors if any(topic.name in names for topic in each.inputs)]
    hashes = ", with the same delivery hashes" if processor.hash_header else ""
    if processor.joins and hashes:
        hashes += " if the same records meet"
    return (
        f"outputs of records that are read again are written again to {', '.join(names)}{hashes}: to "
        f"{', '.join(readers) or 'who reads them'} they are new records{letters}"
    )


def _number(tp: TopicPartition) -> int:
    return tp.partition
