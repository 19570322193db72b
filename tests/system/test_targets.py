"""Real targets under real workers: these are killed at random, or frozen in a step, and each row is stored once.

The quick tier has a target by its offsets and one by hashes: tests/contract/test_sinks.py shows that all of a kind do
the same.
"""

from __future__ import annotations

import pickle
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from kstreams_py.graph.sink import Evidence
from tests.contract.targets import ParquetTarget, PostgreSQLTarget, RedisTarget, SQLiteTarget, Target
from tests.system.app import SHORT
from tests.system.harness import Cluster, WorkerProcess, await_joined, starting_workers, wait_until
from tests.system.recorder import Recorder

GRAPH = """
import pickle
import time
from pathlib import Path
import kstreams_py as ks

place = Path({place!r})
graph = ks.Graph({name!r}, errors="{name}.errors")

@graph.sink(graph.topic("{name}.in"), to=pickle.loads({target!r}))
def store(value):
    number = int(value)
    if number % 50 == 7:
        raise ValueError(number)
    while number == {waits_at} and (place / "closed").exists():
        (place / "waiting").touch()
        time.sleep(0.01)
    return [(number, i) for i in range(number % 3)]
"""

COLUMNS = {"number": int, "place": int}

WRITTEN = 200
"""Records that are written before each kill."""

WAITS_AT = 5
"""The record whose step waits while the file `closed` exists; it has two rows."""


TARGETS = ("sqlite-hash", "sqlite-offsets", "postgresql-hash", "postgresql-offsets", "redis", "parquet")


@pytest.fixture
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
    stored = pickle.dumps(target.declare(COLUMNS))
    text = GRAPH.format(name=name, target=stored, place=str(tmp_path), waits_at=WAITS_AT)
    file.write_text(text, encoding="utf-8")
    with starting_workers() as start:
        yield lambda slot, **changed: start(file, slot, settings(**SHORT, **changed).as_environment())


def await_rows(target: Target, least: int) -> None:
    wait_until(lambda: len(target.rows()) >= least, f"{least} rows")


def expected_rows(written: int) -> Counter[tuple[int, int]]:
    """The rows of so many records."""
    return Counter((n, i) for n in range(written) if n % 50 != 7 for i in range(n % 3))


def stop(*workers: WorkerProcess) -> None:
    for worker in workers:
        worker.send(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]


@pytest.mark.parametrize(
    "target",
    [pytest.param(each, marks=() if each == "postgresql-offsets" else pytest.mark.long) for each in TARGETS],
    indirect=True,
)
def test_worker_frozen_in_a_step_stores_nothing_after_another_slot_took_its_task(
    target: Target, start: Callable[..., WorkerProcess], cluster: Cluster, name: str, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    cluster.create(f"{name}.in", partitions=4)
    cluster.create(f"{name}.errors")
    values: list[bytes | None] = [b"%d" % number for number in range(2 * WRITTEN)]
    closed.touch()
    # no step before the frozen one has a dead letter, whose transaction could time out before the rows are refused
    first = slice(WAITS_AT + 1)
    cluster.write(f"{name}.in", values[first], keys=values[first])
    frozen = start(0, commit_records=1)  # the turn of a step stores its rows: it hears of its group after that only
    wait_until((tmp_path / "waiting").exists, "a step waits")
    frozen.send(signal.SIGSTOP)
    closed.unlink()
    others = slice(WAITS_AT + 1, WRITTEN)
    cluster.write(f"{name}.in", values[others], keys=values[others])
    other = start(1)
    wait_until(lambda: Counter(target.rows()) == expected_rows(WRITTEN), "the other slot stores the rows")
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.store", f"{name}.in")
    frozen.send(signal.SIGCONT)
    if target.evidence is Evidence.OFFSETS:
        refused = re.compile(r"store: .*: another writer .*; going back to the committed offsets")
        wait_until(lambda: refused.search(frozen.text), "its rows are refused")
    cluster.write(f"{name}.in", values[WRITTEN:], keys=values[WRITTEN:])
    wait_until(lambda: Counter(target.rows()) >= expected_rows(2 * WRITTEN), "all rows")
    wait_until(lambda: frozen.text.count("store: holds") > 1, "it is a member again")
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.store", f"{name}.in")
    stop(frozen, other)
    assert Counter(target.rows()) == expected_rows(2 * WRITTEN)


@pytest.mark.parametrize(
    ("target", "kills"),
    [("redis", 2), *(pytest.param(each, 6, marks=pytest.mark.long) for each in TARGETS)],
    indirect=["target"],
)
def test_workers_killed_at_random_store_each_row_once(
    target: Target, start: Callable[[int], WorkerProcess], cluster: Cluster, name: str, kills: int
) -> None:
    chance, written = random.Random(5), 0
    cluster.create(f"{name}.in", partitions=4)
    cluster.create(f"{name}.errors")
    workers = [start(0), start(1)]
    await_joined("store", *workers)
    for _ in range(kills):
        values: list[bytes | None] = [b"%d" % number for number in range(written, written + WRITTEN)]
        least = written + chance.randrange(WRITTEN // 2)
        written += WRITTEN
        cluster.write(f"{name}.in", values, keys=values)
        await_rows(target, least)
        slot = chance.randrange(2)
        workers[slot].send(signal.SIGKILL)
        workers[slot].wait()
        workers[slot] = start(slot)
    expected = expected_rows(written)
    wait_until(lambda: Counter(target.rows()) >= expected, "all rows")
    await_joined("store", *workers)
    # rows may be stored of steps that are not committed: their dead letters come when they are run again
    Recorder(cluster.bootstrap_servers).await_done(f"{name}.store", f"{name}.in")
    stop(*workers)
    assert Counter(target.rows()) == expected
    letters = Counter(dict(m.headers())["ks-hash"] for m in cluster.read(f"{name}.errors"))
    assert len(letters) == len([n for n in range(written) if n % 50 == 7])
    assert set(letters.values()) == {1} or target.evidence is Evidence.OFFSETS
