"""Prepares topics before anything starts: creates missing ones, refuses those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping

from kstreams_py.errors import TopicError
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo

JOURNAL_SETTINGS: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""A journal's newest record must never be lost to time or compaction; the worker deletes older ones."""

BEGINNINGS_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}


def create_topics(graph: Graph, cluster: Cluster, partitions: int = DEFAULT_PARTITIONS) -> list[str]:
    """Creates the graph's missing topics, and returns their names.

    The number of partitions is the declared one, or that of Graph.partitions_like(), where `partitions` is the default.
    """
    counts = {info.name: info.partitions for info in cluster.topics(list(graph.topics)).values()}
    missing = [name for name in graph.topics if name not in counts]
    wanted = []
    for name in missing:
        topic = graph.topics[name]
        number = topic.partitions or graph.partitions_like(name, counts, partitions)
        wanted.append((name, number, topic.replication or -1, topic.config or {}))
    cluster.create_topics(wanted)
    return missing


def check_topics(graph: Graph, cluster: Cluster) -> dict[str, TopicInfo]:
    """Checks the graph's topics and returns them; creates the framework's own topics.

    Raises TopicError for the first topic that is missing or differs from its declaration.
    """
    found = cluster.topics(list(graph.topics))
    if missing := [name for name in graph.topics if name not in found]:
        raise TopicError(
            f"missing topics: {', '.join(missing)}: run `kstreams topics create`, or start with --create-topics"
        )
    for name, info in found.items():
        declared = graph.topics[name]
        if declared.partitions is not None and declared.partitions != info.partitions:
            raise TopicError(
                f"topic {name!r} has {info.partitions} partitions and the graph declares {declared.partitions}: "
                "correct the declaration, or delete the topic and create it again"
            )
        _check_settings(info, declared.config or {})
    graph.check_partitions({name: info.partitions for name, info in found.items()})
    create_own_topics(graph, cluster, found)
    return found


def describe_idle_slots(graph: Graph, found: Mapping[str, TopicInfo], slots: int) -> str:
    """Why some of so many slots have nothing to do, with the remedy; "" if each of them has a partition to read."""
    read = [found[processor.inputs[0].name].partitions for processor in graph.processors]
    if slots <= max(read, default=slots):
        return ""
    most = max(read)
    return (
        f"{slots} slots, and the inputs of graph {graph.name!r} have {most} partition(s): one slot at a time reads a "
        f"partition, so {slots - most} of them only stand by; run {most}, or make topics with more partitions "
        "(partitions= of the topic, --partitions with --create-topics)"
    )


def create_own_topics(graph: Graph, cluster: Cluster, found: Mapping[str, TopicInfo]) -> list[str]:
    """Creates the framework's own topics, and returns their names; lets journals grow with their inputs."""
    journals = {
        journal: found[processor.inputs[0].name].partitions
        for processor in graph.processors
        if processor.inputs[0].name in found and (journal := graph.journal(processor)) is not None
    }
    wanted = {name: (partitions, JOURNAL_SETTINGS) for name, partitions in journals.items()}
    wanted[graph.beginnings] = (1, BEGINNINGS_SETTINGS)
    return ensure_topics(cluster, wanted)


def ensure_topics(cluster: Cluster, wanted: Mapping[str, tuple[int, Mapping[str, str]]]) -> list[str]:
    """Creates the framework's own topics that are missing, and adds partitions to those that have fewer.

    `wanted` has their partitions and settings by name. Returns the names of those that it has created. Raises
    TopicError for settings that differ.
    """
    existing = cluster.topics(list(wanted))
    missing = [name for name in wanted if name not in existing]
    cluster.create_topics((name, *wanted[name][:1], -1, wanted[name][1]) for name in missing)
    for name, info in existing.items():
        partitions, settings = wanted[name]
        _check_settings(info, settings)
        if info.partitions < partitions:
            cluster.grow(name, partitions)
    return missing


def _check_settings(info: TopicInfo, wanted: Mapping[str, str]) -> None:
    for setting, value in wanted.items():
        if (actual := info.settings.get(setting)) != str(value):
            raise TopicError(
                f"topic {info.name!r} has {setting}={actual} and needs {value}: "
                f"run kafka-configs --alter --topic {info.name} --add-config {setting}={value}"
            )
