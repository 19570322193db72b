"""Kafka's transactional copier test: brokers and workers are restarted, commits abort at random, a reader reads on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing import Expected
from tests.system.command import command
from tests.system.harness import WorkerProcess, wait_until
from tests.system.promises import assert_kept
from tests.system.recorder import Reader, Record, Recorder
from tests.system.three_brokers.brokers import BROKERS, stop

pytestmark = pytest.mark.long

WORKERS = 2

GRAPH = """
import random
import kstreams_py as ks
from kstreams_py.errors import Abortable
from kstreams_py.kafka.producer import KafkaProducer

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
    """The load: records at first, records per second during the restarts, and rounds of restarts."""

    records: int
    per_second: int
    rounds: int


SMALL = Size(records=2_000, per_second=100, rounds=1)
FULL = Size(records=100_000, per_second=1_000, rounds=3)


class Lane:
    """An input and an output topic of one guarantee. `ordered`: they have one partition, and the order is checked."""

    def __init__(self, name: str, guarantee: Guarantee, *, ordered: bool) -> None:
        self.guarantee = guarantee
        self.ordered = ordered
        self.source, self.target = (f"{name}.{guarantee}.{short}" for short in ("in", "out"))
        self.group = f"{name}.{guarantee}"

    @property
    def tolerance(self) -> Guarantee:
        """The guarantee to check: at_most_once loses nothing here, as the workers survive the broker restarts."""
        return Guarantee.AT_LEAST_ONCE if self.guarantee is Guarantee.AT_LEAST_ONCE else Guarantee.EXACTLY_ONCE

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
            self.recorder.cluster.create(
                topic, partitions=partitions, replication=3, config={"min.insync.replicas": "2"}
            )
        self.file = directory / "copier.py"
        self.file.write_text(GRAPH.format(name=name, guarantees=[lane.guarantee.value for lane in lanes]))
        self.environment = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            commit_records=750,
            commit_interval_ms=400,
        ).as_environment()

    def record(self, number: int) -> Record:
        """Creates a record of each lane in turn."""
        number, lane = divmod(number, len(self.lanes))
        return self.lanes[lane].record(number)

    @contextmanager
    def restarting_brokers(self, reader: Reader, *, hard: bool) -> Iterator[Callable[[], None]]:
        """Runs two workers under a supervisor; gives a function that restarts each broker once.

        `hard`: brokers are stopped by SIGKILL, otherwise by SIGTERM.
        """

        def restart() -> None:
            for broker in range(BROKERS):
                reader.await_more(30)
                self.recorder.history.fault(f"broker {broker} is {'killed' if hard else 'stopped'}")
                if hard:
                    self.brokers.kill(broker)
                else:
                    stop(self.brokers, broker)
                self.brokers.restart(broker)
                self.recorder.history.fault(f"broker {broker} is up again")
                self.recorder.await_in_sync()

        options = ("run", f"{self.file}:graph", "--workers", WORKERS)
        with command(self.directory, *options, environment=self.environment) as running:
            yield restart
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text

    @contextmanager
    def restarting_workers(self, reader: Reader, *, hard: bool) -> Iterator[Callable[[], None]]:
        """Runs two workers; gives a function that restarts each of them once, after SIGKILL (`hard`) or SIGTERM."""
        with ExitStack() as cleanup:

            def start(slot: int) -> WorkerProcess:
                worker = WorkerProcess(self.file, slot, self.environment)
                cleanup.callback(worker.kill)
                return worker

            def restart() -> None:
                for slot in range(WORKERS):
                    reader.await_more(30)
                    await_begun(workers[slot])
                    self.recorder.history.fault(f"worker {slot} is {'killed' if hard else 'stopped'}")
                    workers[slot].send(signal.SIGKILL if hard else signal.SIGTERM)
                    assert workers[slot].wait() == (-signal.SIGKILL if hard else 0), workers[slot].text
                    workers[slot] = start(slot)

            workers = [start(slot) for slot in range(WORKERS)]
            yield restart
            for worker in workers:
                await_begun(worker)
                worker.send(signal.SIGTERM)
            assert [worker.wait() for worker in workers] == [0] * WORKERS, [worker.text for worker in workers]

    def run(self, what: str, size: Size, *, hard: bool) -> None:
        """Copies while brokers or workers are restarted, then checks readers, outputs and replicas."""
        recorder, targets = self.recorder, [lane.target for lane in self.lanes]
        restarting = self.restarting_brokers if what == "brokers" else self.restarting_workers
        at_once, per_second = (each * len(self.lanes) for each in (size.records, size.per_second))
        with recorder.reading(*targets) as reader:
            with restarting(reader, hard=hard) as restart:
                with recorder.feeding(self.record, at_once=at_once, per_second=per_second):
                    reader.await_more(size.records // 5)
                    for _ in range(size.rounds):
                        restart()
                for lane in self.lanes:
                    recorder.await_done(lane.group, lane.source)
            recorder.await_no_open_transaction(*targets)
            reader.finish()
        recorder.await_equal_replicas(self.brokers, *(lane.source for lane in self.lanes), *targets)
        self.verify(size.rounds * BROKERS)

    def verify(self, faults: int) -> None:
        """Checks that nothing is lost, doubled or out of order; each fault may repeat one run under at_least_once."""
        for lane in self.lanes:
            if lane.guarantee is Guarantee.AT_LEAST_ONCE:
                source, target = (self.recorder.cluster.values(topic) for topic in (lane.source, lane.target))
                assert_kept(lane.guarantee, target, source, faults)
        self.recorder.verify(*(Expected(lane.source, to=lane.target, guarantee=lane.tolerance) for lane in self.lanes))


def await_begun(worker: WorkerProcess) -> None:
    """Waits until a worker has its handler of SIGTERM: it would die of an earlier signal."""
    wait_until(lambda: "exactly_once: holds" in worker.text, "the worker handles SIGTERM")


@pytest.mark.timeout(600)
def test_brokers_killed_in_turn_break_no_guarantee(tmp_path: Path, name: str, brokers: EmbeddedKafka) -> None:
    """Under at_least_once, each kill may repeat a run of records. For clean stops: test_rolling_restart.py."""
    lanes = [Lane(name, guarantee, ordered=guarantee is not Guarantee.EXACTLY_ONCE) for guarantee in Guarantee]
    Copier(tmp_path, name, brokers, *lanes).run("brokers", SMALL, hard=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("hard", "ordered"), [(True, True), (False, False)], ids=["hard, in order", "clean"])
def test_exactly_once_workers_restarted_in_turn_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, hard: bool, ordered: bool
) -> None:
    """For the weaker guarantees and more faults: test_verifier.py."""
    Copier(tmp_path, name, brokers, Lane(name, Guarantee.EXACTLY_ONCE, ordered=ordered)).run(
        "clients", SMALL, hard=hard
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ordered", [False, True], ids=["2 to 3", "1 to 1"])
@pytest.mark.parametrize("hard", [True, False], ids=["hard", "clean"])
@pytest.mark.parametrize("what", ["brokers", "clients"])
def test_exactly_once_three_rounds_of_restarts_copy_each_record_once(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, what: str, hard: bool, ordered: bool
) -> None:
    """The whole matrix, at the size of Kafka's own test."""
    Copier(tmp_path, name, brokers, Lane(name, Guarantee.EXACTLY_ONCE, ordered=ordered)).run(what, FULL, hard=hard)
