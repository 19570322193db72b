"""A real cluster through confluent-kafka: sets up its clients, and decides which client makes which request."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import BrokerUnavailable, Fatal, NotAuthorized, Retriable
from kstreams_py.kafka.administration import GroupAdmin, connection
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.contracts import Consumer, ProducerMode, TopicInfo
from kstreams_py.kafka.credentials.sign_in import SignIn
from kstreams_py.kafka.errors import ClientLog, warn_if_untested
from kstreams_py.kafka.group_description import GroupReader
from kstreams_py.kafka.groups import POSITIONS_TOPIC, GroupOffsets, Pending, positions_partition
from kstreams_py.kafka.membership import Holder
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.kafka.reader import ENDS_SECONDS, Reader
from kstreams_py.kafka.topic_admin import TopicAdmin
from kstreams_py.kafka.topics import no_such_topic
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.settings import Settings

logger = logging.getLogger(__name__)


BATCH_BYTES = 1_000_000
"""The client's default limit, in bytes, for a batch; a topic refuses batches larger than its max.message.bytes."""


ASSIGNMENT_SECONDS: Final = 3.0
"""Seconds that a join waits for its group's assignments: a cluster without groups first creates a topic for them."""

LOOK_UP_SECONDS: Final = 10.0
"""Limit, in seconds, of the request for a partition's transactions; a worker notices no stop during the request."""

OPEN_SECONDS: Final = 1.0
"""Seconds that a transaction has to be open before its coordinator is asked about it."""

LEAVE_SECONDS: Final = 4.0
"""Seconds for which a stopping worker tries to leave its group; its supervisor waits for drain_timeout_ms plus 5 s."""


class _Reading:
    """Reads partitions without a group."""

    _topics: TopicAdmin
    _reader: Reader
    _uncommitted: Reader

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        return self._reader.starts(partitions, since)

    def ends(self, partitions: Collection[TopicPartition], *, committed: bool = True) -> Positions:
        return (self._reader if committed else self._uncommitted).ends(partitions)

    def newest(self, partition: TopicPartition) -> Message | None:
        return self._reader.newest(partition)

    def read(
        self, partition: TopicPartition, start: int = 0, limit: int | None = None, *, committed: bool = True
    ) -> Sequence[Message]:
        return (self._reader if committed else self._uncommitted).read(partition, start, limit)


class KafkaCluster(_Reading):
    """kafka.contracts.Cluster on a real cluster."""

    def __init__(self, settings: Settings, name: str = "", *, patient: bool = False) -> None:
        """Makes no client yet.

        - `name`: the name of another cluster, for errors; "" for the cluster of the inputs.
        - `patient`: a request for offsets of partitions may take `request_timeout_ms`, like any other request.
          Otherwise it may take ENDS_SECONDS (reader.py), because a worker has to stop within `drain_timeout_ms`.
        """
        if settings.leave_on_stop:
            connection(settings)  # raises now, not at the stop, if the settings let no worker leave its group
        self._settings = settings
        self._patient = patient
        self._others: dict[str, KafkaCluster] = {}
        self._lock = threading.Lock()
        """Held while another cluster is opened: workers of several processors may ask for the cluster concurrently."""
        self._keepers = 0  # see _count_keepers
        self._limit = settings.request_timeout_ms / 1000
        servers = settings.bootstrap_servers
        self._place = f"cluster {name!r} at {servers}" if name else f"the broker at {servers}"
        self._common = {
            "bootstrap.servers": settings.bootstrap_servers,
            "socket.timeout.ms": min(10_000, settings.transaction_timeout_ms),
            "log_level": 6,
            # measured: a transaction right after another is refused until the markers of the first are written, and the
            # client retries after this time, doubled at each attempt; with the default of 100, each took 120 ms
            "retry.backoff.ms": 2,
            # reconnects within a second to a broker that returns, as Java's clients do; the default is ten
            "reconnect.backoff.max.ms": 1_000,
            # topics are checked at the start: a topic that was deleted is reported before a call times out
            "topic.metadata.propagation.max.ms": min(3_000, settings.transaction_timeout_ms // 3),
            "log.connection.close": True,
            # a worker serves metrics itself; the clients' own metrics for brokers (KIP-714) take 13 MB and 6 % of the
            # time of an idle worker of 20 processors (measured)
            "enable.metrics.push": False,
            **SignIn(settings.kafka).of_librdkafka(),
        }
        log = ClientLog("admin")
        self._groups = GroupReader(self._common, log)
        self._topics = TopicAdmin(self._common, self._limit, log, name)
        limits = self._limit, self._limit if patient else min(self._limit, ENDS_SECONDS)
        self._reader = Reader(self._of_consumers, *limits, self._topics.explain, self._last_of_batch)
        self._uncommitted = Reader(
            lambda: {**self._of_consumers(), "isolation.level": "read_uncommitted"},
            *limits,
            self._topics.explain,
            self._last_of_batch,
        )

    def close(self) -> None:
        """Ends the clients of the cluster's own requests; callers end their own consumers and producers."""
        for other in self._others.values():
            other.close()
        self._groups.close()
        self._topics.close()
        self._reader.close()
        self._uncommitted.close()

    def named(self, name: str) -> KafkaCluster:
        if not name:
            return self
        with self._lock:
            if name not in self._others:
                self._others[name] = KafkaCluster(self._settings.of_cluster(name), name, patient=self._patient)
            return self._others[name]

    def consumer(
        self, group: str, instance_id: str, *, commits: bool = False, joins: bool = False, pauses: bool = False
    ) -> KafkaConsumer:
        warn_if_untested()
        return KafkaConsumer(
            {
                # measured: the client's default backoff of 1 s slows a reader sevenfold
                "fetch.queue.backoff.ms": 5,
                # a fetch from idle partitions delays the records of partitions that were assigned or resumed after it
                # was sent; measured: the fetches of 20 idle consumers take 0.7 % of a core with 500 ms, 1.8 % with 100
                "fetch.wait.max.ms": 100 if joins or pauses else 500,
                # a join needs a few records of each partition; records that it reads ahead of its other inputs wait
                "fetch.message.max.bytes": (1 if joins else 4) << 20,
                # for all partitions together: the client queues a whole answer, however much is queued already
                "fetch.max.bytes": (8 if joins else 16) << 20,
                "queued.min.messages": 500_000,
                "queued.max.messages.kbytes": (24 if joins else 48) << 10,
                # the client notices within this time that a topic was deleted or has grown; other clients keep the
                # default of five minutes: with auto.create.topics.enable, their requests would create the topic again
                "topic.metadata.refresh.interval.ms": 10_000,
                # members learn of a rebalance by a heartbeat; measured when a static member left: with heartbeats every
                # 3 s, its partitions moved after 2.9 s; with heartbeats every second, after 0.9 s
                "heartbeat.interval.ms": min(1_000, self._settings.session_timeout_ms // 3),
                **self._of_consumers(),
                # measured: if the coordinator has moved, a commit outside of transactions is sent to the old one every
                # 500 ms, for up to 30 s and without a heartbeat, before the client looks for the new one
                **({"retry.backoff.ms": 750} if commits else {}),
                "group.id": group,
                "group.instance.id": instance_id,
                "client.id": f"{instance_id}@{platform.node()}-{os.getpid()}",
                "partition.assignment.strategy": "range",
            },
            self._limit,
            self._holder,
            self._forget_old_assignment,
            self._settings.value_bytes_max,
            self._last_of_batch,
        )

    def _last_of_batch(self, partition: TopicPartition, first: int) -> int:
        return TransactionAdmin(self._settings, self._limit).last_of_batch(partition, first)

    def _forget_old_assignment(self, group: str, instance_id: str, topics: Collection[str]) -> None:
        """Removes the static member that a new one replaces, unless assignments have exactly the topics' partitions.

        A static member that returns gets its old assignment without a rebalance (KIP-345). As the group's leader,
        librdkafka does not compare assignments with the topics: partitions added meanwhile would have no member.
        """
        described = self._describe(group, ASSIGNMENT_SECONDS)
        members = described.members
        mine = next((m.member_id for m in members if m.group_instance_id == instance_id), None)
        if mine is None or described.state is not ck.ConsumerGroupState.STABLE:
            return  # a rebalance assigns all partitions
        assigned = {(p.topic, p.partition) for m in members if m.assignment for p in m.assignment.topic_partitions}
        if assigned != {(t.name, p) for t in self.topics(topics).values() for p in range(t.partitions)}:
            logger.info("%s: the inputs have changed: removing its old membership", instance_id)
            GroupAdmin(self._settings, min(self._limit, LEAVE_SECONDS)).remove(group, {instance_id: mine})

    def _holder(self, group: str, instance_id: str) -> Holder | None:
        """Returns the member that holds a static membership of a group."""
        described = self._describe(group, self._limit)
        stable, coordinator = described.state is ck.ConsumerGroupState.STABLE, described.coordinator.id
        return next(
            (
                Holder(m.member_id, m.client_id, m.host.lstrip("/"), stable, coordinator)
                for m in described.members
                if m.group_instance_id == instance_id
            ),
            None,
        )

    def _describe(self, group: str, limit: float) -> Any:
        try:
            return self._groups.describe(group, limit)
        except ck.KafkaException as error:
            raise self._topics.explain(error.args[0], group=group) from None
        except TimeoutError:
            raise Retriable(f"the coordinator of group {group!r} gives no answer within {limit:g} s") from None

    def leave(self, consumer: Consumer) -> bool:
        assert isinstance(consumer, KafkaConsumer)
        member, instance = consumer.member_id, consumer.instance_id
        if not member:
            # a static member learns its member id with its first assignment; without the id, the request could remove
            # its replacement
            logger.warning(
                "%s: it never had an assignment: its membership, if it has one, stays until its session times out, or "
                "until `kstreams slots release`",
                instance,
            )
            return False
        admin = GroupAdmin(self._settings, min(self._limit, LEAVE_SECONDS))
        return admin.remove(consumer.group, {instance: member})[instance]

    def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        return GroupAdmin(self._settings).offsets(group, partitions)

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        return GroupAdmin(self._settings).pending(group, partitions)

    def open_transactions(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        return GroupAdmin(self._settings, min(self._limit, LOOK_UP_SECONDS)).open_transactions(partition)

    def hanging(
        self, transactional_id: str, partitions: Collection[TopicPartition], group: str = ""
    ) -> dict[TopicPartition, OpenTransaction]:
        try:
            found = self._look(self._suspects(partitions, group))
        except BrokerUnavailable as error:
            raise Retriable(str(error)) from None
        except Fatal:
            if missing := [tp.topic for tp in partitions if not self._reader.count(tp.topic)]:
                raise no_such_topic(missing[0]) from None
            raise
        mine = {tp: [each for each in found[tp] if each.transactional_id == transactional_id] for tp in sorted(found)}
        return {tp: each[0] for tp, each in mine.items() if each and each[0].hangs}

    def _suspects(self, partitions: Collection[TopicPartition], group: str) -> set[TopicPartition]:
        """Returns the partitions where a transaction stays open, among these and the one with the group's offsets."""
        suspects = self._unstable(partitions)
        with contextlib.suppress(NotAuthorized):  # a group's offsets can be used without the right to see their topic
            if group and (count := self._count_keepers()):
                suspects |= self._unstable([TopicPartition(POSITIONS_TOPIC, positions_partition(group, count))])
        return suspects

    def _unstable(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Returns the partitions on which transactions stay open for OPEN_SECONDS; usually, they end sooner.

        Measured under load: asking the coordinators instead took a starting worker 10 s.
        """
        highs, deadline = self.ends(partitions, committed=False), time.monotonic() + OPEN_SECONDS
        while True:
            stable = self.ends(highs)
            highs = {tp: high for tp, high in highs.items() if stable[tp] < high}
            if not highs or time.monotonic() > deadline:
                return set(highs)
            time.sleep(0.02)

    def _count_keepers(self) -> int:
        """Returns the number of partitions of POSITIONS_TOPIC, which never changes; 0 before the first group."""
        self._keepers = self._keepers or self._reader.count(POSITIONS_TOPIC)
        return self._keepers

    def _look(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Sequence[OpenTransaction]]:
        """Returns the open transactions of partitions, without partitions that this user may not read."""
        if not partitions:
            return {}
        looked = TransactionAdmin(self._settings, min(self._limit, LOOK_UP_SECONDS)).look(partitions)
        for tp, reason in looked.refused.items():
            if not isinstance(reason, NotAuthorized):
                raise Retriable(f"looking for open transactions on {tp}: {reason}")
            logger.info("cannot tell which transactions are open on %s: %s", tp, reason)
        return looked.found

    def _of_consumers(self) -> dict[str, Any]:
        return {
            **self._common,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # set for the reader too, which joins no group: librdkafka refuses a max.poll.interval.ms below this
            "session.timeout.ms": self._settings.session_timeout_ms,
        }

    def producer(self, mode: ProducerMode, transactional_id: str, batch_bytes: int | None = None) -> KafkaProducer:
        settings: dict[str, Any] = {
            "batch.size": min(batch_bytes or BATCH_BYTES, BATCH_BYTES),
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 256 << 10,
            **self._common,
            "client.id": transactional_id,
            "partitioner": "murmur2_random",
            "delivery.report.only.error": not mode.reports,
            "acks": mode.acks,
            "enable.idempotence": mode.idempotent,
            # librdkafka #4953: if a batch is refused because the one before it was, an idempotent producer begins a new
            # epoch, and writes twice the batches of other partitions that were written but not acknowledged. A broker
            # accepts any sequence number from a producer that is new to a partition: if the first batch fails and a
            # second in flight is accepted, librdkafka reports both as written (measured: the first is lost).
            "max.in.flight": 1,
        }
        if mode.transactional:
            settings["transactional.id"] = transactional_id
            settings["transaction.timeout.ms"] = self._settings.transaction_timeout_ms
            # by default, librdkafka 2.16 drops the coordinator once all connections are lost, and never looks for it:
            # send_offsets_to_transaction does not return, and takes half a core (measured); a new producer bootstraps
            settings.setdefault("metadata.recovery.strategy", "none")
        else:
            # a record that expires would be lost, or written again behind later records
            settings["message.timeout.ms"] = 0
            if not (mode.idempotent or mode.may_repeat):
                settings["retries"] = 0
        return KafkaProducer(
            settings, self._limit, keeps_failed=not mode.may_repeat, reports=mode.reports, place=self._place
        )

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return self._topics.topics(names)

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        self._topics.create_topics(topics)

    def delete_topics(self, names: Collection[str]) -> None:
        self._topics.delete_topics(names)

    def grow(self, topic: str, partitions: int) -> None:
        self._topics.grow(topic, partitions)

    def truncate(self, partition: TopicPartition, before: int) -> None:
        self._topics.truncate(partition, before)

    def offsets_retention_minutes(self) -> int | None:
        return self._topics.offsets_retention_minutes()
