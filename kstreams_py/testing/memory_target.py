"""MemoryTarget: a sink's target in memory. Its requests fail as requests to the cluster do (request_faults.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, cast

from kstreams_py.errors import ClientError, RowRefused, SinkUnavailable, StaleWriter
from kstreams_py.graph.sink import Evidence, Row, SinkConnection
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.testing.memory_clients import Network

logger = logging.getLogger(__name__)

CONNECT: Final = "connect_sink"
"""The name of the request that connects to a target."""

STORE: Final = "store"
"""The name of the request that stores rows."""

POSITIONS: Final = "stored_positions"
"""The name of the request that reads the offsets of a target."""


class MemoryTarget:
    """Stores rows by their evidence; requests without an answer raise SinkUnavailable.

    MemoryCluster.target() makes one. Its requests are "connect_sink", "store" and "stored_positions".
    """

    def __init__(
        self,
        network: Network,
        evidence: Evidence,
        refuses: Callable[[tuple[Any, ...]], str],
        check: Callable[[Sequence[Row]], None] = lambda _: None,
    ) -> None:
        """Creates a target.

        - `refuses`: returns why the target never takes a row with these values; "" if it does.
        - `check`: raises RowRefused for rows that the client of the target refuses before any request.
        """
        self.rows: list[Row] = []
        """The rows, in the order in which they were stored."""
        self.positions: dict[str, Positions] = {}
        """The stored offsets, by consumer."""
        self.evidence = evidence
        self._values: dict[bytes, tuple[Any, ...]] = {}
        """The values of each row, by its delivery hash."""
        self._refuses = refuses
        self.check = check
        self._network = network

    def connect(self, consumer: str) -> SinkConnection:
        """Makes a connection."""
        return cast(SinkConnection, self.request(CONNECT, lambda: _Connection(self, consumer)))

    def write(self, consumer: str, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Stores rows and positions together, or raises, as SinkConnection.write does."""
        for index, row in enumerate(rows):
            if why := self._refuses(row.values):
                raise RowRefused(f"row {row.values}: {why}", index)
        if self.evidence == Evidence.OFFSETS:
            stored = self.positions.setdefault(consumer, {})
            found = {tp: stored[tp] for tp in positions if tp in stored}
            if found != expected:
                raise StaleWriter(f"{consumer}: the target has the offsets {found}, and not {expected}")
            stored.update(positions)
            self.rows += rows
            return len(rows)
        new = []
        for row in rows:
            if (known := self._values.get(row.delivery_hash)) is None:
                self._values[row.delivery_hash] = row.values
                new.append(row)
            elif repr(known) != repr(row.values):  # as text: not every value is equal to itself
                logger.warning(
                    "%s: the function returned the row %s for a record whose row %s is already stored, which stays: "
                    "after a crash, either may be the one that is kept; return the same row for the same record",
                    consumer, row.values, known,
                )  # fmt: skip
        self.rows += new
        return len(new)

    def request(self, name: str, action: Callable[[], Any]) -> Any:
        """Makes a request, with its fault if it has one."""
        try:
            return self._network.request(name, action)
        except ClientError as error:
            raise SinkUnavailable(f"{name}: no answer", may_return=True) from error


class _Connection:
    """kstreams_py.graph.sink.SinkConnection in memory."""

    def __init__(self, target: MemoryTarget, consumer: str) -> None:
        self._target = target
        self._consumer = consumer

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        def read() -> Positions:
            stored = self._target.positions.get(self._consumer, {})
            return {tp: stored[tp] for tp in partitions if tp in stored}

        found: Positions = self._target.request(POSITIONS, read)
        return found

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        self._target.check(rows)
        rows, positions, expected = list(rows), dict(positions), dict(expected)  # a late request must not see changes
        new: int = self._target.request(STORE, lambda: self._target.write(self._consumer, rows, positions, expected))
        return new

    def close(self) -> None:
        """Does nothing: there is nothing to close."""
