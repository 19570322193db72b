"""Retries in the simulation: functions fail for a while, with any fault; each guarantee holds as without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.tasks.waits import Waits
from kstreams_py.steps.plan import Again
from tests.simulation.plan import AMO, Fault, Kind, Plan, Strike
from tests.simulation.suite import crash_everywhere, failing, run, run_all, seeds_of


@pytest.mark.parametrize("kind", Kind)
def test_fault_at_each_point_by_turns_while_functions_fail_keeps_the_guarantee(kind: Kind) -> None:
    """Each kind under two guarantees: tasks, which hold steps back, know no guarantee."""
    turn = list(Kind).index(kind)
    for guarantee in (*Guarantee, *Guarantee)[turn % 3 : turn % 3 + 2]:
        assert crash_everywhere(kind, guarantee, away=True, by_turns=len(Kind)) > 20


@pytest.mark.long
@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("kind", Kind)
def test_fault_at_every_point_while_functions_fail_keeps_the_guarantee(kind: Kind, guarantee: Guarantee) -> None:
    assert crash_everywhere(kind, guarantee, away=True) > 50


@pytest.mark.parametrize("guarantee", Guarantee)
@seeds_of("retries")
def test_random_faults_while_functions_fail_keep_the_guarantee(
    seeds: range, guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    begin = Waits.begin

    def count(self: Waits, again: Again) -> None:
        begun.append(again.attempts)
        begin(self, again)

    monkeypatch.setattr(Waits, "begin", count)
    run_all(failing(seeds, guarantee))
    assert {1, 2, 3} <= set(begun)  # the last attempt of four is not a wait
    assert len(begun) > 5 * len(seeds)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.LATE, Kind.MAP),
        (Fault.LATE, Kind.JOIN),
        (Fault.DOUBLED, Kind.BATCH),
        # a commit that may be late knows no kind
        pytest.param(Fault.LATE, Kind.BATCH, marks=pytest.mark.long),
        pytest.param(Fault.DOUBLED, Kind.MAP, marks=pytest.mark.long),
        pytest.param(Fault.DOUBLED, Kind.JOIN, marks=pytest.mark.long),
    ],
)
def test_at_most_once_drain_after_a_commit_that_may_be_late_loses_no_waiting_step(fault: Fault, kind: Kind) -> None:
    plan = Plan(kind, AMO, 1, (), 2, away=True)
    commits = [after for after, point in enumerate(run(plan).strikes.points, 1) if point == "commit"]
    for after in commits:
        for later in (1, 2, 3):
            run(replace(plan, strikes=(Strike(fault, after), Strike(Fault.STOPPED, later))))
    assert len(commits) > 5
