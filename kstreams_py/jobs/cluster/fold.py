"""Applies the commands of a cluster's log to a replica. Every peer applies the same commands, so all replicas agree.

A command is checked when it is applied, not when it is appended: the state that its author saw may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Entry,
    Found,
    JobId,
    KillJob,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SealTask,
    SignalReady,
    SubmitJob,
    TaskSpec,
    Volunteer,
)
from kstreams_py.jobs.cluster.planner import Place, plan
from kstreams_py.jobs.cluster.slots import new_table, remap
from kstreams_py.jobs.cluster.state import Assignment, JobPhase, JobState, PeerState, Replica

VERSION: Final = 1
"""The version of the fold. Peers with different versions would disagree, so a cluster has one version."""

ENDED_KEPT: Final = 100
"""The number of ended jobs that a replica keeps."""

DEPARTED_KEPT: Final = 1_000
"""The number of ids of departed peers and dropped jobs that a replica keeps."""

AUTHORS_KEPT: Final = 1_000
"""The number of authors that a replica remembers: a copy of a command follows it soon, or never."""


def apply(replica: Replica, entry: Entry, offset: int) -> Replica:
    """Returns the replica after one more entry of the log. `offset`: the offset of the entry."""
    replica = replace(replica, offset=offset)
    is_found = type(entry.command) is Found or replica.version
    if not is_found or entry.sequence <= replica.sequences.get(entry.author, 0):
        return replica
    sequences = {author: number for author, number in replica.sequences.items() if author != entry.author}
    sequences[entry.author] = entry.sequence
    dropped = max(0, len(sequences) - AUTHORS_KEPT)
    replica = replace(replica, sequences=dict(islice(sequences.items(), dropped, None)))
    return APPLIES[type(entry.command)](replica, entry.command)


def refuse_version(cluster: str, version: int) -> SettingsError:
    """Returns the exception for a cluster whose log or replica has another version of the fold."""
    return SettingsError(
        f"cluster {cluster} was created by another version of kstreams_py (its log has version {version}, this peer "
        f"has {VERSION}): run the same version on all peers, or choose another name"
    )


def find_refusal(replica: Replica, join: AcceptJoin) -> str:
    """Returns why a peer cannot join; "" if it can. Every peer must be able to run each job."""
    for name, job in replica.open_jobs():
        if (found := join.graphs.get(job.graph)) != job.fingerprint:
            return describe_difference(name, job.graph, job.fingerprint, found)
    return ""


def describe_difference(job: JobId, graph: str, wanted: str, found: str | None) -> str:
    """Returns why a peer cannot run a job. `found`: the peer's fingerprint of the graph; None if it lacks the graph."""
    if found is None:
        return f"job {job} runs graph {graph}, which this peer does not load: allow the module of the graph (--allow)"
    return (
        f"job {job} runs graph {graph} with fingerprint {wanted}, but this peer has {found}: deploy the same code on "
        "all peers, or kill the job and submit it again"
    )


def _found(replica: Replica, command: Found) -> Replica:
    if replica.version:
        return replica
    return replace(
        replica,
        version=command.version,
        cluster=command.cluster,
        messenger=command.messenger,
        scheduler=command.scheduler,
        drops_last=command.drops_last,
        frame_max=command.frame_max,
        joins_running=command.joins_running,
    )


def _join(replica: Replica, command: AcceptJoin) -> Replica:
    if command.peer in replica.peers or command.peer in replica.departed or find_refusal(replica, command):
        return replica
    member = PeerState(replica.joined, command.address, command.key, command.graphs, command.host)
    return replace(replica, joined=replica.joined + 1, peers={**replica.peers, command.peer: member})


def _submit(replica: Replica, command: SubmitJob) -> Replica:
    if command.job in replica.jobs or command.job in replica.departed:
        return replica
    why = _find_mistake(replica, command)
    job = JobState(command.graph, command.fingerprint, command.tasks, command.percentage, why=why)
    if why:
        job = replace(job, phase=JobPhase.REFUSED)
    return _forget_ended(replace(replica, jobs={**replica.jobs, command.job: job}))


def _find_mistake(replica: Replica, command: SubmitJob) -> str:
    """Returns why a job is refused; "" if it is accepted."""
    if not command.tasks:
        return f"{command.graph} has no tasks over channels"
    percentage = command.percentage
    if replica.scheduler is not Scheduler.PERCENTAGE and percentage is not None:
        return f"the cluster's scheduler is {replica.scheduler}, which uses no percentages: leave the percentage out"
    if replica.scheduler is Scheduler.PERCENTAGE:
        if percentage is None or not 0 < percentage <= 100:
            shown = "none" if percentage is None else f"{percentage:g}"
            return f"the percentage is {shown}: the cluster's scheduler needs a number above 0 and up to 100"
        others = sum(job.percentage or 0 for _, job in replica.open_jobs())
        if others + percentage > 100:
            remedy = f"give at most {100 - others:g}%" if others < 100 else "kill another job first"
            return f"{percentage:g}% plus the other jobs' {others:g}% exceeds 100%: {remedy}"
    for peer, member in replica.peers.items():
        if (found := member.graphs.get(command.graph)) != command.fingerprint:
            difference = describe_difference(command.job, command.graph, command.fingerprint, found)
            return f"peer {peer} cannot run the job: {difference}"
    return ""


def _kill(replica: Replica, command: KillJob) -> Replica:
    job = replica.jobs.get(command.job)
    if job is None or job.has_ended:
        return replica
    return _end(_with_job(replica, command.job, replace(job, why=command.why)), command.job, JobPhase.KILLED)


def _complete_task(replica: Replica, command: CompleteTask) -> Replica:
    job = replica.jobs.get(command.job)
    if job is None or job.has_ended or command.task not in {task.id for task in job.left}:
        return replica
    job = replace(job, complete=(*job.complete, command.task))
    replica = _with_job(replica, command.job, job)
    if not job.left:
        return _end(replica, command.job, JobPhase.COMPLETED)
    if not job.is_active:
        return replica
    freed = replica.peers_of(command.job, command.task)
    return _change(
        replica, {peer: each for peer, each in replica.assignments.items() if peer not in freed}, command.job
    )


def _seal_task(replica: Replica, command: SealTask) -> Replica:
    assigned = replica.assignments.get(command.peer)
    if assigned is None or (assigned.job, assigned.task, assigned.since) != (command.job, command.task, command.epoch):
        return replica
    job = replica.jobs[command.job]
    if command.peer in (sealed := job.sealed.get(command.task, ())):
        return replica
    sealed = (*sealed, command.peer)
    replica = _with_job(replica, command.job, replace(job, sealed={**job.sealed, command.task: sealed}))
    if {*replica.peers_of(command.job, command.task)} <= {*sealed}:
        return _complete_task(replica, CompleteTask(command.job, command.task))
    return replica


def _leave(replica: Replica, command: Leave) -> Replica:
    if command.peer not in replica.peers:
        return replica
    assigned, is_death = replica.assignments.get(command.peer), command.reason is not LeaveReason.ENDED
    replica = replace(
        replica,
        deaths=replica.deaths + is_death,
        peers=_without(replica.peers, command.peer),
        departed=(*replica.departed, command.peer)[-DEPARTED_KEPT:],
    )
    if assigned is None:
        return replica
    left = _without(replica.assignments, command.peer)
    if not replica.covers(assigned.job, left):
        stopped = _stop(replica, assigned.job)
        job = stopped.jobs[assigned.job]
        return _with_job(stopped, assigned.job, replace(job, deaths=job.deaths + is_death))
    return _change(replica, left, assigned.job)


def _volunteer(replica: Replica, command: Volunteer) -> Replica:
    if command.peer not in replica.peers or command.seen < replica.planned_at:
        return replica
    return _follow(replace(replica, planned_at=replica.offset), plan(replica))


def _follow(replica: Replica, places: Mapping[PeerId, Place]) -> Replica:
    """Gives peers the tasks of a plan, and increases the epochs of the jobs whose peers change."""
    before = replica.assignments
    kept = {peer: each for peer, each in before.items() if places.get(peer) == (each.job, each.task)}
    new = {peer: Assignment(*places[peer], replica.jobs[places[peer][0]].epoch + 1) for peer in places.keys() - kept}
    assignments = {peer: each for peer in replica.peers if (each := kept.get(peer) or new.get(peer)) is not None}
    changed = {each.job for each in new.values()} | {each.job for peer, each in before.items() if peer not in kept}
    for name in [name for name in replica.jobs if name in changed]:
        has_peers = any(each.job == name for each in assignments.values())
        replica = _change(replica, assignments, name) if has_peers else _stop(replica, name)
    return replace(replica, assignments=assignments)


def _ready(replica: Replica, command: SignalReady) -> Replica:
    assigned = replica.assignments.get(command.peer)
    if assigned is None or (assigned.job, assigned.since) != (command.job, command.epoch):
        return replica
    job = replica.jobs[command.job]
    if command.peer not in job.ready:
        job = replace(job, ready=(*job.ready, command.peer))
    return _start(_with_job(replica, command.job, job), command.job)


def _start(replica: Replica, name: JobId) -> Replica:
    """Starts a job once each task has a ready peer; a grouped task needs all its peers, as each has its own keys."""
    job = replica.jobs[name]
    if job.phase is JobPhase.STARTING and all(_is_ready(replica, name, task) for task in job.left):
        return _with_job(replica, name, replace(job, phase=JobPhase.RUNNING))
    return replica


def _is_ready(replica: Replica, name: JobId, task: TaskSpec) -> bool:
    ready = replica.ready_peers_of(name, task.id)
    return len(ready) == len(replica.peers_of(name, task.id)) if task.is_grouped else bool(ready)


def _change(replica: Replica, assignments: Mapping[PeerId, Assignment], name: JobId) -> Replica:
    """Gives a job its new peers and the next epoch; peers that keep their task stay ready."""
    replica, job = replace(replica, assignments=assignments), replica.jobs[name]
    numbers = {
        task.id: [replica.peers[peer].number for peer in replica.peers_of(name, task.id)]
        for task in job.left
        if task.is_grouped
    }
    kept = {peer for peer in replica.peers_of(name) if assignments[peer].since <= job.epoch}
    changed = replace(
        job,
        phase=job.phase if job.is_active else JobPhase.STARTING,
        epoch=job.epoch + 1,
        # each peer reports again that it has nothing left to read: a peer that had not reported may be gone, and its
        # inputs go back to the source
        sealed={},
        ready=tuple(peer for peer in job.ready if peer in kept),
        slots={task: _slots(job.slots.get(task), peers) for task, peers in numbers.items()},
    )
    return _start(_with_job(replica, name, changed), name)


def _slots(table: tuple[int, ...] | None, peers: list[int]) -> tuple[int, ...]:
    if table is None:
        return new_table(peers)
    for left in sorted({*table}.difference(peers)):
        table = remap(table, left, peers)
    return table


def _stop(replica: Replica, name: JobId) -> Replica:
    """Takes all peers from a job, so that it waits again."""
    job = replica.jobs[name]
    stopped = replace(job, phase=JobPhase.WAITING, epoch=job.epoch + 1, ready=(), slots={}, sealed={})
    left = {peer: each for peer, each in replica.assignments.items() if each.job != name}
    return _with_job(replace(replica, assignments=left), name, stopped)


def _end(replica: Replica, name: JobId, phase: JobPhase) -> Replica:
    replica = _stop(replica, name)
    return _forget_ended(_with_job(replica, name, replace(replica.jobs[name], phase=phase)))


def _forget_ended(replica: Replica) -> Replica:
    """Drops the oldest ended jobs if there are too many."""
    ended = [name for name, job in replica.jobs.items() if job.has_ended]
    dropped = ended[: max(0, len(ended) - ENDED_KEPT)]
    jobs = {name: job for name, job in replica.jobs.items() if name not in dropped}
    return replace(replica, jobs=jobs, departed=(*replica.departed, *dropped)[-DEPARTED_KEPT:])


def _with_job(replica: Replica, name: JobId, job: JobState) -> Replica:
    return replace(replica, jobs={**replica.jobs, name: job})


def _without(mapping: Mapping[Any, Any], key: object) -> dict[Any, Any]:
    return {each: value for each, value in mapping.items() if each != key}


APPLIES: Final[dict[type[Command], Callable[[Replica, Any], Replica]]] = {
    Found: _found,
    AcceptJoin: _join,
    SubmitJob: _submit,
    KillJob: _kill,
    CompleteTask: _complete_task,
    SealTask: _seal_task,
    Leave: _leave,
    Volunteer: _volunteer,
    SignalReady: _ready,
}
