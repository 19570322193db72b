"""The inputs of one source: claimed within a limit, pending until they are complete, then acknowledged or refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from kstreams_py.errors import SourceUnavailable
from kstreams_py.graph.source import Claim, SourceConnection
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.identity import ROOT, Entropy, SegmentId, identify, name_source, new_ids
from kstreams_py.jobs.pending import PendingInputs
from kstreams_py.jobs.segments import Segments

logger = logging.getLogger(__name__)

IDLE_FIRST: Final = 0.001
IDLE_MOST: Final = 0.25
"""Seconds between two looks at a source that has no inputs: each look may be a transaction there."""

UNDER_WAY_FIRST: Final = 500
"""How many inputs may be under way before the speed of the tasks is known."""

UNDER_WAY_SECONDS: Final = 1.0
"""Seconds that the inputs under way should take. With more of them, workers beside this one would find none left, and
more would be read again after a death.
"""


class SourceInputs:
    """The inputs of one source that are under way."""

    def __init__(
        self,
        name: str,
        connection: SourceConnection,
        limits: tuple[int, int],
        timeout: float,
        entropy: Entropy,
    ) -> None:
        """Makes no request.

        - `name`: the name of the source, with that of the graph.
        - `limits`: how many inputs may be under way at least, so that all calls of the tasks have one, and at most.
        - `timeout`: the seconds after which an input that is neither complete nor under way is read again.
        """
        self.name = name
        self.connection = connection
        self._limit = AdaptiveLimit(UNDER_WAY_SECONDS, UNDER_WAY_FIRST, max(limits), min(limits))
        self._settled_at: float | None = None
        """When inputs were settled last; None while none is under way."""
        self._entropy = entropy
        self.pending = PendingInputs[Claim](timeout)
        self._failed: dict[SegmentId, str] = {}
        """By input with a segment that failed, the reason."""
        self._done: list[Claim] = []
        self._refused: list[tuple[Claim, str]] = []
        """What is complete, and that the source was not told of."""
        self._expired: list[Claim] = []
        """What has expired, and that the source was not given back."""
        self.asked_at = float("-inf")
        """When the source was asked for inputs last."""
        self._looks_at, self._idle = float("-inf"), 0.0
        """When a source without inputs is asked again, and the seconds between its last two answers."""
        self.replayed = 0
        """How many inputs were given back because they expired."""

    def read(self, now: float) -> Segments:
        """Claims inputs, up to the limit of those under way; returns them as segments without patterns.

        Raises SourceUnavailable.
        """
        under_way = len(self.pending) + len(self._done) + len(self._refused) + len(self._expired)
        free, alone = self._limit.limit - under_way, not under_way
        # a claim may cost a commit of the medium: few of them at once would be slow
        if under_way > self._limit.limit / 2:
            return Segments()
        if free <= 0 or (self.connection.waits_alone and not alone):
            return Segments()
        if now < self._looks_at:
            return Segments()
        claims = self.connection.read(free, alone=alone)
        self.asked_at = now
        if not claims:
            self._idle = min(max(2 * self._idle, IDLE_FIRST), IDLE_MOST)
            self._looks_at = now + self._idle
            return Segments()
        self._idle = 0.0
        ids = new_ids(self._entropy, len(claims))
        self.pending.add(ids, claims, now)
        self._settled_at = now if self._settled_at is None else self._settled_at
        given = identify(name_source(self.name, self.connection.identity), (claim.key for claim in claims))
        return Segments(ids, (), given, [ROOT] * len(ids), [claim.value for claim in claims])

    def fail(self, segment: SegmentId, reason: str) -> None:
        """Notes that an input has a segment that failed: it is refused when it is complete."""
        if segment in self.pending:
            self._failed.setdefault(segment, reason)

    def complete(self, segments: Iterable[SegmentId]) -> None:
        """Takes inputs that are complete: `settle` acknowledges them, or refuses those that failed."""
        if not self._failed:
            self._done += self.pending.complete(segments)
            return
        for segment in segments:
            reason = self._failed.pop(segment, None)
            for claim in self.pending.complete([segment]):
                if reason is None:
                    self._done.append(claim)
                else:
                    self._refused.append((claim, reason))

    def settle(self, now: float) -> bool:
        """Acknowledges and refuses what is complete; returns whether there was anything.

        Raises SourceUnavailable, and keeps it for the next call.
        """
        if (count := len(self._done) + len(self._refused)) and self._settled_at is not None:
            self._limit.took(count, now - self._settled_at)
            self._settled_at = now if self.pending else None
        if self._done:
            self.connection.ack(self._done)
            self._done = []
        if self._refused:
            self.connection.refuse(self._refused)
            self._refused = []
        return count > 0

    def expire(self, now: float, under_way: Callable[[], Collection[SegmentId]]) -> list[SegmentId]:
        """Takes the inputs that are overdue and not under way; returns them. Extends the others.

        `return_expired` gives them back.

        - `under_way`: returns the inputs that have a segment in a task.
        """
        if not (overdue := self.pending.overdue(now)):
            return []
        busy = under_way()
        if slow := [segment for segment in overdue if segment in busy]:
            logger.warning(
                "%s: %d inputs are under way for as long as an input may be, and go on", self.name, len(slow)
            )
        self.pending.extend(slow, now)
        lost = [segment for segment in overdue if segment not in busy]
        if claims := self.pending.expire(lost):
            logger.warning("%s: %d inputs have expired: nothing of them is under way", self.name, len(claims))
            self._expired += claims
            self.replayed += len(claims)
        for segment in lost:
            self._failed.pop(segment, None)
        return lost

    def return_expired(self) -> None:
        """Gives back what has expired. Raises SourceUnavailable, and keeps it for the next call."""
        if self._expired:
            self.connection.give_back(self._expired, failed=True)
            self._expired = []

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, and none is under way."""
        left = self.pending or self._done or self._refused or self._expired
        return self.connection.is_exhausted and not left

    def close(self, *, failed: bool) -> None:
        """Gives back what is under way, and closes the connection. `failed`: this counts as a death."""
        try:
            self.settle(self._settled_at or 0.0)
            self.return_expired()
            if claims := self.pending.take_all():
                self.connection.give_back(claims, failed=failed)
        except SourceUnavailable as error:
            logger.warning("%s: its claims are kept until their lease ends: %s", self.name, error)
        finally:
            self.connection.close()
