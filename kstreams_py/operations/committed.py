"""Finds the topics of a graph and reads the committed offsets of its processors, without joining their groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kstreams_py.errors import BrokerUnavailable, Retriable
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import group_of, recover_id
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, Consumer, TopicInfo
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.topics import find_topics, missing_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment


def find_all_topics(graph: Graph, cluster: Cluster, names: Collection[str] | None = None) -> dict[str, TopicInfo]:
    """Returns topics of a graph by name; None for all. Raises TopicError if one is missing."""
    found = find_topics(graph, cluster, names)
    if missing := [name for name in (graph.topics if names is None else names) if name not in found]:
        raise missing_topics(graph, missing, "correct --bootstrap-servers")
    return found


class CommittedReader:
    """Reads the committed offsets of groups, as a client that never joins them."""

    def __init__(self, graph: Graph, environment: Environment) -> None:
        """Makes no request."""
        self._graph = graph
        self._cluster = environment.cluster
        self._id = recover_id(graph.name)
        self._attempts = Attempts(self._id, self._id, environment.sleep)

    def group(self, processor: Processor) -> str:
        """Returns the name of the group of a processor."""
        return group_of(self._graph.name, processor.id)

    def read(self, processor: Processor, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the committed offsets of these partitions; a partition without one is left out.

        Raises BrokerUnavailable.
        """
        found: list[Positions] = []
        if partitions:
            # without a right to the group, the consumer below waits until its limit; this request names that right
            known = self._cluster.group_offsets(self.group(processor), partitions)
            if not known.pending:
                return known.committed
            with self.opened(processor) as consumer:
                try:
                    self._attempts.call(lambda: found.append(consumer.committed(partitions)))
                except Retriable as error:
                    raise BrokerUnavailable(f"the positions of {processor.id!r} cannot be read: {error}") from None
        return found[-1] if found else {}

    @contextmanager
    def opened(self, processor: Processor) -> Iterator[Consumer]:
        """Opens a consumer of a processor's group, and closes it at the end."""
        consumer = self._cluster.consumer(self.group(processor), self._id)
        try:
            yield consumer
        finally:
            consumer.close()
