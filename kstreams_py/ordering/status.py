"""The status of a store, for operators: objects with events, workers, and objects that wait for a dead worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.ordering.storage import ObjectStatus, WorkerStatus

SILENT_SECONDS: Final = 30.0
"""A worker that gives no sign of life for this many seconds may be dead. A waiting worker gives one each second."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The status of a store at one moment."""

    objects: Sequence[ObjectStatus]
    workers: Sequence[WorkerStatus]

    def blocked(self, worker: WorkerStatus) -> list[str]:
        """Returns the objects that wait for a silent worker, which owns them or has their token."""
        return sorted(set(worker.objects.values())) if worker.seconds >= SILENT_SECONDS else []

    @property
    def is_blocked(self) -> bool:
        """Whether an object waits for a silent worker."""
        return any(map(self.blocked, self.workers))

    def describe(self) -> Iterator[str]:
        """Yields the status as lines of text."""
        if not self.objects:
            yield "no object has events"
        for each in self.objects:
            owner = f", owned by {each.owner}" if each.owner else ""
            yield f"{each.name}: {each.waiting} waiting, {each.taken} taken, {each.tokens} tokens{owner}"
        for worker in self.workers:
            held = f"{len(worker.objects)} objects" if worker.objects else "nothing"
            yield f"worker {worker.name}: heard from {worker.seconds:.0f} s ago, process {worker.number}, holds {held}"
            if blocked := self.blocked(worker):
                yield (
                    f"  {', '.join(blocked)}: blocked until it is started again, or `kstreams order takeover "
                    f"{worker.name}` finishes what it holds"
                )

    def as_fields(self) -> Iterator[dict[str, Any]]:
        """Yields the status as JSON objects."""
        for each in self.objects:
            yield {
                "object": each.name,
                "waiting": each.waiting,
                "taken": each.taken,
                "tokens": each.tokens,
                "owner": each.owner,
            }
        for worker in self.workers:
            yield {
                "worker": worker.name,
                "process": worker.number,
                "seconds": worker.seconds,
                "objects": dict(worker.objects),
                "blocked": self.blocked(worker),
            }
