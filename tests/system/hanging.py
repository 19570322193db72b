"""Transactions that hang: left by requests that no client sends, as a coordinator that skips markers leaves them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.kafka.administration import import_kafka
from kstreams_py.kafka.cluster import KafkaCluster
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


NOT_LEADER: Final = 6
"""The broker's answer while it does not lead a topic that was just created."""


def send(client: Any, request: Any) -> Any:
    """Sends a request to broker 0, the only broker and so every leader and coordinator; returns its answer."""
    return client._manager.run(client._manager.send, request, 0)


def leave_hanging(bootstrap_servers: str, work: Work, value: bytes, position: int) -> None:
    """Writes the records of an open transaction to its partitions, without its transaction coordinator.

    A coordinator that skipped the markers leaves the same state. No client sends these requests.
    """
    with admin(bootstrap_servers) as client:
        identity = _start_producer(client, work.id)
        write_behind_the_coordinator(client, work, value, *identity)
        _commit_behind_the_coordinator(client, work, position, *identity)


def leave_output_hanging(bootstrap_servers: str, work: Work, value: bytes) -> None:
    """Writes the record of an open transaction to the output alone, without its transaction coordinator."""
    with admin(bootstrap_servers) as client:
        write_behind_the_coordinator(client, work, value, *_start_producer(client, work.id))


def _start_producer(client: Any, transactional_id: str) -> tuple[int, int]:
    """The producer id and the epoch of a transactional id, as a producer that starts gets them."""
    from kafka.protocol.producer import InitProducerIdRequest  # noqa: PLC0415

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1
    )
    answers: list[Any] = []

    def is_answered() -> bool:
        answers.append(send(client, request))
        return bool(answers[-1].error_code == 0)

    wait_until(is_answered, "a producer id")
    return answers[-1].producer_id, answers[-1].producer_epoch


def write_behind_the_coordinator(
    client: Any, work: Work, value: bytes, producer_id: int, epoch: int, sequence: int = 0, *, time_ms: int = 0
) -> None:
    """Writes a record of a transaction to the output; `time_ms` is its timestamp, 0 for now."""
    from kafka.protocol.producer import ProduceRequest  # noqa: PLC0415
    from kafka.record.memory_records import MemoryRecordsBuilder  # noqa: PLC0415

    batch = MemoryRecordsBuilder(
        2, 0, 10_000, transactional=True, base_sequence=sequence, producer_id=producer_id, producer_epoch=epoch
    )
    batch.append(time_ms or int(time.time() * 1000), None, value)
    batch.close()
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=work.id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            data(name=work.target, partition_data=[data.PartitionProduceData(index=0, records=batch.buffer())])
        ],
        max_version=11,  # from 12 on, it adds the partition to the transaction
    )
    codes = list[int]()

    def is_answered() -> bool:
        written = send(client, request)
        codes[:] = [p.error_code for t in written.responses for p in t.partition_responses]
        return codes != [NOT_LEADER]

    wait_until(is_answered, "the broker leads the new topic")
    assert codes == [0], codes  # this module's assertions are not rewritten


def _commit_behind_the_coordinator(client: Any, work: Work, position: int, producer_id: int, epoch: int) -> None:
    from kafka.protocol.producer import TxnOffsetCommitRequest  # noqa: PLC0415

    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=position, committed_leader_epoch=-1, committed_metadata=""
    )
    added = send(
        client,
        TxnOffsetCommitRequest(
            transactional_id=work.id,
            group_id=work.group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=work.source, partitions=[partition])],
            producer_id=producer_id,
            producer_epoch=epoch,
            max_version=4,  # from 5 on, it adds the offsets to the transaction
        ),
    )
    assert [p.error_code for t in added.topics for p in t.partitions] == [0]
