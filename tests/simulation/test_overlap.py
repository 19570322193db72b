"""Calls that overlap in the simulation: with any fault, each guarantee holds as for calls one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kstreams_py.graph.declarations import Order
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.overlapping_runner import OverlappingRunner
from kstreams_py.processing.plan import Plan as Outcome
from tests.simulation.plan import Kind, Plan, orders
from tests.simulation.suite import crash_everywhere, run

CELLS = [(kind, guarantee, order) for kind in Kind for guarantee in Guarantee for order in orders(kind, guarantee)]


@pytest.mark.parametrize(("kind", "guarantee", "order"), CELLS)
def test_fault_at_every_point_while_calls_overlap_keeps_the_guarantee(
    kind: Kind, guarantee: Guarantee, order: Order
) -> None:
    assert crash_everywhere(kind, guarantee, 1, order=order) > 50


@pytest.mark.parametrize("order", Order)
def test_random_faults_while_calls_overlap_keep_the_guarantees(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0
    settle = OverlappingRunner._settle

    def count(self: OverlappingRunner, steps: list[object], plan: Outcome) -> list[object]:
        nonlocal ahead
        left = settle(self, steps, plan)
        ahead += sum(opened.has_ended for opened in self._steps.values())
        return left

    monkeypatch.setattr(OverlappingRunner, "_settle", count)
    for seed in range(1, 401):
        plan = Plan.random(seed)
        if order in orders(plan.kind, plan.guarantee):
            run(replace(plan, order=order, away=bool(seed % 3)))
    assert ahead > (0 if order is Order.PARTITION else 200)
