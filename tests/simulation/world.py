"""A simulated run: workers, their users' function, the log, the clock and the faults, in one thread, by one plan.

::

    world = World(Plan.parse("map:exactly_once:7:dies@17")).run()
    assert not world.violations, world.report()

Workers take turns as the seed has it. Each request of a running worker and each call of its function is a *point*,
where the plan's next strike may fall. A process that is frozen at a point lets the others run before it goes on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from threading import Event
from typing import Any, Final, NamedTuple

import pytest

from kstreams_py.config import Settings
from kstreams_py.engine import transaction
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.engine.transaction import OUTPUTS_HELD, Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import (
    Abortable,
    DrainTimeout,
    InputLost,
    KStreamsError,
    LogError,
    OutcomeUnknown,
    Replaced,
    Retriable,
    Stop,
)
from kstreams_py.record import Out, Step, TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.testing.memory_clients import Fault as Broken
from kstreams_py.testing.memory_clients import MemoryProducer
from kstreams_py.topology import Graph
from tests.simulation import invariants
from tests.simulation.inputs import Inputs
from tests.simulation.life import Life, Place, WatchedLog
from tests.simulation.plan import ALO, AMO, EO, FAILS, HALTS, PARTITIONS, SKIPS, STOPS, Fault, Kind, Plan, Stage

TURNS_MAX: Final = 3_000
"""Turns in which a run must have settled."""

SETTINGS: Final = {reset: Settings(auto_offset_reset=reset) for reset in ("earliest", "latest")}
TRANSACTION_TIMEOUT: Final = SETTINGS["earliest"].transaction_timeout_ms / 1000
SESSION_TIMEOUT: Final = SETTINGS["earliest"].session_timeout_ms / 1000

MAY_COME_LATE: Final = {
    "produce", "add_partition", "add_offsets", "send_offsets", "commit_transaction", "abort_transaction",
    "init_transactions", "commit",
}  # fmt: skip
"""Requests that change something at the broker whoever else has come meanwhile."""

COORDINATORS: Final = {"subscribe", "heartbeat", "committed", "commit", "send_offsets", "hold_seat"}
LEADERS: Final = {"produce"}


class Crash(BaseException):
    """The process dies here."""


class Halt(Exception):
    """An unhandled exception of the user's function."""


class Called(NamedTuple):
    """What a function was called with."""

    stage: Stage
    places: tuple[Place, ...]
    values: tuple[bytes, ...]


class Process:
    """A worker process: one life of one slot, with a worker for each processor."""

    def __init__(self, world: World, slot: int) -> None:
        self.slot = slot
        self.acting = False
        """In the middle of something: of its turn, or frozen there while others take theirs."""
        self.is_frozen = False
        self.was_frozen = False
        self.failed: Life | None = None
        """Whose worker has raised what ends the process."""
        self.starting = True
        self.birth = next(world.births)
        self.number = 0
        """Of several in one slot, the one with the highest joined last."""
        self.lives = [Life(world, stage) for stage in world.stages]
        self._world = world
        self._stopping = Event()

    def __str__(self) -> str:
        return f"{self.slot}.{self.birth}"

    def start(self) -> None:
        world = self._world
        world.unwatched(lambda: check_topics(world.graph, world.log))
        processors = {processor.id: processor for processor in world.graph.processors}
        for life in self.lives:
            around = Surroundings(
                WatchedLog(life, world.log),  # type: ignore[arg-type]
                world.registry,
                world.settings,
                world.clock,
                world.pass_time,
                outputs_held=world.outputs_held,
            )
            life.worker = Worker(world.graph, processors[life.stage.id], self.slot, around, self._stopping)
        self.number = next(world.numbers)
        for life in self.lives:
            life.number = self.number
            life.worker.start()
        self.starting = False

    def turn(self) -> None:
        """One turn of a worker; and the end, if the process was told to stop."""
        life = self.failed = self._world.random.choice(self.lives)
        life.worker.step()
        self.failed = None
        if self._stopping.is_set():
            self.stop()

    def stop(self) -> None:
        """Drains and ends, as the workers of a slot do; raises the first failure."""
        failures: list[Exception] = []
        self._give_up_if_hindered()
        for life in self.lives:
            try:
                if life.worker is not None and life is not self.failed:
                    life.worker.finish()
            except (KStreamsError, Halt) as error:
                failures.append(error)
                if isinstance(error, DrainTimeout):
                    self._world.may_lose(life.stage, life.in_flight)
        self.close()
        self._world.gone(self)
        if failures:
            raise failures[0]

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """What a process does on its way out of an exception."""
        self._give_up_if_hindered()
        for life in self.lives:
            if life.worker is not None:
                life.worker.close()

    def _give_up_if_hindered(self) -> None:
        """A process that ends waits for answers for some seconds, or not at all."""
        if self._world.hindered:
            for life in self.lives:
                self._world.may_lose(life.stage, life.in_flight)
                self._world.may_repeat(life)

    def kill(self) -> None:
        for life in self.lives:
            life.kill()

    @property
    def busy(self) -> bool:
        return any(life.busy for life in self.lives)

    def stage_of(self, client: object) -> str:
        """The processor whose client it is; "" if there is one processor only."""
        named = (life.stage.id for life in self.lives if client is not None and life.has(client))
        return next(named, "") if len(self.lives) > 1 else ""

    def sends_as(self, client: object) -> bool:
        """Whether a request of this client is of this process, and not of one that lingers in the background."""
        return not isinstance(client, MemoryProducer) or any(client is life.producer for life in self.lives)


class Retired(NamedTuple):
    """A partition that a processor reads no more, and what it had: by place, and up to which position."""

    stage: Stage
    values: dict[Place, bytes]
    position: int


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
            metadata_age=random.choice((0.0, 1.0, 10.0)),
        )
        self.registry = MemoryRegistry()
        self.latency = random.choice((0.0, 0.001, 0.03))
        self.labour = random.choice((0.0, 0.02, 0.3))
        self.outputs_held = random.choice((OUTPUTS_HELD, 0, 1))
        self.stages = [Stage("p", plan.kind, plan.guarantee, plan.inputs, plan.kind.outputs), *self._second()]
        self.graph = self._graph()
        compacted = {"cleanup.policy": "compact"}
        self.log.create_topics([(name, PARTITIONS, -1, {}) for name in plan.inputs])
        self.log.create_topics([(name, PARTITIONS, -1, compacted) for name in ("x", "z") if name in self.graph.topics])
        create_topics(self.graph, self.log)
        self.outputs = [TopicPartition(name, n) for name in self.written for n in range(PARTITIONS)]
        latest = random.choice((False, False, False, True))
        self.settings = SETTINGS["latest" if latest else "earliest"]
        self.inputs = Inputs(plan, self.log, random, older=latest)
        self.watched: object = None
        """What `invariants.watch` has seen last."""
        self.processes: list[Process] = []
        self._holders: dict[int, Process] = {}
        self._downs: list[tuple[float, int]] = []
        self._running: Process | None = None
        self._strikes = list(plan.strikes)
        self.points: list[str] = []
        """Those since the last strike, or since the start."""
        self.births, self.numbers = count(1), count(1)
        self.starts: dict[tuple[str, int], int] = {}
        """By group and member, the number of its process."""
        self._contested: set[int] = set()
        """Slots of processes that were frozen while they joined their groups, one after the other."""
        self._stops: list[Fault] = []
        """What is to happen once all processes have ended."""
        self._feeding = not latest
        self._ending = False
        self._stopped: set[tuple[str, tuple[bytes, ...]]] = set()
        self._input_lost = False
        self.expiring = False
        """The positions of the groups are not there."""
        self.retired: list[Retired] = []

        self.steps: dict[bytes, Called] = {}
        """By delivery hash, what a function was called with first."""
        self.hashes: dict[tuple[str, tuple[Place, ...]], bytes] = {}
        """The other way round, by processor."""
        self.calls: dict[tuple[Life, int, int], list[tuple[Place, ...]]] = defaultdict(list)
        """What was read in each call, in order, by attempt and partition."""
        self.effects: Counter[bytes] = Counter()
        """Of a sink: delivery hashes."""
        self.repeatable: dict[str, Counter[Place]] = defaultdict(Counter)
        """By processor: how many copies more than one there may be of what came of a record."""
        self.losable: dict[str, set[Place]] = defaultdict(set)
        """By processor: records of which at most once may have lost what came of them."""
        self.strays: dict[str, set[Place]] = defaultdict(set)
        """By processor: records whose outputs may come late, and behind those of later records."""
        for stage in self.stages:
            self._watch_joins(stage)
        self.log.watch(self.point)

    def _second(self) -> list[Stage]:
        """Another processor in each process: one that reads what the first one writes, or reads the same."""
        kind = self.plan.kind
        how = self.random.choice(("", "", "", "chained", "parallel"))
        guarantee = self.random.choice((self.plan.guarantee, EO, ALO, AMO))
        if not how or not kind.outputs:
            return []
        return [Stage("q", Kind.MAP, guarantee, ("x",) if how == "chained" else ("a",), ("z",))]

    @property
    def written(self) -> list[str]:
        """All topics of outputs."""
        return [*(topic for stage in self.stages for topic in stage.outputs), "dead"]

    # The run.

    def run(self) -> World:
        """Runs until all input is processed, stops the workers, and judges."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transaction, "JOURNAL_TRUNCATED_EVERY", 2)
            self._run()
        return self

    def _run(self) -> None:
        try:
            for slot in range(self.random.choice((1, 1, 2))):
                self._begin(slot)
            for _ in range(TURNS_MAX):
                if self._settled():
                    break
                self._iterate()
            else:
                self.violate("stuck", invariants.standing(self))
            self._ending = True
            self._strikes.clear()
            self._end_all(kill=False)
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
        if self._feeding:
            self.inputs.feed()
        else:
            self._feeding = all(set(invariants.inputs(self, s)) <= self.log.group(s.group).keys() for s in self.stages)
        if self._stops and not any(process.acting for process in self.processes):
            self._stop_all(self._stops.pop(0))
        while (down := min(self._downs, default=None)) and down[0] <= self.clock():
            self._downs.remove(down)
            self._begin(down[1])
        awake = [process for process in self.processes if not process.acting]
        if awake:
            process = self.random.choice(awake)
            self._guard(process, process.turn)
        else:
            self.pass_time(1.0)
        invariants.watch(self)

    def _settled(self) -> bool:
        if self.inputs.left or self._downs or self._stops or any(process.busy for process in self.processes):
            return False
        if self.clock() - self.inputs.fed_at < 1.0:  # markers may be on their way
            return False
        return all(invariants.saved(self, s) == self.log.ends(invariants.inputs(self, s)) for s in self.stages)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock; members that are not frozen keep their sessions meanwhile."""
        while seconds > 0:
            self.clock.advance(min(seconds, 3.0))
            seconds -= 3.0
            for process in self.processes:
                if not process.is_frozen:
                    for life in process.lives:
                        life.heartbeat()

    def life_of(self, topic: str) -> int:
        """How often a topic was deleted and created again."""
        return self.inputs.lives.get(topic, 0)

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
                self._ended_by(process, error)
        except Crash:
            self.trace.append(f"{process} dies")
            self._died(process)
        finally:
            self._running, process.acting = running, False

    def _ended_by(self, process: Process, error: Exception) -> None:
        """What the process comes to when one of its workers has failed: the others commit what is done."""
        self.trace.append(f"{process} ends: {type(error).__name__}")
        if isinstance(error, Replaced):
            self._replaced(process)
        elif isinstance(error, InputLost) and self.expiring:
            self._input_lost = True
        elif isinstance(error, KStreamsError) and not self.fired:
            self.violate("ended", f"slot {process.slot} by {error!r}, and nothing had happened")
        for life in process.lives:
            if self.fired:
                self.may_repeat(life)
        if process in self.processes:
            try:
                process.ask_to_stop()
                process.stop()
            except (KStreamsError, Halt) as other:
                self.trace.append(f"{process} ends: {type(other).__name__}")

    def _died(self, process: Process) -> None:
        for life in process.lives:
            self.may_repeat(life)
            self.may_lose(life.stage, life.in_flight)
        process.kill()
        self.gone(process)

    def may_repeat(self, life: Life) -> None:
        """Something happens to a worker after which what it has not saved, or delivered, may come once more, or late."""  # noqa: E501
        if life.stage.guarantee is AMO:
            self.strays[life.stage.id] |= life.in_flight
        else:
            self.repeatable[life.stage.id].update(life.unsaved())

    def may_lose(self, stage: Stage, places: set[Place]) -> None:
        """A worker dies, or gives up in the end: what is in flight may be lost."""
        self.losable[stage.id] |= places

    def _watch_joins(self, stage: Stage) -> None:
        """Whoever joins takes the membership of who has it, with all that this one has not saved."""
        group = self.log._broker.group(stage.group)
        join = group.join

        def joining(seat: str, *arguments: Any) -> int:
            held = group.seats.get(seat)
            for life in [life for process in self.processes for life in process.lives if life.stage.id == stage.id]:
                if held is not None and life.member == held.member:
                    self.may_repeat(life)
                    life.is_zombie = True
            return join(seat, *arguments)

        group.join = joining  # type: ignore[method-assign]

    def _replaced(self, process: Process) -> None:
        """Whoever holds the membership has the slot: the process that was the last to start in it."""
        taken = []
        for life in process.lives:
            seat = self.log._broker.group(life.stage.group).seats.get(f"{life.stage.group}.{process.slot}")
            if seat is not None and seat.member != life.member:
                taken.append(self.starts[life.stage.group, seat.member])
        if not taken:
            self.violate("replaced by nobody", f"slot {process.slot}")
        elif max(taken) < process.number and not process.was_frozen and process.slot not in self._contested:
            self.violate("replaced by an older one", f"slot {process.slot}")
        others = [other for other in self.processes if other.slot == process.slot and other is not process]
        if others and self._holders[process.slot] is process:
            self._holders[process.slot] = others[-1]

    def _end_all(self, *, kill: bool) -> None:
        """Ends all processes, and those that start meanwhile."""
        ending, self._ending = self._ending, True
        while self.processes:
            process = self.processes[0]
            if kill:
                self._died(process)
            else:
                self._guard(process, process.stop)
        self._ending = ending

    # What befalls a process.

    def point(self, name: str, client: object = None) -> Broken | None:
        """Time passes, and the next strike may fall, here on the running process."""
        process = self._running
        if process is None or not process.sends_as(client):
            return None
        self.clock.advance(self.latency)
        self.trace.append(f"{process}{process.stage_of(client)} {name}")
        self.points.append(name)
        if self._strikes and len(self.points) == self._strikes[0].after:
            self.points.clear()
            fault = self._strikes.pop(0).fault
            self.trace.append(f"** {fault} **")
            self.fired.append(fault)
            return self._strike(process, name, client, fault)
        return None

    def unwatched(self, action: Callable[[], object]) -> None:
        """Does something that is no process's own."""
        running, self._running = self._running, None
        action()
        self._running = running

    @property
    def hindered(self) -> bool:
        """Requests find no answer, so that what is open cannot be finished."""
        return any(self.log._network.outage(name) for name in (*COORDINATORS, *LEADERS))

    def _strike(self, process: Process, name: str, client: object, fault: Fault) -> Broken | None:  # noqa: C901
        for life in process.lives:
            life.troubles += 1
        match fault:
            case Fault.STOPPED:
                process.ask_to_stop()
            case Fault.JOINED:
                self._begin(next(slot for slot in range(100) if slot not in self._holders))
            case Fault.SLOW:
                self.pass_time(TRANSACTION_TIMEOUT + 1.0)
            case Fault.REPLACED | Fault.FROZEN:
                self._freeze(process, fault)
            case Fault.AWAY | Fault.STALLED:
                requests = COORDINATORS if fault is Fault.AWAY else LEADERS
                applied = self.random.choice((0.0, 0.5, 1.0))
                self.log.begin_outage(
                    self.random.choice((1.0, 3.0, 8.0, 20.0)), requests, lambda: self.random.random() < applied
                )
            case Fault.GROWN:
                if (
                    self._feeding
                    and not self.hindered
                    and not any(life.joins for p in self.processes for life in p.lives)
                ):
                    self.unwatched(self.inputs.grow)
            case _ if fault.stops_all:
                self._stops.append(fault)
            case Fault.DIES:
                raise Crash
            case _ if name in ("function", "returned"):  # a function makes no request: nothing but this can befall it
                if fault in (Fault.DIES_AFTER, Fault.DIES_LATE):
                    raise Crash
            case _:
                return self._broken(process, name, client, fault)
        return None

    def _freeze(self, process: Process, fault: Fault) -> None:
        for life in process.lives:
            self.may_repeat(life)
            life.is_zombie = True
        if process.starting or any(life.joins for life in process.lives):
            self._contested.add(process.slot)
        self._running, process.is_frozen = None, True
        if fault is Fault.FROZEN:
            process.was_frozen = True
            self.pass_time(self.random.choice((1.0, 1.2, 3.0)) * SESSION_TIMEOUT)
        elif self._holders[process.slot] is process:
            self._begin(process.slot)
        for _ in range(self.random.randint(1, 30)):
            self._iterate()
        self._running, process.is_frozen = process, False

    def _broken(self, process: Process, name: str, client: object, fault: Fault) -> Broken | None:
        """What befalls the request at hand."""
        error: LogError = self.random.choice((Retriable, Abortable, OutcomeUnknown))("simulated")
        if not self._is_transactional(process, client):
            # a client repeats a batch without end; a group refuses for good only what was not carried out
            refused = name in ("commit", "consume") and fault is Fault.LOST and not isinstance(error, Retriable)
            error = Abortable("simulated") if refused else Retriable("simulated")
        if not isinstance(error, Retriable) or name == "consume":
            for life in process.lives:
                self.may_repeat(life)
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
                transactional = self._is_transactional(process, client)
                return Broken(OutcomeUnknown("simulated") if transactional else error, applied=False, late=late)
            case Fault.DOUBLED:
                return Broken(late=late)
        return None

    def _is_transactional(self, process: Process, client: object) -> bool:
        return any(life.stage.guarantee is EO and life.producer is client for life in process.lives)

    # What befalls all of them.

    def _stop_all(self, fault: Fault) -> None:
        """Ends all processes; something happens; the same slots start again."""
        self.trace.append(f"** all stop: {fault} **")
        slots = sorted({*(process.slot for process in self.processes), *(slot for _, slot in self._downs)})
        self._end_all(kill=self.random.choice((False, True)))
        self._downs.clear()
        self.clock.advance(1.0)  # markers are on their way
        match fault:
            case Fault.EXPIRED:
                self._expire(slots)
            case Fault.REMADE if self.plan.kind is not Kind.JOIN:
                topic = self.plan.inputs[-1]
                self._retire(topic)
                self.inputs.remake(topic)
                self._feeding = self.settings.auto_offset_reset == "earliest"
            case Fault.DEPLOYED if self.plan.kind is Kind.ALTS and len(self.stages[0].inputs) > 2:
                self._retire("c")
                self.stages[0] = Stage("p", Kind.ALTS, self.plan.guarantee, ("a", "b"), ("x",))
                self.graph = self._graph()
        for slot in slots:
            self._begin(slot)

    def _retire(self, topic: str) -> None:
        """Keeps what the processors had of a topic, which they will not read again."""
        for stage in self.stages:
            if topic not in stage.inputs:
                continue
            values: dict[TopicPartition, dict[Place, bytes]] = defaultdict(dict)
            for place, value in invariants.readable(self, stage).items():
                if place[0] == topic:
                    values[TopicPartition(topic, place[2])][place] = value
            positions = self.log.group(stage.group)
            self.retired += [Retired(stage, found, positions.get(tp, 0)) for tp, found in values.items()]

    def _expire(self, slots: list[int]) -> None:
        """The groups have lost their positions: that must be said, and nothing be read until somebody sets them."""
        positions = {stage.group: self.log.group(stage.group) for stage in self.stages}
        begun = any(at > self.inputs.starts.get(tp, 0) for found in positions.values() for tp, at in found.items())
        strikes, self._strikes, self._input_lost, self.expiring = self._strikes, [], False, True
        self.log._network._outages.clear()  # it has taken days
        for group in positions:
            self.log.forget_positions(group)
        for slot in slots:
            self._begin(slot)
        for _ in range(20 * len(slots) * len(self.stages)):
            if self._input_lost or not begun:
                break
            if not self.processes:
                self._begin(self.random.choice(slots))
            if self.processes:
                process = self.random.choice(self.processes)
                self._guard(process, process.turn)
        if begun and not self._input_lost:
            self.violate("positions lost", "and nothing was said")
        self._end_all(kill=False)
        self._downs.clear()
        for group, found in positions.items():
            self.log._broker.group(group).positions.update(found)
        self._strikes, self.expiring = strikes, False

    # The user's function.

    def _graph(self) -> Graph:
        graph = Graph("g", guarantee=self.plan.guarantee, errors="dead", unhandled_exceptions=Halt)
        for topic in dict.fromkeys(topic for stage in self.stages for topic in (*stage.inputs, *stage.outputs)):
            graph.topic(topic)
        for stage in self.stages:
            options: dict[str, Any] = {"id": stage.id, "guarantee": stage.guarantee}
            function = self._function(stage)
            match stage.kind:
                case Kind.SINK:
                    graph.sink(*stage.inputs, **options)(function)
                case Kind.JOIN:
                    graph.join(*stage.inputs, to=stage.outputs, **options)(function)
                case Kind.ALTS:
                    graph.alts(*stage.inputs, to=stage.outputs, **options)(function)
                case _:
                    graph.map(*stage.inputs, to=stage.outputs, batch=stage.kind is Kind.BATCH, **options)(function)
        return graph

    def _function(self, stage: Stage) -> Callable[..., Any]:
        """What the user wrote."""
        match stage.kind:
            case Kind.FORK:
                return lambda v, step: dict(self._work(stage, step, v))
            case Kind.SINK:
                return lambda v, step: self._work(stage, step, v)
            case Kind.JOIN:
                return lambda v, w, step: self._one(stage, step, v, w)
            case Kind.BATCH:
                return lambda values, steps: self._batch(stage, values, steps)
            case Kind.GENERATOR:
                return self._generator(stage)
        return lambda v, step: self._one(stage, step, v)

    def _life(self, stage: Stage) -> Life:
        """The worker of the running process whose function it is."""
        assert self._running is not None
        return next(life for life in self._running.lives if life.stage.id == stage.id)

    def _work(self, stage: Stage, step: Step, *values: bytes) -> list[tuple[str, Any]]:
        """What every kind's function does: what its value's mark says, and its results by topic."""
        life = self._life(stage)
        self.point("function")
        places = tuple((topic, self.life_of(topic), partition, offset) for topic, partition, offset in step.positions)
        life.called(places)
        self.calls[life, life.attempt, places[0][2]].append(places)
        called = Called(stage, places, values)
        if (known := self.steps.setdefault(step.delivery_hash, called))[1:] != called[1:]:
            self.violate("hash", f"one for {values} and for {known.values}")
        if self.hashes.setdefault((stage.id, places), step.delivery_hash) != step.delivery_hash:
            self.violate("hash", f"two for {values}")
        if early := self.inputs.unsettled & set(values):
            self.violate("precommitted read", str(early))
        self.pass_time(self.labour)
        mark = values[0][-1:]
        if mark in (HALTS, STOPS) and (stage.id, values) not in self._stopped:
            self._stopped.add((stage.id, values))
            if mark == HALTS:
                self.losable[stage.id].update(places)
                raise Halt(values)
            life.not_done(places)
            raise Stop(values)
        if mark == FAILS:
            raise LookupError(values)
        if not stage.outputs and mark != SKIPS:
            self.effects[step.delivery_hash] += 1
        self.point("returned")
        results = stage.results(values)
        if stage.is_refused(values):
            return [(topic, Out(value, key=None) if topic == stage.outputs[0] else value) for topic, value in results]
        return results

    def _one(self, stage: Stage, step: Step, *values: bytes) -> Any:
        found = self._work(stage, step, *values)
        return found[0][1] if found else None

    def _generator(self, stage: Stage) -> Callable[[bytes, Step], Iterator[Any]]:
        def several(value: bytes, step: Step) -> Iterator[Any]:
            for _, result in self._work(stage, step, value):
                yield result

        return several

    def _batch(self, stage: Stage, values: list[bytes], steps: list[Step]) -> list[Any]:
        done: list[Any] = []
        for value, step in zip(values, steps, strict=True):
            try:
                done.append(self._one(stage, step, value))
            except LookupError as error:
                done.append(error)
            except (Halt, Stop) as stop:
                places = {(t, self.life_of(t), p, o) for each in steps for t, p, o in each.positions}
                if isinstance(stop, Halt):
                    self.losable[stage.id] |= places
                else:
                    self._life(stage).not_done(places)
                raise
        return done
