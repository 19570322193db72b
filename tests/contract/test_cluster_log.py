"""The log of a cluster of peers, in memory and in Kafka: one order for all, heartbeats, and the kept replica."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from kstreams_py.errors import InputLost, SettingsError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.jobs.cluster import kafka_log
from kstreams_py.jobs.cluster.commands import Entry, Found, JobId, KillJob, Scheduler
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command, read_entries, read_replica
from kstreams_py.jobs.cluster.log import ClusterLog, LogInMemory
from kstreams_py.jobs.cluster.records import encode_entry, encode_replica
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.records import TopicPartition
from tests.contract.rig import KafkaRig, MemoryRig, Rig, until

Open = Callable[[str], ClusterLog]
"""Returns a client of a new log; its argument is the id of its peer."""


def open_rig(request: pytest.FixtureRequest) -> Rig:
    if request.param == "the simulation":
        return MemoryRig()
    return KafkaRig(request.getfixturevalue("broker").bootstrap_servers)


@pytest.fixture(params=["the simulation", "Kafka"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with ExitStack() as closing:
        found = open_rig(request)
        closing.callback(found.close)
        yield found


@pytest.fixture(params=["memory", "the simulation", "Kafka"])
def open_log(request: pytest.FixtureRequest) -> Iterator[Open]:
    with ExitStack() as closing:
        opened: Open
        if request.param == "memory":
            log = LogInMemory()
            opened = lambda _: log.open()  # noqa: E731
        else:
            kafka = open_rig(request)
            closing.callback(kafka.close)
            opened = partial(KafkaLog, kafka.cluster, new_name())

        def open_and_close(peer: str) -> ClusterLog:
            client = opened(peer)
            closing.callback(client.close)
            return client

        yield open_and_close


def new_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def read_values(log: ClusterLog, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def read() -> bool:
        found.extend(record.value for record in log.read())
        return len(found) >= count

    until(read, pause=0.01)
    return found


def hear(log: ClusterLog, count: int) -> list[bytes]:
    found: list[bytes] = []

    def read() -> bool:
        log.read()
        found.extend(log.read_beats())
        return len(found) >= count

    until(read, pause=0.01)
    return found


def test_clients_read_the_same_order_from_the_beginning(open_log: Open) -> None:
    first, second = open_log("p1"), open_log("p2")
    assert (first.start(), second.start()) == (None, None)
    for number in range(5):
        first.append(b"a%d" % number)
        second.append(b"b%d" % number)
    found = read_values(first, 10)
    assert sorted(filter(None, found)) == [*(b"a%d" % n for n in range(5)), *(b"b%d" % n for n in range(5))]
    assert read_values(second, 10) == found
    third = open_log("p3")
    assert third.start() is None
    assert read_values(third, 10) == found


def test_heartbeats_of_before_the_start_are_not_read(open_log: Open) -> None:
    first, second = open_log("p1"), open_log("p2")
    first.start()
    first.beat(b"old")
    assert hear(first, 1) == [b"old"]
    second.start()
    first.beat(b"new")
    assert (hear(first, 1), hear(second, 1)) == ([b"new"], [b"new"])
    assert first.read() == []


def test_kept_replica_takes_the_place_of_the_entries_before_it(open_log: Open) -> None:
    first, second = open_log("p1"), open_log("p2")
    first.start()
    for number in range(6):
        first.append(b"%d" % number)
    found = read_values(first, 6)
    kept = encode_replica(Replica(version=VERSION, offset=3))
    first.keep(kept, 3)
    assert second.start() == kept
    assert read_values(second, 2) == found[4:]


def test_log_that_others_have_cut_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "CUT_SECONDS", 0.1)
    name = new_name()
    client = KafkaLog(rig.cluster, name, "p1")
    client.start()
    for number in range(4):
        client.append(b"%d" % number)
    read_values(client, 4)
    client.close()
    rig.cluster.truncate(TopicPartition(cluster_topics(name)[0], 0), 2)
    with pytest.raises(InputLost, match=f"entries 0 to 1 of __ks.cluster.{name}.log were deleted by others: "):
        KafkaLog(rig.cluster, name, "p2").start()


def test_tools_append_and_read_what_peers_do(rig: Rig) -> None:
    name = new_name()
    with pytest.raises(SettingsError, match=f"there is no cluster of peers called '{name}'"):
        read_replica(rig.cluster, name)
    client = KafkaLog(rig.cluster, name, "p1")
    client.start()
    client.append(encode_entry(Entry("p1", 1, Found(VERSION, name, Scheduler.GREEDY))))
    client.append(b"junk")
    assert len(read_values(client, 2)) == 2
    append_command(rig.cluster, name, KillJob(JobId("none")))
    assert len(read_values(client, 1)) == 1
    _, entries = read_entries(rig.cluster, name)
    assert sorted(str(each.entry and each.entry.command) for each in entries) == sorted(
        ["None", str(KillJob(JobId("none"))), str(Found(VERSION, name, Scheduler.GREEDY))]
    )
    assert (read_replica(rig.cluster, name).scheduler, read_replica(rig.cluster, name).offset) == (Scheduler.GREEDY, 2)
    client.close()
