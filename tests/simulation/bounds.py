"""How much the weaker guarantees may lose, repeat or deliver late in a run: what was in flight, and no more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.simulation.plan import AMO

if TYPE_CHECKING:
    from tests.simulation.life import Life, Place


class Bounds:
    """By processor and record: what the faults of a run excuse."""

    def __init__(self) -> None:
        self.repeatable: dict[str, Counter[Place]] = defaultdict(Counter)
        """How many copies more than one there may be of what came of a record."""
        self.losable: dict[str, set[Place]] = defaultdict(set)
        """Records of which at most once may have lost what came of them."""
        self.strays: dict[str, set[Place]] = defaultdict(set)
        """Records whose outputs may come late, and behind those of later records."""
        self.fencings: Counter[int] = Counter()
        """By slot, producers of earlier processes that may yet fence the one that is there now."""

    def may_repeat(self, life: Life) -> None:
        """What a worker has not saved may come once more; at most once, what it has not delivered may come late."""
        if life.stage.guarantee is AMO:
            self.strays[life.stage.id] |= life.in_flight
        else:
            self.repeatable[life.stage.id].update(life.unsaved())

    def may_lose(self, life: Life, places: Collection[Place]) -> None:
        """A worker dies, or gives up in the end: what is in flight may be lost."""
        self.losable[life.stage.id].update(places)
