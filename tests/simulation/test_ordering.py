"""Event ordering in each order in which its steps can happen; and what fails without each of its rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kstreams_py.ordering.chain import APPLY, DUPLICATE, EventChains
from kstreams_py.ordering.events import OrderedEvent, Work
from kstreams_py.ordering.steps import Answer, Complete, Lane, Own, Pop, Resume, Step, Take
from tests.ordering_model import State, Violation, apply, explore, run, start, with_object, with_slots


def lanes(count: int, limit: int = 1) -> list[Lane]:
    return [Lane.start(f"worker {number}", limit) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "limit", "events", "crashes", "stops", "expected"),
    [
        pytest.param(3, 1, "aab", 1, 0, (6_987, 15), id="three workers"),
        pytest.param(2, 2, "aaab", 1, 1, (7_856, 42), id="batches"),
        pytest.param(3, 1, "aa", 1, 1, (1_975, 8), id="workers that give objects back"),
        pytest.param(1, 1, "aba", 2, 1, (2_237, 48), id="one worker"),
        pytest.param(3, 1, "aaba", 2, 0, (133_199, 68), id="three workers, four events", marks=pytest.mark.long),
        pytest.param(3, 1, "aaba", 2, 1, (405_144, 136), id="three workers and a stop", marks=pytest.mark.long),
        pytest.param(2, 2, "aaab", 2, 1, (31_951, 132), id="batches, two crashes", marks=pytest.mark.long),
        pytest.param(
            3, 1, "aaa", 1, 2, (12_304, 15), id="workers that give objects back twice", marks=pytest.mark.long
        ),
        pytest.param(1, 1, "abab", 3, 1, (12_445, 192), id="one worker, three crashes", marks=pytest.mark.long),
    ],
)
def test_no_state_breaks_an_invariant(
    count: int, limit: int, events: str, crashes: int, stops: int, expected: tuple[int, int]
) -> None:
    assert explore(start(lanes(count, limit), events, crashes, stops)) == expected


def apply_by_rule(state: State, name: str, ordered: OrderedEvent) -> State:
    """The consumer's own rule after what it has applied: it must come to what the model comes to."""
    chains = EventChains({}, lambda: 0.0)
    applied = state.objects[name].applied
    for prev, (number, event) in zip([None, *(each for each, _ in applied)], applied, strict=False):
        assert chains.offer(name.encode(), number, prev, event.uuid, None, 0) is APPLY
    outcome = chains.offer(name.encode(), ordered.id, ordered.prev, ordered.event.uuid, None, 0)
    after = apply(state, name, ordered)
    if outcome is not (DUPLICATE if after is state else APPLY):
        raise Violation(f"{name}: {ordered} after {applied}: {outcome}")
    return after


@pytest.mark.parametrize(
    ("events", "crashes", "expected"),
    [("aa", 1, (385, 5)), pytest.param("aaa", 3, (8_600, 36), marks=pytest.mark.long)],
)
def test_rule_of_the_consumer_holds_no_event_and_finds_no_fault_in_any_state(
    events: str, crashes: int, expected: tuple[int, int]
) -> None:
    assert explore(start(lanes(2, 2), events, crashes), apply=apply_by_rule) == expected


# What fails without a rule.


def run_without_owners(state: State, step: Step) -> tuple[State, Answer]:
    """Each lane that has a token takes events."""
    if isinstance(step, Own):
        return with_object(state, step.object, owner=step.lane), True
    return run(state, step)


def run_with_new_ids_after_a_crash(state: State, step: Step) -> tuple[State, Answer]:
    """The id is not kept with the event."""
    after, answer = run(state, step)
    if isinstance(step, Resume) and isinstance(answer, Work) and answer.events:
        new = replace(answer, first_id=state.newest_id + 1)
        after = with_slots(replace(after, newest_id=state.newest_id + 1), step.lane, first_id=new.first_id)
        return after, new
    return after, answer


def run_with_ids_of_front_ends(state: State, step: Step) -> tuple[State, Answer]:
    """A front end numbers its event before it queues it: here the one that was numbered first comes second."""
    after, answer = run(state, step)
    if isinstance(step, Pop) and isinstance(answer, Work) and answer.events:
        first_id = 10 - int.from_bytes(answer.events[0].uuid)
        return with_slots(after, step.lane, first_id=first_id), replace(answer, first_id=first_id)
    return after, answer


def run_without_release(state: State, step: Step) -> tuple[State, Answer]:
    """The owner is not removed in the step that finds no events."""
    after, answer = run(state, step)
    if isinstance(step, Pop) and answer == Work():
        return state, answer
    return after, answer


def run_with_a_copy_of_the_token(state: State, step: Step) -> tuple[State, Answer]:
    """The token is in neither place for a moment: a crash there loses it."""
    after, answer = run(state, step)
    if isinstance(step, Take) and answer is not None:
        return with_slots(after, step.lane, object=None), answer
    return after, answer


@dataclass(frozen=True, slots=True)
class CompletesFirst(Lane):
    """Completes events before it sends them."""

    def after(self, answer: Answer) -> Lane:
        if isinstance(self.step, Complete):
            return replace(self, step=None)
        after = Lane.after(self, answer)
        return Lane.sent(after) if after.step is None else after

    def sent(self) -> Lane:
        return replace(self, step=Pop(self.name, self.object, self.limit), work=Work())


@dataclass(frozen=True, slots=True)
class Forgets(Lane):
    """Does not look for what the process before it held."""

    @classmethod
    def start(cls, name: str, limit: int) -> Lane:
        return cls(name, limit, Take(name))


@dataclass(frozen=True, slots=True)
class Resends(Lane):
    """Takes new events before those of the process before it are sent."""

    def after(self, answer: Answer) -> Lane:
        return replace(Lane.after(replace(self, restarts=False), answer), restarts=self.restarts)


def apply_by_a_global_maximum(state: State, name: str, ordered: OrderedEvent) -> State:
    """A copy is recognized by the largest id of all objects."""
    newest = max((known.applied[-1][0] for known in state.objects.values() if known.applied), default=0)
    if ordered.id <= newest and (ordered.id, ordered.event) not in state.objects[name].applied:
        raise Violation(f"{name}: {ordered} is dropped, and was not applied")
    return apply(state, name, ordered)


@pytest.mark.parametrize(
    ("mutated", "message"),
    [
        (lambda: explore(start(lanes(2), "aa", 0), run_without_owners), "43: a lane has taken events of a"),
        (
            lambda: explore(start(lanes(1), "aa", 1), run_with_new_ids_after_a_crash),
            "is dropped as a copy, and was not applied",
        ),
        (lambda: explore(start(lanes(1), "aa", 0), run_with_ids_of_front_ends), "45: an id of a is not above"),
        (
            lambda: explore(start(lanes(1), "aa", 0), run_without_release),
            "42: worker 0 owns a, which is not in its slot",
        ),
        (lambda: explore(start(lanes(1), "a", 0), run_with_a_copy_of_the_token), "4[12]: "),
        (lambda: explore(start([CompletesFirst.start("w", 1)], "a", 1)), "40: an event of a is lost"),
        (lambda: explore(start([Forgets.start("w", 1)], "a", 1)), "41: a has events, and nobody will take them"),
        (
            lambda: explore(start([Resends.start("w", 1)], "aa", 1)),
            "43: a lane has taken events of a, which it does not own",
        ),
        (lambda: explore(start(lanes(2), "ab", 0), apply=apply_by_a_global_maximum), "dropped, and was not applied"),
    ],
    ids=[
        "no ownership",
        "new ids after a crash",
        "ids given by front ends",
        "no release",
        "a token in neither place",
        "completion before sending",
        "no restart",
        "new events before old ones",
        "copies by a global maximum",
    ],
)
def test_rule_that_is_left_out_is_found(mutated: Callable[[], object], message: str) -> None:
    with pytest.raises(Violation, match=message):
        mutated()
