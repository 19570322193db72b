"""running/status.py, running/health.py: the state of each worker of a run, and whether the run is alive and ready."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from typing import Any

import pytest

from kstreams_py.metrics import WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.health import STARTING_SECONDS, still, unready
from kstreams_py.running.reports import PEER, Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from kstreams_py.running.supervised import ENDS_KEPT, SupervisedSlot

LIMIT = 30.0
RUNNING = Report("p", 0, {"commits": 1}, 0, lags={TopicPartition("a", 0): 0})
HEALTHY = SlotStatus(0, 4711, (RUNNING,))


def find_still(*slots: SlotStatus, now: float = 0.0) -> list[tuple[str, float]]:
    return [(each.what, each.seconds) for each in still(RunStatus(slots, 0.0), now, LIMIT)]


def find_unready(*slots: SlotStatus, stopping: bool = False) -> list[str]:
    return unready(RunStatus(slots, 0.0, stopping=stopping), ["p"])


def in_state(state: WorkerState, **fields: Any) -> SlotStatus:
    return replace(HEALTHY, reports=(replace(RUNNING, state=state, **fields),))


def test_run_whose_loops_turn_is_alive_and_ready() -> None:
    assert (find_still(HEALTHY), find_unready(HEALTHY)) == ([], [])


@pytest.mark.parametrize("state", list(WorkerState))
def test_worker_is_ready_while_it_holds_its_place_in_the_group(state: WorkerState) -> None:
    ready = state in (WorkerState.RUNNING, WorkerState.RETRYING, WorkerState.SPARE)
    assert find_unready(in_state(state)) == ([] if ready else [f"slot 0: p is {state}"])
    assert find_still(in_state(state)) == []


def test_worker_that_does_not_turn_is_named_unless_it_waits_for_another_system() -> None:
    stuck = {"still_seconds": LIMIT + 1, "place": "price (shop.py, line 12)"}
    assert find_still(in_state(WorkerState.RUNNING, **stuck)) == [
        ("slot 0: p has made no progress: it is in price (shop.py, line 12)", LIMIT + 1)
    ]
    assert find_still(in_state(WorkerState.BROKER_AWAY, **stuck)) == []
    assert find_still(in_state(WorkerState.SINK_AWAY, **stuck)) == []
    assert find_still(in_state(WorkerState.RUNNING, still_seconds=LIMIT)) == []


def test_process_that_does_not_report_is_named() -> None:
    assert find_still(replace(HEALTHY, silent=LIMIT)) == []
    assert find_still(HEALTHY, replace(HEALTHY, number=1, silent=LIMIT + 1)) == [
        ("slot 1: its process (4711) has not reported", LIMIT + 1)
    ]


def test_process_that_starts_has_more_time_for_its_first_report() -> None:
    first = SlotStatus(0, 4711, has_reported=False, silent=LIMIT + 1)
    assert (find_still(first), find_unready(first)) == ([], ["slot 0: p is joining"])
    assert find_still(replace(first, silent=STARTING_SECONDS + 1)) == [
        ("slot 0: its process (4711) has not reported", STARTING_SECONDS + 1)
    ]


def test_slot_whose_process_is_being_restarted_is_alive_and_not_ready() -> None:
    ended = replace(HEALTHY, pid=None, ends=(End(0.0, "SIGKILL"),), silent=1_000.0)
    begun = replace(ended, pid=4712, has_reported=False, silent=0.0)
    assert (find_still(ended, begun), find_unready(ended, replace(begun, number=1))) == (
        [], ["slot 0: p is restarting", "slot 1: p is restarting"],
    )  # fmt: skip


def test_slot_that_a_worker_elsewhere_holds_is_not_judged_by_its_last_reports() -> None:
    taken = replace(in_state(WorkerState.RUNNING, still_seconds=99.0), pid=None, taken="Replaced: by m7")
    assert (find_still(taken), find_unready(taken)) == ([], ["slot 0 is replaced: Replaced: by m7"])


def test_run_that_drains_is_alive_and_not_ready() -> None:
    assert find_unready(in_state(WorkerState.DRAINING), stopping=True) == ["the workers drain"]


def test_process_that_stopped_looking_at_its_workers_is_named_once_that_lasts() -> None:
    assert find_still(HEALTHY, now=LIMIT - 1) == []
    assert find_still(HEALTHY, now=LIMIT + 1) == [
        ("the process that watches the workers has not looked at them", LIMIT + 1)
    ]


# The status of a supervised slot.


def report_line(commits: int, processor: str = "p") -> bytes:
    return json.dumps(replace(RUNNING, processor=processor, counters={"commits": commits}).head()).encode() + b"\n"


def test_status_of_a_slot_follows_its_processes() -> None:
    slot = SupervisedSlot(3)
    seen = []

    def look(pid: int | None) -> None:
        status = slot.status(pid)
        counts = [report.counters["commits"] for report in status.reports]
        seen.append(
            (status.state_of("p"), status.has_reported, counts, status.restarts, [end.why for end in status.ends])
        )

    look(None)
    slot.begin(0.0)
    slot.started += 1
    look(10)
    slot.feed(report_line(5))
    look(10)
    slot.end(-signal.SIGKILL, 1.0)
    slot.note_end(-signal.SIGKILL, 1_000.0)
    look(None)
    slot.begin(1.0)
    slot.started += 1
    look(11)
    slot.feed(report_line(1))
    look(11)
    assert seen == [
        ("joining", False, [], 0, []),
        ("joining", False, [], 0, []),
        ("running", True, [5], 0, []),
        ("restarting", True, [5], 0, ["SIGKILL"]),
        ("restarting", False, [5], 1, ["SIGKILL"]),
        ("running", True, [6], 1, ["SIGKILL"]),
    ]


def test_processor_that_a_new_process_has_not_reported_is_restarting_and_not_still() -> None:
    slot = SupervisedSlot(0)
    slot.begin(0.0)
    slot.feed(report_line(1) + json.dumps(replace(RUNNING, processor="q", still_seconds=99.0).head()).encode() + b"\n")
    slot.note_end(1, 0.0)
    slot.begin(1.0)
    slot.feed(report_line(1))
    status = slot.status(12)
    assert [(r.processor, status.state_of(r.processor), r.still_seconds) for r in status.reports] == [
        ("p", "running", 0.0), ("q", "restarting", 0.0),
    ]  # fmt: skip


def test_task_that_a_peer_had_before_it_died_is_spare_and_nothing_waits_for_it() -> None:
    slot = SupervisedSlot(0)

    def feed(*names: str) -> None:
        for name in names:
            report = replace(RUNNING, processor=name, lag=7, is_task=name != PEER)
            slot.feed(json.dumps(report.head()).encode() + b"\n")

    slot.begin(0.0)
    feed(PEER, "shop.parse")
    slot.begin(1.0)
    feed(PEER, "shop.store")
    status = slot.status(12)
    assert [(each.processor, status.state_of(each.processor), each.lag) for each in status.reports] == [
        (PEER, "running", 7), ("shop.parse", "spare", 0), ("shop.store", "running", 7),
    ]  # fmt: skip
    assert [each.lag for each in slot.reports()] == [7, 0, 7]


def test_silence_of_a_slot_grows_by_looks_and_ends_with_a_report() -> None:
    slot, seen = SupervisedSlot(0), []
    slot.begin(0.0)
    slot.feed(report_line(1))
    for now in (1.0, 2.0, 3.0, 100.0):
        slot.look(now)
        seen.append(slot.status(10).silent)
    slot.feed(report_line(2))
    slot.look(101.0)
    assert [*seen, slot.status(10).silent] == [0.0, 1.0, 2.0, 4.0, 0.0]


def test_status_keeps_the_newest_ends_of_a_slot() -> None:
    slot = SupervisedSlot(0)
    for at in range(ENDS_KEPT + 5):
        slot.note_end(1, float(at))
    assert [end.at for end in slot.status(None).ends] == [float(at) for at in range(5, ENDS_KEPT + 5)]
