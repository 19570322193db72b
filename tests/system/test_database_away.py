"""A PostgreSQL that goes away in mid-batch: its processor retries by its policy, or waits, or ends with the remedy."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.servers import Server
from kstreams_py import Settings
from kstreams_py.graph.sink import Evidence
from tests.contract.targets import PostgreSQLTarget
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.recorder import Recorder

pytestmark = pytest.mark.long  # in the quick tier, test_retries.py has a service, unit/test_stored_rows.py a target

HEAD = """
import time
from pathlib import Path
import psycopg
import kstreams_py as ks
from kstreams_py.sinks import PostgreSQL

graph = ks.Graph({name!r}, errors="{name}.errors")
place = Path({place!r})
database, table = {url!r}, {table!r}

def wait(value):
    if value == b"7" and not (place / "open").exists():
        (place / "waiting").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
"""

FUNCTION = """
@graph.sink(graph.topic("{name}.in"), {policy})
def store(value, step):
    wait(value)
    with psycopg.connect(database) as connection:
        statement = f"INSERT INTO {{table}} VALUES (%s, %s) ON CONFLICT DO NOTHING"
        connection.execute(statement, (step.delivery_hash.hex(), int(value)))
"""

RETRY = "retry=ks.Retry(on=psycopg.OperationalError, attempts=3, backoff='100ms..200ms', then={!r})"

STORED = """
@graph.sink(graph.topic("{name}.in"), to=PostgreSQL(database, table=table, columns={{"number": int}}, evidence="hash"))
def store(value):
    wait(value)
    return (int(value),)
"""


class App:
    """A sink of numbers, which waits in the call of the eighth."""

    def __init__(self, directory: Path, name: str, settings: Settings, target: PostgreSQLTarget) -> None:
        self.cluster, self.target, self.name = Cluster(settings.bootstrap_servers), target, name
        self.cluster.create(f"{name}.in", f"{name}.errors")
        self.table = f"{target.schema}.stored"
        self.waiting, self.gate = directory / "waiting", directory / "open"
        self._directory, self._environment = directory, settings.as_environment()
        self._started: list[WorkerProcess] = []

    def start(self, text: str, **options: str) -> WorkerProcess:
        file = self._directory / "storing_graph.py"
        named = {"name": self.name, "place": str(self._directory), "url": self.target.url, "table": self.table}
        file.write_text((HEAD + text).format(**named, **options), encoding="utf-8")
        self._started.append(WorkerProcess(file, 0, self._environment))
        return self._started[-1]

    def write(self, first: int, end: int) -> None:
        self.cluster.write(f"{self.name}.in", [b"%d" % number for number in range(first, end)])

    def drain(self, worker: WorkerProcess) -> None:
        Recorder(self.cluster.bootstrap_servers).await_done(f"{self.name}.store", f"{self.name}.in")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text

    def verify(self, count: int) -> None:
        """Each number is stored once, and none is a dead letter."""
        found = self.target.execute(f"SELECT number FROM {self.table} ORDER BY number")
        assert found == [(number,) for number in range(count)]
        assert self.cluster.values(f"{self.name}.errors") == []

    def kill(self) -> None:
        for worker in self._started:
            worker.kill()


@pytest.fixture
def app(tmp_path: Path, name: str, settings: Callable[..., Settings], postgresql: Server) -> Iterator[App]:
    made = App(tmp_path, name, settings(), PostgreSQLTarget(postgresql, Evidence.HASH))
    yield made
    made.kill()


def own_table(app: App) -> None:
    app.target.execute(f"CREATE TABLE {app.table} (hash text PRIMARY KEY, number bigint)")


def outlast(app: App, worker: WorkerProcess, said: str) -> None:
    """Breaks the database in mid-batch until the worker has said this; then all that was written is stored once."""
    app.write(0, 20)
    wait_until(app.waiting.exists, "the function waits in mid-batch")
    with app.target.broken():
        app.gate.touch()
        wait_until(lambda: said in worker.text, f"the worker says: {said}")
        app.write(20, 30)
    app.drain(worker)
    app.verify(30)


def test_function_whose_database_goes_away_is_retried_and_each_row_is_stored_once(app: App) -> None:
    own_table(app)
    outlast(app, app.start(FUNCTION, policy=RETRY.format("pause")), "OperationalError")


@pytest.mark.parametrize("policy", [RETRY.format("stop"), "stop_on=psycopg.OperationalError"], ids=["retry", "none"])
def test_function_whose_database_stays_away_ends_the_worker_until_a_later_start(app: App, policy: str) -> None:
    own_table(app)
    app.write(0, 20)
    worker = app.start(FUNCTION, policy=policy)
    wait_until(app.waiting.exists, "the function waits in mid-batch")
    with app.target.broken():
        app.gate.touch()
        assert worker.wait() == 1, worker.text
    assert "OperationalError" in worker.text
    assert f"port {app.target.server.port}" in worker.text
    app.drain(app.start(FUNCTION, policy=policy))
    app.verify(20)


def test_target_that_goes_away_in_mid_batch_is_awaited_and_each_row_is_stored_once(app: App) -> None:
    outlast(app, app.start(STORED), "is away")
