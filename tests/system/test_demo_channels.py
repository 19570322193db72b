"""`kstreams demo channels` as a user runs it: every line of its table and of its report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.system.command import read_checks, run_demo

SHORT = {"rows": 1_200, "kills": 2}
LONG = {"rows": 50_000, "kills": 12}
"""The defaults of the command."""

STORED = {1_200: ("1,198", "2"), 50_000: ("49,831", "169")}
"""Rows that are stored, and that are refused."""


@pytest.mark.parametrize("run", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"])
def test_demo_of_channels_with_kills_and_a_freeze_stores_each_row_once(run: dict[str, int], tmp_path: Path) -> None:
    output = tmp_path / "output"
    done, _ = run_demo("channels", "--rows", run["rows"], "--kills", run["kills"], output=output)
    rows, kills, (stored, refused) = f"{run['rows']:,}", str(run["kills"]), STORED[run["rows"]]
    assert read_checks(done.out) == [
        ("ok", "inputs claimed", rows, rows),
        ("ok", "inputs done", stored, stored),
        ("ok", "inputs refused", refused, refused),
        ("ok", "inputs refused for another reason", "0", "0"),
        ("ok", "rows stored", stored, stored),
        ("ok", "rows lost", "0", "0"),
        ("ok", "rows doubled", "0", "0"),
        ("ok", "rows altered", "0", "0"),
        ("ok", "workers killed", kills, kills),
        ("ok", "workers frozen past their lease", "1", "1"),
    ]
    assert (done.out.count("SIGKILL"), done.out.count("SIGSTOP")) == (run["kills"], 1)
    report = (output / "report.md").read_text(encoding="utf-8")
    again = re.search(r"([\d,]+) flights were under way when that happened, and were read again", report)
    assert again is not None
    assert int(again[1].replace(",", "")) > 0
    assert f" rows were written for the {stored} that are stored: " in report
