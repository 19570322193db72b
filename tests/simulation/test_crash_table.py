"""The crash table: how often a record is delivered if its worker dies at a point, by guarantee, kind and attempt.

===================================  ============  =============  ============
the worker dies                      at most once  at least once  exactly once
===================================  ============  =============  ============
after it has read the record         1             1              1
after its offset was committed       0
during processing                    0             1              1
before its output is sent            0             1              1
after its output was written         1             2              1
before the commit                                  2              1
after the commit, without an answer                1              1
after everything                     1             1              1
===================================  ============  =============  ============

The output of a sink without a target is its effect outside of Kafka. Exactly once, it happens once per delivery hash:
all copies have the same hash. The rows that a sink stores in a target (`to=`) are there once, at every point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import ALO, AMO, EO, ROWS, Fault, Kind, Plan, Strike
from tests.simulation.suite import ATTEMPTS, SINKS, STORES, run
from tests.simulation.world import World

Place = Callable[[Sequence[str]], int]
"""Chooses a point of an attempt without faults, counted from 1."""


def first(name: str) -> Place:
    return lambda points: points.index(name) + 1


def last(name: str) -> Place:
    return lambda points: len(points) - points[::-1].index(name)


def before_function(name: str) -> Place:
    """The last request of this name before the function is called."""
    return lambda points: last(name)(points[: points.index("function")])


reading = before_function("consume")
"""The consume that returns the records."""

saving = before_function("commit")
"""At most once: the commit of the offsets of the records that are about to be run."""


def after_output(*names: str) -> Place:
    """The first request of one of these names after the last return of the function."""

    def place(points: Sequence[str]) -> int:
        done = last("returned")(points)
        return next(n for n, name in enumerate(points, 1) if n > done and name in names)

    return place


SAVE = ("commit", "commit_transaction")
"""The requests that commit offsets."""

CELLS: dict[str, tuple[Fault, Place, dict[Guarantee, int]]] = {
    "after it has read the record": (Fault.DIES_AFTER, reading, {AMO: 1, ALO: 1, EO: 1}),
    "before the offset is committed": (Fault.DIES, saving, {AMO: 1}),
    "after the offset was committed": (Fault.DIES_AFTER, saving, {AMO: 0}),
    "during processing": (Fault.DIES, first("function"), {AMO: 0, ALO: 1, EO: 1}),
    "before its output is sent": (Fault.DIES, after_output("produce"), {AMO: 0, ALO: 1, EO: 1}),
    "after its output was written": (Fault.DIES_AFTER, last("produce"), {AMO: 1, ALO: 2, EO: 1}),
    "output written without an answer": (Fault.UNANSWERED, last("produce"), {AMO: 1, ALO: 1, EO: 1}),
    "output lost without an answer": (Fault.LOST, last("produce"), {ALO: 1, EO: 1}),
    "before its offset is added to the transaction": (Fault.DIES, after_output("send_offsets"), {EO: 1}),
    "after its offset was added to the transaction": (Fault.DIES_AFTER, after_output("send_offsets"), {EO: 1}),
    "before the commit": (Fault.DIES, after_output(*SAVE), {ALO: 2, EO: 1}),
    "after the commit, without an answer": (Fault.DIES_AFTER, after_output(*SAVE), {ALO: 1, EO: 1}),
    "commit carried out after its death": (Fault.DIES_LATE, after_output(*SAVE), {ALO: 2, EO: 1}),
    "commit lost, worker alive": (Fault.LOST, after_output(*SAVE), {ALO: 1, EO: 1}),
    "commit carried out without an answer, worker alive": (Fault.UNANSWERED, after_output(*SAVE), {ALO: 1, EO: 1}),
    "after everything": (Fault.DIES, len, {AMO: 1, ALO: 1, EO: 1}),
}

STORED: dict[str, tuple[Fault, Place]] = {
    "after it has read the record": (Fault.DIES_AFTER, reading),
    "during processing": (Fault.DIES, first("function")),
    "before its rows are stored": (Fault.DIES, after_output("store")),
    "after its rows were stored": (Fault.DIES_AFTER, after_output("store")),
    "rows stored after its death": (Fault.DIES_LATE, after_output("store")),
    "rows lost, worker alive": (Fault.LOST, after_output("store")),
    "rows stored without an answer, worker alive": (Fault.UNANSWERED, after_output("store")),
    "rows stored late, worker alive": (Fault.LATE, after_output("store")),
    "rows stored twice": (Fault.DOUBLED, after_output("store")),
    "worker replaced before its rows are stored": (Fault.REPLACED, after_output("store")),
    "before the commit": (Fault.DIES, after_output(*SAVE)),
    "after the commit, without an answer": (Fault.DIES_AFTER, after_output(*SAVE)),
    "commit lost, worker alive": (Fault.LOST, after_output(*SAVE)),
    "after everything": (Fault.DIES, len),
}
"""Of a sink with a target: each row is stored once, by either evidence."""

EFFECTS: dict[str, tuple[Fault, Place, dict[Guarantee, int]]] = {
    "after it has read the record": (Fault.DIES_AFTER, reading, {AMO: 1, ALO: 1, EO: 1}),
    "before the offset is committed": (Fault.DIES, saving, {AMO: 1}),
    "after the offset was committed": (Fault.DIES_AFTER, saving, {AMO: 0}),
    "before its effect": (Fault.DIES, first("function"), {AMO: 0, ALO: 1, EO: 1}),
    "after its effect": (Fault.DIES, last("returned"), {AMO: 1, ALO: 2, EO: 2}),
    "before the commit": (Fault.DIES, after_output(*SAVE), {ALO: 2, EO: 2}),
    "after the commit, without an answer": (Fault.DIES_AFTER, after_output(*SAVE), {ALO: 1, EO: 1}),
    "after everything": (Fault.DIES, len, {AMO: 1, ALO: 1, EO: 1}),
}
"""The same for a sink: how often its effect happens; exactly once, the copies have one delivery hash."""


def count_copies(world: World) -> dict[tuple[str, bytes], int]:
    """Counts the copies of each expected output or effect."""
    (stage,) = world.stages
    found = Counter((m.topic(), m.value() or b"") for topic in stage.outputs for m in world.cluster.records(topic))
    for digest, times in world.functions.effects.items():
        found["effect", b"+".join(world.functions.steps[digest].values)] += times
    for target in world.targets.values():
        found.update((ROWS, row.values[1]) for row in target.rows)
    names = [[f"{topic}{number}.0".encode() for topic in stage.inputs] for number in (0, 1)]
    is_alts = stage.kind is Kind.ALTS
    steps = [(name,) for of_one in names for name in of_one] if is_alts else [tuple(each) for each in names]
    return {row: found[row] for step in steps for row in stage.results(step)}


@cache
def undisturbed_attempt(
    kind: Kind, guarantee: Guarantee, attempt: int, stores: Evidence | None = None
) -> tuple[tuple[Strike, ...], Sequence[str]]:
    """The faults of the attempts before the nth, each when it reads committed offsets; and the points of the nth."""
    before: tuple[Strike, ...] = ()
    for _ in range(attempt - 1):
        points = run(Plan(kind, guarantee, 0, before, records=1, stores=stores)).strikes.points
        before += (Strike(Fault.DIES, first("committed")(points)),)
    return before, run(Plan(kind, guarantee, 0, before, records=1, stores=stores)).strikes.points


QUICK_ATTEMPTS = [1, *(pytest.param(attempt, marks=pytest.mark.long) for attempt in ATTEMPTS[1:])]
"""A later attempt begins as the first one does, but for the choices of an alts (test_exactly_once.py)."""


def run_cell(plan: Plan, attempt: int, fault: Fault, place: Place) -> set[int]:
    """Makes the fault happen in the nth attempt; returns how many copies of an output there are."""
    before, undisturbed = undisturbed_attempt(plan.kind, plan.guarantee, attempt, plan.stores)
    world = run(replace(plan, strikes=(*before, Strike(fault, place(undisturbed)))))
    assert world.strikes.fired == [Fault.DIES] * (attempt - 1) + [fault]
    return set(count_copies(world).values())


@pytest.mark.parametrize("attempt", QUICK_ATTEMPTS)
@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("kind", Kind)
def test_copies_are_those_of_the_crash_table(kind: Kind, guarantee: Guarantee, attempt: int) -> None:
    cells = EFFECTS if kind is Kind.SINK else CELLS
    expected = {cell: {copies[guarantee]} for cell, (_, _, copies) in cells.items() if guarantee in copies}
    plan = Plan(kind, guarantee, 0, records=1)
    assert {cell: run_cell(plan, attempt, *cells[cell][:2]) for cell in expected} == expected


@pytest.mark.parametrize("attempt", QUICK_ATTEMPTS)
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize(("guarantee", "stores"), STORES)
def test_rows_are_stored_once_in_every_cell_of_the_crash_table(
    guarantee: Guarantee, stores: Evidence, kind: Kind, attempt: int
) -> None:
    plan = Plan(kind, guarantee, 0, records=1, stores=stores)
    copies = {cell: run_cell(plan, attempt, fault, place) for cell, (fault, place) in STORED.items()}
    assert not {cell: found for cell, found in copies.items() if found != {1}}


def test_run_without_faults_delivers_once_in_every_guarantee() -> None:
    for kind, guarantee in product(Kind, Guarantee):
        world = run(Plan(kind, guarantee, 0))
        assert (world.strikes.fired, set(count_copies(world).values())) == ([], {1}), (kind, guarantee)
