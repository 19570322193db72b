"""`kstreams demo channels`: takes the flights of a table, kills and freezes workers meanwhile, and checks every row.

It needs neither Kafka nor Java: the flights are claimed from a table in SQLite, and stored in another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kstreams_py.demo import data_files
from kstreams_py.demo.channel_checks import RatedFlights, RunFaults, describe, judge, rate
from kstreams_py.demo.channel_tables import DemoTables
from kstreams_py.demo.channels_graph import SOURCE, graph
from kstreams_py.demo.checks import exit_status
from kstreams_py.demo.screen import LOG, Screen, log_writer, logged_to, prepare
from kstreams_py.demo.traffic import AWAKE_SECONDS, TICK, Freeze, Kills
from kstreams_py.errors import SettingsError
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.terminal.progress import LockedConsole
from kstreams_py.running.wiring import supervise
from kstreams_py.settings import Settings
from kstreams_py.sources.suspects import DEATHS_MAX

GRAPH: Final = "kstreams_py.demo.channels_graph:graph"
REPORT: Final = "report.md"

RATE: Final = 2_000
"""Flights per second, or fewer if the kills need more time."""

SECONDS_PER_KILL: Final = 2.0

ROWS_PER_KILL: Final = 1_000
"""With fewer rows, some could be under way at every kill, and would be refused as the cause of the deaths."""

FROZEN_SECONDS: Final = SOURCE.lease + 2.5

STALLED: Final = 60.0
"""Seconds without a new row before the run ends early, and its results are checked as they are."""


def run(rows: int, kills: int, workers: int, seed: int, output: Path) -> int:
    """Runs the demo, and returns the exit status: 0 if every check holds, otherwise 1.

    - `rows`: how many flights to process, spread evenly over the year.
    - `kills`: how many workers to kill, spread evenly over the run; unless 0, one worker is frozen, too.
    - `seed`: the seed of the random kills.
    - `output`: the directory of the tables and the report; files of an earlier run are replaced.

    Raises SettingsError, and WorkersFailed if the workers end with an error.
    """
    screen = Screen(LockedConsole(stderr=False), "flights")
    screen.say("reading the departures and the weather of 2013")
    departures = data_files.read(rows)
    if kills + 1 >= DEATHS_MAX and len(departures) < kills * ROWS_PER_KILL:
        raise SettingsError(
            f"{kills} kills in {len(departures):,} rows could kill the workers of one row {DEATHS_MAX} times, and then "
            f"it is refused: give at least {kills * ROWS_PER_KILL:,} rows, or at most {DEATHS_MAX - 2} kills"
        )
    output = prepare(output, [LOG, REPORT, *DemoTables(output).files])
    expected, planned, tables = rate(departures), RunFaults(kills, min(kills, 1)), DemoTables(output)
    tables.create(departures)
    with logged_to(output / LOG):
        faults = ChannelsStage(tables, expected, planned, workers, seed, screen).run()
    found = tables.read()
    checks = judge(expected, found, planned, faults)
    screen.table(checks)
    screen.report(output / REPORT, "Rows of a table, over channels", describe(found, faults))
    return exit_status(checks)


@dataclass(frozen=True, slots=True)
class ChannelsStage:
    """Runs the workers, the kills and the screen together.

    - `planned`: the faults that the run is to have.
    - `workers`: the number of workers.
    - `seed`: the seed of the faults.
    """

    tables: DemoTables
    expected: RatedFlights
    planned: RunFaults
    workers: int
    seed: int
    screen: Screen

    def run(self) -> RunFaults:
        """Runs until the workers have ended, or no row is stored for STALLED seconds; returns the faults.

        Raises WorkersFailed.
        """
        total, log = self.expected.rows.total(), self.tables.directory / LOG
        kills, freeze = Kills(self.planned.killed, total, self.seed), Freeze(FROZEN_SECONDS, total, self.seed)
        supervisor, newest, changed = self._supervisor(), 0, time.monotonic()
        self.screen.say(f"{self.workers} workers, {kills.left} kills to come; the log is {log}")
        with self.screen, ThreadPoolExecutor(1) as pool:
            running = pool.submit(supervisor.run, lambda _: None, None, log_writer(log, self.screen))
            try:
                while not running.done():
                    written, stored = self.tables.count()
                    if written > newest:
                        newest, changed = written, time.monotonic()
                    elif time.monotonic() > changed + STALLED:
                        self.screen.say("[red]no new rows[/]: checking the results as they are")
                        break
                    self.screen.counts({"rows written": written, "rows stored": stored}, stored, total)
                    self._hit(kills, freeze, stored, supervisor.pids)
                    time.sleep(TICK)
            finally:
                freeze.end()
                supervisor.stop()
                running.result()  # raises its exception, if it has one
        return RunFaults(len(kills.done), int(freeze.has_thawed))

    def _hit(self, kills: Kills, freeze: Freeze, stored: int, pids: Mapping[int, int]) -> None:
        """Freezes or kills a worker if a fault is due. `pids`: process ids by slot."""
        if self.planned.frozen and (frozen := freeze.look(stored, pids)):
            self.screen.frozen(frozen, FROZEN_SECONDS)
        # spares workers that are ending, a worker that was just frozen, and workers that take over its claims
        if stored == self.expected.rows.total() or freeze.is_under_way:
            return
        if kill := kills.look(stored, pids):
            self.screen.killed(kill, len(kills.done), len(kills.done) + kills.left)

    def _supervisor(self) -> Supervisor:
        total = self.expected.rows.total()
        seconds = max(total / RATE, SECONDS_PER_KILL * self.planned.killed)
        seconds += self.planned.frozen * (FROZEN_SECONDS + AWAKE_SECONDS)  # there are no kills meanwhile
        calls = self.workers * max(task.concurrency for task in graph.tasks)
        environment = {
            "KSTREAMS_DEMO_DIRECTORY": str(self.tables.directory),
            "DEMO_LONGEST_WAIT": str(2 * calls * seconds / max(1, total)),
        }
        return supervise(GRAPH, range(self.workers), Settings(), environment)
