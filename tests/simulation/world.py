"""A simulated run: workers, their users' function, the log, the clock and the faults, in one thread, by one plan.

::

    world = World(Plan.parse("map:exactly_once:7:dies@17")).run()
    assert not world.violations, world.report()

Workers take turns as the seed has it. Each request of a running worker and each call of its function is a *point*,
where the plan's next strike may fall. A process that is frozen at a point lets the others run before it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final

import pytest

from kstreams_py.config import Settings
from kstreams_py.engine import transaction
from kstreams_py.engine.topics import create_topics
from kstreams_py.engine.transaction import OUTPUTS_HELD
from kstreams_py.errors import GraphError, InputLost, KStreamsError, Replaced
from kstreams_py.record import TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from tests.simulation import invariants
from tests.simulation.bounds import Bounds
from tests.simulation.functions import Functions
from tests.simulation.inputs import Inputs
from tests.simulation.plan import ALO, AMO, EO, PARTITIONS, Halt, Kind, Plan, Stage
from tests.simulation.process import Process
from tests.simulation.restarts import Restarts
from tests.simulation.strikes import COORDINATORS, LEADERS, SESSION_TIMEOUT, TRANSACTION_TIMEOUT, Crash, Strikes
from tests.simulation.watch import Watch

TURNS_MAX: Final = 3_000
"""Turns in which a run must have settled."""

SETTINGS: Final = {reset: Settings(auto_offset_reset=reset) for reset in ("earliest", "latest")}


class World:
    """Everything in one run, and what it came to: `violations`, each with a name, a colon and the evidence."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.violations: list[str] = []
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
        self.bounds = Bounds()
        self.functions = Functions(self)
        self.strikes = Strikes(self, plan.strikes)
        self.restarts = Restarts(self)
        self.graph = self.functions.graph()
        compacted = {"cleanup.policy": "compact"}
        self.log.create_topics([(name, PARTITIONS, -1, {}) for name in plan.inputs])
        self.log.create_topics([(name, PARTITIONS, -1, compacted) for name in ("x", "z") if name in self.graph.topics])
        create_topics(self.graph, self.log)
        self.outputs = [TopicPartition(name, n) for name in self.written for n in range(PARTITIONS)]
        latest = random.choice((False, False, False, True))
        self.settings = SETTINGS["latest" if latest else "earliest"]
        self.inputs = Inputs(plan, self.log, random, older=latest)
        self.processes: list[Process] = []
        self._holders: dict[int, Process] = {}
        self._downs: list[tuple[float, int]] = []
        self.running: Process | None = None
        """Whose turn it is."""
        self.births, self.numbers = count(1), count(1)
        self.starts: dict[tuple[str, int], int] = {}
        """By group and member, the number of its process."""
        self.is_feeding = not latest
        """Inputs are written; with `latest`, only once all groups have begun."""
        self._ending = False
        self._watch = Watch(self)
        for stage in self.stages:
            self._watch_joins(stage)
        self.log.watch(self.strikes.point)

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
                self.begin(slot)
            for _ in range(TURNS_MAX):
                if self._settled():
                    break
                self.iterate()
            else:
                self.violate("stuck", invariants.standing(self))
            self._ending = True
            self.strikes.left.clear()
            self.end_all(kill=False)
            self.clock.advance(2 * TRANSACTION_TIMEOUT)  # what is late has come by now
            self._watch.look()
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

    def iterate(self) -> None:
        """One turn of one of the workers that can take one."""
        if self.is_feeding:
            self.inputs.feed()
        else:
            begun = {s: self.log.group(s.group).keys() for s in self.stages}
            self.is_feeding = all(set(invariants.inputs(self, s)) <= found for s, found in begun.items())
        if self.restarts.due and not any(process.acting for process in self.processes):
            self.restarts.carry_out()
        while (down := min(self._downs, default=None)) and down[0] <= self.clock():
            self._downs.remove(down)
            self.begin(down[1])
        awake = [process for process in self.processes if not process.acting]
        if awake:
            self.turn(self.random.choice(awake))
        else:
            self.pass_time(1.0)
        self._watch.look()

    def _settled(self) -> bool:
        if self.inputs.left or self._downs or self.restarts.due or any(process.busy for process in self.processes):
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

    @property
    def hindered(self) -> bool:
        """Requests find no answer, so that what is open cannot be finished."""
        network = self.log._network
        return any(network.outage(name) for name in (*COORDINATORS, *LEADERS)) if network._outages else False

    def unwatched(self, action: Callable[[], object]) -> None:
        """Does something that is no process's own."""
        running, self.running = self.running, None
        action()
        self.running = running

    # Processes.

    @property
    def slots(self) -> list[int]:
        """Those of processes that are there, or will be again."""
        return sorted({*(process.slot for process in self.processes), *(slot for _, slot in self._downs)})

    def begin(self, slot: int) -> None:
        """Starts a process in a slot."""
        process = self._holders[slot] = Process(self, slot)
        self.processes.append(process)
        self._guard(process, process.start)

    def begin_another(self) -> None:
        """Starts a process in a slot that is not used yet."""
        self.begin(next(slot for slot in range(100) if slot not in self._holders))

    def replace(self, process: Process) -> None:
        """Starts another process in the slot of one that is frozen, if none has been."""
        if self._holders[process.slot] is process:
            self.begin(process.slot)

    def turn(self, process: Process) -> None:
        """Lets a process take a turn."""
        self._guard(process, process.turn)

    def gone(self, process: Process) -> None:
        """A process has ended; another one takes its slot soon, if none has."""
        if process in self.processes:
            self.processes.remove(process)
            if self._holders[process.slot] is process and not self._ending:
                self._downs.append((self.clock() + self.random.choice((0.0, 0.0, 1.0, 20.0)), process.slot))

    def end_all(self, *, kill: bool) -> None:
        """Ends all processes, and those that start meanwhile; none starts again by itself."""
        ending, self._ending = self._ending, True
        while self.processes:
            process = self.processes[0]
            if kill:
                self._died(process)
            else:
                self._guard(process, process.stop)
        self._downs.clear()
        self._ending = ending

    def _guard(self, process: Process, action: Callable[[], None]) -> None:
        """Does something as this process; what ends a process ends this one."""
        running, self.running, process.acting = self.running, process, True
        try:
            try:
                action()
            except (KStreamsError, Halt) as error:
                self._ended_by(process, error)
        except Crash:
            self.trace.append(f"{process} dies")
            self._died(process)
        finally:
            self.running, process.acting = running, False

    def _ended_by(self, process: Process, error: Exception) -> None:
        """What the process comes to when one of its workers has failed: the others commit what is done."""
        self.trace.append(f"{process} ends: {type(error).__name__}")
        if isinstance(error, Replaced):
            self._replaced(process)
        elif isinstance(error, InputLost) and self.restarts.expiring:
            self.restarts.input_lost = True
        elif isinstance(error, GraphError) and self.inputs.behind:
            self.unwatched(lambda: self.inputs.grow(self.inputs.behind))  # whoever reads that it is so does this
        elif isinstance(error, KStreamsError) and not self.strikes.fired:
            self.violate("ended", f"slot {process.slot} by {error!r}, and nothing had happened")
        for life in process.lives:
            if self.strikes.fired:
                self.bounds.may_repeat(life)
        if process in self.processes:
            try:
                process.ask_to_stop()
                process.stop()
            except (KStreamsError, Halt) as other:
                self.trace.append(f"{process} ends: {type(other).__name__}")

    def _died(self, process: Process) -> None:
        for life in process.lives:
            self.bounds.may_repeat(life)
            self.bounds.may_lose(life, life.in_flight)
        process.kill()
        self.gone(process)

    def _watch_joins(self, stage: Stage) -> None:
        """Whoever joins takes the membership of who has it, with all that this one has not saved."""
        group = self.log._broker.group(stage.group)
        join = group.join

        def joining(seat: str, *arguments: Any) -> int:
            held = group.seats.get(seat)
            for life in [life for process in self.processes for life in process.lives if life.stage.id == stage.id]:
                if held is not None and life.member == held.member:
                    self.bounds.may_repeat(life)
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
        contested = process.was_frozen or process.slot in self.strikes.contested
        if not taken:
            self.violate("replaced by nobody", f"slot {process.slot}")
        elif max(taken) < process.number and not contested:
            self.violate("replaced by an older one", f"slot {process.slot}")
        others = [other for other in self.processes if other.slot == process.slot and other is not process]
        if others and self._holders[process.slot] is process:
            self._holders[process.slot] = others[-1]
