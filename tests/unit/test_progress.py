"""terminal/progress.py: the status of a run as a table in a terminal, and as log lines elsewhere."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from kstreams_py.metrics import InputCounts, PendingFigures, WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from kstreams_py.running.terminal.progress import (
    IDLE_LINES_EVERY,
    LINES_EVERY,
    PROCESSORS,
    SLOTS,
    SOURCES,
    Progress,
    duration,
    processor_rows,
    shown,
    slot_rows,
    source_rows,
    tables,
)
from kstreams_py.testing import ManualClock


def report(
    records_in: int, *, records_out: int = 0, dead_letters: int = 0, commits: int = 0, lag: int | None = 0,
    processor: str = "p", held: int = 0, state: WorkerState = WorkerState.RUNNING, **rare: int,
) -> Report:  # fmt: skip
    counters = {"records_in": records_in, "records_out": records_out, "dead_letters": dead_letters, "commits": commits,
                "aborts": 0, "dropped": 0, "rolled_back": 0, **rare}  # fmt: skip
    lags = {TopicPartition("a", number): None for number in range(held)}
    return Report(processor, 0, counters, lag, lags=lags, state=state)


def run_of(*reports: Report, at: float = 100.0) -> RunStatus:
    return RunStatus((SlotStatus(0, 7, reports, began_at=100.0),), at)


def make_plain_progress(clock: ManualClock) -> Progress:
    return Progress(Console(file=StringIO()), clock)


def make_terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, width=100, height=20, color_system=None)


def read_output(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


SLOTS_OF_FOUR = RunStatus(
    (
        SlotStatus(0, 7, (report(1_000, records_out=2_000, dead_letters=30, lag=5_000, held=3),
                          report(1, processor="q", state=WorkerState.RETRYING, held=1)), began_at=40.0),
        SlotStatus(1, 8, (report(234, records_out=345, dead_letters=4, rolled_back=56, lag=678, held=2),),
                   began_at=90.0, restarts=2),
        SlotStatus(2, None, (report(5, lag=9, held=2),), restarts=1, ends=(End(0.0, "SIGKILL"),), taken="by m7"),
        SlotStatus(3, 9, (), has_reported=False, began_at=99.0),
    ),
    100.0,
)  # fmt: skip


def test_rows_of_processors_are_sums_over_slots_with_their_states() -> None:
    rows = processor_rows(SLOTS_OF_FOUR, {"p": (1234.4, 9.96)})
    assert rows == {
        "p": ("1 joining, 2 running, 1 replaced", "5", "1,239", "2,345", "34", "0", "56", "5,678", "1,234", "10.0"),
        "q": ("2 joining, 1 retrying, 1 replaced", "1", "1", "0", "0", "0", "0", "0", "0", "0.0"),
    }
    assert {len(row) for row in rows.values()} == {len(PROCESSORS)}


def test_rows_of_slots_have_state_partitions_uptime_and_restarts() -> None:
    rows = slot_rows(SLOTS_OF_FOUR)
    assert rows == {
        "0": ("1 running, 1 retrying", "4", "1m00s", "0"),
        "1": ("running", "2", "10s", "2"),
        "2": ("replaced", "0", "", "1"),
        "3": ("joining", "0", "1s", "0"),
    }
    assert {len(row) for row in rows.values()} == {len(SLOTS)}


def test_lag_is_unknown_while_a_slot_restarts_and_where_a_worker_does_not_know_it() -> None:
    ended = SlotStatus(0, None, (report(5, lag=9),), ends=(End(0.0, "SIGKILL"),))
    found = [processor_rows(status, {})["p"] for status in (RunStatus((ended,), 1.0), run_of(report(1, lag=None)))]
    assert [(row[0], row[7]) for row in found] == [("restarting", "?"), ("running", "?")]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.9, "59s"), (60, "1m00s"), (3_599, "59m59s"), (11_220, "3h07m"), (90_000, "1d01h")],
)
def test_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def columns_shown(*reports: Report) -> dict[int, list[str]]:
    """The columns of processors by the width of the terminal."""
    rows = processor_rows(run_of(*reports), {})
    return {width: shown(PROCESSORS, rows, "processor", width) for width in (200, 60, 40, 10)}


def test_narrow_terminal_leaves_columns_out_and_keeps_the_state() -> None:
    assert columns_shown(report(1_000, lag=3)) == {
        200: ["state", "partitions", "in", "out", "dead letters", "lag", "records/s", "commits/s"],
        60: ["state", "partitions", "in", "dead letters", "lag"],
        40: ["state", "dead letters", "lag"],
        10: ["state"],
    }


def test_steps_that_are_dropped_or_rolled_back_have_columns_once_there_are_some() -> None:
    rare = columns_shown(report(1_000, rolled_back=2), report(1, processor="q", dropped=3))
    assert rare == {
        200: list(PROCESSORS),
        60: ["state", "partitions", "dead letters", "dropped", "lag"],
        40: ["state", "dead letters", "lag"],
        10: ["state"],
    }
    assert columns_shown(report(1, rolled_back=2))[200] == [each for each in PROCESSORS if each != "dropped"]


def test_rates_are_measured_over_a_second_or_more_and_kept_until_the_next() -> None:
    clock = ManualClock()
    progress, rates = make_plain_progress(clock), []
    for seconds, records, commits in [
        (0.0, 1_000_000, 100),
        (0.5, 1_000_400, 104),
        (0.5, 1_001_000, 110),
        (0.9, 1_009_000, 190),
        (1.1, 1_011_000, 140),
        (4.0, 1_011_000, 140),
    ]:
        clock.advance(seconds)
        rates.append(progress.rows(run_of(report(records, commits=commits)))["p"][-2:])
    assert rates == [("0", "0.0"), ("0", "0.0"), ("1,000", "10.0"), ("1,000", "10.0"), ("5,000", "15.0"), ("0", "0.0")]


def test_rates_of_counts_that_decrease_are_zero() -> None:
    clock = ManualClock()
    progress = make_plain_progress(clock)
    progress.rows(run_of(report(100, commits=10)))
    clock.advance(2.0)
    assert progress.rows(run_of(report(50, commits=5)))["p"][-2:] == ("0", "0.0")
    clock.advance(2.0)
    assert progress.rows(run_of(report(150, commits=15)))["p"][-2:] == ("50", "5.0")


def test_without_a_terminal_lines_are_logged_every_five_seconds_or_minute_if_idle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, lines = ManualClock(), []
    assert (LINES_EVERY, IDLE_LINES_EVERY) == (5.0, 60.0)
    with make_plain_progress(clock) as progress:
        for second in range(71):
            progress.show(run_of(report(second, lag=None, held=2), report(1, processor="q")))
            lines += [(second, record.getMessage().partition(",")[0]) for record in caplog.records]
            caplog.clear()
            clock.advance(1.0)
    assert [line for line in lines if line[1].startswith("p")] == [(n, f"p: {n} in") for n in range(5, 71, 5)]
    assert [line for line in lines if line[1].startswith("q")] == [(5, "q: 1 in"), (65, "q: 1 in")]


def test_line_of_a_processor_ends_with_its_partitions_and_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    with make_plain_progress(clock) as progress:
        clock.advance(5.0)
        progress.show(run_of(report(3, lag=None, held=2)))
    text = "p: 3 in, 0 out, 0 dead letters, ? lag, 0 records/s, 0.0 commits/s, 2 partitions, running"
    assert [record.getMessage() for record in caplog.records] == [text]


def test_line_names_dropped_and_rolled_back_steps_if_there_are_some(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    with make_plain_progress(clock) as progress:
        clock.advance(5.0)
        progress.show(run_of(report(15, records_out=3, dead_letters=11, dropped=1, rolled_back=35)))
    text = "p: 15 in, 3 out, 11 dead letters, 1 dropped, 35 rolled back, 0 lag, 0 records/s, 0.0 commits/s"
    assert [record.getMessage() for record in caplog.records] == [f"{text}, 0 partitions, running"]


def test_sources_have_a_line_and_a_table_with_the_oldest_input_of_all_slots(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    measures = InputCounts(done=1_040, refused=2, died=5, raised=1).measures("rows")
    first = replace(
        report(1), is_task=True, measures=measures, sources={"rows": PendingFigures(30, 61.0, "13", ("p",))}
    )
    other = replace(first, measures={}, sources={"rows": PendingFigures(2, 5.0, "7", ("q",))})
    status = RunStatus((SlotStatus(0, 7, (first,)), SlotStatus(1, 8, (other,)), SlotStatus(2, None, (first,))), 100.0)
    rows = source_rows(status)
    assert rows == {"rows": ("32", "1m01s", "13", "p", "2,080", "4", "10 died, 2 raised")}
    assert shown(SOURCES, rows, "source", 100) == list(SOURCES)
    clock, lines = ManualClock(), list[str]()
    with make_plain_progress(clock) as progress:
        for _ in range(65):
            clock.advance(1.0)
            progress.show(status)
        lines += [record.getMessage() for record in caplog.records if record.getMessage().startswith("source")]
    text = "source rows: 32 under way, the oldest for 1m01s (key 13, in p), 2,080 done, 4 refused, read again: "
    assert lines == [f"{text}10 died, 2 raised"] * 2
    console = Console(file=StringIO(), width=100)
    console.print(tables(processor_rows(status, {}), slot_rows(status), rows))
    assert [line.split()[0] for line in read_output(console).splitlines()] == [
        "processor", "p", "source", "rows", "slot", "0", "1", "2",
    ]  # fmt: skip


def test_without_a_terminal_no_table_is_drawn() -> None:
    console = Console(file=StringIO())
    with Progress(console, ManualClock()) as progress:
        progress.show(run_of(report(1)))
    assert read_output(console) == ""


def test_terminal_shows_tables_that_keep_the_last_status(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    console, clock = make_terminal(), ManualClock()
    with Progress(console, clock) as progress:
        progress.show(run_of(report(1)))
        clock.advance(60.0)
        progress.show(run_of(report(1_234, records_out=5, commits=60), report(9, processor="long name"), at=160.0))
        progress.show(run_of(report(1_235), report(9, processor="long name"), at=161.0))  # too soon to be drawn
    drawn = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", read_output(console)).splitlines()
    assert [line.split() for line in drawn[-5:]] == [
        ["processor", "state", "partitions", "in", "out", "dead", "letters", "lag", "records/s", "commits/s"],
        ["p", "running", "0", "1,235", "0", "0", "0", "21", "1.0"],
        ["long", "name", "running", "0", "9", "0", "0", "0", "0", "0.0"],
        ["slot", "state", "partitions", "up", "restarts"],
        ["0", "running", "0", "1m01s", "0"],
    ]
    assert caplog.records == []


def test_terminal_cursor_is_restored_after_a_failure() -> None:
    console = make_terminal()
    with pytest.raises(AttributeError), Progress(console, ManualClock()) as progress:
        progress.show(None)  # type: ignore[arg-type]
    shown = read_output(console)
    assert (shown.count("\x1b[?25l"), shown.count("\x1b[?25h")) == (1, 1), "the cursor is hidden once and shown once"


def test_names_in_brackets_are_no_styles() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(
        tables({"[p]": ("running", "1", "2", "3", "4", "0", "0", "5", "6", "7.0")}, {"0": ("spare", "1", "2s", "0")})
    )
    assert [line.split()[:2] for line in read_output(console).splitlines()] == [
        ["processor", "state"],
        ["[p]", "running"],
        ["slot", "state"],
        ["0", "spare"],
    ]


def test_one_of_something_has_its_singular(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    with make_plain_progress(clock) as progress:
        clock.advance(5.0)
        progress.show(run_of(report(1, records_out=1, dead_letters=1, held=1)))
    text = "p: 1 in, 1 out, 1 dead letter, 0 lag, 0 records/s, 0.0 commits/s, 1 partition, running"
    assert [record.getMessage() for record in caplog.records] == [text]
