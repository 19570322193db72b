"""Runs in bulk: random ones by their seeds, and every crash point in turn."""

from __future__ import annotations

from kstreams_py.delivery import Guarantee
from tests.simulation.plan import AMO, Fault, Kind, Plan, Strike
from tests.simulation.strikes import FUNCTION
from tests.simulation.world import World

BLOCK = 500
"""Random runs in one test."""

SEEDS = range(1, 2_001, BLOCK)
"""The first seeds of the tests of scripts/test."""

MORE_SEEDS = range(SEEDS.stop, 10_001, BLOCK)
"""Those of scripts/test-long."""

ATTEMPTS = (1, 2, 3)

SEED_OF = {1: 1, 2: 3, 3: 2}
"""By attempt, a world in which outputs are held until the commit, are never held, are held but for one."""

OF_REQUESTS = {Fault.DIES_AFTER, Fault.DIES_LATE, Fault.LOST, Fault.UNANSWERED, Fault.LATE, Fault.DOUBLED}
"""What needs a request; all else can befall a function as well."""

CRASHES = {Fault.DIES, Fault.DIES_AFTER, Fault.DIES_LATE, Fault.UNANSWERED, Fault.REPLACED}
"""What befalls the attempts after the first; all else does so in the random runs."""


def run(plan: Plan) -> World:
    """A run that must be free of violations."""
    world = World(plan).run()
    assert not world.violations, world.report()
    return world


def run_block(first: int, guarantee: Guarantee) -> None:
    """The random runs of a block that are of this guarantee."""
    for seed in range(first, first + BLOCK):
        plan = Plan.random(seed)
        if plan.guarantee is guarantee:
            run(plan)


def crash_everywhere(kind: Kind, guarantee: Guarantee, attempt: int) -> int:
    """Every fault (CRASHES after the first attempt) at every point of the nth attempt; how many runs.

    The attempts before have died with their work undone.
    """
    undone = "commit" if guarantee is AMO else "returned"
    records = 1 if kind in (Kind.JOIN, Kind.ALTS) else 2  # of each input
    before: tuple[Strike, ...] = ()
    for _ in range(attempt):
        points = run(Plan(kind, guarantee, SEED_OF[attempt], before, records)).strikes.points
        if len(before) < attempt - 1:
            before += (Strike(Fault.DIES, points.index(undone) + 1),)
    runs = 0
    for after, point in enumerate(points, 1):
        for fault in Fault if attempt == 1 else sorted(CRASHES):
            if _befalls(fault, point):
                world = run(Plan(kind, guarantee, SEED_OF[attempt], (*before, Strike(fault, after)), records))
                has_third = kind is Kind.ALTS and fault is Fault.DEPLOYED  # input, and with it other points
                assert len(world.strikes.fired) == attempt or has_third, world.report()
                runs += 1
    return runs


def _befalls(fault: Fault, point: str) -> bool:
    """Whether a fault can be told apart at this point; all processes are stopped between two turns."""
    return point == "consume" if fault.stops_all else fault not in OF_REQUESTS or point not in FUNCTION
