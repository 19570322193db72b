"""Jobs of a cluster as a person sees them: submitted, listed, killed, and the log in words."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import kstreams_py as ks
from kstreams_py.cli.peers import check_cluster
from kstreams_py.errors import SettingsError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Found,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SealTask,
    SignalReady,
    Volunteer,
)
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command, read_entries, read_replica
from kstreams_py.jobs.cluster.records import encode_replica
from kstreams_py.jobs.cluster.state import JobPhase, PeerState, Replica
from kstreams_py.jobs.peers.fingerprints import fingerprint_of
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.operations.clusters import describe_command, describe_tasks, find_job, submit_job
from kstreams_py.testing import MemoryCluster
from kstreams_py.testing.memory_source import MemorySource

NAME = "shop"


def make_graph(factor: int = 2) -> Graph:
    graph = ks.Graph("orders")
    rows, parsed = graph.source("rows", MemorySource()), graph.channel("parsed", group_by=lambda value: value % 7)
    graph.map(rows, to=parsed, id="parse")(lambda value: value * factor)
    graph.sink(parsed, id="store")(lambda value: None)
    graph.validate()
    return graph


def begin(scheduler: Scheduler = Scheduler.ROUND_ROBIN, peers: int = 0, fingerprint: str = "") -> MemoryCluster:
    """Returns the Kafka cluster of a cluster of peers. `fingerprint`: that of the first peer's graph."""
    cluster = MemoryCluster()
    client = KafkaLog(cluster, NAME, "p0")
    client.start()
    client.close()
    append_command(cluster, NAME, Found(VERSION, NAME, scheduler))
    found = fingerprint_of(make_graph())
    for number in range(peers):
        graphs = {"orders": fingerprint if fingerprint and not number else found}
        append_command(cluster, NAME, AcceptJoin(PeerId(f"p{number}"), f"tcp://h:{number}", "", graphs, "h, process 1"))
    return cluster


def test_submitted_job_is_in_the_log_with_its_tasks() -> None:
    cluster = begin(peers=2)
    job = submit_job(cluster, NAME, make_graph(), None)
    state = find_job(read_replica(cluster, NAME), job)
    assert (state.phase, state.graph, state.fingerprint) == (JobPhase.WAITING, "orders", fingerprint_of(make_graph()))
    assert [(task.id, task.is_input, task.is_grouped) for task in state.tasks] == [
        ("read-rows", True, False),
        ("parse", False, False),
        ("store", False, True),
    ]
    assert [*describe_tasks(read_replica(cluster, NAME), job)] == [
        "  read-rows  no peer",
        "  parse      no peer",
        "  store      no peer",
    ]


def test_job_of_other_code_than_a_peers_is_refused_with_both_fingerprints() -> None:
    cluster = begin(peers=2, fingerprint="0123456789ab")
    own = fingerprint_of(make_graph())
    with pytest.raises(SettingsError) as refused:
        submit_job(cluster, NAME, make_graph(), None, "mine")
    assert str(refused.value) == (
        "cluster shop refuses job mine: peer p0 cannot run the job: job mine runs graph orders with fingerprint "
        f"{own}, but this peer has 0123456789ab: deploy the same code on all peers, or kill the job and submit it again"
    )


@pytest.mark.parametrize(
    ("scheduler", "percentage", "why"),
    [
        (
            Scheduler.PERCENTAGE,
            None,
            "cluster shop has the scheduler percentage: give the job's share with --percentage, a number from 0.01 to",
        ),
        (Scheduler.PERCENTAGE, 100.0000001, "--percentage 100.0000001: give a number from 0.01 to 100"),
        (Scheduler.PERCENTAGE, 1e-300, "--percentage 1e-300: give a number from 0.01 to 100"),
        (
            Scheduler.GREEDY,
            30.0,
            "cluster shop has the scheduler greedy, which uses no percentages: leave --percentage out",
        ),
    ],
)
def test_percentage_that_does_not_fit_the_scheduler_is_refused(
    scheduler: Scheduler, percentage: float | None, why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        submit_job(begin(scheduler), NAME, make_graph(), percentage)


def test_id_of_a_job_is_used_once() -> None:
    cluster = begin()
    job = submit_job(cluster, NAME, make_graph(), None, "daily")
    append_command(cluster, NAME, KillJob(job, "FunctionExited: no disk"))
    state = find_job(read_replica(cluster, NAME), "daily")
    assert (state.phase, state.why) == (JobPhase.KILLED, "FunctionExited: no disk")
    with pytest.raises(SettingsError, match="cluster shop has had a job daily: leave --name out, or"):
        submit_job(cluster, NAME, make_graph(), None, "daily")
    with pytest.raises(SettingsError, match="cluster shop has no job weekly: it has daily"):
        find_job(read_replica(cluster, NAME), "weekly")


@pytest.mark.parametrize("name", ["a b", "a\n", "\x1b", " ", "ü", "a/b", "a" * 101])
def test_id_of_a_job_that_cannot_be_typed_again_is_refused(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        submit_job(begin(), NAME, make_graph(), None, name)
    assert str(refused.value) == f"--name {name!r}: use 1 to 100 of a-z A-Z 0-9 . _ -"
    assert submit_job(begin(), NAME, make_graph(), None, "a.B_-9") == "a.B_-9"


@pytest.mark.parametrize("name", ["", "../x", "bad name/ü", "a\n", "a" * 226])
def test_cluster_that_cannot_have_topics_is_refused(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_cluster(name)
    assert str(refused.value) == f"--cluster {name!r}: use 1 to 225 of a-z A-Z 0-9 . _ -"
    assert [check_cluster(good) for good in ("..", "a" * 225)] == ["..", "a" * 225]
    assert max(map(len, cluster_topics("a" * 225))) == 249


def test_cluster_that_does_not_exist_is_named() -> None:
    with pytest.raises(SettingsError, match="there is no cluster of peers called 'shop': start one with"):
        submit_job(MemoryCluster(), NAME, make_graph(), None)


def test_fingerprint_changes_with_the_graph() -> None:
    graph = make_graph()
    graph.sink(graph.channel("more"), id="more")(print)
    assert fingerprint_of(make_graph()) == fingerprint_of(make_graph()) != fingerprint_of(graph)


def test_graph_whose_source_has_the_id_of_a_task_is_refused() -> None:
    graph = ks.Graph("orders")
    graph.sink(graph.source("rows", MemorySource()), id="read-rows")(print)
    graph.validate()
    with pytest.raises(SettingsError, match="task 'read-rows' has the id of the task that reads source 'rows': rename"):
        specify_tasks(graph.tasks)


PEER, JOB = PeerId("p1"), JobId("j")
WORDS: list[tuple[Command, str]] = [
    (Found(1, NAME, Scheduler.GREEDY), "a peer starts, with scheduler greedy"),
    (AcceptJoin(PEER, "tcp://h:1", "", {}, "h, process 7"), "peer p1 joins: h, process 7, at tcp://h:1"),
    (KillJob(JOB), "job j is killed"),
    (KillJob(JOB, "ValueError: x"), "job j is killed: ValueError: x"),
    (CompleteTask(JOB, "t"), "job j: task t is complete"),
    (SealTask(JOB, "t", PEER, 2), "job j: peer p1 has nothing left to read for t"),
    (Leave(PEER, LeaveReason.SILENT), "peer p1 leaves: silent"),
    (Volunteer(PEER, 7), "peer p1 volunteers, having seen offset 7"),
    (SignalReady(PEER, JOB, 2), "peer p1 is ready for job j, epoch 2"),
]


def test_log_is_shown_in_words() -> None:
    assert [describe_command(command) for command, _ in WORDS] == [words for _, words in WORDS]
    cluster = begin(peers=1)
    submit_job(cluster, NAME, make_graph(), None, "daily")
    _, entries = read_entries(cluster, NAME)
    assert [each.entry and describe_command(each.entry.command) for each in entries] == [
        "a peer starts, with scheduler round-robin",
        "peer p0 joins: h, process 1, at tcp://h:0",
        "job daily is submitted: graph orders, 3 tasks",
    ]


REPLICAS = cluster_topics(NAME)[2]

PEERS = {PeerId("p0"): PeerState(0, "tcp://h:0", "", {}, "")}

KEPT = Replica(version=VERSION, cluster=NAME, offset=1, peers=PEERS)

FOREIGN: list[tuple[bytes, bytes]] = [
    (b"x", b"garbage"),
    (b"p0", b"\xff"),
    (b"p0", b"{}"),
    (b"p0", b"[" * 100_000),
    (b"p0", b'{"version": 2}'),
    (b"p0", b'{"version": 1, "cluster": "shop", "peers": 7}'),
    (b"p9", encode_replica(replace(KEPT, offset=9))),
    (b"\xff", encode_replica(replace(KEPT, offset=9))),
    (b"p0", encode_replica(replace(KEPT, offset=9, cluster="other"))),
]


def keep(cluster: MemoryCluster, key: bytes, value: bytes | None) -> None:
    cluster.append(REPLICAS, value, key=key)


@pytest.mark.parametrize(("key", "value"), FOREIGN)
def test_foreign_record_among_the_replicas_is_left_out_with_a_warning(
    key: bytes, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = begin(peers=1)
    keep(cluster, key, value)
    assert [*read_replica(cluster, NAME).peers] == ["p0"], "the log has it all"
    keep(cluster, b"p0", encode_replica(KEPT))
    keep(cluster, b"x", None)  # how a person deletes a foreign record
    caplog.clear()
    assert read_replica(cluster, NAME) == KEPT
    client = KafkaLog(cluster, NAME, "p1")
    assert client.start() == encode_replica(KEPT)
    client.close()
    text = (
        f"{REPLICAS} has 1 record that no peer of cluster shop kept, the first at offset 0: somebody else writes to it"
    )
    assert [record.getMessage() for record in caplog.records] == 2 * [f"{text}; the cluster leaves them out"]


def test_replica_of_a_newer_version_is_refused() -> None:
    """Whether this version can read it or not."""
    for value in (b'{"version": 2, "cluster": "shop", "peers": 7}', encode_replica(replace(KEPT, version=2))):
        cluster = begin(peers=1)
        keep(cluster, b"p0", encode_replica(KEPT))
        keep(cluster, b"p7", value)
        text = re.escape(f"{REPLICAS}[0]@1: cluster shop was created by another version of kstreams_py (its log has ")
        with pytest.raises(SettingsError, match=f"^{text}version 2, this peer has 1"):
            read_replica(cluster, NAME)
        with pytest.raises(SettingsError, match=f"^{text}version 2, this peer has 1"):
            KafkaLog(cluster, NAME, "p1").start()


def test_records_that_cannot_be_read_are_no_entries_and_no_heartbeats() -> None:
    log, beats, _ = cluster_topics(NAME)
    cluster = begin()
    client = KafkaLog(cluster, NAME, "p1")
    client.start()
    cluster.limit_values(10)
    cluster.append(log, b"x" * 11)
    cluster.append(beats, b"x" * 11)
    assert [record.value for record in client.read()][-1] is None
    assert client.read_beats() == [b""]
    client.close()
