"""metrics.py and running/reports.py: counters, lag, and totals over several workers."""

from __future__ import annotations

from kstreams_py.kafka.contracts import Output
from kstreams_py.metrics import Counters, lag
from kstreams_py.records import TopicPartition
from kstreams_py.running.reports import Report, totals

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def output(topic: str) -> Output:
    return (topic, b"", None, -1, None, None, 0, None)


def test_counters_count_outputs_and_dead_letters_apart() -> None:
    counters = Counters()
    counters.stepped(read=7, written=2, failed=2)
    counters.stepped(read=1, written=0, failed=0)
    counters.committed()
    counters.committed()
    counters.aborted()
    counters.retried()
    assert counters.as_dict() == {
        "records_in": 8, "records_out": 2, "dead_letters": 2, "commits": 2, "aborts": 1, "retries": 1,
    }  # fmt: skip


def test_lag_is_the_sum_of_the_records_between_positions_and_ends() -> None:
    assert lag({A0: 3, A1: 5}, {A0: 10, A1: 5}) == 7
    assert lag({A0: 3, A1: 5}, {A0: 10, A1: 4}) == 7  # an end that was read before the position passed it
    assert lag({A0: 3}, {A1: 100}) == 0
    assert lag({}, {}) == 0


def report(processor: str, slot: int, lag: int | None, **counters: int) -> Report:
    return Report(processor, slot, counters, lag)


def test_report_after_earlier_workers_of_its_slot_adds_their_counts() -> None:
    now = report("p", 3, 9, records_in=5, commits=1)
    assert now.after({}) == now
    assert now.after({"records_in": 10}) == report("p", 3, 9, records_in=15, commits=1)
    counters = {"records_in": 5, "commits": 1}
    assert now.as_dict() == {
        "processor": "p", "slot": 3, "counters": counters, "lag": 9, "still_seconds": 0.0, "place": ""
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
    assert totals(reports) == {
        "p": report("p", -1, 7, records_in=7),
        "q": report("q", -1, None, records_in=30),
    }
    assert totals(reversed(reports)) == totals(reports)
