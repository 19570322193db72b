"""running/watch.py: which loops stand still, which warnings are logged and when, which workers must be replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from kstreams_py.running.reports import Report
from kstreams_py.running.watch import LOOK_MAX, REPORTS_LATE, WARN_AFTER, Stillness, Stuck, Watch


def report(seconds: float, processor: str = "copy") -> Report:
    return Report(processor, 3, {}, None, seconds, "price (shop.py, line 12)")


IN_PRICE = "it is in price (shop.py, line 12): its function does not return, or the broker does not answer"
LOCKED = "it is stopped, or a function holds Python's lock"
REMEDY = "set stuck_timeout_ms to have such a worker restarted"


TakeWarnings = Callable[[], list[str]]


@pytest.fixture
def take_warnings(caplog: pytest.LogCaptureFixture) -> TakeWarnings:
    """Returns the messages logged since its last call; all of them must be warnings."""
    caplog.set_level(logging.INFO)

    def take() -> list[str]:
        assert {record.levelname for record in caplog.records} <= {"WARNING"}
        found = caplog.messages
        caplog.clear()
        return found

    return take


def test_stillness_counts_from_the_first_look_without_time_that_the_watcher_slept() -> None:
    stillness = Stillness()
    looks = [
        ("a", 10.0),
        ("a", 11.0),
        ("a", 12.5),
        ("b", 13.0),
        ("b", 14.0),
        ("b", 3_614.0),
        ("b", 3_615.0),
        ("a", 3_616),
    ]
    assert [stillness.look(mark, now) for mark, now in looks] == [0, 1, 2.5, 0, 1, 1 + LOOK_MAX, 2 + LOOK_MAX, 0]


def test_loop_that_does_not_turn_is_logged_at_growing_intervals_and_when_it_turns(take_warnings: TakeWarnings) -> None:
    watch, found = Watch(3, None), {}
    for seconds in range(250):
        assert watch.look([report(seconds), report(0.0, "other")]) is None
        assert watch.look([report(seconds)]) is None, "a second look at the same report"
        if messages := take_warnings():
            found[seconds] = messages
    assert WARN_AFTER == 30
    assert found == {
        seconds: [f"slot 3: copy has made no progress for {seconds} s: {IN_PRICE}; {REMEDY}"]
        for seconds in (30, 60, 120, 240)
    }
    for _ in range(3):
        watch.look([report(0.0)])
    assert take_warnings() == ["slot 3: copy turns again, after 249 s"]
    watch.look([report(29.0)])
    watch.look([report(0.0)])
    assert take_warnings() == [], "no warning was logged before"
    watch.look([replace(report(30.0, "parse"), is_task=True), report(0.0)])
    in_source = IN_PRICE.replace("the broker", "its source or target")
    assert take_warnings() == [f"slot 3: parse has made no progress for 30 s: {in_source}; {REMEDY}"]
    watch.look([report(70.0)])
    watch.look([report(80.0)])
    assert take_warnings() == [f"slot 3: copy has made no progress for 70 s: {IN_PRICE}; {REMEDY}"], "it starts again"


def test_process_that_does_not_report_is_logged_and_once_more_when_it_reports_again(
    take_warnings: TakeWarnings,
) -> None:
    watch = Watch(3, None)
    assert [watch.look([], silent) for silent in (29.0, 31.0, 59.0, 0.1)] == [None] * 4
    assert take_warnings() == [
        f"slot 3: its process has not reported for 31 s: {LOCKED}; {REMEDY}",
        "slot 3: its process reports again, after 59 s",
    ]


def test_loop_that_stands_still_for_stuck_timeout_is_to_be_replaced(take_warnings: TakeWarnings) -> None:
    watch = Watch(3, 45_000)
    assert watch.look([report(44.9), report(0.0, "other")]) is None
    assert take_warnings() == [
        f"slot 3: copy has made no progress for 45 s: {IN_PRICE}; a worker is restarted after stuck_timeout_ms (45000)"
    ]
    assert watch.look([report(45.0), report(0.0, "other")]) == Stuck(
        "copy", f"copy has made no progress for 45 s: {IN_PRICE}"
    )
    assert Watch(3, 45_000).look([report(0.0, "other"), report(1.0)]) is None


def test_process_silent_for_stuck_timeout_is_replaced_once_reports_are_not_just_late() -> None:
    watch = Watch(3, 20_000)
    assert watch.look([report(1.0)], 19.9 + REPORTS_LATE) is None
    assert watch.look([report(1.0)], 20.0 + REPORTS_LATE) == Stuck(
        None, f"its process has not reported for 25 s: {LOCKED}"
    )


def test_process_that_has_not_reported_yet_is_logged_and_never_replaced(take_warnings: TakeWarnings) -> None:
    assert Watch(3, 1_000).look([], 31.0, has_reported=False) is None
    starting = "it is stopped, or still importing; once it has ended, it is restarted"
    assert take_warnings() == [f"slot 3: its process has not reported for 31 s: {starting}"]
