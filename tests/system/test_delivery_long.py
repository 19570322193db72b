"""Ten minutes in which a worker is killed every second or two: two clusters, sinks, and nothing lost or doubled."""

from __future__ import annotations

import logging
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from tests.system.command import kstreams
from tests.system.harness import Cluster, WorkerProcess, await_joined
from tests.system.promises import by_key, key_of
from tests.system.recorder import Recorder

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.long

GRAPH = """
import kstreams_py as ks
from kstreams_py import sinks

graph = ks.Graph({name!r})
source = graph.topic("{name}.in")


@graph.map(source, to=graph.topic("{name}.far", cluster="other"), errors="{name}.dead")
def send(value):
    if value.endswith(b"99"):
        raise ValueError("on purpose")
    return value


@graph.map(source, to=graph.topic("{name}.near"), persistence="journal")
def keep(value):
    return value


@graph.sink(source, to=sinks.SQLite({place!r} + "/rows.db", table="hashed", columns=["value"]))
def hashed(value):
    return (value,)


@graph.sink(source, to=sinks.SQLite({place!r} + "/rows.db", table="counted", columns=["value"], evidence="offsets"))
def counted(value):
    return (value,)
"""

SECONDS = 600.0
PER_SECOND = 200
WORKERS = 3
PARTITIONS = 4
PROCESSORS = ("send", "keep", "hashed", "counted")


@pytest.mark.timeout(1200)
def test_workers_killed_for_ten_minutes_deliver_everywhere_once_and_in_order(
    name: str, tmp_path: Path, settings: Callable[..., Settings], elsewhere: Any
) -> None:
    made = settings(clusters={"other": {"bootstrap_servers": elsewhere.bootstrap_servers}}, session_timeout_ms=6_000)
    recorder, other = Recorder(made.bootstrap_servers), Cluster(elsewhere.bootstrap_servers)
    source, near, far, dead = (f"{name}.{end}" for end in ("in", "near", "far", "dead"))
    recorder.cluster.create(source, near, partitions=PARTITIONS)
    other.create(far, dead, partitions=PARTITIONS)
    file = tmp_path / "graph.py"
    file.write_text(GRAPH.format(name=name, place=str(tmp_path)), encoding="utf-8")
    chance = random.Random(7)
    with ExitStack() as cleanup:

        def start(slot: int) -> WorkerProcess:
            worker = WorkerProcess(file, slot, made.as_environment())
            cleanup.callback(worker.kill)
            return worker

        workers = [start(slot) for slot in range(WORKERS)]
        kills, deadline = 0, time.monotonic() + SECONDS
        with recorder.feeding(lambda i: (source, b"%d" % i, key_of(b"%d" % i), -1), per_second=PER_SECOND) as feeder:
            while time.monotonic() < deadline:
                time.sleep(chance.uniform(1.0, 3.0))
                slot = chance.randrange(WORKERS)
                assert workers[slot].process.poll() is None, workers[slot].text
                workers[slot].kill()
                workers[slot] = start(slot)
                kills += 1
        for processor in PROCESSORS:
            recorder.await_done(f"{name}.{processor}", source)
        await_joined("counted", *workers)
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * WORKERS, [worker.text for worker in workers]
    written = [b"%d" % i for i in range(feeder.written)]
    good = [value for value in written if not value.endswith(b"99")]
    assert by_key(recorder.cluster.values(near)) == by_key(written)
    assert by_key(other.values(far)) == by_key(good)
    assert len(other.values(dead)) == len(written) - len(good)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        assert sorted(value for (value,) in database.execute("SELECT value FROM hashed")) == sorted(written)
        counted = [value for (value,) in database.execute("SELECT value FROM counted ORDER BY rowid")]
        assert by_key(counted) == by_key(written)
    audited = kstreams("recover", "audit", f"{file}:graph", "--every", environment=made.as_environment())
    assert (audited.status, audited.out.splitlines()[:2]) == (
        0,
        [
            f"send: {len(written):,} inputs, {len(good):,} outputs, {len(written) - len(good):,} dead letters: clean",
            f"keep: {len(written):,} inputs, {len(written):,} outputs, 0 dead letters: clean",
        ],
    ), audited
    logger.info("%d kills, %d records", kills, len(written))
