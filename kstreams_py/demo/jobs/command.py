"""`kstreams demo jobs`: two jobs on peers that are killed and frozen while others join; then every row is checked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from kstreams_py.demo import data_files
from kstreams_py.demo.channel_checks import rate
from kstreams_py.demo.channel_tables import DemoTables
from kstreams_py.demo.checks import exit_status
from kstreams_py.demo.jobs import aircraft_graph
from kstreams_py.demo.jobs.checks import describe_jobs, judge_jobs, look_up_all
from kstreams_py.demo.jobs.report import JobsReport, draw_page
from kstreams_py.demo.jobs.stage import JobsOptions, JobsStage
from kstreams_py.demo.screen import LOG, Screen, open_cluster, prepare
from kstreams_py.running.terminal.progress import LockedConsole

REPORT: Final = "report.html"


def run(options: JobsOptions, output: Path) -> int:
    """Runs the demo, and returns the exit status: 0 if every check holds, otherwise 1.

    - `output`: the directory of the tables and the report; files of an earlier run are replaced.

    Raises SettingsError, and WorkersFailed if the peers end with an error.
    """
    options.check()
    began = time.monotonic()
    screen = Screen(LockedConsole(stderr=False), "rows")
    screen.say("reading the departures, the weather and the aircraft of 2013")
    departures = data_files.read(options.rows)
    expected = {"aircraft": look_up_all(departures), "weather": rate(departures)}
    files = (name for each in _tables(output).values() for name in each.files)
    output = prepare(output, [LOG, REPORT, *files])
    tables = _tables(output)
    for each in tables.values():
        each.create(departures)
    screen.say("starting a Kafka broker on this machine")
    with open_cluster(output) as (settings, cluster):
        done = JobsStage(options, settings, cluster, tables, expected, output, screen).run()
    found = {graph: each.read() for graph, each in tables.items()}
    checks = judge_jobs(expected, found, options.faults, done)
    screen.table(checks)
    for line in describe_jobs(found, done):
        screen.say(line)
    are_equal = all(found[graph].rows == expected[graph].rows for graph in expected)
    page = JobsReport(options, done, found, checks, time.monotonic() - began)
    (output / REPORT).write_text(draw_page(page), encoding="utf-8")
    screen.say(f"report: {output / REPORT}")
    screen.say("tables are equal" if are_equal else "[red]tables differ from those that follow from the file[/]")
    return exit_status(checks)


def _tables(output: Path) -> dict[str, DemoTables]:
    """Returns the tables of each graph."""
    aircraft = DemoTables(output, aircraft_graph.SOURCE, aircraft_graph.TARGET, aircraft_graph.COLUMNS)
    return {"aircraft": aircraft, "weather": DemoTables(output)}
