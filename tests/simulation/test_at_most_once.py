"""At most once in the simulation: no fault duplicates a record, or lets an output be written before its offset."""

from __future__ import annotations

import pytest

from tests.simulation.plan import AMO, Kind
from tests.simulation.suite import ATTEMPTS, MORE_SEEDS, SEEDS, crash_everywhere, run_block


@pytest.mark.parametrize("first", [*SEEDS, *(pytest.param(first, marks=pytest.mark.long) for first in MORE_SEEDS)])
def test_at_most_once_random_faults_doubles_nothing(first: int) -> None:
    run_block(first, AMO)


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_at_most_once_fault_at_every_point_doubles_nothing(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, AMO, attempt) > 50
