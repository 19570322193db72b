"""running/supervised.py: how the reports and exits of one slot's workers decide about restarts."""

from __future__ import annotations

import json
import signal

import pytest

from kstreams_py.errors import WorkersFailed
from kstreams_py.running import supervised
from kstreams_py.running.reports import Report
from kstreams_py.running.supervised import BACKOFF, HEALTHY_SECONDS, RESTARTS_MAX, Next, SupervisedSlot


def make_report_line(commits: int, *, processor: str = "p", still: float = 0.0, lag: int | None = None) -> bytes:
    """A report, as a worker writes it."""
    report = Report(processor, 0, {"commits": commits, "records_in": 10 * commits}, lag, still, "f (g.py, line 1)")
    return json.dumps(report.head()).encode() + b"\n"


def begin_slot(stuck_timeout_ms: int | None = None, restarts: int = 0) -> SupervisedSlot:
    slot = SupervisedSlot(0, stuck_timeout_ms, restarts)
    slot.begin(0.0)
    return slot


# Exits.


def test_worker_that_keeps_dying_is_restarted_with_back_off_and_then_given_up() -> None:
    slot, now, waits = SupervisedSlot(0), 100.0, []
    for _ in range(RESTARTS_MAX):
        slot.begin(now)
        assert slot.end(1, now) is Next.RESTART
        waits.append(slot.start_at - now)
        now = slot.start_at
    slot.begin(now)
    with pytest.raises(WorkersFailed) as caught:
        slot.end(1, now)
    assert waits == pytest.approx(BACKOFF)
    assert (str(caught.value), caught.value.exit_status) == (
        f"slot 0 died {RESTARTS_MAX + 1} times in a row, at last by status 1", 1,
    )  # fmt: skip


@pytest.mark.parametrize(("status", "seconds"), [(1, 0.0), (1, 2 * HEALTHY_SECONDS), (-signal.SIGKILL, 0.0)])
def test_first_death_is_the_last_where_none_is_restarted(status: int, seconds: float) -> None:
    slot = begin_slot()
    slot.restarts_max = 0
    with pytest.raises(WorkersFailed) as caught:
        slot.end(status, seconds)
    why = "status 1" if status == 1 else "SIGKILL"
    assert (str(caught.value), caught.value.exit_status) == (f"slot 0 ended by {why}", 1)


def test_deaths_in_a_row_are_counted_from_the_last_healthy_worker() -> None:
    slot, seen = SupervisedSlot(0), []
    for number, seconds in enumerate((0.0, 0.0, HEALTHY_SECONDS, 0.0)):
        slot.begin(60.0 * number)
        slot.end(1, 60.0 * number + seconds)
        seen.append(slot.restarts)
    assert seen == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("commits", "status", "restarts"), [(1, -signal.SIGKILL, 1), (0, -signal.SIGKILL, 8), (1, 1, 8)]
)
def test_worker_that_committed_before_it_was_killed_counts_as_healthy(commits: int, status: int, restarts: int) -> None:
    slot = begin_slot(restarts=7)
    slot.feed(make_report_line(commits))
    assert (slot.end(status, 1.0), slot.restarts) == (Next.RESTART, restarts)


@pytest.mark.parametrize("status", [2, 5])
def test_final_exit_status_is_raised_with_the_error_of_the_worker(status: int) -> None:
    slot = begin_slot()
    slot.feed(b'{"error": "SchemaError: no such file"}\n')
    with pytest.raises(WorkersFailed) as caught:
        slot.end(status, 1.0)
    assert (str(caught.value), caught.value.exit_status) == ("slot 0 ended by SchemaError: no such file", status)


def test_replaced_slot_is_not_restarted_and_keeps_its_counts_without_lag() -> None:
    slot = begin_slot()
    slot.feed(make_report_line(3, lag=100) + b'{"error": "Replaced: by m7"}\n')
    assert (slot.end(4, 1.0), slot.taken) == (Next.LEAVE, "Replaced: by m7")
    assert [(report.counters["commits"], report.lag) for report in slot.reports()] == [(3, 0)]


def test_worker_that_ends_by_itself_stops_all() -> None:
    slot = begin_slot()
    slot.feed(b'{"drained": true}\n')
    assert slot.end(0, 1.0) is Next.STOP


def test_status_0_of_a_worker_that_has_not_said_that_it_has_drained_is_a_death() -> None:
    slot = begin_slot()
    assert (slot.end(0, 1.0), slot.restarts) == (Next.RESTART, 1)
    slot.feed(b'{"drained": true}\n')
    slot.begin(2.0)
    assert slot.end(0, 3.0) is Next.RESTART, "that was the process before"


# Reports.


def test_reports_may_arrive_in_pieces_and_several_at_once() -> None:
    slot, whole = begin_slot(), make_report_line(1)
    pieces = (whole[:10], whole[10:-1], b"\n", make_report_line(2, processor="q") + whole + whole[:5])
    seen = [(slot.feed(piece), sorted(report.processor for report in slot.reports())) for piece in pieces]
    assert seen == [(False, []), (False, []), (True, ["p"]), (True, ["p", "q"])]
    assert slot.reports()[0] == Report("p", 0, {"commits": 1, "records_in": 10}, None, 0.0, "f (g.py, line 1)")


def test_counts_are_summed_over_processes_of_a_slot_and_a_partial_line_is_dropped() -> None:
    slot = begin_slot()
    slot.feed(make_report_line(2) + make_report_line(1, processor="q") + make_report_line(5)[:9])
    slot.end(1, 1.0)
    slot.begin(1.0)
    slot.feed(make_report_line(3))
    assert [(report.processor, report.counters["commits"]) for report in slot.reports()] == [("p", 5), ("q", 1)]


# Workers that stand still.


@pytest.mark.parametrize(
    ("commits", "of_other", "restarts"),
    [(0, 0, 8), (0, 1, 8), (1, 0, 1)],
    ids=["nothing", "another processor", "the processor"],
)
def test_stuck_worker_counts_among_deaths_in_a_row_unless_it_had_committed(
    commits: int, of_other: int, restarts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it ran: a record that never lets its function return is read again by each new worker."""
    monkeypatch.setattr(supervised, "HEALTHY_SECONDS", 0.0)
    slot = begin_slot(stuck_timeout_ms=1_000, restarts=7)
    slot.feed(make_report_line(of_other, processor="q") + make_report_line(commits, still=60.0))
    assert [slot.look(1.0), slot.look(2.0)] == [True, False], "it is killed once"
    assert (slot.end(-signal.SIGKILL, 3.0), slot.restarts) == (Next.RESTART, restarts)
    assert slot.why(-signal.SIGKILL) == (
        "SIGKILL (p has made no progress for 60 s: it is in f (g.py, line 1): its function does not return, or the "
        "broker does not answer)"
    )


class PolledSlot:
    """A slot that is polled every 0.1 s of its own clock."""

    def __init__(self) -> None:
        self.slot = begin_slot(stuck_timeout_ms=10_000)
        self.now = 0.0

    def look(self, times: int) -> list[bool]:
        found = []
        for _ in range(times):
            self.now += 0.1
            found.append(self.slot.look(self.now))
        return found


def test_reports_that_waited_while_the_supervisor_was_stopped_are_ignored() -> None:
    polled = PolledSlot()
    polled.slot.feed(make_report_line(1, still=11.0))
    polled.slot.forget_latest()
    assert polled.look(5) == [False] * 5
    polled.slot.feed(make_report_line(1))
    assert polled.look(5) == [False] * 5
    polled.slot.feed(make_report_line(1, still=11.0))
    assert polled.look(2) == [True, False]


def test_supervisor_that_was_stopped_gives_its_workers_time_to_report() -> None:
    polled = PolledSlot()
    polled.slot.feed(make_report_line(1))
    assert polled.look(5) == [False] * 5
    polled.now += 3_600.0
    assert polled.look(100) == [False] * 100
    assert any(polled.look(40))
    assert "its process has not reported for 15 s" in polled.slot.why(-signal.SIGKILL)


def test_worker_that_has_not_reported_yet_is_not_killed(caplog: pytest.LogCaptureFixture) -> None:
    assert PolledSlot().look(350) == [False] * 350
    assert [message.partition(":")[2] for message in caplog.messages] == [
        " its process has not reported for 30 s: it is stopped, or still importing; once it has ended, it is restarted"
    ]
