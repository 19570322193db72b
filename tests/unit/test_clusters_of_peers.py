"""What holds after each entry of any log, whatever the schedulers, the order of events, and copies of commands."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest

from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Entry,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SealTask,
    SignalReady,
    SubmitJob,
    Volunteer,
)
from kstreams_py.jobs.cluster.fold import apply
from kstreams_py.jobs.cluster.planner import demands, plan
from kstreams_py.jobs.cluster.shares import Demand, divide
from kstreams_py.jobs.cluster.state import JobPhase, Replica
from tests.unit.replicas import CODE, Replicas, new_replicas, submit


def idle(cluster: Replicas) -> int:
    return len(cluster.replica.peers) - len(cluster.replica.assignments)


def check_quiet(cluster: Replicas) -> None:
    """Asserts what holds once every answer is applied: nobody would move, and no job waits that fits beside the others.

    A job fits if idle peers are enough for it, and if no other job has too small a share beside it.
    """
    cluster.check()
    replica = cluster.replica
    assert plan(replica) == {peer: (each.job, each.task) for peer, each in replica.assignments.items()}
    known = demands(replica)
    if replica.scheduler is Scheduler.GREEDY and any(each.is_active for each in known):
        return
    for waiting in (each for each in known if not each.is_active and each.minimum <= idle(cluster)):
        beside = [each for each in known if each.is_active or each is waiting]
        shares = divide(len(replica.peers), beside)
        assert any(count < each.minimum for each, count in zip(beside, shares, strict=True)), cluster.counts()


@pytest.mark.parametrize("scheduler", Scheduler)
def test_every_small_cluster_covers_what_runs(scheduler: Scheduler) -> None:
    sizes = [1, 2, 4]
    percentages = ("@50", "@20", "@30") if scheduler is Scheduler.PERCENTAGE else ("", "", "")
    for peers, *tasks in product((1, 3, 4, 6, 9), sizes, sizes, sizes):
        jobs = " ".join(f"{name}{count}{share}" for name, count, share in zip("ABC", tasks, percentages, strict=True))
        cluster = new_replicas(scheduler, peers, jobs)
        check_quiet(cluster)
        assert any(job.is_active for _, job in cluster.replica.open_jobs()) == (min(tasks) <= peers)


def random_event(cluster: Replicas, chance: random.Random) -> None:
    """Appends a random command: of a person, of a peer, one that is stale, or a copy."""
    replica, names = cluster.replica, [JobId(name) for name in "ABCDE"]
    peers, job = [*replica.peers], chance.choice(names)
    match chance.randrange(10):
        case 0 | 1 | 2:
            if replica.joined < 26:
                cluster.join()
        case 3 if peers:
            cluster.leave(chance.choice(peers))
        case 4 | 5:
            features = {"grouped": [chance.randrange(4)], "limited": [chance.randrange(4), chance.randint(1, 3)]}
            share = f"@{chance.randint(1, 40)}" if replica.scheduler is Scheduler.PERCENTAGE else ""
            cluster.append(submit(f"{job}{chance.randint(1, 4)}{share}", **features))
        case 6:
            command: Command = KillJob(job) if chance.random() < 0.5 else CompleteTask(job, f"t{chance.randrange(4)}")
            cluster.append(command)
        case 7 if peers:
            cluster.append(Volunteer(chance.choice(peers), chance.randint(0, replica.offset)))
        case 8 if peers:
            cluster.append(SignalReady(chance.choice(peers), job, chance.randrange(4)))
        case 9 if cluster.log:
            entry = chance.choice(cluster.log)  # nobody knows whether it was appended: it is appended again
            again = apply(replica, entry, replica.offset)
            assert again == replica
        case _:
            pass


def run_random_log(seed: int, scheduler: Scheduler) -> Replicas:
    """Runs random events; what peers answer comes late, and in another order."""
    chance = random.Random(seed)
    cluster = new_replicas(scheduler)
    for _ in range(40):
        cluster.held = True
        random_event(cluster, chance)
        chance.shuffle(cluster.waiting)
        for _ in range(chance.randrange(4)):
            if cluster.waiting:
                cluster.append(cluster.waiting.popleft())
                cluster.check()
        cluster.check()
    cluster.release()
    return cluster


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("seeds", [40, pytest.param(1_700, marks=pytest.mark.long)])
def test_random_logs_leave_no_job_uncovered_and_none_stalled(scheduler: Scheduler, seeds: int) -> None:
    phases = set[JobPhase]()
    for seed in range(seeds):
        cluster = run_random_log(seed, scheduler)
        check_quiet(cluster)
        phases |= {job.phase for job in cluster.replica.jobs.values()}
    assert phases >= {JobPhase.RUNNING, JobPhase.WAITING, JobPhase.KILLED, JobPhase.COMPLETED}


@pytest.mark.parametrize("scheduler", Scheduler)
def test_each_peer_that_reads_the_log_has_the_same_replica(scheduler: Scheduler) -> None:
    cluster = run_random_log(7, scheduler)
    replica = Replica()
    for offset, entry in enumerate(cluster.log):
        replica = apply(replica, entry, offset)
    assert replica == cluster.replica


def test_share_of_no_job_shrinks_when_a_peer_joins() -> None:
    chance = random.Random(5)
    for _ in range(300):
        jobs = [Demand(JobId(str(n)), 1, float("inf"), chance.randint(1, 60)) for n in range(chance.randint(1, 6))]
        for peers in range(12):
            before, after = divide(peers, jobs), divide(peers + 1, jobs)
            assert sum(after) == peers + 1
            assert all(a <= b for a, b in zip(before, after, strict=True)), (peers, jobs)


def test_peer_that_left_never_comes_back() -> None:
    cluster = new_replicas("greedy", 2)
    join = cluster.log[-1].command
    cluster.leave("b")
    cluster.append(join)
    cluster.append(Volunteer(PeerId("b"), cluster.replica.offset))
    assert [*cluster.replica.peers] == ["a"]


def test_copy_of_a_command_changes_nothing_even_if_it_would_by_itself() -> None:
    cluster = new_replicas("greedy", 2, "A1")
    kill = Entry("a tool", 1, KillJob(JobId("B")))
    before = apply(cluster.replica, kill, 100)  # there is no such job yet
    submitted = apply(before, Entry("a tool", 2, submit("B1")), 101)
    again = apply(submitted, kill, 102)
    assert (again.jobs, again.jobs[JobId("B")].phase) == (submitted.jobs, JobPhase.WAITING)


A, B = JobId("A"), PeerId("b")
AGAIN = [
    KillJob(A), CompleteTask(A, "t0"), SealTask(A, "t1", B, 1), Leave(B, LeaveReason.DIED), Volunteer(B, 9),
    SignalReady(B, A, 1), submit("A3"), AcceptJoin(B, "", "", CODE),
]  # fmt: skip


@pytest.mark.parametrize("command", AGAIN, ids=lambda each: type(each).__name__)
def test_command_that_comes_from_two_authors_changes_nothing_the_second_time(command: Command) -> None:
    # OX-72
    cluster = new_replicas("greedy", 3)
    cluster.append(submit("A3"))
    states = list[Replica]()
    for _ in range(3):
        states.append(replace(cluster.replica, offset=0, sequences={}))
        answers = cluster.append(command)
    is_new = not isinstance(command, SignalReady | SubmitJob | AcceptJoin)  # the first of these are in the log already
    assert (states[1] != states[0], states[2] == states[1], answers) == (is_new, True, [])


def test_seals_are_asked_for_again_when_the_peers_of_a_job_change() -> None:
    """A peer that had not sealed its task may be the one that goes: the others would never say so again."""
    cluster = new_replicas("round-robin", 2)
    cluster.append(submit("A1"))
    job = JobId("A")
    cluster.append(SealTask(job, "t0", PeerId("a"), cluster.replica.assignments[PeerId("a")].since))
    assert cluster.replica.jobs[job].sealed == {"t0": ("a",)}
    cluster.append(submit("B1"))  # takes the peer that has not sealed the task
    assert [each.job for each in cluster.replica.assignments.values()] == ["A", "B"]
    assert cluster.replica.jobs[job].sealed == {}
    cluster.append(SealTask(job, "t0", PeerId("a"), cluster.replica.assignments[PeerId("a")].since))
    assert cluster.replica.jobs[job].phase is JobPhase.COMPLETED
