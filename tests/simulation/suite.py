"""Runs many plans: random ones by their seeds, and every fault at every point. The quick tier has a share of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil
from typing import Any, Final

import pytest

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import ALO, AMO, EO, REFUSED_BY_JOURNALS, Fault, Kind, Plan, Strike, orders
from tests.simulation.strikes import FUNCTION
from tests.simulation.world import World

QUICK_SEEDS: Final = {
    "guarantee": 360,
    "retries": 30,
    "overlap": 70,
    "journal": 150,
    "elsewhere": 40,
    "hashes": 20,
    "offsets": 155,
}
"""The seeds of each family in the quick tier. Counted: the last of the seeds in which a mutation meant for the family
is seen a third time (a journal's: a first time, as the grid sees it too), plus a fifth. 14 mutations need a fault at a
certain request, are not seen in 400 seeds, and are left to the faults at each point."""

SEEDS: Final = {
    "guarantee": 10_000,
    "retries": 200,
    "overlap": 400,
    "journal": 10_000,
    "elsewhere": 10_000,
    "hashes": 500,
    "offsets": 500,
}
"""The seeds of each family in both tiers."""

BLOCK: Final = 500
"""The most seeds of one test in the long tier."""

ATTEMPTS: Final = (1, 2, 3)

SEED_OF: Final = {1: 1, 2: 3, 3: 2}
"""The seed by attempt. In its run outputs are held until the commit (seed 1), not at all (3), or one at most (2)."""

OF_REQUESTS: Final = {Fault.DIES_AFTER, Fault.DIES_LATE, Fault.LOST, Fault.UNANSWERED, Fault.LATE, Fault.DOUBLED}
"""The faults that need a request; the others can happen at a function, too."""

CRASHES: Final = {Fault.DIES, Fault.DIES_AFTER, Fault.DIES_LATE, Fault.UNANSWERED, Fault.REPLACED}
"""The faults of the attempts after the first; the random runs have all faults there."""

SINKS: Final[list[Kind]] = [kind for kind in Kind if kind is not Kind.FORK]
"""The kinds that may store rows."""

STORES: Final = [(EO, Evidence.HASH), (ALO, Evidence.HASH), (EO, Evidence.OFFSETS)]


def seeds_of(family: str) -> pytest.MarkDecorator:
    """Parametrizes a test by `seeds`: those of the quick tier, and blocks of the others in the long tier."""
    quick, count = QUICK_SEEDS[family], SEEDS[family]
    blocks = [range(first, min(first + BLOCK, count + 1)) for first in range(quick + 1, count + 1, BLOCK)]
    long = [pytest.param(block, marks=pytest.mark.long, id=f"{block[0]} to {block[-1]}") for block in blocks]
    return pytest.mark.parametrize("seeds", [pytest.param(range(1, quick + 1), id="first"), *long])


def run(plan: Plan) -> World:
    """Runs a plan, which must have no violations."""
    world = World(plan).run()
    assert not world.violations, world.report()
    return world


def run_all(plans: Iterable[Plan]) -> None:
    for plan in plans:
        run(plan)


# The random plans of each family.


def guaranteed(seeds: Iterable[int], guarantee: Guarantee) -> Iterator[Plan]:
    """Those of these seeds that have this guarantee."""
    return (plan for plan in map(Plan.random, seeds) if plan.guarantee is guarantee)


def failing(seeds: Iterable[int], guarantee: Guarantee) -> Iterator[Plan]:
    """Functions fail for a while."""
    return (Plan.random(seed).under(guarantee, away=True) for seed in seeds)


def overlapping(seeds: Iterable[int], order: Order) -> Iterator[Plan]:
    """Calls overlap in this order, and mostly fail for a while."""
    plans = (replace(Plan.random(seed), away=bool(seed % 3)) for seed in seeds)
    return (replace(plan, order=order) for plan in plans if order in orders(plan.kind, plan.guarantee))


def journaled(seeds: Iterable[int], *, elsewhere: bool = False) -> Iterator[Plan]:
    """Deliveries go through a journal; with `elsewhere`, outputs are on another cluster."""
    faults = [fault for fault in Fault if fault not in REFUSED_BY_JOURNALS]
    for seed in seeds:
        plan = Plan.random(seed, faults)
        if plan.kind.outputs or not elsewhere:
            yield replace(plan, guarantee=EO, order=None, batch=(1, 2, 100)[seed % 3], elsewhere=elsewhere)


def storing(seeds: Iterable[int], guarantee: Guarantee, stores: Evidence) -> Iterator[Plan]:
    """Rows are stored in a target."""
    for plan in map(Plan.random, seeds):
        kind = plan.kind if plan.kind in SINKS else Kind.SINK
        order = plan.order if plan.order in orders(kind, guarantee) else None
        yield replace(plan, kind=kind, guarantee=guarantee, order=order, stores=stores)


# Every fault at every point.


def crash_everywhere(kind: Kind, guarantee: Guarantee, attempt: int = 1, *, by_turns: int = 0, **where: Any) -> int:
    """Makes every fault (after the first attempt, CRASHES) happen at every point of the nth attempt.

    The earlier attempts die before their commit. `where` has further attributes of the plans. With `by_turns`, one
    fault happens at each of some points: in so many kinds together, most faults do at a point of each name. Returns the
    number of runs.
    """
    undone = "commit" if guarantee is AMO else "returned"
    records = 1 if kind in (Kind.JOIN, Kind.ALTS) else 2  # of each input
    before: tuple[Strike, ...] = ()
    for _ in range(attempt):
        plan = Plan(kind, guarantee, SEED_OF[attempt], before, records, **where)
        points = run(plan).strikes.points
        if len(before) < attempt - 1:
            before += (Strike(Fault.DIES, points.index(undone) + 1),)
    runs = 0
    for after, point in enumerate(points, 1):
        faults = [
            fault
            for fault in (Fault if attempt == 1 else sorted(CRASHES))
            if _can_happen(fault, point) and not (plan.batch and fault in REFUSED_BY_JOURNALS)
        ]
        if by_turns:
            turns = min(points.count(point), ceil(len(faults) / by_turns))
            turn = _turn(kind, points[: after - 1].count(point), points.count(point), turns)
            faults = [] if turn is None else [faults[turn % len(faults)]]
        for fault in faults:
            world = run(replace(plan, strikes=(*before, Strike(fault, after))))
            # an alts that is deployed without its third input has other points
            has_third = kind is Kind.ALTS and fault is Fault.DEPLOYED
            assert len(world.strikes.fired) == attempt or has_third, world.report()
            runs += 1
    return runs


def _turn(kind: Kind, number: int, points: int, turns: int) -> int | None:
    """Which fault's turn it is at one of the points of a name; None if it is not among those that have a turn."""
    first, kinds = list(Kind).index(kind), len(Kind)
    chosen = [(turn + first / kinds) * points // turns for turn in range(turns)]
    return first + kinds * chosen.index(number) if number in chosen else None


def _can_happen(fault: Fault, point: str) -> bool:
    """Whether the fault makes a difference at this point: faults of all processes happen between turns only."""
    return point == "consume" if fault.stops_all else fault not in OF_REQUESTS or point not in FUNCTION
