"""The cluster of the bench: fills topics, reads a group's committed offsets, counts the records of a topic."""

from __future__ import annotations

import io
import json
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka as ck
import fastavro
from confluent_kafka.admin import AdminClient, NewTopic

from bench.contestants.job import ORDER
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER

PARTITIONS: Final = 4
SIZES: Final = {"100 B": 100, "1 kB": 1000, "keyed": 100, "events": 100, "objects": 100}
"""The size of plain values in bytes, by the name of the load; other loads are `avro` and `avro, bare`."""

KEYS: Final = {"keyed": 100_000, "events": 100_000}
"""The number of distinct keys of a load; in other loads, each record has a key of its own."""

EVENTS: Final = frozenset({"events", "objects"})
"""The loads whose records are events of objects, which their keys name."""


class GaveUp(Exception):
    """A contestant ended by itself, or exceeded a time limit; the message has the end of its output."""


class Cluster:
    """One broker: prepares the topics of a run, and reads its results."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        # without logging: this client is still connected when the broker stops
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._filled: dict[tuple[str, int, int], str] = {}
        self._prefix = f"bench-{uuid.uuid4().hex[:8]}"
        self._topics = 0

    def close(self) -> None:
        """Deletes the topics of the loads."""
        for name in self._filled.values():
            self.delete(name)

    def name(self, what: str) -> str:
        """Returns a unique name for a topic or a group."""
        self._topics += 1
        return f"{self._prefix}-{self._topics}-{what}"

    def create(self, name: str, partitions: int = PARTITIONS) -> str:
        """Creates a topic, and returns its name."""
        for creation in self._admin.create_topics([NewTopic(name, partitions, 1)]).values():
            creation.result()
        while not self._admin.list_topics(name, timeout=10).topics[name].partitions:
            time.sleep(0.02)
        return name

    def delete(self, name: str) -> None:
        """Deletes a topic, because outputs are large."""
        for deletion in self._admin.delete_topics([name]).values():
            deletion.result()

    def filled(self, load: str, records: int, copy: int = 0) -> str:
        """Returns a topic with this number of records of a load, which is filled once. Each `copy` is another topic."""
        if name := self._filled.get((load, records, copy)):
            return name
        name = self.create(self.name("load"))
        self.write(name, load, records)
        self._filled[load, records, copy] = name
        return name

    def write(self, name: str, load: str, records: int, first: int = 0) -> None:
        """Writes this number of records of a load to a topic, without a transaction. `first`: its number."""
        keys = KEYS.get(load, first + records)
        values = self._values(load, name)
        producer = ck.Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 50, "batch.size": 1 << 20})
        for number in range(first, first + records):
            key = number * 7919 % keys if load in KEYS else number
            headers: list[tuple[str, str | bytes | None]] = []
            if load in EVENTS:
                headers = [(ID_HEADER, b"%d" % (number + 1))]
                if number >= keys:  # the keys come round in the same order
                    headers.append((PREV_HEADER, b"%d" % (number + 1 - keys)))
            value = values[number % len(values)]
            while True:
                try:
                    producer.produce(name, value, b"%d" % key, partition=key % PARTITIONS, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise GaveUp(f"{name} could not be filled within a minute")

    def _values(self, load: str, topic: str) -> list[bytes]:
        if load in SIZES:
            return [b"x" * SIZES[load]]
        head = b""
        if load == "avro":
            registry = FileRegistry(self.directory / "schemas")
            head = struct.pack(">xI", registry.register(f"{topic}-value", json.dumps(ORDER)))
        schema, found = fastavro.parse_schema(ORDER), []
        for number in range(1000):
            body = io.BytesIO()
            order = {"number": number, "customer": f"customer-{number}", "quantity": number % 7, "price": number / 8}
            fastavro.schemaless_writer(body, schema, {**order, "note": "left at the door " * 3})
            found.append(head + body.getvalue())
        return found

    @contextmanager
    def committed(
        self, group: str, topics: tuple[str, ...], partitions: int = PARTITIONS
    ) -> Iterator[Callable[[], int]]:
        """Yields a function that returns the sum of the group's committed offsets: how many records it has processed.

        A consumer asks, because the admin client's call crashes the process at a hundred calls a second
        (confluent-kafka 2.16.0). With read_uncommitted, offsets in an open transaction are left out; with
        read_committed, a call waits for them.
        """
        consumer = ck.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "isolation.level": "read_uncommitted"}
        )
        wanted = [ck.TopicPartition(topic, number) for topic in topics for number in range(partitions)]

        def total() -> int:
            try:
                return sum(max(0, p.offset) for p in consumer.committed(wanted, 5))
            except ck.KafkaException:
                return 0  # the group has no coordinator yet

        try:
            yield total
        finally:
            consumer.close()

    def count(self, topic: str) -> int:
        """Counts the committed records of a topic."""
        reader = self.reader(topic, partition_eof=True)
        left, found = PARTITIONS, 0
        while left:
            for m in reader.consume(10_000, 0.05):
                if m.error() is None:
                    found += 1
                elif m.error().code() == ck.KafkaError._PARTITION_EOF:  # noqa: SLF001, the client's own name
                    left -= 1
        reader.close()
        return found

    def reader(self, topic: str, partitions: int = PARTITIONS, *, partition_eof: bool = False) -> Any:
        """Returns a read_committed consumer at the start of every partition."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "bench-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": partition_eof,
                "fetch.queue.backoff.ms": 5,
                "queued.min.messages": 500_000,
            }
        )
        consumer.assign([ck.TopicPartition(topic, number, 0) for number in range(partitions)])
        return consumer


def fetches(reader: Any, seconds: float) -> Iterator[list[Any]]:
    """Yields records as soon as they arrive, for at most this many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = reader.consume(1, 0.1)
        if found:
            found += reader.consume(10_000, 0)
            yield [m for m in found if m.error() is None]
