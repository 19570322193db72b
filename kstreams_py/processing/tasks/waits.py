"""Partitions that wait before a step is run again; the other partitions of the worker go on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.graph.retry import Then
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import Counters
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.records import Positions
from kstreams_py.steps.dead_letters import format_error
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.failures import Retries
from kstreams_py.steps.plan import Again, partitions_of

logger = logging.getLogger(__name__)

WARNED_SECONDS: Final = 30.0
"""Seconds between two warnings about the same partition; other attempts are logged at level INFO."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Steps that are run again together, after a wait.

    - `steps`: empty if the worker has rewound meanwhile: the steps are read again.
    - `until`: the clock time of the next attempt.
    - `positions`: the next offsets of their tasks; everything before them is committed.
    """

    steps: Sequence[Any]
    partitions: frozenset[int]
    until: float
    positions: Positions


class Waits:
    """The waits of one worker. A partition is in at most one of them."""

    def __init__(
        self, processor: str, retries: Retries, tasks: Tasks, environment: Environment, counters: Counters
    ) -> None:
        """`processor` is the id of the processor, for the log."""
        self._processor = processor
        self._retries = retries
        self._tasks = tasks
        self._clock = environment.clock
        self._chance = environment.chance
        self._counters = counters
        self._waits: list[Wait] = []
        self.why = ""
        """The newest failure and the reaction to it, as text. Another thread may read it."""
        self._warned: dict[int, float] = {}
        """The clock time of the last warning about each partition."""

    def begin(self, again: Again) -> None:
        """Begins the wait of partitions whose steps failed; the tasks already hold these partitions."""
        self._counters.retried()
        self._retries.failed(again.steps, again.attempts)
        seconds = self._retries.retry.wait(again.attempts, self._chance())
        partitions = frozenset(partitions_of(again.steps))
        at = {tp: next_ for tp, next_ in self._tasks.ledger.positions.items() if tp.partition in partitions}
        self._waits = [wait for wait in self._waits if not wait.partitions & partitions]
        self._waits.append(Wait(again.steps, partitions, self._clock() + seconds, at))
        self._log(again, partitions, seconds)

    def seconds(self, limit: float) -> float:
        """Returns the seconds until the first wait ends, at most `limit`."""
        if not self._waits:
            return limit
        now, held = self._clock(), self._tasks.held.keys()
        return min([limit, *(max(0.0, wait.until - now) for wait in self._waits if wait.partitions <= held)])

    def release(self) -> None:
        """Ends the wait that came due first: its steps can be taken again.

        The next turns end other waits that are due: attempts may be slow, and the client hears from the group
        between turns.
        """
        if self._tasks.repeats:
            return
        # waits of revoked partitions are kept until `restore`, because the partitions may come back
        now, held = self._clock(), self._tasks.held.keys()
        due = [wait for wait in self._waits if wait.until <= now and wait.partitions <= held]
        if not due:
            return
        wait = min(due, key=lambda wait: wait.until)
        self._waits.remove(wait)
        if wait.steps:
            self._tasks.repeat(wait.steps)
        else:
            self._tasks.resume(wait.partitions)

    def restore(self) -> None:
        """Continues, after a rewind, the waits of tasks that are still held here at the same offsets."""
        positions, kept = self._tasks.ledger.positions, []
        for wait in self._waits:
            same = {
                number
                for number in wait.partitions
                if (mine := {tp: at for tp, at in wait.positions.items() if tp.partition == number})
                and all(positions.get(tp) == at for tp, at in mine.items())
            }
            if same:
                kept.append(Wait((), frozenset(same), wait.until, wait.positions))
                self._tasks.hold(same)
        self._waits = kept

    def _log(self, again: Again, partitions: frozenset[int], seconds: float) -> None:
        now, retry = self._clock(), self._retries.retry
        names = ", ".join(map(str, sorted(partitions)))
        error = f"{type(again.error).__name__}: {format_error(again.error)}"
        first = again.attempts == 1
        warns = first or any(now - self._warned.get(number, -WARNED_SECONDS) >= WARNED_SECONDS for number in partitions)
        level = logging.WARNING if warns else logging.INFO
        if warns:
            self._warned |= dict.fromkeys(partitions, now)
        if retry.then is Then.PAUSE and again.attempts >= retry.attempts:
            self.why, then = f"partition {names} is paused after {again.attempts} attempts: {error}", "; the next"
        else:
            self.why = f"partition {names} waits: {error}; attempt {again.attempts + 1} of {retry.attempts}"
            then = ""
        many = f"{'partitions that wait' if warns else 'failed attempts'} of processor {self._processor}"
        logger.log(
            level, "%s: %s%s is in %.1f s", self._processor, self.why, then, seconds, extra=repeated(many, self.why)
        )
