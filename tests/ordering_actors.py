"""Workers of event ordering on a real store, one atomic step at a time in a seeded order, with a fault where a test
puts it.

After each step the store is read, and the invariants of tests/ordering_model.py are checked; a consumer reads along.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol
from uuid import UUID

from kstreams_py.errors import Replaced, StoreUnavailable
from kstreams_py.ordering.events import Change, Event, OrderedEvent
from kstreams_py.ordering.steps import Answer, Lane, Step
from kstreams_py.ordering.storage import Incarnation, ObjectStatus, Storage, WorkerStatus
from kstreams_py.ordering.worker import OrderingWorker
from tests.ordering_model import Object, Slots, State, apply, check, check_quiet

OBJECTS: Final = ("a", "b")
CHANGES: Final = 12
RESTART_SHARE: Final = 0.1
"""How likely what is dead or frozen goes on before each step of others; else once these have nothing to do."""


class Crashed(BaseException):
    """The process of a worker dies here."""


class Store(Protocol):
    """A real store, as the tests reach it."""

    def connect(self) -> Storage:
        """Opens a connection."""

    def read(self) -> tuple[dict[str, Object], dict[str, Slots], tuple[str, ...]]:
        """Its objects by their names, the slots of lanes, and its tokens, the oldest first."""

    def crash(self) -> bool:
        """Ends the server and starts it again; returns whether there is one: an SQLite file lives in its processes."""


@dataclass(frozen=True)
class Fault:
    """What happens at which points of the algorithm, one after the other; the later ones in the lane of the first.

    - `after`: whether a step with its answer is such a point, by the store after it.
    - `sending`: the point is before a sending, while it is under way, or once it is acknowledged.
    - `queueing`: it is before a change is stored, or after it, when the front end has no answer.
    - `how`: the process dies; it is frozen, and another one is started; the answer to its step is lost; its next
      request is, or comes late; the store dies.
    - `alone`: the point is between steps that batches make as one.
    - `left`: what the store has then, in words of the table of the description.
    """

    after: Sequence[Callable[[Step, Answer, State], bool]] = ()
    sending: str = ""
    queueing: str = ""
    how: str = "dies"
    alone: bool = False
    left: Callable[[Slots, Object | None, str], bool] = lambda _slots, _object, _lane: True


class Actor:
    """A worker in a thread, which goes on to its next step only when it is let."""

    def __init__(self, name: str, run: Callable[[Actor], None]) -> None:
        self.name = name
        self.is_idle = False
        self.has_ended = False
        self.must_die = False
        self.loses_request = False
        self.error: BaseException | None = None
        self.worker: OrderingWorker | None = None
        self._run = run
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._live, daemon=True).start()

    def go(self) -> None:
        """Lets it run to its next pause, or to its end."""
        self._go.release()
        self._paused.acquire()

    def pause(self, *, is_idle: bool = False) -> None:
        """Called by the worker: waits until it is let."""
        self.is_idle = is_idle
        self._paused.release()
        self._go.acquire()
        self.is_idle = False
        if self.must_die:
            raise Crashed

    def _live(self) -> None:
        self._go.acquire()
        try:
            self._run(self)
        except BaseException as error:
            self.error = error
        self.has_ended = True
        self._paused.release()


class World:
    """Front ends, workers and a consumer around a store.

    - `lanes`, `batch`: of each worker.
    """

    def __init__(self, store: Store, fault: Fault, *, workers: int, batch: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.happened = 0
        self._store = store
        self._fault = fault
        self._skip = 0 if workers == 1 else self.chance.randrange(2)
        self._lane: str | None = None
        self._lanes_each = 2 if workers == 1 else 1
        self.batch = batch
        self._front_end = store.connect()
        self._changes = [make_change(number, self.chance) for number in range(CHANGES)]
        self._order: dict[str, tuple[Event, ...]] = dict.fromkeys(OBJECTS, ())
        self._consumer = State({name: Object() for name in OBJECTS}, {}, {}, (), 0, 0)
        self._late: list[tuple[str, OrderedEvent]] = []
        self._lost_requests: list[tuple[Incarnation, Step]] = []
        self._late_requests: list[tuple[Incarnation, Step]] = []
        self._lanes: dict[str, Lane] = {}
        self._tokens: tuple[str, ...] = ()
        self._given: dict[int, Event] = {}
        self._dead: list[str] = []
        self._frozen: list[Actor] = []
        self._replaced: list[Actor] = []
        self._actors = [self._start(f"w{number}") for number in range(workers)]

    # The schedule.

    def run(self) -> None:
        """Runs until all events are sent and the workers have ended. Raises Violation, AssertionError."""
        while choices := self._choose():
            self.chance.choice(choices)()
        assert (self.happened, self._replaced) == (self.points, []), f"{self.happened} of {self.points} faults came"
        for actor in self._actors:
            assert actor.worker is not None
            actor.worker.stop()
            while not actor.has_ended:
                actor.go()
            assert actor.error is None, repr(actor.error)
        state = self.state()
        check_quiet(state)
        assert {name: known.queued for name, known in state.objects.items()} == dict.fromkeys(OBJECTS, ())
        assert state.tokens == ()

    @property
    def points(self) -> int:
        """How many faults must come."""
        return max(1, len(self._fault.after))

    def _choose(self) -> list[Callable[[], None]]:
        tokens = bool(self._tokens)
        choices: list[Callable[[], None]] = [
            partial(self._go, actor) for actor in self._actors if not actor.is_idle or tokens
        ]
        choices += [self._queue] * bool(self._changes) + [self._arrive] * bool(self._late)
        choices += [self._ask_late] * bool(self._late_requests)
        again = [self._restart] * bool(self._dead) + [self._thaw] * bool(self._frozen)
        return again if again and (not choices or self.chance.random() < RESTART_SHARE) else choices

    def _go(self, actor: Actor) -> None:
        actor.go()
        self.check()
        if not actor.has_ended:
            return
        self._actors.remove(actor)
        if isinstance(actor.error, Crashed):
            self._dead.append(actor.name)
        elif isinstance(actor.error, Replaced):
            self._replaced.remove(actor)
        else:
            raise actor.error or AssertionError(f"{actor.name} ended by itself")

    def _start(self, name: str) -> Actor:
        for number in range(self._lanes_each):
            self._lanes[f"{name}#{number}"] = Lane.start(f"{name}#{number}", self.batch)
        return Actor(name, self._work)

    def _work(self, actor: Actor) -> None:
        storage = self._store.connect()
        try:
            watched, sender = Watched(self, actor, storage), WatchedSender(self, actor)
            actor.worker = OrderingWorker(
                watched, sender, actor.name, lanes=self._lanes_each, batch=self.batch, sleep=lambda _: actor.pause()
            )
            actor.worker.run()
        finally:
            storage.close()

    def _restart(self) -> None:
        self._actors.append(self._start(self._dead.pop(0)))

    def _thaw(self) -> None:
        self._actors.append(self._frozen.pop(0))

    def _queue(self) -> None:
        change = self._changes[0]
        if self._fault.queueing == "before" and self._is_due(None):
            before = self._store.read()
            self.happened += 1  # the front end dies, or its request is lost; it tries again later
            assert self._store.read() == before
            return
        try:
            is_new = self._front_end.enqueue([change]) == [True]
        except StoreUnavailable:  # the store died since the last one
            assert self._fault.how == "store dies"
            return
        if is_new:
            self._order[change.object] += change.events
        self.check()
        if self._fault.queueing == "after" and is_new and self._is_due(None):
            self.happened += 1  # its answer is lost: it tries again later
            return
        assert is_new or self._fault.queueing == "after"
        del self._changes[0]

    def _arrive(self) -> None:
        """What was under way when its process died reaches the consumer."""
        self.deliver(*self._late.pop(0))

    def _ask_late(self) -> None:
        """A request that was under way when its process registered again reaches the store."""
        before = self._store.read()
        with closing(self._store.connect()) as storage:
            incarnation, step = self._late_requests.pop(0)
            try:
                answer = storage.run(incarnation, [step])
            except StoreUnavailable:
                assert self._store.read() == before
            else:
                raise AssertionError(f"a late step was done: {step}, {answer}")

    # What happens.

    def deliver(self, name: str, ordered: OrderedEvent) -> None:
        """An event is in the topic, and the consumer reads it."""
        assert self._given.setdefault(ordered.id, ordered.event) == ordered.event, f"id {ordered.id} was given twice"
        self._consumer = apply(self._consumer, name, ordered)

    def registered(self, incarnation: Incarnation) -> None:
        """A process has asked the store for its name, and will ask what its lanes hold."""
        self._late_requests += [each for each in self._lost_requests if each[0].worker == incarnation.worker]
        self._lost_requests = [each for each in self._lost_requests if each[0].worker != incarnation.worker]
        for number in range(incarnation.lanes):
            self._lanes[incarnation.lane(number)] = Lane.start(incarnation.lane(number), self.batch)

    def asks(self, actor: Actor, incarnation: Incarnation, step: Step) -> None:
        """A step is about to be asked for. Raises StoreUnavailable if the request is lost."""
        if actor.loses_request:
            actor.loses_request = False
            if self._fault.how == "next request is late":
                self._lost_requests.append((incarnation, step))
            raise StoreUnavailable("the request is lost", may_return=True)

    def stepped(self, actor: Actor, step: Step, answer: Answer) -> None:
        """A step is done: the fault comes if this is its point."""
        lane = self._lanes[step.lane]
        lane = lane.sent() if lane.step is None else lane
        self._lanes[step.lane] = replace(lane, step=step).after(answer)
        state = self.check()
        if self._fault.sending or self._fault.queueing or self._lane not in {None, step.lane}:
            return
        if self.happened < len(self._fault.after) and self._fault.after[self.happened](step, answer, state):
            self._strike(actor, step.lane)

    def sends(self, actor: Actor, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        """Events are sent: the fault comes before, meanwhile, or once they are acknowledged."""
        point = self._fault.sending if self._fault.sending and self._is_due(None) else ""
        if point == "under way":
            self._late += events
        elif point != "before":
            for name, ordered in events:
                self.deliver(name, ordered)
        if point:
            first = events[0][0]
            (lane,) = (n for n, each in self._lanes.items() if each.step is None and each.object == first)
            self._strike(actor, lane, skips=False)

    def _is_due(self, lane: str | None) -> bool:
        """Whether the fault comes now; it leaves some of its points out at first."""
        if self.happened == self.points or self._lane not in {None, lane}:
            return False
        self._skip -= 1
        return self._skip < 0

    def _strike(self, actor: Actor, lane: str, *, skips: bool = True) -> None:
        if skips and not self._is_due(lane):
            return
        self.happened += 1
        self._lane = lane if len(self._fault.after) > 1 else None
        state = self.check()
        slots = state.slots.get(lane, Slots())
        assert self._fault.left(slots, state.objects.get(slots.object or ""), lane), f"{lane}: {slots}, {state.objects}"
        match self._fault.how:
            case "dies":
                raise Crashed
            case "next request is lost" | "next request is late":
                actor.loses_request = True
            case "answer is lost":
                raise StoreUnavailable("the answer is lost", may_return=True)
            case "store dies" if not self._store.crash():
                for each in self._actors:
                    each.must_die = True
            case "is frozen":
                self._actors.remove(actor)
                self._frozen.append(actor)
                self._replaced.append(actor)
                self._actors.append(self._start(actor.name))

    # What holds.

    def state(self) -> State:
        """The store now, with what the consumer has applied."""
        objects, slots, tokens = self._store.read()
        known = {
            name: replace(
                objects.get(name, Object()), order=self._order[name], applied=self._consumer.objects[name].applied
            )
            for name in OBJECTS
        }
        all_slots = {lane: slots.get(lane, Slots()) for lane in self._lanes}
        return State(known, all_slots, self._lanes, (), 0, 0, tokens)

    def check(self) -> State:
        """Raises Violation where an invariant does not hold."""
        state = self.state()
        self._tokens = state.tokens
        check(state)
        assert all(len(each.events) <= self.batch for each in state.slots.values())
        return state


def make_change(number: int, chance: random.Random) -> Change:
    """A change of an object; the values of all events are equal, so that only their uuids tell them apart."""
    events = [
        Event(UUID(int=10 * number + part + 1).bytes, b"same", is_main=not part)
        for part in range(chance.choice([1, 2]))
    ]
    return Change(chance.choice(OBJECTS), b"{}", tuple(events))


@dataclass
class Watched:
    """A Storage whose steps are let one by one; the world sees each."""

    world: World
    actor: Actor
    inner: Storage

    def register(self, worker: str, lanes: int, process: str, *, again: bool = False) -> Incarnation:
        self.actor.pause()
        incarnation = self.inner.register(worker, lanes, process, again=again)
        self.world.registered(incarnation)
        return incarnation

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        answers = []
        for step in steps:
            self.actor.pause()
            self.world.asks(self.actor, incarnation, step)
            answers += self.inner.run(incarnation, [step])
            self.world.stepped(self.actor, step, answers[-1])
        return answers

    def await_token(self, seconds: float) -> None:
        self.actor.pause(is_idle=True)

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        self.inner.retire(incarnation, lanes)

    def note_topic(self, topic: str, partitions: int, *, change: bool) -> tuple[str, int]:
        return self.inner.note_topic(topic, partitions, change=change)

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        return self.inner.enqueue(changes)

    def data(self, name: str) -> bytes | None:
        return self.inner.data(name)

    def workers(self) -> list[WorkerStatus]:
        return self.inner.workers()

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        return self.inner.objects(names)

    def close(self) -> None:
        self.inner.close()


@dataclass
class WatchedSender:
    """A Sender to the consumer of the world."""

    world: World
    actor: Actor

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        self.actor.pause()
        self.world.sends(self.actor, events)

    def close(self) -> None: ...
