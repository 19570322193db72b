"""The demo as a user runs it: one command, workers killed meanwhile, every figure of its table and its report."""

from __future__ import annotations

import re
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.system.command import command, read_checks, run_demo
from tests.waiting import wait_until

RECORDS = 6_000
KILLS = 3
LIMIT = 540.0
"""Seconds for the whole command: a broker, its workers and Spark."""


def test_ctrl_c_while_the_demo_starts_is_one_message(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with command(tmp_path, "demo", "flights", "--records", 100, "--output", output, environment={}) as demo:
        wait_until((output / "run.log").exists, "the demo starts its broker")
        demo.send(signal.SIGINT)
        assert demo.wait() == 130
    assert "Traceback" not in demo.text
    assert demo.text.splitlines()[-1] == "interrupted"


@pytest.mark.long
def test_demo_with_kills_loses_and_duplicates_nothing_and_writes_its_report(tmp_path: Path) -> None:
    output = tmp_path / "output"
    done, log = run_demo("flights", "--records", RECORDS, "--kills", KILLS, output=output, limit=LIMIT)
    assert read_checks(done.out) == [
        ("ok", "departures read", "6,000", "6,000"),
        ("ok", "merged from three airports", "6,000", "6,000"),
        ("ok", "departed", "5,842", "5,842"),
        ("ok", "cancelled", "147", "147"),
        ("ok", "dead letters", "11", "11"),
        ("ok", "without a tail number, so without a key", "42", "42"),
        ("ok", "lost", "0", "0"),
        ("ok", "duplicated", "0", "0"),
        ("ok", "altered", "0", "0"),
        ("ok", "out of order", "0", "0"),
        ("ok", "deliveries lost, by delivery hash", "0", "0"),
        ("ok", "deliveries repeated, by delivery hash", "0", "0"),
        ("ok", "rows in SQLite", "5,842", "5,842"),
        ("ok", "rows in SQLite that differ from the file", "0", "0"),
        ("ok", "rows of Spark's table (carrier and month)", "161", "161"),
        ("ok", "rows of Spark's table that differ from the file", "0", "0"),
    ]
    assert done.out.count("SIGKILL") == KILLS
    assert done.out.index("the workers have joined: writing departures") < done.out.index("SIGKILL")
    assert re.search(
        r"\nfrom a kill to the slot's next commit: the median is [\d.]+ s, the longest [\d.]+ s\n", done.out
    )
    assert {path.name for path in output.iterdir()} == {"delays", "flights.sqlite", "report.html", "run.log"}
    database = sqlite3.connect(output / "flights.sqlite")
    assert database.execute("SELECT count(*), count(DISTINCT delivery_hash) FROM departed").fetchone() == (5842, 5842)
    months = database.execute("SELECT DISTINCT month FROM departed ORDER BY month").fetchall()
    assert months == [(month,) for month in range(1, 13)], "a short run samples the year"
    database.close()
    page = (output / "report.html").read_text(encoding="utf-8").replace("&nbsp;", " ")
    assert f"<h1>6,000 departures, {KILLS} kills, none lost, none doubled</h1>" in page
    kills = re.findall(r'<tr><td class="n">(\d)</td><td class="n">([\d.]+) s</td>.*<td class="n">([\d.]+) s</td>', page)
    times = [float(at) for _, at, _ in kills]
    assert [number for number, _, _ in kills] == ["1", "2", "3"], "each has a time until the slot's next commit"
    assert times == sorted(times)
    assert page.count('<details class="letter"') == 5
    assert "5 of 11, spread evenly over the year" in page
    assert set(re.findall(r"^\[(\d)\] 2", log, flags=re.MULTILINE)) == {"0", "1", "2"}, "each worker's log has its slot"
