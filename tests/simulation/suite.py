"""Runs in bulk: random ones by their seeds, and every crash point in turn."""

from __future__ import annotations

from collections.abc import Iterable

from kstreams_py.delivery import Guarantee
from tests.simulation.plan import AMO, Fault, Kind, Plan, Strike
from tests.simulation.strikes import FUNCTION
from tests.simulation.world import World

SEEDS = range(1, 10_001)
"""Of the random runs."""

ATTEMPTS = (1, 2, 3)

SEED_OF = {1: 2, 2: 3, 3: 4}
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


def run_all(seeds: Iterable[int], guarantee: Guarantee) -> None:
    """The random runs of these seeds that are of this guarantee."""
    for seed in seeds:
        plan = Plan.random(seed)
        if plan.guarantee is guarantee:
            run(plan)


def crash_everywhere(kind: Kind, guarantee: Guarantee, attempt: int) -> int:
    """Every fault (CRASHES after the first attempt) at every point of the nth attempt; how many runs.

    The attempts before have died with their work undone.
    """
    undone = "commit" if guarantee is AMO else "returned"
    before: tuple[Strike, ...] = ()
    for _ in range(attempt):
        reference = run(Plan(kind, guarantee, SEED_OF[attempt], before, records=2))
        if len(before) < attempt - 1:
            before += (Strike(Fault.DIES, reference.strikes.points.index(undone) + 1),)
    runs = 0
    for after, point in enumerate(reference.strikes.points, 1):
        for fault in Fault if attempt == 1 else sorted(CRASHES):
            if fault not in OF_REQUESTS or point not in FUNCTION:
                world = run(Plan(kind, guarantee, SEED_OF[attempt], (*before, Strike(fault, after)), records=2))
                assert len(world.strikes.fired) == attempt, world.report()
                runs += 1
    return runs
