"""Workers that freeze, die, come and go, idle and hang, and strangers that do: what is read is whole, and once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath
from kstreams_py.testing import Expected
from tests.system.command import RunningCommand, children, command
from tests.system.harness import FORGETFUL, WorkerProcess, transactional_ids, wait_until
from tests.system.recorder import Record, Recorder

MANY = 1_200
"""Records of which some outputs are written before the last take: more than a transaction holds back."""

GRAPH = """
import os, time
from pathlib import Path
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
place = Path({place!r})

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    if value == b"wait":
        (place / "waiting").touch()
        while not (place / "open").exists():
            time.sleep(0.01)
    return value
"""


class App:
    """A copying graph whose function waits at the value `wait` until the gate is opened; its topics and workers."""

    def __init__(self, directory: Path, name: str, settings: Settings, partitions: int) -> None:
        self.recorder = Recorder(settings.bootstrap_servers)
        self.source, self.target, self.group = f"{name}.in", f"{name}.out", f"{name}.copy"
        self.recorder.cluster.create(self.source, self.target, partitions=partitions)
        self.recorder.cluster.create(f"{name}.errors")
        self.file = directory / "faulty_graph.py"
        self.file.write_text(GRAPH.format(name=name, place=str(directory)))
        self.waiting, self.gate = directory / "waiting", directory / "open"
        self._environment = settings.as_environment()
        self._started: list[WorkerProcess] = []
        self._number = 0

    def start(self, slot: int) -> WorkerProcess:
        self.recorder.history.fault(f"worker {slot} is started")
        self._started.append(WorkerProcess(self.file, slot, self._environment))
        return self._started[-1]

    def send(self, worker: WorkerProcess, signum: signal.Signals) -> None:
        self.recorder.history.fault(f"{signum.name} to process {worker.process.pid}")
        worker.send(signum)

    def drain(self, *workers: WorkerProcess) -> None:
        """Ends them in order, once all input is done."""
        self.recorder.await_done(self.group, self.source)
        for worker in workers:
            self.send(worker, signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * len(workers), [worker.text for worker in workers]

    def supervised(self) -> AbstractContextManager[RunningCommand]:
        """Slot 0 under a supervisor, which starts it again when it ends."""
        return command(self.file.parent, "run", f"{self.file}:graph", "--workers", 1, environment=self._environment)

    def freeze_in_mid_transaction(self, send: Callable[[signal.Signals], None]) -> None:
        """Freezes the worker whose function waits, with outputs of its open transaction on the broker already."""
        wait_until(self.waiting.exists, "the function waits")
        wait_until(
            lambda: self.recorder.ends(self.target) != self.recorder.ends(self.target, "read_uncommitted"), "outputs"
        )
        self.recorder.history.fault("SIGSTOP to the worker whose function waits")
        send(signal.SIGSTOP)
        self.gate.touch()

    def kill(self) -> None:
        for worker in self._started:
            worker.kill()

    def write(self, count: int, partition: int, *more: bytes) -> None:
        """That many numbered records to one partition, and these after them."""
        values = [b"%d" % i for i in range(self._number, self._number + count)]
        self._number += count
        self.recorder.write(self.source, [*values, *more], key=b"%d" % partition, partition=partition)

    def verify(self) -> None:
        self.recorder.verify(Expected(self.source, to=self.target))


MakeApp = Callable[..., App]


@contextmanager
def making(directory: Path, name: str, settings: Callable[..., Settings]) -> Iterator[MakeApp]:
    """Gives what makes an app; its workers are killed in the end."""
    made: list[App] = []

    def make(partitions: int = 1, **changed: Any) -> App:
        made.append(App(directory, name, settings(**changed), partitions))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def app(tmp_path: Path, name: str, settings: Callable[..., Settings]) -> Iterator[MakeApp]:
    with making(tmp_path, name, settings) as make:
        yield make


# Frozen workers.


def test_exactly_once_frozen_past_its_session_with_a_replacement_ends_and_writes_nothing(app: MakeApp) -> None:
    """A real zombie: another slot has had its partitions, a third worker holds its seat, and it knows of neither."""
    made = app(partitions=2, session_timeout_ms=2_500, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    with made.recorder.reading(made.target) as reader:
        made.write(MANY, 0, b"wait")
        frozen = made.start(0)
        made.freeze_in_mid_transaction(frozen.send)
        other = made.start(1)
        wait_until(lambda: f"holds {made.source}[0], {made.source}[1]" in other.text, "its session is over")
        made.write(100, 0)
        made.write(100, 1)
        made.recorder.await_done(made.group, made.source)
        replacement = made.start(0)
        wait_until(lambda: f"holds {made.source}" in replacement.text, "the replacement has the seat")
        made.send(frozen, signal.SIGCONT)
        assert frozen.wait() == 4, frozen.text
        assert "another worker has taken the slot" in frozen.text
        made.write(100, 0)
        made.write(100, 1)
        made.drain(other, replacement)
        reader.finish()
    made.verify()


def test_exactly_once_frozen_past_its_session_without_a_replacement_takes_part_again(app: MakeApp) -> None:
    """Whether by itself or by its supervisor: nobody holds its seat when it wakes up."""
    made = app(partitions=2, session_timeout_ms=2_500, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    made.write(MANY, 0, b"wait")
    with made.recorder.reading(made.target) as reader, made.supervised() as supervisor:
        wait_until(made.waiting.exists, "the function waits")
        pid = children(supervisor.process.pid)[0]  # the next one is on standby
        made.freeze_in_mid_transaction(lambda signum: os.kill(pid, signum))
        other = made.start(1)
        wait_until(lambda: f"holds {made.source}[0], {made.source}[1]" in other.text, "its session is over")
        made.write(100, 0)
        made.recorder.await_done(made.group, made.source)
        made.recorder.history.fault("SIGCONT to the frozen worker")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: supervisor.text.count("copy: holds") > 1, "it has partitions again")
        made.write(100, 0)
        made.write(100, 1)
        made.drain(other)
        supervisor.send(signal.SIGTERM)
        assert supervisor.wait() == 0, supervisor.text
        reader.finish()
    made.verify()


def test_exactly_once_frozen_past_its_transaction_goes_on_with_a_new_one(app: MakeApp) -> None:
    """The broker has aborted it and the seat is still held: no replacement, no other worker."""
    made = app(session_timeout_ms=60_000, transaction_timeout_ms=2_000, commit_interval_ms=1_900)
    with made.recorder.reading(made.target) as reader:
        made.write(MANY, 0, b"wait")
        worker = made.start(0)
        made.freeze_in_mid_transaction(worker.send)
        made.recorder.await_no_open_transaction(made.target)
        made.send(worker, signal.SIGCONT)
        made.write(50, 0)
        made.drain(worker)
        reader.finish()
    assert "the broker timed the transaction out after" in worker.text
    made.verify()


# Workers that come and go.


def test_exactly_once_workers_come_and_go_under_load_each_record_once_and_in_order_per_key(app: MakeApp) -> None:
    made = app(partitions=6, session_timeout_ms=3_000, transaction_timeout_ms=2_500)

    def record(number: int) -> Record:
        return made.source, b"%d" % number, b"%d" % (number % 40), -1

    with made.recorder.reading(made.target) as reader:
        with made.recorder.feeding(record, at_once=1_000, per_second=400):
            workers = [made.start(0)]
            reader.await_more(300)
            workers += [made.start(1), made.start(2)]
            wait_until(lambda: all("copy: holds" in worker.text for worker in workers), "three share")
            reader.await_more(300)
            made.send(workers[1], signal.SIGTERM)
            made.send(workers[2], signal.SIGKILL)
            assert [workers[1].wait(), workers[2].wait()] == [0, -signal.SIGKILL]
            everything = ", ".join(f"{made.source}[{p}]" for p in range(6))
            wait_until(lambda: workers[0].text.count(f"copy: holds {everything}\n") == 2, "one has all of them again")
            workers[1:] = [made.start(1), made.start(3)]
            wait_until(lambda: all("copy: holds" in worker.text for worker in workers), "three share again")
            reader.await_more(300)
        made.drain(*workers)
        reader.finish()
    made.verify()


# A broker that forgets, and that dies.


@pytest.fixture(scope="module")
def forgetful() -> Iterator[EmbeddedKafka]:
    """A broker that soon forgets transactional ids and producers."""
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=FORGETFUL) as kafka:
        yield kafka


@pytest.fixture
def alone(tmp_path: Path, name: str, forgetful: EmbeddedKafka) -> Iterator[MakeApp]:
    """Apps on the forgetful broker."""
    common = {"bootstrap_servers": forgetful.bootstrap_servers, "schema_directory": tmp_path / "schemas"}
    with making(tmp_path, name, partial(Settings.load, **common)) as make:
        yield make


def test_exactly_once_all_workers_idle_past_the_expiration_of_their_ids_go_on(
    alone: MakeApp, name: str, forgetful: EmbeddedKafka
) -> None:
    made = alone(partitions=2)
    workers = [made.start(0), made.start(1)]
    wait_until(lambda: all("copy: holds" in worker.text for worker in workers), "both have a partition")
    made.write(50, 0)
    made.write(50, 1)
    made.recorder.await_done(made.group, made.source)
    servers = forgetful.bootstrap_servers
    wait_until(lambda: not any(name in found for found in transactional_ids(servers)), "they are forgotten")
    made.write(50, 0)
    made.write(50, 1)
    made.drain(*workers)
    made.verify()


def test_exactly_once_coordinator_away_past_the_session_while_a_function_runs_nobody_is_replaced(
    alone: MakeApp, forgetful: EmbeddedKafka
) -> None:
    """The client has forgotten its member id by then, and the coordinator that is back refuses its heartbeats."""
    made = alone(session_timeout_ms=6_000, transaction_timeout_ms=6_000)
    made.write(100, 0, b"wait")
    worker = made.start(0)
    wait_until(made.waiting.exists, "the function waits")
    made.recorder.history.fault("the broker is killed")
    forgetful.kill(0)
    forgetful.restart(0)  # ready only when its old session with the controller is over: after the worker's
    made.recorder.history.fault("the broker is there again")
    time.sleep(3)  # no client shows its heartbeats: more than one of them, less than the session
    made.gate.touch()
    made.recorder.await_done(made.group, made.source)
    made.write(100, 0)
    made.drain(worker)
    made.verify()


# Strangers with a transaction that hangs.


@contextmanager
def hanging(recorder: Recorder, topic: str, partition: int, timeout_ms: int) -> Iterator[int]:
    """A stranger's transaction that stays open on a partition until it times out; gives the offset of its record."""
    place: list[int] = []
    producer = ck.Producer(
        {**recorder.common, "transactional.id": f"stranger on {topic}", "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(30)
    transaction = recorder.history.begun("stranger")
    delivered = recorder.history.on_delivery(transaction, "stranger")

    def on_delivery(error: ck.KafkaError | None, message: Any) -> None:
        delivered(error, message)
        place.append(message.offset())

    producer.begin_transaction()
    producer.produce(topic, b"not to be read", b"stranger", partition=partition, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    recorder.history.fault(f"a transaction hangs on {topic}[{partition}] at {place[0]}")
    yield place[0]
    recorder.await_no_open_transaction(topic)
    recorder.history.aborted(transaction)
    producer.purge()


HANGS_MS = 6_000


def test_exactly_once_hanging_transaction_on_an_output_delays_readers_alone(app: MakeApp) -> None:
    """The processor goes on writing and committing; readers see all of it, once, when the stranger has timed out."""
    made = app(partitions=2)
    recorder = made.recorder
    worker = made.start(0)
    with recorder.reading(made.target) as reader:
        for partition in (0, 1):
            made.write(50, partition)
        recorder.await_done(made.group, made.source)
        written = max(recorder.ends(made.target).items(), key=lambda end: end[1])[0]
        with hanging(recorder, made.target, written, HANGS_MS) as at:
            for partition in (0, 1):
                made.write(50, partition)
            recorder.await_done(made.group, made.source)
            assert recorder.ends(made.target)[written] == at, "committed, and not to be read yet"
            assert recorder.ends(made.target, "read_uncommitted")[written] > at + 50
        made.write(50, 0)
        made.drain(worker)
        reader.finish()
    made.verify()


def test_exactly_once_hanging_transaction_on_an_input_holds_that_partition_alone(app: MakeApp) -> None:
    """What lies behind the stranger's record is not read before it is known whether that one counts."""
    made = app(partitions=2)
    recorder = made.recorder
    worker = made.start(0)
    with recorder.reading(made.target) as reader:
        for partition in (0, 1):
            made.write(50, partition)
        recorder.await_done(made.group, made.source)
        with hanging(recorder, made.source, 0, HANGS_MS) as at:
            for partition in (0, 1):
                made.write(100, partition)
            wait_until(lambda: recorder.positions(made.group, made.source)[1] == 150, "the other partition goes on")
            assert recorder.positions(made.group, made.source)[0] == at
            assert recorder.ends(made.source)[0] == at
        made.drain(worker)
        reader.finish()
    made.verify()
