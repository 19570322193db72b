"""engine/supervisor.py: worker processes that die, drain, hang and report."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstreams_py.config import Settings
from kstreams_py.engine import supervisor as module
from kstreams_py.engine import watch
from kstreams_py.engine.supervisor import (
    BACKOFF,
    HEALTHY_SECONDS,
    REPORT_FD,
    RESTARTS_MAX,
    Supervisor,
    awaited_slot,
    report_writer,
    run,
    run_slot,
    run_slots,
    standby_command,
    told,
    worker_command,
)
from kstreams_py.errors import TopicError, WorkersFailed, WorkerStuck
from kstreams_py.metrics import Report
from kstreams_py.testing import ManualClock, MemoryLog
from kstreams_py.topology import Graph

PREAMBLE = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
here, slot = sys.argv[1], int(sys.argv[2])
born = len([name for name in os.listdir(here) if name.startswith(f"{slot}.")]) + 1  # which one of its slot it is
open(f"{here}/{slot}.{born}", "w").close()
def write(text):
    os.write(int(os.environ["KSTREAMS_REPORT_FD"]), text.encode())
def report(commits, records, processor="p", lag="null", still=0):
    write('{"processor": "%s", "slot": %d, "counters": {"commits": %d, "records_in": %d}, "lag": %s, '
          '"still_seconds": %g, "place": "f (g.py, line 1)"}\\n' % (processor, slot, commits, records, lag, still))
def tell(why):
    write('{"error": "%s"}\\n' % why)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
def drained():
    signal.sigwait({signal.SIGTERM})
"""

Counts = dict[tuple[str, int], tuple[int, int]]
"""Commits and records by processor and slot."""


class Workers:
    """A supervisor over processes that run a script each, and what it showed."""

    def __init__(
        self,
        here: Path,
        script: str,
        slots: Sequence[int] = (0,),
        *,
        drain_seconds: float = 30.0,
        stuck_timeout_ms: int | None = None,
    ) -> None:
        self.here = here
        self.shown: list[Counts] = []
        self.lags: dict[int, int | None] = {}
        self.pids: dict[int, int] = {}
        self.supervisor = Supervisor(
            lambda slot: [sys.executable, "-I", "-S", "-c", PREAMBLE + script, str(here), str(slot)],
            slots,
            drain_seconds=drain_seconds,
            environment={"KSTREAMS_COLOUR": "green"},
            stuck_timeout_ms=stuck_timeout_ms,
        )

    def run(self, until: Callable[[Counts], object] = bool) -> Counts:
        """Runs until the counts are so; returns those that were shown last."""

        def show(reports: Sequence[Report]) -> None:
            self.pids |= self.supervisor.pids
            self.lags = {r.slot: r.lag for r in reports}
            self.shown.append(
                {(r.processor, r.slot): (r.counters["commits"], r.counters["records_in"]) for r in reports}
            )
            if until(self.shown[-1]) and not self.supervisor._stopping:
                self.supervisor.stop()

        self.supervisor.run(show)
        return self.shown[-1]

    @property
    def births(self) -> dict[int, int]:
        """How many processes each slot has had."""
        names = [path.name.split(".") for path in self.here.iterdir()]
        slots = [int(slot) for slot, born in names if slot.isdigit() and born.isdigit()]
        return {slot: slots.count(slot) for slot in sorted(set(slots))}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts without back-off."""
    monkeypatch.setattr(module, "BACKOFF", (0.0,))


# Standby.

STANDBY = """
import os, sys
here = sys.argv[1]
born = len([name for name in os.listdir(here) if name.startswith("standby.")]) + 1
open(f"{here}/standby.{born}", "w").close()
line = sys.stdin.readline()
open(f"{here}/read.{born}", "w").write(line)
if line:
    os.write(int(os.environ["KSTREAMS_REPORT_FD"]), b'{"processor": "spare", "slot": %d, "counters": {"commits": 1, '
             b'"records_in": 1}, "lag": null}\\n' % int(line))
    sys.argv[2:] = [line.strip()]
"""


def on_standby(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a process ready from the start on; once it has its slot it does as PREAMBLE and drained() do.

    What is shown is shown all the time, not only when there is news.
    """
    listen = workers.supervisor._listen
    monkeypatch.setattr(workers.supervisor, "_listen", lambda seconds: [listen(seconds)])
    monkeypatch.setattr(module, "STANDBY_DELAY", 0.0)
    script = STANDBY + "if line:\n    " + PREAMBLE.strip().replace("\n", "\n    ") + "\n    drained()"
    workers.supervisor._standby = [sys.executable, "-I", "-S", "-c", script, str(workers.here)]


def test_worker_that_dies_is_replaced_by_the_process_on_standby_and_another_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "report(1, 1)\nwhile not os.path.exists(here + '/standby.1'): pass\ndie() if slot == 3 else drained()"
    workers = Workers(tmp_path, script, [2, 3])
    on_standby(workers, monkeypatch)
    workers.run(
        lambda counts: ("spare", 3) in counts and (tmp_path / "standby.2").exists() and (tmp_path / "3.2").exists()
    )
    assert workers.births == {2: 1, 3: 2}, "the first of slot 3 by its command, the second on standby"
    assert (tmp_path / "read.1").read_text() == "3\n"
    assert not (tmp_path / "read.2").exists(), "it was ended with the others"
    assert workers.supervisor._spare is None


def test_standby_that_dies_is_replaced_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(tmp_path, "report(1, 1); drained()")
    on_standby(workers, monkeypatch)

    def until(counts: Counts) -> bool:
        spare = workers.supervisor._spare
        if spare is not None and (tmp_path / "standby.1").exists() and not (tmp_path / "standby.2").exists():
            spare[0].kill()
        return (tmp_path / "standby.2").exists()

    workers.run(until)
    assert workers.births == {0: 1}


def test_standby_reads_its_slot_and_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("7\n"))
    assert (awaited_slot(), awaited_slot()) == (7, None)


# Deaths.


def test_worker_that_dies_is_restarted_under_its_slot_and_its_counts_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(tmp_path, "report(2, 10) or die() if born == 1 else report(1, 5) or drained()", [3])
    workers.run(lambda counts: counts.get(("p", 3)) == (3, 15))
    assert workers.births == {3: 2}
    assert "slot 3 ended by SIGKILL: restarting it (1 in a row)" in caplog.text


def test_counts_go_on_over_a_worker_that_died_before_its_first_report(tmp_path: Path, at_once: None) -> None:
    script = """
if born == 1: report(1, 10); report(1, 7, "q"); die()
if born == 2: die()
report(1, 5); drained()
"""
    workers = Workers(tmp_path, script)
    workers.run(lambda counts: workers.births == {0: 3} and ("p", 0) in counts and counts["p", 0][1] in (5, 15))
    assert workers.shown[-1] == {("p", 0): (2, 15), ("q", 0): (1, 7)}


def test_counts_of_a_slot_do_not_go_away_while_it_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKOFF", (0.5,))
    script = """
if slot == 0 and born == 1: report(1, 10); die()
if slot == 1:
    for records in range(1, 20):
        report(0, records)
        if signal.sigtimedwait({signal.SIGTERM}, 0.02): report(1, 1); sys.exit()
report(1, 1); drained()
"""
    workers = Workers(tmp_path, script, [0, 1])
    workers.run(lambda counts: counts.get(("p", 0)) == (2, 11))
    of_slot_0 = [counts["p", 0][1] if ("p", 0) in counts else None for counts in workers.shown]
    known = of_slot_0[of_slot_0.index(10) :]
    assert set(known) == {10, 11}


def await_death(supervisor: Supervisor) -> None:
    for child in supervisor._children.values():
        assert child.process is not None
        child.process.wait()


def test_worker_that_keeps_dying_is_restarted_with_back_off_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    supervisor = Supervisor(lambda slot: ["false"], [0], drain_seconds=1.0)
    child = supervisor._children[0]
    for number in range(RESTARTS_MAX + 1):
        supervisor._keep(child)
        assert 0 in supervisor.pids, f"restart {number}"
        await_death(supervisor)
        if number == RESTARTS_MAX:
            break
        supervisor._keep(child)
        assert supervisor.pids == {}
        if BACKOFF[number]:
            clock.advance(BACKOFF[number] * 0.9)
            supervisor._keep(child)
            assert supervisor.pids == {}, f"restart {number} came too early"
        clock.advance(BACKOFF[number])
    with pytest.raises(WorkersFailed, match=rf"slot 0 died {RESTARTS_MAX + 1} times in a row, at last by status 1$"):
        supervisor._keep(child)


@pytest.mark.parametrize(
    ("script", "status", "why"),
    [
        ("sys.exit(1)", 1, "status 1"),
        ("sys.exit(3)", 3, "status 3"),
        ("die()", 1, "SIGKILL"),
        ("tell('a' * born); sys.exit(3)", 3, "aaa"),
        ("born < 3 and tell('a'); die()", 1, "SIGKILL"),
    ],
)
def test_worker_that_was_given_up_ends_all_with_its_status(
    script: str, status: int, why: str, tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTARTS_MAX", 2)
    workers = Workers(tmp_path, script)
    with pytest.raises(WorkersFailed, match=rf"slot 0 died 3 times in a row, at last by {why}$") as caught:
        workers.run()
    assert (caught.value.exit_status, workers.births) == (status, {0: 3})


def test_deaths_in_a_row_are_counted_from_the_last_healthy_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    supervisor = Supervisor(lambda slot: ["false"], [0], drain_seconds=1.0)
    child = supervisor._children[0]
    seen = []
    for seconds in (0.0, 0.0, HEALTHY_SECONDS, 0.0):
        clock.advance(60.0)
        supervisor._keep(child)
        clock.advance(seconds)
        await_death(supervisor)
        supervisor._keep(child)
        seen.append(child.restarts)
    assert seen == [1, 2, 1, 2]


@pytest.mark.parametrize(("script", "restarts"), [("report(1, 1); die()", 1), ("report(0, 1); die()", 8),
                                                 ("report(1, 1); sys.exit(1)", 8)])  # fmt: skip
def test_worker_that_committed_before_somebody_killed_it_was_healthy(
    script: str, restarts: int, tmp_path: Path
) -> None:
    supervisor = Workers(tmp_path, script).supervisor
    child = supervisor._children[0]
    child.restarts = 7
    supervisor._keep(child)
    await_death(supervisor)  # its report is still on the way
    supervisor._keep(child)
    assert child.restarts == restarts


@pytest.mark.parametrize("status", [2, 5])
def test_worker_with_a_final_status_is_not_restarted_and_the_others_drain(status: int, tmp_path: Path) -> None:
    script = f"report(0, 0); drained()\nif slot == 0: sys.exit({status})\nopen(here + '/1.drained', 'w').close()"
    workers = Workers(tmp_path, script, [0, 1])

    def until(counts: Counts) -> None:
        if len(counts) == 2 and 0 in (pids := workers.supervisor.pids):
            os.kill(pids[0], signal.SIGTERM)

    with pytest.raises(WorkersFailed, match=rf"^slot 0 ended by status {status}$") as caught:
        workers.run(until)
    assert (caught.value.exit_status, workers.births) == (status, {0: 1, 1: 1})
    assert (tmp_path / "1.drained").exists()


# Slots that another machine takes over.

TAKEN = "tell('Replaced: by m7, from 10.0.0.7'); sys.exit(4)"


def test_slot_that_was_taken_ends_with_its_words_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at_once: None
) -> None:
    script = f"""
report(1, 10 + slot, lag=100 + slot)
if slot == 1: {TAKEN}
if slot == 2 and born == 1: die()
while not signal.sigtimedwait({{signal.SIGTERM}}, 0.01): report(1, 10 + slot)
report(2, 20 + slot, lag=5); open(f"{{here}}/{{slot}}.drained", "w").close()
"""
    workers = Workers(tmp_path, script, [0, 1, 2])

    def until(counts: Counts) -> bool:
        return (
            len(counts) == 3 and "slot 1 ended by" in caplog.text and workers.births[2] == 2 and counts["p", 2][0] == 2
        )

    assert workers.run(until) == {("p", 0): (2, 20), ("p", 1): (1, 11), ("p", 2): (3, 34)}
    assert workers.births == {0: 1, 1: 1, 2: 2}, "what was taken is not restarted, what dies meanwhile is"
    assert workers.lags == {0: 5, 1: 0, 2: 5}, "what is left to do in slot 1 is for another to say"
    assert [(tmp_path / f"{slot}.drained").exists() for slot in (0, 1, 2)] == [True, False, True]
    assert (
        caplog.messages.count(
            "slot 1 ended by Replaced: by m7, from 10.0.0.7: it is not restarted here, slots 0, 2 go on"
        )
        == 1
    )


def test_supervisor_ends_with_status_4_once_its_last_slot_was_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = f"""
report(0, 0)
while slot == 1 and not os.path.exists(here + "/go.on"): report(0, 0); signal.sigtimedwait({{signal.SIGTERM}}, 0.01)
if slot == 0: tell('Replaced: by m7'); sys.exit(4)
{TAKEN}
"""
    workers = Workers(tmp_path, script, [0, 1])

    def until(counts: Counts) -> None:
        if "slot 0 ended by Replaced: by m7: it is not restarted here, slot 1 goes on" in caplog.messages:
            (tmp_path / "go.on").touch()

    message = r"^slot 0 ended by Replaced: by m7; slot 1 ended by Replaced: by m7, from 10\.0\.0\.7$"
    with pytest.raises(WorkersFailed, match=message) as caught:
        workers.run(until)
    assert (caught.value.exit_status, workers.births) == (4, {0: 1, 1: 1})


def test_slot_that_is_taken_while_all_drain_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(tmp_path, f"report(0, 0); drained()\nif slot == 1: {TAKEN}", [0, 1])
    workers.run(lambda counts: len(counts) == 2)
    assert caplog.messages == ["slot 1 ended by Replaced: by m7, from 10.0.0.7"]


# Workers that stand still.

STILL = "it is in f (g.py, line 1): its function does not return, or the broker does not answer"


def test_worker_that_stands_still_is_warned_of_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = """
while not os.path.exists(here + "/go.on"): report(0, 0, still=31); signal.sigtimedwait({signal.SIGTERM}, 0.01)
for records in range(1, 1000): report(0, records); signal.sigtimedwait({signal.SIGTERM}, 0.01) and sys.exit(0)
"""
    workers = Workers(tmp_path, script, [3])

    def until(counts: Counts) -> bool:
        if "has not turned" in caplog.text:
            (tmp_path / "go.on").touch()
        return "turns again" in caplog.text

    workers.run(until)
    assert workers.births == {3: 1}
    assert caplog.messages == [
        f"slot 3: p has not turned for 31 s: {STILL}; set stuck_timeout_ms to have such a worker restarted",
        "slot 3: p turns again, after 31 s",
    ]


def test_worker_that_is_stuck_is_killed_and_restarted_under_its_slot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = """
if born == 2: signal.sigtimedwait({signal.SIGTERM}, 0.5)  # it takes its time until it reports
if slot == 3 and born == 1: report(1, 10, still=60); signal.pause()
report(2, 4); signal.sigtimedwait({signal.SIGTERM}, 0.3); report(2, 5); drained()
"""
    workers = Workers(tmp_path, script, [2, 3], stuck_timeout_ms=60_000)
    workers.run(lambda counts: counts == {("p", 2): (2, 5), ("p", 3): (3, 15)})
    assert workers.births == {2: 1, 3: 2}
    assert [re.sub(r"process \d+", "process N", message) for message in caplog.messages] == [
        f"slot 3: p has not turned for 60 s: {STILL}; a worker is restarted after stuck_timeout_ms (60000)",
        "slot 3 (process N) is stuck, for longer than stuck_timeout_ms (60000): killing it",
        f"slot 3 ended by SIGKILL (p has not turned for 60 s: {STILL}): restarting it (1 in a row)",
    ]


def test_worker_process_that_is_stopped_is_killed_and_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REPORTS_LATE", 0.1)
    script = """
report(1, born)
if born == 1: os.kill(os.getpid(), signal.SIGSTOP)
while not signal.sigtimedwait({signal.SIGTERM}, 0.01): report(1, born)
"""
    workers = Workers(tmp_path, script, stuck_timeout_ms=1_000)
    workers.run(lambda counts: counts == {("p", 0): (2, 3)})
    assert "slot 0 ended by SIGKILL (its process has not reported for 1 s: it is stopped, or a function" in caplog.text
    assert workers.births == {0: 2}


@pytest.mark.parametrize(
    ("commits", "of_other", "restarts"),
    [(0, 0, 8), (0, 1, 8), (1, 0, 1)],
    ids=["nothing", "another processor", "the processor"],
)
def test_stuck_worker_counts_among_deaths_in_a_row_unless_its_processor_had_committed(
    commits: int, of_other: int, restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it ran: a record that holds its function for ever is read again by each of its successors."""
    monkeypatch.setattr(module, "HEALTHY_SECONDS", 0.0)
    script = f"report({of_other}, 1, 'q'); report({commits}, 1, still=60)\nwhile True: drained()"
    supervisor = Workers(tmp_path, script, stuck_timeout_ms=1_000).supervisor
    child = supervisor._children[0]
    child.restarts = 7
    supervisor._keep(child)
    process = child.process
    assert process is not None
    try:
        while len(child.latest) < 2:
            supervisor._listen(1.0)
        supervisor._keep(child)
        assert process.wait(30.0) == -signal.SIGKILL
    finally:
        process.kill()
    supervisor._keep(child)
    assert child.restarts == restarts


def test_worker_that_is_stuck_again_and_again_ends_all_and_says_where(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESTARTS_MAX", 2)
    workers = Workers(tmp_path, "report(0, 1, still=60)\nwhile True: drained()", stuck_timeout_ms=1_000)
    why = f"SIGKILL (p has not turned for 60 s: {STILL})"
    with pytest.raises(
        WorkersFailed, match=f"^{re.escape(f'slot 0 died 3 times in a row, at last by {why}')}$"
    ) as caught:
        workers.run(lambda counts: False)
    assert (caught.value.exit_status, workers.births) == (1, {0: 3})


class Woken:
    """A supervisor whose clock is the test's and whose worker's reports are written by the test."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self.clock))
        workers = Workers(tmp_path, "drained()", stuck_timeout_ms=10_000)
        self.supervisor, self.child = workers.supervisor, workers.supervisor._children[0]
        self.reading, self.writing = os.pipe()
        monkeypatch.setattr(self.supervisor, "_spawn", self._spawn)
        os.set_blocking(self.reading, False)
        self.supervisor._keep(self.child)

    def _spawn(self, command: Sequence[str], stdin: int) -> tuple[Any, int]:
        return SimpleNamespace(pid=1, poll=lambda: None, kill=lambda: None), self.reading

    def report(self, still: float) -> None:
        line = json.dumps(Report("p", 0, {"commits": 1}, 0, still, "f (g.py, line 1)").as_dict())
        os.write(self.writing, line.encode() + b"\n")

    def turn(self) -> str:
        """One turn of the supervisor a tenth of a second later; why it kills the worker, if it does."""
        self.clock.advance(0.1)
        self.supervisor._catch_up()
        self.supervisor._keep(self.child)
        self.supervisor._listen(0)
        return self.child.stuck

    def close(self) -> None:
        for fd in (self.reading, self.writing):
            os.close(fd)


@pytest.fixture
def woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Woken]:
    made = Woken(tmp_path, monkeypatch)
    yield made
    made.close()


def test_supervisor_that_was_stopped_judges_nobody_by_what_waited_in_the_pipe(woken: Woken) -> None:
    woken.report(0.0)
    assert woken.turn() == ""
    woken.report(11.0)  # it was stuck for a while, and the supervisor was stopped too
    woken.clock.advance(3_600.0)
    assert [woken.turn() for _ in range(5)] == [""] * 5
    woken.report(0.0)
    assert [woken.turn() for _ in range(5)] == [""] * 5
    woken.report(11.0)
    assert "p has not turned for 11 s" in [woken.turn() for _ in range(2)][-1], "what is new counts"


def test_supervisor_that_was_stopped_gives_its_workers_time_to_report(woken: Woken) -> None:
    woken.report(0.0)
    assert [woken.turn() for _ in range(5)] == [""] * 5
    woken.clock.advance(3_600.0)
    assert [woken.turn() for _ in range(100)] == [""] * 100
    assert "its process has not reported for 15 s" in [woken.turn() for _ in range(40)][-1]


def test_worker_that_has_not_reported_yet_is_not_killed(woken: Woken, caplog: pytest.LogCaptureFixture) -> None:
    assert [woken.turn() for _ in range(350)] == [""] * 350
    assert [message.partition(":")[2] for message in caplog.messages] == [
        " its process has not reported for 30 s: it is stopped, or still importing; once it has ended, it is restarted"
    ]


def test_what_a_worker_says_when_it_ends_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both make the same mistake: the first is raised, the other's is in the log."""
    workers = Workers(tmp_path, "report(0, 0); drained(); tell('SchemaError: of %d' % slot); sys.exit(2)", [0, 1])

    def until(counts: Counts) -> None:
        if len(counts) == 2 and 0 in (pids := workers.supervisor.pids):
            os.kill(pids[0], signal.SIGTERM)

    with pytest.raises(WorkersFailed, match=r"^slot 0 ended by SchemaError: of 0$") as caught:
        workers.run(until)
    assert caught.value.exit_status == 2
    assert [record.getMessage() for record in caplog.records] == ["slot 1 ended by SchemaError: of 1"]


def test_worker_that_ends_by_itself_ends_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = "report(0, slot)\nwhile not os.path.exists(here + '/1.1'): pass\nslot and drained()"
    workers = Workers(tmp_path, script, [0, 1])
    workers.run(lambda counts: False)
    assert "slot 0 ended by itself: stopping the others" in caplog.text
    assert (workers.births, workers.supervisor.pids) == ({0: 1, 1: 1}, {})


# The end.


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_stop_drains_and_shows_the_last_counts(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); drained(); report(1, 100 + slot)", [0, 1])
    assert workers.run(lambda counts: len(counts) == 2) == {("p", 0): (1, 100), ("p", 1): (1, 101)}


def test_stop_drains_within_a_bound_then_kills(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers(tmp_path, "report(0, 0)\nwhile True: drained()", drain_seconds=0.1)
    message = r"\Aslot 0 did not drain: what was not committed is done again at the next start\Z"
    with pytest.raises(WorkersFailed, match=message) as caught:
        workers.run()
    assert (caught.value.exit_status, gone(workers.pids[0])) == (1, True)
    assert f"slot 0 (process {workers.pids[0]}) did not drain within 0.1 s: killing it" in caplog.text


def test_worker_that_fails_while_it_drains_is_told_from_those_that_did(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); drained(); sys.exit(slot == 1)", [0, 1, 2])
    with pytest.raises(WorkersFailed, match="slot 1 did not drain: ") as caught:
        workers.run(lambda counts: len(counts) == 3)
    assert caught.value.exit_status == 1


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Lets SIGUSR1 do what a Ctrl-C would do."""

    def install(stop: Callable[[], None]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: stop())

    before = signal.getsignal(signal.SIGUSR1)
    yield install
    signal.signal(signal.SIGUSR1, before)


def test_second_stop_kills_at_once(
    tmp_path: Path, on_signal: Callable[[Callable[[], None]], None], caplog: pytest.LogCaptureFixture
) -> None:
    script = "report(0, 0); drained(); os.kill(os.getppid(), signal.SIGUSR1)\nwhile True: drained()"
    workers = Workers(tmp_path, script, drain_seconds=3_600.0)
    on_signal(workers.supervisor.stop)
    with pytest.raises(WorkersFailed, match="slot 0 was ended at once: ") as caught:
        workers.run()
    assert caught.value.exit_status == 130
    assert gone(workers.pids[0])
    assert f"slot 0 (process {workers.pids[0]}) was asked to end at once: killing it" in caplog.text


def test_first_stop_after_a_worker_ended_by_itself_still_drains(
    tmp_path: Path, on_signal: Callable[[Callable[[], None]], None]
) -> None:
    script = """
report(0, 0)
if slot == 1:
    drained(); os.kill(os.getppid(), signal.SIGUSR1)
    signal.sigtimedwait({signal.SIGTERM}, 0.3)  # the time that its last commit takes
    open(here + "/1.drained", "w").close()
"""
    workers = Workers(tmp_path, script, [1, 0])
    on_signal(workers.supervisor.stop)
    workers.run(lambda counts: False)
    assert (tmp_path / "1.drained").exists()


def test_failure_to_show_ends_the_workers_too(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "report(0, 0); drained()")
    pids: list[int] = []

    def broken(reports: Sequence[Report]) -> None:
        pids.extend(workers.supervisor.pids.values())
        raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="the terminal is gone"):
        workers.supervisor.run(broken)
    assert gone(pids[0])


# What passes between supervisor and worker.


def test_worker_has_its_settings_in_the_environment_no_input_and_a_session_of_its_own(tmp_path: Path) -> None:
    script = """
report(os.environ["KSTREAMS_COLOUR"] == "green", (os.getsid(0) == os.getpid()) + 2 * (sys.stdin.read() == ""))
drained()
"""
    workers = Workers(tmp_path, script)
    workers.run()
    assert workers.shown[0] == {("p", 0): (1, 3)}


def test_reports_may_come_in_pieces_and_several_at_once(tmp_path: Path) -> None:
    workers = Workers(tmp_path, "", [0])
    supervisor, child = workers.supervisor, workers.supervisor._children[0]
    reading, writing = os.pipe()
    line = json.dumps(Report("p", 0, {"commits": 1}, 3).as_dict()).encode()
    seen = []
    for piece in (line[:10], line[10:], b"\n", line.replace(b'"p"', b'"q"') + b"\n" + line + b"\n" + line[:5]):
        os.write(writing, piece)
        seen.append((supervisor._read(reading, child), sorted(child.reports)))
    assert seen == [(False, []), (False, []), (True, ["p"]), (True, ["p", "q"])]
    assert child.reports["p"] == Report("p", 0, {"commits": 1}, 3)
    os.set_blocking(reading, False)
    assert not supervisor._read(reading, child)
    os.close(reading)
    os.close(writing)


def test_worker_tells_its_supervisor_why_it_ends_and_the_user_if_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(REPORT_FD, raising=False)
    assert not told(TopicError("no\nsuch topic"))
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    assert told(TopicError("no\nsuch topic"))
    assert os.read(reading, 10_000) == b'{"error": "TopicError: no\\nsuch topic"}\n'
    os.close(reading)
    assert not told(TopicError("no\nsuch topic"))
    os.close(writing)


def test_worker_writes_reports_to_its_supervisor_until_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORT_FD, raising=False)
    assert report_writer() is None
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    write = report_writer()
    assert write is not None
    reports = [Report("p", 0, {"commits": 1}, 3), Report("q", 0, {"commits": 2}, None)]
    write(reports)
    assert [Report(**json.loads(line)) for line in os.read(reading, 10_000).splitlines()] == reports
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        write(reports)
    os.close(writing)


SMALLEST = 4_096
"""Bytes that a pipe holds at least, on Linux."""


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ends of a small pipe to a supervisor, filled by reports that nobody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, SMALLEST)
    monkeypatch.setenv(REPORT_FD, str(writing))
    write = report_writer()
    assert write is not None
    for commits in range(SMALLEST // 50):
        write([Report("p", 0, {"commits": commits}, 3), Report("q", 0, {"commits": commits}, 3)])
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_full_pipe_takes_no_more_reports_and_never_a_part_of_one(full: tuple[int, int]) -> None:
    reading, _ = full
    data = os.read(reading, 2 * SMALLEST)
    assert data.endswith(b"\n")
    reports = [Report(**json.loads(line)) for line in data.splitlines()]
    assert 10 < len(reports) < 100
    assert reports == [Report("pq"[i % 2], 0, {"commits": i // 2}, 3) for i in range(len(reports))]
    write = report_writer()
    assert write is not None
    write(reports[:1])
    assert [Report(**json.loads(line)) for line in os.read(reading, SMALLEST).splitlines()] == reports[:1], "it goes on"


def test_last_words_that_a_full_pipe_does_not_take_are_for_the_worker_to_say(full: tuple[int, int]) -> None:
    reading, _ = full
    error = TopicError("no such topic: " + "a" * 249)
    assert not told(error)
    assert b"error" not in os.read(reading, 2 * SMALLEST)
    assert told(error)


def test_last_words_that_are_too_long_for_one_piece_are_for_the_worker_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    most = select.PIPE_BUF - len('{"error": "TopicError: "}\n')
    assert [told(TopicError("a" * length)) for length in (most, most + 1)] == [True, False]
    assert len(os.read(reading, 100_000)) == select.PIPE_BUF
    os.close(reading)
    os.close(writing)


def test_worker_command_names_target_and_slot_and_no_setting() -> None:
    assert worker_command("flights:graph")(3) == [
        sys.executable, "-m", "kstreams_py", "run", "flights:graph", "--slot", "3",
    ]  # fmt: skip


# What `run` wires.

THE_GRAPH = Graph("g")
THE_GRAPH.sink(THE_GRAPH.topic("a"), id="p")(lambda value: None)


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLog]:
    """The log in memory in place of a cluster; signals as they were afterwards."""
    log, before = MemoryLog(), {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(log, "close", lambda: None, raising=False)
    monkeypatch.setattr(module, "KafkaLog", lambda settings: log)
    monkeypatch.setattr(module, "open_registry", lambda url, directory: None)
    monkeypatch.setattr(module, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    yield log
    for number, handler in before.items():
        signal.signal(number, handler)


class FakeSlot:
    """A slot that reports once, or as often as it takes to be stopped."""

    made: Mapping[str, Any]
    still: Sequence[float] = (0.0,)
    """For how long its processor stands still, in each report."""

    def __init__(self, graph: Graph, number: int, around: Any) -> None:
        FakeSlot.made = {"graph": graph, "slot": number, "log": around.log, "settings": around.settings}
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def run(self, report: Callable[[Sequence[Report]], None], *, create: bool) -> None:
        FakeSlot.made = {**FakeSlot.made, "create": create}
        for still in self.still:
            counters = {"commits": 1, "records_in": 1, "records_out": 0, "dead_letters": 0}
            report([Report("p", 0, counters, 0, still, "f (g.py, line 1)")])
        FakeSlot.made = {**FakeSlot.made, "stopped": self.stopped}


@pytest.mark.parametrize("how", ["alone", "supervised", "orphaned"])
def test_one_slot_runs_here_and_reports_to_whoever_started_it(
    how: str, wired: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "Slot", FakeSlot)
    monkeypatch.delenv(REPORT_FD, raising=False)
    reading, writing = os.pipe()
    if how != "alone":
        monkeypatch.setenv(REPORT_FD, str(writing))
    if how == "orphaned":
        os.close(reading)
    settings = Settings()
    monkeypatch.setattr(FakeSlot, "still", (0.0, 0.0))
    run_slot(THE_GRAPH, 3, settings, create=True)
    assert FakeSlot.made == {"graph": THE_GRAPH, "slot": 3, "log": wired, "settings": settings, "create": True,
                             "stopped": how == "orphaned"}  # fmt: skip
    assert caplog.messages == ["the supervisor is gone: draining"] * (how == "orphaned")
    if how == "supervised":
        assert [json.loads(line)["processor"] for line in os.read(reading, 10_000).splitlines()] == ["p", "p"]
    if how != "orphaned":
        os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "supervised"])
def test_slot_that_stands_still_warns_where_nobody_else_does(
    alone: bool, wired: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "Slot", FakeSlot)
    monkeypatch.setattr(FakeSlot, "still", (0.0, 31.0, 32.0, 0.0))
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    if alone:
        monkeypatch.delenv(REPORT_FD)
    run_slot(THE_GRAPH, 3, Settings())
    warnings = [
        f"slot 3: p has not turned for 31 s: {STILL}; set stuck_timeout_ms to have such a worker restarted",
        "slot 3: p turns again, after 32 s",
    ]
    assert caplog.messages == (warnings if alone else [])
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "supervised"])
def test_slot_that_is_stuck_ends_itself_where_nobody_else_does(
    alone: bool, wired: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Slot", FakeSlot)
    monkeypatch.setattr(FakeSlot, "still", (0.0, 5.0))
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    settings = Settings(stuck_timeout_ms=5_000)
    if alone:
        monkeypatch.delenv(REPORT_FD)
        message = f"slot 3: p has not turned for 5 s: {STILL}; it ends after stuck_timeout_ms (5000): start it again"
        with pytest.raises(WorkerStuck, match=f"^{re.escape(message)}$") as caught:
            run_slot(THE_GRAPH, 3, settings)
        assert caught.value.exit_status == 1
    else:
        run_slot(THE_GRAPH, 3, settings)
    os.close(reading)
    os.close(writing)


def test_run_has_one_slot_here_and_several_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(module, "run_slot", lambda graph, number, settings, *, create: calls.append((number, create)))
    monkeypatch.setattr(
        module, "run_slots", lambda target, slots, settings, *, create: calls.append((target, list(slots), create))
    )
    run(THE_GRAPH)
    run(THE_GRAPH, workers=2, settings=Settings(), create_topics=True)
    run(THE_GRAPH, slots=[7])
    run(THE_GRAPH, slots=range(4, 6))
    target = f"{__name__}:THE_GRAPH"
    assert calls == [(0, False), (target, [0, 1], True), (7, False), (target, [4, 5], False)]


class FakeSupervisor:
    """Keeps what it was made with; the run is one signal."""

    made: Mapping[str, Any]

    def __init__(self, command: Callable[[int], Sequence[str]], slots: Sequence[int], **options: Any) -> None:
        FakeSupervisor.made = {"command": command(slots[0])[-2:], "slots": slots, **options, "stops": 0}

    def stop(self) -> None:
        FakeSupervisor.made = {**FakeSupervisor.made, "stops": FakeSupervisor.made["stops"] + 1}

    def run(self, show: Callable[[Sequence[Report]], None]) -> None:
        show([])
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_several_slots_are_checked_once_and_stopped_by_signals(
    wired: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Supervisor", FakeSupervisor)
    monkeypatch.setattr(module, "load", lambda target: THE_GRAPH)
    settings = Settings(drain_timeout_ms=2_000, stuck_timeout_ms=60_000)
    with pytest.raises(TopicError, match="missing topics: a: "):
        run_slots("m:graph", [4, 5], settings)
    run_slots("m:graph", [4, 5], settings, create=True)
    assert FakeSupervisor.made == {
        "command": ["--slot", "4"], "slots": [4, 5], "drain_seconds": 7.0, "environment": settings.as_environment(),
        "standby": standby_command("m:graph"), "stuck_timeout_ms": 60_000, "stops": 2,
    }  # fmt: skip
    assert list(wired.topics(["a"])) == ["a"]
