"""The schedulers against each command: the tables stand beside sections C8 to C10 of the requirements."""

from __future__ import annotations

import pytest

from kstreams_py.jobs.cluster.commands import Command, JobId, PeerId, Volunteer
from kstreams_py.jobs.cluster.explanations import explain
from kstreams_py.jobs.cluster.state import JobPhase
from tests.unit.replicas import new_replicas, submit, volunteers

GREEDY = [
    # rule, peers, jobs in the order of submission, events, volunteers after the last of them, peers of each job then
    ("OX-80 submit, a job runs", 3, "A3", "submit B2", 0, "A 3, B 0"),
    ("OX-81 submit, idle, as many peers as tasks", 3, "", "submit A3", 3, "A 3"),
    ("OX-81 submit, idle, more peers than tasks", 5, "", "submit A3", 5, "A 5"),
    ("OX-82 submit, idle, too few peers", 2, "", "submit A3", 0, "A 0"),
    ("OX-84 kill of a job that waits", 3, "A3 B3", "kill B", 0, "A 3"),
    ("OX-84 kill of a job that waits, which is skipped later", 3, "A3 B3 C2", "kill B, kill A", 3, "C 3"),
    ("OX-85 kill, the first job that fits starts", 3, "A3 B5 C2", "kill A", 3, "B 0, C 3"),
    ("OX-86 kill, none fits", 2, "A2 B3 C4", "kill A", 0, "B 0, C 0"),
    ("OX-88 complete, not the last task", 3, "A3", "complete A 0", 0, "A 2"),
    ("OX-89 complete, the last task, a job fits", 3, "A3 B3", "complete A *", 3, "B 3"),
    ("OX-89 complete, the last task, none fits", 3, "A3 B4", "complete A *", 0, "B 0"),
    ("OX-90 join, a job runs", 3, "A3", "join", 0, "A 3"),
    ("OX-91 join, idle, a job fits now", 2, "A3", "join", 3, "A 3"),
    ("OX-91 join, idle, none fits", 2, "A4", "join", 0, "A 0"),
    ("OX-92 seal, not the last task", 3, "A3", "seal A 0", 0, "A 2"),
    ("OX-92 seal, the last task, a job fits", 3, "A3 B3", "seal A *", 3, "B 3"),
    ("OX-92 seal, the last task, none fits", 3, "A3 B4", "seal A *", 0, "B 0"),
    ("OX-93 leave, coverage is lost, none fits", 3, "A3", "leave A", 0, "A 0"),
    ("OX-94 leave, coverage is kept", 4, "A3", "leave A", 0, "A 3"),
    ("OX-95 leave of an idle peer", 3, "A3 B4", "join, leave idle", 0, "A 3, B 0"),
    ("OX-96 leave, coverage is lost, another job fits", 4, "A4 B3", "leave A", 3, "A 0, B 3"),
    ("OX-97 several jobs fit: all peers go to one", 6, "A6 B2 C3", "kill A", 6, "B 6, C 0"),
]

ROUND_ROBIN = [
    ("OX-100 submit, the share is too small", 5, "A3", "submit B3", 0, "A 5, B 0"),
    ("OX-100 submit, the share is enough", 6, "A3", "submit B3", 3, "A 3, B 3"),
    ("OX-101 kill, the others get its peers", 6, "A3 B3", "kill A", 3, "B 6"),
    ("OX-101 kill, a waiting job gets its peers", 6, "A3 B3 C3", "kill A", 3, "B 3, C 3"),
    ("OX-102 complete, not the last task", 6, "A3 B3", "complete A 0", 1, "A 3, B 3"),
    ("OX-102 complete, the last task", 6, "A3 B3 C3", "complete A *", 3, "B 3, C 3"),
    ("OX-103 join, a waiting job is covered", 5, "A3 B3", "join", 3, "A 3, B 3"),
    ("OX-104 seal, others are open", 6, "A3 B3 C3", "seal A 0", 1, "A 3, B 3, C 0"),
    ("OX-104 seal, the last task", 6, "A3 B3 C3", "seal A *", 3, "B 3, C 3"),
    ("OX-105 leave, coverage is lost", 6, "A3 B3", "leave B", 2, "A 5, B 0"),
    ("OX-105 leave, coverage is kept", 8, "A3 B3", "leave B", 0, "A 4, B 3"),
    ("OX-106 one is dropped, 6 peers", 6, "A2 B4", "submit C2", 3, "A 3, B 0, C 3"),
    ("OX-106 one is dropped, 7 peers", 7, "A2 B4", "submit C2", 3, "A 4, B 0, C 3"),
    ("OX-106 remainders go to the earliest jobs", 8, "A2 B2", "submit C2", 2, "A 3, B 3, C 2"),
    ("OX-107 nobody is covered", 2, "A3", "submit B3", 0, "A 0, B 0"),
    ("of the page: all have a share", 8, "A2 B3", "submit C2", 2, "A 3, B 3, C 2"),
    ("jobs larger than the cluster are dropped first", 2, "C3 A2", "submit B2", 0, "C 0, A 2, B 0"),
]

PERCENTAGE = [
    ("OX-112 submit, 70 and 30 of 10 peers", 10, "A3@70", "submit B3@30", 3, "A 7, B 3"),
    ("OX-112 submit, 70 and 30 of 8 peers", 8, "A3@70", "submit B3@30", 0, "A 8, B 0"),
    ("OX-113 kill, the other gets all", 10, "A3@70 B3@30", "kill A", 7, "B 10"),
    ("OX-113 kill, a waiting job is covered", 8, "A3@70 B3@30", "kill A", 8, "B 8"),
    ("OX-114 complete, not the last task", 10, "A3@70 B3@30", "complete A 1", 2, "A 7, B 3"),
    ("OX-114 complete, the last task", 10, "A3@70 B3@30", "complete A *", 7, "B 10"),
    ("OX-115 join, a waiting job is covered", 8, "A3@70 B3@30", "join", 3, "A 6, B 3"),
    ("OX-116 seal, not the last task", 10, "A3@70 B3@30", "seal A 1", 2, "A 7, B 3"),
    ("OX-116 seal, the last task", 10, "A3@70 B3@30", "seal A *", 7, "B 10"),
    ("OX-117 leave, coverage is lost", 9, "A3@70 B3@30", "leave B", 2, "A 8, B 0"),
    ("OX-117 leave, the job starts again", 10, "A3@70 B3@30", "leave B", 3, "A 6, B 3"),
    ("of the page: beside it, B would be short", 8, "A2@50 B3@30", "submit C2@20", 0, "A 5, B 3, C 0"),
    ("OX-118 no job stops as a peer joins", 3, "A1@5 B1@20 C1@20", "join", 1, "A 1, B 3, C 0"),
    ("OX-118 rounded by Webster's divisors", 7, "A1@50 B1@25", "submit C1@25", 2, "A 3, B 2, C 2"),
]

TABLE = [
    *(("greedy", *row) for row in GREEDY),
    *(("round-robin", *row) for row in ROUND_ROBIN),
    *(("percentage", *row) for row in PERCENTAGE),
]


@pytest.mark.parametrize(("scheduler", "rule", "peers", "jobs", "events", "count", "after"), TABLE, ids=lambda _: None)
def test_scheduler_answers_a_command(
    scheduler: str, rule: str, peers: int, jobs: str, events: str, count: int, after: str
) -> None:
    cluster = new_replicas(scheduler, peers, jobs)
    before, answers = cluster.replica.assignments, list[Command]()
    for each in events.split(", "):
        answers = cluster.do(each)
    assert (volunteers(answers), cluster.counts()) == (count, after), rule
    assert cluster.replica.assignments == before or "idle" not in events
    cluster.check()


def test_plan_is_checked_again_when_a_volunteer_is_applied() -> None:
    # OX-83: a peer leaves between the answer to a submission and its application
    cluster = new_replicas("greedy", 3)
    cluster.held = True
    assert volunteers(cluster.do("submit A3")) == 3
    cluster.leave("c")
    cluster.release()
    assert cluster.counts() == "A 0"


def test_job_that_fits_now_is_chosen_when_a_volunteer_is_applied() -> None:
    # OX-87: a peer joins between the answer to a kill and its application
    cluster = new_replicas("greedy", 3, "A3 B4 C3")
    cluster.held = True
    assert volunteers(cluster.do("kill A")) == 3
    cluster.join()
    cluster.release()
    assert cluster.counts() == "B 4, C 0"


def test_each_event_makes_one_plan() -> None:
    cluster = new_replicas("round-robin", 9, "A3 B3")
    cluster.held = True
    cluster.do("kill A")
    (first, *others) = cluster.waiting
    cluster.waiting.clear()
    cluster.append(first)
    planned = cluster.replica
    for each in others:
        cluster.append(each)
    assert planned.planned_at == cluster.replica.planned_at
    assert planned.assignments == cluster.replica.assignments


@pytest.mark.parametrize(("drops_last", "after"), [(False, "A 0, B 4"), (True, "A 4, B 0")])
def test_of_waiting_jobs_that_are_short_one_is_dropped(drops_last: bool, after: str) -> None:
    # OX-108: both jobs wait until the fourth peer joins
    cluster = new_replicas("round-robin", 2, "A3 B3", drops_last=drops_last)
    cluster.held = True
    cluster.join(2)
    cluster.waiting = type(cluster.waiting)(each for each in cluster.waiting if each == Volunteer(PeerId("d"), 5))
    cluster.append(Volunteer(PeerId("d"), cluster.replica.offset))
    assert cluster.counts() == after


@pytest.mark.parametrize("drops_last", [False, True])
def test_running_job_is_never_displaced_by_one_that_waits(drops_last: bool) -> None:
    cluster = new_replicas("round-robin", 4, "A3 B3 C1", drops_last=drops_last)
    running = cluster.replica.jobs[JobId("A")]
    assert running.phase is JobPhase.RUNNING
    assert cluster.counts() == "A 4, B 0, C 0"  # beside C, the share of A would be two of its three tasks


def test_peer_that_joins_helps_the_running_job_of_greedy_if_the_cluster_says_so() -> None:
    """OX-90, with its option: tasks that group segments get no peer, and a job that waits stays without peers."""
    cluster = new_replicas("greedy", 4, joins_running=True)
    cluster.append(submit("A3", grouped=[0]))
    cluster.append(submit("B2"))
    slots = cluster.replica.jobs[JobId("A")].slots
    assert (volunteers(cluster.do("join")), cluster.counts()) == (1, "A 5, B 0")
    cluster.do("leave A")
    cluster.join(2)
    assert (cluster.counts(), cluster.replica.jobs[JobId("A")].slots) == ("A 6, B 0", slots)
    cluster.check()


@pytest.mark.parametrize("scheduler", ["greedy", "round-robin"])
def test_grouped_task_gets_no_peer_after_its_job_has_peers(scheduler: str) -> None:
    cluster = new_replicas(scheduler, 3)
    cluster.append(submit("A3", grouped=[1]))
    before = cluster.replica.jobs[JobId("A")].slots
    cluster.join(6)
    cluster.check()
    assert [len(cluster.replica.peers_of(JobId("A"), f"t{number}")) for number in range(3)] == (
        [1, 1, 1] if scheduler == "greedy" else [4, 1, 4]
    )
    assert cluster.replica.jobs[JobId("A")].slots == before


def test_keys_of_a_peer_that_left_alone_move() -> None:
    # OX-55
    cluster = new_replicas("greedy", 6)
    cluster.append(submit("A2", grouped=[1]))
    job = JobId("A")
    before, peers = cluster.replica.jobs[job].slots["t1"], cluster.replica.peers_of(job, "t1")
    left = cluster.replica.peers[peers[0]].number
    cluster.leave(peers[0])
    after = cluster.replica.jobs[job].slots["t1"]
    assert (len(peers), left in after) == (3, False)
    assert [a for a, b in zip(after, before, strict=True) if b != left] == [each for each in before if each != left]


def test_last_peer_of_a_grouped_task_takes_coverage_along() -> None:
    # OX-56
    cluster = new_replicas("greedy", 2)
    cluster.append(submit("A2", grouped=[1]))
    cluster.leave(cluster.replica.peers_of(JobId("A"), "t1")[0])
    assert cluster.replica.jobs[JobId("A")].phase is JobPhase.WAITING


def test_peers_that_a_job_cannot_use_go_to_others() -> None:
    cluster = new_replicas("round-robin", 8)
    cluster.append(submit("A2", limited=[0, 1, 1, 1]))
    cluster.do("submit B2")
    assert cluster.counts() == "A 2, B 6"


def test_peers_that_no_job_can_use_are_idle() -> None:
    cluster = new_replicas("round-robin", 5)
    answers = cluster.append(submit("A2", limited=[0, 1, 1, 2]))
    assert (volunteers(answers), cluster.counts()) == (3, "A 3")


def test_job_runs_once_a_peer_of_each_task_is_ready() -> None:
    # OX-63, OX-65
    cluster = new_replicas("round-robin", 4)
    cluster.is_ready = False
    cluster.do("submit A3")
    job = JobId("A")
    first, second, third, surplus = cluster.unready()
    phases = []
    for each in (first, surplus, second, third):
        cluster.append(each)
        phases.append(cluster.replica.jobs[job].phase)
    assert phases == [JobPhase.STARTING, JobPhase.STARTING, JobPhase.STARTING, JobPhase.RUNNING]
    cluster.join()
    assert cluster.replica.ready_peers_of(job, "t1") == ["b"]
    cluster.append(*cluster.unready())
    assert cluster.replica.ready_peers_of(job, "t1") == ["b", "e"]


def test_readiness_for_an_earlier_epoch_changes_nothing() -> None:
    cluster = new_replicas("greedy", 4)
    cluster.is_ready = False
    cluster.do("submit A3")
    stale = cluster.unready()
    cluster.leave("b")  # takes the coverage along: the others get their tasks again, in another epoch
    assert cluster.replica.jobs[JobId("A")].phase is JobPhase.STARTING
    for each in stale:
        cluster.append(each)
    assert cluster.replica.jobs[JobId("A")].ready == ()


def test_peer_that_dies_before_it_is_ready_is_replaced() -> None:
    # OX-64
    cluster = new_replicas("round-robin", 4)
    cluster.is_ready = False
    cluster.do("submit A3")
    cluster.leave("c")
    cluster.is_ready = True
    cluster.do("submit B9")
    assert cluster.counts() == "A 3, B 0"
    assert cluster.replica.jobs[JobId("A")].phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("scheduler", "job", "why"),
    [
        ("percentage", "B1", "the percentage is none: the cluster's scheduler needs a number above 0 and up to 100"),
        ("percentage", "B1@0", "the percentage is 0: the cluster's scheduler needs a number above 0 and up to 100"),
        ("percentage", "B1@nan", "the percentage is nan: the cluster's scheduler needs a number above 0 and up to 100"),
        ("percentage", "B1@101", "the percentage is 101: the cluster's scheduler needs a number above 0 and up to 100"),
        ("percentage", "B1@31", "31% plus the other jobs' 70% exceeds 100%: give at most 30%"),
        ("greedy", "B1@30", "the cluster's scheduler is greedy, which uses no percentages: leave the percentage out"),
        ("greedy", "B0", "shop has no tasks over channels"),
    ],
)
def test_submission_with_a_mistake_is_refused(scheduler: str, job: str, why: str) -> None:
    # OX-119
    cluster = new_replicas(scheduler, 2, "A1@70" if scheduler == "percentage" else "A1")
    cluster.do(f"submit {job}")
    refused = cluster.replica.jobs[JobId("B")]
    assert (refused.phase, refused.why, explain(cluster.replica, JobId("B"))) == (JobPhase.REFUSED, why, why)


@pytest.mark.parametrize(
    ("scheduler", "peers", "jobs", "why"),
    [
        ("greedy", 2, "B3", "it has 3 tasks, and the cluster has 2 peers: start 1 more peer"),
        ("greedy", 3, "A3 B3", "job A has all peers until it ends"),
        ("round-robin", 5, "A3 B3", "its share of 5 peers is 2, and it has 3 tasks: start 1 more peer"),
        ("percentage", 8, "A3@70 B3@30", "30 % of 8 peers are 2, and it has 3 tasks: start 1 more peer"),
        ("percentage", 8, "A3@50 B3@30", ""),
        (
            "percentage",
            8,
            "A2@50 C3@30 B2@20",
            "the share of job C would fall to 2, and it has 3 tasks: start 1 more peer",
        ),
        ("percentage", 8, "A3@60 B3@25", "25 % of 8 peers are 2, and it has 3 tasks: start 1 more peer, or 28 %"),
    ],
)
def test_explains_why_a_job_waits(scheduler: str, peers: int, jobs: str, why: str) -> None:
    cluster = new_replicas(scheduler, peers, jobs)
    assert explain(cluster.replica, JobId("B")) == why


def test_remedy_of_a_job_that_waits_starts_it() -> None:
    for peers in (3, 5, 8):
        for percentage in (9, 15, 24, 30):
            cluster = new_replicas("percentage", peers, f"A3@70 B3@{percentage}")
            why = explain(cluster.replica, JobId("B"))
            more = int(why.split("start ")[1].split()[0]) if why else 0
            if more > 1:
                cluster.join(more - 1)
                assert cluster.replica.peers_of(JobId("B")) == [], (peers, percentage, why)
            cluster.join(min(more, 1))
            assert cluster.replica.peers_of(JobId("B")), (peers, percentage, why)


def test_equal_percentages_are_round_robin() -> None:
    # OX-111
    for peers in range(1, 10):
        for jobs in ("A1 B2", "A3 B1 C2", "A2 B2 C2", "A1 B1 C3"):
            with_percentages = " ".join(f"{each}@20" for each in jobs.split())
            plain, weighted = (
                new_replicas("round-robin", peers, jobs),
                new_replicas("percentage", peers, with_percentages),
            )
            assert plain.replica.assignments == weighted.replica.assignments, (peers, jobs)
