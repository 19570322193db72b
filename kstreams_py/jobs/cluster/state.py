"""What all peers of a cluster know: its peers, its jobs, and who has which task. A peer's copy is its replica."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kstreams_py.jobs.cluster.commands import FRAME_MAX, JobId, PeerId, Scheduler, TaskSpec


class JobPhase(StrEnum):
    """What a job does.

    - `WAITING`: it has no peers.
    - `STARTING`: it has a peer for each task, and waits until one is ready; for a grouped task, until all are.
    - `RUNNING`: its inputs are read.
    - `COMPLETED`, `KILLED`, `REFUSED`: it has ended.
    """

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    KILLED = "killed"
    REFUSED = "refused"


ENDED = frozenset({JobPhase.COMPLETED, JobPhase.KILLED, JobPhase.REFUSED})


@dataclass(frozen=True, slots=True)
class PeerState:
    """A peer that has joined. `number`: how many peers joined before it. The other fields are as in AcceptJoin."""

    number: int
    address: str
    key: str
    graphs: Mapping[str, str]
    host: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task of a peer. `since`: the epoch of the job in which the peer got it."""

    job: JobId
    task: str
    since: int


@dataclass(frozen=True, slots=True)
class JobState:
    """A job.

    - `epoch`: is increased whenever the job's peers change.
    - `complete`: the tasks for which nothing is left to do.
    - `sealed`: the peers that have nothing left to read, by task.
    - `ready`: the peers that are ready to run their task.
    - `slots`: for each grouped task, the number of the peer of each slot.
    - `deaths`: how often the job stopped because the last peer of a task died.
    - `why`: why the job was refused, or which error ended it.
    """

    graph: str
    fingerprint: str
    tasks: tuple[TaskSpec, ...]
    percentage: float | None = None
    phase: JobPhase = JobPhase.WAITING
    epoch: int = 0
    complete: tuple[str, ...] = ()
    sealed: Mapping[str, tuple[PeerId, ...]] = field(default_factory=dict)
    ready: tuple[PeerId, ...] = ()
    slots: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    deaths: int = 0
    why: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether it will never have peers again."""
        return self.phase in ENDED

    @property
    def is_active(self) -> bool:
        """Whether it has peers."""
        return self.phase in (JobPhase.STARTING, JobPhase.RUNNING)

    @property
    def left(self) -> list[TaskSpec]:
        """The tasks that are not complete."""
        return [task for task in self.tasks if task.id not in self.complete]


@dataclass(frozen=True, slots=True)
class Replica:
    """The state of a cluster after some entries of its log.

    - `version`: the version of the fold that made it; 0 before the first entry.
    - `messenger`: the name of the messenger that all peers use.
    - `offset`: the offset of the last entry that was applied.
    - `planned_at`: the offset of the last entry that made a plan.
    - `joined`, `deaths`: how many peers have ever joined, and how many of them have died or were found silent.
    - `peers`: the members, in the order in which they joined.
    - `jobs`: in the order of submission; only the newest of the ended jobs are kept.
    - `assignments`: the tasks of the peers that have one.
    - `departed`: the newest ids of peers that left and of jobs that were dropped: such an id is never used again.
    - `sequences`: the number of the newest command of each author.
    - `drops_last`, `joins_running`: see `shares.share`.
    - `frame_max`: the most bytes of a frame that peers send each other.
    """

    version: int = 0
    cluster: str = ""
    messenger: str = ""
    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    drops_last: bool = False
    offset: int = -1
    planned_at: int = -1
    joined: int = 0
    deaths: int = 0
    peers: Mapping[PeerId, PeerState] = field(default_factory=dict)
    jobs: Mapping[JobId, JobState] = field(default_factory=dict)
    assignments: Mapping[PeerId, Assignment] = field(default_factory=dict)
    departed: tuple[str, ...] = ()
    sequences: Mapping[str, int] = field(default_factory=dict)
    frame_max: int = FRAME_MAX
    joins_running: bool = False

    def peers_of(self, job: JobId, task: str | None = None) -> list[PeerId]:
        """Returns the peers of a job, or of one of its tasks, in the order in which they joined."""
        assigned = self.assignments
        return [
            peer
            for peer in self.peers
            if (found := assigned.get(peer)) is not None and found.job == job and task in (None, found.task)
        ]

    def ready_peers_of(self, job: JobId, task: str) -> list[PeerId]:
        """Returns the ready peers of a task."""
        return [peer for peer in self.peers_of(job, task) if peer in self.jobs[job].ready]

    def open_jobs(self) -> Iterable[tuple[JobId, JobState]]:
        """Returns the jobs that have not ended, in the order of submission."""
        return ((name, job) for name, job in self.jobs.items() if not job.has_ended)

    def covers(self, job: JobId, assignments: Mapping[PeerId, Assignment]) -> bool:
        """Returns whether each incomplete task of a job has a peer."""
        tasks = {each.task for each in assignments.values() if each.job == job}
        return all(task.id in tasks for task in self.jobs[job].left)
