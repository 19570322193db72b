"""Detects stuck loops and processes; warns, and after stuck_timeout_ms has them replaced."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.running.reports import Report

logger = logging.getLogger(__name__)

WARN_AFTER: Final = 30.0
"""Seconds without a turn before the first warning; each further warning comes after twice the time."""

REPORTS_LATE: Final = 5.0
"""Seconds added to stuck_timeout_ms for a process without reports: on a busy machine reports are late."""

LOOK_MAX: Final = 2.0
"""The longest time that counts between two looks, in seconds: in a longer pause, the watcher itself was stopped."""


class Stillness:
    """Measures the time for which a mark has not changed, over repeated looks."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._mark: object = self
        self._looked_at = 0.0

    def look(self, mark: object, now: float) -> float:
        """Returns the seconds since the mark last changed, without the time for which the watcher was stopped."""
        passed = min(now - self._looked_at, LOOK_MAX)
        self._seconds = self._seconds + passed if mark == self._mark else 0.0
        self._mark, self._looked_at = mark, now
        return self._seconds


class Stuck(NamedTuple):
    """The reason to replace a process; `processor` is None if the whole process is stuck."""

    processor: str | None
    why: str


@dataclass(slots=True)
class _Episode:
    seconds: float = 0.0
    warn_at: float = WARN_AFTER

    @property
    def was_warned_of(self) -> bool:
        return self.warn_at > WARN_AFTER


class Watch:
    """Watches one worker process by its reports and by their absence."""

    def __init__(self, slot: int, timeout_ms: int | None) -> None:
        self._slot = slot
        self._timeout_ms = timeout_ms
        self._episodes: dict[str | None, _Episode] = {}

    def look(self, reports: Iterable[Report], silent: float = 0.0, *, has_reported: bool = True) -> Stuck | None:
        """Warns of loops that are stuck or turn again; returns the reason to replace the process, or None.

        - `reports`: the newest report of each processor.
        - `silent`: seconds since the newest report.
        - `has_reported`: False before the first report. Such a process is not replaced: its imports may take any time.
        """
        limit = None if self._timeout_ms is None else self._timeout_ms / 1000
        remedy = (
            "set stuck_timeout_ms to have such a worker restarted"
            if limit is None
            else f"a worker is restarted after stuck_timeout_ms ({self._timeout_ms})"
        )
        found = None
        for report in reports:
            other = "its source or target" if report.is_task else "the broker"
            where = f"it is in {report.place}: its function does not return, or {other} does not answer"
            found = self._judge(report.processor, report.still_seconds, limit, f"{where}; {remedy}") or found
        if not has_reported:
            self._judge(None, silent, None, "it is stopped, or still importing; once it has ended, it is restarted")
            return found
        limit = None if limit is None else limit + REPORTS_LATE
        where = "it is stopped, or a function holds Python's lock"
        return self._judge(None, silent, limit, f"{where}; {remedy}") or found

    def _judge(self, processor: str | None, seconds: float, limit: float | None, more: str) -> Stuck | None:
        """Logs a warning if one is due; returns Stuck if `seconds` have reached the limit."""
        episode = self._episodes.setdefault(processor, _Episode())
        if seconds < episode.seconds:
            if episode.was_warned_of:
                again = "its process reports" if processor is None else f"{processor} turns"
                logger.warning("slot %d: %s again, after %.0f s", self._slot, again, episode.seconds)
            episode = self._episodes[processor] = _Episode()
        episode.seconds = seconds
        what = "its process has not reported" if processor is None else f"{processor} has made no progress"
        if seconds >= episode.warn_at:
            while episode.warn_at <= seconds:
                episode.warn_at *= 2
            logger.warning("slot %d: %s for %.0f s: %s", self._slot, what, seconds, more)
        if limit is None or seconds < limit:
            return None
        return Stuck(processor, f"{what} for {seconds:.0f} s: {more.partition(';')[0]}")
