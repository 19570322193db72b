"""The records that may be lost, repeated or delivered late in a run: those in flight at a fault, and no others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.simulation.plan import AMO

if TYPE_CHECKING:
    from tests.simulation.watched_worker import Place, WatchedWorker


class Bounds:
    """The anomalies that the faults of a run excuse, by processor and record."""

    def __init__(self) -> None:
        self.repeatable: dict[str, Counter[Place]] = defaultdict(Counter)
        """How many surplus copies of the outputs of a record there may be."""
        self.losable: dict[str, set[Place]] = defaultdict(set)
        """Records whose outputs may be lost, at most once."""
        self.delayed: dict[str, set[Place]] = defaultdict(set)
        """Records whose outputs may come late, after those of later records."""
        self.uncounted: Counter[str] = Counter()
        """The number of steps that may be committed and are not counted: of workers that could not hear whether."""
        self.counted_twice: set[str] = set()
        """The processors of zombies that had no answer to a commit: their successors may have run its steps."""
        self.fencings: Counter[int] = Counter()
        """By slot, the number of late producers of earlier processes that may still fence the current one."""

    def may_repeat(self, watched: WatchedWorker) -> None:
        """Allows one more copy of the uncommitted records, unless at most once."""
        if watched.stage.guarantee is not AMO:
            self.repeatable[watched.stage.id].update(watched.unsaved())

    def may_come_late(self, watched: WatchedWorker) -> None:
        """At most once, allows undelivered outputs to come late: their worker cannot know that it is too late."""
        if watched.stage.guarantee is AMO:
            self.delayed[watched.stage.id] |= watched.in_flight

    def may_lose(self, watched: WatchedWorker, places: Collection[Place]) -> None:
        """Allows the loss of these records: their worker dies, or stops without a way to deliver them."""
        self.losable[watched.stage.id].update(places)
