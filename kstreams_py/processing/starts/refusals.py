"""Ends a start before one of its processors reads a record, if another one would be refused.

A worker is refused only once it has its partitions, while other processors already read. That does no harm to
processors that resume where they stopped. A new one begins at the oldest record: if it is an old one under a new name,
its outputs are written twice before the refusal ends the start.

So all are checked if one is new. Workers in other slots may run: a refusal counts if it is the same after a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kstreams_py.errors import InputLost, KStreamsError, Retriable, SinkUnavailable, UserMistake
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.beginning import BegunPartition, read_begun, topics_read
from kstreams_py.processing.starts.next_start import NextStart
from kstreams_py.records import TopicPartition
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

REFUSALS: Final = (InputLost, SinkUnavailable, UserMistake)
"""The errors that end a worker which cannot go on with the positions, journal, state, topics or target it finds."""

AGAIN_SECONDS: Final = 1.0
"""Seconds between the two checks: a running worker may have committed between two requests of one check."""


def check_starts(graph: Graph, environment: Environment, topics: Mapping[str, TopicInfo]) -> None:
    """Raises the error that would end the start of a processor, if a processor of the graph is new.

    Leaves to the workers whatever cannot be read now, or waits for a transaction.

    - `topics`: the topics of the graph.
    """
    if not graph.processors:
        return  # a graph of channels has no topic of beginnings, and reading it would wait 15 s for its metadata
    try:
        begun = read_begun(environment.cluster, graph.beginnings)[0]
        if not _has_new(graph, topics, begun) or not (refused := _find_refusals(graph, environment, topics)):
            return
        environment.sleep(AGAIN_SECONDS)
        again = _find_refusals(graph, environment, topics)
    except KStreamsError as error:
        logger.info("whether a processor would be refused is not known before it starts: %s", error)
        return
    for place, why in refused.items():
        if str(why) == str(again.get(place)):
            raise why


def _has_new(graph: Graph, topics: Mapping[str, TopicInfo], begun: Mapping[BegunPartition, int]) -> bool:
    """Returns whether the graph was started before, and a processor has not begun to read one of its inputs."""
    read = topics_read(begun)
    return bool(read) and any(
        (topic.name, topics[topic.name].topic_id) not in read.get(processor.id, ())
        for processor in graph.processors
        for topic in processor.inputs
    )


def _find_refusals(
    graph: Graph, environment: Environment, topics: Mapping[str, TopicInfo]
) -> dict[tuple[str, int], KStreamsError]:
    """Returns the errors that would end workers, by processor and partition number of the task."""
    found: dict[tuple[str, int], KStreamsError] = {}
    for processor in graph.processors:
        start = NextStart(graph, processor, environment, topics)
        try:
            refused = _refusals_of(graph, processor, environment, topics, start)
            found |= {(processor.id, number): error for number, error in refused.items()}
        finally:
            start.close()
    return found


def _refusals_of(
    graph: Graph, processor: Processor, environment: Environment, topics: Mapping[str, TopicInfo], start: NextStart
) -> dict[int, KStreamsError]:
    cluster, found = environment.cluster, dict[int, KStreamsError]()
    tasks: dict[int, list[TopicPartition]] = {}
    for topic in processor.inputs:
        for number in range(topics[topic.name].partitions):
            tasks.setdefault(number, []).append(TopicPartition(topic.name, number))
    partitions = [tp for mine in tasks.values() for tp in mine]
    known, starts = cluster.group_offsets(group_of(graph.name, processor.id), partitions), cluster.starts(partitions)
    for number, mine in tasks.items():
        if not known.pending.isdisjoint(mine):
            continue
        try:
            start.decide(number, mine, {tp: known.committed[tp] for tp in mine if tp in known.committed}, starts)
        except Retriable:
            continue
        except REFUSALS as error:
            found[number] = error
    return found
