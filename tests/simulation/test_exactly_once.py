"""Exactly once in the simulation: with any fault, each step is delivered once, together with its offsets."""

from __future__ import annotations

import pytest

from tests.simulation.plan import EO, Kind
from tests.simulation.suite import ATTEMPTS, MORE_SEEDS, SEEDS, crash_everywhere, run_block


@pytest.mark.parametrize("first", [*SEEDS, *(pytest.param(first, marks=pytest.mark.long) for first in MORE_SEEDS)])
def test_exactly_once_random_faults_delivers_once(first: int) -> None:
    run_block(first, EO)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_exactly_once_fault_at_every_point_delivers_once(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, EO, attempt) > 50
