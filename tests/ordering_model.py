"""A small model of event ordering: the product's steps on a plain store, in each order in which they can happen.

`explore` visits every state that can be reached, with crashes and restarts, and checks the invariants of the
algorithm's description in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kstreams_py.ordering.events import Event, OrderedEvent, Work
from kstreams_py.ordering.steps import (
    Answer,
    Begin,
    Complete,
    Drop,
    Find,
    Lane,
    Own,
    Pop,
    Resume,
    Return,
    Step,
    Take,
    begin,
)


class Violation(AssertionError):
    """A state that the algorithm must not reach."""


@dataclass(frozen=True, slots=True)
class Slots:
    """What the store keeps of a lane."""

    object: str | None = None
    events: tuple[Event, ...] = ()
    first_id: int | None = None


@dataclass(frozen=True, slots=True)
class Object:
    """What the store keeps of an object; in `order` all events as they were queued, in `applied` what was consumed."""

    queued: tuple[Event, ...] = ()
    owner: str | None = None
    last_id: int | None = None
    order: tuple[Event, ...] = ()
    applied: tuple[tuple[int, Event], ...] = ()


@dataclass(frozen=True)
class State:
    """Of store, lanes, consumer and the world around them.

    - `to_queue`: what the front end will queue, in this order.
    - `crashes`, `stops`: how many may yet come: of a process, and of a worker that gives its object back.
    - `late`: events that were under way when their process ended: each may arrive at any time after those before it.
    """

    objects: Mapping[str, Object]
    slots: Mapping[str, Slots]
    lanes: Mapping[str, Lane]
    to_queue: tuple[tuple[str, Event], ...]
    crashes: int
    stops: int
    tokens: tuple[str, ...] = ()
    newest_id: int = 0
    late: frozenset[tuple[str, tuple[OrderedEvent, ...]]] = frozenset()

    def key(self) -> tuple[Any, ...]:
        """Equal for states that are equal but for the names of the lanes."""
        lanes = sorted(
            (lane.step is None, type(lane.step).__name__, lane.restarts, lane.object, each.object or "",
             each.first_id or 0, each.events != (), [o.owner == name for o in self.objects.values()])
            for (name, lane), each in zip(self.lanes.items(), self.slots.values(), strict=True)
        )  # fmt: skip
        known = [(each.queued, each.last_id, each.applied) for each in self.objects.values()]
        return (
            repr(lanes),
            *known,
            len(self.to_queue),
            self.crashes,
            self.stops,
            self.tokens,
            self.newest_id,
            self.late,
        )


Run = Callable[[State, Step], tuple[State, Answer]]
Apply = Callable[[State, str, OrderedEvent], State]


def start(lanes: list[Lane], events: str, crashes: int, stops: int = 0) -> State:
    """Lanes that start, and a front end with one event for each letter, which names its object."""
    to_queue = tuple((name, Event(number.to_bytes(16), b"")) for number, name in enumerate(events))
    objects = {name: Object() for name in sorted(set(events))}
    return State(objects, {each.name: Slots() for each in lanes}, {e.name: e for e in lanes}, to_queue, crashes, stops)


def with_object(state: State, name: str, **changed: Any) -> State:
    return replace(state, objects={**state.objects, name: replace(state.objects[name], **changed)})


def with_slots(state: State, lane: str, **changed: Any) -> State:
    return replace(state, slots={**state.slots, lane: replace(state.slots[lane], **changed)})


def with_lane(state: State, lane: Lane) -> State:
    return replace(state, lanes={**state.lanes, lane.name: lane})


def run(state: State, step: Step) -> tuple[State, Answer]:  # noqa: C901 one branch for each step
    """The store after a step, and the answer."""
    slots = state.slots[step.lane]
    match step:
        case Begin():
            after = [state]

            def run_one(each: Step) -> Answer:
                after[0], answer = run(after[0], each)
                return answer

            begun = begin(step, run_one)
            return after[0], begun
        case Find(_):
            return state, slots.object
        case Take(lane):
            if not state.tokens:
                return state, None
            taken = state.tokens[0]
            return with_slots(replace(state, tokens=state.tokens[1:]), lane, object=taken), taken
        case Own(lane, name):
            owner = state.objects[name].owner or lane
            return with_object(state, name, owner=owner), owner == lane
        case Resume(_, name):
            return state, Work(slots.events, slots.first_id or 0, state.objects[name].last_id)
        case Pop(lane, name, limit):
            known = state.objects[name]
            if not (events := known.queued[:limit]):
                return with_object(state, name, owner=None), Work()
            first_id = state.newest_id + 1
            state = replace(state, newest_id=state.newest_id + len(events))
            state = with_object(state, name, queued=known.queued[limit:])
            return with_slots(state, lane, events=events, first_id=first_id), Work(events, first_id, known.last_id)
        case Complete(lane, name, newest_id):
            return with_object(with_slots(state, lane, events=(), first_id=None), name, last_id=newest_id), None
        case Return(lane, name):
            if state.objects[name].owner == lane:
                state = with_object(state, name, owner=None)
            return with_slots(replace(state, tokens=(name, *state.tokens)), lane, object=None), None
        case Drop(lane):
            return with_slots(state, lane, object=None), None


def apply(state: State, name: str, ordered: OrderedEvent) -> State:
    """A consumer after a copy of an event: it applies each once, by id and predecessor."""
    applied = state.objects[name].applied
    last_id = applied[-1][0] if applied else None
    if last_id is not None and ordered.id <= last_id:
        if (ordered.id, ordered.event) not in applied:
            raise Violation(f"{name}: {ordered} is dropped as a copy, and was not applied")
        return state
    if ordered.prev != last_id:
        raise Violation(f"{name}: {ordered} comes after {last_id}")
    return with_object(state, name, applied=(*applied, (ordered.id, ordered.event)))


def moves(state: State, run: Run, apply: Apply) -> Iterator[State]:
    """The states that may come next."""
    if state.to_queue:
        name, event = state.to_queue[0]
        known = state.objects[name]
        queued = with_object(state, name, queued=(*known.queued, event), order=(*known.order, event))
        yield replace(queued, to_queue=state.to_queue[1:], tokens=(*state.tokens, name))
    for name, (first, *others) in state.late:
        left = {(name, tuple(others))} if others else set()
        yield apply(replace(state, late=state.late - {(name, (first, *others))} | left), name, first)
    for lane in state.lanes.values():
        if lane.step is None:
            sent = state
            for each in lane.work:
                sent = apply(sent, lane.object, each)
            yield with_lane(sent, lane.sent())
        else:
            after, answer = run(state, lane.step)
            yield with_lane(after, lane.after(answer))
        if state.stops and lane.stopped() != lane:
            yield with_lane(replace(state, stops=state.stops - 1), lane.stopped())
        if state.crashes:
            late = {(lane.object, tuple(lane.work))} if lane.step is None else set()
            crashed = replace(state, crashes=state.crashes - 1, late=state.late | late)
            yield with_lane(crashed, type(lane).start(lane.name, lane.limit))


def check(state: State) -> None:
    """Raises Violation where an invariant of the description does not hold; its numbers are those of the spec."""
    for name, known in state.objects.items():
        slots = {lane: each for lane, each in state.slots.items() if each.object == name}
        tries = [lane for lane in slots if isinstance(state.lanes[lane].step, Own | Find | Return)]
        taken = [event for each in slots.values() for event in each.events]
        applied = [event for _, event in known.applied]
        broken = {
            f"41: {name} has events, and nobody will take them": bool(known.queued)
            and not (name in state.tokens or known.owner or tries),
            f"42: {known.owner} owns {name}, which is not in its slot": known.owner not in {None, *slots},
            f"43: a lane has taken events of {name}, which it does not own": any(
                each.events for lane, each in slots.items() if lane != known.owner
            ),
            f"44: an event of {name} is taken, and still in the queue": bool(set(taken) & set(known.queued)),
            f"40: the events of {name} are applied in another order than they were queued in": applied
            != list(known.order[: len(applied)]),
            f"40: an event of {name} is lost": set(known.order) != {*applied, *taken, *known.queued},
            f"45: an id of {name} is not above the last one": any(
                each.first_id is not None and each.first_id <= (known.last_id or 0) for each in slots.values()
            ),
            f"45: a lane of {name} has an id without an event, or an event without an id": any(
                (each.first_id is None) != (not each.events) for each in slots.values()
            ),
        }
        for message, is_broken in broken.items():
            if is_broken:
                raise Violation(message)


def check_quiet(state: State) -> None:
    """Raises Violation if something is left once every lane is idle and no token waits."""
    for name, known in state.objects.items():
        if [event for _, event in known.applied] != list(known.order) or known.owner is not None:
            raise Violation(f"46: {name} is left: {known}")
    if any(each != Slots() for each in state.slots.values()):
        raise Violation(f"46: a slot is not empty: {state.slots}")


def explore(first: State, run: Run = run, apply: Apply = apply) -> tuple[int, int]:
    """Visits all states; returns how many there are, and how many in which nothing is left to do."""
    seen, quiet = {first.key()}, 0
    waiting = [first]
    while waiting:
        state = waiting.pop()
        check(state)
        if not state.to_queue and not state.tokens and all(lane.is_idle for lane in state.lanes.values()):
            check_quiet(state)
            quiet += 1
        for each in moves(state, run, apply):
            if (key := each.key()) not in seen:
                seen.add(key)
                waiting.append(each)
    return len(seen), quiet
