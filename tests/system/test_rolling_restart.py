"""A rolling restart of brokers under each guarantee: no worker dies, so nothing is lost, doubled or reordered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.delivery import Guarantee
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.testing import Expected
from tests.system.command import RunningCommand, command
from tests.system.harness import wait_until
from tests.system.recorder import Reader, Record, Recorder, three_brokers

BROKERS = 3
PARTITIONS = 4
TOPICS = ("in", "even", "odd", "merged", "out")

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, guarantee={guarantee!r}, errors="{name}.errors")
source, even, odd, merged, out = (graph.topic(f"{name}.{{topic}}") for topic in "in even odd merged out".split())

@graph.map(source, to=[even, odd])
def fork(value):
    return {{odd if int(value) % 2 else even: value}}

@graph.alts(even, odd, to=merged)
def merge(value):
    return value

@graph.map(merged, to=out)
def copy(value):
    return value
"""


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedKafka]:
    with three_brokers() as kafka:
        yield kafka


@dataclass(frozen=True)
class Size:
    """How much of it: records at first, more a second while brokers are restarted, rounds over all brokers."""

    records: int
    per_second: int
    rounds: int


class Chain:
    """A fork, an alts and a map in a row, two workers, and what goes in and comes out."""

    def __init__(self, directory: Path, name: str, brokers: EmbeddedKafka, guarantee: Guarantee) -> None:
        self.directory = directory
        self.brokers = brokers
        self.recorder = Recorder(brokers.bootstrap_servers)
        self.topic = {short: f"{name}.{short}" for short in TOPICS}
        for topic in (*self.topic.values(), f"{name}.errors"):
            self.recorder.cluster.create(topic, partitions=PARTITIONS, replication=3, min_insync_replicas="2")
        self.file = directory / "chain.py"
        self.file.write_text(GRAPH.format(name=name, guarantee=guarantee.value))
        self.environment = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers, schema_directory=directory / "schemas"
        ).as_environment()
        self.sent = 0

    def record(self, number: int) -> Record:
        self.sent = number + 1
        return self.topic["in"], b"%d" % number, b"%d" % (number % 40), -1

    @contextmanager
    def workers(self) -> Iterator[RunningCommand]:
        options = ("run", f"{self.file}:graph", "--workers", 2)
        with command(self.directory, *options, environment=self.environment) as running:
            yield running
            running.send(signal.SIGTERM)
            assert running.wait() == 0, running.text

    def restart_brokers(self, reader: Reader) -> None:
        for broker in range(BROKERS):
            reader.await_more(30)
            self.recorder.history.fault(f"broker {broker} is stopped")
            self.brokers.terminate(broker)
            reader.await_more(30)
            self.brokers.restart(broker)
            self.recorder.history.fault(f"broker {broker} is there again")
            self.recorder.await_in_sync()

    def run(self, size: Size) -> None:
        recorder, topic = self.recorder, self.topic
        with recorder.reading(*topic.values()) as reader:
            with self.workers():
                with recorder.feeding(self.record, at_once=size.records, per_second=size.per_second):
                    reader.await_more(size.records)
                    for _ in range(size.rounds):
                        self.restart_brokers(reader)
                wait_until(lambda: len(reader.values[topic["out"]]) >= self.sent, "all outputs are there")
            recorder.await_no_open_transaction(*topic.values())
            reader.finish()
        recorder.verify(
            Expected(
                topic["in"],
                to=[topic["even"], topic["odd"]],
                outputs=lambda m: [(topic["odd" if int(m.value) % 2 else "even"], m.key, m.value)],
            ),
            Expected(topic["even"], to=topic["merged"]),
            Expected(topic["odd"], to=topic["merged"]),
            Expected(topic["merged"], to=topic["out"]),
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", Guarantee)
def test_rolling_restart_of_brokers_loses_doubles_and_reorders_nothing(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, guarantee: Guarantee
) -> None:
    Chain(tmp_path, name, brokers, guarantee).run(Size(records=500, per_second=300, rounds=1))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("guarantee", Guarantee)
def test_three_rolling_restarts_under_load_lose_double_and_reorder_nothing(
    tmp_path: Path, name: str, brokers: EmbeddedKafka, guarantee: Guarantee
) -> None:
    Chain(tmp_path, name, brokers, guarantee).run(Size(records=2_000, per_second=1_000, rounds=3))
