"""Inputs and journal on one broker, outputs and dead letters on another: workers die, freeze, or have no broker."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from tests.system.command import Finished, command, kstreams
from tests.system.harness import Cluster, WorkerProcess, await_joined, wait_until
from tests.system.recorder import Recorder
from tests.system.site import Site

MakeSettings = Callable[..., Settings]

GRAPH = """
import time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r})
place = Path({place!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out", cluster="other"), errors="{name}.dead"{options})
def copy(value):
    if value == b"wait" and not (place / "open").exists():
        (place / "waiting").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
    if value == b"bad":
        raise ValueError("on purpose")
    return value
"""

PARTITIONS = 4

REMEDY = "write [clusters.other] with its bootstrap_servers"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        yield kafka


class App:
    """A graph that copies from one cluster to another, with its topics and its workers."""

    def __init__(self, directory: Path, name: str, settings: Settings, options: str) -> None:
        self.source, self.target, self.dead = f"{name}.in", f"{name}.out", f"{name}.dead"
        self.group, self.journal = f"{name}.copy", f"__ks.{name}.copy.journal"
        self.here = Cluster(settings.bootstrap_servers)
        self.other = Cluster(settings.clusters["other"].bootstrap_servers)
        self.here.create(self.source, partitions=PARTITIONS)
        self.other.create(self.target, self.dead, partitions=PARTITIONS)
        self.file = directory / "graph.py"
        self.file.write_text(GRAPH.format(name=name, place=str(directory), options=options), encoding="utf-8")
        self.waiting, self.gate = directory / "waiting", directory / "open"
        self._environment = settings.as_environment()
        self._started: list[WorkerProcess] = []
        self.written: list[bytes] = []

    def start(self, slot: int) -> WorkerProcess:
        self._started.append(WorkerProcess(self.file, slot, self._environment))
        return self._started[-1]

    def write(self, *values: bytes) -> None:
        """Writes values, each with the key that keeps those of its last digit in order."""
        self.here.write(self.source, values, keys=[value[-1:] for value in values])
        self.written += values

    def await_copied(self, count: int | None = None) -> None:
        """Waits for so many outputs; by default for those of all that was written."""
        least = len(self.written) if count is None else count
        wait_until(lambda: len(self.other.values(self.target)) >= least, f"{least} outputs")

    def verify(self) -> None:
        """Each record was copied once, those of a key in order."""
        copied = self.other.values(self.target)
        for key in {value[-1:] for value in self.written}:
            assert [v for v in copied if v is not None and v[-1:] == key] == [v for v in self.written if v[-1:] == key]
        assert len(copied) == len(self.written)

    def drain(self, *workers: WorkerProcess) -> None:
        """Stops workers once all is copied, and compares the whole topics."""
        self.await_copied()
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]
        self.verify()

    def operate(self, *arguments: object) -> Finished:
        return kstreams(*arguments, environment=self._environment)

    def kill(self) -> None:
        for worker in self._started:
            worker.kill()


@pytest.fixture(params=["", ", persistence=ks.Journal(batch=1)"], ids=["batch", "one by one"])
def app(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, settings: MakeSettings, elsewhere: EmbeddedKafka
) -> Iterator[App]:
    clusters = {"other": {"bootstrap_servers": elsewhere.bootstrap_servers}}
    made = App(tmp_path, name, settings(clusters=clusters, session_timeout_ms=6_000), request.param)
    yield made
    made.kill()


def await_partitions(*workers: WorkerProcess) -> None:
    """Waits until workers hold partitions: they handle signals by then."""
    await_joined("copy", *workers)


def digits(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_outputs_and_dead_letters_go_to_the_other_cluster_and_positions_follow(app: App) -> None:
    app.write(*digits(0, 20))
    app.here.write(app.source, [b"bad"], partition=0)
    worker = app.start(0)
    app.await_copied()
    wait_until(lambda: len(app.other.values(app.dead)) == 1, "the dead letter")
    Recorder(app.here.bootstrap_servers).await_done(app.group, app.source)
    app.drain(worker)
    listed = app.operate("dead-letters", "show", f"{app.file}:graph")
    assert (listed.status, "on purpose" in listed.out) == (0, True), listed
    planned = app.operate("dead-letters", "replay", f"{app.file}:graph", "--dry-run")
    assert (
        "its outputs are on cluster 'other', and no transaction spans them and the marks" in planned.out + planned.err
    )
    assert f"copy: outputs are on cluster 'other': deliveries go through the journal {app.journal}" in worker.text


def test_workers_killed_and_frozen_at_random_copy_once_and_in_order(app: App) -> None:
    chance = random.Random(11)
    workers = [app.start(slot) for slot in range(3)]
    for turn in range(8):
        app.write(*digits(turn * 40, turn * 40 + 40))
        slot = chance.randrange(3)
        count = chance.randrange(turn * 40, turn * 40 + 30)
        app.await_copied(count)
        await_partitions(workers[slot])  # else it is the newer one when it wakes up
        workers[slot].send(signal.SIGKILL if turn % 2 else signal.SIGSTOP)
        if turn % 2:
            workers[slot].wait()
            workers[slot] = app.start(slot)
        else:
            other = app.start(slot)  # a replacement while the frozen one sleeps
            await_partitions(other)
            workers[slot].send(signal.SIGCONT)
            assert workers[slot].wait() == 4, workers[slot].text
            workers[slot] = other
    await_partitions(*workers)
    app.drain(*workers)


def test_worker_frozen_in_a_unit_is_fenced_by_the_slot_that_gets_its_task(app: App) -> None:
    app.write(*digits(0, 10), b"wait")
    frozen = app.start(0)
    wait_until(app.waiting.exists, "the function waits")
    frozen.send(signal.SIGSTOP)
    app.gate.touch()
    other = app.start(1)
    app.await_copied()
    frozen.send(signal.SIGCONT)
    app.write(*digits(10, 30))
    app.drain(frozen, other)
    app.verify()


def test_other_cluster_that_is_away_is_waited_for(app: App, elsewhere: EmbeddedKafka) -> None:
    app.write(*digits(0, 10))
    worker = app.start(0)
    app.await_copied()
    app.other.await_markers(app.target)
    elsewhere.kill(0)
    app.write(*digits(10, 60))
    wait_until(
        lambda: "outputs wait for cluster 'other'" in worker.text,
        "the worker says that the other cluster does not answer",
    )
    assert worker.process.poll() is None, worker.text
    elsewhere.restart(0)
    app.write(*digits(60, 100))
    app.drain(worker)


# A journal and outputs that are no longer what they were.


def stop(worker: WorkerProcess) -> None:
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.text


def test_journal_that_lost_its_newest_delivery_ends_the_worker_until_a_reset_and_nothing_is_doubled(app: App) -> None:
    app.here.write(app.source, digits(0, 4), keys=[b"k"] * 4, partition=0)
    worker = app.start(0)
    app.await_copied(4)
    Recorder(app.here.bootstrap_servers).await_done(app.group, app.source)
    stop(worker)
    kept = [m for m in app.here.read(app.journal) if m.partition() == 0]
    app.here.write(app.source, [b"4"], keys=[b"k"], partition=0)
    worker = app.start(0)
    app.await_copied(5)
    Recorder(app.here.bootstrap_servers).await_done(app.group, app.source)
    stop(worker)
    app.here.delete(app.journal)
    app.here.create(app.journal, partitions=PARTITIONS, config={"retention.ms": "-1", "retention.bytes": "-1"})
    for m in kept:
        app.here.write(app.journal, [m.value()], headers=m.headers(), partition=0)
    refused = app.start(0)
    assert refused.wait() == 5, refused.text
    delivered = f"__ks.{app.group}.delivered[0]"
    assert f"copy: partition 0: journal {app.journal}[0]: {delivered}, offset " in refused.text
    assert f"has a delivery to {app.source}@5 that was committed with its outputs ({app.target}[" in refused.text
    assert "has lost it: decide where it goes on, and set it (`kstreams recover reset`)" in refused.text
    graph = f"{app.file}:graph"
    assert app.operate("slots", "release", graph, 0).status == 0
    reset = app.operate("recover", "reset", graph, "copy", "--to-offset", f"{app.source}:0:5", "--yes")
    assert reset.status == 0, reset
    app.here.write(app.source, [b"5"], keys=[b"k"], partition=0)
    worker = app.start(0)
    app.await_copied(6)
    stop(worker)
    assert app.other.values(app.target) == digits(0, 6)


def test_other_cluster_that_is_away_for_longer_than_each_timeout_is_waited_for(
    tmp_path: Path, name: str, settings: MakeSettings, elsewhere: EmbeddedKafka
) -> None:
    clusters = {"other": {"bootstrap_servers": elsewhere.bootstrap_servers}}
    short = settings(
        clusters=clusters, session_timeout_ms=6_000, transaction_timeout_ms=2_500, request_timeout_ms=3_000
    )
    app = App(tmp_path, name, short, "")
    try:
        app.write(*digits(0, 10))
        worker = app.start(0)
        app.await_copied()
        app.other.await_markers(app.target)
        elsewhere.kill(0)
        app.write(*digits(10, 60))
        back = time.monotonic() + (short.session_timeout_ms + short.request_timeout_ms) / 1000
        wait_until(lambda: time.monotonic() > back or worker.process.poll() is not None, "each limit has passed")
        assert worker.process.poll() is None, worker.text
        elsewhere.restart(0)
        app.write(*digits(60, 100))
        app.drain(worker)
    finally:
        app.kill()


@pytest.mark.long
def test_other_cluster_that_is_away_for_a_minute_leaves_the_run_alive(
    tmp_path: Path, name: str, cluster: Cluster, elsewhere: EmbeddedKafka
) -> None:
    """All time-outs are the defaults of the settings, and a worker that stood still would be restarted."""
    address = elsewhere.bootstrap_servers
    here = Settings.load(
        bootstrap_servers=cluster.bootstrap_servers,
        schema_directory=tmp_path / "schemas",
        clusters={"other": {"bootstrap_servers": address}},
        stuck_timeout_ms=40_000,
    )
    app = App(tmp_path, name, here, "")
    with command(tmp_path, "run", app.file, "--http", "127.0.0.1:0", environment=here.as_environment()) as running:
        site = Site(running)
        app.write(*digits(0, 10))
        app.await_copied()
        app.other.await_markers(app.target)
        elsewhere.kill(0)
        app.write(*digits(10, 500))
        killed_at, answers = time.monotonic(), list[tuple[int, str]]()

        def a_minute_is_over() -> bool:
            answers.append(site.get("/livez"))
            return time.monotonic() > killed_at + 60

        site.await_kinds({("broker_away", "copy")})
        (worker,) = site.slot(0)["workers"]
        assert (worker["state"], worker["still_seconds"]) == ("broker away", 0.0)
        wait_until(a_minute_is_over, "a minute is over")
        said = next(each.what for each in site.findings() if each.kind == "broker_away")
        away = rf"cluster 'other': no Kafka broker answers at {address}: start one .* failed: Connection refused"
        assert re.match(f"slot 0: copy waits for a broker: {away}", said)
        elsewhere.restart(0)
        app.write(*digits(500, 600))
        wait_until(lambda: a_minute_is_over() and site.get("/readyz") == (200, "ok\n"), "the worker is ready again")
        app.await_copied()
        app.verify()
        answers.append(site.get("/livez"))
        assert set(answers) == {(200, "ok\n")}
        assert site.sums("restarts_total") == {(): 0}
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert re.search(f"WARNING .* outputs wait for cluster 'other': {away}", running.text)
    assert "has not turned" not in running.text


def test_cluster_that_no_setting_describes_is_one_message(tmp_path: Path, name: str, settings: MakeSettings) -> None:
    file = tmp_path / "graph.py"
    file.write_text(GRAPH.format(name=name, place=str(tmp_path), options=""), encoding="utf-8")
    ended = kstreams("run", f"{file}:graph", environment=settings().as_environment())
    assert (ended.status, ended.error_lines) == (
        2,
        [f"error: SettingsError: clusters has no 'other', which a topic of the graph names: {REMEDY}"],
    )
