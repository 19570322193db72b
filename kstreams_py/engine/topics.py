"""Topics before anything starts: creates those that are missing, refuses those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping

from kstreams_py.delivery import Log, TopicInfo
from kstreams_py.errors import TopicError
from kstreams_py.topology import Graph, Processor

JOURNAL_SETTINGS: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""A journal's newest record must never be lost to time or compaction; what is older is deleted by the worker."""

BEGINNINGS_SETTINGS: Mapping[str, str] = {"cleanup.policy": "compact"}


def create_topics(graph: Graph, log: Log) -> list[str]:
    """Creates the graph's missing topics, and returns their names.

    Partitions are as declared, else those of the topics that the same processors read, else 1.
    """
    counts = {info.name: info.partitions for info in log.topics(list(graph.topics)).values()}
    missing = [name for name in graph.topics if name not in counts]
    wanted = []
    for name in missing:
        topic = graph.topics[name]
        partitions = topic.partitions or graph.partitions_like(name, counts)
        wanted.append((name, partitions, topic.replication or -1, topic.config or {}))
    log.create_topics(wanted)
    return missing


def check_topics(graph: Graph, log: Log) -> dict[str, TopicInfo]:
    """The graph's topics as they are; the framework's own are created on the way.

    Raises TopicError for the first misfit.
    """
    found = log.topics(list(graph.topics))
    if missing := [name for name in graph.topics if name not in found]:
        raise TopicError(
            f"missing topics: {', '.join(missing)}: run `kstreams topics create`, or start with --create-topics"
        )
    for name, info in found.items():
        declared = graph.topics[name]
        if declared.partitions is not None and declared.partitions != info.partitions:
            raise TopicError(
                f"topic {name!r} has {info.partitions} partitions and the graph declares {declared.partitions}: "
                "correct the declaration, or make the topic anew"
            )
        _check_settings(info, declared.config or {})
    graph.check_partitions({name: info.partitions for name, info in found.items()})
    _create_own(graph, log, found)
    return found


def check_growth(graph: Graph, processor: Processor, log: Log) -> dict[str, TopicInfo]:
    """The inputs of a processor as they are now that one has more partitions; its journal grows with them.

    Raises GraphError if inputs that are read in step differ.
    """
    found = log.topics([topic.name for topic in processor.inputs])
    graph.check_partitions({name: info.partitions for name, info in found.items()})
    _create_own(graph, log, found)
    return found


def _check_settings(info: TopicInfo, wanted: Mapping[str, str]) -> None:
    for setting, value in wanted.items():
        if (actual := info.settings.get(setting)) != str(value):
            raise TopicError(
                f"topic {info.name!r} has {setting}={actual} and needs {value}: "
                f"run kafka-configs --alter --topic {info.name} --add-config {setting}={value}"
            )


def _create_own(graph: Graph, log: Log, found: Mapping[str, TopicInfo]) -> None:
    """Creates the topics that are the framework's own, and lets journals grow with their inputs."""
    journals = {
        journal: found[processor.inputs[0].name].partitions
        for processor in graph.processors
        if processor.inputs[0].name in found and (journal := graph.journal(processor)) is not None
    }
    wanted = {name: (partitions, JOURNAL_SETTINGS) for name, partitions in journals.items()}
    wanted[graph.beginnings] = (1, BEGINNINGS_SETTINGS)
    existing = log.topics(list(wanted))
    log.create_topics((name, *wanted[name][:1], -1, wanted[name][1]) for name in wanted if name not in existing)
    for name, info in existing.items():
        partitions, settings = wanted[name]
        _check_settings(info, settings)
        if info.partitions < partitions:
            log.grow(name, partitions)
