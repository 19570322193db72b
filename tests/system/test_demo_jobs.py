"""`kstreams demo jobs` as a user runs it: every line of its table and of its report, and what it leaves behind."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.system.command import command, read_checks, run_demo


class Run(NamedTuple):
    """A run, with how many rows each job stores, and refuses."""

    rows: int
    kills: int
    freezes: int
    aircraft: tuple[str, str]
    weather: tuple[str, str]


SHORT: Final = Run(600, 1, 1, ("596", "4"), ("599", "1"))
LONG: Final = Run(20_000, 10, 3, ("19,839", "161"), ("19,921", "79"))
"""The defaults of the command."""


def checks_of(run: Run) -> list[tuple[str, ...]]:
    rows, found = f"{run.rows:,}", list[tuple[str, ...]]()
    for graph, (stored, refused) in (("aircraft", run.aircraft), ("weather", run.weather)):
        counts = {
            "inputs claimed": rows,
            "inputs done": stored,
            "inputs refused": refused,
            "inputs refused for another reason": "0",
            "rows stored": stored,
            "rows lost": "0",
            "rows doubled": "0",
            "rows altered": "0",
        }
        found += [("ok", f"{graph}: {what}", count, count) for what, count in counts.items()]
    faults = {
        "peers killed, and seen to be dead": run.kills,
        "peers frozen, and found silent": run.freezes,
        "peers that joined the others later": 2,
        "jobs killed, and submitted again": 1,
        "jobs completed": 2,
    }
    return found + [("ok", what, str(count), str(count)) for what, count in faults.items()]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", [SHORT, LONG], ids=["short", "long"])
def test_demo_of_jobs_with_kills_freezes_and_joins_ends_with_equal_tables(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "output"
    amounts = ("--rows", run.rows, "--kills", run.kills, "--freezes", run.freezes)
    done, _ = run_demo("jobs", *amounts, output=output)
    assert read_checks(done.out) == checks_of(run)
    assert done.out.splitlines()[-1] == "tables are equal"
    hits = {
        "SIGKILL": run.kills,
        "SIGSTOP": run.freezes,
        "SIGCONT": run.freezes,
        "a peer joins": 2,
        "a job is killed": 1,
    }
    assert {what: done.out.count(f" s  {what} ") for what in hits} == hits
    page = (output / "report.html").read_text(encoding="utf-8").replace("&nbsp;", " ")
    assert f"<h1>Two jobs, {run.kills} kills, {run.freezes} freezes, tables are equal</h1>" in page
    ran = set(re.findall(r"<td>((?:aircraft|weather)-\d)</td><td>([\w-]+)</td></tr>", page))
    assert {task for job, task in ran if job.startswith("aircraft")} == {"read-departures", "name", "look_up"}
    weather = {"read-rows", "parse", "look_up", "classify", "score", "combine", "store"}
    assert {task for job, task in ran if job.startswith("weather")} == weather


def test_ctrl_c_while_the_demo_of_jobs_starts_is_one_message(tmp_path: Path) -> None:
    output = tmp_path / "output"
    few = ("--rows", 600, "--kills", 1, "--freezes", 1)
    with command(tmp_path, "demo", "jobs", *few, "--output", output, environment={}) as demo:
        demo.await_text("starting a Kafka broker")
        demo.send(signal.SIGINT)
        assert demo.wait() == 130
    assert "Traceback" not in demo.text
    assert demo.text.splitlines()[-1] == "interrupted"
