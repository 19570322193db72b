"""running/progress.py: reports shown as a table in a terminal, and as log lines elsewhere."""

from __future__ import annotations

import logging
import re
from io import StringIO

import pytest
from rich.console import Console

from kstreams_py.running.progress import COLUMNS, LINES_EVERY, Progress, table
from kstreams_py.running.reports import Report
from kstreams_py.testing import ManualClock


def report(
    records_in: int, *, records_out: int = 0, dead_letters: int = 0, commits: int = 0, lag: int | None = 0,
    slot: int = 0, processor: str = "p",
) -> Report:  # fmt: skip
    counters = {"records_in": records_in, "records_out": records_out, "dead_letters": dead_letters, "commits": commits,
                "aborts": 0}  # fmt: skip
    return Report(processor, slot, counters, lag)


def make_plain_progress(clock: ManualClock) -> Progress:
    return Progress(Console(file=StringIO()), clock)


def make_terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, width=100, height=20, color_system=None)


def read_output(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_rows_are_sums_over_slots_with_thousands_set_apart() -> None:
    rows = make_plain_progress(ManualClock()).rows([
        report(1_000, records_out=2_000, dead_letters=30, lag=5_000),
        report(234, records_out=345, dead_letters=4, lag=678, slot=1),
        report(7, processor="q", lag=None),
    ])  # fmt: skip
    assert rows == {"p": ("1,234", "2,345", "34", "5,678", "0", "0.0"), "q": ("7", "0", "0", "?", "0", "0.0")}
    assert {len(row) for row in rows.values()} == {len(COLUMNS)}


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
        rates.append(progress.rows([report(records, commits=commits)])["p"][-2:])
    assert rates == [("0", "0.0"), ("0", "0.0"), ("1,000", "10.0"), ("1,000", "10.0"), ("5,000", "15.0"), ("0", "0.0")]


def test_rates_of_counts_that_decrease_are_zero() -> None:
    clock = ManualClock()
    progress = make_plain_progress(clock)
    progress.rows([report(100, commits=10)])
    clock.advance(2.0)
    assert progress.rows([report(50, commits=5)])["p"][-2:] == ("0", "0.0")
    clock.advance(2.0)
    assert progress.rows([report(150, commits=15)])["p"][-2:] == ("50", "5.0")


def test_without_a_terminal_lines_are_logged_every_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock, counts = ManualClock(), []
    assert LINES_EVERY == 5.0
    with make_plain_progress(clock) as progress:
        for second in range(13):
            progress.show([report(second, lag=None), report(1, processor="q")])
            counts.append(len(caplog.records))
            clock.advance(1.0)
    assert counts == [0] * 5 + [2] * 5 + [4] * 3
    assert [record.getMessage() for record in caplog.records[:2]] == [
        "p: 5 in, 0 out, 0 dead letters, ? lag, 1 records/s, 0.0 commits/s",
        "q: 1 in, 0 out, 0 dead letters, 0 lag, 0 records/s, 0.0 commits/s",
    ]


def test_without_a_terminal_no_table_is_drawn() -> None:
    console = Console(file=StringIO())
    with Progress(console, ManualClock()) as progress:
        progress.show([report(1)])
    assert read_output(console) == ""


def test_terminal_shows_a_table_that_keeps_the_last_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    console, clock = make_terminal(), ManualClock()
    with Progress(console, clock) as progress:
        progress.show([report(1)])
        clock.advance(60.0)
        progress.show([report(1_234, records_out=5, commits=60), report(9, processor="long name")])
    drawn = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", read_output(console)).splitlines()
    assert [line.split() for line in drawn[-3:]] == [
        ["processor", "in", "out", "dead", "letters", "lag", "records/s", "commits/s"],
        ["p", "1,234", "5", "0", "0", "21", "1.0"],
        ["long", "name", "9", "0", "0", "0", "0", "0.0"],
    ]
    assert caplog.records == []


def test_terminal_cursor_is_restored_after_a_failure() -> None:
    console = make_terminal()
    with pytest.raises(AttributeError), Progress(console, ManualClock()) as progress:
        progress.show([None])  # type: ignore[list-item]
    shown = read_output(console)
    assert (shown.count("\x1b[?25l"), shown.count("\x1b[?25h")) == (1, 1), "the cursor is hidden once and shown once"


def test_table_has_a_row_per_processor() -> None:
    console = Console(file=StringIO(), width=100)
    console.print(table({"p": ("1", "2", "3", "4", "5", "6.0")}))
    assert [line.split() for line in read_output(console).splitlines()] == [
        ["processor", "in", "out", "dead", "letters", "lag", "records/s", "commits/s"],
        ["p", "1", "2", "3", "4", "5", "6.0"],
    ]
