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
    world,
)
from tests.simulation.mutation import Mutation, find
from tests.simulation.plan import Plan
from tests.simulation.recorded_plans import PLANS
from tests.simulation.suite import run
from tests.simulation.world import World

MUTATIONS = (
    mutations_of_engine.MUTATIONS
    | mutations_of_findings.MUTATIONS
    | mutations_of_retries.MUTATIONS
    | mutations_of_overlap.MUTATIONS
    | mutations_of_sinks.MUTATIONS
    | mutations_of_recovery.MUTATIONS
)


@pytest.fixture
def fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of recorded runs, which take 130 at most without a mutation: a mutation that hinders them is seen earlier."""
    monkeypatch.setattr(world, "TURNS_MAX", 500)


def check_seen(mutation: Mutation, world: World) -> None:
    names = {violation.partition(":")[0] for violation in world.violations}
    assert names & set(mutation.seen_as), world.report()
    assert "broken" not in names, world.report()


@pytest.mark.usefixtures("fewer_turns")
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_seen_by_an_invariant_in_its_recorded_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name].apply(monkeypatch)
    check_seen(MUTATIONS[name], World(Plan.parse(PLANS[name])).run())


@pytest.mark.usefixtures("fewer_turns")
def test_recorded_runs_that_detect_mutations_are_clean_without_them() -> None:
    assert PLANS.keys() == MUTATIONS.keys()
    for plan in set(PLANS.values()):
        run(Plan.parse(plan))


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_seen_by_an_invariant_in_the_recorded_run_first(name: str) -> None:
    seen, _ = find(MUTATIONS[name])
    assert seen is not None, f"no invariant detects {name} in {MUTATIONS[name].seeds} runs"
    check_seen(MUTATIONS[name], seen)
    assert str(seen.plan) == PLANS[name], "python -m tests.simulation.recorded_plans"


def test_invariants_that_mutations_name_exist_and_are_documented() -> None:
    assert {name for mutation in MUTATIONS.values() for name in mutation.seen_as} <= invariants.NAMES
    assert all(name in (invariants.__doc__ or "") for name in invariants.NAMES - {"offsets inconsistent"})
