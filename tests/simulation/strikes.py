"""Makes faults happen at points: requests that a process is about to make, or calls of its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kstreams_py.errors import Abortable, ClientError, OutcomeUnknown, Retriable
from kstreams_py.settings import Settings
from kstreams_py.testing.request_faults import RequestFault as Broken
from tests.simulation.plan import Fault, Kind, Strike
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TRANSACTION_TIMEOUT: Final = Settings().transaction_timeout_ms / 1000
SESSION_TIMEOUT: Final = Settings().session_timeout_ms / 1000

MAY_COME_LATE: Final = {
    "produce", "add_partition", "add_offsets", "send_offsets", "commit_transaction", "abort_transaction",
    "init_transactions", "commit", "store",
}  # fmt: skip
"""Requests that change the broker's state also when they arrive late."""

COORDINATORS: Final = {"subscribe", "heartbeat", "committed", "commit", "send_offsets", "membership"}
LEADERS: Final = {"produce"}

FUNCTION: Final = {"function", "returned"}
"""Points at which no request is made."""


class Crash(KeyboardInterrupt):
    """Raised where the process dies."""


class Strikes:
    """Makes the faults of the plan happen, each at its point."""

    def __init__(self, world: World, strikes: tuple[Strike, ...]) -> None:
        self.points: list[str] = []
        """The names of the points since the last strike, or since the start."""
        self.fired: list[Fault] = []
        self.left = list(strikes)
        self.contested: set[int] = set()
        """Slots of processes that were frozen while they joined their groups."""
        self._world = world
        self._at_once: dict[Fault, Callable[[Process, Fault], None]] = {
            Fault.STOPPED: lambda process, _: process.ask_to_stop(),
            Fault.JOINED: lambda *_: self._world.begin_another(),
            Fault.SLOW: lambda *_: self._world.pass_time(TRANSACTION_TIMEOUT + 1.0),
            Fault.REPLACED: self._freeze,
            Fault.FROZEN: self._freeze,
            Fault.AWAY: self._begin_outage,
            Fault.STALLED: self._begin_outage,
            Fault.GROWN: self._grow,
        }
        """The faults that need no request."""

    def point(self, name: str, client: object = None) -> Broken | None:
        """Lets the latency pass, and makes the next fault happen if this is its point."""
        world = self._world
        process = world.running
        if process is None or not process.sends_as(client):
            return None
        if world.latency:
            world.clock.advance(world.latency)
        stage = process.stage_of(client) if len(process.workers) > 1 else ""
        world.trace.append(f"{process.name}{stage} {name}")
        self.points.append(name)
        if self.left and len(self.points) == self.left[0].after:
            self.points.clear()
            fault = self.left.pop(0).fault
            world.trace.append(f"** {fault} **")
            self.fired.append(fault)
            return self._strike(process, name, client, fault)
        return None

    def _strike(self, process: Process, name: str, client: object, fault: Fault) -> Broken | None:
        for watched in process.workers:
            watched.troubles += 1
            # a slot is taken within what an answer of the group is good for; a batch that is sent cannot be called back
            if name == "produce" or fault is Fault.REPLACED:
                self._world.bounds.may_come_late(watched)
        if strike := self._at_once.get(fault):
            strike(process, fault)
        elif fault.stops_all:
            self._world.restarts.due.append(fault)
        elif fault is Fault.DIES or (name in FUNCTION and fault in (Fault.DIES_AFTER, Fault.DIES_LATE)):
            raise Crash
        elif name not in FUNCTION:
            return self._broken(process, name, client, fault)
        return None

    def _begin_outage(self, process: Process, fault: Fault) -> None:
        random = self._world.random
        requests = COORDINATORS if fault is Fault.AWAY else LEADERS
        applied = random.choice((0.0, 0.5, 1.0))
        seconds = random.choice((1.0, 3.0, 8.0, 20.0))
        clusters = self._world.clusters
        for cluster in clusters if len(clusters) == 1 else random.choice((clusters, clusters[:1], clusters[1:])):
            cluster.faults.begin_outage(seconds, requests, lambda: random.random() < applied)

    def _grow(self, process: Process, fault: Fault) -> None:
        world = self._world
        joins = any(watched.is_joining for each in world.processes for watched in each.workers)
        if world.is_feeding and not world.has_outage and not joins and not world.inputs.behind:
            alone = world.plan.kind is Kind.JOIN and world.random.choice((False, True))
            topics = world.plan.inputs[:1] if alone else world.plan.inputs
            world.run_unwatched(lambda: world.inputs.grow(topics))

    def _freeze(self, process: Process, fault: Fault) -> None:
        world = self._world
        for watched in process.workers:
            world.bounds.may_repeat(watched)
            watched.is_zombie = True
        if process.is_starting or any(watched.is_joining for watched in process.workers):
            self.contested.add(process.slot)
        if process.is_starting:
            world.bounds.fencings[process.slot] += 1
        running, world.running, process.is_frozen = world.running, None, True
        if fault is Fault.FROZEN:
            process.was_frozen = True
            world.pass_time(world.random.choice((1.0, 1.2, 3.0)) * SESSION_TIMEOUT)
        else:
            world.replace(process)
        for _ in range(world.random.randint(1, 30)):
            world.iterate()
        world.running, process.is_frozen = running, False

    def _broken(self, process: Process, name: str, client: object, fault: Fault) -> Broken | None:
        """Returns the fault of the current request."""
        random, transactional = self._world.random, process.is_transactional(client)
        error: ClientError = random.choice((Retriable, Abortable, OutcomeUnknown))("simulated")
        if not transactional:
            # a client repeats a batch without limit; a group refuses only a request that was not carried out
            refused = name in ("commit", "consume") and fault is Fault.LOST and not isinstance(error, Retriable)
            error = Abortable("simulated") if refused else Retriable("simulated")
        if not isinstance(error, Retriable) or name == "consume":
            for watched in process.workers:
                self._world.bounds.may_repeat(watched)
        late = random.choice((3.0, 0.01, 0.1, 0.2, 0.3, 0.5, 1.0, 9.0)) if name in MAY_COME_LATE else None
        if name == "init_transactions" and fault in (Fault.DIES_LATE, Fault.LATE, Fault.DOUBLED):
            self._world.bounds.fencings[process.slot] += 1
        unanswered = OutcomeUnknown("simulated")
        broken = {
            Fault.DIES_AFTER: Broken(Crash()),
            Fault.DIES_LATE: Broken(Crash(), applied=False, late=late),
            Fault.LOST: Broken(error, applied=False),
            Fault.UNANSWERED: Broken(unanswered if name == "commit_transaction" else error),
            Fault.LATE: Broken(unanswered if transactional else error, applied=False, late=late),
            Fault.DOUBLED: Broken(late=late),
        }
        return broken[fault]
