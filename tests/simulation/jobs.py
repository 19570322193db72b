"""Jobs on a source and targets in memory: their processes die, freeze and lose messages, and requests have no answer.

At each acknowledgement of an input, all rows that it must produce are in their tables. At the end nothing is left over.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import kstreams_py as ks
from kstreams_py.errors import RowRefused, SinkUnavailable, SourceUnavailable
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.graph.source import Claim
from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.job import ACKER_FACTOR, Job
from kstreams_py.records import Positions
from kstreams_py.steps.calls import open_calls
from kstreams_py.testing.memory_source import CLAIMED, DONE, REFUSED, Kept, MemoryConnection, MemorySource
from kstreams_py.testing.request_faults import Crash

LEASE = 10.0

PATIENCE = 3_000.0
"""Seconds of the clock until every input must have an end."""

TURNS_MAX = 20_000

RowsOf = Callable[[Any], list[list[Any]] | str]
"""What an input must produce: its rows, by table; or the reason for which it must be refused."""


class Table:
    """A sink and its target in memory: rows by hash, and how often each was written."""

    columns = ("value",)
    evidence = Evidence.HASH

    def __init__(self, plant: JobPlant, refuses: Callable[[Any], bool] = lambda _: False) -> None:
        self._plant, self._refuses = plant, refuses
        self.rows: dict[bytes, Any] = {}
        self.written, self.counts = Counter[bytes](), Counter[Any]()
        self.is_away = False

    def open(self, _: str) -> Table:
        return self

    def write(self, rows: Sequence[Row], _: Positions, __: Positions) -> int:
        return int(self._plant.request("store", partial(self._write, rows)))

    def _write(self, rows: Sequence[Row]) -> int:
        if self.is_away:
            raise SinkUnavailable("away", may_return=True)
        for index, row in enumerate(rows):
            if self._refuses(row.values[0]):
                raise RowRefused(f"{row.values[0]!r} is not taken", index)
        self.written.update(row.delivery_hash for row in rows)
        new = {row.delivery_hash: row.values[0] for row in rows if row.delivery_hash not in self.rows}
        self.rows |= new
        self.counts.update(new.values())
        return len(new)

    def positions(self, _: object) -> Positions:
        return {}

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def values(self) -> list[Any]:
        return sorted(self.rows.values())


class Connection(MemoryConnection):
    """A connection that checks what it is told of an input."""

    plant: JobPlant

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        claims = super().read(min(limit, self.plant.batch), alone=alone)
        self.plant.reads.update(claim.key for claim in claims)
        return claims

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        if not failed and self.waits_alone:  # so that suspects are alone
            self.plant.returned.update(claim.key for claim in claims)
        super().give_back(claims, failed=failed)

    def ack(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.plant.check_stored(claim.value)
        super().ack(claims)

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        for claim, reason in claims:
            assert self.plant.rows_of is None or self.plant.rows_of(claim.value) == reason
        super().refuse(claims)


class UnreliableAcker(Acker):
    """An acker whose messages are lost, late or copied: those with the numbers in `JobPlant.faulty`."""

    def __init__(self, plant: JobPlant) -> None:
        super().__init__()
        self._plant = plant
        self._openings: list[tuple[Sequence[SegmentId], list[int]]] = []
        """Those that come after the next acknowledgements."""
        self._late: dict[SegmentId, int] = {}
        self._arriving: list[tuple[SegmentId, int]] = []
        """Acknowledgements that come once their input has expired, and those of inputs that have."""

    def open(self, inputs: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        patterns, fault = [*patterns], self._plant.next_message("copied", "late")
        if fault == "late":
            self._openings.append((inputs, patterns))
            self._plant.strayed += len(inputs)
            return []
        return super().open(inputs, patterns) + (super().open(inputs, patterns) if fault else [])

    def ack(self, inputs: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        acks, plant = [*zip(inputs, patterns, strict=True)], self._plant
        fault = plant.next_message("copied", "late", "lost")
        # twice before its opening: the two leave nothing
        if fault := "copied" if self._openings else fault:
            plant.lost, plant.strayed = plant.lost + 1, plant.strayed + 1
            segment, pattern = acks.pop(plant.chance.randrange(len(acks)))
            acks += [(segment, pattern)] * 2 if fault == "copied" else []
            self._late |= {segment: pattern} if fault == "late" else {}
        acks, self._arriving = acks + self._arriving, []
        complete = super().ack([segment for segment, _ in acks], [pattern for _, pattern in acks])
        openings, self._openings = self._openings, []
        return complete + [segment for each in openings for segment in Acker.open(self, *each)]

    def forget(self, inputs: Iterable[SegmentId]) -> None:
        expired = [*inputs]
        super().forget(expired)
        self._arriving += [(each, self._late.pop(each)) for each in expired if each in self._late]


class JobPlant:
    """A graph with a source in memory, its targets, a clock, and the processes that run it.

    - `batch`: the most inputs that are claimed at once.
    - `called`: the most segments that a task runs in a turn, some tasks fewer; None for as many as they want.
    - `turn_seconds`: the time that a turn takes.

    A *point* is the time before or after a request takes effect. `strikes` has what happens at the point of a number,
    `faulty` the numbers of the messages to an acker that do not arrive once and in time.
    """

    def __init__(
        self,
        values: Sequence[Any],
        *,
        batch: int = 10,
        seed: int = 0,
        called: int | None = None,
        turn_seconds: float = 0.0,
        **environment: Any,
    ) -> None:
        self.now, self.batch, self.points, self.turns = 0.0, batch, 0, 0
        self.chance = random.Random(seed)
        self.source = MemorySource(values, lease=LEASE, clock=lambda: self.now, request=self.request)
        self.graph = ks.Graph("plant")
        self.rows = self.graph.source("rows", self.source)
        self.tables: list[Table] = []
        self.rows_of: RowsOf | None = None
        self.strikes: dict[int, Callable[[str], None]] = {}
        self.faulty: Collection[int] = ()
        self._messages = 0
        self.reads, self.returned = Counter[Any](), Counter[Any]()
        """By key, how often an input was read, and given back without an attempt."""
        self.lost = self.strayed = self.orphaned = 0
        """Messages that did not arrive in time, those that may leave an entry, and inputs claimed at deaths."""
        self._called, self._turn_seconds, self._environment = called, turn_seconds, environment
        self._jobs: list[Job] = []
        self._inside: list[Job] = []
        """The processes that are in a turn: the last one runs, the others are frozen."""

    # Requests and messages.

    def request(self, name: str, action: Callable[[], Any]) -> Any:
        """Carries out a request: a strike hits before it takes effect, or after."""
        self._strike(name)
        answer = action()
        self._strike(name)
        return answer

    def _strike(self, name: str) -> None:
        self.points += 1
        if strike := self.strikes.pop(self.points, None):
            strike(name)

    def next_message(self, *faults: str) -> str:
        """Returns the fault of the next message to an acker; "" if it has none."""
        self._messages += 1
        return self.chance.choice(faults) if self._messages in self.faulty else ""

    def die(self, name: str) -> None:
        """The process dies."""
        self._orphan()
        raise Crash(name)

    def be_away(self, name: str) -> None:
        """The request has no answer."""
        raise SinkUnavailable(name, may_return=True) if name == "store" else SourceUnavailable(name, may_return=True)

    def freeze(self, _: str, turns: int = TURNS_MAX) -> None:
        """The process stands still past its lease, while the others have so many turns, or end."""
        self._orphan()
        self.now += LEASE + 1
        for _turn in range(turns):
            others = [job for job in self._jobs if job not in self._inside and not job.is_exhausted]
            if not others:
                break
            self._step(self.chance.choice(others))

    def _orphan(self) -> None:
        self.orphaned += sum(kept.state == CLAIMED for kept in self.kept.values())

    # Processes.

    def start(self) -> Job:
        """Starts a process."""

        def open_source(channel: Channel, reader: str) -> MemoryConnection:
            assert channel is self.rows
            connection = Connection(self.source, self.source.kept.setdefault(reader, {}))
            connection.plant = self
            return connection

        self.graph.validate()
        given: dict[str, Any] = {"clock": lambda: self.now, "sleep": self.sleep, "entropy": self.chance.randbytes}
        given |= {"chance": self.chance.random, "open_acker": partial(UnreliableAcker, self)}
        # waits for all calls: a run has the same requests each time
        given["open_calls"] = partial(open_calls, patience=None)
        job = Job("plant", self.graph.tasks, JobEnvironment(open_source, **(given | self._environment)))
        if self._called is not None:
            for task in job.tasks:
                most = self.chance.randint(1, self._called)
                task._limit = AdaptiveLimit(1.0, most, most)
        self._jobs.append(job)
        return job

    def sleep(self, seconds: float) -> None:
        """Moves the clock."""
        self.now += seconds
        assert self.now < PATIENCE, f"it does not end: {self.source.kept}"

    def run(self) -> None:
        """Runs a process as a worker does, until every input has an end."""
        self.start().run(lambda: False)

    def turn(self, job: Job) -> bool:
        """Runs a turn of a process; returns whether there was anything to do."""
        self.turns += 1
        assert self.turns < TURNS_MAX, f"it does not end: {self.source.kept}"
        for each in self._jobs:
            if each not in self._inside:
                each.keep()
        self._inside.append(job)
        try:
            return job.turn()
        finally:
            self._inside.remove(job)
            self.now += self._turn_seconds

    def finish(self, job: Job) -> None:
        """Runs a process until every input has an end."""
        while not job.is_exhausted:
            if not self.turn(job):
                self.sleep(0.1)

    def run_all(self, workers: int = 1) -> None:
        """Runs processes, in turns by chance, until every input has an end; one that dies starts again."""
        for _ in range(workers):
            self.start()
        while running := [job for job in self._jobs if not job.is_exhausted]:
            self._step(self.chance.choice(running))

    def _step(self, job: Job) -> None:
        try:
            if not self.turn(job):
                self.sleep(0.1)
        except Crash:
            self.now += LEASE + 1
            self._jobs.remove(job)
            for task in job.tasks:
                task.close()  # ends its threads
            self.start()

    # Checks.

    @property
    def kept(self) -> dict[Any, Kept]:
        """What the source knows of each input."""
        return self.source.kept["plant:rows"]

    def show(self) -> str:
        """Returns what is kept of inputs and rows, as text."""
        return f"{self.kept} {[table.rows for table in self.tables]}"

    def refused(self) -> dict[Any, str | None]:
        """Returns the reasons of refused inputs, by key."""
        return {key: each.reason for key, each in sorted(self.kept.items()) if each.state == REFUSED}

    def check_stored(self, value: Any) -> None:
        """Checks that an input which is acknowledged has all its rows in the tables."""
        if self.rows_of is not None:
            rows = self.rows_of(value)
            assert not isinstance(rows, str), f"acknowledged, and must be refused: {rows}"
            for table, expected in zip(self.tables, rows, strict=True):
                missing = [row for row in expected if table.counts[row] < expected.count(row)]
                assert not missing, f"acknowledged before it is stored: {missing}"

    def check(self) -> None:
        """Checks that each effect is there once, that nothing is left over, and that nothing was read without cause."""
        assert self.rows_of is not None
        ends = {key: self.rows_of(value) for key, value in self.source.inputs.items()}
        refused = {key: end for key, end in ends.items() if isinstance(end, str)}
        assert {key: each.state for key, each in self.kept.items()} == {
            key: REFUSED if key in refused else DONE for key in ends
        }
        assert self.refused() == refused
        expected = [
            sorted(row for end in ends.values() if not isinstance(end, str) for row in end[number])
            for number in range(len(self.tables))
        ]
        assert [table.values for table in self.tables] == expected
        deaths = {key: each.deaths for key, each in self.kept.items()}
        assert sum(deaths.values()) <= self.lost + self.orphaned, "an input was read again without a cause"
        assert all(count - 1 <= deaths[key] + self.returned[key] for key, count in self.reads.items())
        self._check_empty()

    def _check_empty(self) -> None:
        for job in self._jobs:
            acker = job._acker
            if self.strayed:  # entries of what came too late are dropped in time
                for _ in range(2):
                    self.now += ACKER_FACTOR * job._environment.timeout + 1
                    self.turn(job)
            assert acker.dropped <= self.strayed
            tasks = [(task.waiting, len(task.attempts), [part for part in task.parts() if part]) for task in job.tasks]
            assert tasks == [(0, 0, [])] * len(tasks)
            assert [len(acker), *(len(each.pending) for each in job._inputs.values())] == [0] * (1 + len(job._inputs))
            job.close()
