"""Inputs that grow: partitions that are added while their processor runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.processing.topics import create_own_topics
from kstreams_py.records import TopicPartition


class Growth:
    """Checks a processor's inputs again, and lets its journal grow, when they have grown."""

    def __init__(self, graph: Graph, processor: Processor, cluster: Cluster, topics: Mapping[str, TopicInfo]) -> None:
        """Raises GraphError if inputs that are read in step differ in partitions."""
        self._graph = graph
        self._processor = processor
        self._cluster = cluster
        counts = self._count(topics)
        journal = graph.journal(processor)
        journaled = topics[journal].partitions if journal is not None and journal in topics else sys.maxsize
        self._counts = {name: min(count, journaled) for name, count in counts.items()}

    def check(self, partitions: Collection[TopicPartition]) -> None:
        """Checks the inputs again if one of `partitions` is new, and lets the journal grow with them.

        Raises GraphError if inputs that are read in step differ in partitions now.
        """
        if any(tp.partition >= self._counts[tp.topic] for tp in partitions):
            found = self._cluster.topics([topic.name for topic in self._processor.inputs])
            self._counts = self._count(found)
            create_own_topics(self._graph, self._cluster, found)

    def _count(self, topics: Mapping[str, TopicInfo]) -> dict[str, int]:
        counts = {topic.name: topics[topic.name].partitions for topic in self._processor.inputs}
        self._graph.check_partitions(counts)
        return counts
