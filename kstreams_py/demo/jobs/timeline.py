"""Who ran what when, from the log of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kstreams_py.jobs.cluster.commands import Entry, JobId, Leave, LeaveReason, PeerId
from kstreams_py.jobs.cluster.fold import apply
from kstreams_py.jobs.cluster.state import Assignment, JobPhase, Replica

Logged = tuple[int, int, Entry | None]
"""An entry of a log, like kafka_log.LoggedEntry: its offset, when it was appended, and its content or None."""


class Stay(NamedTuple):
    """The time of a peer in the cluster, in milliseconds since 1970. `why`: why it left; None if it did not."""

    peer: PeerId
    joined: int
    left: int
    why: LeaveReason | None


class TaskSpan(NamedTuple):
    """The time for which a peer had a task, in milliseconds since 1970."""

    peer: PeerId
    job: JobId
    task: str
    began: int
    ended: int


class PhaseSpan(NamedTuple):
    """The time of a job in one phase, in milliseconds since 1970."""

    job: JobId
    phase: JobPhase
    began: int
    ended: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened in a cluster, sorted by the time at which it began. Jobs that have ended have no phase."""

    stays: list[Stay]
    works: list[TaskSpan]
    phases: list[PhaseSpan]

    def work_of(self, peer: PeerId, at: int) -> TaskSpan | None:
        """Returns what a peer ran at a time; None if it had no task."""
        return next((each for each in self.works if each.peer == peer and each.began <= at < each.ended), None)

    def stay_of(self, peer: PeerId) -> Stay | None:
        """Returns the time of a peer in the cluster; None if it never joined."""
        return next((each for each in self.stays if each.peer == peer), None)


def build_timeline(entries: Iterable[Logged], until: int) -> Timeline:
    """Applies the entries of a log from its start. `until`: when the run has ended, in milliseconds since 1970."""
    replica, found = Replica(), Timeline([], [], [])
    joined = dict[PeerId, int]()
    assigned = dict[PeerId, tuple[Assignment, int]]()
    phases = dict[JobId, tuple[JobPhase, int]]()

    def note(now: Replica, at: int, why: LeaveReason | None) -> None:
        for peer in [peer for peer in assigned if now.assignments.get(peer) != assigned[peer][0]]:
            had, began = assigned.pop(peer)
            found.works.append(TaskSpan(peer, had.job, had.task, began, at))
        for peer in [peer for peer in joined if peer not in now.peers]:
            found.stays.append(Stay(peer, joined.pop(peer), at, why))
        current = {job: state.phase for job, state in now.open_jobs()}
        for job in [job for job in phases if current.get(job) is not phases[job][0]]:
            phase, began = phases.pop(job)
            found.phases.append(PhaseSpan(job, phase, began, at))
        joined.update({peer: at for peer in now.peers if peer not in joined})
        assigned.update({peer: (has, at) for peer, has in now.assignments.items() if peer not in assigned})
        phases.update({job: (phase, at) for job, phase in current.items() if job not in phases})

    for offset, at, entry in entries:
        if entry is not None:
            replica, command = apply(replica, entry, offset), entry.command
            note(replica, at, command.reason if isinstance(command, Leave) else None)
    note(Replica(), until, None)
    return Timeline(
        sorted(found.stays, key=lambda stay: stay.joined),
        sorted(found.works, key=lambda work: work.began),
        sorted(found.phases, key=lambda phase: phase.began),
    )
