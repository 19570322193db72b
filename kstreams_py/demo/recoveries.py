"""The time from each kill until the slot's next commit, as a reader of committed records sees it.

A committed record names its step by its delivery hash: the first 8 bytes, the source, stand for one processor and one
partition that it reads. The reports of the workers say which partitions each process holds. So the next commit of a
slot is the first record seen from a process that started after the kill. Records that a process committed before its
kill may be seen after the kill, even after the next process has started (measured: 0.2 s later). So the ends of the
topics are read soon after each kill, and records before them are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kstreams_py.metrics import WorkerState
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.status import RunStatus

Seen = tuple[float, Mapping[bytes, Positions]]
"""When committed records were seen, in monotonic seconds, and the last offset in each partition, by source."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL or a SIGSTOP: its time (monotonic seconds), and the slot and process that it hit."""

    at: float
    slot: int
    pid: int


@dataclass(slots=True)
class _WatchedProcess:
    pid: int
    started: float
    held: frozenset[bytes]


class Recoveries:
    """The processes of all slots, in order, each with the sources of its commits.

    - `source`: returns the source for a processor id and the partition that it reads.
    """

    def __init__(self, source: Callable[[str, TopicPartition], bytes]) -> None:
        self._source = source
        self._processes: dict[int, list[_WatchedProcess]] = {}
        self._ends: dict[Kill, Positions] = {}

    def note(self, status: RunStatus) -> None:
        """Takes the newest status of the run."""
        for slot in status.slots:
            if slot.pid is None:
                continue
            processes = self._processes.setdefault(slot.number, [])
            if not processes or processes[-1].pid != slot.pid:
                # a process killed before it reports has its predecessor's partitions: a slot keeps its membership
                held = processes[-1].held if processes else frozenset[bytes]()
                processes.append(_WatchedProcess(slot.pid, slot.began_at, held))
            held = frozenset(
                self._source(report.processor, tp)
                for report in slot.reports
                if report.state is not WorkerState.RESTARTING
                for tp in report.lags
            )
            processes[-1].held = held or processes[-1].held

    def note_ends(self, kill: Kill, ends: Positions) -> None:
        """Takes the ends of the topics, read soon after a kill, before the slot's next process can commit."""
        self._ends[kill] = ends

    def seconds(self, kills: Iterable[Kill], seen: Sequence[Seen]) -> list[float | None]:
        """Returns the seconds from each kill to the slot's next commit.

        An item is None if the slot committed nothing more, or if the ends of the topics at the kill are not known.

        - `seen`: the committed records, in chronological order.
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
    """Returns whether every processor of every slot is a member of its group."""
    placed = (WorkerState.RUNNING, WorkerState.SPARE)
    return len(status.slots) == slots and all(
        slot.state_of(processor) in placed for processor in processors for slot in status.slots
    )
