"""Kafka through confluent-kafka: the Log on a real cluster; client errors become the LogErrors of errors.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py import delivery
from kstreams_py.config import Settings
from kstreams_py.delivery import Durability, Promise, TopicInfo
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    Fatal,
    Fenced,
    InputLost,
    LogError,
    OutcomeUnknown,
    RecordTooLarge,
    Replaced,
    Retriable,
    SettingsError,
    TopicError,
)
from kstreams_py.record import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)

C = TypeVar("C")
E = ck.KafkaError  # codes that begin with an underscore are the client's own

_FENCED: Final = {
    E._FENCED,
    E.FENCED_INSTANCE_ID,
    E.PRODUCER_FENCED,
    E.INVALID_PRODUCER_EPOCH,
}
_SPENT: Final = {E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID, E._STATE, E.INVALID_TXN_STATE}
"""The broker has forgotten this producer (idle beyond transactional.id.expiration.ms), or the client its state."""

_REBALANCED: Final = {E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS}

_UNREACHABLE: Final = {E._TRANSPORT, E._ALL_BROKERS_DOWN, E._RESOLVE, E._TIMED_OUT}
_PASSING: Final = {
    E._TIMED_OUT_QUEUE,
    E._WAIT_COORD,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.CONCURRENT_TRANSACTIONS,
    E.UNSTABLE_OFFSET_COMMIT,
    E.REQUEST_TIMED_OUT,
    E.NETWORK_EXCEPTION,
    E.LEADER_NOT_AVAILABLE,
    E.NOT_LEADER_FOR_PARTITION,
}
_REFUSED: Final = {E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED, E._SSL}

_SEAT_LOST: Final = "fenced by other consumer"
"""The client's words for FENCED_INSTANCE_ID, whose code it keeps to itself: it reports a fatal error, no more."""

_TOO_LARGE: Final = {E.MSG_SIZE_TOO_LARGE, E.INVALID_MSG_SIZE, E.RECORD_LIST_TOO_LARGE}


def _log_error(error: ck.KafkaError, doing: str) -> LogError:
    """The leaf of LogError that says what a failed call's caller must do next."""
    text = f"{doing}: {error.str()} ({error.name()})"
    if error.code() in _FENCED:
        return Fenced(text)
    if error.code() in _SPENT:
        return OutcomeUnknown(text)
    if error.fatal():
        return Fatal(text)
    if error.txn_requires_abort() or error.code() in _REBALANCED:
        return Abortable(text)
    if error.retriable() or error.code() in _UNREACHABLE | _PASSING:
        return Retriable(text)
    return Fatal(text)


ABORT_FLUSH_SECONDS: Final = 5.0
"""How long an abort waits for what is on its way; a new producer does without."""


class _ClientLog(logging.Handler):
    """A client's log and errors, watched for what its calls do not say."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.tainted = False
        self.fenced = False
        self.error: ck.KafkaError | None = None
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "REQTMOUT" in text or ("FAIL" in text and "in state UP" in text):
            self.tainted = True
        if _SEAT_LOST in text:
            self.fenced = True
        logger.debug("%s", text)

    def on_error(self, error: ck.KafkaError) -> None:
        if self.error is None or not self.error.fatal():
            self.error = error


def _made(client: type[C], settings: Mapping[str, Any], log: _ClientLog) -> C:
    """A client of these settings. Raises SettingsError for those that librdkafka refuses, without their values."""
    try:
        return client(settings, logger=log.logger)  # type: ignore[call-arg]
    except ck.KafkaException as error:
        why = error.args[0].str()
        raise SettingsError(f"librdkafka refuses a setting of [kafka] or KSTREAMS_KAFKA__*: {why}") from None


class KafkaProducer:
    """delivery.Producer on a real cluster."""

    def __init__(self, settings: Mapping[str, Any], limit: float) -> None:
        self._log = _ClientLog("producer")
        self._failed: list[tuple[ck.KafkaError, str]] = []
        self._limit = limit
        configuration = {**settings, "error_cb": self._log.on_error, "on_delivery": self._delivered}
        self._producer = _made(ck.Producer, configuration, self._log)

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
                raise self._refused(error.args[0], outputs[done]) from None

    @staticmethod
    def _refused(error: ck.KafkaError, output: delivery.Output) -> Exception:
        if error.code() in _TOO_LARGE:
            return _too_large(output[0], len(output[1] or b""))
        return _log_error(error, f"writing to {output[0]}")

    def init_transactions(self) -> None:
        self._call(self._producer.init_transactions, "starting the producer")

    def begin_transaction(self) -> None:
        self._failed.clear()
        try:
            self._producer.begin_transaction()
        except ck.KafkaException as error:
            raise _log_error(error.args[0], "beginning a transaction") from None

    def send_offsets(self, positions: Positions, consumer: delivery.Consumer) -> None:
        assert isinstance(consumer, KafkaConsumer)
        metadata = consumer.group_metadata()
        self._call(
            lambda limit: self._producer.send_offsets_to_transaction(_partitions(positions), metadata, limit),
            "adding positions to the transaction",
        )

    def commit_transaction(self) -> None:
        try:
            self._call(self._producer.commit_transaction, "committing the transaction")
        except Retriable as error:
            raise OutcomeUnknown(str(error)) from None

    def abort_transaction(self) -> None:
        # librdkafka #4849: an abort must not race what is on its way, and what is purged in flight leaves a gap in the
        # sequence numbers, at which the next transaction of the same epoch would fail
        left = self._producer.flush(min(self._limit, ABORT_FLUSH_SECONDS))
        self._failed.clear()
        if left:
            raise OutcomeUnknown(f"{left} records were neither sent nor refused before the abort")
        try:
            self._call(self._producer.abort_transaction, "aborting the transaction")
        except (Retriable, Abortable) as error:
            raise OutcomeUnknown(str(error)) from None

    def flush(self) -> None:
        left = self._producer.flush(self._limit)
        failed = self._raise_mistakes()
        if failed:
            raise Abortable(f"writing to {failed[0][1]}: {failed[0][0].str()}")
        if left:
            raise Abortable(f"{left} records were not acknowledged within {self._limit:g} s")

    def _raise_mistakes(self) -> list[tuple[ck.KafkaError, str]]:
        """The deliveries that failed since the last call. Raises what a new attempt cannot mend, if there is one."""
        failed, self._failed = self._failed, []
        for error, topic in failed:
            if error.code() in _TOO_LARGE:
                raise _too_large(topic)
            if error.code() == E.UNKNOWN_TOPIC_OR_PART:
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
            raise _log_error(error.args[0], "serving the producer") from None

    def _call(self, call: Callable[[float], object], doing: str) -> None:
        try:
            call(self._limit)
        except ck.KafkaException as error:
            leaf = _log_error(error.args[0], doing)
            if not isinstance(leaf, Fenced):
                self._poll(0)  # serves the reports of deliveries that failed
                self._raise_mistakes()
            raise leaf from None


def _too_large(topic: str, size: int = 0) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record for topic {topic!r} {f'({size} bytes) ' if size else ''}is larger than it takes: raise the topic's "
        "max.message.bytes and KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record smaller"
    )


def _partitions(positions: Positions) -> list[ck.TopicPartition]:
    return [ck.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()]


class KafkaConsumer:
    """delivery.Consumer on a real cluster: a static member of a classic group."""

    def __init__(self, settings: Mapping[str, Any], limit: float, start: str) -> None:
        self.ends: Positions = {}
        self._log = _ClientLog("consumer")
        self._limit = limit
        self._start = start
        self._seat = settings["group.instance.id"]
        self._assigned: set[TopicPartition] = set()
        self._paused: frozenset[TopicPartition] = frozenset()
        self._closing = False
        self._consumer = _made(ck.Consumer, {**settings, "error_cb": self._log.on_error}, self._log)

    def subscribe(
        self, topics: Collection[str], assigned: Callable[[set[TopicPartition]], None], revoked: Callable[[], None]
    ) -> None:
        def on_assign(_: ck.Consumer, partitions: list[ck.TopicPartition]) -> None:
            if not self._closing:
                assigned({TopicPartition(p.topic, p.partition) for p in partitions})

        def on_revoke(_: ck.Consumer, __: list[ck.TopicPartition]) -> None:
            self._assigned = set()
            if not self._closing:
                revoked()

        self._consumer.subscribe(list(topics), on_assign=on_assign, on_revoke=on_revoke, on_lost=on_revoke)

    def assign(self, positions: Positions) -> None:
        self._assigned = set(positions)
        self._paused = frozenset()
        self.ends.clear()
        self._consumer.assign(_partitions(positions))

    def consume(self, limit: int, timeout: float) -> Sequence[Message]:
        try:
            found = self._consumer.consume(1, timeout) if timeout else []
            if (found or not timeout) and len(found) < limit:
                found += self._consumer.consume(limit - len(found), 0)
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "reading") from None
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
        elif error.code() in (E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_PARTITION, E._UNKNOWN_TOPIC):
            raise TopicError(f"topic {m.topic()!r} does not exist (any more): run `kstreams topics create`")
        else:
            self._raise_if_serious(error)

    def _raise_if_serious(self, error: ck.KafkaError) -> None:
        if error.code() in _REFUSED:
            raise BrokerUnavailable(f"the broker refuses the credentials: {error.str()}")
        if error.fatal() or error.code() in _FENCED | {E._FATAL}:
            raise self._log_error(error, "reading")
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
        try:
            for p in self._consumer.commit(offsets=_partitions(positions), asynchronous=False) or []:
                if p.error is not None:
                    raise self._log_error(p.error, f"committing the position of {p.topic}[{p.partition}]")
        except ck.KafkaException as error:
            raise self._log_error(error.args[0], "committing positions") from None

    def hold_seat(self) -> None:
        if self._assigned:
            self.commit(self.committed(self._assigned))

    def _log_error(self, error: ck.KafkaError, doing: str) -> Exception:
        """As for a producer, but that the group's word on a seat is final."""
        self._consumer.consume(1, 0)  # serves the log: after a fatal error, only there is its reason told again
        if error.code() == E.FENCED_INSTANCE_ID or _SEAT_LOST in error.str() or self._log.fenced:
            return Replaced(f"another worker has taken the slot of {self._seat} over; this one ends")
        return _log_error(error, doing)

    def group_metadata(self) -> object:
        return self._consumer.consumer_group_metadata()

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        wanted = frozenset(partitions)
        if wanted != self._paused:
            self._consumer.pause([ck.TopicPartition(*tp) for tp in wanted - self._paused])
            self._consumer.resume([ck.TopicPartition(*tp) for tp in self._paused - wanted])
            self._paused = wanted

    def close(self) -> None:
        self._closing = True
        self._consumer.close()


class KafkaLog:
    """delivery.Log on a real cluster."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._limit = settings.request_timeout_ms / 1000
        self._common = {
            "bootstrap.servers": settings.bootstrap_servers,
            "socket.timeout.ms": min(10_000, settings.transaction_timeout_ms),
            "log_level": 6,
            "log.connection.close": True,
            **settings.kafka,
        }
        self._client_log = _ClientLog("admin")
        self._admin_client: ck_admin.AdminClient | None = None
        self._reader: ck.Consumer | None = None

    def consumer(self, group: str, seat: str) -> KafkaConsumer:
        return KafkaConsumer(
            {
                # measured: the client's default back-off of 1 s throttles a reader sevenfold
                "fetch.queue.backoff.ms": 5,
                "fetch.message.max.bytes": 4 << 20,
                "queued.min.messages": 500_000,
                "queued.max.messages.kbytes": 64 << 10,
                "heartbeat.interval.ms": min(3_000, self._settings.session_timeout_ms // 3),
                **self._of_consumers(),
                "group.id": group,
                "group.instance.id": seat,
                "session.timeout.ms": self._settings.session_timeout_ms,
                "partition.assignment.strategy": "range",
            },
            self._limit,
            self._settings.auto_offset_reset,
        )

    def _of_consumers(self) -> dict[str, Any]:
        return {
            **self._common,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }

    def producer(self, promise: Promise, durability: Durability, transactional_id: str) -> KafkaProducer:
        settings: dict[str, Any] = {
            "linger.ms": 20,
            # topics are checked at the start: one that is gone must fail its transaction before the call times out
            "topic.metadata.propagation.max.ms": 3_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 << 10,
            **self._common,
            "client.id": transactional_id,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "acks": durability.acks,
            "enable.idempotence": promise.retries and durability is Durability.COMMITTED,
        }
        if promise.transactional:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = self._settings.transaction_timeout_ms
        if not promise.retries:
            settings["retries"] = 0
        return KafkaProducer(settings, self._limit)

    @property
    def _admin(self) -> ck_admin.AdminClient:
        if self._admin_client is None:
            configuration = {**self._common, "error_cb": self._client_log.on_error}
            self._admin_client = _made(ck_admin.AdminClient, configuration, self._client_log)
        return self._admin_client

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        if not names:
            return {}
        found: dict[str, TopicInfo] = {}
        described = self._admin.describe_topics(ck.TopicCollection(sorted(names)), request_timeout=self._limit)
        existing = {}
        for name, future in described.items():
            try:
                existing[name] = future.result()
            except ck.KafkaException as error:
                if error.args[0].code() != E.UNKNOWN_TOPIC_OR_PART:
                    raise self._unavailable(error.args[0]) from None
        if not existing:
            return {}
        resources = [ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, name) for name in existing]
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._limit).items():
            topic = existing[resource.name]
            found[resource.name] = TopicInfo(
                name=resource.name,
                topic_id=str(topic.topic_id),
                partitions=len(topic.partitions),
                replication=len(topic.partitions[0].replicas),
                settings={name: entry.value for name, entry in self._result(future).items()},
            )
        return found

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        wanted = [
            ck_admin.NewTopic(name, partitions, replication, config=dict(settings))
            for name, partitions, replication, settings in topics
        ]
        if not wanted:
            return
        for name, future in self._admin.create_topics(wanted, request_timeout=self._limit).items():
            try:
                future.result()
            except ck.KafkaException as error:
                code = error.args[0].code()
                if code in _UNREACHABLE or code in _REFUSED:
                    raise self._unavailable(error.args[0]) from None
                if code != E.TOPIC_ALREADY_EXISTS:
                    raise TopicError(f"topic {name!r} cannot be created: {error.args[0].str()}") from None

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        if not partitions:
            return {}
        futures = self._admin.list_offsets(
            {ck.TopicPartition(*tp): ck_admin.OffsetSpec.latest() for tp in partitions},
            isolation_level=ck.IsolationLevel.READ_COMMITTED,
            request_timeout=self._limit,
        )
        return {TopicPartition(p.topic, p.partition): self._result(future).offset for p, future in futures.items()}

    def newest(self, partition: TopicPartition) -> Message | None:
        if self._reader is None:
            self._reader = ck.Consumer(
                {**self._of_consumers(), "group.id": "unused"}, logger=_ClientLog("reader").logger
            )
        low, stable = self._reader.get_watermark_offsets(ck.TopicPartition(*partition), self._limit)
        window = 4  # a record and its marker are the usual tail
        while True:
            start = max(low, stable - window)
            last = self._last_between(partition, start, stable)
            if last is not None or start == low:
                return last
            window *= 8

    def _last_between(self, partition: TopicPartition, start: int, stable: int) -> Message | None:
        assert self._reader is not None
        last: Message | None = None
        if start >= stable:
            return None
        self._reader.assign([ck.TopicPartition(*partition, start)])
        deadline = time.monotonic() + self._limit
        try:
            while time.monotonic() < deadline:
                for m in self._reader.consume(1000, 0.05):
                    if m.error() is None:
                        last = m  # type: ignore[assignment]
                    elif m.error().code() == E._PARTITION_EOF:  # type: ignore[union-attr]
                        return last
                if last is not None and last.offset() + 1 >= stable:
                    return last
        finally:
            self._reader.unassign()
        raise Retriable(f"{partition} could not be read to its end within {self._limit:g} s")

    def truncate(self, partition: TopicPartition, before: int) -> None:
        for future in self._admin.delete_records([ck.TopicPartition(*partition, before)]).values():
            self._result(future)

    def _result(self, future: Any) -> Any:
        try:
            return future.result(self._limit)
        except ck.KafkaException as error:
            raise self._unavailable(error.args[0]) from None

    def _unavailable(self, error: ck.KafkaError) -> Exception:
        """A failed admin call, as the message a person needs."""
        self._admin.poll(0)
        cause = self._client_log.error
        address = self._settings.bootstrap_servers
        if cause is not None and cause.code() in _REFUSED:
            return BrokerUnavailable(
                f"the broker at {address} refuses the credentials ({cause.str()}): correct security.protocol, sasl.* "
                "or ssl.* under [kafka] or in KSTREAMS_KAFKA__*"
            )
        if error.code() in _UNREACHABLE:
            return BrokerUnavailable(
                f"no Kafka broker answers at {address}: start one (`kstreams broker start`) or correct "
                "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS"
            )
        return _log_error(error, f"asking the broker at {address}")
