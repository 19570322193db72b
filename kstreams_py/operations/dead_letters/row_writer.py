"""Stores the rows of replayed steps in the targets of their processors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kstreams_py.graph.names import group_of
from kstreams_py.graph.sink import Row, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.operations.dead_letters.transactions import Done
from kstreams_py.processing.environment import Environment


class RowWriter:
    """Stores rows, and connects to each target before its first row."""

    def __init__(self, graph: Graph, environment: Environment) -> None:
        self._graph = graph
        self._open = environment.open_sink
        self._targets = {each.id: each.target for each in graph.processors if each.target is not None}
        self._connections: dict[str, SinkConnection] = {}

    def write(self, steps: Iterable[Done]) -> None:
        """Stores the rows of steps, grouped by processor. A row whose hash is stored already stays as it is.

        Raises RowRefused if a target will never accept one of them, SinkUnavailable if a target cannot be used.
        """
        rows: dict[str, list[Row]] = defaultdict(list)
        for step in steps:
            rows[step.letter.processor_id] += step.rows
        for processor, found in rows.items():
            if found:
                self._connection(processor).write(found, {}, {})

    def close(self) -> None:
        """Closes all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, processor: str) -> SinkConnection:
        if processor not in self._connections:
            consumer = group_of(self._graph.name, processor)
            self._connections[processor] = self._open(self._targets[processor], consumer)
        return self._connections[processor]
