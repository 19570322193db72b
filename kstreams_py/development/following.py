"""Shows the records that a graph writes, decoded, as lines with their topic."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from kstreams_py.errors import BrokerUnavailable, KStreamsError, Retriable, TopicError
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.records.lines import Lines
from kstreams_py.operations.records.tail import POLL_SECONDS, Tail
from kstreams_py.processing.environment import Environment
from kstreams_py.processing.topics import ask_clusters
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)

Show = Callable[[str, bytes], None]
"""Takes a topic and a line."""


def written_topics(graph: Graph) -> list[str]:
    """Returns the topics that a graph writes to, dead-letter topics last."""
    outputs = [topic.name for processor in graph.processors for topic in processor.outputs]
    letters = [processor.errors for processor in graph.processors if processor.errors is not None]
    return list(dict.fromkeys([*outputs, *letters]))


class Following:
    """Shows the committed records of a graph's outputs and dead letters that are written after its construction."""

    def __init__(self, environment: Environment, graph: Graph, found: Mapping[str, TopicInfo], show: Show) -> None:
        """Starts at the ends of the topics. `found`: the graph's topics. Raises the exceptions of Lines."""
        names = written_topics(graph)
        self._graph, self._cluster = graph, environment.cluster
        self._tails = {
            name: Tail(replace(environment, cluster=self._cluster.named(graph.topics[name].cluster)), found[name])
            for name in names
        }
        self._lines = {name: Lines(name, graph, environment.registry) for name in names}
        self._show = show
        self.positions: Positions = self._ends()
        """The next offset to show of each partition."""

    def go_on(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continues at these offsets, in partitions that have them; a topic that was created again does not."""
        ends = self._ends()
        self.positions |= {tp: at for tp, at in positions.items() if at <= ends.get(tp, -1)}

    def _ends(self) -> Positions:
        partitions = [tp for tail in self._tails.values() for tp in tail.partitions]
        return ask_clusters(self._graph, self._cluster, partitions, lambda cluster, each: cluster.ends(each))

    def look(self) -> bool:
        """Shows the new records, topic by topic. Returns whether there were any."""
        ends = {tp: end for tp, end in self._ends().items() if end > self.positions[tp]}
        for name, tail in self._tails.items():
            mine = {tp: end for tp, end in ends.items() if tp.topic == name}
            for m in tail.read(self.positions, mine):
                self._show(name, self._lines[name].show(m).encode())
                self.positions[TopicPartition(m.topic(), m.partition())] = m.offset() + 1
        self.positions |= ends
        return bool(ends)

    def run(self, looked: Callable[[], None], stopped: threading.Event) -> None:
        """Looks until `stopped` is set, and once more after that. Calls `looked` after each look that found records.

        Waits for a broker that does not answer. Ends with a warning at a record that cannot be shown, because the
        workers do not depend on this.
        """
        is_away, is_last = False, False
        while not is_last:
            is_last = stopped.is_set()
            try:
                if self.look():
                    looked()
                is_away = False
            except TopicError as error:
                logger.warning("outputs are not shown any more: %s", error)
                return
            except (Retriable, BrokerUnavailable) as error:
                if not is_away:
                    logger.warning("%s; outputs are shown once it answers", error)
                is_away = True
            except KStreamsError as error:  # for example, the schema registry does not answer
                logger.warning("outputs are not shown any more: %s: %s", type(error).__name__, error)
                return
            if not is_last:
                stopped.wait(POLL_SECONDS)
