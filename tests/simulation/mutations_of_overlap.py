"""Mutations of calls that overlap: of what keeps their outputs and offsets in order, and each step once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kstreams_py.graph.declarations import Order
from kstreams_py.processing.intakes import Intakes
from kstreams_py.processing.runners.overlapping import OverlappingRunner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.steps.calls import Chains
from kstreams_py.steps.plan import Plan
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, Kind

MUTATIONS = Mutations()

ONE_RECORD = [Kind.MAP, Kind.FORK, Kind.GENERATOR]


def _settle_in_any_order(patch: pytest.MonkeyPatch) -> None:
    def settle(self: OverlappingRunner, steps: Sequence[Any], plan: Plan) -> list[Any]:
        ended = [step for step in steps if (opened := self._steps.get(id(step))) and opened.has_ended]
        settled = set[int]()
        for step in ended:
            opened = self._steps[id(step)]
            self._forget(opened)
            settled.add(id(step))
            if not self._settle_step(opened, plan):
                return [step, *(other for other in steps if id(other) not in settled)]
        return [step for step in steps if id(step) not in settled]

    patch.setattr(OverlappingRunner, "_settle", settle)


@MUTATIONS.add("lost", "torn transaction", "order broken", kinds=ONE_RECORD, order=Order.NONE)
def results_are_written_in_the_order_of_their_ends(patch: pytest.MonkeyPatch) -> None:
    _settle_in_any_order(patch)


@MUTATIONS.add("lost", "position too early", "order broken", guarantee=ALO, kinds=ONE_RECORD, order=Order.KEY)
def results_are_written_in_the_order_of_their_ends_at_least_once(patch: pytest.MonkeyPatch) -> None:
    _settle_in_any_order(patch)


@MUTATIONS.add("calls", order=Order.KEY)
def calls_of_a_key_overlap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OverlappingRunner, "_chain", lambda self, inputs: object())


@MUTATIONS.add("calls", "lost", away=True, order=Order.PARTITION)
def chain_goes_on_past_a_call_that_failed(patch: pytest.MonkeyPatch) -> None:
    def end(self: Chains, ticket: int) -> list[int]:
        self.end(ticket)
        return []

    patch.setattr(Chains, "fail", end)


@MUTATIONS.add("calls", away=True, order=Order.KEY)
def steps_behind_a_failed_one_are_opened(patch: pytest.MonkeyPatch) -> None:
    open_steps = OverlappingRunner._open

    def open_all(self: OverlappingRunner, steps: Any) -> None:
        self._failed.clear()
        open_steps(self, steps)

    patch.setattr(OverlappingRunner, "_open", open_all)


@MUTATIONS.add("stuck", order=Order.PARTITION)
def runner_that_finishes_never_begins_again(patch: pytest.MonkeyPatch) -> None:
    abandon = OverlappingRunner.abandon

    def abandon_and_finish(self: OverlappingRunner) -> None:
        is_finishing = self._is_finishing
        abandon(self)
        self._is_finishing = is_finishing

    patch.setattr(OverlappingRunner, "abandon", abandon_and_finish)


@MUTATIONS.add("lost", "stuck", "positions", order=Order.PARTITION)
def steps_that_are_not_done_are_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OverlappingRunner, "_put_back", lambda self, intake, plan, left: None)


@MUTATIONS.add("lost", "torn transaction", guarantee=AMO, order=Order.PARTITION)
def at_most_once_forgets_the_rest_of_an_intake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intakes, "run_rest", lambda self: None)


@MUTATIONS.add("order broken", "torn transaction", away=True, order=Order.NONE)
def rest_comes_after_what_is_ready(patch: pytest.MonkeyPatch) -> None:
    def refill(self: Tasks, rest: Taken, limit: int, *, fills: bool) -> Taken:
        again = self._repeated.popleft() if self._repeated else ()
        new = self._ready.take(max(0, limit - len(rest.steps) - len(again)))
        return Taken([*new, *rest.steps, *again], repeated=bool(again))

    patch.setattr(Tasks, "_refill", refill)


@MUTATIONS.add("lost", "torn transaction", "duplicate", "foreign", order=Order.NONE)
def refused_output_is_blamed_on_the_first_step_of_the_intake(patch: pytest.MonkeyPatch) -> None:
    run = OverlappingRunner.run

    def run_whole(self: OverlappingRunner, intake: Taken) -> Plan:
        plan = run(self, intake)
        plan.intake = intake
        return plan

    patch.setattr(OverlappingRunner, "run", run_whole)
