"""A loop by hand on confluent-kafka, as a user writes it who knows the client well: the upper bound of throughput."""

from __future__ import annotations

import io
import signal
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import fastavro
from confluent_kafka.admin import AdminClient, NewTopic

from bench.contestants.job import COMMIT_MS, FETCH_BYTES, ORDER, Job, priced

FETCH = 10_000
SNAPSHOT_BYTES, ATTEMPT_BYTES = 120, 220
"""About the sizes of the records in a journal of kstreams_py."""


def clients(job: Job) -> tuple[ck.Consumer, ck.Producer]:
    """A static member and a transactional producer with an id for each slot, which a restarted worker takes over."""
    instance_id = f"{job.group}.{job.slot}"
    common = {"bootstrap.servers": job.bootstrap}
    producer = ck.Producer(
        {
            **common,
            "transactional.id": instance_id,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions()
    consumer = ck.Consumer(
        {
            **common,
            "group.id": job.group,
            "group.instance.id": instance_id,
            **({"session.timeout.ms": job.session_ms} if job.session_ms else {}),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 500_000,
        }
    )
    consumer.subscribe(list(job.inputs))
    return consumer, producer


def writer(job: Job, producer: ck.Producer) -> Callable[[list[Any], dict[int, int]], None]:
    """Returns a function that writes the outputs of a fetch and records the next offset of each partition."""
    produce, output = producer.produce, job.output
    pack, prefix = struct.Struct(">Q").pack, b"12345678"

    def bare(records: list[Any], positions: dict[int, int]) -> None:
        for m in records:
            if m.error():
                raise ck.KafkaException(m.error())
            produce(output, m.value(), m.key())
            positions[m.partition()] = m.offset() + 1

    def with_header(records: list[Any], positions: dict[int, int]) -> None:
        for m in records:
            if m.error():
                raise ck.KafkaException(m.error())
            produce(output, m.value(), m.key(), headers=[("ks-hash", prefix + pack(m.offset()))])
            positions[m.partition()] = m.offset() + 1

    if job.workload == "avro":
        return avro_writer(job, producer)
    return with_header if job.header else bare


def avro_writer(job: Job, producer: ck.Producer) -> Callable[[list[Any], dict[int, int]], None]:
    """Like `writer`, with Avro in and out, and the header."""
    produce, output = producer.produce, job.output
    pack, prefix = struct.Struct(">Q").pack, b"12345678"
    schema = fastavro.parse_schema(ORDER)
    read: Any = fastavro.schemaless_reader
    write, buffer = fastavro.schemaless_writer, io.BytesIO

    def avro(records: list[Any], positions: dict[int, int]) -> None:
        for m in records:
            if m.error():
                raise ck.KafkaException(m.error())
            data = m.value()
            source = buffer(data)
            source.seek(5)  # the wire format: a zero byte and the schema's id
            encoded = buffer()
            encoded.write(data[:5])
            write(encoded, schema, priced(read(source, schema, None)))
            produce(output, encoded.getvalue(), m.key(), headers=[("ks-hash", prefix + pack(m.offset()))])
            positions[m.partition()] = m.offset() + 1

    return avro


def deliver_with_journal(job: Job, consumer: ck.Consumer, producer: ck.Producer, running: list[bool]) -> None:
    """Makes the writes of a journal: snapshots, outputs, attempts, commit; one record of each partition at a time."""
    topic = job.inputs[0]
    journal = ck.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "transactional.id": f"{job.group}.{job.slot}.journal",
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
        }
    )
    journal.init_transactions()
    admin = AdminClient({"bootstrap.servers": job.bootstrap})
    partitions = len(admin.list_topics(topic, timeout=10).topics[topic].partitions)
    for creation in admin.create_topics([NewTopic(f"{job.group}.journal", partitions, 1)]).values():
        creation.result()
    group = consumer.consumer_group_metadata
    waiting, snapshot, attempt = dict[Any, deque[Any]](), b"s" * SNAPSHOT_BYTES, b"a" * ATTEMPT_BYTES

    def record(value: bytes, offsets: list[Any]) -> None:
        journal.begin_transaction()
        for each in offsets:
            journal.produce(f"{job.group}.journal", value, partition=each.partition)
        journal.send_offsets_to_transaction(offsets, group())
        journal.commit_transaction()

    while running:
        if not any(waiting.values()):
            for m in consumer.consume(FETCH, 0.05):
                waiting.setdefault(m.partition(), deque()).append(m)
            continue
        unit = [each.popleft() for each in waiting.values() if each]
        now = [ck.TopicPartition(topic, m.partition(), m.offset()) for m in unit]
        record(snapshot, now)
        producer.begin_transaction()
        for m in unit:
            producer.produce(job.output, m.value(), m.key(), headers=[("ks-hash", b"12345678" * 2)])
        producer.flush()
        record(attempt, now)
        after = [ck.TopicPartition(topic, m.partition(), m.offset() + 1) for m in unit]
        producer.send_offsets_to_transaction(after, group())
        producer.commit_transaction()


def main() -> None:
    """Runs until SIGTERM; any failure ends the process, and the bench starts it again."""
    job = Job.from_environment()
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    consumer, producer = clients(job)
    if job.journal:
        deliver_with_journal(job, consumer, producer, running)
        return
    write, group = writer(job, producer), consumer.consumer_group_metadata
    while running:
        records = consumer.consume(FETCH, 0.05)
        if not records:
            continue
        producer.begin_transaction()
        started, positions = time.monotonic(), dict[int, int]()
        while records:
            write(records, positions)
            if (time.monotonic() - started) * 1000 >= COMMIT_MS:
                break
            records = consumer.consume(FETCH, 0.01)
        offsets = [ck.TopicPartition(job.inputs[0], *position) for position in positions.items()]
        producer.send_offsets_to_transaction(offsets, group())
        producer.commit_transaction()


if __name__ == "__main__":
    main()
