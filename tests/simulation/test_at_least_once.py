"""At least once in the simulation: no fault loses a record, or lets an offset be committed before its outputs."""

from __future__ import annotations

import pytest

from tests.simulation.plan import ALO, Kind
from tests.simulation.suite import ATTEMPTS, crash_everywhere, guaranteed, run_all, seeds_of


@seeds_of("guarantee")
def test_at_least_once_random_faults_loses_nothing(seeds: range) -> None:
    run_all(guaranteed(seeds, ALO))


@pytest.mark.parametrize("kind", Kind)
def test_at_least_once_fault_at_each_point_by_turns_loses_nothing(kind: Kind) -> None:
    assert crash_everywhere(kind, ALO, by_turns=len(Kind)) > 20


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_at_least_once_fault_at_every_point_loses_nothing(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, ALO, attempt) > 50
