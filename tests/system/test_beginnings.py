"""A group whose committed positions are not there any more does not start over; nor does one that begins by hand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import Settings, errors
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath
from kstreams_py.ports.kafka.groups import GroupAdmin
from tests.system.harness import Cluster, RunningSlot, running, wait_until
from tests.system.test_errors import GUARANTEES

MakeSettings = Callable[..., Settings]

each_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)


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

    def run_to(self, offset: int) -> None:
        with running(self.graph, self.settings):
            self.cluster.await_committed(self.group, self.source, {0: offset})

    def ends_with_lost_positions(self, minutes: str) -> None:
        """It ends with status 5, says what has happened and what to do, and has delivered and committed nothing."""
        before = self.cluster.values(self.target)
        slot = RunningSlot(self.graph, self.settings)
        slot.join()
        assert isinstance(slot.failure, errors.InputLost), slot.failure
        assert slot.failure.exit_status == 5
        said = str(slot.failure)
        words = (
            "step",
            f"{self.source}[0]",
            f"offsets.retention.minutes ({minutes})",
            "--reset-offsets",
            "slots release",
        )
        assert [word for word in words if word not in said] == [], said
        assert self.cluster.values(self.target) == before
        assert self.cluster.committed(self.group, self.source) == {}

    def set_position(self, offset: int) -> None:
        """As the message says: first `kstreams slots release`, for only a group without members can be set."""
        admin = GroupAdmin(self.settings)
        admin.remove(self.group, {member.instance: member.member_id for member in admin.members(self.group)})
        self.cluster.set_positions(self.group, {(self.source, 0): offset})


WEEK = "10080"
"""Kafka's default of offsets.retention.minutes."""


@each_guarantee
@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_job_whose_positions_are_lost_ends_and_goes_on_once_they_are_set(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str, reset: str
) -> None:
    job = Job(cluster, name, settings, guarantee, auto_offset_reset=reset)
    if reset == "latest":
        job.run_to(0)  # its first start
    cluster.write(job.source, numbered(0, 100))
    job.run_to(100)
    cluster.write(job.source, numbered(100, 150))
    cluster.forget_group(job.group)
    job.ends_with_lost_positions(WEEK)
    job.ends_with_lost_positions(WEEK)
    job.set_position(100)
    job.run_to(150)
    assert cluster.values(job.target) == numbered(0, 150)


@each_guarantee
def test_positions_set_by_hand_before_the_first_start_are_kept_as_begun(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    job = Job(cluster, name, settings, guarantee)
    cluster.write(job.source, numbered(0, 100))
    cluster.set_positions(job.group, {(job.source, 0): 40})
    job.run_to(100)
    cluster.forget_group(job.group)
    job.ends_with_lost_positions(WEEK)
    assert cluster.values(job.target) == numbered(40, 100)


@each_guarantee
def test_partition_set_by_hand_beside_one_that_begins_is_kept_as_begun(
    cluster: Cluster, settings: MakeSettings, name: str, guarantee: str
) -> None:
    source, target, group = f"{name}.in", f"{name}.out", f"{name}.step"
    cluster.create(source, target, partitions=2)
    cluster.partitions(target)
    graph = ks.Graph(name, guarantee=guarantee)
    graph.map(graph.topic(source), to=graph.topic(target), id="step")(lambda value: value)
    for p in (0, 1):
        cluster.write(source, numbered(0, 10), partition=p)
    cluster.set_positions(group, {(source, 0): 5})
    around = settings(leave_on_stop=True)
    with running(graph, around):
        cluster.await_committed(group, source, {0: 10, 1: 10})
    cluster.forget_group(group)
    slot = RunningSlot(graph, around)
    slot.join()
    assert isinstance(slot.failure, errors.InputLost), slot.failure
    assert f"{source}[0], {source}[1]" in str(slot.failure)
    assert sorted(cluster.values(target), key=repr) == sorted([*numbered(0, 10), *numbered(5, 10)], key=repr)


def test_topic_that_was_created_again_begins_as_a_new_one(cluster: Cluster, settings: MakeSettings, name: str) -> None:
    job = Job(cluster, name, settings, "exactly_once")
    cluster.write(job.source, numbered(0, 10))
    job.run_to(10)
    for future in cluster.admin.delete_topics([job.source]).values():
        future.result()
    wait_until(lambda: job.source not in cluster.admin.list_topics(timeout=10).topics, "the topic is gone")
    cluster.create(job.source)
    cluster.write(job.source, numbered(10, 15))
    job.run_to(5)
    assert cluster.values(job.target) == numbered(0, 15)


@pytest.fixture
def forgetful() -> Iterator[Cluster]:
    """A broker that keeps positions for a minute."""
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=settings) as kafka:
        yield Cluster(kafka.bootstrap_servers)


@pytest.mark.long
def test_positions_that_the_broker_has_forgotten_end_the_job(
    forgetful: Cluster, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kstreams_py")
    jobs = [Job(forgetful, f"{name}-{guarantee}", settings, guarantee) for guarantee in GUARANTEES]
    for job in jobs:
        forgetful.write(job.source, numbered(0, 100))
        job.run_to(100)
    warned = [r for r in caplog.records if "offsets.retention.minutes is 1" in r.getMessage()]
    assert [r.levelno for r in warned] == [logging.WARNING] * 3
    for job in jobs:
        wait_until(lambda job=job: forgetful.committed(job.group, job.source) == {}, "the broker forgets", 180)
        job.ends_with_lost_positions("1")
        job.set_position(100)
        forgetful.write(job.source, numbered(100, 110))
        job.run_to(110)
        assert forgetful.values(job.target) == numbered(0, 110)
