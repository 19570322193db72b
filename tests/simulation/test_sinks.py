"""Sinks with a target in the simulation: with any fault, each row is stored once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.sink import Evidence
from tests.simulation.plan import ALO, EO, Kind, Plan, orders
from tests.simulation.suite import ATTEMPTS, crash_everywhere, run

KINDS = [kind for kind in Kind if kind is not Kind.FORK]

STORES = [(EO, Evidence.HASH), (ALO, Evidence.HASH), (EO, Evidence.OFFSETS)]


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("guarantee", "stores"), STORES)
def test_fault_at_every_point_stores_each_row_once(
    guarantee: Guarantee, stores: Evidence, kind: Kind, attempt: int
) -> None:
    assert crash_everywhere(kind, guarantee, attempt, stores=stores) > 50


@pytest.mark.parametrize(("guarantee", "stores"), STORES)
def test_random_faults_store_each_row_once(guarantee: Guarantee, stores: Evidence) -> None:
    for seed in range(1, 501):
        drawn = Plan.random(seed)
        kind = drawn.kind if drawn.kind in KINDS else Kind.SINK
        order = drawn.order if drawn.order in orders(kind, guarantee) else None
        run(replace(drawn, kind=kind, guarantee=guarantee, order=order, stores=stores))
