"""Sinks with a target in the simulation: with any fault, each row is stored once."""

from __future__ import annotations

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import ALO, EO, Kind
from tests.simulation.suite import ATTEMPTS, SINKS, STORES, crash_everywhere, run_all, seeds_of, storing


@pytest.mark.parametrize("kind", SINKS)
def test_fault_at_each_point_by_turns_stores_each_row_once(kind: Kind) -> None:
    """Each kind with two of three ways to store: what stores rows takes them from all kinds alike."""
    turn = SINKS.index(kind) % len(STORES)
    for guarantee, stores in (*STORES, *STORES)[turn : turn + 2]:
        assert crash_everywhere(kind, guarantee, stores=stores, by_turns=len(SINKS)) > 20


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize(("guarantee", "stores"), STORES)
def test_fault_at_every_point_stores_each_row_once(
    guarantee: Guarantee, stores: Evidence, kind: Kind, attempt: int
) -> None:
    assert crash_everywhere(kind, guarantee, attempt, stores=stores) > 50


@pytest.mark.parametrize("guarantee", [EO, ALO])
@seeds_of("hashes")
def test_random_faults_store_each_row_once_by_its_hash(seeds: range, guarantee: Guarantee) -> None:
    run_all(storing(seeds, guarantee, Evidence.HASH))


@seeds_of("offsets")
def test_random_faults_store_each_row_once_by_offsets(seeds: range) -> None:
    run_all(storing(seeds, EO, Evidence.OFFSETS))
