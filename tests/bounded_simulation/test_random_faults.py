"""The simulation with bounds on losses and copies, several processors, growth and changed deployments: random runs."""

from __future__ import annotations

import pytest

from tests.bounded_simulation.plan import Plan
from tests.bounded_simulation.world import World

BLOCK = 100


@pytest.mark.parametrize("first", range(1, 801, BLOCK))
def test_random_faults_lose_and_repeat_no_more_than_was_in_flight(first: int) -> None:
    for seed in range(first, first + BLOCK):
        world = World(Plan.random(seed)).run()
        assert not world.violations, world.report()
