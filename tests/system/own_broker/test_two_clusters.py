"""Inputs and journal on one broker, outputs and dead letters on another: workers die, freeze, or have no broker."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from tests.system.app import GRAPH, SHORT, App, MakeSettings
from tests.system.command import command, kstreams
from tests.system.harness import Cluster, WorkerProcess, await_joined, wait_until
from tests.system.recorder import Recorder
from tests.system.site import Site

PARTITIONS = 4

REMEDY = "write [clusters.other] with its bootstrap_servers"


class Copier(App):
    """A graph that copies from one cluster to another; the key of a record is the last digit of its value."""

    def __init__(self, directory: Path, name: str, settings: Settings, options: str = "") -> None:
        super().__init__(directory, name, settings, partitions=PARTITIONS, options=options, other="other")
        self.written: list[bytes] = []

    def copy(self, *values: bytes) -> None:
        """Writes values that are to be copied."""
        self.cluster.write(self.source, values, keys=[value[-1:] for value in values])
        self.written += values

    def await_copied(self, count: int | None = None) -> None:
        """Waits for so many outputs; by default for those of all that was written."""
        self.await_outputs(len(self.written) if count is None else count)

    def verify(self) -> None:
        """Each record was copied once, those of a key in order."""
        copied = self.outputs.values(self.target)
        for key in {value[-1:] for value in self.written}:
            assert [v for v in copied if v is not None and v[-1:] == key] == [v for v in self.written if v[-1:] == key]
        assert len(copied) == len(self.written)

    def drain(self, *workers: WorkerProcess) -> None:
        """Stops workers once all is copied, and compares the whole topics."""
        self.await_copied()
        self.stop(*workers)
        self.verify()


ONE_OR_MANY = {"batch": "", "one by one": "persistence=ks.Journal(batch=1)"}


def quick(size: str) -> pytest.MarkDecorator:
    """A unit of one input set or of many; the other size is long: recovery reads the same records of both."""
    sizes = [pytest.param(value, marks=() if each == size else pytest.mark.long) for each, value in ONE_OR_MANY.items()]
    return pytest.mark.parametrize("app", sizes, indirect=True, ids=list(ONE_OR_MANY))


IMPATIENT = {"request_timeout_ms": 2_000}

AWAY_SECONDS = (SHORT["session_timeout_ms"] + IMPATIENT["request_timeout_ms"]) / 1000

each_size = pytest.mark.parametrize("app", ONE_OR_MANY.values(), indirect=True, ids=list(ONE_OR_MANY))


def connect(other: EmbeddedKafka) -> dict[str, Any]:
    """The settings of the cluster "other"."""
    return {"clusters": {"other": {"bootstrap_servers": other.bootstrap_servers}}}


@pytest.fixture
def app(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, settings: MakeSettings, own_broker: EmbeddedKafka
) -> Iterator[Copier]:
    made = Copier(tmp_path, name, settings(**connect(own_broker), **SHORT, **IMPATIENT), request.param)
    yield made
    made.kill()


def await_partitions(*workers: WorkerProcess) -> None:
    """Waits until workers hold partitions: they handle signals by then."""
    await_joined("copy", *workers)


def digits(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.long
@each_size
def test_workers_killed_and_frozen_at_random_copy_once_and_in_order(app: Copier) -> None:
    chance = random.Random(11)
    workers = [app.start(slot) for slot in range(3)]
    for turn in range(8):
        app.copy(*digits(turn * 40, turn * 40 + 40))
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


@quick("one by one")
def test_worker_frozen_in_a_unit_is_fenced_by_the_slot_that_gets_its_task(app: Copier) -> None:
    app.copy(*digits(0, 10), b"wait")
    frozen = app.start(0)
    wait_until(app.waiting.exists, "the function waits")
    frozen.send(signal.SIGSTOP)
    app.gate.touch()
    other = app.start(1)
    app.await_copied()
    frozen.send(signal.SIGCONT)
    app.copy(*digits(10, 30))
    app.drain(frozen, other)
    app.verify()


# The other cluster is away.


@pytest.mark.long
@pytest.mark.parametrize("options", ONE_OR_MANY.values(), ids=list(ONE_OR_MANY))
def test_other_cluster_that_is_away_is_waited_for(
    tmp_path: Path, name: str, settings: MakeSettings, own_broker: EmbeddedKafka, options: str
) -> None:
    app = Copier(tmp_path, name, settings(**connect(own_broker), **SHORT), options)
    try:
        app.copy(*digits(0, 10))
        worker = app.start(0)
        app.await_copied()
        app.outputs.await_markers(app.target)
        own_broker.kill(0)
        app.copy(*digits(10, 60))
        wait_until(
            lambda: "outputs wait for cluster 'other'" in worker.text,
            "the worker says that the other cluster does not answer",
        )
        assert worker.process.poll() is None, worker.text
        own_broker.restart(0)
        app.copy(*digits(60, 100))
        app.drain(worker)
    finally:
        app.kill()


# A journal and outputs that are no longer what they were.


@pytest.mark.long
@each_size
def test_journal_that_lost_its_newest_delivery_ends_the_worker_until_a_reset(app: Copier) -> None:
    app.cluster.write(app.source, digits(0, 4), keys=[b"k"] * 4, partition=0)
    worker = app.start(0)
    app.await_copied(4)
    Recorder(app.cluster.bootstrap_servers).await_done(app.group, app.source)
    app.stop(worker)
    kept = [m for m in app.cluster.read(app.journal) if m.partition() == 0]
    app.cluster.write(app.source, [b"4"], keys=[b"k"], partition=0)
    worker = app.start(0)
    app.await_copied(5)
    Recorder(app.cluster.bootstrap_servers).await_done(app.group, app.source)
    app.stop(worker)
    app.cluster.delete(app.journal)
    app.cluster.create(app.journal, partitions=PARTITIONS, config={"retention.ms": "-1", "retention.bytes": "-1"})
    for m in kept:
        app.cluster.write(app.journal, [m.value()], headers=m.headers(), partition=0)
    refused = app.start(0)
    assert refused.wait() == 5, refused.text
    delivered = f"__ks.{app.group}.delivered[0]"
    assert f"copy: partition 0: journal {app.journal}[0]: {delivered}, offset " in refused.text
    assert f"has a delivery to {app.source}@5 that was committed with its outputs ({app.target}[" in refused.text
    assert "has lost it: decide where it goes on, and set it (`kstreams recover reset " in refused.text
    assert app.run_command("slots", "release", app.graph, 0).status == 0
    reset = app.run_command("recover", "reset", app.graph, "copy", "--to-offset", f"{app.source}:0:5", "--yes")
    assert reset.status == 0, reset
    app.cluster.write(app.source, [b"5"], keys=[b"k"], partition=0)
    worker = app.start(0)
    app.await_copied(6)
    app.stop(worker)
    assert app.outputs.values(app.target) == digits(0, 6)


@quick("batch")
def test_other_cluster_that_is_away_for_longer_than_each_timeout_is_waited_for(
    app: Copier, own_broker: EmbeddedKafka
) -> None:
    """It gets outputs and dead letters, before and after; it is frozen, so that each request runs into its time-out."""
    app.copy(*digits(0, 20))
    app.cluster.write(app.source, [b"bad"], partition=0)
    worker = app.start(0)
    app.await_copied()
    wait_until(lambda: len(app.outputs.values(app.errors)) == 1, "the dead letter")
    app.outputs.await_markers(app.target)
    own_broker.pause(0)
    app.copy(*digits(20, 60))
    back = time.monotonic() + AWAY_SECONDS
    wait_until(lambda: time.monotonic() > back or worker.process.poll() is not None, "each limit has passed")
    assert worker.process.poll() is None, worker.text
    assert "outputs wait for cluster 'other'" in worker.text
    own_broker.resume(0)
    app.copy(*digits(60, 100))
    app.await_copied()
    Recorder(app.cluster.bootstrap_servers).await_done(app.group, app.source)
    app.drain(worker)
    listed = app.run_command("dead-letters", "show", app.graph)
    assert (listed.status, "on purpose" in listed.out) == (0, True), listed
    planned = app.run_command("dead-letters", "replay", app.graph, "--dry-run")
    assert (
        "its outputs are on cluster 'other', and no transaction spans them and the marks" in planned.out + planned.err
    )
    assert f"copy: outputs are on cluster 'other': deliveries go through the journal {app.journal}" in worker.text


@pytest.mark.long
def test_other_cluster_that_is_away_for_a_minute_leaves_the_run_alive(
    tmp_path: Path, name: str, cluster: Cluster, own_broker: EmbeddedKafka
) -> None:
    """All time-outs are the defaults of the settings, and a worker that stood still would be restarted."""
    address = own_broker.bootstrap_servers
    here = Settings.load(
        bootstrap_servers=cluster.bootstrap_servers,
        schema_directory=tmp_path / "schemas",
        **connect(own_broker),
        stuck_timeout_ms=40_000,
    )
    app = Copier(tmp_path, name, here)
    with command(tmp_path, "run", app.file, "--http", "127.0.0.1:0", environment=here.as_environment()) as running:
        site = Site(running)
        app.copy(*digits(0, 10))
        app.await_copied()
        app.outputs.await_markers(app.target)
        own_broker.kill(0)
        app.copy(*digits(10, 500))
        killed_at, answers = time.monotonic(), list[tuple[int, str]]()

        def a_minute_is_over() -> bool:
            answers.append(site.get("/livez"))
            return time.monotonic() > killed_at + 60

        site.await_kinds({("broker_away", None)})
        (worker,) = site.slot(0)["workers"]
        assert (worker["state"], worker["still_seconds"]) == ("broker away", 0.0)
        wait_until(a_minute_is_over, "a minute is over")
        (what,) = [each.what for each in site.findings() if each.kind == "broker_away"]
        broker = rf"(broker 0|the broker) at {address} does not answer: it affects copy"
        assert re.fullmatch(f"cluster 'other': {broker}", what)
        away = rf"cluster 'other': no Kafka broker answers at {address}: start one .* failed: Connection refused"
        assert re.match(away, site.slot(0)["workers"][0]["why"])
        own_broker.restart(0)
        app.copy(*digits(500, 600))
        wait_until(lambda: a_minute_is_over() and site.get("/readyz") == (200, "ok\n"), "the worker is ready again")
        app.await_copied()
        app.verify()
        answers.append(site.get("/livez"))
        assert set(answers) == {(200, "ok\n")}
        assert site.sums("restarts_total") == {(): 0}
        running.send(signal.SIGTERM)
        assert running.wait() == 0, running.text
    assert re.search(f"WARNING .* outputs wait for cluster 'other': {away}", running.text)
    assert "has made no progress" not in running.text


def test_cluster_that_no_setting_describes_is_one_message(tmp_path: Path, name: str, settings: MakeSettings) -> None:
    file = tmp_path / "graph.py"
    text = GRAPH.format(name=name, place=str(tmp_path), topic=', cluster="other"', options="")
    file.write_text(text, encoding="utf-8")
    ended = kstreams("run", f"{file}:graph", environment=settings().as_environment())
    assert (ended.status, ended.error_lines) == (
        2,
        [f"error: SettingsError: clusters has no 'other', which a topic of the graph names: {REMEDY}"],
    )
