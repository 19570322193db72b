"""The simulation must detect each mutation of the engine (mutations_of_*.py).

The mutation must violate an invariant that it names; an exception of the mutated code does not count. Without the
mutation, the same run has no violations.
"""

from __future__ import annotations

import pytest

from tests.simulation import (
    invariants,
    mutations_of_engine,
    mutations_of_findings,
    mutations_of_overlap,
    mutations_of_recovery,
    mutations_of_retries,
    mutations_of_sinks,
)
from tests.simulation.mutation import SEEDS_MAX, find
from tests.simulation.world import World

MUTATIONS = (
    mutations_of_engine.MUTATIONS
    | mutations_of_findings.MUTATIONS
    | mutations_of_retries.MUTATIONS
    | mutations_of_overlap.MUTATIONS
    | mutations_of_sinks.MUTATIONS
    | mutations_of_recovery.MUTATIONS
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_seen_by_an_invariant_and_its_run_is_clean_without_it(name: str) -> None:
    seen, _ = find(MUTATIONS[name])
    assert seen is not None, f"no invariant detects {name} in {SEEDS_MAX} runs"
    names = {violation.partition(":")[0] for violation in seen.violations}
    assert names & set(MUTATIONS[name].seen_as), seen.report()
    assert "broken" not in names, seen.report()
    assert not World(seen.plan).run().violations


def test_invariants_that_mutations_name_exist_and_are_documented() -> None:
    assert {name for mutation in MUTATIONS.values() for name in mutation.seen_as} <= invariants.NAMES
    assert all(name in (invariants.__doc__ or "") for name in invariants.NAMES - {"offsets inconsistent"})
