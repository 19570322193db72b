"""A limit on how many are taken at a time: as many as take a wanted time, by the time that the last ones took."""

from __future__ import annotations

from typing import Final

GROWTH: Final = 4
"""The factor by which a limit grows at most in one change: one fast batch says little."""


class AdaptiveLimit:
    """A limit that follows the speed of what is limited. One change shrinks it by any factor, and grows it fourfold."""

    def __init__(self, seconds: float, first: int, most: int, least: int = 1) -> None:
        """Makes a limit.

        - `seconds`: the time that as many as the limit should take.
        - `first`: the limit before the speed is known.
        - `most`, `least`: the limit is never higher, or lower.
        """
        self._seconds, self._most, self._least = seconds, most, min(least, most)
        self.limit = max(self._least, min(first, most))

    def took(self, count: int, seconds: float) -> None:
        """Sets the limit by the last measurement: `count` took so many seconds."""
        if count:
            wanted = int(self._seconds * count / seconds) if seconds > 0 else self._most
            self.limit = max(self._least, min(wanted, self.limit * GROWTH, self._most))
