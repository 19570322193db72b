"""Runs many plans: random ones by their seeds, and every fault at every point."""

from __future__ import annotations

from dataclasses import replace

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import AMO, EO, REFUSED_BY_JOURNALS, Fault, Kind, Plan, Strike
from tests.simulation.strikes import FUNCTION
from tests.simulation.world import World

BLOCK = 500
"""The number of random runs in one test."""

SEEDS = range(1, 2_001, BLOCK)
"""The first seed of each test in scripts/test."""

MORE_SEEDS = range(SEEDS.stop, 10_001, BLOCK)
"""The first seed of each test in scripts/test-long."""

ATTEMPTS = (1, 2, 3)

SEED_OF = {1: 1, 2: 3, 3: 2}
"""The seed by attempt. In its run outputs are held until the commit (seed 1), not at all (3), or one at most (2)."""

OF_REQUESTS = {Fault.DIES_AFTER, Fault.DIES_LATE, Fault.LOST, Fault.UNANSWERED, Fault.LATE, Fault.DOUBLED}
"""The faults that need a request; the others can happen at a function, too."""

CRASHES = {Fault.DIES, Fault.DIES_AFTER, Fault.DIES_LATE, Fault.UNANSWERED, Fault.REPLACED}
"""The faults of the attempts after the first; the random runs have all faults there."""


def journaled(seed: int) -> Plan:
    """Draws the plan of a seed for a processor with a journal."""
    drawn = Plan.random(seed, [fault for fault in Fault if fault not in REFUSED_BY_JOURNALS])
    return replace(drawn, guarantee=EO, order=None, batch=(1, 2, 100)[seed % 3])


def run_journaled_block(first: int, count: int, *, elsewhere: bool = False) -> None:
    """Runs random plans with a journal; with `elsewhere`, those whose outputs are on another cluster."""
    for seed in range(first, first + count):
        plan = journaled(seed)
        if not elsewhere or plan.kind.outputs:
            run(replace(plan, elsewhere=elsewhere))


def run(plan: Plan) -> World:
    """Runs a plan, which must have no violations."""
    world = World(plan).run()
    assert not world.violations, world.report()
    return world


def run_block(first: int, guarantee: Guarantee) -> None:
    """Runs the random plans of a block that have this guarantee."""
    for seed in range(first, first + BLOCK):
        plan = Plan.random(seed)
        if plan.guarantee is guarantee:
            run(plan)


def crash_everywhere(
    kind: Kind,
    guarantee: Guarantee,
    attempt: int,
    *,
    away: bool = False,
    order: Order | None = None,
    batch: int = 0,
    elsewhere: bool = False,
    stores: Evidence | None = None,
) -> int:
    """Makes every fault (after the first attempt, CRASHES) happen at every point of the nth attempt.

    The earlier attempts die before their commit. With `away`, functions fail for a while; with `order`, calls overlap;
    with `batch`, deliveries go through a journal, and with `elsewhere` to another cluster; with `stores`, rows are
    stored. Returns the number of runs.
    """
    undone = "commit" if guarantee is AMO else "returned"
    records = 1 if kind in (Kind.JOIN, Kind.ALTS) else 2  # of each input
    before: tuple[Strike, ...] = ()
    for _ in range(attempt):
        plan = Plan(kind, guarantee, SEED_OF[attempt], before, records, away, order, batch, elsewhere, stores)
        points = run(plan).strikes.points
        if len(before) < attempt - 1:
            before += (Strike(Fault.DIES, points.index(undone) + 1),)
    runs = 0
    for after, point in enumerate(points, 1):
        for fault in Fault if attempt == 1 else sorted(CRASHES):
            if _can_happen(fault, point) and not (batch and fault in REFUSED_BY_JOURNALS):
                strikes = (*before, Strike(fault, after))
                world = run(replace(plan, strikes=strikes))
                # an alts that is deployed without its third input has other points
                has_third = kind is Kind.ALTS and fault is Fault.DEPLOYED
                assert len(world.strikes.fired) == attempt or has_third, world.report()
                runs += 1
    return runs


def _can_happen(fault: Fault, point: str) -> bool:
    """Whether the fault makes a difference at this point: faults of all processes happen between turns only."""
    return point == "consume" if fault.stops_all else fault not in OF_REQUESTS or point not in FUNCTION
