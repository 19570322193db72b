"""Journals on three brokers, outputs there and on another cluster: workers and brokers killed and frozen at once."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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

HEAD = """
import kstreams_py as ks

graph = ks.Graph({name!r})
source, near = graph.topic("{name}.in"), graph.topic("{name}.near")
"""

MAPS = """
graph.map(source, to=near, id="near", persistence="journal")(lambda value: value)
graph.map(source, to=graph.topic("{name}.far", cluster="other"), id="far")(lambda value: value)
"""

ALL_KINDS = """
left, right = graph.topic("{name}.left"), graph.topic("{name}.right")
graph.map(source, to=near, id="near", persistence="journal")(lambda value: b"near " + value)
graph.map(source, to=[left, right], id="fork", persistence="journal")(lambda value: {{left: value, right: value}})
graph.join(left, right, by="order", to=graph.topic("{name}.far", cluster="other"), id="join")(lambda a, b: a + b"+" + b)
graph.alts(near, left, to=graph.topic("{name}.either", cluster="other"), id="alts")(lambda value: value)
"""

Faults = Callable[[EmbeddedKafka, EmbeddedKafka, int], None]
"""What happens to the three brokers, one of which is named, and to the other cluster."""

WORKERS = 3
PARTITIONS = 4
PER_SECOND = 100
FROZEN_SECONDS = 8
"""Longer than the session of a worker, than the time-out of a transaction, and than that of a broker's session."""


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        yield kafka


class Site:
    """A graph between two clusters, its workers, and what becomes of them."""

    def __init__(
        self, name: str, graph: str, directory: Path, brokers: EmbeddedKafka, elsewhere: EmbeddedKafka
    ) -> None:
        self.name, self.brokers, self.elsewhere = name, brokers, elsewhere
        settings = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            clusters={"other": {"bootstrap_servers": elsewhere.bootstrap_servers}},
            session_timeout_ms=6_000,
            transaction_timeout_ms=6_000,
        )
        self.recorder, self.other = Recorder(brokers.bootstrap_servers), Cluster(elsewhere.bootstrap_servers)
        self.file, self.environment = directory / "graph.py", settings.as_environment()
        self.file.write_text((HEAD + graph).format(name=name), encoding="utf-8")
        self.workers: list[WorkerProcess] = []

    def topic(self, end: str) -> str:
        return f"{self.name}.{end}"

    def create(self, here: Collection[str], there: Collection[str]) -> None:
        in_sync = {"min.insync.replicas": "2"}
        names = map(self.topic, here)
        self.recorder.cluster.create(*names, partitions=PARTITIONS, replication=BROKERS, config=in_sync)
        self.other.create(*map(self.topic, there), partitions=PARTITIONS)

    def start(self, slot: int) -> WorkerProcess:
        return WorkerProcess(self.file, slot, self.environment)

    def await_more(self, cluster: Cluster, topic: str) -> None:
        least = len(cluster.values(topic)) + 50

        def goes_on() -> bool:
            assert all(worker.process.poll() is None for worker in self.workers), [w.text for w in self.workers]
            if len(cluster.values(topic)) >= least:
                return True
            for each in (self.brokers, self.elsewhere):
                end_what_hangs(each.bootstrap_servers)
            return False

        wait_until(goes_on, f"{topic} goes on")

    def await_deliveries(self) -> None:
        """Waits until both clusters get more outputs."""
        self.await_more(self.recorder.cluster, self.topic("near"))
        self.await_more(self.other, self.topic("far"))

    def suffer(self, faults: Faults, chance: random.Random) -> None:
        """Kills a worker and freezes another while brokers are killed and frozen; then all of them go on."""
        self.await_deliveries()
        killed, frozen = chance.sample(range(WORKERS), 2)
        self.workers[frozen].send(signal.SIGSTOP)
        self.workers[killed].kill()
        faults(self.brokers, self.elsewhere, chance.randrange(BROKERS))
        self.workers[frozen].send(signal.SIGCONT)
        self.workers[killed] = self.start(killed)
        self.recorder.await_in_sync()

    def deliver(self, rounds: Sequence[Faults], reads: Mapping[str, Collection[str]]) -> list[bytes]:
        """Delivers what is fed over all rounds; returns that. `reads`: the inputs of each processor."""
        source, chance = self.topic("in"), random.Random(5)
        self.workers = [self.start(slot) for slot in range(WORKERS)]
        with self.recorder.feeding(
            lambda i: (source, b"%d" % i, key_of(b"%d" % i), -1), per_second=PER_SECOND
        ) as feeder:
            for faults in rounds:
                self.suffer(faults, chance)
            self.await_deliveries()
        for processor, inputs in reads.items():
            self.recorder.await_done(self.topic(processor), *map(self.topic, inputs))
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in self.workers] == [0] * WORKERS, [worker.text for worker in self.workers]
        return [b"%d" % i for i in range(feeder.written)]

    def audit(self) -> tuple[int, str]:
        audited = kstreams("recover", "audit", f"{self.file}:graph", "--every", environment=self.environment)
        return audited.status, audited.out + audited.err

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()


@pytest.fixture
def site(
    name: str, tmp_path: Path, brokers: EmbeddedKafka, elsewhere: EmbeddedKafka
) -> Iterator[Callable[[str], Site]]:
    with ExitStack() as cleanup:

        def make(graph: str) -> Site:
            made = Site(name, graph, tmp_path, brokers, elsewhere)
            cleanup.callback(made.kill)
            return made

        yield make


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [1, 6])
def test_workers_and_brokers_killed_and_frozen_at_once_deliver_once_and_in_order(
    site: Callable[[str], Site], rounds: int
) -> None:
    here = site(MAPS)
    here.create(["in", "near"], ["far"])
    faults = (away_and_killed, frozen_and_killed, frozen_everywhere)
    written = here.deliver(faults * rounds, {"near": ["in"], "far": ["in"]})
    assert by_key(here.recorder.cluster.values(here.topic("near"))) == by_key(written)
    assert by_key(here.other.values(here.topic("far"))) == by_key(written)
    clean = f"{len(written):,} inputs, {len(written):,} outputs, 0 dead letters: clean"
    assert here.audit() == (0, f"near: {clean}\nfar: {clean}\n")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [1, 4])
def test_journals_of_all_kinds_deliver_once_while_everything_is_hit_at_once(
    site: Callable[[str], Site], rounds: int
) -> None:
    here = site(ALL_KINDS)
    here.create(["in", "near", "left", "right"], ["far", "either"])
    reads = {"near": ["in"], "fork": ["in"], "join": ["left", "right"], "alts": ["near", "left"]}
    written = here.deliver([everything_at_once] * rounds, reads)
    in_order, near = by_key(written), b"near "
    for topic in ("left", "right"):
        assert by_key(here.recorder.cluster.values(here.topic(topic))) == in_order
    mapped = here.recorder.cluster.values(here.topic("near"))
    assert by_key([value and value.removeprefix(near) for value in mapped]) == in_order
    assert len(mapped) == len([value for value in mapped if value and value.startswith(near)])
    pairs = [(value or b"").split(b"+") for value in here.other.values(here.topic("far"))]
    assert by_key([left for left, _ in pairs]) == by_key([right for _, right in pairs]) == in_order
    assert all(left == right for left, right in pairs)
    either = here.other.values(here.topic("either"))
    assert by_key([value[len(near) :] for value in either if value and value.startswith(near)]) == in_order
    assert by_key([value for value in either if not (value and value.startswith(near))]) == in_order
    once, twice = f"{len(written):,}", f"{2 * len(written):,}"
    counts = {"near": (once, once), "fork": (once, twice), "join": (once, once), "alts": (twice, twice)}
    lines = [
        f"{each}: {inputs} inputs, {outputs} outputs, 0 dead letters: clean\n"
        for each, (inputs, outputs) in counts.items()
    ]
    assert here.audit() == (0, "".join(lines))


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


def everything_at_once(brokers: EmbeddedKafka, elsewhere: EmbeddedKafka, broker: int) -> None:
    """One of the three brokers is killed, another is frozen, and so is the other cluster."""
    frozen = (broker + 1) % BROKERS
    elsewhere.pause(0)
    brokers.pause(frozen)
    brokers.kill(broker)
    time.sleep(FROZEN_SECONDS)
    brokers.resume(frozen)
    elsewhere.resume(0)
    brokers.restart(broker)
