"""Plans who runs what: each job gets its share of the peers, with as few peers moved as possible."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kstreams_py.jobs.cluster.commands import JobId, PeerId, Scheduler, TaskSpec
from kstreams_py.jobs.cluster.shares import Demand, share
from kstreams_py.jobs.cluster.state import JobState, Replica

Place = tuple[JobId, str]
"""A task of a job."""


def plan(replica: Replica) -> dict[PeerId, Place]:
    """Returns the task of each peer that should have one. Peers without a share of any job have none.

    1. Divide the peers among the jobs (`shares.share`).
    2. Take peers from the jobs that have too many, so that each task keeps one.
    3. Give the free peers to the jobs that have too few: first to tasks without a peer, then to those with the fewest.
    """
    wanted = share(
        len(replica.peers),
        demands(replica),
        replica.scheduler,
        drops_last=replica.drops_last,
        joins_running=replica.joins_running,
    )
    placed: dict[JobId, dict[str, list[PeerId]]] = {
        name: {task.id: [] for task in job.left} for name, job in replica.open_jobs()
    }
    for peer in replica.peers:
        if (assigned := replica.assignments.get(peer)) is not None:
            placed[assigned.job][assigned.task].append(peer)
    for name, tasks in placed.items():
        _release(replica.jobs[name], tasks, wanted.get(name, 0))
    kept = {peer for tasks in placed.values() for peers in tasks.values() for peer in peers}
    free = deque(peer for peer in replica.peers if peer not in kept)
    for name, tasks in placed.items():
        _grow(replica.jobs[name], tasks, wanted.get(name, 0), free)
    return {peer: (name, task) for name, tasks in placed.items() for task, peers in tasks.items() for peer in peers}


def demands(replica: Replica) -> list[Demand]:
    """Returns what each job that has not ended needs, in the order of submission."""
    counts: dict[JobId, dict[str, int]] = {}
    for assigned in replica.assignments.values():
        tasks = counts.setdefault(assigned.job, {})
        tasks[assigned.task] = tasks.get(assigned.task, 0) + 1
    found = list[Demand]()
    for name, job in replica.open_jobs():
        tasks = counts.get(name, {})
        weight = job.percentage if replica.scheduler is Scheduler.PERCENTAGE and job.percentage else 1.0
        maximum = sum(_most(task, job, tasks.get(task.id, 0)) for task in job.left)
        found.append(Demand(name, len(job.left), maximum, weight, sum(tasks.values())))
    return found


def _most(task: TaskSpec, job: JobState, now: int) -> float:
    """Returns how many peers a task can use. A grouped task never grows: its keys would move to other peers."""
    if task.is_grouped and job.is_active:
        return now
    return float("inf") if task.max_peers is None else task.max_peers


def _release(job: JobState, tasks: dict[str, list[PeerId]], count: int) -> None:
    """Removes peers until a job has `count`: the newest of its largest task, of a grouped one only if it must."""
    if not count:
        for peers in tasks.values():
            peers.clear()
    excess = sum(map(len, tasks.values())) - count
    for _ in range(excess):
        largest = max(job.left, key=lambda task: _releasable(task, tasks[task.id]))
        tasks[largest.id].pop()


def _releasable(task: TaskSpec, peers: Sequence[PeerId]) -> tuple[bool, bool, int]:
    return len(peers) > 1, not task.is_grouped, len(peers)


def _grow(job: JobState, tasks: dict[str, list[PeerId]], count: int, free: deque[PeerId]) -> None:
    """Gives free peers to a job until it has `count`: to a task without a peer first, then to the smallest."""
    while free and sum(map(len, tasks.values())) < count:
        growing = [task for task in job.left if len(tasks[task.id]) < _most(task, job, len(tasks[task.id]))]
        if not growing:
            return
        tasks[min(growing, key=lambda task: len(tasks[task.id])).id].append(free.popleft())
