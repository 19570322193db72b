"""One run in which brokers and workers fail: kinds, guarantees, a journal, a state and rows keep their promises.

Two workers of one graph. The broker that leads the quorum and a worker are killed together; another broker and a worker
are frozen together; the third broker is stopped cleanly, and the workers are deployed again one after the other. The
promises are then read from one history. Each alone, in other orders and for longer: the other files of this directory.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from bench.servers import Server
from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import BrokerUnavailable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing import Expected
from tests.clusters import open_cluster
from tests.contract.targets import RedisTarget
from tests.system.harness import WorkerProcess, wait_until
from tests.system.promises import assert_kept
from tests.system.recorder import Reader, Record, Recorder
from tests.system.three_brokers.brokers import BROKERS, IN_SYNC, Suffering

GRAPH: Final = """
import pickle
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")
source, more, merged, counted, near, joined, even, odd, copied = (
    graph.topic(f"{name}.{{short}}", key=ks.String())
    for short in "in more merged counted near joined even odd copied".split()
)

@graph.alts(source, more, to=merged)
def merge(value):
    return value

@graph.map(merged, to=counted, state=ks.State("counts", on_disk=True))
def count(value, step, state):
    seen = state.get(step.key, 0) + 1
    state.put(step.key, seen)
    return b"%d" % seen

@graph.map(source, to=near, persistence="journal")
def bring(value):
    return value

@graph.join(source, near, by="order", to=joined)
def pair(value, other):
    return value + b"+" + other

@graph.map(source, to=[even, odd], guarantee="at_least_once")
def fork(value):
    return {{odd if int(value) % 2 else even: value}}

@graph.map(source, to=copied, guarantee="at_most_once")
def copy(value):
    return value

@graph.sink(source, to=pickle.loads({target!r}))
def store(value):
    return (int(value),)
"""

INPUTS: Final = {
    "merge": ("in", "more"),
    "count": ("merged",),
    "bring": ("in",),
    "pair": ("in", "near"),
    "fork": ("in",),
    "copy": ("in",),
    "store": ("in",),
}
"""The inputs of each processor."""

OUTPUTS: Final = ("merged", "counted", "near", "joined", "even", "odd", "copied")

PARTITIONS: Final = 2

PER_SECOND: Final = 40

FAULTS: Final = 14
"""Brokers that fail and come back, and workers that end, start, are frozen and resumed."""

SOON: Final = 90.0
"""Seconds until the topics are described again; the client itself looks for the controller every five minutes."""


class Run:
    """The graph, its topics and its workers."""

    def __init__(self, directory: Path, name: str, brokers: EmbeddedKafka, target: RedisTarget) -> None:
        self.name, self.target = name, target
        self.settings = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            state_directory=directory / "state",
            session_timeout_ms=30_000,  # nothing here waits for its end, and a slow machine keeps it
            transaction_timeout_ms=30_000,
        )
        self.recorder = Recorder(brokers.bootstrap_servers)
        self.cluster = self.recorder.cluster
        topics = map(self.topic, ("in", "more", *OUTPUTS))
        self.cluster.create(*topics, partitions=PARTITIONS, replication=BROKERS, config=IN_SYNC)
        self.cluster.create(self.topic("errors"), replication=BROKERS, config=IN_SYNC)
        self.file = directory / "one_run.py"
        self.file.write_text(
            GRAPH.format(name=name, target=pickle.dumps(target.declare({"number": int}))), encoding="utf-8"
        )
        self.started: list[WorkerProcess] = []
        self.reader: Reader | None = None
        self.suffering = Suffering(brokers, self.recorder, self.start, (*INPUTS,), self.count, seed=1)

    def topic(self, short: str) -> str:
        return f"{self.name}.{short}"

    def start(self, slot: int) -> WorkerProcess:
        self.started.append(WorkerProcess(self.file, slot, self.settings.as_environment(), "--create-topics"))
        return self.started[-1]

    def count(self) -> int:
        """The least number of outputs that a processor has delivered exactly once, as a reader has read them."""
        assert self.reader is not None
        assert self.reader.failure is None, self.reader.failure
        return min(len(self.reader.values[self.topic(short)]) for short in ("merged", "joined"))

    def record(self, number: int) -> Record:
        return self.topic("more" if number % 4 == 3 else "in"), b"%d" % number, b"%d" % (number % 40), -1

    def deliver(self) -> None:
        """Delivers what is fed while one fault follows the other, and a reader reads what the history can judge."""
        judged = [short for short in OUTPUTS if short != "counted"]  # a count depends on the records before it
        with self.recorder.reading(*map(self.topic, judged)) as self.reader:
            with self.recorder.feeding(self.record, per_second=PER_SECOND):
                self.suffer()
            self.suffering.resume()
            for processor, inputs in INPUTS.items():
                self.recorder.await_done(f"{self.name}.{processor}", *map(self.topic, inputs))
            self.suffering.finish()
            self.recorder.await_no_open_transaction(*map(self.topic, OUTPUTS))
            self.reader.finish()

    def suffer(self) -> None:
        suffering, controlled = self.suffering, open_cluster(self.settings)
        described = controlled.topics([self.topic("in")])
        suffering.begin()
        suffering.await_more()
        killed = controlled._topics.client.list_topics().controller_id
        suffering.kill_one(killed)
        wait_until(lambda: self.describes(controlled, described), "the topics are described", SOON)
        suffering.freeze_one((killed + 1) % BROKERS)
        suffering.restart_one((killed + 2) % BROKERS)
        suffering.redeploy()

    def describes(self, controlled: Any, described: Any) -> bool:
        try:
            return bool(controlled.topics([self.topic("in")]) == described)
        except BrokerUnavailable:
            return False

    def kill(self) -> None:
        for worker in self.started:
            worker.kill()

    # The promises.

    def values(self, short: str, partition: int) -> list[bytes]:
        return [m.value() for m in self.cluster.read(self.topic(short)) if m.partition() == partition]

    def verify_history(self) -> None:
        """Nothing is lost, doubled, out of order or read of an aborted transaction, beyond what a guarantee allows."""
        topic = self.topic
        self.recorder.verify(
            Expected(topic("in"), to=topic("merged")),
            Expected(topic("more"), to=topic("merged")),
            Expected(topic("in"), to=topic("near")),
            Expected(
                [topic("in"), topic("near")],
                to=topic("joined"),
                outputs=lambda a, b: [(topic("joined"), a.key, a.value + b"+" + b.value)],
            ),
            Expected(
                topic("in"),
                to=[topic("even"), topic("odd")],
                outputs=lambda m: [(topic("odd" if int(m.value) % 2 else "even"), m.key, m.value)],
                guarantee=Guarantee.AT_LEAST_ONCE,
            ),
            Expected(topic("in"), to=topic("copied"), guarantee=Guarantee.AT_MOST_ONCE),
        )
        assert self.cluster.values(topic("errors")) == []

    def verify_bounds(self) -> None:
        """Each fault costs a partition at most one run of records, which is lost, or is written again."""
        for partition in range(PARTITIONS):
            fed = self.values("in", partition)
            assert_kept(Guarantee.AT_MOST_ONCE, self.values("copied", partition), fed, FAULTS)
            for short, rest in (("even", 0), ("odd", 1)):
                found = self.values(short, partition)
                assert [*dict.fromkeys(found)] == [value for value in fed if int(value) % 2 == rest]
                # a frozen worker may write its run again once the others have gone on
                again = [after for before, after in pairwise(found) if int(after) <= int(before)]
                assert len(again) <= FAULTS, again

    def verify_state(self) -> None:
        """Each record of a key has the next number."""
        found, keys = defaultdict[str, list[int]](list), Counter[str]()
        for m in self.cluster.read(self.topic("counted")):
            found[m.key().decode()].append(int(m.value()))
        for short in ("in", "more"):
            keys.update(m.key().decode() for m in self.cluster.read(self.topic(short)))
        assert found == {key: list(range(1, count + 1)) for key, count in keys.items()}

    def verify_rows(self) -> None:
        """Each record has one row."""
        fed = [m.value() for m in self.cluster.read(self.topic("in"))]
        assert Counter(number for (number,) in self.target.rows()) == Counter(map(int, fed))


@pytest.fixture
def run(tmp_path: Path, name: str, brokers: EmbeddedKafka, redis_server: Server) -> Iterator[Run]:
    made = Run(tmp_path, name, brokers, RedisTarget(redis_server))
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_one_run_in_which_brokers_and_workers_fail_keeps_every_promise(run: Run) -> None:
    run.deliver()
    run.verify_history()
    run.verify_bounds()
    run.verify_state()
    run.verify_rows()
