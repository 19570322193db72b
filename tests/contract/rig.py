"""The implementations of Cluster under test, in memory and on a real broker, with the same helper methods."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import Retriable
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.contracts import Cluster, Consumer, Output, Producer
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.settings import ClientSettings, Settings
from kstreams_py.testing import MemoryCluster
from kstreams_py.testing.memory_broker import GroupMetadata
from tests.clusters import open_cluster
from tests.system.harness import watermarks
from tests.waiting import wait_until

Row = tuple[int, int, bytes | None]
"""Partition, offset, value."""

MURMUR2: Final = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""The hashes of keys, from the tests of Kafka's own client."""


BOUND = 30.0
"""Seconds after which a condition that does not come true fails a test."""


def until(done: Callable[[], bool], *, pause: float = 0.0) -> None:
    """Waits until the condition is true. The condition itself polls, or `pause` is given."""
    wait_until(done, "what the test waits for", BOUND, pause=pause)


def row(m: Message) -> Row:
    return m.partition(), m.offset(), m.value()


def output(topic: str, value: bytes | None, key: bytes | None = None, partition: int = 0) -> Output:
    return (topic, value, key, partition, None, None, 0, None)


class Member:
    """A group member that starts at the committed offsets, and records its callbacks and records."""

    def __init__(self, cluster: Cluster, consumer: Consumer, topics: Sequence[str]) -> None:
        self.events: list[object] = []
        self.rows: list[Row] = []
        self.consumer = consumer
        self._cluster = cluster
        self._assigned: set[TopicPartition] | None = None
        """Assigned partitions that reading has not started on yet."""
        consumer.subscribe(
            topics, self._on_assigned, lambda: self.events.append("revoked"), lambda: self.events.append("lost")
        )

    def _on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(partitions)
        self._assigned = partitions

    def _can_start_at_committed(self, partitions: set[TopicPartition]) -> bool:
        try:
            positions = self.consumer.committed(partitions)
            self.consumer.assign(self._cluster.starts(partitions - positions.keys()) | positions)
        except Retriable:  # the leader of a new partition may not know it yet
            return False
        return True

    def holds(self, *partitions: TopicPartition) -> bool:
        """Whether the last callback assigned exactly these partitions."""
        return self.events[-1:] == [set(partitions)]

    def poll(self) -> Member:
        found = self.consumer.consume(100, 0.1)
        if (assigned := self._assigned) is not None:
            assert not found, "records were returned between the assignment and the start"
            until(lambda: self._can_start_at_committed(assigned))
            self._assigned = None
        self.rows += map(row, found)
        return self


def poll_until_held(*members: tuple[Any, ...]) -> None:
    """Polls members, each given as (member, *partitions), until each holds exactly these partitions."""

    def all_hold() -> bool:
        holding = [member.poll().holds(*partitions) for member, *partitions in members]
        return all(holding)

    until(all_hold)


class Rig:
    """A cluster under test, with unique names, helper methods, and reads that the protocol does not offer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []

    def uncommitted(self, topic: str) -> list[Row]:
        """The records that a read_uncommitted reader gets, including those of open and aborted transactions."""
        raise NotImplementedError

    def high_watermarks(self, topic: str) -> Positions:
        """The high watermark of each partition, which includes open transactions."""
        raise NotImplementedError

    def no_member(self, group: str) -> object:
        """Group metadata without a member and a generation."""
        raise NotImplementedError

    def settle(self, topic: str) -> None:
        """Waits until no transaction is open: a broker answers the commit before it has written the markers."""
        until(lambda: (ends := self.high_watermarks(topic)) == self.cluster.ends(list(ends)), pause=0.01)

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.cluster.topics([topic])[topic].partitions)]

    def close(self) -> None:
        for producer in self._producers:
            producer.drop()
        for consumer in self._consumers:
            consumer.close()

    def name(self) -> str:
        return f"test-{uuid.uuid4().hex[:12]}"

    def topic(self, partitions: int = 1, **settings: str) -> str:
        name = self.name()
        self.cluster.create_topics([(name, partitions, 1, {k.replace("_", "."): v for k, v in settings.items()})])
        return name

    def consumer(self, group: str | None = None, instance_id: str = "member") -> Consumer:
        self._consumers.append(self.cluster.consumer(group or self.name(), instance_id))
        return self._consumers[-1]

    def member(self, group: str, instance_id: str, *topics: str) -> Member:
        return Member(self.cluster, self.consumer(group, instance_id), topics)

    def plain(self, durability: Durability = Durability.COMMITTED) -> Producer:
        """Creates a producer without transactions."""
        self._producers.append(self.cluster.producer(producer_mode(Guarantee.AT_LEAST_ONCE, durability), "plain"))
        return self._producers[-1]

    def producer(self, transactional_id: str | None = None) -> Producer:
        """Creates a producer that is ready to begin a transaction."""
        mode = producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED)
        producer = self.cluster.producer(mode, transactional_id or self.name())
        self._producers.append(producer)
        producer.init_transactions()
        return producer

    def append(self, topic: str, *values: bytes | None, partition: int = 0) -> None:
        producer = self.plain()
        producer.write([output(topic, value, partition=partition) for value in values])
        producer.flush()

    def transaction(self, topic: str, *values: bytes, commits: bool = True) -> None:
        """Writes a whole transaction to partition 0, and waits for its marker."""
        producer = self.producer()
        producer.begin_transaction()
        producer.write([output(topic, value) for value in values])
        producer.flush()
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        self.settle(topic)

    def messages(self, topic: str, start: int = 0) -> list[Message]:
        """The records that a read_committed reader gets now from every partition, up to its end."""
        partitions = self.partitions(topic)
        ends = self.cluster.ends(partitions)
        consumer = self.consumer()
        consumer.assign(dict.fromkeys(partitions, start))
        found: list[Message] = []

        def read_out() -> bool:
            found.extend(consumer.consume(100, 0.1))
            return all(consumer.ends.get(tp, -1) >= end for tp, end in ends.items())

        until(read_out)
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def committed(self, topic: str) -> list[Row]:
        """The records that a read_committed reader gets once no transaction is open."""
        self.settle(topic)
        return list(map(row, self.messages(topic)))


class MemoryRig(Rig):
    """The cluster in memory."""

    def __init__(self) -> None:
        self._memory = MemoryCluster()
        super().__init__(self._memory)

    def uncommitted(self, topic: str) -> list[Row]:
        return list(map(row, self._memory.records(topic, "read_uncommitted")))

    def high_watermarks(self, topic: str) -> Positions:
        ends = self.cluster.ends(self.partitions(topic))
        seen = self.uncommitted(topic)
        return {tp: max([end, *(o + 1 for n, o, _ in seen if n == tp.partition)]) for tp, end in ends.items()}

    def no_member(self, group: str) -> object:
        return GroupMetadata(group, "", 0, -1)


class KafkaRig(Rig):
    """The cluster on a real broker."""

    def __init__(self, bootstrap_servers: str, way: tuple[str, Mapping[str, str]] | None = None) -> None:
        """`way` is the address of another listener, and how to sign in there; the rig itself uses the first."""
        self._bootstrap_servers = bootstrap_servers
        servers, kafka = way or (bootstrap_servers, {})
        self._reader = ck.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "unused",
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        super().__init__(
            open_cluster(
                Settings(
                    bootstrap_servers=servers,
                    request_timeout_ms=30_000,
                    session_timeout_ms=60_000,
                    transaction_timeout_ms=60_000,  # tests hold transactions open over slow requests
                    kafka=ClientSettings({"fetch.wait.max.ms": 50, **kafka}),
                )
            )
        )

    def consumer(self, group: str | None = None, instance_id: str = "member") -> Consumer:
        consumer = super().consumer(group, instance_id)
        assert isinstance(consumer, KafkaConsumer)
        consumer.patience = 30.0  # no test is about the limit of added offsets
        return consumer

    def uncommitted(self, topic: str) -> list[Row]:
        found: list[Row] = []
        ended: set[int] = set()
        numbers = {tp.partition for tp in self.partitions(topic)}

        def read_out() -> bool:
            for m in self._reader.consume(100, 0.1):
                error = m.error()
                if error is None:
                    found.append((m.partition() or 0, m.offset() or 0, m.value()))
                else:
                    assert error.code() == ck.KafkaError._PARTITION_EOF, error
                    ended.add(m.partition() or 0)
            return ended == numbers

        self._reader.assign([ck.TopicPartition(topic, number, 0) for number in numbers])
        until(read_out)
        self._reader.unassign()
        return sorted(found)

    def high_watermarks(self, topic: str) -> Positions:
        reader, partitions = self._reader, self.partitions(topic)
        for tp in partitions:
            watermarks(reader, ck.TopicPartition(*tp))  # returns once the leader knows the new partition
        return {tp: reader.get_watermark_offsets(ck.TopicPartition(*tp), 5.0)[1] for tp in partitions}

    def no_member(self, group: str) -> object:
        outsider = ck.Consumer({"bootstrap.servers": self._bootstrap_servers, "group.id": group})
        try:
            return outsider.consumer_group_metadata()
        finally:
            outsider.close()

    def close(self) -> None:
        super().close()
        self._reader.close()
