"""The time from each kill until the slot's next commit, as a reader of the committed topics sees it.

A committed record names its step by its delivery hash: the first 8 bytes, its source, are those of one processor and
one partition that it reads. The reports of the workers say which partitions each process holds. So the first record
that is seen from a later process of the slot is its next commit. What a process committed before it was killed may be
seen after the kill, even after the next one has started (seen: by 0.2 s), so the ends of the topics are read soon after
each kill: what is before them is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kstreams_py.metrics import WorkerState
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.status import RunStatus

Seen = tuple[float, Mapping[bytes, Positions]]
"""When committed records were seen, in monotonic seconds, and by their sources the offsets of the last ones."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL: its time (monotonic seconds), the slot and the process."""

    at: float
    slot: int
    pid: int


@dataclass(slots=True)
class _Process:
    pid: int
    started: float
    held: frozenset[bytes]


class Recoveries:
    """The processes of all slots, in order, each with the sources of what it commits.

    - `source`: returns the source of the steps of a processor, by its id, that read this partition.
    """

    def __init__(self, source: Callable[[str, TopicPartition], bytes]) -> None:
        self._source = source
        self._processes: dict[int, list[_Process]] = {}
        self._ends: dict[Kill, Positions] = {}

    def note(self, status: RunStatus) -> None:
        """Takes the newest status of the run."""
        for slot in status.slots:
            if slot.pid is None:
                continue
            processes = self._processes.setdefault(slot.number, [])
            if not processes or processes[-1].pid != slot.pid:
                # one that is killed before it reports has what the one before had: a slot keeps its membership
                held = processes[-1].held if processes else frozenset[bytes]()
                processes.append(_Process(slot.pid, slot.began_at, held))
            held = frozenset(
                self._source(report.processor, tp)
                for report in slot.reports
                if report.state is not WorkerState.RESTARTING
                for tp in report.lags
            )
            processes[-1].held = held or processes[-1].held

    def note_ends(self, kill: Kill, ends: Positions) -> None:
        """Takes the ends of all records of the topics soon after a kill, before the slot's next process can commit."""
        self._ends[kill] = ends

    def seconds(self, kills: Iterable[Kill], seen: Sequence[Seen]) -> list[float | None]:
        """The seconds from each kill to the slot's next commit; None if it committed nothing more, or is not known.

        It is not known of a kill whose ends of the topics are not. `seen` is in order of time.
        """
        return [self._seconds(kill, seen) for kill in kills]

    def _seconds(self, kill: Kill, seen: Sequence[Seen]) -> float | None:
        if (ends := self._ends.get(kill)) is None:
            return None
        later = [process for process in self._processes.get(kill.slot, []) if process.started > kill.at]
        for at, sources in seen:
            held = next((process.held for process in reversed(later) if process.started <= at), frozenset())
            written = (places.items() for source, places in sources.items() if source in held)
            if any(offset >= ends.get(tp, 0) for places in written for tp, offset in places):
                return at - kill.at
        return None


def are_running(status: RunStatus, processors: Iterable[str], slots: int) -> bool:
    """Whether every processor of every slot has its place in its group."""
    placed = (WorkerState.RUNNING, WorkerState.SPARE)
    return len(status.slots) == slots and all(
        slot.state_of(processor) in placed for processor in processors for slot in status.slots
    )
