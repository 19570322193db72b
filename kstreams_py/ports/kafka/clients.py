"""The clients of confluent-kafka as delivery.Producer and delivery.Consumer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py import delivery
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    Fenced,
    InputLost,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Replaced,
    Retriable,
    TopicError,
)
from kstreams_py.ports.kafka.errors import FENCED, REFUSED, SEAT_LOST, TOO_LARGE, ClientLog, E, log_error, made
from kstreams_py.record import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)

ABORT_FLUSH_SECONDS: Final = 5.0
"""How long an abort waits for what is on its way; a new producer does without."""

FLUSH_SECONDS: Final = 0.001
"""Of one flush, after which it is looked whether all has been acknowledged."""

CALL_GRACE_SECONDS: Final = 1.0
"""How long a call may outlast the limit it was given."""

CONNECT_SECONDS: Final = 1.0
"""How long a new producer waits for its first connection before it goes on all the same."""


class KafkaProducer:
    """delivery.Producer on a real cluster."""

    def __init__(self, settings: Mapping[str, Any], limit: float) -> None:
        self._log = ClientLog("producer")
        self._failed: list[tuple[ck.KafkaError, str]] = []
        self._limit = limit
        configuration = {**settings, "error_cb": self._log.on_error, "on_delivery": self._delivered}
        self._producer = made(ck.Producer, configuration, self._log)

    def _delivered(self, error: ck.KafkaError | None, message: Any) -> None:
        if error is not None and len(self._failed) < 100:
            self._failed.append((error, message.topic()))

    @property
    def tainted(self) -> bool:
        try:
            self._poll(0)  # serves the log
        except LogError:
            return True
        return self._log.tainted

    def write(self, outputs: Sequence[delivery.Output]) -> None:
        produce: Callable[..., None] = self._producer.produce
        done = 0
        deadline = time.monotonic() + self._limit
        while True:
            try:
                for output in outputs if not done else outputs[done:]:
                    produce(*output)
                    done += 1
                return
            except BufferError:
                self._poll(0.02)
                if time.monotonic() > deadline:
                    raise Abortable(f"the producer's queue stayed full for {self._limit:g} s") from None
            except ck.KafkaException as error:
                self._poll(0)  # serves the reports: a delivery that failed before may be why
                if failed := self._raise_mistakes():
                    raise Abortable(f"writing to {failed[0][1]}: {failed[0][0].str()}") from None
                raise self._refused(error.args[0], outputs[done]) from None

    @staticmethod
    def _refused(error: ck.KafkaError, output: delivery.Output) -> Exception:
        if error.code() in TOO_LARGE:
            return too_large(output[0], len(output[1] or b""))
        return log_error(error, f"writing to {output[0]}")

    def init_transactions(self) -> None:
        with suppress(ck.KafkaException):
            # measured: a client that is not connected yet looks for its coordinator again after 500 ms, not at once
            self._producer.list_topics("__transaction_state", CONNECT_SECONDS)
        self._call(self._producer.init_transactions, "starting the producer")

    def begin_transaction(self) -> None:
        self._failed.clear()
        try:
            self._producer.begin_transaction()
        except ck.KafkaException as error:
            raise log_error(error.args[0], "beginning a transaction") from None

    def send_offsets(self, positions: Positions, consumer: delivery.Consumer) -> None:
        assert isinstance(consumer, KafkaConsumer)
        metadata = consumer.group_metadata()
        self._call(
            lambda limit: self._producer.send_offsets_to_transaction(_partitions(positions), metadata, limit),
            "adding positions to the transaction",
        )

    def commit_transaction(self) -> None:
        self._acknowledged()
        try:
            self._call(self._producer.commit_transaction, "committing the transaction")
        except Retriable as error:
            raise OutcomeUnknown(str(error)) from None

    def abort_transaction(self) -> None:
        # librdkafka #4849: an abort must not race what is on its way, and what is purged in flight leaves a gap in the
        # sequence numbers, at which the next transaction of the same epoch would fail
        left = self._drain(time.monotonic() + min(self._limit, ABORT_FLUSH_SECONDS))
        self._failed.clear()
        if left:
            raise OutcomeUnknown(f"{left} records were neither sent nor refused before the abort")
        try:
            self._call(self._producer.abort_transaction, "aborting the transaction")
        except (Retriable, Abortable) as error:
            raise OutcomeUnknown(str(error)) from None

    def flush(self) -> None:
        self._acknowledged()
        if failed := self._raise_mistakes():
            raise Abortable(f"writing to {failed[0][1]}: {failed[0][0].str()}")

    def _acknowledged(self) -> None:
        """Waits until every record was acknowledged or has failed. Raises Abortable if that takes too long."""
        if left := self._drain(time.monotonic() + self._limit):
            self._raise_mistakes()
            raise Abortable(f"{left} records were not acknowledged within {self._limit:g} s")

    def _drain(self, deadline: float, going: Callable[[], bool] = lambda: True) -> int:
        """Sends what is queued without lingering, until the deadline or as long as `going`; how many are left.

        Where only failures are reported, one long flush would look every 10 ms whether all has been acknowledged.
        """
        try:
            while (left := self._producer.flush(FLUSH_SECONDS)) and going() and time.monotonic() < deadline:
                pass
        except ck.KafkaException as error:
            raise log_error(error.args[0], "sending what is queued") from None
        return left

    def _raise_mistakes(self) -> list[tuple[ck.KafkaError, str]]:
        """The deliveries that failed since the last call. Raises what a new attempt cannot mend, if there is one."""
        failed, self._failed = self._failed, []
        for error, topic in failed:
            if error.code() in TOO_LARGE:
                raise too_large(topic)
            if error.code() in (E.UNKNOWN_TOPIC_OR_PART, E._MSG_TIMED_OUT) and gone(self._producer, topic, self._limit):
                raise TopicError(f"topic {topic!r} does not exist: run `kstreams topics create`")
        return failed

    def drop(self) -> None:
        self._producer.purge(blocking=False)
        del self._producer

    def _poll(self, timeout: float) -> None:
        """Serves log and reports; where the client has failed for good, it raises here, whatever is asked of it."""
        try:
            self._producer.poll(timeout)
        except ck.KafkaException as error:
            raise log_error(error.args[0], "serving the producer") from None

    def _call(self, call: Callable[[float], object], doing: str) -> None:
        """One call of the transactional API, in a thread of its own: not every one keeps its limit.

        librdkafka waits without end for positions to be added while it waits for a coordinator that no event announces.
        Such a thread is left behind with its producer.
        """
        outcome: list[ck.KafkaException | None] = []

        def run() -> None:
            try:
                call(self._limit)
                outcome.append(None)
            except ck.KafkaException as error:
                outcome.append(error)

        thread = threading.Thread(target=run, name=doing, daemon=True)
        thread.start()
        deadline = time.monotonic() + self._limit + CALL_GRACE_SECONDS
        with suppress(LogError):  # the call itself will say so
            self._drain(deadline, thread.is_alive)  # while positions are added, what is queued is sent
        thread.join(max(0.0, deadline - time.monotonic()))
        if not outcome:
            raise OutcomeUnknown(f"{doing}: the client did not return within its own limit of {self._limit:g} s")
        if (failure := outcome[0]) is not None:
            leaf = log_error(failure.args[0], doing)
            if not isinstance(leaf, Fenced):
                self._poll(0)  # serves the reports of deliveries that failed
                self._raise_mistakes()
            raise leaf from None


def gone(client: ck.Producer | ck.Consumer, topic: str, limit: float) -> bool:
    """Whether the cluster has no such topic: a client may go on for long with one that was deleted."""
    try:
        found = client.list_topics(topic, limit).topics[topic]
    except ck.KafkaException:
        return False
    return found.error is not None and found.error.code() == E.UNKNOWN_TOPIC_OR_PART


def too_large(topic: str, size: int = 0) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record for topic {topic!r} {f'({size} bytes) ' if size else ''}is larger than it takes: raise the topic's "
        "max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record (or KSTREAMS_KAFKA__BATCH_SIZE) "
        "smaller"
    )


def _partitions(positions: Positions) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]


class KafkaConsumer:
    """delivery.Consumer on a real cluster: a static member of a classic group.

    `holder` tells the member id that has the seat of this name in the group now, None if nobody has.
    """

    def __init__(
        self, settings: Mapping[str, Any], limit: float, start: str, holder: Callable[[str, str], str | None]
    ) -> None:
        self.ends: Positions = {}
        self._settings = settings
        self._limit = limit
        self._start = start
        self._holder = holder
        self._seat = settings["group.instance.id"]
        self._member = ""
        """By which the group knew this consumer at its last assignment."""
        self._insisted = False
        self._topics: list[str] = []
        self._assigned: Callable[[set[TopicPartition]], None]
        self._revoked: Callable[[], None]
        self._connect()

    def _connect(self) -> None:
        self._log = ClientLog("consumer")
        self._paused: frozenset[TopicPartition] = frozenset()
        self._committed_since = False
        self._rebalances = 0
        self._consumer = made(ck.Consumer, {**self._settings, "error_cb": self._log.on_error}, self._log)

    def subscribe(
        self, topics: Collection[str], assigned: Callable[[set[TopicPartition]], None], revoked: Callable[[], None]
    ) -> None:
        self._topics, self._assigned, self._revoked = sorted(topics), assigned, revoked
        self._join()

    def _join(self) -> None:
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )

    def _rejoin(self) -> None:
        """Takes the seat with a new member."""
        self._connect()
        if self._topics:
            self._revoked()
            self._join()

    def _on_assign(self, _: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
        self._rebalances += 1
        self._member = self._consumer.memberid()
        self._assigned({TopicPartition(p.topic, p.partition) for p in partitions})

    def _on_revoke(self, _: ck.Consumer, __: list[ck.TopicPartition]) -> None:
        self._rebalances += 1
        self._revoked()

    def assign(self, positions: Positions) -> None:
        self._paused = frozenset()
        self.ends.clear()
        self._consumer.assign(_partitions(positions))

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        committed, self._committed_since = self._committed_since, False  # what a callback commits counts next time too
        try:
            found = self._consumer.consume(1, timeout) if timeout else []
            if (found or not timeout) and len(found) < limit:
                before = self._rebalances
                more = self._consumer.consume(limit - len(found), 0)
                # what came before a rebalance is no longer ours, or will be read again from the committed position
                found = found + more if self._rebalances == before else more
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "reading") from None
        if self._log.coordinator_lost:
            self._log.coordinator_lost = False
            if committed or self._committed_since:
                # as a late EndTxn ends a later transaction, a late commit would put the group back; the broker refuses
                # it once this seat has a new member
                logger.warning("%s: a commit of positions may come late: taking the seat anew", self._seat)
                self._rejoin()
                return []
        if (seen := self._log.error) is not None:
            self._raise_if_serious(seen)
            self._log.error = None
        messages: list[Any] = [m for m in found if m.error() is None]
        if len(messages) < len(found):
            for m in found:
                if m.error() is not None:
                    self._event(m)
        return messages

    def _event(self, m: Any) -> None:
        error: ck.KafkaError = m.error()
        if error.code() == E._PARTITION_EOF:
            self.ends[TopicPartition(m.topic(), m.partition())] = m.offset()
        elif error.code() in (E._AUTO_OFFSET_RESET, E.OFFSET_OUT_OF_RANGE):
            raise InputLost(
                f"{m.topic()}[{m.partition()}]: the records at the committed position were deleted before they were "
                f"read ({error.str()}): set the group's position on purpose (kafka-consumer-groups --reset-offsets)"
            )
        else:
            self._raise_if_serious(error)

    def _raise_if_serious(self, error: ck.KafkaError) -> None:
        if error.code() in REFUSED:
            raise BrokerUnavailable(f"the broker refuses the credentials: {error.str()}")
        if error.fatal() or error.code() in FENCED | {E._FATAL}:
            raise self._log_error(error, "reading")
        if error.code() in (E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_PARTITION, E._UNKNOWN_TOPIC):
            for topic in self._topics:
                if gone(self._consumer, topic, self._limit):
                    raise TopicError(f"topic {topic!r} does not exist (any more): run `kstreams topics create`")
        logger.info("reading: %s (%s); the client retries", error.str(), error.name())

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        try:
            found = self._consumer.committed([ck.TopicPartition(*tp) for tp in partitions], self._limit)
            for p in found:
                if p.error is not None:
                    raise self._log_error(p.error, f"reading the committed position of {p.topic}[{p.partition}]")
            positions = {TopicPartition(p.topic, p.partition): p.offset for p in found}
            starts: Positions = {}
            for tp in [tp for tp, offset in positions.items() if offset < 0]:
                low, stable = self._consumer.get_watermark_offsets(ck.TopicPartition(*tp), self._limit)
                starts[tp] = low if self._start == "earliest" else stable
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "reading committed positions") from None
        if starts and self._start == "latest":
            self.commit(starts)  # or a crash before the first commit would skip what came meanwhile
        return positions | starts

    def commit(self, positions: Positions) -> None:
        self._committed_since = True
        try:
            for p in self._consumer.commit(offsets=_partitions(positions), asynchronous=False) or []:
                if p.error is not None:
                    raise self._log_error(p.error, f"committing the position of {p.topic}[{p.partition}]")
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "committing positions") from None

    def hold_seat(self) -> None:
        mine, holds = self._consumer.memberid(), self._holds_seat()
        if holds is False:
            self._serve_log()
            if mine or self._log.fenced:
                raise self._replaced()
        if not holds:
            raise Retriable(f"{self._seat} is no member of its group at this moment")

    def _holds_seat(self) -> bool | None:
        """Whether the seat is this consumer's, by its member id of now or the last one; None if nobody has it."""
        held = self._holder(self._settings["group.id"], self._seat)
        return held in (self._consumer.memberid(), self._member) if held else None

    def _log_error(self, error: ck.KafkaError, doing: str) -> Exception:
        """As for a producer, but that fencing is about the seat."""
        self._serve_log()
        if error.code() == E.FENCED_INSTANCE_ID or SEAT_LOST in error.str() or self._log.fenced:
            return self._fenced(doing)
        return log_error(error, doing)

    def _serve_log(self) -> None:
        """Only the log tells the reason of a fatal error again, and fencing to a client that has no member id."""
        self._consumer.consume(1, 0)

    def _fenced(self, doing: str) -> Exception:
        """Replaced if the group says that another member has the seat; else takes the seat with a new client.

        librdkafka #3437: a client whose session has timed out forgets its member id, and goes on with heartbeats until
        its rebalance is served; a coordinator that still knows the member takes an empty id for another's. And one that
        died before it wrote a new member down has a successor that knows only who had the seat before.
        """
        if self._holds_seat() is False:
            if self._member or self._insisted:
                return self._replaced()
            self._insisted = True
        logger.warning("%s: fenced, but no other worker has taken the seat: taking it anew", self._seat)
        self._rejoin()
        return Abortable(f"{doing}: this client is no member of its group any more")

    def _replaced(self) -> Replaced:
        return Replaced(f"another worker has taken the slot of {self._seat} over; this one ends")

    def group_metadata(self) -> object:
        return self._consumer.consumer_group_metadata()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        wanted = frozenset(partitions)
        if wanted != self._paused:
            self._consumer.pause([ck.TopicPartition(*tp) for tp in wanted - self._paused])
            self._consumer.resume([ck.TopicPartition(*tp) for tp in self._paused - wanted])
            self._paused = wanted

    def close(self) -> None:
        del self._consumer  # its close() calls back, and deadlocks in the middle of a rebalance; this does neither
