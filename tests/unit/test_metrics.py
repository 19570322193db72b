"""metrics.py and running/reports.py: counters, lag, and totals over several workers."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from kstreams_py.kafka.contracts import Output
from kstreams_py.metrics import (
    COMMIT_BOUNDS,
    COUNTS,
    MEASURED_ALL,
    STEP_BOUNDS,
    Counters,
    Histogram,
    StepCounts,
    WorkerState,
    estimate,
    lag,
    lags,
)
from kstreams_py.records import TopicPartition
from kstreams_py.running.reports import Report, totals

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def output(topic: str) -> Output:
    return (topic, b"", None, -1, None, None, 0, None)


def test_counters_count_outputs_dead_letters_and_dropped_steps_apart() -> None:
    counters = Counters()
    counters.settled(StepCounts(7, 2, 2, 1, 30))
    counters.settled(StepCounts(records_in=1))
    counters.undone(StepCounts(4, 4, 4, 4, 4))
    counters.committed()
    counters.committed()
    counters.aborted()
    counters.retried()
    counters.rebalanced()
    assert counters.as_dict() == {
        "records_in": 8, "records_out": 2, "dead_letters": 2, "dropped": 1, "rolled_back": 4, "commits": 2,
        "aborts": 1, "retries": 1, "bytes_in": 0, "bytes_out": 30, "rebalances": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "left"),
    [
        ((0, 0, 0), (5, 6, 2, 1, 80)),
        ((3, 0, 0), (5, 3, 2, 1, 50)),
        ((3, 1, 0), (5, 3, 1, 1, 40)),
        ((3, 0, 1), (5, 2, 1, 1, 30)),
        ((7, 0, 0), (5, 0, 2, 1, 20)),
        ((9, 9, 9), (5, 0, 0, 1, 0)),
    ],
)
def test_counts_without_lost_outputs_are_the_least_that_the_topics_have(
    lost: tuple[int, int, int], left: tuple[int, ...]
) -> None:
    """The outputs, the dead letters and the records of unknown topics that are lost."""
    assert StepCounts(5, 6, 2, 1, 80).without(*lost) == StepCounts(*left)
    assert StepCounts(5).without(*lost) == StepCounts(5)


def test_names_of_the_counts_are_the_integers_of_the_counters() -> None:
    assert list(COUNTS) == [each.name for each in fields(Counters) if each.type == "int"]


def test_measures_are_the_renewals_and_the_buckets_that_are_not_empty() -> None:
    counters = Counters()
    assert counters.measures() == {}
    counters.ran(4, 0.002)
    counters.ran(2, 40.0)
    counters.ran(0, 1.0)  # an intake of which no step was run
    counters.committed(0.03)
    counters.committed(STEP_BOUNDS[-1])
    for reason in ("fenced", "failure", "fenced"):
        counters.renewed(reason)
    assert counters.measures() == {
        "renewals:fenced": 2, "renewals:failure": 1,
        "step_seconds:2": 4, f"step_seconds:{len(STEP_BOUNDS)}": 2, "step_seconds:sum": pytest.approx(40.002),
        "commit_seconds:2": 1, f"commit_seconds:{len(COMMIT_BOUNDS)}": 1, "commit_seconds:sum": pytest.approx(10.03),
    }  # fmt: skip


def test_histogram_counts_a_value_at_a_bound_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 1], 7.0)


def test_size_of_few_items_is_exact_and_of_many_is_estimated_by_some() -> None:
    assert estimate(sum, [1, 2, 3]) == 6
    assert estimate(sum, range(MEASURED_ALL)) == sum(range(MEASURED_ALL))
    assert estimate(sum, [5] * 1_000) == 5_000
    assert estimate(sum, range(1_001)) == pytest.approx(sum(range(1_001)), rel=0.02)
    assert estimate(sum, [0, 100] * 500) == pytest.approx(50_000, rel=0.1)


def test_lag_is_the_sum_of_the_records_between_positions_and_ends() -> None:
    assert lag({A0: 3, A1: 5}, {A0: 10, A1: 5}) == 7
    assert lag({A0: 3, A1: 5}, {A0: 10, A1: 4}) == 7  # an end that was read before the position passed it
    assert lag({A0: 3}, {A1: 100}) == 0
    assert lag({}, {}) == 0


def test_lags_are_those_of_the_partitions_whose_end_is_known() -> None:
    assert lags({A0: 3, A1: 5}, {A0: 10}) == {A0: 7}
    assert lags({A0: 3, A1: 5}, {A0: 1, A1: 5}) == {A0: 0, A1: 0}


def report(processor: str, slot: int, lag: int | None, **counters: int) -> Report:
    return Report(processor, slot, counters, lag)


def test_report_after_earlier_workers_of_its_slot_adds_their_counts() -> None:
    now = report("p", 3, 9, records_in=5, commits=1)
    assert now.after({}) == now
    assert now.after({"records_in": 10}) == report("p", 3, 9, records_in=15, commits=1)
    timed = replace(now, measures={"renewals:fenced": 1, "step_seconds:2": 3})
    assert timed.after({}, {"step_seconds:2": 4, "step_seconds:sum": 0.5}).measures == {
        "renewals:fenced": 1, "step_seconds:2": 7, "step_seconds:sum": 0.5,
    }  # fmt: skip


def test_head_of_a_report_has_all_that_is_bounded() -> None:
    now = Report(
        "p", 3, {"commits": 1}, 9, 2.0, "f (g.py, line 1)", WorkerState.SPARE, 0.5, {"a": 1.0}, {A0: 9}, "KeyError: 'x'"
    )
    assert now.head() == {
        "processor": "p", "slot": 3, "counters": {"commits": 1}, "lag": 9, "still_seconds": 2.0,
        "place": "f (g.py, line 1)", "state": "spare", "open_seconds": 0.5, "hidden_seconds": 0.0,
        "hidden_partitions": 0, "events": None, "is_task": False, "heartbeat_seconds": None,
    }  # fmt: skip


def test_totals_are_sums_over_slots_and_the_lag_is_known_only_if_all_know_it() -> None:
    assert totals([]) == {}
    reports = [
        report("p", 0, 1, records_in=1),
        report("q", 0, None, records_in=10),
        report("p", 1, 2, records_in=2),
        report("q", 1, 5, records_in=20),
        report("p", 2, 4, records_in=4),
    ]
    assert totals(reports) == {"p": report("p", -1, 7, records_in=7), "q": report("q", -1, None, records_in=30)}
    assert totals(reversed(reports)) == totals(reports)
