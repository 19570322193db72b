"""The inputs of one source: claimed within a limit, pending until they are complete, then acknowledged or refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kstreams_py.errors import KStreamsError, SourceUnavailable
from kstreams_py.graph.source import BadInput, Claim, SourceConnection, WakingConnection
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.environment import LOOK_SECONDS
from kstreams_py.jobs.identity import (
    ROOT,
    Entropy,
    Given,
    SegmentId,
    extend,
    identify,
    name_in_path,
    name_source,
    new_ids,
    origins_of,
)
from kstreams_py.jobs.pending import PendingInputs
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.topic_inputs import TopicToken
from kstreams_py.jobs.topic_outputs import FailedRecord, TopicLetters
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import InputCounts, PendingFigures
from kstreams_py.printable import count_are, escape
from kstreams_py.sources.suspects import SUSPECTED
from kstreams_py.steps.dead_letters import format_error

logger = logging.getLogger(__name__)

IDLE_FIRST: Final = 0.001
"""Seconds between the first two looks at a source that has no inputs; each further wait is twice the last."""

HEARD_SECONDS: Final = 0.5
"""Seconds after which a source that has no input to give is asked all the same: a group must hear its members."""

UNDER_WAY_FIRST: Final = 500
"""How many inputs may be under way before the speed of the tasks is known."""

UNDER_WAY_SECONDS: Final = 1.0
"""Seconds that the inputs under way should take. With more of them, workers beside this one would find none left, and
more would be read again after a death.
"""

MEASURED_SECONDS: Final = 0.1
"""The speed is that of so many seconds: calls that overlap end in ones and twos, now and then several at once."""


class FailedTask(NamedTuple):
    """The task that could not process a segment, and its error."""

    task: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.task}: {type(self.error).__name__}: {format_error(self.error)}"


KEY_MAX: Final = 60
"""The most characters of a key that is shown."""


def show_key(claim: Claim) -> str:
    """Returns the key of an input as text of at most KEY_MAX characters; of a record, its place."""
    key = claim.key
    if isinstance(claim.token, TopicToken):
        record = claim.token.record
        text = f"{record.topic()}[{record.partition()}]@{record.offset()}"
    else:
        text = str(key) if isinstance(key, int) else key[: 4 * KEY_MAX].decode(errors="backslashreplace")
    shown = escape(text)
    return shown if len(shown) <= KEY_MAX else f"{shown[: KEY_MAX - 3]}..."


class SourceInputs:
    """The inputs of one source that are under way."""

    def __init__(
        self,
        name: str,
        connection: SourceConnection,
        limits: tuple[int, int],
        timeout: float,
        entropy: Entropy,
        letters: TopicLetters | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Makes no request.

        - `name`: the name of the source, with that of the graph.
        - `limits`: how many inputs may be under way at least, so that all calls of the tasks have one, and at most.
        - `timeout`: the seconds after which an input that is neither complete nor under way is read again.
        - `letters`: writes the dead letters of inputs that are refused, which are records of a topic; None for none.
        - `look_seconds`: the longest time between two looks at a source that has no inputs.
        """
        self.name = name
        self.connection = connection
        self.remedy = ""
        """The commands for refused inputs, for the log; "" if the source keeps none."""
        self._is_remedy_told = False
        least, self._most = limits
        self._limit = AdaptiveLimit(UNDER_WAY_SECONDS, UNDER_WAY_FIRST, self._most, least)
        self._settled_at: float | None = None
        """When inputs were settled last; None while none is under way."""
        self._measured, self._measured_seconds = 0, 0.0
        """How many inputs were settled since the speed was known last, and in which time."""
        self._entropy = entropy
        self._timeout = timeout
        self.pending = PendingInputs[Claim](timeout)
        self._letters = letters
        self._failed: dict[SegmentId, FailedTask] = {}
        """By input with a segment that failed, the first failure."""
        self._done: list[Claim] = []
        self._refused: list[tuple[Claim, FailedTask]] = []
        """What is complete, and that the source was not told of."""
        self._given_up: dict[bool, list[Claim]] = {True: [], False: []}
        """What the source is to be given back, and was not: what counts as an attempt, and what does not."""
        self.asked_at = float("-inf")
        """When the source was asked for inputs last."""
        self._looks_at, self._idle = float("-inf"), 0.0
        """When a source without inputs is asked again, and the seconds between its last two answers."""
        self._idle_most = 0.0 if isinstance(connection, WakingConnection) else look_seconds
        self.counts = InputCounts()
        """All but those refused because a task could not process them: `refused_by` has these."""
        self.refused_by = Counter[str]()
        """By task, the inputs that were refused because of it, and that nobody has counted yet."""
        self._refused_by_source = 0

    def read(self, now: float, paused: int = 0) -> Segments:
        """Claims inputs, up to the limit of those under way; returns them as segments without patterns.

        - `paused`: how many of them, at most, only wait until a function is called again. They use no time, and leave
          the others the limit of those under way.

        Raises SourceUnavailable.
        """
        held = len(self.pending) + len(self._done) + len(self._refused) + sum(map(len, self._given_up.values()))
        under_way = held - min(paused, len(self.pending))
        free, alone = min(self._limit.limit - under_way, self._most - held), not held
        # a claim may cost a commit of the medium: a few at a time would be slow
        if under_way > self._limit.limit / 2 or free <= 0 or (self.connection.waits_alone and not alone):
            if now > self.asked_at + HEARD_SECONDS:
                self.asked_at = now
                self.connection.read(0, alone=False)
            return Segments()
        if now < self._looks_at:
            return Segments()
        claims = self.connection.read(free, alone=alone)
        self.asked_at = now
        self._note_refused()
        if not claims:
            self._idle = min(max(2 * self._idle, IDLE_FIRST), self._idle_most)
            self._looks_at = now + self._idle
            return Segments()
        self._idle = 0.0
        ids = new_ids(self._entropy, len(claims))
        self.pending.add(ids, claims, now)
        self.counts.died += sum(claim.taken_over for claim in claims)
        self._settled_at = now if self._settled_at is None else self._settled_at
        values = [claim.value for claim in claims]
        read = Segments(ids, (), self._identify(claims), [ROOT] * len(ids), values)
        if BadInput not in map(type, values):
            return read
        bad = {segment: value for segment, value in zip(ids, values, strict=True) if type(value) is BadInput}
        self._failed |= {segment: FailedTask(self.name, value.error) for segment, value in bad.items()}
        first = format_error(next(iter(bad.values())).error)
        logger.warning(
            "%s: %s refused as unreadable: %s%s", self.name, count_are(len(bad), "input"), first, self._remedy(),
            extra=repeated(f"inputs of {self.name} that cannot be read", first),
        )  # fmt: skip
        self.complete(bad)
        return read.without(bad.keys())

    def _identify(self, claims: Sequence[Claim]) -> list[Given]:
        return identify(name_source(self.name, self.connection.identity), (claim.key for claim in claims))

    def _note_refused(self) -> None:
        """Warns of inputs that the source has refused by itself."""
        if more := self.connection.refused - self._refused_by_source:
            self._refused_by_source += more
            self.counts.refused += more
            logger.warning(
                "%s: %s not read again, and refused, as `kstreams sources list` says%s", self.name,
                count_are(more, "input"), self._remedy(),
                extra=repeated(f"refusals by {self.name}"),
            )  # fmt: skip

    def _remedy(self) -> str:
        """Returns the commands for the first warning of refused inputs, and "" for those that follow."""
        told, self._is_remedy_told = self._is_remedy_told, True
        return f"; {self.remedy}" if self.remedy and not told else ""

    def fail(self, segment: SegmentId, task: str, error: BaseException) -> bool:
        """Notes that an input has a segment that failed: it is refused when it is complete.

        Returns whether the input is pending here.
        """
        if (claim := self.pending.claim(segment)) is None:
            return False
        failed = FailedTask(task, error)
        self._failed.setdefault(segment, failed)
        logger.warning(
            "%s: input %s fails: %s: it is refused once all that was made of it is done%s", self.name, show_key(claim),
            failed, self._remedy(), extra=repeated(f"failed inputs of {self.name}", str(failed)),
        )  # fmt: skip
        return True

    def complete(self, segments: Iterable[SegmentId]) -> None:
        """Takes inputs that are complete: `settle` acknowledges them, or refuses those that failed."""
        if not self._failed:
            self._done += self.pending.complete(segments)
            return
        for segment in segments:
            failed = self._failed.pop(segment, None)
            for claim in self.pending.complete([segment]):
                if failed is None:
                    self._done.append(claim)
                else:
                    self._refused.append((claim, failed))

    def settle(self, now: float) -> bool:
        """Acknowledges and refuses what is complete; returns whether there was anything.

        Raises SourceUnavailable, or SinkAway if dead letters cannot be written, and keeps it for the next call.
        """
        if (count := len(self._done) + len(self._refused)) and self._settled_at is not None:
            self._measured += count
            self._measured_seconds += now - self._settled_at
            self._settled_at = now if self.pending else None
            if self._measured_seconds >= MEASURED_SECONDS:
                self._limit.took(self._measured, self._measured_seconds)
                self._measured, self._measured_seconds = 0, 0.0
        if self._done:
            self.connection.ack(self._done)
            self.counts.done += len(self._done)
            self._done = []
        while self._refused:
            last = len(self._refused) if self._letters is None else self._letters.write(self._records())
            self.connection.refuse([(claim, str(failed)) for claim, failed in self._refused[:last]])
            self.refused_by.update(failed.task for _, failed in self._refused[:last])
            del self._refused[:last]
        return count > 0

    def _records(self) -> list[FailedRecord]:
        """Returns the refused inputs, which are records of a topic."""
        given = self._identify([claim for claim, _ in self._refused])
        paths = [extend(ROOT, name_in_path(failed.task), 0) for _, failed in self._refused]
        return [
            FailedRecord(claim.token.record, failed.task, failed.error, origin)
            for (claim, failed), origin in zip(self._refused, origins_of(given, paths), strict=True)
        ]

    def expire(self, now: float, under_way: Callable[[], Mapping[SegmentId, str]]) -> list[SegmentId]:
        """Takes the inputs that are overdue and not under way; returns them. Extends the others.

        `return_expired` gives them back.

        - `under_way`: returns the inputs that have a segment in a task, each with the task.
        """
        if not (overdue := self.pending.overdue(now)):
            return []
        busy = under_way()
        if slow := [segment for segment in overdue if segment in busy]:
            logger.warning(
                "%s: %s still under way after %g s: %s", self.name, count_are(len(slow), "input"), self._timeout,
                ", ".join(f"{count:,} in {task}" for task, count in Counter(busy[each] for each in slow).items()),
            )  # fmt: skip
        self.pending.extend(slow, now)
        lost = [segment for segment in overdue if segment not in busy]
        if claims := self.pending.expire(lost):
            logger.warning(
                "%s: %s read again: expired after %g s, in no task", self.name, count_are(len(claims), "input"),
                self._timeout,
            )  # fmt: skip
            self._given_up[True] += claims
            self.counts.expired += len(claims)
        for segment in lost:
            self._failed.pop(segment, None)
        return lost

    def give_up_paused(self, paused: Callable[[], Collection[SegmentId]]) -> list[SegmentId]:
        """Takes the inputs under way if all of them only wait, and so keep suspects from being read alone.

        Returns them; `return_expired` gives them back.

        - `paused`: returns the inputs that only wait until a function is called again.
        """
        if not (self.connection.waits_alone and self.pending):
            return []
        given_up = [*self.pending.segments]
        if any(claim.attempts >= SUSPECTED for claim in self.pending.claims):  # they are the suspects, and alone
            return []
        if not {*paused()}.issuperset(given_up):
            return []
        self._given_up[False] += self.pending.take_all()
        for segment in given_up:
            self._failed.pop(segment, None)
        return given_up

    def return_expired(self) -> None:
        """Gives back what was given up. Raises SourceUnavailable, and keeps it for the next call."""
        for failed, claims in self._given_up.items():
            if claims:
                self.connection.give_back(claims, failed=failed)
                self._given_up[failed] = []

    def show_pending(self, now: float, find_tasks: Callable[[SegmentId], tuple[str, ...]], why: str) -> PendingFigures:
        """Returns what is under way. Any thread may call it.

        - `find_tasks`: returns the tasks that have something of an input.
        - `why`: why the source is away; "" if it is not.
        """
        if not why and self.connection.waits_alone and self.pending:
            why = "inputs whose workers died are read by themselves, once the others are done"
        count, oldest = len(self.pending), self.pending.oldest
        if oldest is None:
            return PendingFigures(count, why=why, limit=self._timeout)
        seconds = round(max(0.0, now - oldest.since), 1)
        return PendingFigures(count, seconds, show_key(oldest.claim), find_tasks(oldest.segment), why, self._timeout)

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, and none is under way."""
        left = self.pending or self._done or self._refused or any(self._given_up.values())
        return self.connection.is_exhausted and not left

    def close(self, *, failed: bool) -> None:
        """Gives back what is under way, and closes the connection. `failed`: this counts as a death."""
        try:
            for step in (self._settle_last, self.return_expired, partial(self._give_all_back, failed=failed)):
                try:
                    step()
                except SourceUnavailable as error:
                    logger.warning("%s: its claims are kept until their lease ends: %s", self.name, error)
                    break
                except KStreamsError as error:  # a topic refuses a dead letter: the others are given back all the same
                    logger.warning("%s: some of its inputs are read again: %s", self.name, error)
        finally:
            self.connection.close()
            if self._letters is not None:
                self._letters.close()

    def _settle_last(self) -> None:
        self.settle(self._settled_at or 0.0)

    def _give_all_back(self, *, failed: bool) -> None:
        claims = [*self.pending.take_all(), *(claim for claim, _ in self._refused), *self._done]
        self._refused, self._done = [], []
        if claims:
            self.connection.give_back(claims, failed=failed)
            self.counts.raised += len(claims) if failed else 0
