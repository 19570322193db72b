"""Each thing that the engine does for its guarantees is left out in turn, and the simulation must see it.

An invariant must be violated: an honest one, by its name, and not an exception of the broken code. The same run is
clean without the patch.
"""

from __future__ import annotations

import pytest

from tests.simulation import mutations_of_engine, mutations_of_findings
from tests.simulation.mutation import SEEDS_MAX, find
from tests.simulation.world import World

MUTATIONS = mutations_of_engine.MUTATIONS | mutations_of_findings.MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_seen_by_an_invariant_and_its_run_is_clean_without_it(name: str) -> None:
    seen, _ = find(MUTATIONS[name])
    assert seen is not None, f"{name} was seen by no invariant in {SEEDS_MAX} runs"
    names = {violation.partition(":")[0] for violation in seen.violations}
    assert names & set(MUTATIONS[name].seen_as), seen.report()
    assert "broken" not in names, seen.report()
    assert not World(seen.plan).run().violations
