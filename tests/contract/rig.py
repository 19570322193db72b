"""A Log under test: the one in memory or the one on a real broker, behind the same shorthands."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import confluent_kafka as ck

from kstreams_py.config import ClientSettings, Settings
from kstreams_py.delivery import PROMISES, Consumer, Durability, Guarantee, Log, Output, Producer
from kstreams_py.errors import Retriable
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.record import Message, Positions, TopicPartition
from kstreams_py.testing import MemoryLog
from kstreams_py.testing.memory_broker import Membership
from tests.system.harness import first_offset

Row = tuple[int, int, bytes | None]
"""Partition, offset, value."""

BOUND = 30.0
"""Seconds after which a condition that was waited for counts as failed."""


def until(done: Callable[[], bool]) -> None:
    """Waits for a condition, which polls by itself."""
    deadline = time.monotonic() + BOUND
    while not done():
        assert time.monotonic() < deadline, "waited in vain"


def row(m: Message) -> Row:
    return m.partition(), m.offset(), m.value()


def output(topic: str, value: bytes | None, key: bytes | None = None, partition: int = 0) -> Output:
    return (topic, value, key, partition, None, None, 0, None)


class Member:
    """A consumer in a group that starts at the committed positions, and keeps what happens to it."""

    def __init__(self, log: Log, consumer: Consumer, topics: Sequence[str]) -> None:
        self.events: list[object] = []
        self.rows: list[Row] = []
        self.consumer = consumer
        self._log = log
        self._assigned: set[TopicPartition] | None = None
        """What was assigned, until reading has started there."""
        consumer.subscribe(
            topics, self._on_assigned, lambda: self.events.append("revoked"), lambda: self.events.append("lost")
        )

    def _on_assigned(self, partitions: set[TopicPartition]) -> None:
        self.events.append(partitions)
        self._assigned = partitions

    def _starts_at_committed(self, partitions: set[TopicPartition]) -> bool:
        try:
            positions = self.consumer.committed(partitions)
            self.consumer.assign(self._log.starts(partitions - positions.keys()) | positions)
        except Retriable:  # the leader of a new partition may not know yet that it is
            return False
        return True

    def holds(self, *partitions: TopicPartition) -> bool:
        """Whether exactly these were assigned last."""
        return self.events[-1:] == [set(partitions)]

    def poll(self) -> Member:
        found = self.consumer.consume(100, 0.1)
        if (assigned := self._assigned) is not None:
            assert not found, "records between an assignment and its start"
            until(lambda: self._starts_at_committed(assigned))
            self._assigned = None
        self.rows += map(row, found)
        return self


def together(*members: tuple[Any, ...]) -> None:
    """Polls members, each given with partitions, until each holds just these."""

    def done() -> bool:
        holding = [member.poll().holds(*partitions) for member, *partitions in members]
        return all(holding)

    until(done)


class Rig:
    """A log under test, with fresh names, shorthands, and what the protocol has no call for."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []

    def uncommitted(self, topic: str) -> list[Row]:
        """What a read_uncommitted reader gets: records of open and aborted transactions too."""
        raise NotImplementedError

    def high_watermarks(self, topic: str) -> Positions:
        """The end of each partition, open transactions included."""
        raise NotImplementedError

    def no_member(self, group: str) -> object:
        """Group metadata that names neither member nor generation."""
        raise NotImplementedError

    def settle(self, topic: str) -> None:
        """Waits until no transaction is open: a broker writes its markers after it has answered the commit."""
        until(lambda: (ends := self.high_watermarks(topic)) == self.log.ends(list(ends)))

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.log.topics([topic])[topic].partitions)]

    def close(self) -> None:
        for producer in self._producers:
            producer.drop()
        for consumer in self._consumers:
            consumer.close()

    def name(self) -> str:
        return f"test-{uuid.uuid4().hex[:12]}"

    def topic(self, partitions: int = 1, **settings: str) -> str:
        name = self.name()
        self.log.create_topics([(name, partitions, 1, {k.replace("_", "."): v for k, v in settings.items()})])
        return name

    def consumer(self, group: str | None = None, seat: str = "seat") -> Consumer:
        self._consumers.append(self.log.consumer(group or self.name(), seat))
        return self._consumers[-1]

    def member(self, group: str, seat: str, *topics: str) -> Member:
        return Member(self.log, self.consumer(group, seat), topics)

    def plain(self, durability: Durability = Durability.COMMITTED) -> Producer:
        """A producer without transactions."""
        self._producers.append(self.log.producer(PROMISES[Guarantee.AT_LEAST_ONCE], durability, "plain"))
        return self._producers[-1]

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A producer that is ready to begin a transaction."""
        promise = PROMISES[Guarantee.EXACTLY_ONCE]
        producer = self.log.producer(promise, Durability.COMMITTED, transactional_id or self.name())
        self._producers.append(producer)
        producer.init_transactions()
        return producer

    def append(self, topic: str, *values: bytes | None, partition: int = 0) -> None:
        producer = self.plain()
        producer.write([output(topic, value, partition=partition) for value in values])
        producer.flush()

    def transaction(self, topic: str, *values: bytes, commits: bool = True) -> None:
        """A whole transaction on partition 0, with its marker."""
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
        """What a read_committed reader gets from every partition now, up to its end."""
        partitions = self.partitions(topic)
        ends = self.log.ends(partitions)
        consumer = self.consumer()
        consumer.assign(dict.fromkeys(partitions, start))
        found: list[Message] = []

        def read_out() -> bool:
            found.extend(consumer.consume(100, 0.1))
            return all(consumer.ends.get(tp, -1) >= end for tp, end in ends.items())

        until(read_out)
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def committed(self, topic: str) -> list[Row]:
        """What a read_committed reader gets once no transaction is open."""
        self.settle(topic)
        return list(map(row, self.messages(topic)))


class MemoryRig(Rig):
    """The log in memory."""

    def __init__(self) -> None:
        self._memory = MemoryLog()
        super().__init__(self._memory)

    def uncommitted(self, topic: str) -> list[Row]:
        return list(map(row, self._memory.records(topic, "read_uncommitted")))

    def high_watermarks(self, topic: str) -> Positions:
        ends = self.log.ends(self.partitions(topic))
        seen = self.uncommitted(topic)
        return {tp: max([end, *(o + 1 for n, o, _ in seen if n == tp.partition)]) for tp, end in ends.items()}

    def no_member(self, group: str) -> object:
        return Membership(group, "", 0, -1)


class KafkaRig(Rig):
    """The log on a real broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
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
            KafkaLog(
                Settings(
                    bootstrap_servers=bootstrap_servers,
                    request_timeout_ms=5_000,
                    session_timeout_ms=6_000,
                    transaction_timeout_ms=6_000,
                    kafka=ClientSettings({"fetch.wait.max.ms": 50}),
                )
            )
        )

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
            first_offset(reader, ck.TopicPartition(*tp))  # returns once the leader of a new partition knows that it is
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
