"""Keyed state while brokers are killed, frozen and restarted: no worker ends, and each record counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import BrokerUnavailable
from tests.clusters import open_cluster
from tests.system.counting import Counting
from tests.system.harness import Cluster, wait_until
from tests.system.recorder import Recorder
from tests.system.three_brokers.brokers import BROKERS, IN_SYNC, Suffering

PER_SECOND: Final = 60

SOON: Final = 90.0
"""Seconds; the client itself looks for the controller every five minutes."""

each_kind = pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])


class Counters:
    """Two workers that count while brokers come and go; others replace those that are killed or frozen."""

    def __init__(self, directory: Path, name: str, brokers: EmbeddedKafka, *, on_disk: bool, seed: int) -> None:
        settings = Settings.load(
            bootstrap_servers=brokers.bootstrap_servers,
            schema_directory=directory / "schemas",
            state_directory=directory / "state",
            session_timeout_ms=6_000,
            transaction_timeout_ms=6_000,
        )
        self.counting = Counting(directory, name, settings, on_disk=on_disk, replication=BROKERS, config=IN_SYNC)
        self.suffering = Suffering(
            brokers, self.counting.recorder, self.counting.start, ("count", "total"), self.counting.count_totals, seed
        )

    def count(self, *faults: str) -> None:
        """Counts what is fed while these faults happen to one broker after the other, then compares everything."""
        counting, suffering = self.counting, self.suffering
        first = suffering.chance.randrange(BROKERS)
        with counting.recorder.feeding(counting.record, per_second=PER_SECOND):
            suffering.begin()
            for number, fault in enumerate(faults):
                suffering.await_more()
                getattr(suffering, fault)((first + number) % BROKERS)
            suffering.await_joined()
        suffering.resume()
        counting.await_done()
        suffering.finish()
        counting.verify()


@pytest.fixture
def counters() -> Iterator[list[Counters]]:
    """What a test has made; its workers are killed with the test."""
    found: list[Counters] = []
    yield found
    for each in found:
        each.counting.kill_all()


@pytest.mark.long
@pytest.mark.timeout(600)
@each_kind
def test_brokers_killed_and_frozen_count_each_record_once(
    counters: list[Counters], tmp_path: Path, name: str, brokers: EmbeddedKafka, on_disk: bool
) -> None:
    counters.append(Counters(tmp_path, name, brokers, on_disk=on_disk, seed=1))
    counters[0].count("kill_one", "freeze_one")


@pytest.mark.long
def test_topics_are_described_again_soon_after_the_known_controller_has_died(name: str, brokers: EmbeddedKafka) -> None:
    """A restore asks for the id of its changelog. The client asks a controller that is down until it looks again."""
    Cluster(brokers.bootstrap_servers).create(name, replication=BROKERS)
    settings = Settings.load(bootstrap_servers=brokers.bootstrap_servers, request_timeout_ms=3_000)
    cluster = open_cluster(settings)
    described = cluster.topics([name])
    controller = cluster._topics.client.list_topics().controller_id
    brokers.kill(controller)

    def describes() -> bool:
        try:
            return cluster.topics([name]) == described
        except BrokerUnavailable:
            return False

    wait_until(describes, "the topic is described", SOON)
    brokers.restart(controller)
    Recorder(brokers.bootstrap_servers).await_in_sync()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rolling_restart_of_brokers_counts_each_record_once(
    counters: list[Counters], tmp_path: Path, name: str, brokers: EmbeddedKafka
) -> None:
    counters.append(Counters(tmp_path, name, brokers, on_disk=True, seed=2))
    counters[0].count(*["restart_one"] * BROKERS)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@each_kind
@pytest.mark.parametrize("seed", [3, 4])
def test_brokers_killed_and_frozen_in_a_loop_count_each_record_once(
    counters: list[Counters], tmp_path: Path, name: str, brokers: EmbeddedKafka, on_disk: bool, seed: int
) -> None:
    counters.append(Counters(tmp_path, name, brokers, on_disk=on_disk, seed=seed))
    counters[0].count(*["kill_one", "freeze_one", "restart_one"] * 4)
