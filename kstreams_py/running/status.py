"""The status of a run: its slots at one moment, and the state of each worker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kstreams_py.jobs.cluster.observations import ClusterFigures
from kstreams_py.metrics import WorkerState
from kstreams_py.processing.dead_letters.waiting import WaitingCount
from kstreams_py.running.reports import Report


class End(NamedTuple):
    """The end of a worker process: its time (seconds since 1970), and its cause."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """The status of one slot.

    - `pid`: the id of its process; None if it has none.
    - `reports`: the newest report of each processor, with the counts of the slot's earlier processes.
    - `has_reported`: whether the process has reported.
    - `silent`: seconds since its newest report, or since it was started.
    - `restarts`: the number of restarts since the run started.
    - `ends`: the newest ends of its processes, oldest first.
    - `taken`: why the slot is not restarted: another worker holds it; "" otherwise.
    - `began_at`: when its process was started, in monotonic seconds.
    """

    number: int
    pid: int | None
    reports: tuple[Report, ...] = ()
    has_reported: bool = True
    silent: float = 0.0
    restarts: int = 0
    ends: tuple[End, ...] = ()
    taken: str = ""
    began_at: float = 0.0

    def state_of(self, processor: str) -> WorkerState:
        """Returns the state that a worker reports, or its slot's state if the slot is taken or does not report yet."""
        if self.taken:
            return WorkerState.REPLACED
        if self.pid is None or not self.has_reported:
            return WorkerState.RESTARTING if self.ends else WorkerState.JOINING
        report = next((each for each in self.reports if each.processor == processor), None)
        return WorkerState.JOINING if report is None else report.state


@dataclass(frozen=True, slots=True)
class RunStatus:
    """All slots of a run at `looked_at` (monotonic seconds).

    - `stopping`: the workers drain.
    - `waiting`: how many dead letters wait, by topic; empty if nothing counts them.
    - `cluster`: the cluster of peers, if the slots are peers; None otherwise, and until its log is read.
    """

    slots: tuple[SlotStatus, ...]
    looked_at: float
    stopping: bool = False
    waiting: Mapping[str, WaitingCount] = field(default_factory=dict)
    cluster: ClusterFigures | None = None


def without_errors(status: RunStatus) -> RunStatus:
    """Returns a status without the texts of exceptions, which may quote records, and without keys of inputs.

    The classes of exceptions are kept.
    """

    def of_report(report: Report) -> Report:
        sources = {name: each._replace(key="", why="") for name, each in report.sources.items()}
        return replace(report, failure=_class_of(report.failure), why="", sources=sources)

    def of_slot(slot: SlotStatus) -> SlotStatus:
        return replace(
            slot,
            reports=tuple(map(of_report, slot.reports)),
            ends=tuple(End(at, _class_of(why)) for at, why in slot.ends),
            taken=_class_of(slot.taken),
        )

    return replace(
        status,
        slots=tuple(map(of_slot, status.slots)),
        cluster=None if status.cluster is None else _without_texts(status.cluster),
    )


def _without_texts(cluster: ClusterFigures) -> ClusterFigures:
    jobs = {name: replace(job, why=_class_of(job.why)) for name, job in cluster.replica.jobs.items()}
    return replace(cluster, replica=replace(cluster.replica, jobs=jobs), why=_class_of(cluster.why))


def _class_of(text: str) -> str:
    """Returns the class of `Class: message`; other texts, which are this package's own, stay as they are."""
    return re.sub(r"\A([\w.]+): .*", r"\1", text, flags=re.DOTALL)
