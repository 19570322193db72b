"""A job of real processes over a database, without a broker: workers killed at random, every row once."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from bench.servers import Server
from kstreams_py import sources
from kstreams_py.graph.sink import Evidence
from tests.contract.targets import PostgreSQLTarget
from tests.system.command import RunningCommand, command, is_alive, kstreams, list_children
from tests.system.harness import wait_until
from tests.system.site import Site

GRAPH: Final = """
import time

import kstreams_py as ks
from kstreams_py import sinks, sources

graph = ks.Graph("orders")
rows = graph.source("rows", sources.{source}, ends={ends}, lease=1.0))
parsed = graph.channel("parsed")


@graph.map(rows, to=parsed)
def parse(row):
    time.sleep({seconds})
    if row["id"] == 13:
        raise ValueError("no 13")
    return row


@graph.sink(parsed, to=sinks.{target}, columns={{"id": int, "item": str}}))
def store(row):
    return row["id"], row["item"]
"""

LONG: Final = (pytest.mark.long, pytest.mark.timeout(1_800))

SOURCES: Final = {
    "a table": "SQLite({path!r}, table='orders', key='id'",
    "lines": "Files({lines!r}, format='jsonl', claims={path!r}",
    "postgresql": "PostgreSQL({url!r}, table='{schema}.orders', key='id'",
}

NO_BROKER: Final = {"KSTREAMS_BOOTSTRAP_SERVERS": "127.0.0.1:1"}


class Shop:
    """A table of orders, or lines, the graph that copies them, and what is stored.

    - `server`: a PostgreSQL that has the tables; None for files.
    """

    def __init__(
        self,
        directory: Path,
        rows: int,
        *,
        ends: bool = True,
        seconds: float = 0.0,
        medium: str = "a table",
        server: Server | None = None,
    ) -> None:
        self.source, self.target, lines = directory / "source.db", directory / "target.db", directory / "orders.jsonl"
        self.file, self._medium = directory / "orders.py", medium
        self._database = None if server is None else PostgreSQLTarget(server, Evidence.HASH)
        places, target = {"path": str(self.source), "lines": str(lines)}, f"SQLite({str(self.target)!r}, table='stored'"
        if self._database is not None:
            places = {"url": self._database.url, "schema": self._database.schema}
            target = "PostgreSQL({url!r}, table='{schema}.stored'".format(**places)
        self.declared = SOURCES[medium].format(**places)
        graph = GRAPH.format(source=self.declared, target=target, ends=ends, seconds=seconds)
        self.file.write_text(graph, encoding="utf-8")
        self.run_sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        self.insert(range(rows))
        if medium == "lines":
            made = (json.dumps({"id": each, "item": f"item {each}"}) for each in range(rows))
            lines.write_text("\n".join(made), encoding="utf-8")

    def insert(self, ids: range) -> None:
        self.run_sql("INSERT INTO orders VALUES " + ", ".join(f"({each}, 'item {each}')" for each in ids))

    def run_sql(self, statement: str, path: Path | None = None) -> list[Any]:
        if self._database is not None:
            return self._database.execute(statement)
        with closing(sqlite3.connect(path or self.source, timeout=10.0)) as connection, connection:
            return connection.execute(statement).fetchall()

    def stored(self) -> int:
        with suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):  # the table is not there yet
            return int(self.run_sql("SELECT count(*) FROM stored", self.target)[0][0])
        return 0

    def has_stored(self, least: int) -> bool:
        return self.stored() >= least

    def kill_worker(self, running: RunningCommand) -> bool:
        """Kills the oldest worker that has claimed inputs, so none on standby; returns whether there is one."""
        owners = self.run_sql("SELECT process FROM kstreams_claim_owners")
        processes = {process.split()[1] for (process,) in owners}
        for pid in list_children(running.process.pid):
            if str(pid) in processes and is_alive(pid):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def check(self, rows: int) -> None:
        """Checks that each row but 13 is stored once and whole, and acknowledged."""
        expected = [(each, f"item {each}") for each in range(rows) if each != 13]
        assert self.run_sql("SELECT id, item FROM stored ORDER BY id", self.target) == expected
        grouped = "SELECT state, count(*), min(CAST(key AS BIGINT)), reason FROM kstreams_claims GROUP BY state, reason"
        claims = self.run_sql(f"{grouped} ORDER BY state")
        if self._medium == "lines":
            assert claims == [(3, 1, 1 << 40 | 14, "parse: ValueError: no 13")]
            assert self.run_sql("SELECT rows FROM kstreams_files") == [(rows,)]
        else:
            assert claims == [(2, rows - 1, 0, None), (3, 1, 13, "parse: ValueError: no 13")]


def test_table_that_ends_is_stored_whole_without_a_broker_and_the_run_ends(tmp_path: Path) -> None:
    shop = Shop(tmp_path, rows=1_000)
    ended = kstreams("run", shop.file, "--workers", "2", environment=NO_BROKER, cwd=tmp_path)
    assert (ended.status, ended.error_lines) == (0, [])
    (line,) = (each for each in ended.err.splitlines() if "broker" in each)
    assert line.endswith("graph orders reads and writes no topic: this run needs no Kafka broker"), "no broker is asked"
    totals = "source rows: 999 done, 1 refused; parse: 1,000 in, 999 out; store: 999 in, 999 out"
    how = f"`kstreams sources list {shop.file.name}` prints the refused ones"
    assert ended.err.splitlines()[-1].endswith(f"INFO kstreams_py.running.wiring: all inputs are done: {totals}; {how}")
    shop.check(1_000)


def has_noted(running: RunningCommand, deaths: int) -> bool:
    return running.text.count(" ended by SIGKILL: restarting it") == deaths


@pytest.mark.parametrize("medium", SOURCES)
@pytest.mark.parametrize(("kills", "each"), [(3, 1_000), pytest.param(334, 600, marks=LONG)])
def test_workers_killed_at_random_store_each_row_once(
    request: pytest.FixtureRequest, tmp_path: Path, kills: int, each: int, medium: str
) -> None:
    """In the long tier, a thousand deaths: `each` is how many rows there are for one.

    The test holds a claim, so that the run does not end before the last kill.
    """
    server = request.getfixturevalue(medium) if medium == "postgresql" else None
    shop, chance = Shop(tmp_path, rows=each * kills, seconds=0.002, medium=medium, server=server), random.Random(kills)
    held = eval(f"sources.{shop.declared}, lease=3_600.0)", {"sources": sources}).open("orders:rows")
    (claim,) = held.read(1, alone=True)
    with closing(held), command(tmp_path, "run", shop.file, "--workers", 2, environment=NO_BROKER) as running:
        for number in range(kills):
            least = each * 4 // 5 * number + chance.randrange(each * 4 // 5)
            wait_until(partial(shop.has_stored, least), "rows are stored")
            # the older one: nine deaths in a row of workers that had no time to acknowledge anything end a run
            wait_until(lambda: shop.kill_worker(running), "a worker that has claimed rows is killed")
            wait_until(partial(has_noted, running, number + 1), "the supervisor notes its death")
        held.give_back([claim], failed=False)
        assert running.wait() == 0, running.text
        assert has_noted(running, kills)
    shop.check(each * kills)


def test_table_that_grows_is_followed_until_the_run_is_stopped(tmp_path: Path) -> None:
    shop = Shop(tmp_path, rows=20, ends=False)
    with command(tmp_path, "run", shop.file, environment=NO_BROKER) as running:
        wait_until(lambda: shop.stored() == 19, "the first rows are stored")
        shop.insert(range(20, 40))
        wait_until(lambda: shop.stored() == 39, "the later rows are stored")
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    shop.check(40)


HANGING: Final = """
import asyncio
import os
import signal

import kstreams_py as ks
from kstreams_py import sources

graph = ks.Graph("orders")
rows = graph.source("rows", sources.SQLite({source!r}, table="orders", key="id", lease=1.0))
parsed = graph.channel("parsed")


@graph.map(rows, to=parsed)
def parse(row):
    if row["id"] == 2 and not os.path.exists({died!r}):
        open({died!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if row["id"] == 13:
        raise ValueError("no 13")
    return row


@graph.sink(parsed, concurrency=4)
async def enrich(row):
    if row["id"] == 7 and not os.path.exists({goes_on!r}):
        await asyncio.Event().wait()
"""


def test_page_metrics_and_doctor_show_a_hung_call_a_replay_and_a_refused_input(tmp_path: Path) -> None:
    shop, goes_on = Shop(tmp_path, rows=20, ends=False), tmp_path / "goes_on"
    names = {"source": str(shop.source), "died": str(tmp_path / "died"), "goes_on": str(goes_on)}
    shop.file.write_text(HANGING.format(**names), encoding="utf-8")
    served = {**NO_BROKER, "KSTREAMS_HTTP": "127.0.0.1:0"}

    def run(*arguments: object, status: int = 0, typed: str = "") -> str:
        ended = kstreams(*arguments, environment=NO_BROKER, typed=typed)
        assert (ended.status, ended.err) == (status, "")
        return ended.out

    with command(tmp_path, "run", shop.file, environment=served) as running:
        site = Site(running)
        wait_until(lambda: site.sums("done_inputs_total", "source") == {("rows",): 18.0}, "all but two are done")
        wait_until(lambda: "enrich (orders.py" in str(site.slot(0)["workers"][1]["place"]), "the hung call is placed")
        slot = site.slot(0)
        (shown,) = slot["sources"]
        assert (shown["pending"], shown["oldest_key"], shown["oldest_tasks"]) == (1, "7", ["enrich"])
        still = {worker["processor"]: worker["still_seconds"] > 0.9 for worker in slot["workers"]}
        assert still == {"parse": False, "enrich": True}
        assert site.sums("replayed_inputs_total", "cause") == {
            ("died",): 20.0, ("expired",): 0.0, ("raised",): 0.0, ("given_back",): 0.0,
        }  # fmt: skip
        assert site.sums("pending_inputs", "source") == {("rows",): 1.0}
        assert {each.kind for each in site.findings()} == {"refused"}
        found = run("doctor", shop.file, status=1)
        assert found.startswith(
            f"warning: rows ({shop.source}: table orders): 1 input was refused, and no worker reads it"
        )
        for pid in (running.process.pid, *list_children(running.process.pid)):  # it cannot give its inputs back
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: "1 of workers that have ended" in run("sources", "list", shop.file), "its lease is over")
    assert run("sources", "list", shop.file) == (
        f"rows  {shop.source}: table orders: 0 under way, 1 of workers that have ended, 1 of these to be read by "
        "themselves, 1 refused\n"
        "  refused: 13  parse: ValueError: no 13\n"
    )
    assert "abandoned_inputs" in run("doctor", shop.file, "--json", status=1)
    retry = ("sources", "retry", shop.file)
    assert run(*retry, "--all", "--dry-run") == ("13  parse: ValueError: no 13\n1 input of rows would be read again\n")
    assert run(*retry, "--all", status=1, typed="n\n").endswith("nothing was changed\n")
    assert run(*retry, "--key", "13", "--yes") == "1 input of rows will be read again\n"
    assert run(*retry, "--all") == "rows has no refused inputs\n"
    goes_on.touch()
    shop.file.write_text(shop.file.read_text().replace('row["id"] == 13', "False"), encoding="utf-8")
    with command(tmp_path, "run", shop.file, environment=NO_BROKER) as running:
        wait_until(
            lambda: shop.run_sql("SELECT state, count(*) FROM kstreams_claims GROUP BY state") == [(2, 20)],
            "all is done",
        )
        running.send(signal.SIGTERM)
        assert running.wait() == 0
    assert run("doctor", shop.file) == "no problems found\n"


AWAY: Final = """
import kstreams_py as ks
from kstreams_py import sources

graph = ks.Graph("away")
url = "postgresql://me@127.0.0.1:1/crm"
inputs = {inputs}
graph.sink(inputs, id="store")(print)
"""


@pytest.mark.parametrize("mode", [("--workers", 1), ("--slot", 0)], ids=str)
def test_sigterm_while_a_run_waits_for_a_broker_ends_it_at_once(tmp_path: Path, mode: tuple[object, ...]) -> None:
    file = tmp_path / "away.py"
    file.write_text(AWAY.format(inputs="graph.topic('rows')"), encoding="utf-8")
    with command(tmp_path, "run", file, *mode, environment=NO_BROKER) as running:
        running.await_text("waiting for a Kafka broker at 127.0.0.1:1, ")
        running.send(signal.SIGTERM)
        began = time.monotonic()
        assert (running.wait(), time.monotonic() - began < 5.0) == (0, True), running.text
        assert re.search(r"SIGTERM: stopped before it began\n\Z", running.text), running.text


def test_source_away_at_the_start_has_a_remedy_and_its_workers_end_well_when_stopped(tmp_path: Path) -> None:
    file = tmp_path / "away.py"
    file.write_text(AWAY.format(inputs="graph.source('rows', sources.PostgreSQL(url, table='rows', key='id'))"))
    with command(tmp_path, "run", file, "--workers", 2, environment=NO_BROKER) as running:
        running.await_text("Connection refused: start the database, or correct the URL: restarting it \\(1 in a row")
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
        assert "did not drain" not in running.text
