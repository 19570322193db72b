"""confluent-kafka's consumer as contracts.Consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    InputLost,
    NotAuthorized,
    Retriable,
    SettingsError,
    TopicError,
    Unavailable,
)
from kstreams_py.forks import leave_to_this_process
from kstreams_py.kafka.clients import end, new_client
from kstreams_py.kafka.errors import (
    FENCED,
    JOIN_REFUSED,
    MEMBERSHIP_LOST,
    UNREACHABLE,
    ClientLog,
    E,
    classify,
    name_object,
)
from kstreams_py.kafka.membership import SESSIONS, Holder, Membership, Owner, StaticMembership, replaced
from kstreams_py.kafka.silence import Silence
from kstreams_py.kafka.topics import MISSING, describe_topic, is_missing, no_such_topic
from kstreams_py.kafka.unreadable import LastOfBatch, replace_unreadable, skip_batch
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.records import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)

CONNECTIONS: Final = "failed connections to brokers"
"""The log counts these together for all clients of a process, because they report the same absent broker."""

_ERROR: Final = ck.Message.error

JOIN_AGAIN_SECONDS: Final = 1.0
"""Seconds between two requests for the holder of a lost membership."""

PATIENCE_SECONDS: Final = 2.0
"""The shortest limit, in seconds, of the call that adds offsets to a transaction."""

HIGHS_SECONDS: Final = 1.0
"""Seconds between two reads of the high watermarks."""

JOIN_TURN_SECONDS: Final = 0.02
"""Limit of a call, in seconds, while there is no assignment: a call serves the rebalance, then waits for a record."""


def partitions_of(positions: Positions, notes: Mapping[TopicPartition, str] | None = None) -> list[ck.TopicPartition]:
    noted = notes or {}
    return [ck.TopicPartition(tp.topic, tp.partition, at, noted.get(tp, "")) for tp, at in positions.items()]


class KafkaConsumer:
    """Consumer on a real cluster: a static member of a classic group."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        limit: float,
        holder: Callable[[str, str], Holder | None],
        prepare: Callable[[str, str, Collection[str]], None] = lambda *_: None,
        value_bytes_max: int | None = None,
        last_of_batch: LastOfBatch = lambda _, first: first,
    ) -> None:
        """Makes a client that joins with `subscribe`.

        - `settings`: the client's settings.
        - `limit`: seconds that a request may take.
        - `holder`: asks a group who holds a static membership (its group.instance.id); returns None if no member does.
        - `prepare`: called with the group, the instance id and the topics before each new client joins.
        - `value_bytes_max`: a record with a larger value is Unreadable.
        - `last_of_batch`: returns the last offset of a batch that cannot be decompressed.
        """
        self.ends: Positions = {}
        self._skipped: Positions = {}
        """The next offsets after batches that cannot be decompressed, since the last `assign`."""
        self.highs: Positions = {}
        self.tainted = False
        self.patience = PATIENCE_SECONDS
        """Limit, in seconds, of the next call that adds offsets to a transaction; it follows the duration of calls.

        It is kept here because producers are replaced; only KafkaProducer.send_offsets uses it.
        """
        self._settings = settings
        self._limit = limit
        self._value_bytes_max = value_bytes_max
        self._last_of_batch = last_of_batch
        self._prepare = prepare
        self.group = settings["group.id"]
        self.instance_id = settings["group.instance.id"]
        self._membership = StaticMembership(
            self.group, self.instance_id, settings["client.id"], settings["session.timeout.ms"] / 1000, holder
        )
        self._silence = Silence(self.instance_id, self.group, limit)
        self._topics: list[str] = []
        self._assigned: Callable[[set[TopicPartition]], None]
        self._revoked: Callable[[], None]
        self._on_lost: Callable[[], None] = lambda: None
        leave_to_this_process(self)
        self._connect()

    @property
    def member_id(self) -> str:
        """The member id at the last assignment; "" before the first."""
        return self._membership.member

    def _connect(self) -> None:
        log = ClientLog("consumer")
        made = new_client(ck.Consumer, {**self._settings, "error_cb": log.on_error}, log)
        self._log, self._consumer = log, made
        self._paused: frozenset[TopicPartition] = frozenset()
        self._committed_since = False
        self._rebalances = 0
        self._looked_at = 0.0
        self._silence.joining()

    def subscribe(
        self,
        topics: Collection[str],
        assigned: Callable[[set[TopicPartition]], None],
        revoked: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._topics, self._assigned, self._revoked, self._on_lost = sorted(topics), assigned, revoked, lost
        self._join()

    # No callback may raise a KafkaException: `consume` would then raise a KafkaError, which is not an exception class
    # (measured: it ends the thread past `except BaseException`).

    def _join(self) -> None:
        try:  # a new client never notices partitions that were added before, whether its process is new or not
            self._prepare(self.group, self.instance_id, self._topics)
        except (ClientError, SettingsError, Unavailable) as error:
            if isinstance(error, NotAuthorized):
                raise
            logger.info(
                "%s: cannot tell whether its inputs have changed since it last joined: %s", self.instance_id, error
            )
        self._membership.joining = True
        self._consumer.subscribe(
            self._topics, on_assign=self._assign_none, on_revoke=self._revoke, on_lost=self._leave_after_loss
        )

    def rejoin(self) -> None:
        left = [self._consumer]
        self._connect()  # first: if the new client gets no token, the earlier one stays
        end(left)
        self.tainted = self._membership.lost = False
        if self._topics:
            self._join()

    def _assign_none(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._membership.member, self._membership.joining = client.memberid(), False
        try:
            client.assign([])  # otherwise it fetches from its own offsets until the caller has read the committed ones
        except ck.KafkaException:
            self._lose()
            return
        self._rebalances += 1
        self._silence.assigned()
        self._assigned({TopicPartition(p.topic, p.partition) for p in partitions})

    def _revoke(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        if not client.memberid():  # the session timed out while this process was frozen, before it served the callback
            self._leave_after_loss(client, partitions)
            return
        self._rebalances += 1
        self._membership.joining = True
        self._silence.revoked()
        self._revoked()

    def _leave_after_loss(self, client: ck.Consumer, _: list[ck.TopicPartition]) -> None:
        # as soon as this returns, librdkafka would join again without its member id: a process that was frozen would
        # take the membership back from its replacement
        with suppress(ck.KafkaException):  # a client that is fenced by now refuses, and never joins again
            client.unsubscribe()
        self._lose()

    def _lose(self) -> None:
        self._rebalances += 1
        self._silence.revoked()
        self._membership.lost = True
        self._on_lost()

    def assign(self, positions: Positions) -> None:
        self.ends.clear()
        self._skipped.clear()
        if not self._topics:
            self._silence.assigned()  # by hand: no group is asked for an assignment
        self._silence.start_offsets = dict(positions)
        self._consumer.assign(partitions_of(positions))
        # a pause survives assignments, even if another member had the partition in between (librdkafka #5113;
        # measured with 2.16)
        self.pause(())

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        if self._membership.lost and not self._join_again():
            time.sleep(JOIN_AGAIN_SECONDS)
            return []
        rebalances = self._rebalances
        committed, self._committed_since = self._committed_since, False  # a callback's commit also counts next time
        timeout = timeout if self._silence.has_assignment else min(timeout, JOIN_TURN_SECONDS)
        try:
            found = self._consumer.consume(1, timeout) if timeout else []
            if (found or not timeout) and len(found) < limit:
                found += self._consumer.consume(limit - len(found), 0)
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "reading") from None
        if self._log.coordinator_lost:
            self._log.coordinator_lost = False
            # a late commit would set the group back, as a late EndTxn ends a later transaction; the broker refuses it
            # once the membership has a new member id (test_at_most_once_late_offset_commit_does_not_set_the_group_back)
            self.tainted |= committed or self._committed_since
        if (seen := self._log.error) is not None:
            self._log.error = None
            self._raise_if_serious(seen, "reading")
        messages: list[Any] = found
        events: list[Any] = []
        if any(map(_ERROR, found)):
            messages = [m for m in found if m.error() is None]
            events = [m for m in found if m.error() is not None]
        messages = replace_unreadable(messages, self._value_bytes_max)
        for m in events:
            if m.error().code() == E._BAD_COMPRESSION:
                messages += self._skip_batch(m)
            else:
                self._handle_event(m)
        if messages:
            self._silence.heard()
        else:
            self._silence.look(self._consumer, self.ends, self._paused)
        self._read_highs()
        return messages if self._rebalances == rebalances else self._drop_fetched()

    def _drop_fetched(self) -> Sequence[Message]:
        """Returns nothing in place of records that were fetched before a rebalance.

        Their partitions were revoked, or the records are read again: an end that came with them is not reached yet.
        """
        self.ends.clear()
        return []

    def _read_highs(self) -> None:
        """Reads the high watermarks if the last read is old. It asks no broker: each answer to a fetch has them."""
        now = time.monotonic()
        if now - self._looked_at < HIGHS_SECONDS:
            return
        found: Positions = {}
        for tp in self.ends:
            with suppress(ck.KafkaException):
                found[tp] = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), cached=True)[1]
        self._looked_at, self.highs = now, found

    def _skip_batch(self, m: Any) -> Sequence[Message]:
        """Returns the record that stands for a batch that cannot be decompressed."""
        partition = TopicPartition(m.topic(), m.partition())
        if m.offset() < self._skipped.get(partition, 0):  # the client had already requested it again
            return ()
        try:
            record = skip_batch(self._consumer, m, self._last_of_batch)
        except ck.KafkaException as error:
            raise self._classify(error.args[0], f"reading {partition}") from None
        self._skipped[partition] = record.offset() + 1
        return [record]

    def _handle_event(self, m: Any) -> None:
        error: ck.KafkaError = m.error()
        if error.code() == E._PARTITION_EOF:
            self.ends[TopicPartition(m.topic(), m.partition())] = m.offset()
            self._silence.heard()
        elif error.code() in (E._AUTO_OFFSET_RESET, E.OFFSET_OUT_OF_RANGE):
            raise InputLost(
                f"{m.topic()}[{m.partition()}]: the records at the committed offset were deleted before they were "
                f"read ({error.str()}): once the group has no members, set its offset on purpose "
                "(`kstreams recover reset`; of a topic that tasks read, `kafka-consumer-groups.sh --reset-offsets`)"
            )
        else:
            self._raise_if_serious(error, f"reading topic {m.topic()!r}" if m.topic() else "reading")

    def _raise_if_serious(self, error: ck.KafkaError, doing: str) -> None:
        if self._log.refuses(error):
            raise BrokerUnavailable(f"the broker refuses the credentials: {error.str()}", may_return=False)
        if error.code() == E.GROUP_AUTHORIZATION_FAILED:
            doing = f"joining the group {self.group!r}"
        failure = classify(error, doing)
        if error.fatal() or error.code() in FENCED | {E._FATAL}:
            raise self._classify(error, doing)
        if isinstance(failure, NotAuthorized):
            raise failure
        if (remedy := JOIN_REFUSED.get(error.code())) is not None:
            raise SettingsError(f"the group {self._settings['group.id']!r} takes no members ({error.name()}): {remedy}")
        if error.code() in MISSING and (missing := self._missing_topic()) is not None:
            raise missing
        self._silence.failed(error)
        if error.code() in UNREACHABLE:  # each client reports an absent broker, four times a second
            logger.info(
                "a broker cannot be reached; the client tries again: %s", error.str(),
                extra=repeated(CONNECTIONS, first=1),
            )  # fmt: skip
            return
        logger.info(
            "%s: %s (%s); the client retries", doing, error.str(), error.name(),
            extra=repeated(f"failures that the client of {self.instance_id} retries", error.name()),
        )  # fmt: skip

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        return {tp: offset for tp, (offset, _) in self.noted(partitions).items()}

    def noted(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        try:
            found = self._consumer.committed([ck.TopicPartition(*tp) for tp in partitions], self._limit)
            for p in found:
                if p.error is not None:
                    raise self._classify(
                        p.error, f"reading the committed offset of {p.topic}[{p.partition}]", [p.topic]
                    )
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "reading committed offsets") from None
        return {TopicPartition(p.topic, p.partition): (p.offset, p.metadata or "") for p in found if p.offset >= 0}

    def commit(self, positions: Positions, notes: Mapping[TopicPartition, str] | None = None) -> None:
        self._committed_since = True
        try:
            for p in self._consumer.commit(offsets=partitions_of(positions, notes), asynchronous=False) or []:
                if p.error is not None:
                    raise self._classify(p.error, f"committing the offset of {p.topic}[{p.partition}]", [p.topic])
        except ck.KafkaException as error:
            raise self._classify(error.args[0], "committing offsets", [tp.topic for tp in positions]) from None

    def membership(self) -> Membership:
        return self._membership.ask(self._consumer.memberid())

    def _classify(self, error: ck.KafkaError, doing: str, topics: Collection[str] = ()) -> Exception:
        """Maps an error as classify() does, but a fenced member is only Abortable: `consume` asks the group first.

        A consumer's only fatal error is that it is fenced; only the error's text and librdkafka's log have the reason.
        """
        if error.fatal() or error.code() in FENCED | {E._FATAL} or MEMBERSHIP_LOST in error.str() or self._log.fenced:
            self._lose()
            return Abortable(f"{doing}: this client is no longer a member of its group")
        if error.code() in MISSING:
            return self._missing_topic() or Retriable(f"{doing}: {error.str()} ({error.name()})")
        return classify(error, name_object(doing, error, topics=topics or self._topics, group=self.group))

    def _missing_topic(self) -> TopicError | None:
        for topic in self._topics or {tp.topic for tp in self._silence.start_offsets}:
            if is_missing(describe_topic(self._consumer, topic, self._limit)):
                return no_such_topic(topic)
        return None

    def _join_again(self) -> bool:
        """Joins again if no other member can hold the membership; otherwise returns False. Raises Replaced."""
        try:
            owner, holder = self._membership.ask_before_joining_again(self._consumer.memberid(), time.monotonic())
        except (ClientError, Unavailable) as error:
            logger.warning(
                "%s: the membership is lost, and the group does not say who holds it: %s", self.instance_id, error,
                extra=away(f"membership of {self.instance_id}"),
            )  # fmt: skip
            return False
        logger.info(
            "%s: the group says who holds the membership", self.instance_id,
            extra=answers(f"membership of {self.instance_id}"),
        )  # fmt: skip
        if owner is Owner.ANOTHERS:
            raise replaced(self.instance_id, holder)
        if owner is Owner.UNSURE:
            logger.warning(
                "%s: the membership was lost, and its holder may be this worker itself, by a join without an answer "
                "(%s): joining again once that leaves; another worker would stay for longer than %d sessions",
                self.instance_id, holder, SESSIONS,
                extra=repeated(f"answers that the membership of {self.instance_id} has an unknown holder", holder),
            )  # fmt: skip
            return False
        logger.warning(
            "%s: the membership was lost, and no other worker has taken it: joining again", self.instance_id,
            extra=repeated(f"memberships of {self.instance_id} that were lost and are taken again"),
        )  # fmt: skip
        self.rejoin()
        return True

    def group_metadata(self) -> object:
        return self._consumer.consumer_group_metadata()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        wanted = frozenset(partitions)
        if wanted != self._paused:
            self._consumer.pause([ck.TopicPartition(*tp) for tp in wanted - self._paused])
            self._consumer.resume([ck.TopicPartition(*tp) for tp in self._paused - wanted])
            self._paused = wanted

    def close(self) -> None:
        # the client's own close() calls callbacks, and deadlocks during a rebalance; `end` does neither (see
        # test_close_during_a_rebalance_returns_and_calls_no_callback)
        end([self.__dict__.pop("_consumer")])
