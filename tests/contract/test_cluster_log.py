"""The log of a cluster of peers, in memory and in Kafka: one order for all, heartbeats, and the kept replica."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from kstreams_py.errors import InputLost, KStreamsError, SettingsError, TopicError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.jobs.cluster import kafka_log
from kstreams_py.jobs.cluster.commands import Entry, Found, JobId, KillJob, PeerId, Scheduler
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command, read_entries, read_replica
from kstreams_py.jobs.cluster.log import ClusterLog, LogInMemory
from kstreams_py.jobs.cluster.records import encode_entry, encode_replica
from kstreams_py.jobs.cluster.state import PeerState, Replica
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


@pytest.fixture
def name() -> str:
    return new_name()


@pytest.fixture(params=["memory", "the simulation", "Kafka"])
def open_log(request: pytest.FixtureRequest, name: str) -> Iterator[Open]:
    with ExitStack() as closing:
        opened: Open
        if request.param == "memory":
            log = LogInMemory()
            opened = lambda _: log.open()  # noqa: E731
        else:
            kafka = open_rig(request)
            closing.callback(kafka.close)
            opened = partial(KafkaLog, kafka.cluster, name)

        def open_and_close(peer: str) -> ClusterLog:
            client = opened(peer)
            closing.callback(client.close)
            return client

        yield open_and_close


def new_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def kept_by(peer: str, name: str, offset: int) -> bytes:
    """Returns a replica of a cluster as this peer keeps it."""
    peers = {PeerId(peer): PeerState(0, "", "", {}, "")}
    return encode_replica(Replica(version=VERSION, cluster=name, offset=offset, peers=peers))


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


def test_kept_replica_takes_the_place_of_the_entries_before_it(open_log: Open, name: str) -> None:
    first = open_log("p1")
    first.start()
    for number in range(6):
        first.append(b"%d" % number)
    found = read_values(first, 6)
    kept = kept_by("p1", name, 3)
    first.keep(kept, 3)
    until(lambda: open_log("p2").start() == kept)  # in Kafka, a thread of its own writes it
    second = open_log("p3")
    assert second.start() == kept
    assert read_values(second, 2) == found[4:]


def test_log_that_others_have_cut_is_named(rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log, "CUT_SECONDS", 0.1)
    client = KafkaLog(rig.cluster, name, "p1")
    client.start()
    for number in range(4):
        client.append(b"%d" % number)
    read_values(client, 4)
    client.close()
    rig.cluster.truncate(TopicPartition(cluster_topics(name)[0], 0), 2)
    with pytest.raises(InputLost, match=f"entries 0 to 1 of __ks.cluster.{name}.log were deleted by others: "):
        KafkaLog(rig.cluster, name, "p2").start()


BEGIN_AGAIN = (
    "no peer knows the jobs of cluster {0} any more: stop its peers, delete its topics (__ks.cluster.{0}.log, "
    "__ks.cluster.{0}.heartbeats, __ks.cluster.{0}.replica), and begin again: start the peers, and submit the jobs"
)


def read_until_it_raises(client: KafkaLog, error: type[KStreamsError]) -> str:
    """Reads until an exception of exactly this class; returns its text."""

    def is_raised() -> bool:
        try:
            client.read()
        except KStreamsError as raised:
            found.append(raised)
        return bool(found)

    found: list[KStreamsError] = []
    until(is_raised, pause=0.05)
    assert type(found[0]) is error
    return str(found[0])


def start_with(rig: Rig, name: str, entries: int) -> KafkaLog:
    """Returns a client of a new log that has read this many entries."""
    client = KafkaLog(rig.cluster, name, "p1")
    client.start()
    for number in range(entries):
        client.append(b"%d" % number)
    read_values(client, entries)
    return client


def test_log_that_is_deleted_while_a_peer_runs_is_named_with_the_remedy(rig: Rig, name: str) -> None:
    client, log = start_with(rig, name, 2), cluster_topics(name)[0]
    rig.cluster.delete_topics([log])
    text = read_until_it_raises(client, InputLost)
    assert text == f"{log} was deleted by others: {BEGIN_AGAIN.format(name)}"
    client.close()


def test_log_that_is_deleted_and_created_again_is_named_with_the_remedy(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_log, "CUT_SECONDS", 0.1)
    client, log = start_with(rig, name, 3), cluster_topics(name)[0]
    client.keep(kept_by("p1", name, 1), 1)
    until(lambda: rig.cluster.starts({TopicPartition(log, 0)}) == {TopicPartition(log, 0): 2}, pause=0.05)
    rig.cluster.delete_topics([log])
    rig.cluster.create_topics([(log, 1, -1, kafka_log.KEPT_FOREVER)])
    text = read_until_it_raises(client, InputLost)
    # a client may learn that the topic was deleted before it learns of the new one
    assert text in (
        f"{log} was deleted by others: {BEGIN_AGAIN.format(name)}",
        f"entries up to 2 of {log} were deleted by others: it ends at 0 now: {BEGIN_AGAIN.format(name)}",
    )
    client.close()
    with pytest.raises(InputLost, match=f"^entries up to 1 of {log} were deleted by others: it ends at 0 now: no peer"):
        KafkaLog(rig.cluster, name, "p2").start()


def test_deleted_topic_of_heartbeats_is_created_by_the_next_peer(rig: Rig, name: str) -> None:
    client, (_, beats, _) = start_with(rig, name, 1), cluster_topics(name)
    rig.cluster.delete_topics([beats])
    text = read_until_it_raises(client, TopicError)
    again = "start its peers again: the first one creates what is missing"
    assert text == f"{beats} of cluster {name} was deleted by others: {again}"
    client.close()
    following = KafkaLog(rig.cluster, name, "p2")
    following.start()
    following.beat(b"beat")
    assert hear(following, 1) == [b"beat"]
    following.close()


def test_heartbeats_that_were_deleted_while_a_peer_stood_still_are_left_out(rig: Rig, name: str) -> None:
    client, beats = start_with(rig, name, 1), TopicPartition(cluster_topics(name)[1], 0)
    other = KafkaLog(rig.cluster, name, "p2")
    other.start()
    for _ in range(3):
        other.beat(b"old")
    assert hear(other, 3) == [b"old"] * 3
    assert client._consumer is not None
    client._consumer.assign({TopicPartition(cluster_topics(name)[0], 0): 1, beats: 0})
    rig.cluster.truncate(beats, 3)
    client.append(b"1")
    assert read_values(client, 1) == [b"1"]

    def is_heard() -> bool:
        other.beat(b"new")
        client.read()
        return b"new" in client.read_beats()

    until(is_heard, pause=0.1)
    client.close()
    other.close()


def test_tools_append_and_read_what_peers_do(rig: Rig, name: str) -> None:
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
