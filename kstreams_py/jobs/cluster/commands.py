"""The commands of a cluster: the entries of its log. Peers agree because each of them applies the same commands.

Each command is harmless when it is applied twice or late: it names the peer, job or epoch that it is about, and changes
nothing if that no longer exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NewType

PeerId = NewType("PeerId", str)
"""Identifies one start of a peer: a peer that starts again is another peer."""

JobId = NewType("JobId", str)

FRAME_MAX: Final = 8 << 20
"""The most bytes of a frame that peers send each other, unless their cluster has another limit."""


class Scheduler(StrEnum):
    """How the peers of a cluster are divided among its jobs."""

    GREEDY = "greedy"
    ROUND_ROBIN = "round-robin"
    PERCENTAGE = "percentage"


class LeaveReason(StrEnum):
    """Why a peer leaves."""

    ENDED = "ended"
    DIED = "died"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What a scheduler has to know about a task.

    - `is_input`: whether the task reads a source.
    - `is_grouped`: whether each key of its input belongs to one peer: such a task gets no peers after its job's start.
    - `max_peers`: how many peers it can use; None for any number.
    """

    id: str
    is_input: bool = False
    is_grouped: bool = False
    max_peers: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The first entry of a log: what all its peers must agree on.

    - `version`: the version of the fold (`fold.VERSION`).
    - `messenger`: the name of the messenger over which peers reach each other.
    - `drops_last`, `joins_running`: see `shares.share`.
    - `frame_max`: the most bytes of a frame that peers send each other.
    """

    version: int
    cluster: str
    scheduler: Scheduler
    drops_last: bool = False
    messenger: str = ""
    frame_max: int = FRAME_MAX
    joins_running: bool = False


@dataclass(frozen=True, slots=True)
class AcceptJoin:
    """A peer joins ("accept join").

    - `address`, `key`: where its messenger is reached, and the messenger's public key.
    - `graphs`: the fingerprint of each graph that it can run, by name.
    - `host`: its machine and process, as text for people.
    """

    peer: PeerId
    address: str
    key: str
    graphs: Mapping[str, str] = field(default_factory=dict)
    host: str = ""


@dataclass(frozen=True, slots=True)
class SubmitJob:
    """A job is submitted. It names its graph, and never brings code.

    - `percentage`: the job's share of the peers; None unless the scheduler is `percentage`.
    """

    job: JobId
    graph: str
    fingerprint: str
    tasks: tuple[TaskSpec, ...]
    percentage: float | None = None


@dataclass(frozen=True, slots=True)
class KillJob:
    """Ends a job, even if not all its inputs are read. `why`: the error that ended it; "" if a person did."""

    job: JobId
    why: str = ""


@dataclass(frozen=True, slots=True)
class CompleteTask:
    """Nothing is left to do for a task of a job."""

    job: JobId
    task: str


@dataclass(frozen=True, slots=True)
class SealTask:
    """A peer has nothing left to read for its task. Once all peers of the task say so, the task is complete."""

    job: JobId
    task: str
    peer: PeerId
    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A peer leaves or is dead: reported by itself, by its supervisor, or by another peer."""

    peer: PeerId
    reason: LeaveReason


@dataclass(frozen=True, slots=True)
class Volunteer:
    """A peer asks for a plan, because it would then have another task.

    - `seen`: the offset of the entry that it answers. If there was a plan after that entry, the command has no effect.
    """

    peer: PeerId
    seen: int


@dataclass(frozen=True, slots=True)
class SignalReady:
    """A peer is ready to run its task. `epoch`: the epoch of the job in which it got the task."""

    peer: PeerId
    job: JobId
    epoch: int


Command = Found | AcceptJoin | SubmitJob | KillJob | CompleteTask | SealTask | Leave | Volunteer | SignalReady

COMMANDS: Final[dict[str, type[Command]]] = {
    "found": Found,
    "accept-join": AcceptJoin,
    "submit-job": SubmitJob,
    "kill-job": KillJob,
    "complete-task": CompleteTask,
    "seal-task": SealTask,
    "leave": Leave,
    "volunteer": Volunteer,
    "signal-ready": SignalReady,
}
"""The commands by their names in the log."""

NAMES: Final = {command: name for name, command in COMMANDS.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A command with its author: whoever does not know whether an append succeeded appends the same entry again.

    - `author`: the peer, or the run of a tool, that appended it.
    - `sequence`: the number of the command among those of its author, from 1; a copy has the same number.
    """

    author: str
    sequence: int
    command: Command
