"""The failed attempts at the segments of one task that are run again, and what the log says of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kstreams_py.graph.retry import Retry, Then
from kstreams_py.jobs.identity import Pattern, SegmentId
from kstreams_py.log_fields import repeated
from kstreams_py.printable import count_of

logger = logging.getLogger(__name__)

LONG_SECONDS: Final = 5.0
"""If attempts failed for at least this many seconds, a line in the log says that they are over."""


class FailedAttempt(NamedTuple):
    """A failed attempt at a segment of an input; the segment is run again.

    - `attempts`: how many have failed.
    - `seconds`: until the next one.
    """

    segment: SegmentId
    error: str
    attempts: int
    seconds: float


class FailedAttempts:
    """Counts the failed attempts at each segment that is run again."""

    def __init__(self, task: str) -> None:
        """`task` is the id of the task, for the log."""
        self._task = task
        self._failed: dict[Pattern, int] = {}
        self._unlogged: list[FailedAttempt] = []
        self._began_at: float | None = None
        """When the first attempt failed; None while no segment is to be run again."""
        self._count = 0
        """How many attempts have failed since then."""
        self._newest = ""

    @property
    def why(self) -> str:
        """What is to be run again, with the newest error; "" for nothing. Any thread may ask for it."""
        count = len(self._failed)
        waits = "waits" if count == 1 else "wait"
        return f"{count_of(count, 'value')} {waits} for another attempt: {self._newest}" if count else ""

    def __len__(self) -> int:
        """Returns how many segments are to be run again."""
        return len(self._failed)

    def add(self, pattern: Pattern) -> int:
        """Counts a failed attempt; returns how many of this segment have failed."""
        self._failed[pattern] = attempts = self.failed(pattern) + 1
        return attempts

    def failed(self, pattern: Pattern) -> int:
        """Returns how many attempts at a segment have failed."""
        return self._failed.get(pattern, 0)

    def note(self, attempt: FailedAttempt) -> None:
        """Notes a failed attempt that another one follows: for `why`, and for the log."""
        self._newest = attempt.error
        self._unlogged.append(attempt)

    def forget(self, patterns: Iterable[Pattern]) -> None:
        """Forgets segments that are done, or given back."""
        for pattern in patterns if self._failed else ():
            self._failed.pop(pattern, None)

    def log(self, now: float, retry: Retry, name_input: Callable[[SegmentId], str]) -> None:
        """Warns of the attempts that have failed since the last call, and says when none is to be repeated any more.

        `name_input`: returns the source and the key of an input.
        """
        if self._unlogged:
            self._began_at = now if self._began_at is None else self._began_at
            self._count += len(self._unlogged)
            for each in self._unlogged:
                self._warn(each, retry, name_input(each.segment))
            self._unlogged = []
        if self._failed or self._began_at is None:
            return
        if now - self._began_at >= LONG_SECONDS:
            logger.info(
                "%s: nothing waits for another attempt any more, after %s in %.0f s", self._task,
                count_of(self._count, "failed attempt"), now - self._began_at,
            )  # fmt: skip
        self._began_at, self._count = None, 0

    def _warn(self, failed: FailedAttempt, retry: Retry, where: str) -> None:
        if retry.then is Then.PAUSE and failed.attempts >= retry.attempts:
            text, then = f"is paused after {failed.attempts} attempts: {failed.error}", "; the next"
        else:
            text, then = f"waits: {failed.error}; attempt {failed.attempts + 1} of {retry.attempts}", ""
        # one line for all: an outage makes every input under way fail
        extra = repeated(f"failed attempts of task {self._task}", failed.error, first=1)
        logger.warning("%s: %s %s%s is in %.1f s", self._task, where, text, then, failed.seconds, extra=extra)
