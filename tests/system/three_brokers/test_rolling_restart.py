"""A rolling restart of brokers under each guarantee: no worker ends, so nothing is lost, doubled or reordered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing import Expected
from tests.system.command import RunningCommand, command
from tests.system.harness import wait_until
from tests.system.recorder import Reader, Record, Recorder
from tests.system.three_brokers.brokers import BROKERS, stop

pytestmark = pytest.mark.long

PARTITIONS = 4
TOPICS = ("in", "even", "odd", "merged", "out")

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r}, errors="{name}.errors")


def chain(guarantee):
    topics = (graph.topic(f"{name}.{{guarantee}}.{{topic}}") for topic in "in even odd merged out".split())
    source, even, odd, merged, out = topics

    @graph.map(source, to=[even, odd], id=f"{{guarantee}}-fork", guarantee=guarantee)
    def fork(value):
        return {{odd if int(value) % 2 else even: value}}

    @graph.alts(even, odd, to=merged, id=f"{{guarantee}}-merge", guarantee=guarantee)
    def merge(value):
        return value

    @graph.map(merged, to=out, id=f"{{guarantee}}-copy", guarantee=guarantee)
    def copy(value):
        return value


for guarantee in ks.Guarantee:
    chain(guarantee)
"""


@dataclass(frozen=True)
class Size:
    """The load: records at first, records per second during the restarts, and rounds over all brokers."""

    records: int
    per_second: int
    rounds: int


class Chains:
    """A fork, an alts and a map in a row under each guarantee: topics, two workers, inputs and outputs."""

    def __init__(self, directory: Path, name: str, brokers: EmbeddedKafka) -> None:
        self.directory = directory
        self.brokers = brokers
        self.recorder = Recorder(brokers.bootstrap_servers)
        self.chains = [{short: f"{name}.{guarantee}.{short}" for short in TOPICS} for guarantee in Guarantee]
        self.topics = [topic for chain in self.chains for topic in chain.values()]
        for topic in (*self.topics, f"{name}.errors"):
            self.recorder.cluster.create(
                topic, partitions=PARTITIONS, replication=3, config={"min.insync.replicas": "2"}
            )
        self.file = directory / "chains.py"
        self.file.write_text(GRAPH.format(name=name))
        self.environment = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers, schema_directory=directory / "schemas"
        ).as_environment()
        self.sent = [0 for _ in self.chains]

    def record(self, number: int) -> Record:
        """Creates a record of each chain in turn."""
        number, chain = divmod(number, len(self.chains))
        self.sent[chain] = number + 1
        return self.chains[chain]["in"], b"%d" % number, b"%d" % (number % 40), -1

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
            stop(self.brokers, broker)
            reader.await_more(30)
            self.brokers.restart(broker)
            self.recorder.history.fault(f"broker {broker} is up again")
            self.recorder.await_in_sync()

    def run(self, size: Size) -> None:
        recorder = self.recorder
        with recorder.reading(*self.topics) as reader:
            with self.workers() as running:
                of_all = len(self.chains) * size.records
                with recorder.feeding(self.record, at_once=of_all, per_second=len(self.chains) * size.per_second):
                    reader.await_more(size.records)
                    for _ in range(size.rounds):
                        self.restart_brokers(reader)
                wait_until(
                    lambda: all(
                        len(reader.values[chain["out"]]) >= sent
                        for chain, sent in zip(self.chains, self.sent, strict=True)
                    ),
                    "all outputs are there",
                )
            recorder.await_no_open_transaction(*self.topics)
            reader.finish()
        try:
            recorder.verify(*(expected for chain in self.chains for expected in expected_of(chain)))
        except AssertionError as error:
            error.add_note("\n".join(line for line in running.text.splitlines() if "records/s" not in line))
            raise


def expected_of(chain: dict[str, str]) -> list[Expected]:
    """The expected outputs of each processor of a chain."""
    return [
        Expected(
            chain["in"],
            to=[chain["even"], chain["odd"]],
            outputs=lambda m: [(chain["odd" if int(m.value) % 2 else "even"], m.key, m.value)],
        ),
        Expected(chain["even"], to=chain["merged"]),
        Expected(chain["odd"], to=chain["merged"]),
        Expected(chain["merged"], to=chain["out"]),
    ]


@pytest.mark.timeout(600)
def test_rolling_restart_of_brokers_loses_doubles_and_reorders_nothing(
    tmp_path: Path, name: str, brokers: EmbeddedKafka
) -> None:
    """Each worker has nine processors. As no worker ends, at_most_once must lose nothing either."""
    Chains(tmp_path, name, brokers).run(Size(records=200, per_second=50, rounds=1))


@pytest.mark.timeout(900)
def test_three_rolling_restarts_under_load_lose_double_and_reorder_nothing(
    tmp_path: Path, name: str, brokers: EmbeddedKafka
) -> None:
    Chains(tmp_path, name, brokers).run(Size(records=2_000, per_second=500, rounds=3))
