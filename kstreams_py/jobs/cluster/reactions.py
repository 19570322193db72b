"""What a peer appends in answer to an entry of the log: a pure function, so that any peer knows what the others do."""

from __future__ import annotations

from typing import Final

from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    CompleteTask,
    Entry,
    JobId,
    KillJob,
    Leave,
    PeerId,
    SealTask,
    SubmitJob,
    Volunteer,
)
from kstreams_py.jobs.cluster.planner import plan
from kstreams_py.jobs.cluster.state import JobPhase, Replica

PLANNED: Final = frozenset({SubmitJob, KillJob, CompleteTask, SealTask, AcceptJoin, Leave})
"""The commands after which a plan may differ."""


def find_volunteers(replica: Replica) -> list[PeerId]:
    """Returns the peers to which a plan made now would give another task, or none."""
    places = plan(replica)
    now = {peer: (each.job, each.task) for peer, each in replica.assignments.items()}
    return [peer for peer in replica.peers if places.get(peer) != now.get(peer)]


def react(before: Replica, entry: Entry, after: Replica, me: PeerId) -> list[Command]:
    """Returns the commands that a peer appends in answer to an entry that it has applied.

    - `before`, `after`: the replica before and after the entry.
    """
    if me not in after.peers:
        return []
    found = list[Command]()
    if type(entry.command) in PLANNED and me in find_volunteers(after):
        found.append(Volunteer(me, after.offset))
    if (task := _find_completed(after, me)) is not None and task != _find_completed(before, me):
        found.append(CompleteTask(*task))
    return found


def _find_completed(replica: Replica, me: PeerId) -> tuple[JobId, str] | None:
    """Returns the complete task that this peer is to report, with its job: only the first peer of a task reports it.

    Every task is complete once the input tasks are: an input counts as read when all that was made from it is done.
    """
    assigned = replica.assignments.get(me)
    if assigned is None:
        return None
    job = replica.jobs[assigned.job]
    if job.phase is not JobPhase.RUNNING or any(task.is_input for task in job.left):
        return None
    return (assigned.job, assigned.task) if replica.peers_of(assigned.job, assigned.task)[0] == me else None
