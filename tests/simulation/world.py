"""A simulated run: workers, their users' function, the log, the clock and the faults, in one thread, by one plan.

::

    world = World(Plan.parse("map:exactly_once:7:dies@17")).run()
    assert not world.violations, world.report()

Workers take turns as the seed has it. Each request of a running worker and each call of its function is a *point*,
where the plan's next strike may fall. A process that is frozen at a point lets the others run before it goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from threading import Event
from typing import Any, Final

import pytest

from kstreams_py.config import Settings
from kstreams_py.engine import transaction
from kstreams_py.engine.topics import BEGINNINGS_SETTINGS
from kstreams_py.engine.transaction import OUTPUTS_HELD, Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import Abortable, KStreamsError, OutcomeUnknown, Replaced, Retriable, Stop
from kstreams_py.record import Message, Step, TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.testing.memory_clients import Fault as Broken
from kstreams_py.testing.memory_clients import MemoryProducer
from kstreams_py.topology import Graph
from tests.simulation import invariants
from tests.simulation.inputs import Inputs
from tests.simulation.plan import FAILS, HALTS, PARTITIONS, SKIPS, STOPS, Fault, Kind, Plan

TURNS_MAX: Final = 2_000
"""Turns in which a run must have settled."""

SETTINGS: Final = Settings()
TRANSACTION_TIMEOUT: Final = SETTINGS.transaction_timeout_ms / 1000
SESSION_TIMEOUT: Final = SETTINGS.session_timeout_ms / 1000

MAY_COME_LATE: Final = {
    "produce", "add_partition", "add_offsets", "send_offsets", "commit_transaction", "abort_transaction",
    "init_transactions", "commit",
}  # fmt: skip
"""Requests that change something at the broker whoever else has come meanwhile."""


class Crash(BaseException):
    """The process dies here."""


class Halt(Exception):
    """An unhandled exception of the user's function."""


class Process:
    """A worker process: one life of one slot."""

    def __init__(self, world: World, slot: int) -> None:
        self.slot = slot
        self.acting = False
        """In the middle of something: of its turn, or frozen there while others take theirs."""
        self.worker: Worker | None = None
        self.attempt = 0
        """Goes up whenever the worker starts anew at committed positions."""
        self._world = world
        self._stopping = Event()

    def start(self) -> None:
        world = self._world
        around = Surroundings(
            world.log, world.registry, SETTINGS, world.clock, world.clock.advance, outputs_held=world.outputs_held
        )
        self.worker = worker = Worker(world.graph, world.processor, self.slot, around, self._stopping)
        consume, assign = worker.consumer.consume, worker.consumer.assign

        def waiting(limit: int, timeout: float) -> Sequence[Message]:
            records = consume(limit, timeout)
            if not records:
                world.clock.advance(timeout)
            return records

        def anew(positions: Any) -> None:
            self.attempt += 1
            assign(positions)

        worker.consumer.consume = waiting  # type: ignore[method-assign]
        worker.consumer.assign = anew  # type: ignore[method-assign]
        worker.start()

    def turn(self) -> None:
        """One turn; and the end, if the worker was told to stop."""
        assert self.worker is not None
        self.worker.step()
        if self._stopping.is_set():
            self.stop()

    def stop(self) -> None:
        """Drains and ends, as `Worker.run` does."""
        assert self.worker is not None
        self.worker.finish()
        self.close()
        self._world.gone(self)

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """What a process does on its way out of an exception."""
        if self.worker is not None:
            self.worker.close()

    def kill(self) -> None:
        """Nothing of it will be sent any more."""
        if self.worker is not None and self.worker.session._producer is not None:
            self.worker.session._producer.drop()

    @property
    def busy(self) -> bool:
        return self.worker is None or self.worker.session.busy

    def sends_as(self, client: object) -> bool:
        """Whether a request of this client is of this process, and not of one that lingers in the background."""
        if not isinstance(client, MemoryProducer):
            return True
        return self.worker is not None and client is self.worker.session._producer


class World:
    """Everything in one run, and what it came to: `violations`, each with a name, a colon and the evidence."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.violations: list[str] = []
        self.fired: list[Fault] = []
        self.trace: list[str] = []
        self.random = random = plan.chance
        self.clock = ManualClock()
        self.log = MemoryLog(
            self.clock,
            transaction_timeout=TRANSACTION_TIMEOUT,
            session_timeout=SESSION_TIMEOUT,
            linger=random.choice((0.0, 0.03, 60.0)),
            marker_delay=random.choice((0.0, 0.0, 0.05)),
            chance=Random(random.random()) if plan.seed else None,
        )
        self.registry = MemoryRegistry()
        self.latency = random.choice((0.0, 0.001, 0.03))
        self.labour = random.choice((0.0, 0.02, 0.3))
        self.outputs_held = random.choice((OUTPUTS_HELD, 0, 1))
        self.graph = self._graph()
        (self.processor,) = self.graph.processors
        self.journal = self.graph.journal(self.processor)
        topics = [*plan.kind.inputs, *plan.kind.outputs, "dead", *([self.journal] if self.journal else [])]
        self.log.create_topics([(name, PARTITIONS, -1, {}) for name in topics])
        self.log.create_topics([(self.graph.beginnings, 1, -1, BEGINNINGS_SETTINGS)])
        self.outputs = [TopicPartition(name, n) for name in (*plan.kind.outputs, "dead") for n in range(PARTITIONS)]
        self.watched: object = None
        """What `invariants.watch` has seen last."""
        self.processes: list[Process] = []
        self._holders: dict[int, Process] = {}
        self._downs: list[tuple[float, int]] = []
        self._running: Process | None = None
        self._strikes = list(plan.strikes)
        self.points: list[str] = []
        """Those since the last strike, or since the start."""
        self._ending = False
        self.disturbed = False
        """Something has happened after which at least once may repeat, and at most once lose."""
        self.overlapping = False
        """Two workers, or two copies of a request, were about at the same time."""
        self._stopped: set[tuple[bytes, ...]] = set()

        self.steps: dict[bytes, tuple[bytes, ...]] = {}
        """The values of each delivery hash that a function was called with, by their first call."""
        self.hashes: dict[tuple[bytes, ...], bytes] = {}
        """The other way round."""
        self.calls: dict[tuple[Process, int, int], list[tuple[bytes, ...]]] = defaultdict(list)
        """The values of each call, in order, by attempt and partition."""
        self.effects: Counter[bytes] = Counter()
        """Of a sink: delivery hashes."""
        self.inputs = Inputs(plan, self.log, random)
        self.log.watch(self.point)

    # The run.

    def run(self) -> World:
        """Runs until all input is processed, stops the workers, and judges."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transaction, "JOURNAL_TRUNCATED_EVERY", 2)
            self._run()
        return self

    def _run(self) -> None:
        try:
            slots = self.random.choice((1, 1, 2))
            self.disturbed = self.overlapping = slots > 1
            for slot in range(slots):
                self._begin(slot)
            for _ in range(TURNS_MAX):
                if self._settled():
                    break
                self._iterate()
            else:
                self.violate("stuck", f"{self.log.group('g.p')} of {self.log.ends(self.inputs.partitions)}")
            self._ending = True
            self._strikes.clear()
            for process in list(self.processes):
                self._guard(process, process.stop)
            self.clock.advance(2 * TRANSACTION_TIMEOUT)  # what is late has come by now
            invariants.judge(self)
        except Exception as error:
            self.violate("broken", repr(error))
            if not isinstance(error, AssertionError | KStreamsError):
                raise

    def violate(self, name: str, evidence: str) -> None:
        violation = f"{name}: {evidence}"
        if violation not in self.violations:
            self.trace.append("## " + violation)
            self.violations.append(violation)

    def report(self) -> str:
        """What went wrong, what had happened before, and how to see it again."""
        return "\n".join(
            [
                f"\nseed {self.plan.seed}, run {self.plan}",
                *self.violations[:8],
                "last points: " + " | ".join(self.trace[-60:]),
                f"again: KSTREAMS_SIMULATION_SEED={self.plan} pytest tests/simulation -k replay",
            ]
        )

    def _iterate(self) -> None:
        """One turn of one of the workers that can take one."""
        self.inputs.feed()
        while (down := min(self._downs, default=None)) and down[0] <= self.clock():
            self._downs.remove(down)
            self._begin(down[1])
        awake = [process for process in self.processes if not process.acting]
        if awake:
            process = self.random.choice(awake)
            self._guard(process, process.turn)
        else:
            self.clock.advance(1.0)
        invariants.watch(self)

    def _settled(self) -> bool:
        if self.inputs.left or self._downs or any(process.busy for process in self.processes):
            return False
        if self.clock() - self.inputs.fed_at < 1.0:  # markers may be on their way
            return False
        return self.log.group("g.p") == self.log.ends(self.inputs.partitions)

    # Processes.

    def _begin(self, slot: int) -> None:
        process = self._holders[slot] = Process(self, slot)
        self.processes.append(process)
        self._guard(process, process.start)

    def gone(self, process: Process) -> None:
        """A process has ended; another one takes its slot soon, if none has."""
        if process in self.processes:
            self.processes.remove(process)
            if self._holders[process.slot] is process and not self._ending:
                self._downs.append((self.clock() + self.random.choice((0.0, 0.0, 1.0, 20.0)), process.slot))

    def _guard(self, process: Process, action: Callable[[], None]) -> None:
        """Does something as this process; what ends a process ends this one."""
        running, self._running, process.acting = self._running, process, True
        try:
            try:
                action()
            except (KStreamsError, Halt) as error:
                self.trace.append(f"{process.slot} ends: {type(error).__name__}")
                if isinstance(error, Replaced):
                    self._replaced(process)
                process.close()
                self.gone(process)
        except Crash:
            self.trace.append(f"{process.slot} dies")
            process.kill()
            self.gone(process)
        finally:
            self._running, process.acting = running, False

    def _replaced(self, process: Process) -> None:
        """Whoever holds the seat has the slot: the replacement, or a zombie that joined after it."""
        assert process.worker is not None
        seat = self.log._broker.groups["g.p"].seats.get(f"g.p.{process.slot}")
        if seat is None or seat.member == process.worker.consumer._member:  # type: ignore[attr-defined]
            self.violate("replaced by nobody", f"slot {process.slot}")
        others = [other for other in self.processes if other.slot == process.slot and other is not process]
        if others and self._holders[process.slot] is process:
            self._holders[process.slot] = others[-1]

    def point(self, name: str, client: object = None) -> Broken | None:
        """Time passes, and the next strike may fall, here on the running process."""
        process = self._running
        if process is None or not process.sends_as(client):
            return None
        self.clock.advance(self.latency)
        self.trace.append(f"{process.slot} {name}")
        self.points.append(name)
        if self._strikes and len(self.points) == self._strikes[0].after:
            self.points.clear()
            fault = self._strikes.pop(0).fault
            self.trace.append(f"** {fault} **")
            self.fired.append(fault)
            self.disturbed = True
            self.overlapping |= fault.overlaps
            return self._strike(process, name, fault)
        return None

    def _strike(self, process: Process, name: str, fault: Fault) -> Broken | None:
        match fault:
            case Fault.STOPPED:
                process.ask_to_stop()
            case Fault.JOINED:
                self._begin(next(slot for slot in range(100) if slot not in self._holders))
            case Fault.SLOW:
                self.clock.advance(TRANSACTION_TIMEOUT + 1.0)
            case Fault.REPLACED | Fault.FROZEN:
                self._freeze(process, fault)
            case Fault.DIES:
                raise Crash
            case _ if name in ("function", "returned"):  # a function makes no request: nothing but this can befall it
                if fault in (Fault.DIES_AFTER, Fault.DIES_LATE):
                    raise Crash
            case _:
                return self._broken(name, fault)
        return None

    def _freeze(self, process: Process, fault: Fault) -> None:
        self._running = None
        if fault is Fault.FROZEN:
            self.clock.advance(self.random.choice((1.0, 1.2, 3.0)) * SESSION_TIMEOUT)
        elif self._holders[process.slot] is process:
            self._begin(process.slot)
        for _ in range(self.random.randint(1, 30)):
            self._iterate()
        self._running = process

    def _broken(self, name: str, fault: Fault) -> Broken | None:
        """What befalls the request at hand."""
        error = self.random.choice((Retriable, Abortable, OutcomeUnknown))("simulated")
        late = self.random.choice((3.0, 0.01, 0.2, 9.0)) if name in MAY_COME_LATE else None
        match fault:
            case Fault.DIES_AFTER:
                return Broken(Crash())
            case Fault.DIES_LATE:
                return Broken(Crash(), applied=False, late=late)
            case Fault.LOST:
                return Broken(error, applied=False)
            case Fault.UNANSWERED:
                return Broken(OutcomeUnknown("simulated") if name == "commit_transaction" else error)
            case Fault.LATE:
                return Broken(OutcomeUnknown("simulated"), applied=False, late=late)
            case Fault.DOUBLED:
                return Broken(late=late)
        return None

    # The user's function.

    def _graph(self) -> Graph:
        graph = Graph("g", guarantee=self.plan.guarantee, errors="dead", unhandled_exceptions=Halt)
        kind = self.plan.kind
        for topic in (*kind.inputs, *kind.outputs):
            graph.topic(topic)
        match kind:
            case Kind.FORK:
                graph.map("a", to=("x", "y"), id="p")(lambda v, step: dict(self._work(step, v)))
            case Kind.SINK:
                graph.sink("a", id="p")(lambda v, step: self._work(step, v))
            case Kind.JOIN:
                graph.join("a", "b", to="x", id="p")(lambda v, w, step: self._one(step, v, w))
            case Kind.ALTS:
                graph.alts("a", "b", to="x", id="p")(lambda v, step: self._one(step, v))
            case Kind.BATCH:
                graph.map("a", to="x", id="p", batch=True)(self._batch)
            case Kind.GENERATOR:
                graph.map("a", to="x", id="p")(self._several)
            case Kind.MAP:
                graph.map("a", to="x", id="p")(lambda v, step: self._one(step, v))
        return graph

    def _work(self, step: Step, *values: bytes) -> list[tuple[str, bytes]]:
        """What every kind's function does: what its value's mark says, and its results by topic."""
        process = self._running
        assert process is not None
        self.point("function")
        self.calls[process, process.attempt, step.positions[0][1]].append(values)
        if self.steps.setdefault(step.delivery_hash, values) != values:
            self.violate("hash", f"one for {values} and for {self.steps[step.delivery_hash]}")
        if self.hashes.setdefault(values, step.delivery_hash) != step.delivery_hash:
            self.violate("hash", f"two for {values}")
        if early := self.inputs.unsettled & set(values):
            self.violate("precommitted read", str(early))
        self.clock.advance(self.labour)
        mark = values[0][-1:]
        if mark in (HALTS, STOPS) and values not in self._stopped:
            self._stopped.add(values)
            self.disturbed |= mark == HALTS or self.plan.kind is Kind.BATCH
            raise Halt(values) if mark == HALTS else Stop(values)
        if mark == FAILS:
            raise LookupError(values)
        if not self.plan.kind.outputs and mark != SKIPS:
            self.effects[step.delivery_hash] += 1
        self.point("returned")
        return self.plan.kind.results(values)

    def _one(self, step: Step, *values: bytes) -> bytes | None:
        found = self._work(step, *values)
        return found[0][1] if found else None

    def _several(self, value: bytes, step: Step) -> Iterator[bytes]:
        for _, result in self._work(step, value):
            yield result

    def _batch(self, values: list[bytes], steps: list[Step]) -> list[bytes | Exception | None]:
        done: list[bytes | Exception | None] = []
        for value, step in zip(values, steps, strict=True):
            try:
                done.append(self._one(step, value))
            except LookupError as error:
                done.append(error)
        return done
