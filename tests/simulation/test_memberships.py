"""Whole clusters with clocks of their own: peers die, freeze and join, the log is away, and appends have no outcome."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.cluster.commands import (
    FRAME_MAX,
    AcceptJoin,
    Entry,
    Found,
    JobId,
    KillJob,
    PeerId,
    Scheduler,
    SignalReady,
    SubmitJob,
)
from kstreams_py.jobs.cluster.fold import VERSION, describe_difference
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.log import LogInMemory
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.cluster.records import encode_entry
from kstreams_py.jobs.cluster.state import JobPhase
from tests.unit.replicas import CODE, submit

TICK = 0.1
SETTINGS = Found(VERSION, "flights", Scheduler.ROUND_ROBIN)


@dataclass
class Cluster:
    """Peers that run one after another, tick by tick.

    - `frozen`: the peers that stand still, with the ticks that are left.
    - `events`: the times of leaves and joins that were seen, for assertions.
    """

    seed: int = 0
    log: LogInMemory = field(default_factory=LogInMemory)
    peers: dict[PeerId, ClusterMembership] = field(default_factory=dict)
    frozen: dict[PeerId, int] = field(default_factory=dict)
    now: float = 50.0
    count: int = 0
    tools: int = 0
    lost: float = 0.0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    def add(self, graphs: dict[str, str] | None = None, settings: Found = SETTINGS) -> ClusterMembership:
        """Starts a peer."""
        self.count += 1
        me = PeerId(f"p{self.count}")
        client = self.log.open()
        append = client.append

        def append_or_not(value: bytes) -> None:
            if self.chance.random() >= self.lost:
                append(value)
                if self.chance.random() < self.lost:  # the answer is lost, and the client appends it again
                    append(value)

        client.append = append_or_not  # type: ignore[method-assign]
        member = ClusterMembership(
            client, settings, AcceptJoin(me, "", "", CODE if graphs is None else graphs), Heartbeats(me)
        )
        member.start()
        self.peers[me] = member
        return member

    def do(self, command: SubmitJob | KillJob) -> None:
        """Appends a command as a tool does."""
        self.tools += 1
        self.log.append(encode_entry(Entry(f"tool {self.tools}", 1, command)))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            names = [*self.peers]
            self.chance.shuffle(names)
            for name in names:
                if self.frozen.get(name, 0) > 0:
                    self.frozen[name] -= 1
                    continue
                self.turn(name)

    def turn(self, name: PeerId) -> None:
        peer = self.peers[name]
        peer.turn(self.now)
        if peer.has_left:  # found silent: it joins under another id
            del self.peers[name]
            self.add()
            return
        assigned = peer.replica.assignments.get(name)
        if assigned is not None and name not in peer.replica.jobs[assigned.job].ready and peer.is_idle:
            peer.append(SignalReady(name, assigned.job, assigned.since))

    def settle(self) -> None:
        """Runs without faults until all peers agree."""
        self.log.is_away, self.lost = False, 0.0
        self.frozen.clear()
        self.run(30)
        replicas = [peer.replica for peer in self.peers.values()]
        assert all(replica == replicas[0] for replica in replicas)
        assert {*replicas[0].peers} == {*self.peers}
        assert not any(peer.seen.diverged for peer in self.peers.values())


def run_job(peers: int) -> Cluster:
    """Returns a cluster whose peers have joined one by one, and run a job of three tasks."""
    cluster = Cluster()
    for _ in range(peers):
        cluster.add()
        cluster.run(1)
    cluster.do(submit("A3"))
    cluster.run(5)
    return cluster


def test_peers_join_and_run_a_job() -> None:
    cluster = run_job(peers=3)
    cluster.settle()
    replica = cluster.peers[PeerId("p1")].replica
    assert sorted(each.task for each in replica.assignments.values()) == ["t0", "t1", "t2"]
    assert replica.jobs[JobId("A")].phase is JobPhase.RUNNING


def test_peer_that_dies_leaves_once() -> None:
    # OX-74
    cluster = run_job(peers=4)
    del cluster.peers[PeerId("p2")]
    cluster.run(8)
    cluster.settle()
    replica = next(iter(cluster.peers.values())).replica
    assert [*replica.peers] == ["p1", "p3", "p4"]
    assert replica.jobs[JobId("A")].phase is JobPhase.RUNNING


def test_peer_that_was_frozen_joins_under_another_id() -> None:
    cluster = run_job(peers=3)
    cluster.frozen[PeerId("p3")] = 200
    before = cluster.peers[PeerId("p3")]
    cluster.run(19)
    assert (before.may_act(cluster.now), before.replica.jobs[JobId("A")].phase) == (False, JobPhase.RUNNING)
    assert cluster.peers[PeerId("p1")].replica.jobs[JobId("A")].phase is JobPhase.WAITING
    cluster.settle()
    replica = cluster.peers[PeerId("p1")].replica
    assert ([*replica.peers], replica.jobs[JobId("A")].phase) == (["p1", "p2", "p4"], JobPhase.RUNNING)


def test_nothing_changes_while_the_log_is_away() -> None:
    cluster = run_job(peers=4)
    before = cluster.peers[PeerId("p1")].replica
    cluster.log.is_away = True
    cluster.run(120)
    assert not any(peer.may_act(cluster.now) for peer in cluster.peers.values())
    cluster.settle()
    assert cluster.peers[PeerId("p1")].replica == before
    assert all(peer.may_act(cluster.now) for peer in cluster.peers.values())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"scheduler": Scheduler.GREEDY}, "has the scheduler round-robin, and this peer greedy: start it with --sch"),
        ({"frame_max": 1 << 20}, f"at most {FRAME_MAX} .*peer 1048576: start it with --frame-max {FRAME_MAX}, "),
        ({"drops_last": True}, "^cluster flights was created without --drops-last: start this peer without it, "),
        ({"joins_running": True}, "was created without --joins-running: start this peer without it, or choose a"),
    ],
)
def test_peer_with_another_setting_of_the_cluster_is_refused(other: dict[str, Any], message: str) -> None:
    cluster = Cluster()
    cluster.add()
    cluster.run(2)
    cluster.add(settings=replace(Found(VERSION, "flights", Scheduler.ROUND_ROBIN), **other))
    with pytest.raises(SettingsError, match=message):
        cluster.run(2)


def test_peer_of_another_version_is_refused() -> None:
    other = Cluster()
    other.log.append(encode_entry(Entry("old", 1, Found(VERSION + 1, "flights", Scheduler.ROUND_ROBIN))))
    other.add()
    with pytest.raises(SettingsError, match=r"another version of kstreams_py \(its log has version 2, this"):
        other.run(2)


@pytest.mark.parametrize(
    ("graphs", "why"),
    [
        ({}, r"job A runs graph shop, which this peer does not load: allow the module of the graph \(--allow\)"),
        ({"shop": "f2"}, "runs graph shop with fingerprint f1, but this peer has f2: deploy the same code"),
    ],
)
def test_peer_that_cannot_run_a_job_is_refused(graphs: dict[str, str], why: str) -> None:
    cluster = Cluster()
    cluster.add()
    cluster.run(1)
    cluster.do(submit("A1"))
    cluster.run(2)
    cluster.add(graphs)
    with pytest.raises(SettingsError, match=why):
        cluster.run(2)


def test_job_that_a_peer_cannot_run_is_refused() -> None:
    cluster = Cluster()
    cluster.add()
    cluster.add({"shop": "f2"})
    cluster.run(2)
    cluster.do(submit("A1"))
    cluster.settle()
    job = cluster.peers[PeerId("p1")].replica.jobs[JobId("A")]
    assert (job.phase, job.why) == (
        JobPhase.REFUSED,
        "peer p2 cannot run the job: " + describe_difference(JobId("A"), "shop", "f1", "f2"),
    )


def test_record_of_others_in_the_log_is_left_out() -> None:
    cluster = Cluster()
    cluster.log.append(b"junk")
    cluster.add()
    cluster.run(2)
    cluster.settle()
    assert cluster.peers[PeerId("p1")].seen.foreign == 1


def test_log_is_cut_and_a_later_peer_begins_with_the_kept_replica() -> None:
    cluster = Cluster()
    cluster.add()
    cluster.run(2)
    for number in range(1_100):
        cluster.do(KillJob(JobId(f"none {number}")))
    cluster.run(2)
    kept = cluster.log.kept()
    assert kept is not None
    assert kept[1] >= 1_000
    cluster.add()
    cluster.settle()
    assert cluster.log.entries(0)[0].offset == kept[1] + 1


def run_random_cluster(seed: int) -> Cluster:
    cluster = Cluster(seed)
    chance = cluster.chance
    for _ in range(3):
        cluster.add()
    for _ in range(30):
        cluster.run(chance.choice([0.3, 1, 3]))
        match chance.randrange(8):
            case 0 | 1 if len(cluster.peers) < 8:
                cluster.add()
            case 2 if len(cluster.peers) > 1:
                del cluster.peers[chance.choice([*cluster.peers])]
            case 3:
                cluster.frozen[chance.choice([*cluster.peers])] = chance.choice([10, 50, 150])
            case 4:
                cluster.log.is_away = not cluster.log.is_away
            case 5:
                cluster.do(submit(f"{chance.choice('ABCD')}{chance.randint(1, 4)}"))
            case 6:
                cluster.do(KillJob(JobId(chance.choice("ABCD"))))
            case 7:
                cluster.lost = chance.choice([0, 0.3])
    cluster.settle()
    return cluster


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 500), marks=pytest.mark.long)], ids=len)
def test_peers_agree_whatever_happens(seeds: range) -> None:
    running = 0
    for seed in seeds:
        cluster = run_random_cluster(seed)
        replica = next(iter(cluster.peers.values())).replica
        for name, job in replica.open_jobs():
            assert job.is_active or len(job.left) > len(replica.peers) - len(replica.assignments), (seed, name)
            assert job.phase is not JobPhase.STARTING, (seed, name)
            running += job.phase is JobPhase.RUNNING
    assert running > len(seeds) / 2
