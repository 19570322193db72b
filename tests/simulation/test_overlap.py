"""Calls that overlap in the simulation: with any fault, each guarantee holds as for calls one after the other."""

from __future__ import annotations

import pytest

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.runners.overlapping import OverlappingRunner
from kstreams_py.steps.plan import Plan as Outcome
from tests.simulation.plan import Kind, orders
from tests.simulation.suite import crash_everywhere, overlapping, run, seeds_of

CELLS = [(kind, guarantee, order) for kind in Kind for guarantee in Guarantee for order in orders(kind, guarantee)]


@pytest.mark.parametrize("order", Order)
@seeds_of("overlap")
def test_random_faults_while_calls_overlap_keep_the_guarantees(
    seeds: range, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = runs = 0
    settle = OverlappingRunner._settle

    def count(self: OverlappingRunner, steps: list[object], plan: Outcome) -> list[object]:
        nonlocal ahead
        left = settle(self, steps, plan)
        ahead += sum(opened.has_ended for opened in self._steps.values())
        return left

    monkeypatch.setattr(OverlappingRunner, "_settle", count)
    for plan in overlapping(seeds, order):
        run(plan)
        runs += 1
    assert ahead > (0 if order is Order.PARTITION else runs // 2)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.BATCH])
def test_fault_at_each_point_by_turns_while_calls_overlap_keeps_the_guarantee(kind: Kind) -> None:
    """Each kind with every second pair of guarantee and order: runners know kinds and orders, committers guarantees."""
    pairs = [(guarantee, order) for of, guarantee, order in CELLS if of is kind]
    for guarantee, order in pairs[list(Kind).index(kind) % 2 :: 2]:
        assert crash_everywhere(kind, guarantee, order=order, by_turns=len(Kind)) > 20


@pytest.mark.long
@pytest.mark.parametrize(("kind", "guarantee", "order"), CELLS)
def test_fault_at_every_point_while_calls_overlap_keeps_the_guarantee(
    kind: Kind, guarantee: Guarantee, order: Order
) -> None:
    assert crash_everywhere(kind, guarantee, order=order) > 50
