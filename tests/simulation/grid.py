"""One set of inputs, one processor, and processes that die at a point: the harness of the grid of crash points."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Final, cast

import pytest

import kstreams_py as ks
from kstreams_py.errors import KStreamsError, OutcomeUnknown
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.groups import GroupInfo
from kstreams_py.operations.recover.status import read_status
from kstreams_py.operations.recover.task_status import TaskStatus
from kstreams_py.processing.journal import deliveries
from kstreams_py.processing.journal.records import type_of
from kstreams_py.processing.topics import create_own_topics, find_topics
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import HASH_HEADER, Positions, Step, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry
from kstreams_py.testing.memory_clients import MemoryProducer
from kstreams_py.testing.request_faults import RequestFault
from tests.crash_grid import Case, declare, give, recover_twice
from tests.simulation.strikes import Crash

TURNS_MAX: Final = 200

SETTINGS: Final = Settings()


class Watched:
    """A serde of bytes, whose decoding is a point."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def serialize(self, value: bytes) -> bytes:
        return value

    def deserialize(self, data: bytes) -> bytes:
        self._grid.point("decode")
        return data


class _NoMembers:
    """Describes groups in place of a GroupAdmin."""

    def describe(self, groups: Collection[str]) -> dict[str, GroupInfo]:
        return {group: GroupInfo("Empty", ()) for group in groups}


@dataclass
class Process:
    """What a process did: the points that it passed, and the branches of its recoveries.

    - `status`: what `kstreams recover status` said of the task before it, if it was asked.
    """

    points: list[str] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    error: KStreamsError | None = None
    status: TaskStatus | None = None

    @property
    def branch(self) -> str:
        return self.branches[-1] if self.branches else ""


Strike = tuple[str, int, str]
"""The name of a point, which of these it is, counted from 1, and how the process dies there.

"dies" before the request, "dies after" it, "dies late" if the request arrives after its death; "raises", "raises after"
and "raises late" are an exception there that nobody handles. The answer is lost if it is "unanswered"; a process that
is "replaced" goes on once its replacement has delivered all. One that is "frozen" loses its membership, and goes on
once another slot has delivered all.
"""


class Unhandled(KeyboardInterrupt):
    """Raised where a process ends by an exception."""


TRANSACTION_SECONDS: Final = 60.0
"""How long a transaction may be open."""

FROZEN_SECONDS: Final = 3.0
"""Longer than the session of a member, shorter than TRANSACTION_SECONDS."""


class Grid:
    """A cluster with one set of inputs that is delivered, and another one that waits."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, session_timeout=2.0, transaction_timeout=TRANSACTION_SECONDS)
        self._environment = Environment(
            self.cluster, MemoryRegistry(), SETTINGS, clock=self.clock, sleep=self.clock.advance
        )
        self.hashes: list[bytes] = []
        """The delivery hash of each call."""
        self.process = Process()
        self.replacement: Process | None = None
        """What has taken the place of a process that was frozen."""
        self.took_over_in = 0.0
        """Seconds in which another slot has delivered all in place of a frozen one."""
        self._strike: Strike | None = None
        self._is_unseen = False
        self.other = self.cluster.named(case.cluster)
        """The cluster of the outputs."""
        self.cluster.create_topics([(name, 1, -1, {}) for name in ("a", "b")])
        self.other.create_topics([(name, 1, -1, {}) for name in ("x", "y", "dead")])
        self.graph = self._declare()
        self.cluster.faults.watch(self.point)
        self.other.faults.watch(self.point)
        create_own_topics(self.graph, self.cluster, find_topics(self.graph, self.cluster))
        self.feed()
        self.run()
        self.before = {name: len(self.other.records(name)) for name in ("x", "y", "dead")}
        self.snapshots_before = self._count("snapshot")
        self.hashes.clear()
        self.feed()

    def feed(self, topics: Sequence[str] = ()) -> None:
        """Writes a record to each of these topics; by default a set of inputs, of an alts a record of the last one."""
        for topic in topics or (self.case.inputs[-1:] if self.case.is_alts else self.case.inputs):
            self.cluster.append(topic, b"value", b"key")

    def _declare(self) -> ks.Graph:
        def work(_: tuple[bytes, ...], step: Step) -> bytes | None:
            self.hashes.append(step.delivery_hash)
            self.point("function")
            returned = give(self.case)
            self.point("returned")
            return b"v" if returned else None

        return declare(self.case, "g", work, Watched(self))

    # Processes.

    def run(self, strike: Strike | None = None, slot: int = 0) -> Process:
        """Runs a process until all inputs are delivered, or until it dies; returns what it did."""
        outer, self.process = self.process, Process()
        self._strike = strike
        done, stopping = self.process, Event()
        with self._reading_branches(done):
            worker: Worker | None = None
            try:
                (processor,) = self.graph.processors
                worker = open_worker(self.graph, processor, slot, self._environment, stopping)
                recover_twice(worker, self._unseen)
                worker.start()
                for _ in range(TURNS_MAX):
                    worker.run_turn()
                    self.clock.advance(0.1)
                    positions = self.cluster.groups["g.p"] | worker.ledger.positions  # the group follows at the end
                    if self._is_at_end(positions) and not worker.committer.busy:
                        break
                worker.finish()
                worker.close()
            except Crash:
                pass
            except Unhandled:
                if worker is not None:
                    worker.close()
            except KStreamsError as error:
                done.error = error
        assert self._strike is None, f"{strike} is not reached: {done.points}"
        self.process = outer
        self.clock.advance(1.0)  # what is late arrives
        return done

    @property
    def is_delivered(self) -> bool:
        return self._is_at_end(self.cluster.groups["g.p"])

    def _is_at_end(self, positions: Positions) -> bool:
        inputs = [TopicPartition(topic, 0) for topic in self.case.inputs]
        return all(positions.get(tp, 0) == self.cluster._broker.partition(tp).end for tp in inputs)

    @contextmanager
    def _reading_branches(self, process: Process) -> Iterator[None]:
        """Notes the branches that the log names, without those of a replacement."""

        def note(message: str, *values: object) -> None:
            if "recovery" in message and self.process is process and not self._is_unseen:
                process.branches.append((message % values).partition("recovery ")[2])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deliveries.logger, "info", note)  # a level that changes empties the caches of all loggers
            yield

    def run_after_status(self, strike: Strike | None = None, slot: int = 0) -> Process:
        """Reads what `kstreams recover status` says of the task, then runs a process."""
        status = self.read_status()
        done = self.run(strike, slot)
        done.status = status
        return done

    def read_status(self) -> TaskStatus:
        """What `kstreams recover status` says of the task."""
        with self._unseen():
            (status,) = read_status(self.graph, self._environment, cast(GroupAdmin, _NoMembers()))
        return status

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        """Requests within it are not points."""
        before, self._is_unseen = self._is_unseen, True
        try:
            yield
        finally:
            self._is_unseen = before

    def point(self, name: str, client: object = None) -> RequestFault | None:
        """Notes a point, and strikes if it is its turn."""
        if self._is_unseen:
            return None
        of_journal = isinstance(client, MemoryProducer) and str(client._id).endswith(".journal")
        points, named = self.process.points, f"journal {name}" if of_journal else name
        points.append(named)
        if self._strike is None or self._strike[:2] != (named, points.count(named)):
            return None
        (*_, fault), self._strike = self._strike, None
        match fault:
            case "raises":
                raise Unhandled
            case "dies after" | "raises after":
                return RequestFault(Crash() if fault == "dies after" else Unhandled())
            case "dies late" | "raises late":
                return RequestFault(Crash() if fault == "dies late" else Unhandled(), applied=False, late=0.01)
            case "unanswered":
                return RequestFault(OutcomeUnknown("simulated"))
            case "replaced":
                self.replacement = self.run_after_status()
                return None
            case "frozen":
                self.clock.advance(FROZEN_SECONDS)
                before = self.clock()
                self.replacement = self.run_after_status(slot=1)
                self.took_over_in = self.clock() - before
                return None
        raise Crash

    def make_again(self, topics: Sequence[str]) -> None:
        """Deletes topics and creates them again, with records of somebody else where those before were."""
        for name in topics:
            tp = TopicPartition(name, 0)
            self.before[name] = self.other._broker.partition(tp).end
            self.other._broker.delete_topic(name)
            self.other.create_topics([(name, 1, -1, {})])
            for _ in range(self.before[name]):
                self.other.append(name, b"foreign", None, [(HASH_HEADER, b"foreign")])

    # What is there.

    def outputs(self) -> dict[str, int]:
        """How many records the set has left in each topic."""
        return {name: len(self.other.records(name)) - before for name, before in self.before.items()}

    def digests(self) -> set[bytes]:
        """The delivery hashes of these records."""
        return {
            dict(m.headers() or ())[HASH_HEADER] or b""
            for name, before in self.before.items()
            for m in self.other.records(name)[before:]
        }

    @property
    def snapshots(self) -> int:
        """Snapshots that were taken for the set."""
        return self._count("snapshot") - self.snapshots_before

    def _count(self, kind: str) -> int:
        if self.case.journal is None:
            return 0
        records = self.cluster.records("__ks.g.p.journal")
        return sum(type_of(m) == kind for m in records)
