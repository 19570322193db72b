"""Real targets under real workers: these are killed at random, and each row is stored once."""

from __future__ import annotations

import pickle
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from kstreams_py.graph.sink import Evidence
from tests.contract.targets import ParquetTarget, PostgreSQLTarget, RedisTarget, SQLiteTarget, Target
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.recorder import Recorder

GRAPH = """
import pickle
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")

@graph.sink(graph.topic("{name}.in"), to=pickle.loads({target!r}))
def store(value):
    number = int(value)
    if number % 50 == 7:
        raise ValueError(number)
    return [(number, i) for i in range(number % 3)]
"""

COLUMNS = {"number": int, "place": int}

WRITTEN = 200
"""Records that are written before each kill."""

KILLS = 6


@pytest.fixture(params=["sqlite-hash", "sqlite-offsets", "postgresql-hash", "postgresql-offsets", "redis", "parquet"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    name, _, evidence = request.param.partition("-")
    if name == "sqlite":
        return SQLiteTarget(tmp_path, Evidence(evidence))
    if name == "postgresql":
        return PostgreSQLTarget(request.getfixturevalue("postgresql"), Evidence(evidence))
    return RedisTarget(request.getfixturevalue("redis_server")) if name == "redis" else ParquetTarget(tmp_path)


@pytest.fixture
def start(target: Target, name: str, tmp_path: Path, settings: Callable[..., Settings]) -> Iterator[Any]:
    """Starts a worker in a slot; all of them are killed with the test."""
    file = tmp_path / "storing_graph.py"
    file.write_text(GRAPH.format(name=name, target=pickle.dumps(target.declare(COLUMNS))), encoding="utf-8")
    short = settings(session_timeout_ms=3_000, transaction_timeout_ms=2_500, commit_interval_ms=50)
    started: list[WorkerProcess] = []

    def start(slot: int) -> WorkerProcess:
        started.append(WorkerProcess(file, slot, short.as_environment()))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


def await_rows(target: Target, least: int) -> None:
    wait_until(lambda: len(target.rows()) >= least, f"{least} rows")


def test_workers_killed_at_random_store_each_row_once(
    target: Target, start: Callable[[int], WorkerProcess], cluster: Cluster, name: str
) -> None:
    chance, written = random.Random(5), 0
    cluster.create(f"{name}.in", partitions=4)
    cluster.create(f"{name}.errors")
    workers = [start(0), start(1)]
    wait_until(lambda: all("store: holds" in worker.text for worker in workers), "both have partitions")
    for _ in range(KILLS):
        values: list[bytes | None] = [b"%d" % number for number in range(written, written + WRITTEN)]
        least = written + chance.randrange(WRITTEN // 2)
        written += WRITTEN
        cluster.write(f"{name}.in", values, keys=values)
        await_rows(target, least)
        slot = chance.randrange(2)
        workers[slot].send(signal.SIGKILL)
        workers[slot].wait()
        workers[slot] = start(slot)
    expected = Counter((n, i) for n in range(written) if n % 50 != 7 for i in range(n % 3))
    wait_until(lambda: Counter(target.rows()) >= expected, "all rows")
    wait_until(lambda: all("store: holds" in worker.text for worker in workers), "both have partitions")
    # rows may be stored of steps that are not committed: their dead letters come when they are run again
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.store", f"{name}.in")
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0, 0], [worker.text for worker in workers]
    assert Counter(target.rows()) == expected
    letters = Counter(dict(m.headers())["ks-hash"] for m in cluster.read(f"{name}.errors"))
    assert len(letters) == len([n for n in range(written) if n % 50 == 7])
    assert set(letters.values()) == {1} or target.evidence is Evidence.OFFSETS
