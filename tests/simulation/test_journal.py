"""Deliveries through a journal in the simulation: with any fault, each step is delivered once."""

from __future__ import annotations

import pytest

from tests.simulation.plan import EO, Kind, Plan
from tests.simulation.suite import ATTEMPTS, crash_everywhere, journaled, run, run_all, seeds_of

WRITING = [kind for kind in Kind if kind.outputs]


@seeds_of("journal")
def test_journal_random_faults_delivers_once(seeds: range) -> None:
    run_all(journaled(seeds))


@seeds_of("elsewhere")
def test_journal_random_faults_between_two_clusters_deliver_once(seeds: range) -> None:
    run_all(journaled(seeds, elsewhere=True))


def test_journal_of_a_join_whose_inputs_grow_one_after_the_other_is_decided() -> None:
    """A worker that held one input of a task alone committed its offset, and no worker could begin any more."""
    run(Plan.parse("join:exactly_once:1575#1^:frozen@27:grown@5:away@33:lost@23"))


def test_journal_intake_that_another_worker_has_delivered_meanwhile_is_not_run() -> None:
    """A worker that was frozen took the group's offsets, at which another one stood, for those of its own intake."""
    run(Plan.parse("alts:exactly_once:775~#2:doubled@37:lost@16:frozen@8"))


@pytest.mark.parametrize("kind", [Kind.FORK, Kind.JOIN, Kind.ALTS])
def test_journal_fault_at_each_point_by_turns_between_two_clusters_delivers_once(kind: Kind) -> None:
    """Between two clusters, kinds differ by several outputs, several inputs, and choices."""
    assert crash_everywhere(kind, EO, batch=2, elsewhere=True, by_turns=3) > 60


@pytest.mark.parametrize("kind", Kind)
def test_journal_fault_at_each_point_by_turns_delivers_once(kind: Kind) -> None:
    assert crash_everywhere(kind, EO, batch=2, by_turns=len(Kind)) > 40


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITING)
def test_journal_fault_at_every_point_between_two_clusters_delivers_once(kind: Kind) -> None:
    assert crash_everywhere(kind, EO, batch=2, elsewhere=True) > 50


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_journal_fault_at_every_point_delivers_once(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, EO, attempt, batch=1 if attempt == 2 else 2) > 50
