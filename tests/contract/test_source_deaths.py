"""Jobs from a table to a table whose processes are killed before and after each statement, and at each call."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import kstreams_py as ks
from kstreams_py.graph.sink import Evidence
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.job import Job
from kstreams_py.sources import claims
from kstreams_py.sources.claims import CLAIMED, DONE, REFUSED
from tests.contract.dying_process import Life, Run, dying_processes
from tests.contract.source_media import LEASE, InPostgreSQL, InSQLite
from tests.contract.targets import SQLiteTarget

INPUTS: Final = range(1, 7)
BAD, SLOW = 5, (2, 6)  # the input that is refused, and those in whose calls the lease is due to be renewed
MAX_PENDING: Final = 4

CALL: Final = "call"  # the first point of each step: in SQLite, the commit of a statement follows
CLAIM: Final = r"after (INSERT OR IGNORE INTO kstreams_claims|WITH free AS)"
TAKE_OVER: Final = r"after (UPDATE kstreams_claims SET state = 1|WITH taken AS)"
STORE: Final = r'after INSERT INTO \S*"stored"'
IS_STORED, ACK = (f"{when} UPDATE .*kstreams_claims.* SET state = {DONE}" for when in ("before", "after"))


def first(points: list[str], step: str) -> int:
    """Returns the number of the first point of a step."""
    return next(number for number, point in enumerate(points, 1) if re.match(step, point))


def run_job(source: Any, sink: Any, now: float, points: Path, dies_at: int | None) -> None:
    """Runs the job of a process, which dies at a point, or ends and writes its points to a file.

    - `now`: its clock, which calls and waits move.
    """
    logging.disable()
    life, graph = Life(dies_at), ks.Graph("shop")
    life.count_statements()

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds
        assert now < 1_000, "it does not end"

    def parse(row: dict[str, Any]) -> dict[str, Any]:
        life.step("call")
        if row["id"] in SLOW:
            wait(LEASE * 0.4)
            job.keep()
        if row["id"] == BAD:
            raise ValueError(f"no {BAD}")
        return row

    vars(claims)["read_clock"] = lambda: now
    parsed = graph.channel("parsed")
    graph.map(graph.source("orders", source, max_pending=MAX_PENDING), to=parsed, id="parse")(parse)
    graph.sink(parsed, to=sink, id="store")(lambda row: (row["id"], row["item"]))
    job = Job(graph.name, graph.tasks, JobEnvironment(clock=lambda: now, sleep=wait))
    job.run(lambda: False)
    points.write_text("\n".join(" ".join(each.split()) for each in life.points), encoding="utf-8")


class DyingJob:
    """The tables of a job whose processes have died one after another, each at the point of a number."""

    def __init__(self, run: Run, medium: InSQLite | InPostgreSQL, directory: Path, deaths: Sequence[int]) -> None:
        self._run, self._medium, self._points = run, medium, directory / "points"
        self._target = getattr(medium, "target", None) or SQLiteTarget(directory, Evidence.HASH)
        self._declared = medium.source(ends=True), self._target.declare({"id": int, "item": str})
        self._held = set[tuple[int, int]]()
        """The key and the owner of each claim that a dead process held."""
        self._died = deaths
        medium.insert(*INPUTS)
        for point in deaths:
            self._die(point)

    def _die(self, point: int) -> None:
        """Runs a process that dies at a point, and has acknowledged nothing that is not stored. Ends its lease."""
        assert self._run(run_job, *self._declared, self._medium.now, self._points, point)
        assert {*self._claims("id, item", f"state = {DONE}")} <= {*self._target.rows()}, self._died
        held = {*self._claims("id, owner", f"state = {CLAIMED}")} - self._held
        assert len(held) <= MAX_PENDING
        self._held |= held
        self._medium.wait(10 * LEASE)

    def finish(self) -> list[str]:
        """Runs a process to its end, and checks the whole result; returns the points of the process."""
        assert not self._run(run_job, *self._declared, self._medium.now, self._points, None)
        assert sorted(self._target.rows()) == [(each, f"item {each}") for each in INPUTS if each != BAD], self._died
        deaths = Counter(key for key, _ in self._held)
        ended = [(each, REFUSED if each == BAD else DONE, deaths[each]) for each in INPUTS]
        assert sorted(self._claims("id, state, deaths", "true")) == ended, self._died
        assert self._medium.refused() == [(BAD, f"parse: ValueError: no {BAD}")]
        return self._points.read_text(encoding="utf-8").splitlines()

    def _claims(self, columns: str, which: str) -> list[tuple[Any, ...]]:
        asked = f"SELECT {columns} FROM orders JOIN kstreams_claims ON CAST(key AS BIGINT) = id WHERE {which}"
        with suppress(sqlite3.OperationalError, psycopg.errors.UndefinedTable):  # it died before there were claims
            return self._medium.run(asked)
        return []


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with dying_processes() as run:
        yield run


@pytest.fixture(params=["sqlite", "postgresql"])
def open_job(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Callable[..., DyingJob]:
    server, numbers = request.param == "postgresql" and request.getfixturevalue("postgresql"), count()

    def open_job(*deaths: int) -> DyingJob:
        (directory := tmp_path / str(next(numbers))).mkdir()
        medium = InPostgreSQL(directory, monkeypatch, server) if server else InSQLite(directory, monkeypatch)
        return DyingJob(run, medium, directory, deaths)

    return open_job


@pytest.mark.parametrize("is_each", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "each"])
@pytest.mark.parametrize(("died", "steps"), [([], (CLAIM, STORE, ACK)), ([IS_STORED], (TAKE_OVER,))], ids=["1", "2"])
def test_process_killed_at_points_of_claim_call_store_and_ack_leaves_each_row_once(
    open_job: Callable[..., DyingJob], died: list[str], steps: tuple[str, ...], *, is_each: bool
) -> None:
    """Another process ends the job. With `died`, one has died before at that step: the next takes its claims over."""
    before = [first(open_job().finish(), step) for step in died]
    points = open_job(*before).finish()
    assert len(points) > 80
    each = range(1, 1 + (first(points, CALL) if died else len(points)))
    for point in each if is_each else [first(points, step) + more for step in steps for more in (0, 2)]:
        open_job(*before, point).finish()
