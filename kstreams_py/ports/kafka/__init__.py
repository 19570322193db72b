"""Kafka through confluent-kafka: the Log on a real cluster; client errors become the LogErrors of errors.py."""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py.config import Settings
from kstreams_py.delivery import Consumer, Durability, Promise, TopicInfo
from kstreams_py.errors import BrokerUnavailable, KStreamsError, NotAuthorized, Retriable, TopicError
from kstreams_py.groups import Pending
from kstreams_py.ports.kafka.clients import end, made
from kstreams_py.ports.kafka.consumer import Holder, KafkaConsumer
from kstreams_py.ports.kafka.errors import (
    STALE,
    UNAUTHENTICATED,
    UNREACHABLE,
    ClientLog,
    E,
    log_error,
    naming,
    warn_if_untested,
)
from kstreams_py.ports.kafka.groups import GroupAdmin, connection
from kstreams_py.ports.kafka.members import GroupReader
from kstreams_py.ports.kafka.producer import KafkaProducer
from kstreams_py.record import Message, Positions, TopicPartition

logger = logging.getLogger(__name__)


BATCH_BYTES = 1_000_000
"""The client's own limit of a batch; a topic with a lower max.message.bytes refuses batches larger than that."""


ENDS_SECONDS: Final = 5.0
"""How long the ends of partitions are asked for, three times: no request to a leader that is down goes to the next."""

UNKNOWN: Final = {E._UNKNOWN_PARTITION, E.UNKNOWN_TOPIC_OR_PART}

ASSIGNMENT_SECONDS: Final = 3.0
"""How long a start waits for its group's assignments: a cluster without any group first creates a topic for them."""

LEAVE_SECONDS: Final = 4.0
"""How long a worker that stops tries to leave its group; its supervisor waits 5 s longer than drain_timeout_ms."""


class KafkaLog:
    """delivery.Log on a real cluster."""

    def __init__(self, settings: Settings) -> None:
        if settings.leave_on_stop:
            connection(settings)  # raises now what would keep it from leaving when it stops
        self._settings = settings
        self._limit = settings.request_timeout_ms / 1000
        self._common = {
            "bootstrap.servers": settings.bootstrap_servers,
            "socket.timeout.ms": min(10_000, settings.transaction_timeout_ms),
            "log_level": 6,
            # measured: a transaction right after another is refused until the markers of the first are written, and the
            # client asks again after this time, then twice as long and so on; with the default of 100 each took 120 ms
            "retry.backoff.ms": 2,
            # a broker that is back is found again within a second, as Java's clients do; the default is ten
            "reconnect.backoff.max.ms": 1_000,
            # topics are checked at the start: one that is gone is told before a call times out
            "topic.metadata.propagation.max.ms": min(3_000, settings.transaction_timeout_ms // 3),
            "log.connection.close": True,
            **settings.kafka,
        }
        self._client_log = ClientLog("admin")
        self._groups = GroupReader(self._common, self._client_log)
        self._admin_clients: list[ck_admin.AdminClient] = []
        self._reading_clients: list[ck.Consumer] = []
        self._reading = threading.Lock()

    def close(self) -> None:
        """Ends the clients that ask and read; consumers and producers are their callers' to end."""
        end(self._admin_clients)
        end(self._reading_clients)

    def consumer(self, group: str, instance_id: str, *, commits: bool = False, joins: bool = False) -> KafkaConsumer:
        warn_if_untested()
        return KafkaConsumer(
            {
                # measured: the client's default back-off of 1 s throttles a reader sevenfold
                "fetch.queue.backoff.ms": 5,
                # a fetch from idle partitions holds up the records of those that were assigned after it was sent
                "fetch.wait.max.ms": 100,
                # a join gets on with a little of each partition; what it reads ahead of the others has to wait
                "fetch.message.max.bytes": (1 if joins else 4) << 20,
                # of all partitions together: an answer comes whole, whatever waits already
                "fetch.max.bytes": (8 if joins else 16) << 20,
                "queued.min.messages": 500_000,
                "queued.max.messages.kbytes": (24 if joins else 48) << 10,
                # a topic that was deleted, or that got more partitions, is seen so soon; the default, five minutes,
                # is left to other clients: where brokers create topics by themselves, their asking brings one back
                "topic.metadata.refresh.interval.ms": 10_000,
                # members learn of a rebalance by a heartbeat; measured when a static member left: with 3 s between two
                # its partitions moved after 2.9 s, with 1 s after 0.9
                "heartbeat.interval.ms": min(1_000, self._settings.session_timeout_ms // 3),
                **self._of_consumers(),
                # measured: a plain commit that meets a coordinator's move is sent again before the client looks for the
                # new one, every 500 ms and for up to 30 s, without a heartbeat; transactions have no such request
                **({"retry.backoff.ms": 750} if commits else {}),
                "group.id": group,
                "group.instance.id": instance_id,
                "client.id": f"{instance_id}@{platform.node()}-{os.getpid()}",
                "partition.assignment.strategy": "range",
            },
            self._limit,
            self._holder,
            self._forget_old_assignment,
        )

    def _forget_old_assignment(self, group: str, seat: str, topics: Collection[str]) -> None:
        """Removes the static member that a new one would replace, if the group's assignments are not of these topics.

        A static member that comes back is given its old assignment, without a rebalance (KIP-345), and librdkafka as
        the group's leader does not compare: partitions that were added meanwhile would belong to nobody.
        """
        described = self._describe(group, ASSIGNMENT_SECONDS)
        members = described.members
        mine = next((m.member_id for m in members if m.group_instance_id == seat), None)
        if mine is None or described.state is not ck.ConsumerGroupState.STABLE:
            return  # a rebalance deals all partitions
        assigned = {(p.topic, p.partition) for m in members if m.assignment for p in m.assignment.topic_partitions}
        if assigned != {(t.name, p) for t in self.topics(topics).values() for p in range(t.partitions)}:
            logger.info("%s: the inputs have changed: its old membership is given up", seat)
            GroupAdmin(self._settings, min(self._limit, LEAVE_SECONDS)).remove(group, {seat: mine})

    def _holder(self, group: str, seat: str) -> Holder | None:
        """The member that holds a static membership of a group."""
        members = self._describe(group, self._limit).members
        return next(
            (Holder(m.member_id, m.client_id, m.host.lstrip("/")) for m in members if m.group_instance_id == seat), None
        )

    def _describe(self, group: str, limit: float) -> Any:
        try:
            return self._groups.describe(group, limit)
        except ck.KafkaException as error:
            raise self._unavailable(error.args[0], group=group) from None
        except TimeoutError:
            raise Retriable(f"the coordinator of group {group!r} gives no answer within {limit:g} s") from None

    def leave(self, consumer: Consumer) -> bool:
        assert isinstance(consumer, KafkaConsumer)
        member, instance = consumer._member, consumer._seat
        if not member:
            # the coordinator tells a static member its id with its first assignment; without it, the membership could
            # be that of a replacement
            logger.warning(
                "%s: it never had an assignment: its membership, if it has one, stays until its session times out, or "
                "until `kstreams slots release`",
                instance,
            )
            return False
        admin = GroupAdmin(self._settings, min(self._limit, LEAVE_SECONDS))
        return admin.remove(consumer._settings["group.id"], {instance: member})[instance]

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        return GroupAdmin(self._settings).pending(group, partitions)

    def _of_consumers(self) -> dict[str, Any]:
        return {
            **self._common,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # of the reader too, which joins nothing: librdkafka refuses a max.poll.interval.ms below it
            "session.timeout.ms": self._settings.session_timeout_ms,
        }

    def producer(
        self, promise: Promise, durability: Durability, transactional_id: str, batch_bytes: int | None = None
    ) -> KafkaProducer:
        settings: dict[str, Any] = {
            "batch.size": min(batch_bytes or BATCH_BYTES, BATCH_BYTES),
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 << 10,
            **self._common,
            "client.id": transactional_id,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "acks": durability.acks,
            "enable.idempotence": durability is Durability.COMMITTED,
            # librdkafka #4953: a batch that is refused because one before it was makes an idempotent producer begin a
            # new epoch, in which batches of others are doubled if they were written and wait to be sent again.
            # A broker takes any sequence number from a producer that is new to a partition: were the first batch to
            # fail and the second, on its way already, to be taken, librdkafka would report both (measured: lost).
            "max.in.flight": 1,
        }
        if promise.transactional:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = self._settings.transaction_timeout_ms
        else:
            settings["message.timeout.ms"] = 0  # what expires would be lost, or written again behind later records
            if durability is not Durability.COMMITTED and not promise.may_repeat:
                settings["retries"] = 0
        return KafkaProducer(settings, self._limit, keeps_failed=not promise.may_repeat)

    @property
    def _admin(self) -> ck_admin.AdminClient:
        client = next(iter(self._admin_clients), None)
        if client is None:
            client = made(
                ck_admin.AdminClient, {**self._common, "error_cb": self._client_log.on_error}, self._client_log
            )
            self._admin_clients.append(client)
        return client

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        if not names:
            return {}
        described = self._admin.describe_topics(ck.TopicCollection(sorted(names)), request_timeout=self._limit)
        existing = self._known(described)
        if not existing:
            return {}
        resources = [ck_admin.ConfigResource(ck_admin.ResourceType.TOPIC, name) for name in existing]
        configs = self._admin.describe_configs(resources, request_timeout=self._limit)
        settings = self._known({resource.name: future for resource, future in configs.items()})
        return {
            name: TopicInfo(
                name=name,
                topic_id=str(existing[name].topic_id),
                partitions=len(existing[name].partitions),
                replication=len(existing[name].partitions[0].replicas),
                settings={setting: entry.value for setting, entry in entries.items()},
            )
            for name, entries in settings.items()
        }

    def _known(self, futures: Mapping[str, Any]) -> dict[str, Any]:
        """The results, but for topics that the broker asked does not know (yet): brokers learn one after the other."""
        results = {}
        for name, future in futures.items():
            try:
                results[name] = future.result()
            except ck.KafkaException as error:
                if error.args[0].code() != E.UNKNOWN_TOPIC_OR_PART:
                    raise self._unavailable(error.args[0], topics=[name]) from None
        return results

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
                failure = self._unavailable(error.args[0], topics=[name])
                if code in UNREACHABLE or code in UNAUTHENTICATED or isinstance(failure, NotAuthorized):
                    raise failure from None
                if code != E.TOPIC_ALREADY_EXISTS:
                    raise TopicError(f"topic {name!r} cannot be created: {error.args[0].str()}") from None
        names, deadline = {topic.topic for topic in wanted}, time.monotonic() + self._limit
        while len(self.topics(names)) < len(names):  # the brokers learn of them one after the other
            if time.monotonic() > deadline:
                raise TopicError(
                    f"topics {', '.join(sorted(names))} were created and cannot be seen: see the broker's log"
                )
            time.sleep(0.02)

    def starts(self, partitions: Collection[TopicPartition]) -> Positions:
        return self._offsets(partitions, ck.OFFSET_BEGINNING)

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        return self._offsets(partitions, ck.OFFSET_END)

    def _offsets(self, partitions: Collection[TopicPartition], which: int) -> Positions:
        if not partitions:
            return {}
        # not of the admin client: that one connects to a leader that is down thousands of times a second (measured: a
        # whole processor), and does not ask for its successor
        asked = [ck.TopicPartition(*tp, which) for tp in partitions]
        deadline = time.monotonic() + min(self._limit, ENDS_SECONDS)
        while True:
            try:
                found = self._reader.offsets_for_times(asked, ENDS_SECONDS / 3)
                if (failure := next((p.error for p in found if p.error is not None), None)) is None:
                    return {TopicPartition(p.topic, p.partition): p.offset for p in found}
            except ck.KafkaException as error:
                failure = error.args[0]
            if time.monotonic() > deadline:
                raise self._unavailable(failure, topics=[tp.topic for tp in partitions])
            with suppress(ck.KafkaException):
                for topic in {tp.topic for tp in partitions}:
                    self._reader.list_topics(topic, ENDS_SECONDS / 3)  # or it goes on asking the leaders that it knows
            time.sleep(0.05)

    @property
    def _reader(self) -> ck.Consumer:
        client = next(iter(self._reading_clients), None)
        if client is None:
            configuration = {**self._of_consumers(), "group.id": "unused", "fetch.wait.max.ms": 10}
            client = made(ck.Consumer, configuration, ClientLog("reader"))
            self._reading_clients.append(client)
        return client

    def newest(self, partition: TopicPartition) -> Message | None:
        try:
            with self._reading:  # the processors of a slot share the log, and each is a thread
                low, stable = self._watermarks(partition)
                window = 4  # a record and its marker are the usual tail
                while True:
                    start = max(low, stable - window)
                    found = self._between(partition, start, stable)
                    if found or start == low:
                        return found[-1] if found else None
                    window *= 8
        except ck.KafkaException as error:
            doing = naming(f"reading the newest record of {partition}", error.args[0], topics=[partition.topic])
            raise log_error(error.args[0], doing) from None

    def read(self, partition: TopicPartition) -> Sequence[Message]:
        try:
            with self._reading:
                low, stable = self._watermarks(partition)
                return self._between(partition, low, stable)
        except ck.KafkaException as error:
            doing = naming(f"reading {partition}", error.args[0], topics=[partition.topic])
            raise log_error(error.args[0], doing) from None

    def _watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """The first and the last stable offset; the reader may not know a partition that was just added."""
        deadline = time.monotonic() + self._limit
        while True:
            try:
                low, stable = self._reader.get_watermark_offsets(ck.TopicPartition(*partition), self._limit)
            except ck.KafkaException as error:
                if error.args[0].code() not in UNKNOWN or time.monotonic() > deadline:
                    raise
                self._reader.list_topics(partition.topic, self._limit)
                time.sleep(0.05)
            else:
                return low, stable

    def _between(self, partition: TopicPartition, start: int, stable: int) -> list[Message]:
        """The committed records between two offsets."""
        found: list[Any] = []
        if start >= stable:
            return found
        reader = self._reader
        reader.assign([ck.TopicPartition(*partition, start)])
        deadline = time.monotonic() + self._limit
        try:
            while time.monotonic() < deadline:
                for m in reader.consume(1000, 0.05):
                    if (error := m.error()) is None:
                        found.append(m)
                    elif error.code() == E._PARTITION_EOF:
                        return found
                    elif isinstance(failure := log_error(error, f"reading topic {partition.topic!r}"), NotAuthorized):
                        raise failure  # no time-out, after which it would be asked again for ever
                if found and found[-1].offset() + 1 >= stable:
                    return found
        finally:
            reader.unassign()
        raise Retriable(f"{partition} could not be read to its end within {self._limit:g} s")

    def grow(self, topic: str, partitions: int) -> None:
        for future in self._admin.create_partitions(
            [ck_admin.NewPartitions(topic, partitions)], request_timeout=self._limit
        ).values():
            self._result(future, topics=[topic])
        logger.info("topic %r has %d partitions now", topic, partitions)

    def offsets_retention_minutes(self) -> int | None:
        try:
            brokers = self._admin.list_topics(timeout=self._limit).brokers
            resource = ck_admin.ConfigResource(ck_admin.ResourceType.BROKER, str(min(brokers)))
            (described,) = self._admin.describe_configs([resource], request_timeout=self._limit).values()
            return int(self._result(described)["offsets.retention.minutes"].value)
        except (ck.KafkaException, KStreamsError, KeyError, ValueError) as error:
            logger.info("offsets.retention.minutes is not known: %s", error)
            return None

    def truncate(self, partition: TopicPartition, before: int) -> None:
        deleted = self._admin.delete_records([ck.TopicPartition(*partition, before)], request_timeout=self._limit)
        for future in deleted.values():
            self._result(future, topics=[partition.topic])

    def _result(self, future: Any, *, topics: Collection[str] = ()) -> Any:
        try:
            return future.result(self._limit + 1)  # the request's own limit comes first, and says why
        except ck.KafkaException as error:
            raise self._unavailable(error.args[0], topics=topics) from None
        except TimeoutError:
            raise Retriable(f"no answer from {self._settings.bootstrap_servers} within {self._limit:g} s") from None

    def _unavailable(self, error: ck.KafkaError, *, topics: Collection[str] = (), group: str = "") -> Exception:
        """A failed admin call, as the message a person needs."""
        if error.code() in STALE:
            end(self._admin_clients)  # it asks by the leaders that it knows, and does not learn of new ones from this
            return log_error(error, "asking a broker that no longer leads")
        self._admin.poll(0)
        cause = self._client_log.error
        address = self._settings.bootstrap_servers
        if cause is not None and cause.code() in UNAUTHENTICATED:
            return BrokerUnavailable(
                f"the broker at {address} refuses the credentials ({cause.str()}): correct security.protocol, sasl.* "
                "or ssl.* under [kafka] or in KSTREAMS_KAFKA__*"
            )
        if error.code() in UNREACHABLE:
            return BrokerUnavailable(
                f"no Kafka broker answers at {address}: start one (`kstreams broker start`), correct "
                "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS, or, if it wants credentials, set security.protocol "
                "and sasl.* under [kafka] or in KSTREAMS_KAFKA__*"
            )
        return log_error(error, naming(f"asking the broker at {address}", error, topics=topics, group=group))
