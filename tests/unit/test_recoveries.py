"""demo/recoveries.py: the time from a kill until the slot's next commit, by what a reader sees and workers report."""

from __future__ import annotations

import pytest

from kstreams_py.demo.recoveries import Kill, Recoveries, Seen, are_running
from kstreams_py.metrics import WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.reports import Report
from kstreams_py.running.status import RunStatus, SlotStatus


def source(processor: str, tp: TopicPartition) -> bytes:
    return f"{processor} {tp.partition}".encode()


def slot(
    number: int,
    pid: int | None,
    began_at: float,
    partitions: tuple[int, ...] = (),
    state: WorkerState = WorkerState.RUNNING,
) -> SlotStatus:
    """A slot whose only processor, split, holds partitions."""
    report = Report("split", number, {}, None, state=state, lags={TopicPartition("in", p): None for p in partitions})
    return SlotStatus(number, pid, (report,), began_at=began_at)


def status(*slots: SlotStatus) -> RunStatus:
    return RunStatus(slots, 0.0)


OUT = TopicPartition("out", 0)


def seen(*records: tuple[float, int]) -> list[Seen]:
    """Looks of the reader: when, and the partition that was read. The outputs have the offsets 0, 1, 2."""
    return [
        (at, {source("split", TopicPartition("in", p)): {OUT: i}, b"another": {OUT: 99}})
        for i, (at, p) in enumerate(records)
    ]


@pytest.fixture
def recoveries() -> Recoveries:
    """Slot 0 holds partition 0 and slot 1 partition 1, since 1.0; slot 0 has another process since 10.2."""
    found = Recoveries(source)
    found.note(status(slot(0, 100, 1.0), slot(1, 101, 1.0)))
    found.note(status(slot(0, 100, 1.0, (0,)), slot(1, 101, 1.0, (1,))))
    found.note(status(slot(0, None, 1.0, (0,), WorkerState.RESTARTING), slot(1, 101, 1.0, (1,))))
    found.note(status(slot(0, 102, 10.2, (0,), WorkerState.RESTARTING), slot(1, 101, 1.0, (1,))))
    return found


def seconds(recoveries: Recoveries, kills: list[Kill], looks: list[Seen]) -> list[float | None]:
    """The times after kills, each when the topics were empty still."""
    for kill in kills:
        recoveries.note_ends(kill, {})
    return recoveries.seconds(kills, looks)


def test_next_commit_is_the_first_record_seen_from_the_slots_next_process(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 102, 10.2, (0,)), slot(1, 101, 1.0, (1,))))
    looks = seen((9.5, 0), (10.1, 0), (10.5, 1), (11.5, 0), (12.0, 0))
    assert seconds(recoveries, [Kill(10.0, 0, 100)], looks) == [1.5]


def test_commit_of_a_killed_process_seen_after_its_successor_started_is_not_counted(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 102, 10.2, (0,)), slot(1, 101, 1.0, (1,))))
    kill, looks = Kill(10.0, 0, 100), seen((9.9, 0), (10.3, 0), (11.5, 0))
    assert seconds(recoveries, [kill], looks) == [pytest.approx(0.3)]
    recoveries.note_ends(kill, {OUT: 2})
    assert recoveries.seconds([kill], looks) == [1.5]


def test_kill_after_which_the_ends_are_not_known_has_no_time(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 102, 10.2, (0,)), slot(1, 101, 1.0, (1,))))
    assert recoveries.seconds([Kill(10.0, 0, 100)], seen((9.9, 0), (11.5, 0))) == [None]


def test_process_that_is_killed_before_it_reports_holds_what_the_one_before_held(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 103, 20.0)))
    looks = seen((11.0, 0), (19.0, 1), (21.5, 0))
    assert seconds(recoveries, [Kill(10.0, 0, 100), Kill(19.5, 0, 102)], looks) == [1.0, 2.0]


def test_kill_before_a_commit_that_follows_another_has_the_same_commit_next(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 103, 11.0, (0,))))
    assert seconds(recoveries, [Kill(10.0, 0, 100), Kill(10.5, 0, 102)], seen((12.0, 0))) == [2.0, 1.5]


def test_partition_that_the_next_process_does_not_get_back_is_not_its_commit(recoveries: Recoveries) -> None:
    recoveries.note(status(slot(0, 102, 10.2, (2,)), slot(1, 101, 1.0, (0, 1))))
    assert seconds(recoveries, [Kill(10.0, 0, 100)], seen((11.0, 0), (13.0, 2))) == [3.0]


def test_kill_that_no_process_or_no_commit_of_its_slot_follows_has_no_time(recoveries: Recoveries) -> None:
    looks = seen((11.0, 1), (30.0, 0))
    kills = [Kill(29.0, 1, 101), Kill(31.0, 0, 102), Kill(5.0, 7, 107)]
    assert seconds(recoveries, kills, looks) == [None, None, None]


@pytest.mark.parametrize(
    ("states", "running"),
    [
        ((WorkerState.RUNNING, WorkerState.SPARE), True),
        ((WorkerState.RUNNING, WorkerState.JOINING), False),
        ((WorkerState.RUNNING, WorkerState.RESTARTING), False),
        ((WorkerState.RUNNING,), False),
    ],
)
def test_workers_run_once_each_of_every_slot_has_its_place(states: tuple[WorkerState, ...], running: bool) -> None:
    now = status(*(slot(number, 100 + number, 1.0, (), state) for number, state in enumerate(states)))
    assert are_running(now, ["split"], 2) is running


def test_worker_that_has_not_reported_on_a_processor_is_not_running() -> None:
    assert not are_running(status(slot(0, 100, 1.0)), ["split", "store"], 1)
