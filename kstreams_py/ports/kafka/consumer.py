"""confluent-kafka's consumer as delivery.Consumer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import confluent_kafka as ck

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    InputLost,
    LogError,
    NotAuthorized,
    Replaced,
    Retriable,
    SettingsError,
    TopicError,
    Unavailable,
)
from kstreams_py.ports.kafka.clients import end, made
from kstreams_py.ports.kafka.errors import (
    FENCED,
    JOIN_REFUSED,
    SEAT_LOST,
    UNAUTHENTICATED,
    ClientLog,
    E,
    log_error,
    naming,
)
from kstreams_py.ports.kafka.silence import Silence
from kstreams_py.ports.kafka.topics import MISSING, described, is_missing, no_such_topic
from kstreams_py.record import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)

RETURN_SECONDS: Final = 1.0
"""Between two questions to a group that does not say who holds a lost membership."""

PATIENCE_SECONDS: Final = 2.0
"""How long a producer waits, to begin with, until the group's coordinator has taken positions into a transaction."""

DEAL_SECONDS: Final = 0.02
"""How long one call waits while the group deals: it goes on waiting for a record when the partitions have come."""


def partitions_of(positions: Positions) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]


class Holder(NamedTuple):
    """The member that holds a static membership."""

    member: str
    client: str
    host: str
    """Client id and host as the group describes them: those of a member that it has replaced within its session."""


class KafkaConsumer:
    """delivery.Consumer on a real cluster: a static member of a classic group.

    `holder` names the member that holds the membership of this name in the group now, None if nobody does.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        limit: float,
        holder: Callable[[str, str], Holder | None],
        prepare: Callable[[str, str, Collection[str]], None] = lambda *_: None,
    ) -> None:
        """`prepare` is called with group, membership and topics before the first join."""
        self.ends: Positions = {}
        self.tainted = False
        self.patience = PATIENCE_SECONDS
        """How long the next producer waits for the group's coordinator: each one sets it by what it has seen."""
        self._settings = settings
        self._limit = limit
        self._holder = holder
        self._prepare = prepare
        self.group = settings["group.id"]
        self._seat = settings["group.instance.id"]
        self._member = ""
        """By which the group knew this consumer at its last assignment."""
        self._insisted = False
        self._lost = False
        """The membership is over; the group is asked who holds it before this consumer joins again."""
        self._topics: list[str] = []
        self._assigned: Callable[[set[TopicPartition]], None]
        self._revoked: Callable[[], None]
        self._on_lost: Callable[[], None] = lambda: None
        self._connect()

    def _connect(self) -> None:
        self._log = ClientLog("consumer")
        self._paused: frozenset[TopicPartition] = frozenset()
        self._committed_since = False
        self._rebalances = 0
        self._silence = Silence(self._seat, self.group, self._limit)
        self._consumer = made(ck.Consumer, {**self._settings, "error_cb": self._log.on_error}, self._log)

    def subscribe(
        self,
        topics: Collection[str],
        assigned: Callable[[set[TopicPartition]], None],
        revoked: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._topics, self._assigned, self._revoked, self._on_lost = sorted(topics), assigned, revoked, lost
        try:
            self._prepare(self.group, self._seat, self._topics)
        except (LogError, SettingsError, Unavailable) as error:
            if isinstance(error, NotAuthorized):
                raise
            logger.info("%s: it is not known whether its inputs have changed since it last ran: %s", self._seat, error)
        self._join()

    # None of the callbacks may raise a KafkaException: what comes out of `consume` is then a KafkaError, which Python's
    # `except` takes for no exception at all (measured: it ends the thread past `except BaseException`).

    def _join(self) -> None:
        self._consumer.subscribe(
            self._topics, on_assign=self._assign_none, on_revoke=self._revoke, on_lost=self._leave_after_loss
        )

    def rejoin(self) -> None:
        self.tainted = self._lost = False
        self.close()
        self._connect()
        if self._topics:
            self._join()

    def _assign_none(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._member = client.memberid()
        try:
            client.assign([])  # or it fetches at positions of its own until the caller has read the committed ones
        except ck.KafkaException:
            self._lose()
            return
        self._rebalances += 1
        self._silence.dealt()
        self._assigned({TopicPartition(p.topic, p.partition) for p in partitions})

    def _revoke(self, client: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        if not client.memberid():  # frozen while this waited to be served: the session is over all the same
            self._leave_after_loss(client, partitions)
            return
        self._rebalances += 1
        self._silence.revoked()
        self._revoked()
        self._paused = frozenset()

    def _leave_after_loss(self, client: ck.Consumer, _: list[ck.TopicPartition]) -> None:
        # librdkafka joins again as soon as this returns, without its member id: so a process that wakes up would take
        # the membership back from its replacement
        with suppress(ck.KafkaException):  # a client that was fenced meanwhile refuses, and never joins again
            client.unsubscribe()
        self._lose()

    def _lose(self) -> None:
        self._rebalances += 1
        self._paused = frozenset()
        self._silence.revoked()
        self._lost = True
        self._on_lost()

    def assign(self, positions: Positions) -> None:
        self._paused = frozenset()
        self.ends.clear()
        self._silence.begun = dict(positions)
        self._consumer.assign(partitions_of(positions))

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        if self._lost and not self._return():
            time.sleep(RETURN_SECONDS)
            return []
        rebalances = self._rebalances
        committed, self._committed_since = self._committed_since, False  # what a callback commits counts next time too
        timeout = timeout if self._silence.is_dealt else min(timeout, DEAL_SECONDS)
        try:
            found = self._consumer.consume(1, timeout) if timeout else []
            if (found or not timeout) and len(found) < limit:
                found += self._consumer.consume(limit - len(found), 0)
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "reading") from None
        if self._log.coordinator_lost:
            self._log.coordinator_lost = False
            # as a late EndTxn ends a later transaction, a late commit would put the group back; the broker refuses it
            # once the membership has a new member id
            self.tainted |= committed or self._committed_since
        if (seen := self._log.error) is not None:
            self._log.error = None
            self._raise_if_serious(seen, "reading")
        messages: list[Any] = [m for m in found if m.error() is None]
        if len(messages) < len(found):
            for m in found:
                if m.error() is not None:
                    self._event(m)
        if messages:
            self._silence.broken()
        else:
            self._silence.look(self._consumer, self.ends, self._paused)
        # what was fetched before a rebalance is no longer ours, or will be read again from the committed position
        return messages if self._rebalances == rebalances else []

    def _event(self, m: Any) -> None:
        error: ck.KafkaError = m.error()
        if error.code() == E._PARTITION_EOF:
            self.ends[TopicPartition(m.topic(), m.partition())] = m.offset()
            self._silence.broken()
        elif error.code() in (E._AUTO_OFFSET_RESET, E.OFFSET_OUT_OF_RANGE):
            raise InputLost(
                f"{m.topic()}[{m.partition()}]: the records at the committed position were deleted before they were "
                f"read ({error.str()}): set the group's position on purpose (kafka-consumer-groups --reset-offsets)"
            )
        else:
            self._raise_if_serious(error, f"reading topic {m.topic()!r}" if m.topic() else "reading")

    def _raise_if_serious(self, error: ck.KafkaError, doing: str) -> None:
        if error.code() in UNAUTHENTICATED:
            raise BrokerUnavailable(f"the broker refuses the credentials: {error.str()}")
        if error.code() == E.GROUP_AUTHORIZATION_FAILED:
            doing = f"joining the group {self.group!r}"
        failure = log_error(error, doing)
        if error.fatal() or error.code() in FENCED | {E._FATAL}:
            raise self._log_error(error, doing)
        if isinstance(failure, NotAuthorized):
            raise failure
        if (remedy := JOIN_REFUSED.get(error.code())) is not None:
            raise SettingsError(f"the group {self._settings['group.id']!r} takes no member ({error.name()}): {remedy}")
        if error.code() in MISSING and (missing := self._missing_topic()) is not None:
            raise missing
        self._silence.complaint = f": {error.str()} ({error.name()})"
        logger.info("%s: %s (%s); the client retries", doing, error.str(), error.name())

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        try:
            found = self._consumer.committed([ck.TopicPartition(*tp) for tp in partitions], self._limit)
            for p in found:
                if p.error is not None:
                    raise self._log_error(
                        p.error, f"reading the committed position of {p.topic}[{p.partition}]", [p.topic]
                    )
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "reading committed positions") from None
        return {TopicPartition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    def commit(self, positions: Positions) -> None:
        self._committed_since = True
        try:
            for p in self._consumer.commit(offsets=partitions_of(positions), asynchronous=False) or []:
                if p.error is not None:
                    raise self._log_error(p.error, f"committing the position of {p.topic}[{p.partition}]", [p.topic])
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "committing positions", [tp.topic for tp in positions]) from None

    def hold_seat(self) -> bool:
        holder = self._holder(self.group, self._seat)
        mine = self._consumer.memberid()
        if holder is None or holder.member in (mine, self._member):
            return holder is not None
        if mine or self._member or self._log.fenced:
            raise self._replaced(holder)
        return False  # the join of this very member may be on its way

    def _log_error(self, error: ck.KafkaError, doing: str, topics: Collection[str] = ()) -> Exception:
        """As for a producer, but that fencing is about the membership: the group is asked before it is believed.

        A consumer's only fatal error is that it was fenced; librdkafka tells the reason in its text and its log.
        """
        if error.fatal() or error.code() in FENCED | {E._FATAL} or SEAT_LOST in error.str() or self._log.fenced:
            self._lose()
            return Abortable(f"{doing}: this client is no member of its group any more")
        if error.code() in MISSING:
            return self._missing_topic() or Retriable(f"{doing}: {error.str()} ({error.name()})")
        return log_error(error, naming(doing, error, topics=topics or self._topics, group=self.group))

    def _missing_topic(self) -> TopicError | None:
        for topic in self._topics:
            if is_missing(described(self._consumer, topic, self._limit)):
                return no_such_topic(topic)
        return None

    def _return(self) -> bool:
        """Joins again if no other member has taken the membership; False if the group does not say.

        librdkafka #3437: a client whose session has timed out forgets its member id, and goes on with heartbeats until
        its rebalance is served; a coordinator that still knows the member takes an empty id for another's. And one that
        died before it wrote a new member down has a successor that knows only who held the membership before.
        Raises Replaced.
        """
        try:
            holder = self._holder(self.group, self._seat)
        except (LogError, Unavailable) as error:
            logger.warning("%s: the membership is lost, and the group does not say who holds it: %s", self._seat, error)
            return False
        if holder is not None and holder.member not in (self._consumer.memberid(), self._member):
            if self._member or self._insisted:
                raise self._replaced(holder)
            self._insisted = True
        logger.warning("%s: the membership was lost, and no other worker has taken it: joining again", self._seat)
        self.rejoin()
        return True

    def _replaced(self, holder: Holder) -> Replaced:
        # a broker gives a static member that is replaced a new member id, and keeps its client id and host (measured)
        stale = holder.client == self._settings["client.id"]
        known = "the broker still names this one's client" if stale else f"{holder.client} on {holder.host}"
        return Replaced(
            f"another worker has taken the slot of {self._seat} over (member {holder.member}; {known}); this one ends"
        )

    def group_metadata(self) -> object:
        return self._consumer.consumer_group_metadata()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        wanted = frozenset(partitions)
        if wanted != self._paused:
            self._consumer.pause([ck.TopicPartition(*tp) for tp in wanted - self._paused])
            self._consumer.resume([ck.TopicPartition(*tp) for tp in self._paused - wanted])
            self._paused = wanted

    def close(self) -> None:
        # the client's own close() calls back, and deadlocks in the middle of a rebalance; this does neither
        end([self.__dict__.pop("_consumer")])
