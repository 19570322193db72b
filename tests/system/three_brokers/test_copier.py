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
from kstreams_py.testing import Expected, Kind, explain
from tests.system.command import command
from tests.system.harness import WorkerProcess, wait_until
from tests.system.promises import assert_kept
from tests.system.recorder import Reader, Record, Recorder
from tests.system.three_brokers.brokers import BROKERS, stop

WORKERS = 2

GRAPH = """
import random
import kstreams_py as ks
from kstreams_py.errors import Abortable
from kstreams_py.ports.kafka.producer import KafkaProducer

graph = ks.Graph({name!r}, errors="{name}.errors")

def copy(value):
    return value

for guarantee in {guarantees!r}:
    source, target = (graph.topic(f"{name}.{{guarantee}}.{{short}}") for short in ("in", "out"))
    graph.map(source, to=target, id=guarantee, guarantee=guarantee)(copy)

commit = KafkaProducer.commit_transaction

def commit_or_abort(producer):
    '''One transaction in three is aborted for real, with outputs and positions already in it.'''
    if random.random() < 1 / 3:
        raise Abortable("the test aborts this one")
    commit(producer)

KafkaProducer.commit_transaction = commit_or_abort
"""


@dataclass(frozen=True)
class Size:
    """How much of it: records at first, more a second while something is bounced, rounds of bounces."""

    records: int
    per_second: int
    rounds: int


SMALL = Size(records=2_000, per_second=100, rounds=1)
FULL = Size(records=100_000, per_second=1_000, rounds=3)


class Lane:
    """What is copied under one guarantee; with one partition, order is checked."""

    def __init__(self, name: str, guarantee: Guarantee, *, ordered: bool) -> None:
        self.guarantee = guarantee
        self.ordered = ordered
        self.source, self.target = (f"{name}.{guarantee}.{short}" for short in ("in", "out"))
        self.group = f"{name}.{guarantee}"

    def record(self, number: int) -> Record:
        value = str(number).encode()
        return self.source, value, b"one" if self.ordered else value, -1


class Copier:
    """The copying graph, its topics and its worker processes."""

    def __init__(self, directory: Path, name: str, brokers: EmbeddedKafka, *lanes: Lane) -> None:
        self.directory = directory
        self.brokers = brokers
        self.lanes = lanes
        self.recorder = Recorder(brokers.bootstrap_servers)
        sizes = {f"{name}.errors": 1}
        for lane in lanes:
            sizes |= {lane.source: 1, lane.target: 1} if lane.ordered else {lane.source: 2, lane.target: 3}
        for topic, partitions in sizes.items():
            self.recorder.cluster.create(topic, partitions=partitions, replication=3, min_insync_replicas="2")
        self.file = directory / "copier.py"
        self.file.write_text(GRAPH.format(name=name, guarantees=[lane.guarantee.value for lane in lanes]))
        self.environment = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            commit_records=750,
            commit_interval_ms=400,
        ).as_environment()

    def record(self, number: int) -> Record:
        """The lanes in turn."""
        number, lane = divmod(number, len(self.lanes))
        return self.lanes[lane].record(number)

    @contextmanager
    def bouncing_brokers(self, reader: Reader, *, hard: bool) -> Iterator[Callable[[], None]]:
        """Two workers of a supervisor; gives what bounces each broker once, hard (SIGKILL) or clean (SIGTERM)."""

        def bounce() -> None:
            for broker in range(BROKERS):
                reader.await_more(30)
                self.recorder.history.fault(f"broker {broker} is {'killed' if hard else 'stopped'}")
                if hard:
                    self.brokers.kill(broker)
                else:
                    stop(self.brokers, broker)
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
        """Copies while `what` is bounced; all is as promised, for whoever reads meanwhile or after, on each replica."""
        recorder, targets = self.recorder, [lane.target for lane in self.lanes]
        bouncing = self.bouncing_brokers if what == "brokers" else self.bouncing_clients
        at_once, per_second = (each * len(self.lanes) for each in (size.records, size.per_second))
        with recorder.reading(*targets) as reader:
            with bouncing(reader, hard=hard) as bounce:
                with recorder.feeding(self.record, at_once=at_once, per_second=per_second):
                    reader.await_more(size.records // 5)
                    for _ in range(size.rounds):
                        bounce()
                for lane in self.lanes:
                    recorder.await_done(lane.group, lane.source)
            recorder.await_no_open_transaction(*targets)
            reader.finish()
        recorder.await_equal_replicas(self.brokers, *(lane.source for lane in self.lanes), *targets)
        self.verify(size.rounds * BROKERS)

    def verify(self, faults: int) -> None:
        """Nothing is lost, doubled or out of order, but that at least once each fault may have repeated a run."""
        anomalies = self.recorder.anomalies(*(Expected(lane.source, to=lane.target) for lane in self.lanes))
        for lane in self.lanes:
            if lane.guarantee is Guarantee.AT_LEAST_ONCE:
                source, target = (self.recorder.cluster.values(topic) for topic in (lane.source, lane.target))
                assert_kept(lane.guarantee, target, source, faults)
                anomalies = [
                    each for each in anomalies if each.kind is not Kind.DUPLICATE or lane.target not in str(each)
                ]
        assert not anomalies, explain(anomalies)


def await_begun(worker: WorkerProcess) -> None:
    """A process that is asked to end before it has begun dies of it."""
    wait_until(lambda: "exactly_once: holds" in worker.text, "it can be asked to end")


@pytest.mark.timeout(600)
def test_brokers_killed_in_turn_lose_double_and_reorder_nothing_that_their_guarantee_forbids(
    tmp_path: Path, name: str, brokers: EmbeddedKafka
) -> None:
    """At least once, each kill may repeat a run of records. Stopped in order: test_rolling_restart.py."""
    lanes = [Lane(name, guarantee, ordered=guarantee is not Guarantee.EXACTLY_ONCE) for guarantee in Guarantee]
    Copier(tmp_path, name, brokers, *lanes).run("brokers", SMALL, hard=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("hard", "ordered"), [(True, True), (False, False)], ids=["hard, in order", "clean"])
def test_exactly_once_bounces_of_clients_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, hard: bool, ordered: bool
) -> None:
    """The weaker guarantees, and more of it: test_verifier.py."""
    Copier(tmp_path, name, brokers, Lane(name, Guarantee.EXACTLY_ONCE, ordered=ordered)).run(
        "clients", SMALL, hard=hard
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ordered", [False, True], ids=["2 to 3", "1 to 1"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "clean"])
@pytest.mark.parametrize("what", ["brokers", "clients"])
def test_exactly_once_three_rounds_of_bounces_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, what: str, hard: bool, ordered: bool
) -> None:
    """The whole matrix, at the size that Kafka's own test has."""
    Copier(tmp_path, name, brokers, Lane(name, Guarantee.EXACTLY_ONCE, ordered=ordered)).run(what, FULL, hard=hard)
