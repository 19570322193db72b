"""The inputs of one source: claimed within a limit, pending until they are complete, then acknowledged or refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kstreams_py.errors import KStreamsError, SourceUnavailable
from kstreams_py.graph.source import BadInput, Claim, NamingConnection, SourceConnection, WakingConnection
from kstreams_py.jobs.adaptive_limit import AdaptiveLimit
from kstreams_py.jobs.environment import LOOK_SECONDS
from kstreams_py.jobs.identity import (
    ROOT,
    Given,
    SegmentId,
    extend,
    identify,
    name_in_path,
    name_source,
    origins_of,
)
from kstreams_py.jobs.pending import PendingInputs
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.topic_inputs import TopicToken
from kstreams_py.jobs.topic_outputs import FailedRecord, TopicLetters
from kstreams_py.jobs.traces import stand_for
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import InputCounts, PendingFigures
from kstreams_py.printable import count_are, escape
from kstreams_py.records import Headers, Message
from kstreams_py.sources.suspects import SUSPECTED, SuspectTurns
from kstreams_py.steps.dead_letters import format_error

logger = logging.getLogger(__name__)

IDLE_FIRST: Final = 0.001
"""Seconds between the first two looks at a source that has no inputs; each wait is twice the one before."""

HEARD_SECONDS: Final = 0.5
"""Seconds after which a source is asked even if no input may be taken: a group must hear from its members."""

UNDER_WAY_FIRST: Final = 500
"""How many inputs may be under way before the speed of the tasks is known."""

UNDER_WAY_SECONDS: Final = 1.0
"""Seconds that the inputs under way should take. With more inputs under way, other workers would find none left, and
more inputs would be read again after a death.
"""

UNDER_WAY_BYTES: Final = 32 * 2**20
"""No input is read while those under way have more bytes of data: as values, they take up to 25 times as much."""

MEASURED_SECONDS: Final = 0.1
"""Seconds over which the speed is measured: overlapping calls end one or two at a time, and sometimes many at once."""


class FailedTask(NamedTuple):
    """The task that could not process a segment, its error, and the context of its trace."""

    task: str
    error: BaseException
    trace: Headers = ()

    def __str__(self) -> str:
        return f"{self.task}: {type(self.error).__name__}: {format_error(self.error)}"


KEY_MAX: Final = 60
"""The most characters of a key that are shown."""


def show_key(connection: SourceConnection, claim: Claim) -> str:
    """Returns the name of an input as text of at most KEY_MAX characters: its key, or its place."""
    key = claim.key
    if isinstance(connection, NamingConnection):
        text = connection.name_of(claim)
    elif isinstance(claim.token, TopicToken):
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
        new_ids: Callable[[int], list[SegmentId]],
        letters: TopicLetters | None = None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Makes no request.

        - `name`: the name of the source, with the graph's name.
        - `limits`: the bounds of the limit on inputs under way; the lower one is enough for all calls of the tasks.
        - `timeout`: the seconds after which an input that is neither complete nor under way is read again.
        - `new_ids`: returns a number of new ids.
        - `letters`: writes the dead letters of refused inputs that are records of a topic; None for other sources.
        - `look_seconds`: the longest time between two looks at a source that has no inputs.
        """
        self.name = name
        self.connection = connection
        self.remedy = ""
        """The commands for refused inputs, for the log; "" if the source keeps none, or once they are logged."""
        least, self._most = limits
        self._limit = AdaptiveLimit(UNDER_WAY_SECONDS, UNDER_WAY_FIRST, self._most, least)
        self._settled_at: float | None = None
        """When inputs were last settled; None while none is under way."""
        self._largest = 0
        """The bytes of the largest input that was read."""
        self._measured, self._measured_seconds = 0, 0.0
        """How many inputs were settled since the speed was last measured, and in how many seconds."""
        self._new_ids = new_ids
        self.pending = PendingInputs[Claim](timeout)
        self._turns = SuspectTurns(timeout)
        self._letters = letters
        self._failed: dict[SegmentId, FailedTask] = {}
        """The first failure of each input with a segment that failed."""
        self._done: list[Claim] = []
        self._refused: list[tuple[Claim, FailedTask]] = []
        """The complete inputs, done and refused, that the source has not been told of yet."""
        self._given_up: dict[bool, list[Claim]] = {True: [], False: []}
        """The inputs to give back to the source: under True those that count as an attempt, under False the others."""
        self.asked_at = float("-inf")
        """When the source was last asked for inputs."""
        self._looks_at, self._idle = float("-inf"), 0.0
        """When a source without inputs is asked again, and the current wait between two looks."""
        self._idle_most = 0.0 if isinstance(connection, WakingConnection) else look_seconds
        self.counts = InputCounts()
        """The counts without the inputs that a task could not process, which `refused_by` has."""
        self.refused_by = Counter[str]()
        """By task, the number of inputs that it could not process and that are not counted yet."""
        self._refused_by_source = 0

    @property
    def held(self) -> int:
        """How many inputs are neither acknowledged, refused nor given back."""
        return len(self.pending) + len(self._done) + len(self._refused) + sum(map(len, self._given_up.values()))

    def read(self, now: float, paused: int = 0, *, others_wait: bool = False, is_alone: bool = True) -> Segments:
        """Claims inputs, up to the limit of those under way; returns them as segments without patterns.

        - `paused`: how many of the inputs under way, at most, only wait until a function is called again. These take no
          time, so they do not count towards the limit.
        - `others_wait`: suspects of other sources or readers wait until nothing is under way here.
        - `is_alone`: no input of another source or reader is under way.

        Raises SourceUnavailable.
        """
        held = self.held
        under_way = held - min(paused, len(self.pending))
        free, alone = min(self._limit.limit - under_way, self._most - held), is_alone and not held
        must_wait = others_wait
        self._turns.note(now, others_wait=others_wait)
        if self.connection.waits_alone:
            must_wait = not alone or self._turns.is_resting
        # a claim may cost a commit in the source: a few at a time would be slow
        if under_way > self._limit.limit / 2 or free <= 0 or must_wait or self._is_heavy(held):
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
        ids = self._new_ids(len(claims))
        self.pending.add(ids, claims, now)
        self._largest = max(self._largest, *(claim.size for claim in claims))
        self.counts.died += sum(claim.taken_over for claim in claims)
        self._settled_at = now if self._settled_at is None else self._settled_at
        values = [claim.value for claim in claims]
        read = Segments(ids, [], self._identify(claims), [ROOT] * len(ids), values)
        if BadInput not in map(type, values):
            return read
        bad = {segment: value for segment, value in zip(ids, values, strict=True) if type(value) is BadInput}
        task = self.name if self._letters is None else self._letters.reader
        self._failed |= {segment: FailedTask(task, value.error) for segment, value in bad.items()}
        first = format_error(next(iter(bad.values())).error)
        logger.warning(
            "%s: %s refused, and reach no task: %s%s", self.name, count_are(len(bad), "input"), first, self._remedy(),
            extra=repeated(f"inputs of {self.name} that reach no task", first),
        )  # fmt: skip
        self.complete(bad)
        return read.without(bad.keys())

    def _is_heavy(self, count: int) -> bool:
        """Returns whether the held inputs have too many bytes. `count`: how many are held."""
        if self._largest * count <= UNDER_WAY_BYTES:
            return False
        held = self.pending.claims, self._done, (claim for claim, _ in self._refused), *self._given_up.values()
        return sum(claim.size for claims in held for claim in claims) > UNDER_WAY_BYTES

    def records(self, channel: str, segments: Iterable[SegmentId]) -> dict[SegmentId, Message]:
        """Returns the record of each input, or what stands for it. `channel`: the name of the channel they fill."""
        found = ((segment, self.pending.claim(segment)) for segment in segments)
        return {
            segment: claim.token.record if isinstance(claim.token, TopicToken) else stand_for(channel, claim.headers)
            for segment, claim in found
            if claim is not None
        }

    def _identify(self, claims: Sequence[Claim]) -> list[Given]:
        return identify(name_source(self.name, self.connection.identity), [claim.key for claim in claims])

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
        remedy, self.remedy = self.remedy, ""
        return remedy and f"; {remedy}"

    def fail(self, segment: SegmentId, task: str, error: BaseException, trace: Headers = ()) -> bool:
        """Notes that a segment of an input failed: the input is refused when it is complete.

        - `trace`: the context of its trace, which its dead letter carries on.

        Returns whether the input is pending here.
        """
        if (claim := self.pending.claim(segment)) is None:
            return False
        failed = FailedTask(task, error, trace)
        self._failed.setdefault(segment, failed)
        logger.warning(
            "%s: input %s fails: %s: it is refused once all that was made from it is done%s", self.name,
            show_key(self.connection, claim), failed, self._remedy(),
            extra=repeated(f"failed inputs of {self.name}", str(failed)),
        )  # fmt: skip
        return True

    def complete(self, segments: Iterable[SegmentId]) -> None:
        """Takes complete inputs: `settle` acknowledges them, or refuses those that failed."""
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
        """Acknowledges and refuses the complete inputs; returns whether there were any.

        Raises SourceUnavailable, or SinkAway if dead letters cannot be written; then the next call tries again.
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
            FailedRecord(claim.token.record, failed.task, failed.error, origin, failed.trace)
            for (claim, failed), origin in zip(self._refused, origins_of(given, paths), strict=True)
        ]

    def expire(self, now: float, under_way: Callable[[], Mapping[SegmentId, str]]) -> list[SegmentId]:
        """Takes and returns the overdue inputs that are in no task, for `return_expired`. Gives the others more time.

        - `under_way`: returns the inputs that have a segment in a task, each with the task.
        """
        if not (overdue := self.pending.overdue(now)):
            return []
        busy = under_way()
        if slow := [segment for segment in overdue if segment in busy]:
            logger.warning(
                "%s: %s still under way after %g s: %s", self.name, count_are(len(slow), "input"), self.pending.timeout,
                ", ".join(f"{count:,} in {task}" for task, count in Counter(busy[each] for each in slow).items()),
            )  # fmt: skip
        self.pending.extend(slow, now)
        lost = [segment for segment in overdue if segment not in busy]
        if claims := self.pending.expire(lost):
            logger.warning(
                "%s: %s read again: expired after %g s, in no task", self.name, count_are(len(claims), "input"),
                self.pending.timeout,
            )  # fmt: skip
            self._given_up[True] += claims
            self.counts.expired += len(claims)
        for segment in lost:
            self._failed.pop(segment, None)
        return lost

    def give_up_all(self, segments: Iterable[SegmentId], *, failed: bool) -> None:
        """Takes, for `return_expired`, all of these inputs that are under way.

        - `failed`: whether this counts as an attempt.
        """
        taken = [segment for segment in segments if segment in self.pending]
        self._given_up[failed] += self.pending.expire(taken)
        if failed:
            self.counts.died += len(taken)
        else:
            self.counts.given_back += len(taken)
        for segment in taken:
            self._failed.pop(segment, None)

    @property
    def keeps_others_waiting(self) -> bool:
        """Whether suspects wait until nothing else is under way, or are under way themselves."""
        return self.connection.waits_alone and not self._turns.is_resting

    def give_up_paused(
        self, now: float, paused: Callable[[], Collection[SegmentId]], *, others_wait: bool, is_only: bool
    ) -> list[SegmentId]:
        """Takes and returns the inputs under way, for `return_expired`, if they only wait and keep others waiting.

        - `paused`: returns the inputs that only wait until a function is called again.
        - `others_wait`, `is_only`: as for `give_up_waiting`.
        """
        given_up = [*self.pending.segments]
        if not (self.connection.waits_alone or others_wait) or not {*paused()}.issuperset(given_up):
            return []
        return given_up if self.give_up_waiting(given_up, now, others_wait=others_wait, is_only=is_only) else []

    def give_up_waiting(self, segments: Collection[SegmentId], now: float, *, others_wait: bool, is_only: bool) -> bool:
        """Takes inputs under way, for `return_expired`, if they keep others waiting; returns whether they do.

        Suspects may keep others waiting until their turn is over.

        - `others_wait`: as for `read`.
        - `is_only`: there are no other readers and sources: the turn of suspects never ends.
        """
        if (oldest := self.pending.oldest) is None or not (self.connection.waits_alone or others_wait):
            return False
        if any(claim.attempts >= SUSPECTED for claim in self.pending.claims):  # which were claimed alone
            if is_only or not self._turns.is_over(oldest.since, now):
                return False
            self._turns.end()
        self.give_up_all(segments, failed=False)
        return True

    def return_expired(self) -> None:
        """Gives back the inputs that were given up. Raises SourceUnavailable; then the next call tries again."""
        for failed, claims in self._given_up.items():
            if claims:
                self.connection.give_back(claims, failed=failed)
                self._given_up[failed] = []

    def show_pending(
        self, now: float, find_tasks: Callable[[SegmentId], tuple[str, ...]], why: str, *, others_wait: bool
    ) -> PendingFigures:
        """Returns the figures of the inputs under way. Any thread may call it.

        - `find_tasks`: returns the tasks that have a segment of an input.
        - `why`: why the source is away; "" if it is not.
        - `others_wait`: as for `read`.
        """
        if not why and self.connection.waits_alone and self.pending:
            why = "inputs whose workers died are read by themselves, once the others are done"
        elif not why and others_wait:
            why = "inputs of another source or peer, whose workers died, are read by themselves first"
        count, oldest = len(self.pending), self.pending.oldest
        if oldest is None:
            return PendingFigures(count, why=why, limit=self.pending.timeout)
        seconds = round(max(0.0, now - oldest.since), 1)
        key = show_key(self.connection, oldest.claim)
        return PendingFigures(count, seconds, key, find_tasks(oldest.segment), why, self.pending.timeout)

    @property
    def is_exhausted(self) -> bool:
        """Whether no input is left, and none is under way."""
        left = self.pending or self._done or self._refused or any(self._given_up.values())
        return self.connection.is_exhausted and not left

    def close(self, *, failed: bool) -> None:
        """Gives back the inputs under way, and closes the connection. `failed`: this counts as a death."""
        try:
            for step in (self._settle_last, self.return_expired, partial(self._give_all_back, failed=failed)):
                try:
                    step()
                except SourceUnavailable as error:
                    logger.warning("%s: its claims are kept until their lease ends: %s", self.name, error)
                    break
                except KStreamsError as error:  # a topic refuses a dead letter: the others are given back nevertheless
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
            if failed:
                self.counts.raised += len(claims)
            else:
                self.counts.given_back += len(claims)
