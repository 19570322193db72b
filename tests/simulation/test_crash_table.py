"""The crash table: how many copies a record has after its worker died at a point, in every guarantee, kind and attempt.

=================================  ============  =============  ============
the worker dies                    at most once  at least once  exactly once
=================================  ============  =============  ============
after it read                      1             1              1
after its position was saved       0
during processing                  0             1              1
before its output has left         0             1              1
after its output was written       1             2              1
before its position is saved                     2              1
after that, unanswered                           1              1
after everything                   1             1              1
=================================  ============  =============  ============

A sink's output is its effect, outside of Kafka: exactly once by its delivery hash, which is the same for every copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import pytest

from kstreams_py.delivery import Guarantee
from tests.simulation.plan import ALO, AMO, EO, Fault, Kind, Plan, Strike
from tests.simulation.suite import ATTEMPTS, run
from tests.simulation.world import World

Place = Callable[[Sequence[str]], int]
"""Which of the points of an undisturbed attempt, counted from 1."""


def first(name: str) -> Place:
    return lambda points: points.index(name) + 1


def last(name: str) -> Place:
    return lambda points: len(points) - points[::-1].index(name)


def before_function(name: str) -> Place:
    """The last request of such a name before the function is called: no other is in between but what the group begins
    with."""
    return lambda points: last(name)(points[: points.index("function")])


reading = before_function("consume")
"""The consume that brings records."""

saving = before_function("commit")
"""At most once: the commit of the positions of what is about to be run."""


def after_output(*names: str) -> Place:
    """The first request of such a name after the function has returned for the last time."""

    def place(points: Sequence[str]) -> int:
        done = last("returned")(points)
        return next(n for n, name in enumerate(points, 1) if n > done and name in names)

    return place


SAVE = ("commit", "commit_transaction")
"""What saves the positions."""

CELLS: dict[str, tuple[Fault, Place, dict[Guarantee, int]]] = {
    "after read": (Fault.DIES_AFTER, reading, {AMO: 1, ALO: 1, EO: 1}),
    "before the position is saved": (Fault.DIES, saving, {AMO: 1}),
    "after the position was saved": (Fault.DIES_AFTER, saving, {AMO: 0}),
    "during processing": (Fault.DIES, first("function"), {AMO: 0, ALO: 1, EO: 1}),
    "before its output has left": (Fault.DIES, after_output("produce"), {AMO: 0, ALO: 1, EO: 1}),
    "after its output was written": (Fault.DIES_AFTER, last("produce"), {AMO: 1, ALO: 2, EO: 1}),
    "output written, its sender told nothing": (Fault.UNANSWERED, last("produce"), {AMO: 1, ALO: 1, EO: 1}),
    "output lost, its sender told nothing": (Fault.LOST, last("produce"), {ALO: 1, EO: 1}),
    "before its position goes with it": (Fault.DIES, after_output("send_offsets"), {EO: 1}),
    "after its position has gone with it": (Fault.DIES_AFTER, after_output("send_offsets"), {EO: 1}),
    "before its position is saved": (Fault.DIES, after_output(*SAVE), {ALO: 2, EO: 1}),
    "after its position was saved, unanswered": (Fault.DIES_AFTER, after_output(*SAVE), {ALO: 1, EO: 1}),
    "saved late, after its death": (Fault.DIES_LATE, after_output(*SAVE), {ALO: 2, EO: 1}),
    "not saved, and it lives": (Fault.LOST, after_output(*SAVE), {ALO: 1, EO: 1}),
    "saved, and it lives without an answer": (Fault.UNANSWERED, after_output(*SAVE), {ALO: 1, EO: 1}),
    "after everything": (Fault.DIES, len, {AMO: 1, ALO: 1, EO: 1}),
}

EFFECTS: dict[str, tuple[Fault, Place, dict[Guarantee, int]]] = {
    "after read": (Fault.DIES_AFTER, reading, {AMO: 1, ALO: 1, EO: 1}),
    "before the position is saved": (Fault.DIES, saving, {AMO: 1}),
    "after the position was saved": (Fault.DIES_AFTER, saving, {AMO: 0}),
    "before its effect": (Fault.DIES, first("function"), {AMO: 0, ALO: 1, EO: 1}),
    "after its effect": (Fault.DIES, last("returned"), {AMO: 1, ALO: 2, EO: 2}),
    "before its position is saved": (Fault.DIES, after_output(*SAVE), {ALO: 2, EO: 2}),
    "after its position was saved, unanswered": (Fault.DIES_AFTER, after_output(*SAVE), {ALO: 1, EO: 1}),
    "after everything": (Fault.DIES, len, {AMO: 1, ALO: 1, EO: 1}),
}
"""The same of a sink: how often its effect happens; once per delivery hash where it is exactly once."""

CASES = [
    (kind, guarantee, cell)
    for kind in Kind
    for cell, (_, _, copies) in (EFFECTS if kind is Kind.SINK else CELLS).items()
    for guarantee in copies
]


def copies(world: World) -> dict[tuple[str, bytes], int]:
    """How often each expected output or effect is there."""
    (stage,) = world.stages
    found = Counter((m.topic(), m.value() or b"") for topic in stage.outputs for m in world.log.records(topic))
    for digest, times in world.functions.effects.items():
        found["effect", b"+".join(world.functions.steps[digest].values)] += times
    names = [[f"{topic}{number}.0".encode() for topic in stage.inputs] for number in (0, 1)]
    alone = stage.kind is Kind.ALTS
    steps = [(name,) for of_one in names for name in of_one] if alone else [tuple(each) for each in names]
    return {row: found[row] for step in steps for row in stage.results(step)}


@cache
def undisturbed_attempt(kind: Kind, guarantee: Guarantee, attempt: int) -> tuple[tuple[Strike, ...], Sequence[str]]:
    """What befalls the attempts before the nth, each as it reads its positions; and the points of the nth."""
    before: tuple[Strike, ...] = ()
    for _ in range(attempt - 1):
        points = run(Plan(kind, guarantee, 0, before, records=1)).strikes.points
        before += (Strike(Fault.DIES, first("committed")(points)),)
    return before, run(Plan(kind, guarantee, 0, before, records=1)).strikes.points


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize(("kind", "guarantee", "cell"), CASES)
def test_copies_are_those_of_the_crash_table(kind: Kind, guarantee: Guarantee, cell: str, attempt: int) -> None:
    fault, place, expected = (EFFECTS if kind is Kind.SINK else CELLS)[cell]
    before, undisturbed = undisturbed_attempt(kind, guarantee, attempt)
    world = run(Plan(kind, guarantee, 0, (*before, Strike(fault, place(undisturbed))), records=1))
    assert world.strikes.fired == [Fault.DIES] * (attempt - 1) + [fault]
    assert set(copies(world).values()) == {expected[guarantee]}, world.report()


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("kind", Kind)
def test_undisturbed_run_delivers_once_in_every_guarantee(kind: Kind, guarantee: Guarantee) -> None:
    world = run(Plan(kind, guarantee, 0))
    assert (world.strikes.fired, set(copies(world).values())) == ([], {1})
