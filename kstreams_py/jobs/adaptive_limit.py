"""Limits how many items are taken at a time: as many as should take a given time, judging by the last ones."""

from __future__ import annotations

from typing import Final

GROWTH: Final = 4
"""The largest factor by which a limit grows in one change: one fast batch says little."""


class AdaptiveLimit:
    """A limit that follows the speed of processing. One change may shrink it by any factor, and grow it fourfold."""

    def __init__(self, seconds: float, first: int, most: int, least: int = 1) -> None:
        """Makes a limit.

        - `seconds`: the time that a full batch of items, as many as the limit, should take.
        - `first`: the limit before the speed is known.
        - `most`, `least`: the bounds of the limit.
        """
        self._seconds, self._most, self._least = seconds, most, min(least, most)
        self.limit = max(self._least, min(first, most))

    def took(self, count: int, seconds: float) -> None:
        """Sets the limit from the last measurement: `count` items took `seconds`."""
        if count:
            wanted = int(self._seconds * count / seconds) if seconds > 0 else self._most
            self.limit = max(self._least, min(wanted, self.limit * GROWTH, self._most))
