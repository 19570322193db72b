"""At least once in the simulation: no fault loses a record, or lets an offset be committed before its outputs."""

from __future__ import annotations

import pytest

from tests.simulation.plan import ALO, Kind
from tests.simulation.suite import ATTEMPTS, MORE_SEEDS, SEEDS, crash_everywhere, run_block


@pytest.mark.parametrize("first", [*SEEDS, *(pytest.param(first, marks=pytest.mark.long) for first in MORE_SEEDS)])
def test_at_least_once_random_faults_loses_nothing(first: int) -> None:
    run_block(first, ALO)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_at_least_once_fault_at_every_point_loses_nothing(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, ALO, attempt) > 50
