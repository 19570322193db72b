"""Warns of events that wait too long for their predecessors, and counts the events that wait."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping

from kstreams_py.log_fields import repeated
from kstreams_py.metrics import EventCounts, LongestHeld

logger = logging.getLogger(__name__)


class HeldEvents:
    """Watches the events that wait in one slot.

    - `seconds`: the wait after which a warning is logged, and again each time the wait has doubled.
    - `wall`: returns seconds since 1970.
    """

    def __init__(self, seconds: float, wall: Callable[[], float] = time.time) -> None:
        self._seconds = seconds
        self._wall = wall
        self._warned: dict[str, tuple[LongestHeld, float]] = {}
        """By processor: the event of the last warning, and the age in seconds at which the next one is due."""

    def look(self, processor: str, counts: EventCounts) -> Mapping[str, float]:
        """Returns the values of Report.events. Warns of the event that has waited longest."""
        longest, now = counts.longest_held, self._wall()
        seconds = 0.0 if longest is None else max(0.0, now - longest.since)
        if longest is not None:
            self._warn(processor, longest, seconds, counts.held_now)
        return {
            "held": counts.held_now,
            "stopped": counts.stopped_now,
            "held_seconds": round(seconds, 1),
            "held_limit": self._seconds,
        }

    def _warn(self, processor: str, longest: LongestHeld, seconds: float, held: int) -> None:
        known, due = self._warned.get(processor, (None, 0.0))
        if seconds < (due if known == longest else self._seconds):
            return
        self._warned[processor] = longest, 2 * seconds
        logger.warning(
            "%s: event %d of %r, at %s, has waited for %.0f s for event %d, which has not arrived (%d events wait): if "
            "that is a dead letter, `kstreams order resume GRAPH %s` sends it; if it is lost, `kstreams order accept` "
            "goes on without it", processor, longest.id, longest.object,
            longest.place, seconds, longest.prev, held, shlex.quote(longest.object),
            extra=repeated(f"events that wait in {processor}", longest.object),
        )  # fmt: skip
