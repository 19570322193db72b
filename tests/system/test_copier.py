"""Kafka's own transactional copier test: bounces of brokers and clients, random aborts, a reader all the while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.delivery import Guarantee
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.testing import Expected
from tests.system.command import command
from tests.system.harness import WorkerProcess, wait_until
from tests.system.promises import assert_kept
from tests.system.recorder import Reader, Record, Recorder, three_brokers

BROKERS = 3
WORKERS = 2

GRAPH = """
import random
import kstreams_py as ks
from kstreams_py.errors import Abortable
from kstreams_py.ports.kafka.producer import KafkaProducer

graph = ks.Graph({name!r}, guarantee={guarantee!r}, errors="{name}.errors")

@graph.map(graph.topic("{name}.in"), to=graph.topic("{name}.out"))
def copy(value):
    return value

commit = KafkaProducer.commit_transaction

def commit_or_abort(producer):
    '''One transaction in three is aborted for real, with outputs and positions already in it.'''
    if random.random() < 1 / 3:
        raise Abortable("the test aborts this one")
    commit(producer)

KafkaProducer.commit_transaction = commit_or_abort
"""


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with three_brokers() as kafka:
        yield kafka


@dataclass(frozen=True)
class Size:
    """How much of it: records at first, more a second while something is bounced, rounds of bounces."""

    records: int
    per_second: int
    rounds: int


SMALL = Size(records=2_000, per_second=100, rounds=1)
FULL = Size(records=100_000, per_second=1_000, rounds=3)


class Copier:
    """The copying graph, its topics and its worker processes; with one partition, order is checked."""

    def __init__(
        self,
        directory: Path,
        name: str,
        brokers: EmbeddedKafka,
        *,
        ordered: bool,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> None:
        self.directory = directory
        self.brokers = brokers
        self.recorder = Recorder(brokers.bootstrap_servers)
        self.source, self.target, self.group = f"{name}.in", f"{name}.out", f"{name}.copy"
        partitions = (1, 1, 1) if ordered else (2, 3, 1)
        for topic, count in zip((self.source, self.target, f"{name}.errors"), partitions, strict=True):
            self.recorder.cluster.create(topic, partitions=count, replication=3, min_insync_replicas="2")
        self.ordered = ordered
        self.file = directory / "copier.py"
        self.file.write_text(GRAPH.format(name=name, guarantee=guarantee.value))
        self.environment = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            commit_records=750,
            commit_interval_ms=400,
        ).as_environment()

    def record(self, number: int) -> Record:
        value = str(number).encode()
        return self.source, value, b"one" if self.ordered else value, -1

    @contextmanager
    def bouncing_brokers(self, reader: Reader, *, hard: bool) -> Iterator[Callable[[], None]]:
        """Two workers of a supervisor; gives what bounces each broker once, hard (SIGKILL) or clean (SIGTERM)."""

        def bounce() -> None:
            for broker in range(BROKERS):
                reader.await_more(30)
                self.recorder.history.fault(f"broker {broker} is {'killed' if hard else 'stopped'}")
                (self.brokers.kill if hard else self.brokers.terminate)(broker)
                self.brokers.restart(broker)
                self.recorder.history.fault(f"broker {broker} is there again")
                self.recorder.await_in_sync()

        options = ("run", f"{self.file}:graph", "--workers", WORKERS)
        with command(self.directory, *options, environment=self.environment) as running:
            yield bounce
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text

    @contextmanager
    def bouncing_clients(self, reader: Reader, *, hard: bool) -> Iterator[Callable[[], None]]:
        """Two workers; gives what bounces each of them once, hard or clean."""
        with ExitStack() as cleanup:

            def start(slot: int) -> WorkerProcess:
                worker = WorkerProcess(self.file, slot, self.environment)
                cleanup.callback(worker.kill)
                return worker

            def bounce() -> None:
                for slot in range(WORKERS):
                    reader.await_more(30)
                    await_begun(workers[slot])
                    self.recorder.history.fault(f"worker {slot} is {'killed' if hard else 'stopped'}")
                    workers[slot].send(signal.SIGKILL if hard else signal.SIGTERM)
                    assert workers[slot].wait() == (-signal.SIGKILL if hard else 0), workers[slot].text
                    workers[slot] = start(slot)

            workers = [start(slot) for slot in range(WORKERS)]
            yield bounce
            for worker in workers:
                await_begun(worker)
                worker.send(signal.SIGTERM)
            assert [worker.wait() for worker in workers] == [0] * WORKERS, [worker.text for worker in workers]

    def run(self, what: str, size: Size, *, hard: bool) -> None:
        """Copies while `what` is bounced; all of it once, for whoever reads during or after, and equal replicas."""
        self.copy(what, size, hard=hard)
        self.recorder.verify(Expected(self.source, to=self.target))

    def copy(self, what: str, size: Size, *, hard: bool) -> None:
        recorder = self.recorder
        bouncing = self.bouncing_brokers if what == "brokers" else self.bouncing_clients
        with recorder.reading(self.target) as reader:
            with bouncing(reader, hard=hard) as bounce:
                with recorder.feeding(self.record, at_once=size.records, per_second=size.per_second):
                    reader.await_more(size.records // 5)
                    for _ in range(size.rounds):
                        bounce()
                recorder.await_done(self.group, self.source)
            recorder.await_no_open_transaction(self.target)
            reader.finish()
        recorder.await_equal_replicas(self.brokers, self.source, self.target)


def await_begun(worker: WorkerProcess) -> None:
    """A process that is asked to end before it has begun dies of it."""
    wait_until(lambda: "copy: holds" in worker.text, "it can be asked to end")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "hard", "ordered"),
    [("brokers", True, False), ("clients", True, True), ("clients", False, False)],  # clean: test_rolling_restart.py
    ids=["brokers hard", "clients hard, in order", "clients clean"],
)
def test_exactly_once_bounces_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, what: str, hard: bool, ordered: bool
) -> None:
    Copier(tmp_path, name, brokers, ordered=ordered).run(what, SMALL, hard=hard)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE])
def test_weaker_guarantees_brokers_killed_repeat_no_more_than_a_run_a_kill_and_lose_nothing(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, guarantee: Guarantee
) -> None:
    """No worker dies: at most once, there is no excuse at all."""
    copier = Copier(tmp_path, name, brokers, ordered=True, guarantee=guarantee)
    copier.copy("brokers", SMALL, hard=True)
    source, target = (copier.recorder.cluster.values(topic) for topic in (copier.source, copier.target))
    may_repeat = guarantee is Guarantee.AT_LEAST_ONCE
    assert_kept(guarantee, target, source, BROKERS if may_repeat else 0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ordered", [False, True], ids=["2 to 3", "1 to 1"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "clean"])
@pytest.mark.parametrize("what", ["brokers", "clients"])
def test_exactly_once_three_rounds_of_bounces_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, what: str, hard: bool, ordered: bool
) -> None:
    """The whole matrix, at the size that Kafka's own test has."""
    Copier(tmp_path, name, brokers, ordered=ordered).run(what, FULL, hard=hard)
