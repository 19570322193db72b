"""Exactly once in the simulation: with any fault, each step is delivered once, together with its offsets."""

from __future__ import annotations

import pytest

from tests.simulation.plan import EO, Kind
from tests.simulation.suite import ATTEMPTS, crash_everywhere, guaranteed, run_all, seeds_of


@seeds_of("guarantee")
def test_exactly_once_random_faults_delivers_once(seeds: range) -> None:
    run_all(guaranteed(seeds, EO))


@pytest.mark.parametrize("kind", Kind)
def test_exactly_once_fault_at_each_point_by_turns_delivers_once(kind: Kind) -> None:
    assert crash_everywhere(kind, EO, by_turns=len(Kind)) > 35


def test_exactly_once_alts_that_dies_in_its_second_attempt_delivers_once() -> None:
    """Of all kinds, an alts alone keeps something of the attempt before: its choices."""
    assert crash_everywhere(Kind.ALTS, EO, 2, by_turns=1) > 40


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_exactly_once_fault_at_every_point_delivers_once(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, EO, attempt) > 50
