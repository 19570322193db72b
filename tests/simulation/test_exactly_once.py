"""Exactly once, simulated: whatever happens, every step is delivered once, with its positions or not at all."""

from __future__ import annotations

import pytest

from tests.simulation.plan import EO, Kind
from tests.simulation.suite import ATTEMPTS, SEEDS, crash_everywhere, run_all

BLOCK = 1_000


@pytest.mark.parametrize("first", SEEDS[::BLOCK])
def test_exactly_once_random_faults_delivers_once(first: int) -> None:
    run_all(range(first, first + BLOCK), EO)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_exactly_once_fault_at_every_point_delivers_once(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, EO, attempt) > 50
