"""Where a worker looks for unclaimed rows: in passes over the whole table, and beyond its end.

New rows may appear before rows that were already read: their key is lower, or their transaction commits later. A worker
that looked only beyond the last key would miss them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

LOOK_SECONDS: Final = 0.2
"""Seconds for which one read looks for rows or records: a stop, and the other tasks, wait for the read."""

LOOKED_AT: Final = 20_000
"""How many rows are searched at a time for unclaimed ones."""

PAUSE: Final = 10
"""The time from a pass to the next one, in multiples of the time that a pass takes."""


class Look(NamedTuple):
    """The result of a look at the next rows after a key.

    - `found`: how many of them were unclaimed.
    - `claimed`: how many of those this worker claimed; other workers may have been faster.
    - `last`: the last key that was looked at; None if there was none.
    - `is_end`: whether there are no rows after it.
    """

    found: int
    claimed: int
    last: Any
    is_end: bool


class Passes:
    """The place of one worker in a table.

    - `clock`: returns seconds that never decrease.
    - `ends`: no more rows are inserted.
    """

    def __init__(self, clock: Callable[[], float], *, ends: bool) -> None:
        self._clock, self._ends = clock, ends
        self._after: Any = None
        """The last key that was looked at in the current pass; None if there is no pass."""
        self._end: Any = None
        """The last key of the table when its end was last looked at; None if it is not known."""
        self._has_found = False
        """Whether the current pass has found rows."""
        self._was_beyond = False
        """Whether the last look was beyond the end."""
        self._passed_at = float("-inf")
        """When the last pass began, and how many seconds its looks have taken."""
        self._pass_seconds = 0.0
        self.are_complete = False
        """Whether a pass has found nothing and no more rows are inserted."""

    def find(self, look: Callable[[Any], Look]) -> int:
        """Looks at rows until some are claimed, or LOOK_SECONDS are over; returns how many were claimed.

        - `look`: looks at the next rows after a key, or at the first ones for None.
        """
        if self.are_complete:
            return 0
        now, is_under_way = self._clock(), self._after is not None
        is_due = is_under_way or self._ends or now >= self._passed_at + PAUSE * self._pass_seconds
        # looks beyond the end and looks of a pass take turns: neither appended rows nor a long pass has to wait
        if self._end is not None and (not is_due or (is_under_way and not self._was_beyond)):
            looked = self._look_on(look, self._end, now)
            self._end, self._was_beyond = looked.last, True
            if looked.claimed or not is_due:
                return looked.claimed
        self._was_beyond = False
        if not is_under_way:
            self._passed_at, self._pass_seconds, self._has_found = now, 0.0, False
        looked = self._look_on(look, self._after, now)
        self._after, self._has_found = looked.last, self._has_found or looked.found > 0
        if looked.is_end:
            self._end, self._after = looked.last, None
            self.are_complete = self._ends and not self._has_found
        self._pass_seconds += self._clock() - now
        return looked.claimed

    def _look_on(self, look: Callable[[Any], Look], after: Any, now: float) -> Look:
        """Looks at one part of the table after another, from a key on. Returns the last look, with all `found`."""
        found = 0
        while True:
            looked = look(after)
            found += looked.found
            after = after if looked.last is None else looked.last
            if looked.claimed or looked.is_end or self._clock() >= now + LOOK_SECONDS:
                return looked._replace(found=found, last=after)
