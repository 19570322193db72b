"""Journals on three brokers, outputs there and on another cluster: workers and brokers killed and frozen at once."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from tests.system.command import kstreams
from tests.system.harness import Cluster, WorkerProcess, wait_until
from tests.system.promises import by_key, key_of
from tests.system.recorder import Recorder
from tests.system.three_brokers.brokers import BROKERS

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})
source = graph.topic("{name}.in")
graph.map(source, to=graph.topic("{name}.near"), id="near", persistence="journal")(lambda value: value)
graph.map(source, to=graph.topic("{name}.far", cluster="other"), id="far")(lambda value: value)
"""

WORKERS = 3
PARTITIONS = 4
PER_SECOND = 100
FROZEN_SECONDS = 8
"""Longer than the session of a worker, than the time-out of a transaction, and than that of a broker's session."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        yield kafka


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [1, 6])
def test_workers_and_brokers_killed_and_frozen_at_once_deliver_once_and_in_order(
    name: str, tmp_path: Path, brokers: EmbeddedKafka, elsewhere: EmbeddedKafka, rounds: int
) -> None:
    settings = Settings.load(
        bootstrap_servers=brokers.bootstrap_servers,
        schema_directory=tmp_path / "schemas",
        clusters={"other": {"bootstrap_servers": elsewhere.bootstrap_servers}},
        session_timeout_ms=6_000,
        transaction_timeout_ms=6_000,
    )
    recorder, other = Recorder(brokers.bootstrap_servers), Cluster(elsewhere.bootstrap_servers)
    source, near, far = (f"{name}.{end}" for end in ("in", "near", "far"))
    in_sync = {"min.insync.replicas": "2"}
    recorder.cluster.create(source, near, partitions=PARTITIONS, replication=BROKERS, config=in_sync)
    other.create(far, partitions=PARTITIONS)
    file = tmp_path / "graph.py"
    file.write_text(GRAPH.format(name=name), encoding="utf-8")
    environment, chance = settings.as_environment(), random.Random(5)
    with ExitStack() as cleanup:

        def start(slot: int) -> WorkerProcess:
            worker = WorkerProcess(file, slot, environment)
            cleanup.callback(worker.kill)
            return worker

        def await_more(cluster: Cluster, topic: str) -> None:
            least = len(cluster.values(topic)) + 50

            def goes_on() -> bool:
                assert all(worker.process.poll() is None for worker in workers), [worker.text for worker in workers]
                if cluster is other:
                    end_what_hangs(elsewhere.bootstrap_servers)
                return len(cluster.values(topic)) >= least

            wait_until(goes_on, f"{topic} goes on")

        workers = [start(slot) for slot in range(WORKERS)]
        with recorder.feeding(lambda i: (source, b"%d" % i, key_of(b"%d" % i), -1), per_second=PER_SECOND) as feeder:
            for _ in range(rounds):
                for faults in (away_and_killed, frozen_and_killed, frozen_everywhere):
                    await_more(recorder.cluster, near)
                    await_more(other, far)
                    killed, frozen = chance.sample(range(WORKERS), 2)
                    workers[frozen].send(signal.SIGSTOP)
                    workers[killed].kill()
                    faults(brokers, elsewhere, chance.randrange(BROKERS))
                    workers[frozen].send(signal.SIGCONT)
                    workers[killed] = start(killed)
                    recorder.await_in_sync()
            await_more(recorder.cluster, near)
            await_more(other, far)
        for processor in ("near", "far"):
            recorder.await_done(f"{name}.{processor}", source)
        for worker in workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in workers] == [0] * WORKERS, [worker.text for worker in workers]
    written = [b"%d" % i for i in range(feeder.written)]
    assert by_key(recorder.cluster.values(near)) == by_key(written)
    assert by_key(other.values(far)) == by_key(written)
    audited = kstreams("recover", "audit", f"{file}:graph", "--every", environment=environment)
    clean = f"{len(written):,} inputs, {len(written):,} outputs, 0 dead letters: clean"
    assert (audited.status, audited.out) == (0, f"near: {clean}\nfar: {clean}\n"), audited


def end_what_hangs(servers: str) -> None:
    """Does what the warnings of the workers ask for: an only broker that is killed may leave transactions that hang."""
    found = kstreams("transactions", "find-hanging", "--json", environment={"KSTREAMS_BOOTSTRAP_SERVERS": servers})
    for row in map(json.loads, found.out.splitlines()):
        ended = kstreams(*row["command"].split()[1:], "--yes", environment={"KSTREAMS_BOOTSTRAP_SERVERS": servers})
        assert ended.status in (0, 2), ended  # 2: it has ended by itself since


def away_and_killed(brokers: EmbeddedKafka, elsewhere: EmbeddedKafka, broker: int) -> None:
    """The other cluster is frozen; one of the three brokers is killed."""
    elsewhere.pause(0)
    brokers.kill(broker)
    time.sleep(FROZEN_SECONDS)
    elsewhere.resume(0)
    brokers.restart(broker)


def frozen_and_killed(brokers: EmbeddedKafka, elsewhere: EmbeddedKafka, broker: int) -> None:
    """One of the three brokers is frozen; the other cluster is killed."""
    brokers.pause(broker)
    elsewhere.kill(0)
    time.sleep(FROZEN_SECONDS)
    brokers.resume(broker)
    elsewhere.restart(0)


def frozen_everywhere(brokers: EmbeddedKafka, elsewhere: EmbeddedKafka, broker: int) -> None:
    """One of the three brokers, and the other cluster, are frozen."""
    brokers.pause(broker)
    elsewhere.pause(0)
    time.sleep(FROZEN_SECONDS)
    brokers.resume(broker)
    elsewhere.resume(0)
