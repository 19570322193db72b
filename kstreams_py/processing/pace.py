"""How many records a worker takes at once: as many as its functions are fast, and fewer to find a step that fails."""

from __future__ import annotations

import sys
from typing import Final


class Pace:
    """How many records to fetch and to take at once.

    A slow function must neither outlive its transaction nor keep its worker from the group, and a fast one must not
    pay per call. With `whole_fetches` each intake costs a commit of its own, so that all that was fetched is taken.
    """

    FETCH_MAX: Final = 10_000
    TAKE_MAX: Final = 500
    FETCH_SECONDS: Final = 0.2

    def __init__(self, *, whole_fetches: bool, least: int = 1) -> None:
        """`least` is how many to fetch and to take at least."""
        self.fetch = max(100, least)
        self._whole_fetches = whole_fetches
        self._least = least
        self._waited = 0.0

    @property
    def take(self) -> int:
        """Steps to run before looking at the clock."""
        return self.fetch if self._whole_fetches else min(self.fetch, max(self.TAKE_MAX, self._least))

    def ran(self, steps: int, seconds: float) -> None:
        """Aims at fetches of FETCH_SECONDS of work: grows fourfold at most, shrinks at once."""
        wanted = int(self.FETCH_SECONDS * steps / seconds) if seconds > 0 else self.FETCH_MAX
        self.fetch = max(self._least, min(wanted, self.fetch * 4, self.FETCH_MAX))

    def waited(self, steps: int, seconds: float) -> None:
        """As `ran`, after a while in which calls were under way; no step may be done by then."""
        self._waited += seconds
        if steps:
            self.ran(steps, self._waited)
            self._waited = 0.0


class Search:
    """Finds the step for which a transaction fails, by halving: how many steps the next one may have."""

    def __init__(self) -> None:
        self.limit = sys.maxsize
        self._whole = 0
        """Steps of the transaction that failed first."""

    @property
    def searching(self) -> bool:
        """Every intake is committed by itself."""
        return self.limit < sys.maxsize

    def failed(self, steps: int) -> bool:
        """Whether it was a single step that failed; else the next transaction has half as many."""
        self._whole = max(self._whole, steps)
        self.limit = max(1, steps // 2)
        return steps == 1

    def committed(self, steps: int) -> None:
        """A transaction of so many steps got through: the next one may have twice as many."""
        if self.searching and steps:
            self.limit *= 2
            if self.limit > self._whole:
                self.limit, self._whole = sys.maxsize, 0
