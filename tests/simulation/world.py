"""A simulated run: workers, their functions, the cluster, the clock and the faults, in one thread, by one plan.

::

    world = World(Plan.parse("map:exactly_once:7:dies@17")).run()
    assert not world.violations, world.report()

The seed decides the order of the workers' turns. Each request of a running worker and each call of its function is a
*point*, at which the next fault of the plan may happen. While a process is frozen at a point, the others run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from random import Random
from typing import Final

import pytest

from kstreams_py.errors import GraphError, InputLost, KStreamsError, RecoveryUndecidable, Replaced
from kstreams_py.processing.journal import choices_journal, deliveries
from kstreams_py.processing.topics import create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import OUTPUTS_HELD
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry
from tests.simulation import invariants
from tests.simulation.bounds import Bounds
from tests.simulation.functions import Functions, refuse
from tests.simulation.inputs import Inputs
from tests.simulation.plan import ALO, AMO, EO, PARTITIONS, Halt, Kind, Plan, Stage
from tests.simulation.process import Process
from tests.simulation.restarts import Restarts
from tests.simulation.strikes import COORDINATORS, LEADERS, SESSION_TIMEOUT, TRANSACTION_TIMEOUT, Crash, Strikes
from tests.simulation.watch import Watch
from tests.simulation.watched_worker import WatchedWorker

TURNS_MAX: Final = 3_000
"""Turns within which all input must be processed."""

SETTINGS: Final = {reset: Settings(auto_offset_reset=reset) for reset in ("earliest", "latest")}


class World:
    """One run; `violations` has its results, each as a name, a colon and the evidence."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.random = random = plan.chance
        self.clock = ManualClock()
        self.cluster = MemoryCluster(
            self.clock,
            transaction_timeout=TRANSACTION_TIMEOUT,
            session_timeout=SESSION_TIMEOUT,
            linger=random.choice((0.0, 0.03, 60.0)),
            marker_delay=random.choice((0.0, 0.0, 0.05)),
            chance=Random(random.random()) if plan.seed else None,
            metadata_age=random.choice((0.0, 1.0, 10.0)),
        )
        self.other = self.cluster.named("other" if plan.elsewhere else "")
        """The cluster of the outputs."""
        queued = random.choice((100_000, 1, 3))
        for cluster in self.clusters:
            cluster.faults.limit_queues(queued)
        self.registry = MemoryRegistry()
        self.latency = random.choice((0.0, 0.001, 0.03))
        self.work_seconds = random.choice((0.0, 0.02, 0.3))
        self.outputs_held = random.choice((OUTPUTS_HELD, 0, 1))
        self.stages = [
            Stage(
                "p",
                plan.kind,
                plan.guarantee,
                plan.inputs,
                () if plan.stores else plan.kind.outputs,
                plan.order,
                plan.batch,
                plan.stores,
            ),
            *self._second(),
        ]
        self.targets = {
            stage.group: self.cluster.target(stage.stores, refuse) for stage in self.stages if stage.stores is not None
        }
        """The target of each processor that stores rows."""
        self.bounds = Bounds()
        self.functions = Functions(self)
        self.strikes = Strikes(self, plan.strikes)
        self.restarts = Restarts(self)
        self.graph = self.functions.graph()
        compacted = {"cleanup.policy": "compact"}
        self.cluster.create_topics([(name, PARTITIONS, -1, {}) for name in plan.inputs])
        self.other.create_topics(
            [(name, PARTITIONS, -1, compacted) for name in ("x", "z") if name in self.graph.topics]
        )
        create_topics(self.graph, self.cluster)
        self.outputs = [TopicPartition(name, n) for name in self.written for n in range(PARTITIONS)]
        latest = random.choice((False, False, False, True))
        self.settings = SETTINGS["latest" if latest else "earliest"]
        self.inputs = Inputs(plan, self.cluster, random, older=latest)
        self.processes: list[Process] = []
        self._holders: dict[int, Process] = {}
        """The process that has each slot."""
        self._due_starts: list[tuple[float, int]] = []
        """The clock time and the slot of each start that is due."""
        self.running: Process | None = None
        """The process that runs its turn."""
        self.ordinals, self.numbers = count(1), count(1)
        self.starts: dict[tuple[str, int], int] = {}
        """The number of the process of each member, by group and member."""
        self.is_feeding = not latest
        """Inputs are written; with `latest`, only after all groups have begun."""
        self._ending = False
        self.workers: list[WatchedWorker] = []
        """All workers that the run has had."""
        self._watch = Watch(self)
        for stage in self.stages:
            self._watch_joins(stage)
        for cluster in self.clusters:
            cluster.faults.watch(self.strikes.point)

    def _second(self) -> list[Stage]:
        """A second processor, at random: it reads the first one's outputs, or the same input."""
        kind = self.plan.kind
        how = self.random.choice(("", "", "", "chained", "parallel"))
        guarantee = self.random.choice((self.plan.guarantee, EO, ALO, AMO))
        if not how or not kind.outputs or self.plan.elsewhere or self.plan.stores:
            return []
        return [Stage("q", Kind.MAP, guarantee, ("x",) if how == "chained" else ("a",), ("z",))]

    @property
    def clusters(self) -> list[MemoryCluster]:
        """The cluster of the inputs, and that of the outputs if it is another one."""
        return [self.cluster, self.other] if self.plan.elsewhere else [self.cluster]

    @property
    def written(self) -> list[str]:
        """The names of all output topics."""
        return [*(topic for stage in self.stages for topic in stage.outputs), "dead"]

    # The run.

    def run(self) -> World:
        """Runs until all input is processed, stops the workers, and checks the invariants."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choices_journal, "JOURNAL_TRUNCATED_EVERY", 2)
            patch.setattr(deliveries, "TRUNCATED_EVERY", 3)
            self._run()
        return self

    def _run(self) -> None:
        try:
            for slot in range(self.random.choice((1, 1, 2))):
                if slot not in self._holders:  # a fault at the first one's start may have started it
                    self.begin(slot)
            for _ in range(TURNS_MAX):
                if self._settled():
                    break
                self.iterate()
            else:
                self.violate("stuck", invariants.describe_progress(self))
            self._ending = True
            self.strikes.left.clear()
            self.end_all(kill=False)
            self.clock.advance(2 * TRANSACTION_TIMEOUT)  # late requests have arrived by now
            self._watch.look()
            invariants.judge(self)
        except Exception as error:
            self.violate("broken", repr(error))
            if not isinstance(error, AssertionError | KStreamsError):
                raise

    def violate(self, name: str, evidence: str) -> None:
        assert name in invariants.NAMES, name
        violation = f"{name}: {evidence}"
        if violation not in self.violations:
            self.trace.append("## " + violation)
            self.violations.append(violation)

    def report(self) -> str:
        """Returns the violations, the last points of the run, and the command that replays it."""
        return "\n".join(
            [
                f"\nseed {self.plan.seed}, run {self.plan}",
                *self.violations[:8],
                "last points: " + " | ".join(self.trace[-60:]),
                f"again: KSTREAMS_SIMULATION_SEED={self.plan} pytest tests/simulation -k replay",
            ]
        )

    def iterate(self) -> None:
        """Runs one turn of a process that is not frozen."""
        if self.is_feeding:
            self.inputs.feed()
        else:
            begun = {s: self.cluster.groups[s.group].keys() for s in self.stages}
            self.is_feeding = all(set(invariants.inputs(self, s)) <= found for s, found in begun.items())
        if self.restarts.due and not any(process.is_acting for process in self.processes):
            self.restarts.carry_out()
        while self._due_starts and (start := min(self._due_starts))[0] <= self.clock():
            self._due_starts.remove(start)
            self.begin(start[1])
        awake = [process for process in self.processes if not process.is_acting]
        if awake:
            self.turn(self.random.choice(awake))
        else:
            self.pass_time(1.0)
        self._watch.look()

    def _settled(self) -> bool:
        if self.inputs.left or self._due_starts or self.restarts.due or any(process.busy for process in self.processes):
            return False
        if self.clock() - self.inputs.fed_at < 1.0:  # markers may be on their way
            return False
        return all(invariants.saved(self, s) == self.cluster.ends(invariants.inputs(self, s)) for s in self.stages)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock; members that are not frozen send heartbeats meanwhile."""
        while seconds > 0:
            self.clock.advance(min(seconds, 3.0))
            seconds -= 3.0
            for process in self.processes:
                if not process.is_frozen:
                    for watched in process.workers:
                        watched.heartbeat()

    def recreations_of(self, topic: str) -> int:
        """How often a topic was deleted and created again."""
        return self.inputs.recreations.get(topic, 0)

    @property
    def has_outage(self) -> bool:
        """Requests get no answer, so open transactions and outputs cannot be finished."""
        return any(
            network.outage(name)
            for network in (cluster._network for cluster in self.clusters)
            if network._outages
            for name in (*COORDINATORS, *LEADERS)
        )

    def run_unwatched(self, action: Callable[[], object]) -> None:
        """Runs an action that belongs to no process."""
        running, self.running = self.running, None
        action()
        self.running = running

    # Processes.

    @property
    def slots(self) -> list[int]:
        """The slots of processes that run or will be restarted."""
        return sorted({*(process.slot for process in self.processes), *(slot for _, slot in self._due_starts)})

    def begin(self, slot: int) -> None:
        """Starts a process in a slot."""
        process = self._holders[slot] = Process(self, slot)
        self.processes.append(process)
        self._guard(process, process.start)

    def begin_another(self) -> None:
        """Starts a process in the lowest unused slot."""
        self.begin(next(slot for slot in range(100) if slot not in self._holders))

    def replace(self, process: Process) -> None:
        """Starts a replacement in the slot of a frozen process, unless there is one."""
        if self._holders[process.slot] is process:
            self.begin(process.slot)

    def turn(self, process: Process) -> None:
        """Runs a turn of a process."""
        self._guard(process, process.turn)

    def remove(self, process: Process) -> None:
        """Removes a process that has ended; another one will start in its slot, unless one has it already."""
        if process in self.processes:
            self.processes.remove(process)
            if self._holders[process.slot] is process and not self._ending:
                self._due_starts.append((self.clock() + self.random.choice((0.0, 0.0, 1.0, 20.0)), process.slot))

    def end_all(self, *, kill: bool) -> None:
        """Ends all processes, and those that start meanwhile; none is restarted."""
        ending, self._ending = self._ending, True
        while self.processes:
            process = self.processes[0]
            if kill:
                self._kill(process)
            else:
                self._guard(process, process.stop)
        self._due_starts.clear()
        self._ending = ending

    def _guard(self, process: Process, action: Callable[[], None]) -> None:
        """Runs an action of this process; an exception that ends a process ends this one."""
        running, self.running, process.is_acting = self.running, process, True
        try:
            try:
                action()
            except (KStreamsError, Halt) as error:
                self._end_by(process, error)
        except Crash:
            self.trace.append(f"{process} dies")
            self._kill(process)
        finally:
            self.running, process.is_acting = running, False

    def _end_by(self, process: Process, error: Exception) -> None:
        """Ends a process of which one worker has failed: the others commit what they have processed."""
        self.trace.append(f"{process} ends: {type(error).__name__}")
        if isinstance(error, Replaced):
            self._check_replacement(process)
        elif isinstance(error, InputLost) and self.restarts.is_expiring:
            self.restarts.has_reported_loss = True
        elif isinstance(error, GraphError) and self.inputs.behind:
            # the remedy in the message of the error
            self.run_unwatched(lambda: self.inputs.grow(self.inputs.behind))
        elif isinstance(error, RecoveryUndecidable):
            self.violate("undecidable", f"slot {process.slot} by {error!r}")
        elif isinstance(error, KStreamsError) and not self.strikes.fired:
            self.violate("ended", f"slot {process.slot} by {error!r}, without a fault")
        for watched in process.workers:
            if self.strikes.fired:
                self.bounds.may_repeat(watched)
        if process in self.processes:
            try:
                process.ask_to_stop()
                process.stop()
            except (KStreamsError, Halt) as other:
                self.trace.append(f"{process} ends: {type(other).__name__}")

    def _kill(self, process: Process) -> None:
        for watched in process.workers:
            self.bounds.may_repeat(watched)
            self.bounds.may_lose(watched, watched.in_flight)
            if watched.worker is not None:  # it may have committed what it has not counted
                tally = watched.worker.committer.tally
                self.bounds.uncounted[watched.stage.id] += tally.open.records_in
                tally.give_up()
        process.kill()
        self.remove(process)

    def _watch_joins(self, stage: Stage) -> None:
        """Watches who takes over a membership: uncommitted records of the old member may be repeated."""
        group = self.cluster._broker.group(stage.group)
        join = group.join

        def joining(instance_id: str, topics: Collection[str], now: float) -> int:
            held = group.static_members.get(instance_id)
            for watched in [each for process in self.processes for each in process.workers]:
                if watched.stage.id == stage.id and held is not None and watched.member == held.member:
                    self.bounds.may_repeat(watched)
                    watched.is_zombie = True
            return join(instance_id, topics, now)

        group.join = joining  # type: ignore[method-assign]

    def _check_replacement(self, process: Process) -> None:
        """Checks that another process holds the membership, and that it started later than this one."""
        taken = []
        for watched in process.workers:
            group = watched.stage.group
            holder = self.cluster._broker.group(group).static_members.get(f"{group}.{process.slot}")
            if holder is not None and holder.member != watched.member:
                taken.append(self.starts[group, holder.member])
        contested = process.was_frozen or process.slot in self.strikes.contested
        if not taken:
            self.violate("replaced without a holder", f"slot {process.slot}")
        elif max(taken) < process.number and not contested:
            self.violate("replaced by an older process", f"slot {process.slot}")
        others = [other for other in self.processes if other.slot == process.slot and other is not process]
        if others and self._holders[process.slot] is process:
            self._holders[process.slot] = others[-1]
