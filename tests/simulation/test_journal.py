"""Deliveries through a journal in the simulation: with any fault, each step is delivered once."""

from __future__ import annotations

import pytest

from tests.simulation.plan import EO, Kind, Plan
from tests.simulation.suite import ATTEMPTS, crash_everywhere, run, run_journaled_block

BLOCK = 250

SEEDS = range(1, 1_001, BLOCK)
MORE_SEEDS = range(SEEDS.stop, 10_001, BLOCK)


@pytest.mark.parametrize("first", [*SEEDS, *(pytest.param(first, marks=pytest.mark.long) for first in MORE_SEEDS)])
def test_journal_random_faults_delivers_once(first: int) -> None:
    run_journaled_block(first, BLOCK)


@pytest.mark.parametrize("first", [*SEEDS, *(pytest.param(first, marks=pytest.mark.long) for first in MORE_SEEDS)])
def test_journal_random_faults_between_two_clusters_deliver_once(first: int) -> None:
    run_journaled_block(first, BLOCK, elsewhere=True)


def test_journal_of_a_join_whose_inputs_get_partitions_one_after_the_other_is_decided() -> None:
    """A worker that held one input of a task alone committed its offset, and no worker could begin any more."""
    run(Plan.parse("join:exactly_once:1575#1^:frozen@27:grown@5:away@33:lost@23"))


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.outputs])
def test_journal_fault_at_every_point_between_two_clusters_delivers_once(kind: Kind) -> None:
    assert crash_everywhere(kind, EO, 1, batch=2, elsewhere=True) > 50


@pytest.mark.parametrize("attempt", [1, *(pytest.param(each, marks=pytest.mark.long) for each in ATTEMPTS[1:])])
@pytest.mark.parametrize("kind", Kind)
def test_journal_fault_at_every_point_delivers_once(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, EO, attempt, batch=1 if attempt == 2 else 2) > 50
