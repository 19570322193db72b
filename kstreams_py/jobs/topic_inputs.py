"""A topic whose records are inputs of a job: acknowledged by the offset before which all are done."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from kstreams_py.errors import Abortable, ClientError, DecodeError, KStreamsError, Retriable, SourceUnavailable
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.source import BadInput, Claim
from kstreams_py.log_fields import repeated
from kstreams_py.records import Message, TopicPartition
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.outputs import decoder

logger = logging.getLogger(__name__)

OFFSET_BITS: Final = 48
"""Bits of the offset in the key of a record; the partition has the others."""

COMMIT_SECONDS: Final = 0.1
"""Seconds between two commits of offsets: records that are read again after a crash are recognized by their origin."""


class PartitionProgress:
    """The records of a partition that were read and are not done."""

    def __init__(self, start: int) -> None:
        self.next = start
        """The next offset to read."""
        self.committed = start
        self._read = deque[int]()
        self._done = set[int]()

    def read(self, offset: int) -> None:
        """Notes that a record was read; they are read in order."""
        self._read.append(offset)
        self.next = offset + 1

    def end(self, offset: int) -> None:
        """Notes that a record is done; in any order."""
        self._done.add(offset)

    def position(self, end: int) -> int:
        """Returns the offset before which all records are done. `end`: before it, all records were read."""
        while self._read and self._read[0] in self._done:
            self._done.remove(self._read.popleft())
        return self._read[0] if self._read else max(self.next, end)


class TopicToken(NamedTuple):
    """The token of a claim: the progress of its partition, and the record."""

    progress: PartitionProgress
    record: Message


class TopicConnection:
    """One worker's connection to a topic whose records are inputs, as a member of a group: see SourceConnection.

    It commits the offset before which all records are done. After a death, the records from there on are read again, in
    this process or another. Nobody counts how often, so a record that ends its worker is read again each time.
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
        self._again = deque[Claim]()
        """Claims that were given back."""
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

    def read(self, limit: int, *, alone: bool) -> list[Claim]:  # noqa: ARG002, a topic has no suspects
        """See SourceConnection."""
        with self._asking():
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            self._commit_in_time()
            if self._is_paused != (not limit):
                self._is_paused = not limit
                self._consumer.pause(() if limit else self._partitions)
            claims = list[Claim]()
            given_back = [self._again.popleft() for _ in range(min(limit, len(self._again)))]
            try:
                records = self._consumer.consume(max(limit - len(given_back), 1), 0.0)
                self._follow()
                claims = [*filter(self._is_held, given_back)]
                for record in records:
                    claims.append(self._claim(record))
            except BaseException:
                # records that were fetched and not claimed must be fetched again
                self._again.extendleft(reversed(claims or given_back))
                if self._assigned is None and not self._is_revoked:
                    self._assigned = {*self._partitions}
                raise
            return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        for claim in claims:  # claims of lost partitions, too: nobody reads their progress any more
            claim.token.progress.end(claim.token.record.offset())

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection. The reason is in a dead letter, if the graph has a topic for them, and in the log."""
        self.ack([claim for claim, _ in claims])

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""
        held = filter(self._is_held, claims)
        self._again.extend(claim._replace(attempts=claim.attempts + failed) for claim in held)

    def keep(self) -> None:
        """See SourceConnection: the client's own thread sends the heartbeats of the group."""

    def close(self) -> None:
        """See SourceConnection."""
        try:
            self._commit()
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

    def _claim(self, record: Message) -> Claim:
        offset = record.offset()
        progress = self._partitions[TopicPartition(record.topic(), record.partition())]
        key: int | bytes = record.partition() << OFFSET_BITS | offset
        if offset >> OFFSET_BITS or record.partition() >> 64 - OFFSET_BITS:
            key = f"{record.partition()}:{offset}".encode()
        value: Any
        try:
            value = record.value()
            if value is not None and self._decode is not None:
                value = self._decode(value)
        except KStreamsError as error:
            if not isinstance(error, DecodeError):  # the schema registry, for example
                raise
            value = BadInput(error)
        except Exception as error:  # a user's own serde may raise anything
            value = BadInput(error)
        progress.read(offset)
        return Claim(key, value, 0, TopicToken(progress, record))

    def _is_held(self, claim: Claim) -> bool:
        """Returns whether the partition of a claim has been held since its record was read."""
        progress, record = claim.token
        return self._partitions.get(TopicPartition(record.topic(), record.partition())) is progress

    def _follow(self) -> None:
        """Acts on the rebalances: starts at the committed offsets, or at the first record where there is none."""
        while self._rebalances:
            assigned, self._is_revoked = self._rebalances.popleft(), False
            self._partitions = {tp: each for tp, each in self._partitions.items() if tp in (assigned or ())}
            self._again = deque(filter(self._is_held, self._again))
            self._assigned = assigned
        if self._assigned is None:
            return
        new = {tp for tp in self._assigned if tp not in self._partitions and tp.topic == self._topic.name}
        starts = self._consumer.committed(new) if new else {}
        starts = self._cluster.starts(new - starts.keys()) | starts
        self._partitions |= {tp: PartitionProgress(start) for tp, start in starts.items()}
        if self._partitions:
            self._consumer.assign({tp: each.next for tp, each in sorted(self._partitions.items())})
        self._assigned, self._is_paused = None, False

    def _revoked(self) -> None:
        # once this returns, another member may read what is not committed; partitions that stay here go on after the
        # next assignment
        self._commit_in_time(due=True)
        self._is_revoked = True

    def _commit_in_time(self, *, due: bool = False) -> None:
        """Commits progress, if it is time. An outage need not stop this: records that are read again are recognized."""
        if not due and self._clock() < self._committed_at + COMMIT_SECONDS:
            return
        try:
            self._commit()
        except (Retriable, Abortable) as error:
            logger.info(
                "topic %s: its offsets are committed later: %s", self._topic, error,
                extra=repeated(f"commits of offsets of topic {self._topic} that come later"),
            )  # fmt: skip
        except (ClientError, KStreamsError) as error:  # a callback must not raise
            self._failure = error

    def _commit(self) -> None:
        self._committed_at = self._clock()
        ends = self._consumer.ends
        done = {tp: each.position(ends.get(tp, 0)) for tp, each in self._partitions.items()}
        if moved := {tp: at for tp, at in done.items() if at != self._partitions[tp].committed}:
            self._consumer.commit(moved)
            for tp, at in moved.items():
                self._partitions[tp].committed = at

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Raises SourceUnavailable where the broker does not answer in the block."""
        try:
            yield
        except (Retriable, Abortable) as error:
            raise SourceUnavailable(f"topic {self._topic}: {error}", may_return=True) from error
