"""Says what follows from moves of positions: what is written again, what stays, and what the next start refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from kstreams_py.errors import InputLost, NotRestored, TopicError
from kstreams_py.graph.declarations import Processor, changelog_of
from kstreams_py.graph.sink import Evidence
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.recover.positions import Move, partitions_of
from kstreams_py.operations.recover.states import RestoredStates
from kstreams_py.processing.beginning import Beginning
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

NAMED: Final = 8
"""Most partitions that one line names."""


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
    for processor in graph.processors:
        mine = {move.partition: move.new for move in moves if move.processor == processor.id}
        if not mine:
            continue
        if any(move.again for move in moves if move.processor == processor.id):
            yield f"{processor.id}: {_again(graph, processor)}"
        if processor.stores_offsets:
            yield (
                f"{processor.id}: goes on at the offsets that {processor.target} has; the group's count only for "
                "partitions of which it has none"
            )
        if stays := [tp for tp in partitions_of(processor, topics) if tp not in mine]:
            yield f"{processor.id}: the positions of {_name_some(stays)} stay"
        yield from _of_states(graph, processor, environment, topics, committed[processor.id] | mine, mine)


def _name_some(partitions: Sequence[TopicPartition]) -> str:
    left = len(partitions) - NAMED
    return ", ".join(map(str, partitions[:NAMED])) + (f" and {left} others" if left > 0 else "")


def _again(graph: Graph, processor: Processor) -> str:
    """Returns what becomes of the outputs of records that a processor reads again."""
    letters = "; dead letters are written again, too" if processor.errors is not None else ""
    if processor.target is not None:
        if processor.target.evidence is Evidence.HASH:
            return f"rows of records that are read again are in {processor.target}, which stores none twice{letters}"
        return f"rows of records that are read again are stored again{letters}"
    if not processor.outputs:
        return f"its function is called again for records that are read again{letters}"
    names = [topic.name for topic in processor.outputs]
    readers = [each.id for each in graph.processors if any(topic.name in names for topic in each.inputs)]
    who = ", ".join(readers) or "who reads them"
    return (
        f"outputs of records that are read again are written again to {', '.join(names)}, with the same delivery "
        f"hashes: to {who} they are new records{letters}"
    )


def _of_states(
    graph: Graph,
    processor: Processor,
    environment: Environment,
    topics: Mapping[str, TopicInfo],
    positions: Positions,
    moved: Positions,
) -> Iterator[str]:
    """Yields what the next start does with the state of each task, if it does not simply go on.

    - `positions`: the committed offsets after the moves.
    - `moved`: those that are set; the state of a task may begin empty there.
    """
    if (changelog := changelog_of(graph.name, processor)) is None:
        return
    cluster = environment.cluster
    existing = cluster.topics([changelog, graph.beginnings])
    states = RestoredStates(graph, processor, environment, {**topics, **existing})
    inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
    beginning = Beginning(environment, graph, processor, inputs) if graph.beginnings in existing else None
    numbers = {tp.partition for tp in moved}
    try:
        for number, group in groupby(sorted(positions, key=_number), key=_number):
            at = {tp: positions[tp] for tp in group}
            try:
                if states.check(number, at, [*at], None if number in numbers else beginning):
                    yield f"{processor.id}: its state begins empty at {', '.join(f'{tp}@{o}' for tp, o in at.items())}"
            except (InputLost, TopicError) as error:
                yield f"the next start of {processor.id} ends with {type(error).__name__}: {error}"
            except NotRestored as error:
                yield f"{processor.id}: whether its next start is refused is not known: {error}"
    finally:
        states.close()


def _number(tp: TopicPartition) -> int:
    return tp.partition
