"""running/supervisor.py: worker processes that die, drain, hang and report."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kstreams_py.errors import WorkersFailed
from kstreams_py.running import supervised, watch
from kstreams_py.running import supervisor as module
from kstreams_py.running.output import WorkerOutput
from kstreams_py.running.reports import Report
from kstreams_py.running.status import RunStatus
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.testing import ManualClock
from tests.descriptors import OpenedDescriptors

PREAMBLE = """
import atexit, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
here, slot = sys.argv[1], int(sys.argv[2])
nth = len([name for name in os.listdir(here) if name.startswith(f"{slot}.")]) + 1  # the first, second, ... of its slot
open(f"{here}/{slot}.{nth}", "w").close()
def write(text):
    os.write(int(os.environ["KSTREAMS_REPORT_FD"]), text.encode())
atexit.register(write, '\\n{"drained": true}\\n')
def report(commits, records, processor="p", lag="null", still=0):
    write('{"processor": "%s", "slot": %d, "counters": {"commits": %d, "records_in": %d}, "lag": %s, '
          '"still_seconds": %g, "place": "f (g.py, line 1)"}\\n' % (processor, slot, commits, records, lag, still))
def send_error(why):
    write('{"error": "%s"}\\n' % why)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def await_sigterm():
    signal.sigwait({signal.SIGTERM})
"""

STANDBY = """
import os, sys
here = sys.argv[1]
nth = len([name for name in os.listdir(here) if name.startswith("standby.")]) + 1
open(f"{here}/new", "w").write(str(os.getpid()))
os.rename(f"{here}/new", f"{here}/standby.{nth}")
line = sys.stdin.readline()
open(f"{here}/read.{nth}", "w").write(line)
if not line: sys.exit()
sys.argv[2:] = [line.strip()]
"""

Counts = dict[tuple[str, int], tuple[int, int]]
"""Commits and records by processor and slot."""


class Workers:
    """A supervisor of processes that each run a script, and the counts that it showed."""

    def __init__(
        self,
        here: Path,
        script: str,
        slots: Sequence[int] = (0,),
        *,
        drain_seconds: float = 30.0,
        stuck_timeout_ms: int | None = None,
        standby: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `standby`, a process waits for a slot; once it has one, it reports every 10 ms."""
        on_standby = "while not signal.sigtimedwait({signal.SIGTERM}, 0.01): report(1, 1, 'spare')"
        self.here = here
        self.shown: list[Counts] = []
        self.lags: dict[int, int | None] = {}
        self.pids: dict[int, int] = {}
        self.supervisor = Supervisor(
            lambda slot: [sys.executable, "-I", "-S", "-c", PREAMBLE + script, str(here), str(slot)],
            slots,
            drain_seconds=drain_seconds,
            environment={"KSTREAMS_COLOUR": "green"},
            standby=[sys.executable, "-I", "-S", "-c", STANDBY + PREAMBLE + on_standby, str(here)] if standby else None,
            stuck_timeout_ms=stuck_timeout_ms,
            clock=clock,
        )

    def run(self, until: Callable[[Counts], object] = bool) -> Counts:
        """Runs until `until` is true of the counts; returns the last counts shown."""

        def show(reports: Sequence[Report]) -> None:
            self.pids |= self.supervisor.pids
            self.lags = {r.slot: r.lag for r in reports}
            self.shown.append(
                {(r.processor, r.slot): (r.counters["commits"], r.counters["records_in"]) for r in reports}
            )
            if until(self.shown[-1]):
                self.supervisor.stop()

        self.supervisor.run(show)
        return self.shown[-1]

    @property
    def process_counts(self) -> dict[int, int]:
        """How many processes each slot has had."""
        names = [path.name.split(".") for path in self.here.iterdir()]
        slots = [int(slot) for slot, nth in names if slot.isdigit() and nth.isdigit()]
        return {slot: slots.count(slot) for slot in sorted(set(slots))}


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts follow without a back-off."""
    monkeypatch.setattr(supervised, "BACKOFF", (0.0,))


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30.0
    while not path.exists():
        assert time.monotonic() < deadline, path


# Standby.


def test_worker_that_dies_is_replaced_by_the_standby_and_another_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STANDBY_DELAY", 0.0)
    script = """
report(1, 1)
while not os.path.exists(here + "/standby.1"): time.sleep(0.01)
die() if slot == 3 else await_sigterm()
"""
    workers = Workers(tmp_path, script, [2, 3], standby=True)
    workers.run(
        lambda counts: ("spare", 3) in counts and (tmp_path / "standby.2").exists() and (tmp_path / "3.2").exists()
    )
    assert workers.process_counts == {2: 1, 3: 2}, "slot 3 ran one process by its command, and one from standby"
    assert (tmp_path / "read.1").read_text() == "3\n"
    assert not (tmp_path / "read.2").exists(), "the second standby was ended before it read a line"
    assert has_ended(int((tmp_path / "standby.2").read_text()))


def test_standby_that_dies_is_replaced_and_no_worker_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STANDBY_DELAY", 0.0)
    workers = Workers(tmp_path, "while not signal.sigtimedwait({signal.SIGTERM}, 0.01): report(1, 1)", standby=True)
    killed: list[int] = []

    def until(counts: Counts) -> bool:
        if (tmp_path / "standby.1").exists() and not killed:
            killed.append(int((tmp_path / "standby.1").read_text()))
            os.kill(killed[0], signal.SIGKILL)
        return (tmp_path / "standby.2").exists()

    workers.run(until)
    assert (workers.process_counts, has_ended(killed[0])) == ({0: 1}, True)


# Deaths.


def test_worker_that_dies_is_restarted_under_its_slot_and_its_counts_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(tmp_path, "report(2, 10) or die() if nth == 1 else report(1, 5) or await_sigterm()", [3])
    workers.run(lambda counts: counts.get(("p", 3)) == (3, 15))
    assert workers.process_counts == {3: 2}
    assert "slot 3 ended by SIGKILL: restarting it (1 in a row)" in caplog.text


def test_status_shows_the_restart_the_counts_the_process_and_the_drain(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(2, 10) or die() if nth == 1 else report(1, 5) or await_sigterm()", [3])
    noted: list[RunStatus] = []

    def observe(status: RunStatus) -> None:
        noted.append(status)
        (slot,) = status.slots
        if any(report.counters["commits"] == 3 for report in slot.reports):
            workers.supervisor.stop()

    workers.supervisor.run(lambda _: None, observe)
    (last,) = noted[-1].slots
    assert last.pid is not None
    assert (last.number, last.restarts, [end.why for end in last.ends], last.taken) == (3, 1, ["SIGKILL"], "")
    assert [(report.processor, report.counters) for report in last.reports] == [("p", {"commits": 3, "records_in": 15})]
    assert "joining" in {status.slots[0].state_of("p") for status in noted}, "before the first report"
    assert [noted[0].stopping, noted[-1].stopping] == [False, True]
    assert [status.looked_at for status in noted] == sorted(status.looked_at for status in noted)


def test_counts_are_kept_over_a_worker_that_died_before_its_first_report(tmp_path: Path, no_backoff: None) -> None:
    script = """
if nth == 1: report(1, 10); report(1, 7, "q"); die()
if nth == 2: die()
report(1, 5); await_sigterm()
"""
    workers = Workers(tmp_path, script)
    workers.run(lambda counts: workers.process_counts == {0: 3} and ("p", 0) in counts and counts["p", 0][1] in (5, 15))
    assert workers.shown[-1] == {("p", 0): (2, 15), ("q", 0): (1, 7)}


def test_counts_of_a_slot_are_shown_while_it_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "BACKOFF", (0.5,))
    script = """
if slot == 0 and nth == 1: report(1, 10); die()
if slot == 1:
    records = 0
    while not os.path.exists(here + "/0.2"):
        report(0, records := records + 1)
        if signal.sigtimedwait({signal.SIGTERM}, 0.02): report(1, 1); sys.exit()
report(1, 1); await_sigterm()
"""
    workers = Workers(tmp_path, script, [0, 1])
    workers.run(lambda counts: counts.get(("p", 0)) == (2, 11))
    of_slot_0 = [counts["p", 0][1] if ("p", 0) in counts else None for counts in workers.shown]
    known = of_slot_0[of_slot_0.index(10) :]
    assert set(known) == {10, 11}


def test_worker_is_not_restarted_before_its_back_off_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "BACKOFF", (0.3,))
    workers = Workers(tmp_path, "die() if nth == 1 else report(1, 1) or await_sigterm()")
    assert workers.run() == {("p", 0): (1, 1)}
    first, second = ((tmp_path / name).stat().st_mtime for name in ("0.1", "0.2"))
    assert second - first >= 0.3


@pytest.mark.parametrize(
    ("script", "status", "why"),
    [
        ("sys.exit(1)", 1, "status 1"),
        ("sys.exit(3)", 3, "status 3"),
        ("die()", 1, "SIGKILL"),
        ("send_error('a' * nth); sys.exit(3)", 3, "aaa"),
        ("nth < 3 and send_error('a'); die()", 1, "SIGKILL"),
    ],
)
def test_worker_that_was_given_up_ends_all_with_its_status(
    script: str, status: int, why: str, tmp_path: Path, no_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "RESTARTS_MAX", 2)
    workers = Workers(tmp_path, script)
    with pytest.raises(WorkersFailed, match=rf"slot 0 died 3 times in a row, at last by {why}$") as caught:
        workers.run()
    assert (caught.value.exit_status, workers.process_counts) == (status, {0: 3})


def test_worker_that_dies_ends_all_where_restarts_are_forbidden(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "die() if slot == 0 else (report(1, 1), await_sigterm())", [0, 1])
    workers.supervisor.forbid_restarts()
    with pytest.raises(WorkersFailed, match=r"\Aslot 0 ended by SIGKILL\Z"):
        workers.run(lambda _: False)
    assert workers.process_counts[0] == 1


def test_report_that_is_unread_when_its_worker_dies_is_counted(
    tmp_path: Path, no_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker had committed, so that its death does not count among those in a row."""
    monkeypatch.setattr(supervised, "RESTARTS_MAX", 1)
    workers = Workers(tmp_path, "report(1, 1)\ndie() if nth < 5 else await_sigterm()")
    assert workers.run(lambda counts: counts == {("p", 0): (5, 5)}) == {("p", 0): (5, 5)}
    assert workers.process_counts == {0: 5}


@pytest.mark.parametrize("status", [2, 5])
def test_worker_with_a_final_status_is_not_restarted_and_the_others_drain(status: int, tmp_path: Path) -> None:
    script = f"report(0, 0); await_sigterm()\nif slot == 0: sys.exit({status})\nopen(here + '/1.drained', 'w').close()"
    workers = Workers(tmp_path, script, [0, 1])

    def until(counts: Counts) -> None:
        if len(counts) == 2 and 0 in (pids := workers.supervisor.pids):
            os.kill(pids[0], signal.SIGTERM)

    with pytest.raises(WorkersFailed, match=rf"^slot 0 ended by status {status}$") as caught:
        workers.run(until)
    assert (caught.value.exit_status, workers.process_counts) == (status, {0: 1, 1: 1})
    assert (tmp_path / "1.drained").exists()


# Slots that are replaced by another machine.

REPLACED = "send_error('Replaced: by m7, from 10.0.0.7'); sys.exit(4)"


def test_replaced_slot_ends_with_its_error_and_the_others_keep_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, no_backoff: None
) -> None:
    script = f"""
report(1, 10 + slot, lag=100 + slot)
if slot == 1: {REPLACED}
if slot == 2 and nth == 1: die()
while not signal.sigtimedwait({{signal.SIGTERM}}, 0.01): report(1, 10 + slot)
report(2, 20 + slot, lag=5); open(f"{{here}}/{{slot}}.drained", "w").close()
"""
    workers = Workers(tmp_path, script, [0, 1, 2])

    def until(counts: Counts) -> bool:
        return (
            len(counts) == 3
            and "slot 1 ended by" in caplog.text
            and workers.process_counts[2] == 2
            and counts["p", 2][0] == 2
        )

    assert workers.run(until) == {("p", 0): (2, 20), ("p", 1): (1, 11), ("p", 2): (3, 34)}
    assert workers.process_counts == {0: 1, 1: 1, 2: 2}, "slot 1 is not restarted, slot 2 is"
    assert workers.lags == {0: 5, 1: 0, 2: 5}, "slot 1 has no lag here: another supervisor runs it"
    assert [(tmp_path / f"{slot}.drained").exists() for slot in (0, 1, 2)] == [True, False, True]
    assert (
        caplog.messages.count(
            "slot 1 ended by Replaced: by m7, from 10.0.0.7: it is not restarted here; slots 0, 2 go on"
        )
        == 1
    )


def test_supervisor_ends_with_status_4_once_its_last_slot_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"""
report(0, 0)
while slot == 1 and not os.path.exists(here + "/go.on"): report(0, 0); signal.sigtimedwait({{signal.SIGTERM}}, 0.01)
if slot == 0: send_error('Replaced: by m7'); sys.exit(4)
{REPLACED}
"""
    workers = Workers(tmp_path, script, [0, 1])

    def until(counts: Counts) -> None:
        if "slot 0 ended by Replaced: by m7: it is not restarted here; slot 1 goes on" in caplog.messages:
            (tmp_path / "go.on").touch()

    message = (
        r"^slot 0 ended by Replaced: by m7; slot 1 ended by Replaced: by m7, from 10\.0\.0\.7; to run both, start one "
        r"of them with --slots 2-3$"
    )
    with pytest.raises(WorkersFailed, match=message) as caught:
        workers.run(until)
    assert (caught.value.exit_status, workers.process_counts) == (4, {0: 1, 1: 1})


def test_slot_that_is_replaced_while_all_drain_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(tmp_path, f"report(0, 0); await_sigterm()\nif slot == 1: {REPLACED}", [0, 1])
    workers.run(lambda counts: len(counts) == 2)
    assert caplog.messages == ["slot 1 ended by Replaced: by m7, from 10.0.0.7"]


# Workers that stand still.

STILL = "it is in f (g.py, line 1): its function does not return, or the broker does not answer"


def test_worker_that_stands_still_is_only_logged_without_a_stuck_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = """
while not os.path.exists(here + "/go.on"): report(0, 0, still=31); signal.sigtimedwait({signal.SIGTERM}, 0.01)
for records in range(1, 1000): report(0, records); signal.sigtimedwait({signal.SIGTERM}, 0.01) and sys.exit(0)
"""
    workers = Workers(tmp_path, script, [3])

    def until(counts: Counts) -> bool:
        if "has made no progress" in caplog.text:
            (tmp_path / "go.on").touch()
        return "turns again" in caplog.text

    workers.run(until)
    assert workers.process_counts == {3: 1}
    assert caplog.messages == [
        f"slot 3: p has made no progress for 31 s: {STILL}; set stuck_timeout_ms to have such a worker restarted",
        "slot 3: p turns again, after 31 s",
    ]


def test_worker_that_is_stuck_is_killed_and_restarted_under_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = """
if nth == 2: signal.sigtimedwait({signal.SIGTERM}, 0.5)  # its first report is late
if slot == 3 and nth == 1: report(1, 10, still=60); signal.pause()
report(2, 4); signal.sigtimedwait({signal.SIGTERM}, 0.3); report(2, 5); await_sigterm()
"""
    workers = Workers(tmp_path, script, [2, 3], stuck_timeout_ms=60_000)
    workers.run(lambda counts: counts == {("p", 2): (2, 5), ("p", 3): (3, 15)})
    assert workers.process_counts == {2: 1, 3: 2}
    assert [re.sub(r"process \d+", "process N", message) for message in caplog.messages] == [
        f"slot 3: p has made no progress for 60 s: {STILL}; a worker is restarted after stuck_timeout_ms (60000)",
        "slot 3 (process N) is stuck, for longer than stuck_timeout_ms (60000): killing it",
        f"slot 3 ended by SIGKILL (p has made no progress for 60 s: {STILL}): restarting it (1 in a row)",
    ]


def test_worker_process_that_is_stopped_is_killed_and_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REPORTS_LATE", 0.1)
    clock = ManualClock()

    def tick() -> float:
        if not (tmp_path / "0.2").exists():  # the second process is never late
            clock.advance(0.2)
        return clock()

    script = """
report(1, nth)
if nth == 1: os.kill(os.getpid(), signal.SIGSTOP)
while not signal.sigtimedwait({signal.SIGTERM}, 0.01): report(1, nth)
"""
    workers = Workers(tmp_path, script, stuck_timeout_ms=1_000, clock=tick)
    workers.run(lambda counts: counts == {("p", 0): (2, 3)})
    assert "slot 0 ended by SIGKILL (its process has not reported for 1 s: it is stopped, or a function" in caplog.text
    assert workers.process_counts == {0: 2}


def test_worker_that_is_stuck_repeatedly_ends_all_with_its_place(
    tmp_path: Path, no_backoff: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "RESTARTS_MAX", 2)
    workers = Workers(tmp_path, "report(0, 1, still=60)\nwhile True: await_sigterm()", stuck_timeout_ms=1_000)
    why = f"SIGKILL (p has made no progress for 60 s: {STILL})"
    with pytest.raises(
        WorkersFailed, match=f"^{re.escape(f'slot 0 died 3 times in a row, at last by {why}')}$"
    ) as caught:
        workers.run(lambda counts: False)
    assert (caught.value.exit_status, workers.process_counts) == (1, {0: 3})


def test_supervisor_that_was_stopped_kills_no_worker_for_reports_in_the_pipe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    script = """
report(1, 1)
if nth == 2: await_sigterm(); sys.exit()
while not os.path.exists(here + "/go.on"): time.sleep(0.01)
report(1, 2, still=11)  # it was stuck while the supervisor was stopped
open(here + "/is.written", "w").close()
signal.sigtimedwait({signal.SIGTERM}, 0.5)  # some turns of the supervisor
open(here + "/not.killed", "w").close()
report(1, 3); report(1, 4, still=12); await_sigterm()
"""
    workers = Workers(tmp_path, script, stuck_timeout_ms=10_000, clock=clock)

    def until(counts: Counts) -> bool:
        if counts == {("p", 0): (1, 1)}:
            (tmp_path / "go.on").touch()
            wait_for(tmp_path / "is.written")
            clock.advance(3_600.0)
        return counts["p", 0][0] == 2

    assert workers.run(until) == {("p", 0): (2, 5)}
    assert (workers.process_counts, (tmp_path / "not.killed").exists()) == ({0: 2}, True)
    assert [message for message in caplog.messages if "restarting" in message] == [
        f"slot 0 ended by SIGKILL (p has made no progress for 12 s: {STILL}): restarting it (1 in a row)"
    ], "only the report after the stop counts"


def test_error_of_each_worker_is_either_raised_or_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both fail: the error of the first is raised, that of the other is logged."""
    workers = Workers(
        tmp_path, "report(0, 0); await_sigterm(); send_error('SchemaError: of %d' % slot); sys.exit(2)", [0, 1]
    )

    def until(counts: Counts) -> None:
        if len(counts) == 2 and 0 in (pids := workers.supervisor.pids):
            os.kill(pids[0], signal.SIGTERM)

    with pytest.raises(WorkersFailed, match=r"^slot 0 ended by SchemaError: of 0$") as caught:
        workers.run(until)
    assert caught.value.exit_status == 2
    assert [record.getMessage() for record in caplog.records] == ["slot 1 ended by SchemaError: of 1"]


def test_worker_that_ends_by_itself_ends_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = "report(0, slot)\nwhile not os.path.exists(here + '/1.1'): time.sleep(0.01)\nslot and await_sigterm()"
    workers = Workers(tmp_path, script, [0, 1])
    workers.run(lambda counts: False)
    assert "slot 0 ended by itself: stopping the others" in caplog.text
    assert not workers.supervisor.are_inputs_done
    assert (workers.process_counts, workers.supervisor.pids) == ({0: 1, 1: 1}, {})


@pytest.mark.parametrize(("slots", "others"), [([0], ""), ([0, 1], ": stopping the others")])
def test_worker_whose_sources_have_no_input_left_ends_the_run_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, slots: list[int], others: str
) -> None:
    caplog.set_level(logging.INFO)
    done = """write('{"drained": true, "inputs_done": true}\\n')"""
    workers = Workers(tmp_path, f"await_sigterm() if slot else (report(0, 7), {done})", slots)
    assert workers.run(lambda counts: False)["p", 0] == (0, 7)
    assert caplog.messages == [f"slot 0 ended as all inputs of its sources are done{others}"]
    assert workers.supervisor.are_inputs_done


def test_worker_that_ends_with_status_0_and_has_not_drained_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, no_backoff: None
) -> None:
    script = "report(1, 1)\nos._exit(0) if nth < 3 else await_sigterm()"
    workers = Workers(tmp_path, script)
    workers.run(lambda counts: workers.process_counts == {0: 3})
    why = (
        "slot 0 ended by status 0 before it had drained: does a function call os._exit()?: restarting it (%d in a row)"
    )
    assert [m for m in caplog.messages if m.startswith("slot 0")] == [why % 1, why % 2]


def test_worker_that_always_ends_with_status_0_and_has_not_drained_fails_the_run(
    tmp_path: Path, no_backoff: None
) -> None:
    workers = Workers(tmp_path, "os._exit(0)")
    with pytest.raises(WorkersFailed, match="died 9 times in a row, at last by status 0 before it had") as caught:
        workers.run()
    assert caught.value.exit_status == 1


# The end.


def test_stop_drains_and_shows_the_last_counts(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); await_sigterm(); report(1, 100 + slot)", [0, 1])
    assert workers.run(lambda counts: len(counts) == 2) == {("p", 0): (1, 100), ("p", 1): (1, 101)}


def test_stop_drains_within_a_bound_then_kills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(tmp_path, "report(0, 0)\nwhile True: await_sigterm()", drain_seconds=0.1)
    message = r"\Aslot 0 did not drain: uncommitted work is done again at the next start\Z"
    with pytest.raises(WorkersFailed, match=message) as caught:
        workers.run()
    assert (caught.value.exit_status, has_ended(workers.pids[0])) == (1, True)
    assert f"slot 0 (process {workers.pids[0]}) did not drain within 0.1 s: killing it" in caplog.text


def test_worker_that_fails_while_it_drains_is_named_alone(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); await_sigterm(); sys.exit(slot == 1)", [0, 1, 2])
    with pytest.raises(WorkersFailed, match="slot 1 did not drain: ") as caught:
        workers.run(lambda counts: len(counts) == 3)
    assert caught.value.exit_status == 1


def test_worker_that_exits_past_its_drain_is_named(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); await_sigterm(); os._exit(0)")
    with pytest.raises(WorkersFailed, match="slot 0 did not drain: ") as caught:
        workers.run()
    assert caught.value.exit_status == 1


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Calls a function on SIGUSR1, as on Ctrl-C."""

    def install(stop: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: stop())

    before = signal.getsignal(signal.SIGUSR1)
    yield install
    signal.signal(signal.SIGUSR1, before)


def test_kill_while_the_workers_drain_ends_them_at_once(
    tmp_path: Path, on_signal: Callable[[Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    script = "report(0, 0); await_sigterm(); os.kill(os.getppid(), signal.SIGUSR1)\nwhile True: await_sigterm()"
    workers = Workers(tmp_path, script, drain_seconds=3_600.0)
    on_signal(workers.supervisor.kill)
    with pytest.raises(WorkersFailed, match="slot 0 was ended at once: ") as caught:
        workers.run()
    assert caught.value.exit_status == 130
    assert has_ended(workers.pids[0])
    assert f"slot 0 (process {workers.pids[0]}) was asked to end at once: killing it" in caplog.text


def test_stop_that_is_called_twice_drains(tmp_path: Path, on_signal: Callable[[Callable[[], None]], None]) -> None:
    script = """
report(0, 0); await_sigterm(); os.kill(os.getppid(), signal.SIGUSR1)
signal.sigtimedwait({signal.SIGTERM}, 0.3)  # the time that its last commit takes
report(1, 1)
"""
    workers = Workers(tmp_path, script)
    on_signal(workers.supervisor.stop)
    assert workers.run() == {("p", 0): (1, 1)}


def test_stop_before_the_run_starts_nothing(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); await_sigterm()")
    workers.supervisor.stop()
    assert (workers.run(), workers.process_counts) == ({}, {})


def test_first_stop_after_a_worker_ended_by_itself_still_drains(
    tmp_path: Path, on_signal: Callable[[Callable[[], None]], None]
) -> None:
    script = """
report(0, 0)
if slot == 1:
    await_sigterm(); os.kill(os.getppid(), signal.SIGUSR1)
    signal.sigtimedwait({signal.SIGTERM}, 0.3)  # the time that its last commit takes
    open(here + "/1.drained", "w").close()
"""
    workers = Workers(tmp_path, script, [1, 0])
    on_signal(workers.supervisor.stop)
    workers.run(lambda counts: False)
    assert (tmp_path / "1.drained").exists()


def test_show_that_raises_ends_the_workers(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); await_sigterm()")
    pids: list[int] = []

    def broken(reports: Sequence[Report]) -> None:
        pids.extend(workers.supervisor.pids.values())
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        workers.supervisor.run(broken)
    assert has_ended(pids[0])


def test_worker_has_its_settings_in_the_environment_no_input_and_its_own_session(tmp_path: Path) -> None:
    script = """
report(os.environ["KSTREAMS_COLOUR"] == "green", (os.getsid(0) == os.getpid()) + 2 * (sys.stdin.read() == ""))
await_sigterm()
"""
    workers = Workers(tmp_path, script)
    workers.run()
    assert workers.shown[0] == {("p", 0): (1, 3)}


# What a machine has no more of.


@pytest.mark.parametrize("pipes", [False, True], ids=["its own outputs", "pipes"])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC])
def test_worker_that_cannot_be_started_for_now_is_started_later_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, number: int, pipes: bool
) -> None:
    monkeypatch.setattr(module, "SCARCE_SECONDS", 0.0)
    real, failures, opened = subprocess.Popen, iter(range(3)), OpenedDescriptors(monkeypatch)

    def popen(*arguments: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    workers = Workers(tmp_path, "report(1, 1); await_sigterm()", [3])

    def show(reports: Sequence[Report]) -> None:
        if reports:
            workers.supervisor.stop()

    workers.supervisor.run(show, None, (lambda *_: None) if pipes else None)
    assert workers.process_counts == {3: 1}
    line = f"cannot start a process for slot 3: [Errno {number}] {os.strerror(number)}: retrying every 0 s; "
    assert caplog.messages == [f"{line}raise the limit, or free resources"] * 3
    assert opened.still_open() == []


def test_error_of_a_start_that_nothing_mends_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "no such program")

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(FileNotFoundError):
        Workers(tmp_path, "").supervisor.run(lambda _: None)


@pytest.mark.parametrize("which", range(5))
def test_output_that_cannot_be_opened_leaves_no_descriptor_open(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two pipes, the two copies and the file."""
    calls, opened = itertools.count(), OpenedDescriptors(monkeypatch)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == which:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return function(*arguments, **options)

        return call

    for of, name in ((os, "pipe"), (os, "dup"), (tempfile, "TemporaryFile")):
        monkeypatch.setattr(of, name, limited(getattr(of, name)))
    with pytest.raises(OSError, match="Too many open files"):
        WorkerOutput(lambda *_: None, "0")
    assert opened.still_open() == []


def test_output_without_a_thread_ends_its_process_and_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    opened = OpenedDescriptors(monkeypatch)
    output = WorkerOutput(lambda *_: None, "0")
    with pytest.raises(OSError, match="can't start new thread") as caught:
        output.spawn([sys.executable, "-c", "input()"], {}, subprocess.DEVNULL, 1)
    assert (caught.value.errno, opened.still_open()) == (errno.EAGAIN, [])
