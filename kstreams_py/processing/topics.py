"""The topics of a graph: creates missing topics, rejects topics that differ, follows inputs that gain partitions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kstreams_py.errors import TopicError
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS, Processor, Topic, changelog_of
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.kafka.own_topics import check_own_topics, check_settings, ensure_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.state.changelog import CHANGELOG_SETTINGS
from kstreams_py.state.reading import commands_of

JOURNAL_SETTINGS: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""A journal's newest record must never be lost to time or compaction; the worker deletes older ones."""

DELIVERED_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}
"""Only the newest record of each task counts, and must be kept."""

BEGINNINGS_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}


def create_topics(graph: Graph, cluster: Cluster, partitions: int = DEFAULT_PARTITIONS) -> list[str]:
    """Creates the graph's missing topics, and returns their names.

    A topic that declares no number of partitions gets the number that Graph.partitions_like() returns; `partitions` is
    its default.
    """
    counts = {info.name: info.partitions for info in find_topics(graph, cluster).values()}
    missing = [name for name in graph.topics if name not in counts]
    wanted: dict[str, list[tuple[str, int, int, Mapping[str, str]]]] = {}
    for name in missing:
        topic = graph.topics[name]
        number = topic.partitions or graph.partitions_like(name, counts, partitions)
        wanted.setdefault(topic.cluster, []).append((name, number, topic.replication or -1, topic.config or {}))
    for place, each in wanted.items():
        cluster.named(place).create_topics(each)
    return missing


def find_topics(graph: Graph, cluster: Cluster, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
    """Returns the existing topics of a graph, as their own clusters describe them.

    - `names`: the topics to look up; None for all.
    """
    declared = graph.topics
    asked = list(declared.values()) if names is None else [declared[name] for name in names]
    found: dict[str, TopicInfo] = {}
    for place in dict.fromkeys(topic.cluster for topic in asked):
        found |= cluster.named(place).topics([topic.name for topic in asked if topic.cluster == place])
    return {topic.name: found[topic.name] for topic in asked if topic.name in found}


class DescribedTopic(NamedTuple):
    """A topic: its declaration in a graph, and its description by its cluster.

    - `found`: the description by its cluster; None if the topic does not exist.
    - `readers`, `writers`: the ids of processors and pipelines; processors write the dead-letter topic that they name.
    """

    declared: Topic
    found: TopicInfo | None
    readers: tuple[str, ...]
    writers: tuple[str, ...]


def describe_topics(graph: Graph, cluster: Cluster) -> list[DescribedTopic]:
    """Returns all topics of a graph, in the order of their declaration."""
    found = find_topics(graph, cluster)
    reads = {each.id: [topic.name for topic in each.inputs] for each in graph.processors}
    reads |= {each.id: [topic.name for topic in each.inputs] for each in graph.pipelines}
    writes = {each.id: [*each.written] for each in graph.processors}
    writes |= {each.id: [each.target.name] for each in graph.pipelines if isinstance(each.target, Topic)}
    return [
        DescribedTopic(
            topic,
            found.get(name),
            tuple(reader for reader, names in reads.items() if name in names),
            tuple(writer for writer, names in writes.items() if name in names),
        )
        for name, topic in graph.topics.items()
    ]


def ask_clusters(
    graph: Graph,
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    ask: Callable[[Cluster, Collection[TopicPartition]], Positions],
) -> Positions:
    """Asks each cluster about the partitions that it hosts; returns the combined answers."""
    by_place: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        by_place.setdefault(graph.topics[tp.topic].cluster, []).append(tp)
    found: Positions = {}
    for place, each in by_place.items():
        found |= ask(cluster.named(place), each)
    return found


def missing_topics(graph: Graph, missing: Collection[str], other_remedy: str) -> TopicError:
    """Returns the exception for topics of a graph that do not exist."""
    create = show_command(graph, "topics create")
    return TopicError(f"missing topics: {', '.join(missing)}: run `{create}`, or {other_remedy}")


def find_topics_of(graph: Graph, processor: Processor, cluster: Cluster) -> dict[str, TopicInfo]:
    """Returns the existing topics of a processor, including its journal and its changelog."""
    found = find_topics(graph, cluster, [*(topic.name for topic in processor.inputs), *processor.written])
    own = [name for name in (graph.journal_topic(processor), changelog_of(graph.name, processor)) if name is not None]
    return found | cluster.topics(own) if own else found


def check_topics(graph: Graph, cluster: Cluster) -> dict[str, TopicInfo]:
    """Checks the graph's topics, creates the framework's own topics, and returns the graph's topics.

    Raises TopicError for the first topic that is missing or differs from its declaration.
    """
    found = _check_declared(graph, cluster)
    create_own_topics(graph, cluster, found)
    return found


def preview_topics(graph: Graph, cluster: Cluster) -> None:
    """Raises what `check_topics` would raise, without creating anything."""
    found = _check_declared(graph, cluster)
    for place, each in _own_topics(graph, cluster, found, graph.processors).items():
        check_own_topics(cluster.named(place), each)


def _check_declared(graph: Graph, cluster: Cluster) -> dict[str, TopicInfo]:
    found = find_topics(graph, cluster)
    if missing := [name for name in graph.topics if name not in found]:
        raise missing_topics(graph, missing, "start with --create-topics")
    for name, info in found.items():
        declared = graph.topics[name]
        if declared.partitions is not None and declared.partitions != info.partitions:
            raise TopicError(
                f"topic {name!r} has {info.partitions} partitions, but the graph declares {declared.partitions}: "
                "correct the declaration, or delete the topic and create it again"
            )
        check_settings(info, declared.config or {})
    graph.check_partitions({name: info.partitions for name, info in found.items()})
    return found


def describe_idle_slots(graph: Graph, found: Mapping[str, TopicInfo], slots: int) -> str:
    """Returns why some slots have nothing to do, and the remedy; "" if each slot has a partition to read."""
    read = [found[processor.inputs[0].name].partitions for processor in graph.processors]
    if slots <= max(read, default=slots):
        return ""
    most = max(read)
    return (
        f"graph {graph.name!r} has {slots} slots, but its inputs have {most} partition(s): only one slot at a "
        f"time reads a partition, so {slots - most} of the slots stay idle: run {most} slots, or create topics with "
        "more partitions (partitions= of the topic, --partitions with --create-topics)"
    )


def create_own_topics(graph: Graph, cluster: Cluster, found: Mapping[str, TopicInfo]) -> list[str]:
    """Creates the framework's own topics, and returns their names; adds partitions to journals if inputs have more."""
    wanted = _own_topics(graph, cluster, found, graph.processors)
    return _ensure(cluster, wanted)


def _ensure(cluster: Cluster, wanted: Mapping[str, dict[str, tuple[int, Mapping[str, str]]]]) -> list[str]:
    return [name for place, each in wanted.items() for name in ensure_topics(cluster.named(place), each)]


def _own_topics(
    graph: Graph, cluster: Cluster, found: Mapping[str, TopicInfo], processors: Collection[Processor]
) -> dict[str, dict[str, tuple[int, Mapping[str, str]]]]:
    """Returns the partitions and settings of the framework's own topics for these processors, by cluster and by name.

    Raises TopicError if a processor's inputs and its changelog differ in their number of partitions.
    """
    wanted: dict[str, dict[str, tuple[int, Mapping[str, str]]]] = {"": {}}
    for processor in processors:
        if processor.inputs[0].name not in found:
            continue
        partitions = found[processor.inputs[0].name].partitions
        if (journal := graph.journal_topic(processor)) is not None:
            wanted[""][journal] = (partitions, JOURNAL_SETTINGS)
        if (changelog := changelog_of(graph.name, processor)) is not None:
            _check_growth(graph, processor, changelog, partitions, cluster)
            wanted[""][changelog] = (partitions, CHANGELOG_SETTINGS)
        if (delivered := graph.delivered(processor)) is not None:
            wanted.setdefault(processor.cluster, {})[delivered] = (partitions, DELIVERED_SETTINGS)
    if processors:
        wanted[""][graph.beginnings] = (1, BEGINNINGS_SETTINGS)
    return wanted


def _check_growth(graph: Graph, processor: Processor, changelog: str, partitions: int, cluster: Cluster) -> None:
    """Raises TopicError if a processor's inputs and its changelog differ in their number of partitions."""
    found = cluster.topics([changelog]).get(changelog)
    if found is not None and found.partitions != partitions:
        commands = commands_of(graph, processor)
        raise TopicError(
            f"{processor.id}: its inputs have {partitions} partitions, but its changelog {changelog!r} has "
            f"{found.partitions}: new records of a key may be in a different partition from its state: read topics "
            f"with {found.partitions} partitions; or copy the inputs to new topics with {partitions} partitions "
            f"(`@graph.map(OLD, to=NEW)`), read these, and {commands.start_over(changelog)}; without a copy, a key "
            "that has records in two partitions gets a state in each"
        )


class Growth:
    """Checks the inputs of a processor again when they gain partitions, and adds partitions to its journal."""

    def __init__(self, graph: Graph, processor: Processor, cluster: Cluster, topics: Mapping[str, TopicInfo]) -> None:
        """Raises GraphError if inputs that are read in step differ in their number of partitions."""
        self._graph = graph
        self._processor = processor
        self._cluster = cluster
        counts = self._count(topics)
        journal = graph.journal_topic(processor)
        journaled = topics[journal].partitions if journal is not None and journal in topics else sys.maxsize
        self._counts = {name: min(count, journaled) for name, count in counts.items()}

    def check(self, partitions: Collection[TopicPartition]) -> None:
        """Checks the inputs again if one of `partitions` is new, and adds partitions to the journal.

        Raises TopicError, and GraphError if inputs that are read in step now differ in their number of partitions.
        """
        if any(tp.partition >= self._counts[tp.topic] for tp in partitions):
            found = self._cluster.topics([topic.name for topic in self._processor.inputs])
            self._counts = self._count(found)
            # only this processor is checked: another reader of the topic reports a refusal under its own name
            _ensure(self._cluster, _own_topics(self._graph, self._cluster, found, [self._processor]))

    def _count(self, topics: Mapping[str, TopicInfo]) -> dict[str, int]:
        counts = {topic.name: topics[topic.name].partitions for topic in self._processor.inputs}
        self._graph.check_partitions(counts)
        return counts
