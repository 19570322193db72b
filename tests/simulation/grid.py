"""One set of inputs, one processor, and processes that die at a point: the harness of the grid of crash points."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import Final

import kstreams_py as ks
from kstreams_py.errors import KStreamsError, OutcomeUnknown
from kstreams_py.processing.environment import Environment
from kstreams_py.processing.journal.records import type_of
from kstreams_py.processing.topics import create_own_topics, find_topics
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import HASH_HEADER, Positions, Step, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry
from kstreams_py.testing.memory_clients import MemoryProducer
from kstreams_py.testing.request_faults import Fault
from tests.crash_grid import Case, declare, give
from tests.simulation.strikes import Crash

TURNS_MAX: Final = 200


class Watched:
    """A serde of bytes, whose decoding is a point."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def serialize(self, value: bytes) -> bytes:
        return value

    def deserialize(self, data: bytes) -> bytes:
        self._grid.point("decode")
        return data


@dataclass
class Process:
    """What a process did: the points that it passed, and the branch by which it recovered."""

    points: list[str] = field(default_factory=list)
    branch: str = ""
    error: KStreamsError | None = None


Strike = tuple[str, int, str]
"""The name of a point, which of these it is, counted from 1, and how the process dies there.

"dies" before the request, "dies after" it, "dies late" if the request arrives after its death; "raises", "raises after"
and "raises late" are an exception there that nobody handles. The answer is lost if it is "unanswered"; a process that
is "replaced" goes on once its replacement has delivered all. One that is "frozen" loses its membership, and goes on
once another slot has delivered all.
"""


class Unhandled(BaseException):
    """Raised where a process ends by an exception."""


FROZEN_SECONDS: Final = 3.0
"""Longer than the session of a member, shorter than a transaction may be open."""


class Grid:
    """A cluster with one set of inputs that is delivered, and another one that waits."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, session_timeout=2.0, transaction_timeout=60.0)
        self.hashes: list[bytes] = []
        """The delivery hash of each call."""
        self.process = Process()
        self.replacement: Process | None = None
        """What has taken the place of a process that was frozen."""
        self.took_over_in = 0.0
        """Seconds in which another slot has delivered all in place of a frozen one."""
        self._strike: Strike | None = None
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
                environment = Environment(
                    self.cluster, MemoryRegistry(), Settings(), clock=self.clock, sleep=self.clock.advance
                )
                (processor,) = self.graph.processors
                worker = open_worker(self.graph, processor, slot, environment, stopping)
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
        """Notes the branch that the log names."""

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "recovery" in record.msg:
                    process.branch = record.getMessage().partition("recovery ")[2]

        handler, logger = Handler(), logging.getLogger("kstreams_py.processing.journal.deliveries")
        logger.addHandler(handler)
        level, disabled = logger.level, logging.root.manager.disable
        logger.setLevel(logging.INFO)
        logging.disable(logging.NOTSET)
        try:
            yield
        finally:
            logging.disable(disabled)
            logger.setLevel(level)
            logger.removeHandler(handler)

    def point(self, name: str, client: object = None) -> Fault | None:
        """Notes a point, and strikes if it is its turn."""
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
                return Fault(Crash() if fault == "dies after" else Unhandled())
            case "dies late" | "raises late":
                return Fault(Crash() if fault == "dies late" else Unhandled(), applied=False, late=0.01)
            case "unanswered":
                return Fault(OutcomeUnknown("simulated"))
            case "replaced":
                self.replacement = self.run()
                return None
            case "frozen":
                self.clock.advance(FROZEN_SECONDS)
                before = self.clock()
                self.replacement = self.run(slot=1)
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
