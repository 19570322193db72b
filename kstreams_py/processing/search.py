"""Finds the step that makes transactions fail, by ever smaller ones: its output is refused, or it times out."""

from __future__ import annotations

import sys


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
