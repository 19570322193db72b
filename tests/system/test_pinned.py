"""Committed offsets that a hanging transaction pins (docs/exactly-once.md): cause, transaction, remedy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import Retriable
from kstreams_py.kafka.administration import GroupAdmin, import_kafka
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.groups import Pending
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.records import TopicPartition
from tests.system.harness import Cluster, wait_until

TIMEOUT_MS = 60_000


@contextmanager
def admin(bootstrap_servers: str) -> Iterator[Any]:
    """A client of kafka-python."""
    import_kafka()
    from kafka import KafkaAdminClient  # noqa: PLC0415

    client = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        yield client
    finally:
        client.close()


class Work:
    """A transactional producer that writes to a topic, and commits an offset of a group in the same transaction."""

    def __init__(self, cluster: Cluster, name: str, group: str = "") -> None:
        self._cluster = cluster
        self.group, self.source, self.target = group or f"{name}.group", f"{name}.in", f"{name}.out"
        self.id = f"{name}.id"
        cluster.create(self.source, self.target)
        cluster.partitions(self.target)
        self._reader = ck.Consumer(
            {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "group.id": self.group}
        )

    @property
    def input(self) -> TopicPartition:
        return TopicPartition(self.source, 0)

    def producer(self) -> ck.Producer:
        """Creates a producer that is ready to begin a transaction."""
        settings = {"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0}
        producer = ck.Producer({**settings, "transactional.id": self.id, "transaction.timeout.ms": TIMEOUT_MS})
        producer.init_transactions(30)
        return producer

    def begin(self, producer: ck.Producer, value: bytes, position: int) -> None:
        """Begins a transaction; on return its record and its offset are in the log."""
        metadata = self._reader.consumer_group_metadata()
        producer.begin_transaction()
        producer.produce(self.target, value)
        producer.send_offsets_to_transaction([ck.TopicPartition(*self.input, position)], metadata, 30)
        assert producer.flush(30) == 0

    def go_on(self, value: bytes, position: int) -> None:
        """Commits a transaction with a new producer of the same transactional id, as the next worker does."""
        producer = self.producer()
        self.begin(producer, value, position)
        producer.commit_transaction(30)

    def committed(self, kafka: KafkaCluster) -> int | None:
        """The committed offset, or None; raises Retriable while it is pending."""
        consumer = kafka.consumer(self.group, "any")
        try:
            return consumer.committed([self.input]).get(self.input)
        finally:
            consumer.close()


def send(client: Any, request: Any) -> Any:
    """Sends a request to broker 0, the only broker and so every leader and coordinator; returns its answer."""
    return client._manager.run(client._manager.send, request, 0)


def leave_hanging(bootstrap_servers: str, work: Work, value: bytes, position: int) -> None:
    """Writes the records of an open transaction to its partitions, without its transaction coordinator.

    A coordinator that skipped the markers leaves the same state. No client sends these requests.
    """
    with admin(bootstrap_servers) as client:
        from kafka.protocol.producer import (  # noqa: PLC0415
            InitProducerIdRequest,
            ProduceRequest,
            TxnOffsetCommitRequest,
        )
        from kafka.record.memory_records import MemoryRecordsBuilder  # noqa: PLC0415

        request = InitProducerIdRequest(
            transactional_id=work.id, transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(send(client, request))
            return bool(answers[-1].error_code == 0)

        wait_until(is_answered, "a producer id")
        identity = {"producer_id": answers[-1].producer_id, "producer_epoch": answers[-1].producer_epoch}
        batch = MemoryRecordsBuilder(2, 0, 10_000, transactional=True, base_sequence=0, **identity)
        batch.append(int(time.time() * 1000), None, value)
        batch.close()
        data = ProduceRequest.TopicProduceData
        written = send(
            client,
            ProduceRequest(
                transactional_id=work.id,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[
                    data(name=work.target, partition_data=[data.PartitionProduceData(index=0, records=batch.buffer())])
                ],
                max_version=11,  # from 12 on, it adds the partition to the transaction
            ),
        )
        assert [p.error_code for t in written.responses for p in t.partition_responses] == [0]
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        added = send(
            client,
            TxnOffsetCommitRequest(
                transactional_id=work.id,
                group_id=work.group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[
                    topic(
                        name=work.source,
                        partitions=[
                            topic.TxnOffsetCommitRequestPartition(
                                partition_index=0,
                                committed_offset=position,
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            )
                        ],
                    )
                ],
                **identity,
                max_version=4,  # from 5 on, it adds the offsets to the transaction
            ),
        )
        assert [p.error_code for t in added.topics for p in t.partitions] == [0]


def write_marker(
    bootstrap_servers: str, partition: TopicPartition, transaction: OpenTransaction, *, commits: bool
) -> None:
    """Writes the marker that ends a transaction on one partition, as its coordinator does."""
    with admin(bootstrap_servers) as client:
        from kafka.protocol.producer.transaction import WriteTxnMarkersRequest  # noqa: PLC0415

        marker = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=transaction.producer_id,
                    producer_epoch=transaction.epoch,
                    transaction_result=commits,
                    topics=[
                        marker.WritableTxnMarkerTopic(name=partition.topic, partition_indexes=[partition.partition])
                    ],
                    coordinator_epoch=transaction.coordinator_epoch,
                )
            ]
        )
        answer = send(client, request)
        assert [p.error_code for m in answer.markers for t in m.topics for p in t.partitions] == [0]


@pytest.fixture(scope="module")
def own_broker() -> Iterator[EmbeddedKafka]:
    """A broker that accepts records of transactions that their coordinator does not know."""
    unverified = {"transaction.partition.verification.enable": "false"}
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=unverified) as kafka:
        yield kafka


def test_committed_offsets_of_a_group_are_in_the_partition_of_its_hash(own_broker: EmbeddedKafka, name: str) -> None:
    servers = own_broker.bootstrap_servers
    cluster, groups = Cluster(servers), GroupAdmin(Settings(bootstrap_servers=servers))
    for number, group in enumerate(("polygenelubricants", "polygenelubricantt", name)):
        work = Work(cluster, f"{name}.{number}", group)
        producer = work.producer()
        work.begin(producer, b"any", 0)
        (found,) = groups.open_transactions(groups.positions_partition(group))
        assert (found.transactional_id, found.hangs) == (work.id, False)
        assert abs(found.written_at - time.time()) < 60
        producer.abort_transaction(30)


def test_hanging_transaction_pins_offsets_until_every_partition_has_its_marker(
    own_broker: EmbeddedKafka, name: str
) -> None:
    """If only the offsets get a marker, the group continues, and its next commit commits the hanging outputs too.

    The next transaction of the same transactional id has the same producer id: its marker ends the hanging one.
    """
    servers = own_broker.bootstrap_servers
    cluster = Cluster(servers)
    kafka = KafkaCluster(Settings(bootstrap_servers=servers))
    impatient = KafkaCluster(Settings(bootstrap_servers=servers, request_timeout_ms=1_000))
    groups = GroupAdmin(Settings(bootstrap_servers=servers))
    works = [Work(cluster, f"{name}.{n}") for n in range(3)]  # will be aborted, committed, aborted in the offsets only
    for work in works:
        leave_hanging(servers, work, b"hanging", 1)

    for work in works:
        found = kafka.pending(work.group, [work.input])
        assert (found.partitions, found.unknown) == ((work.input,), "")
        (mine,) = [each for each in found.transactions if each.transactional_id == work.id]
        assert mine.hangs
        prefix = f"({work.id}) from offset {mine.start}, "
        assert prefix in found.describe(time.time())
        assert found.describe(time.time()).partition(prefix)[2].endswith("'Positions that a transaction pins'")
        with pytest.raises(Retriable):
            work.committed(impatient)
        assert (cluster.values(work.target), cluster.values(work.target, "read_uncommitted")) == ([], [b"hanging"])

    for work in works:
        kept_in = groups.positions_partition(work.group)
        for partition in (TopicPartition(work.target, 0), kept_in):
            if work is not works[2] or partition == kept_in:
                (mine,) = [each for each in groups.open_transactions(partition) if each.transactional_id == work.id]
                write_marker(servers, partition, mine, commits=work is works[1])
        assert kafka.pending(work.group, [work.input]) == Pending(work.group, ())
    assert [work.committed(kafka) for work in works] == [None, 1, None]
    for work in works:
        work.go_on(b"next", 2)
    assert [cluster.values(work.target) for work in works] == [[b"next"], [b"hanging", b"next"], [b"hanging", b"next"]]
    assert [work.committed(kafka) for work in works] == [2, 2, 2]
