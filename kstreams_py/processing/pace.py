"""How many records a worker takes at once: more for fast functions, and fewer to find a step that fails."""

from __future__ import annotations

import sys
from typing import Final


class Pace:
    """How many records to fetch and to take at once.

    A slow function must neither outlast its transaction nor keep its worker from the group, and a fast one must not
    pay per call. With `whole_fetches` each intake costs a commit of its own, so everything that was fetched is taken.
    """

    FETCH_MAX: Final = 10_000
    TAKE_MAX: Final = 500
    FETCH_SECONDS: Final = 0.2

    def __init__(self, *, whole_fetches: bool, least: int = 1) -> None:
        """`least` is the minimum to fetch and to take."""
        self.fetch = max(100, least)
        self._whole_fetches = whole_fetches
        self._least = least
        self._waited = 0.0

    @property
    def take(self) -> int:
        """How many steps to run before the clock is read."""
        return self.fetch if self._whole_fetches else min(self.fetch, max(self.TAKE_MAX, self._least))

    def ran(self, steps: int, seconds: float) -> None:
        """Aims at fetches of FETCH_SECONDS of work: grows fourfold at most, shrinks at once."""
        wanted = int(self.FETCH_SECONDS * steps / seconds) if seconds > 0 else self.FETCH_MAX
        self.fetch = max(self._least, min(wanted, self.fetch * 4, self.FETCH_MAX))

    def waited(self, steps: int, seconds: float) -> None:
        """Same as `ran`, for steps with overlapping calls; `steps` is 0 if none of them is done yet."""
        self._waited += seconds
        if steps:
            self.ran(steps, self._waited)
            self._waited = 0.0


class Search:
    """Finds the step that makes a transaction fail, by halving the number of steps of the next one."""

    def __init__(self) -> None:
        self.limit = sys.maxsize
        self._whole = 0
        """How many steps the transaction had that failed first."""

    @property
    def searching(self) -> bool:
        """Whether a search is going on: every intake is committed by itself."""
        return self.limit < sys.maxsize

    def failed(self, steps: int) -> bool:
        """Returns whether a single step failed; otherwise the next transaction has half as many steps."""
        self._whole = max(self._whole, steps)
        self.limit = max(1, steps // 2)
        return steps == 1

    def committed(self, steps: int) -> None:
        """Notes that a transaction of so many steps was committed: the next one may have twice as many."""
        if self.searching and steps:
            self.limit *= 2
            if self.limit > self._whole:
                self.limit, self._whole = sys.maxsize, 0
