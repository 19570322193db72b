"""A job on a source and targets in memory, which dies at a chosen request and starts again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import kstreams_py as ks
from kstreams_py.errors import RowRefused, SinkUnavailable
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.graph.source import Claim
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.job import Job
from kstreams_py.records import Positions
from kstreams_py.steps.calls import open_calls
from kstreams_py.testing.memory_source import MemoryConnection, MemorySource

LEASE = 10.0

PATIENCE = 3_000.0
"""Seconds of the clock until every input must have an end."""


class Died(BaseException):
    """The process has died: nothing after this runs."""


class Table:
    """A sink and its target in memory: rows by hash, and how often each was written."""

    columns = ("value",)
    evidence = Evidence.HASH

    def __init__(self, plant: JobPlant, refuses: Callable[[Any], bool] = lambda _: False) -> None:
        self._plant, self._refuses = plant, refuses
        self.rows: dict[bytes, Any] = {}
        self.written = Counter[bytes]()
        self.is_away = False

    def open(self, _: str) -> Table:
        return self

    def write(self, rows: Sequence[Row], _: Positions, __: Positions) -> int:
        self._plant.request("store")
        if self.is_away:
            raise SinkUnavailable("away", may_return=True)
        for index, row in enumerate(rows):
            if self._refuses(row.values[0]):
                raise RowRefused(f"{row.values[0]!r} is not taken", index)
        self.written.update(row.delivery_hash for row in rows)
        new = {row.delivery_hash: row.values[0] for row in rows if row.delivery_hash not in self.rows}
        self.rows |= new
        self._plant.request("stored")
        return len(new)

    def positions(self, _: object) -> Positions:
        return {}

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def values(self) -> list[Any]:
        return sorted(self.rows.values())


class Connection(MemoryConnection):
    """A connection whose process may die before and after each request."""

    plant: JobPlant

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        claims = super().read(min(limit, self.plant.batch), alone=alone)
        if claims:
            self.plant.request("claimed")
        return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        self.plant.request("ack")
        super().ack(claims)
        self.plant.request("acked")


class JobPlant:
    """A graph with a source in memory, its targets, a clock, and the request at which its process dies.

    - `batch`: the most inputs that are claimed at once.
    """

    def __init__(self, values: Sequence[Any], *, batch: int = 10, seed: int = 0, **environment: Any) -> None:
        self.now, self.batch, self.requests = 0.0, batch, 0
        self.dies_at: int | None = None
        self.source = MemorySource(values, lease=LEASE, clock=lambda: self.now)
        self.graph = ks.Graph("plant")
        self.rows = self.graph.source("rows", self.source)
        self._entropy = random.Random(seed).randbytes
        self._environment = environment
        self.job: Job | None = None

    def request(self, name: str) -> None:
        """Counts a request, and dies at the chosen one. `name` is for who reads a failure."""
        self.requests += 1
        if self.requests == self.dies_at:
            raise Died(name)

    def start(self) -> Job:
        """Starts a process."""

        def open_source(channel: Channel, reader: str) -> MemoryConnection:
            assert channel is self.rows
            connection = Connection(self.source, self.source.kept.setdefault(reader, {}))
            connection.plant = self
            return connection

        self.graph.validate()
        given = {"clock": lambda: self.now, "sleep": self.sleep, "entropy": self._entropy, **self._environment}
        # waits for all calls: a run has the same requests each time
        given["open_calls"] = partial(open_calls, patience=None)
        self.job = Job("plant", self.graph.tasks, JobEnvironment(open_source, **given))
        return self.job

    def sleep(self, seconds: float) -> None:
        """Moves the clock."""
        self.now += seconds
        assert self.now < PATIENCE, f"it does not end: {self.source.kept}"

    def run(self) -> None:
        """Runs a process until every input has an end."""
        self.start().run(lambda: False)

    def finish(self, job: Job) -> None:
        """Runs a process until every input has an end."""
        while not job.is_exhausted:
            if not job.turn():
                self.sleep(0.1)

    def run_through_deaths(self, dies_at: Callable[[int], int | None]) -> int:
        """Runs processes until every input has an end; returns how many died.

        - `dies_at`: returns at which of its requests the process with this number dies; None for none.
        """
        died = 0
        while True:
            self.requests, self.dies_at = 0, dies_at(died)
            job = self.start()
            try:
                self.finish(job)
            except Died:
                died += 1
                self.now += LEASE + 1
            else:
                return died

    def refused(self) -> dict[Any, str | None]:
        """Returns the reasons of refused inputs, by key."""
        kept = self.source.kept["plant:rows"]
        return {key: each.reason for key, each in sorted(kept.items()) if each.state == "refused"}
