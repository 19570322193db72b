"""A group whose committed offsets are lost does not start again from the beginning, even if they were set by hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import errors
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.kafka.administration import GroupAdmin
from tests.system.app import GUARANTEES, MakeSettings
from tests.system.harness import Cluster, RunningSlot, running, wait_until

each_guarantee = pytest.mark.parametrize(
    "guarantee", [GUARANTEES[0], *(pytest.param(each, marks=pytest.mark.long) for each in GUARANTEES[1:])]
)
"""What a group begins with is recorded by the same code under each guarantee."""


def numbered(start: int, end: int) -> list[bytes]:
    return [str(i).encode() for i in range(start, end)]


class Job:
    """A map on topics of its own; a slot that stops leaves its group without members."""

    def __init__(self, cluster: Cluster, name: str, settings: MakeSettings, guarantee: str, **changed: Any) -> None:
        self.cluster, self.source, self.target, self.group = cluster, f"{name}.in", f"{name}.out", f"{name}.step"
        self.settings = settings(leave_on_stop=True, bootstrap_servers=cluster.bootstrap_servers, **changed)
        self.graph = ks.Graph(name, guarantee=guarantee)
        self.graph.map(self.graph.topic(self.source), to=self.graph.topic(self.target), id="step")(lambda value: value)
        cluster.create(self.source, self.target)
        cluster.partitions(self.target)

    def run_until_committed(self, offset: int) -> None:
        with running(self.graph, self.settings):
            self.cluster.await_committed(self.group, self.source, {0: offset})

    def check_stops_without_offsets(self, minutes: str) -> None:
        """Checks that the slot ends with status 5, names cause and remedy, and delivers and commits nothing."""
        before = self.cluster.values(self.target)
        slot = RunningSlot(self.graph, self.settings)
        slot.join()
        assert isinstance(slot.failure, errors.InputLost), slot.failure
        assert slot.failure.exit_status == 5
        text = str(slot.failure)
        words = ("step", f"{self.source}[0]", f"offsets.retention.minutes ({minutes})", "kstreams recover reset")
        assert [word for word in words if word not in text] == [], text
        assert self.cluster.values(self.target) == before
        assert self.cluster.committed(self.group, self.source) == {}

    def has_no_offsets(self) -> bool:
        return self.cluster.committed(self.group, self.source) == {}

    def set_committed(self, offset: int) -> None:
        """Follows the message: first `kstreams slots release`, as only the offsets of an empty group can be set."""
        admin = GroupAdmin(self.settings)
        admin.remove(self.group, {member.instance: member.member_id for member in admin.members(self.group)})
        self.cluster.set_committed(self.group, {(self.source, 0): offset})


YEAR = "525600"
"""The offsets.retention.minutes of an embedded broker."""


@pytest.mark.parametrize(
    ("guarantee", "reset"),
    # where a group begins is decided before its guarantee acts: each of both once
    [
        pytest.param(guarantee, reset, marks=() if is_quick else pytest.mark.long)
        for guarantee in GUARANTEES
        for reset in ("earliest", "latest")
        for is_quick in [(guarantee, reset) in (("exactly_once", "earliest"), ("at_least_once", "latest"))]
    ],
)
def test_worker_whose_committed_offsets_are_lost_stops_until_they_are_set(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str, reset: str
) -> None:
    job = Job(cluster, name, settings, guarantee, auto_offset_reset=reset)
    if reset == "latest":
        job.run_until_committed(0)  # its first start
    cluster.write(job.source, numbered(0, 100))
    job.run_until_committed(100)
    cluster.write(job.source, numbered(100, 150))
    cluster.delete_group(job.group)
    job.check_stops_without_offsets(YEAR)
    job.check_stops_without_offsets(YEAR)
    job.set_committed(100)
    job.run_until_committed(150)
    assert cluster.values(job.target) == numbered(0, 150)


@each_guarantee
def test_offsets_set_by_hand_before_the_first_start_are_recorded_as_a_beginning(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    job = Job(cluster, name, settings, guarantee)
    cluster.write(job.source, numbered(0, 100))
    cluster.set_committed(job.group, {(job.source, 0): 40})
    job.run_until_committed(100)
    cluster.delete_group(job.group)
    job.check_stops_without_offsets(YEAR)
    assert cluster.values(job.target) == numbered(40, 100)


@each_guarantee
def test_offset_set_by_hand_beside_a_new_partition_is_recorded_as_a_beginning(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, target, group = f"{name}.in", f"{name}.out", f"{name}.step"
    cluster.create(source, target, partitions=2)
    cluster.partitions(target)
    graph = ks.Graph(name, guarantee=guarantee)
    graph.map(graph.topic(source), to=graph.topic(target), id="step")(lambda value: value)
    for p in (0, 1):
        cluster.write(source, numbered(0, 10), partition=p)
    cluster.set_committed(group, {(source, 0): 5})
    around = settings(leave_on_stop=True)
    with running(graph, around):
        cluster.await_committed(group, source, {0: 10, 1: 10})
    cluster.delete_group(group)
    slot = RunningSlot(graph, around)
    slot.join()
    assert isinstance(slot.failure, errors.InputLost), slot.failure
    assert f"{source}[0], {source}[1]" in str(slot.failure)
    assert sorted(cluster.values(target), key=repr) == sorted([*numbered(0, 10), *numbered(5, 10)], key=repr)


def test_topic_deleted_and_created_again_is_read_from_its_start(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    job = Job(cluster, name, settings, "exactly_once")
    cluster.write(job.source, numbered(0, 10))
    job.run_until_committed(10)
    cluster.delete(job.source)
    cluster.create(job.source)
    cluster.write(job.source, numbered(10, 15))
    job.run_until_committed(5)
    assert cluster.values(job.target) == numbered(0, 15)


@pytest.fixture
def forgetful() -> Iterator[Cluster]:
    """A broker that keeps the offsets of an empty group for a minute."""
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=settings) as kafka:
        yield Cluster(kafka.bootstrap_servers)


@pytest.mark.long
def test_worker_whose_offsets_expired_on_the_broker_stops(
    forgetful: Cluster, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kstreams_py")
    jobs = [Job(forgetful, f"{name}-{guarantee}", settings, guarantee) for guarantee in GUARANTEES]
    for job in jobs:
        forgetful.write(job.source, numbered(0, 100))
        job.run_until_committed(100)
    warnings = [r for r in caplog.records if "offsets.retention.minutes is 1" in r.getMessage()]
    assert [r.levelno for r in warnings] == [logging.WARNING] * 3
    for job in jobs:
        wait_until(job.has_no_offsets, "the broker has expired the offsets", 180)
        job.check_stops_without_offsets("1")
        job.set_committed(100)
        forgetful.write(job.source, numbered(100, 110))
        job.run_until_committed(110)
        assert forgetful.values(job.target) == numbered(0, 110)
