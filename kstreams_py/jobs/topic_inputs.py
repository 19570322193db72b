"""A topic whose records are inputs of a job: acknowledged by the offset before which all are done."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

from kstreams_py.errors import (
    Abortable,
    ClientError,
    DecodeError,
    InputEndsWorkers,
    KStreamsError,
    Retriable,
    SourceUnavailable,
)
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.source import BadInput, Claim
from kstreams_py.jobs.topic_deaths import ORDINARY, Deaths, add_death, deaths_of, pass_by, read_deaths, write_deaths
from kstreams_py.log_fields import repeated
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.sources.sizes import READ_BYTES
from kstreams_py.sources.suspects import DEATHS_MAX, REASON, choose
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.outputs import decoder

logger = logging.getLogger(__name__)

OFFSET_BITS: Final = 48
"""Bits for the offset in the key of a record; the other bits are for the partition."""

COMMIT_SECONDS: Final = 0.1
"""Seconds between two commits of offsets. Records that are read again after a crash are recognized by their origin."""

AHEAD_LEAST: Final = 10
"""The least number of records, beyond those read, for which a commit notes that the next death counts."""

AHEAD_FACTOR: Final = 4
"""That number is this many times the records read since the last commit, if that is more."""


class PartitionProgress:
    """The records of a partition that were read and are not done. The first such record's offset is committed.

    The text beside the committed offset counts the deaths of records as they will be if this worker dies now.
    """

    def __init__(self, start: int, note: str = "", deaths: Deaths = ()) -> None:
        """`note`: the text beside the committed offset, which is `start`."""
        self.next = self._next_before = start
        """The next offset to read, now and at the last commit."""
        self.committed, self.note = start, note
        self.reached = start
        """The offset before which all records were done at the last commit; another thread may read it."""
        self.deaths = deaths
        """The deaths of records so far, without a death that may come next."""
        self.until = self.marked = 0
        """The offset before which the next death counts for ordinary records, now and in the last commit."""
        self.suspects: tuple[int, int, int] | None = None
        """The suspects under way: their first offset, the offset after their last, and their number of deaths."""
        self._read = deque[int]()
        self._done = set[int]()

    def read(self, offset: int) -> None:
        """Notes that a record was read. Records are read in order."""
        self._read.append(offset)
        self.next = offset + 1

    def end(self, offset: int) -> None:
        """Notes that a record is done. Records may end in any order."""
        self._done.add(offset)

    def position(self, end: int) -> int:
        """Returns the offset before which all records are done. `end`: an offset before which all records were read."""
        while self._read and self._read[0] in self._done:
            self._done.remove(self._read.popleft())
        return self._read[0] if self._read else max(self.next, end)

    def look_ahead(self) -> None:
        """Makes the next death count for the records read, and for those expected to be read before the next commit."""
        self.until = self.next + max(AHEAD_LEAST, AHEAD_FACTOR * (self.next - self._next_before))
        self._next_before = self.next

    def note_at(self, position: int, *, lives: bool) -> str:
        """Returns the text to commit beside a position. `lives`: whether to count no death of this worker."""
        deaths = self.deaths = pass_by(self.deaths, position)
        if not lives and self.until > position:
            deaths = add_death(deaths, position, self.until, ORDINARY)
        if not lives and self.suspects is not None:
            first, stop, count = self.suspects
            deaths = add_death(deaths, first, stop, [count])
        return write_deaths(deaths)


class TopicToken(NamedTuple):
    """The token of a claim: the progress of its partition, the record, and the deaths of the record."""

    progress: PartitionProgress
    record: Message
    attempts: int

    @property
    def place(self) -> tuple[int, int]:
        """The partition and the offset."""
        return self.record.partition(), self.record.offset()


def _key_of(token: TopicToken) -> int | bytes:
    """Returns what identifies a record in its topic."""
    partition, offset = token.place
    if offset >> OFFSET_BITS or partition >> 64 - OFFSET_BITS:
        return f"{partition}:{offset}".encode()
    return partition << OFFSET_BITS | offset


class TopicConnection:
    """One worker's connection to a topic whose records are inputs, as a member of a group: see SourceConnection.

    It commits the offset before which all records are done. After a death, the records from there on are read again, in
    this process or another. The text beside the offset counts these deaths. The text is committed before a record is
    decoded, so that a record that ends its workers is eventually refused, as with other sources.
    """

    is_exhausted = False
    waits_alone = False
    refused = 0
    lease = float("inf")

    def __init__(self, topic: Topic, group: str, member: str, environment: Environment) -> None:
        """Joins the group. Raises TopicError for a topic that does not exist."""
        self._topic, self._cluster = topic, environment.cluster
        self._clock = environment.clock
        self._decode = decoder(bind(topic.value, environment.registry, f"{topic.name}-value"))
        found = self._cluster.topics([topic.name]).get(topic.name)
        self.identity = "" if found is None else found.topic_id
        self._consumer = self._cluster.consumer(group, member, commits=True, pauses=True)
        self._partitions: dict[TopicPartition, PartitionProgress] = {}
        self._lost: dict[TopicPartition, PartitionProgress] = {}
        """The partitions of a membership that was lost while this worker lived."""
        self._waiting = deque[TopicToken]()
        """Records that were fetched or given back and are not under way; within a partition, in order."""
        self._rebalances = deque[set[TopicPartition] | None]()
        """Assignments that have not been acted on; None for a lost membership."""
        self._assigned: set[TopicPartition] | None = None
        """The partitions of an assignment, until the consumer has been told where to start; None after that."""
        self._is_revoked = False
        """Whether the assignment has ended and the next one has not come."""
        self._is_paused = False
        self._leaves = environment.settings.leave_on_stop
        self._committed_at = self._clock()
        self._failure: Exception | None = None
        """The error of a commit, which the next `read` raises."""
        self._consumer.subscribe(
            [topic.name], self._rebalances.append, self._revoked, lambda: self._rebalances.append(None)
        )

    @property
    def positions(self) -> Positions:
        """For each partition held, the offset before which all records are done. Any thread may read it."""
        return {tp: each.reached for tp, each in self._partitions.copy().items()}

    @property
    def highs(self) -> Positions:
        """See Consumer. Any thread may read it."""
        return self._consumer.highs

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        with self._asking():
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._commit_in_time()
            if self._is_paused != (not limit):
                self._is_paused = not limit
                self._consumer.pause(() if limit else self._partitions)
            self._fetch(limit)
            return self._hand_out(limit, alone=alone) if limit else []

    def _fetch(self, limit: int) -> None:
        """Fetches records, so that up to `limit` wait."""
        try:
            records = self._consumer.consume(max(limit - len(self._waiting), 1), 0.0)
            self._follow()
            self._waiting.extend(map(self._token, records))
        except BaseException:  # what was fetched must be fetched again
            if self._assigned is None and not self._is_revoked:
                self._assigned = {*self._partitions}
            raise

    def _hand_out(self, limit: int, *, alone: bool) -> list[Claim]:
        """Returns claims of waiting records, suspects separately from others. If it raises, all records still wait."""
        waiting = self._waiting
        if not any(each.deaths for each in self._partitions.values()):
            chosen, self.waits_alone = self._first(limit), False
            self._mark(chosen, are_suspects=False)
            claims = [*map(self._claim, chosen)]
            for _ in chosen:
                waiting.popleft()
            return claims
        limit = len(self._first(limit))
        choice = choose({at: token.attempts for at, token in enumerate(waiting)}, limit, alone=alone)
        self._mark([waiting[at] for at in choice.read], are_suspects=choice.are_suspects)
        ends_workers = BadInput(InputEndsWorkers(REASON))
        claims = [Claim(_key_of(waiting[at]), ends_workers, DEATHS_MAX, waiting[at]) for at in choice.refused]
        claims += [self._claim(waiting[at]) for at in choice.read]
        self.waits_alone = choice.left or choice.are_suspects
        taken = {*choice.refused, *choice.read}
        self._waiting = deque(token for at, token in enumerate(waiting) if at not in taken)
        return claims

    def _first(self, limit: int) -> list[TopicToken]:
        """Returns the first waiting records, up to a limit, and up to the record that makes them exceed READ_BYTES."""
        chosen, size = list[TopicToken](), 0
        for token in islice(self._waiting, limit):
            chosen.append(token)
            size += len(token.record.value() or b"")
            if size > READ_BYTES:
                break
        return chosen

    def _mark(self, chosen: Sequence[TopicToken], *, are_suspects: bool) -> None:
        """Commits that the next death counts for these records, which will be under way."""
        progresses = self._partitions.values()
        if not chosen or (not are_suspects and all(each.next <= each.marked for each in progresses)):
            return
        for each in progresses:
            offsets = [token.record.offset() for token in chosen if are_suspects and token.progress is each]
            each.suspects = (offsets[0], offsets[-1] + 1, chosen[0].attempts) if offsets else None
        self._commit(lives=False)

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        for claim in claims:  # claims of lost partitions, too: no worker reads their progress any more
            claim.token.progress.end(claim.token.record.offset())

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection. The reason is in the log, and in a dead letter if the graph has a topic for them."""
        self.ack([claim for claim, _ in claims])

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""
        held = [token for claim in claims if self._is_held(token := claim.token)]
        groups = dict[tuple[PartitionProgress, int], list[int]]()
        for token in held if failed else ():
            groups.setdefault((token.progress, token.attempts), []).append(token.record.offset())
        for (progress, count), offsets in groups.items():
            progress.deaths = add_death(progress.deaths, min(offsets), max(offsets) + 1, [count])
        returned = (token._replace(attempts=token.attempts + failed) for token in held)
        self._waiting = deque(sorted((*self._waiting, *returned), key=lambda token: token.place))

    def keep(self) -> None:
        """See SourceConnection: the client's own thread sends the heartbeats of the group."""

    def close(self) -> None:
        """See SourceConnection."""
        try:
            self._commit(lives=True)
        except (ClientError, KStreamsError) as error:
            logger.warning("topic %s: records that are done will be read again: %s", self._topic, error)
        finally:
            self._consumer.close()
            if self._leaves:
                self._leave()

    def _leave(self) -> None:
        try:
            self._cluster.leave(self._consumer)
        except KStreamsError as error:
            logger.warning(
                "topic %s: this worker did not leave its group: its partitions wait until session_timeout_ms: %s",
                self._topic, error,
            )  # fmt: skip

    def _token(self, record: Message) -> TopicToken:
        """Notes that a record was fetched."""
        offset = record.offset()
        progress = self._partitions[TopicPartition(record.topic(), record.partition())]
        progress.read(offset)
        return TopicToken(progress, record, deaths_of(progress.deaths, offset) if progress.deaths else 0)

    def _claim(self, token: TopicToken) -> Claim:
        """Returns a claim with the value of its record. Decoding may end the worker, as functions may."""
        value: Any
        try:
            value = token.record.value()
            if value is not None and self._decode is not None:
                value = self._decode(value)
        except KStreamsError as error:
            if not isinstance(error, DecodeError):  # the schema registry, for example
                raise
            value = BadInput(error)
        except (SystemExit, KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # a user's own serde may raise anything
            value = BadInput(error)
        return Claim(_key_of(token), value, token.attempts, token, size=len(token.record.value() or b""))

    def _is_held(self, token: TopicToken) -> bool:
        """Returns whether this worker has held the partition of a record ever since it was read."""
        progress, record, _ = token
        return self._partitions.get(TopicPartition(record.topic(), record.partition())) is progress

    def _follow(self) -> None:
        """Acts on rebalances: starts at the committed offsets, or at the first record of a partition without one."""
        while self._rebalances:
            assigned, self._is_revoked = self._rebalances.popleft(), False
            self._lost = self._lost if assigned is not None else self._partitions or self._lost
            self._partitions = {tp: each for tp, each in self._partitions.items() if tp in (assigned or ())}
            self._waiting = deque(filter(self._is_held, self._waiting))
            self._assigned = assigned
        if self._assigned is None:
            return
        new = {tp for tp in self._assigned if tp not in self._partitions and tp.topic == self._topic.name}
        noted = self._consumer.noted(new) if new else {}
        self._partitions |= {tp: PartitionProgress(at) for tp, at in self._cluster.starts(new - noted.keys()).items()}
        self._partitions |= {tp: self._went_on(tp, at, note) for tp, (at, note) in noted.items()}
        if self._partitions:
            self._consumer.assign({tp: each.next for tp, each in sorted(self._partitions.items())})
        self._assigned, self._is_paused = None, False

    def _went_on(self, tp: TopicPartition, start: int, note: str) -> PartitionProgress:
        """Returns the progress of a partition that is assigned, from its committed offset and the text beside it."""
        left = self._lost.pop(tp, None)
        if left is not None and (left.committed, left.note) == (start, note):
            return PartitionProgress(start, note, left.deaths)  # this worker committed it: nothing has died
        return PartitionProgress(start, note, read_deaths(note))

    def _revoked(self) -> None:
        # once this returns, another member may read records that are not committed; partitions that stay here go on
        # after the next assignment
        self._commit_if_possible(lives=True)
        self._is_revoked = True

    def _commit_in_time(self) -> None:
        """Commits progress if the time has come."""
        if self._clock() >= self._committed_at + COMMIT_SECONDS:
            self._commit_if_possible(lives=False)

    def _commit_if_possible(self, *, lives: bool) -> None:
        """Commits progress. An outage may delay the commit: records that are read again are recognized."""
        try:
            self._commit(lives=lives)
        except (Retriable, Abortable) as error:
            logger.info(
                "topic %s: its offsets are committed later: %s", self._topic, error,
                extra=repeated(f"commits of offsets of topic {self._topic} that come later"),
            )  # fmt: skip
        except (ClientError, KStreamsError) as error:  # a callback must not raise
            self._failure = error

    def _commit(self, *, lives: bool) -> None:
        """Commits progress, and the deaths as they will be if this worker dies now; with `lives`, as they are now."""
        self._committed_at = self._clock()
        ends, are_alone = self._consumer.ends, any(each.suspects for each in self._partitions.values())
        moved, notes = dict[TopicPartition, int](), dict[TopicPartition, str]()
        for tp, each in self._partitions.items():
            each.look_ahead()
            each.until, each.marked = 0 if are_alone else each.until, 0
            at = each.reached = each.position(ends.get(tp, 0))
            note = each.note_at(at, lives=lives)
            if (at, note) != (each.committed, each.note):
                moved[tp], notes[tp] = at, note
        if moved:
            self._consumer.commit(moved, notes)
        for tp, each in self._partitions.items():
            each.committed, each.note = moved.get(tp, each.committed), notes.get(tp, each.note)
            each.marked = 0 if lives else each.until

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raises SourceUnavailable if the broker does not answer a request in the block."""
        try:
            yield
        except (Retriable, Abortable) as error:
            raise SourceUnavailable(f"topic {self._topic}: {error}", may_return=True) from error
