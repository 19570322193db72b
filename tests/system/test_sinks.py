"""Sinks with a target on a real broker: workers that are killed and frozen store each row once."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.graph.sink import Evidence
from tests.system.app import SHORT
from tests.system.harness import Cluster, WorkerProcess, await_joined, await_stopped, wait_until
from tests.system.recorder import Recorder
from tests.system.sqlite_target import SqliteTarget

GRAPH = """
import kstreams_py as ks
from kstreams_py.graph.sink import Evidence
from tests.system.sqlite_target import SqliteTarget

graph = ks.Graph({name!r}, errors="{name}.errors")

@graph.sink(graph.topic("{name}.in"), to=SqliteTarget({directory!r}, Evidence({evidence!r})))
def store(value):
    number = int(value)
    if number % 50 == 7:
        raise ValueError(number)
    return [(number, i) for i in range(number % 3)]
"""

PARTITIONS = 4
WRITTEN = 400
"""Records that are written before each fault."""


class App:
    """A graph with one sink, its workers, its target, and the records that were written."""

    def __init__(self, cluster: Cluster, name: str, directory: Path, settings: Settings, evidence: Evidence) -> None:
        self.cluster, self.name, self.directory = cluster, name, directory
        self.group = f"{name}.store"
        self.target = SqliteTarget(str(directory), evidence)
        self.target.create()
        self.file = directory / "storing_graph.py"
        self.file.write_text(GRAPH.format(name=name, directory=str(directory), evidence=evidence.value))
        self.environment = settings.as_environment()
        self.workers: list[WorkerProcess] = []
        self.written = 0
        cluster.create(f"{name}.in", partitions=PARTITIONS)
        cluster.create(f"{name}.errors")

    def start(self, slot: int) -> WorkerProcess:
        self.workers.append(WorkerProcess(self.file, slot, self.environment))
        return self.workers[-1]

    def write(self) -> None:
        values: list[bytes | None] = [b"%d" % number for number in range(self.written, self.written + WRITTEN)]
        self.written += WRITTEN
        self.cluster.write(f"{self.name}.in", values, keys=values)

    def strike(self, place: str) -> None:
        """Lets the next write that comes to this place be struck there, and writes records."""
        (self.directory / place).touch()
        self.write()
        wait_until(lambda: not (self.directory / place).exists(), place)

    @property
    def expected(self) -> Counter[tuple[int, int]]:
        return Counter((n, i) for n in range(self.written) if n % 50 != 7 for i in range(n % 3))

    def await_rows(self) -> None:
        wait_until(lambda: Counter(self.target.read()) >= self.expected, "all rows are stored")

    def verify(self) -> None:
        """Stops the workers; each row must be there once, and each dead letter: with offsets perhaps again."""
        self.await_rows()
        running = [worker for worker in self.workers if worker.process.poll() is None]
        await_joined("store", *running)
        # rows may be stored of steps that are not committed: their dead letters come when they are run again
        Recorder(self.cluster.bootstrap_servers).await_done(self.group, f"{self.name}.in")
        for worker in running:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in running] == [0] * len(running), [worker.text for worker in running]
        assert Counter(self.target.read()) == self.expected
        letters = Counter(dict(m.headers())["ks-hash"] for m in self.cluster.read(f"{self.name}.errors"))
        assert len(letters) == len([n for n in range(self.written) if n % 50 == 7])
        assert set(letters.values()) == {1} or self.target.evidence is Evidence.OFFSETS


def has_been_killed(workers: Sequence[WorkerProcess]) -> bool:
    """Whether one of the workers was killed by its target."""
    return any(worker.process.poll() == -signal.SIGKILL for worker in workers)


MakeApp = Callable[[Evidence], App]


@pytest.fixture
def new_app(cluster: Cluster, name: str, tmp_path: Path, settings: Callable[..., Settings]) -> Iterator[MakeApp]:
    """Makes the app of a test, and kills its workers at the end."""
    apps: list[App] = []

    def make(evidence: Evidence) -> App:
        short = settings(**SHORT)
        apps.append(App(cluster, name, tmp_path, short, evidence))
        return apps[-1]

    yield make
    for app in apps:
        for worker in app.workers:
            worker.kill()


@pytest.mark.parametrize(
    ("evidence", "rounds"),
    [(Evidence.OFFSETS, 1), *(pytest.param(each, 3, marks=pytest.mark.long) for each in Evidence)],
)
def test_workers_killed_around_the_commits_of_their_target_store_each_row_once(
    new_app: MakeApp, evidence: Evidence, rounds: int
) -> None:
    app = new_app(evidence)
    app.write()
    app.start(0)
    app.start(1)
    app.await_rows()
    for place in ("killed before the commit", "killed after the commit") * rounds:
        pair = app.workers[-2:]
        app.strike(place)
        wait_until(partial(has_been_killed, pair), place)
        for worker in pair:
            worker.kill()
        app.start(0)
        app.start(1)
    app.verify()


@pytest.mark.parametrize("evidence", [Evidence.HASH, pytest.param(Evidence.OFFSETS, marks=pytest.mark.long)])
def test_worker_frozen_before_a_write_and_replaced_stores_nothing_again(new_app: MakeApp, evidence: Evidence) -> None:
    app = new_app(evidence)
    app.write()
    frozen = app.start(0)
    app.await_rows()
    app.strike("stopped before the write")
    await_stopped(frozen.process.pid)
    app.start(0)
    app.await_rows()
    app.write()
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == 4, frozen.text
    app.verify()


@pytest.mark.long
def test_offsets_of_the_group_that_are_deleted_or_ahead_are_not_those_that_count(new_app: MakeApp) -> None:
    app = new_app(Evidence.OFFSETS)
    app.write()
    for change in ("deleted", "ahead"):
        worker = app.start(0)
        app.await_rows()
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text
        wait_until(lambda: not app.cluster.members(app.group), "its membership has expired")
        app.write()
        if change == "deleted":
            app.cluster.delete_group(app.group)
        else:
            committed = app.cluster.committed(app.group, f"{app.name}.in")
            app.cluster.set_committed(app.group, {(f"{app.name}.in", p): at + 20 for p, at in committed.items()})
    app.start(0)
    app.verify()
