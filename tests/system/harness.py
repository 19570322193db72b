"""What the tests on real brokers share: write and read whole topics, run slots, wait for a condition."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from kstreams_py import Graph, Settings
from kstreams_py.engine.slot import Slot
from kstreams_py.engine.supervisor import REPORT_FD
from kstreams_py.engine.transaction import OUTPUTS_HELD, Surroundings
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.registry import FileRegistry

WAIT = float(os.environ.get("KSTREAMS_TEST_WAIT", "120"))
"""Seconds after which a condition that does not come true fails a test."""

BATCH_BYTES = 500_000
"""Of the values that are written at once: a client makes one batch of them for each partition."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT) -> None:
    """Returns once the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        for slot in RunningSlot.active:
            assert slot.failure is None, f"{slot.failure!r} while waiting for: {what}"
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.02)


def first_offset(consumer: ck.Consumer, partition: ck.TopicPartition) -> int:
    """Where a partition begins; the brokers may not know yet of one that was just created."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, 2)[0])
        except ck.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Cluster:
    """A broker as a test sees it: plain clients, nothing of the framework."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(self, *names: str, partitions: int = 1, replication: int = 1, **config: str) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = [NewTopic(name, partitions, replication, config=settings) for name in names]
        for future in self.admin.create_topics(new).values():
            future.result()
        # the controller has answered; the brokers learn of them after that
        wait_until(lambda: {*names} <= {*self.admin.list_topics(timeout=10).topics}, "the topics are known")

    def write(
        self,
        topic: str,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        partition: int | None = None,
        headers: Any = None,
        timestamp: int = 0,
    ) -> None:
        """Plain writes, in order. Not idempotent: a producer id is half a second's wait.

        So what failed could be sent again after what follows it, one request at a time or not (seen): there is never a
        second batch.
        """
        producer = ck.Producer({"bootstrap.servers": self.bootstrap_servers, "acks": "all", "linger.ms": 60_000})
        place, queued = {} if partition is None else {"partition": partition}, 0
        for i, value in enumerate(values):
            key = keys[i] if keys is not None else None
            producer.produce(topic, value, key, headers=headers, timestamp=timestamp, **place)
            queued += 100 + len(value or b"")
            if queued > BATCH_BYTES:
                assert producer.flush(30) == 0
                queued = 0
        assert producer.flush(30) == 0

    def transaction(self, transactional_id: str, records: Sequence[tuple[str, bytes]], *, commit: bool = True) -> None:
        """One transaction of its own, committed or aborted: it leaves a marker behind."""
        producer = ck.Producer({"bootstrap.servers": self.bootstrap_servers, "transactional.id": transactional_id})
        producer.init_transactions(30)
        producer.begin_transaction()
        for topic, value in records:
            producer.produce(topic, value)
        if commit:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions; a broker may learn of a new topic a moment after another one has created it."""
        found: list[int] = []

        def known() -> bool:
            found[:] = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            return bool(found)

        wait_until(known, f"{topic} is known", 10)
        return sorted(found)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """All records up to the last stable offset (or the end), by partition and offset."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "unused",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
            }
        )
        found: list[Any] = []
        try:
            partitions = self.partitions(topic)
            starts = [first_offset(consumer, ck.TopicPartition(topic, p)) for p in partitions]
            consumer.assign([ck.TopicPartition(topic, p, low) for p, low in zip(partitions, starts, strict=True)])
            left = set(partitions)
            deadline = time.monotonic() + 30
            while left:
                assert time.monotonic() < deadline, f"{topic} could not be read to its end"
                for m in consumer.consume(10_000, 0.02):
                    if m.error() is None:
                        found.append(m)
                    elif m.error().code() == ck.KafkaError._PARTITION_EOF:
                        left.discard(m.partition())
        finally:
            consumer.close()
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def values(self, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
        return [m.value() for m in self.read(topic, isolation)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offset per partition; partitions without one are left out."""
        consumer = ck.Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
        try:
            found = consumer.committed([ck.TopicPartition(topic, p) for p in self.partitions(topic)], timeout=20)
        except ck.KafkaException as error:
            if error.args[0].code() in (ck.KafkaError.NOT_COORDINATOR, ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS):
                return {}  # a broker that has only just started
            raise
        finally:
            consumer.close()
        return {p.partition: p.offset for p in found if p.offset >= 0}

    def members(self, group: str) -> list[str]:
        """The static members that a group knows, those that wait for its rebalance among them."""
        found = self.admin.describe_consumer_groups([group])[group].result()
        return [member.group_instance_id for member in found.members]

    def set_positions(self, group: str, positions: Mapping[tuple[str, int], int]) -> None:
        """As an operator sets the committed positions of a group that has no members."""
        offsets = [ck.TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()]
        asked = [ck.ConsumerGroupTopicPartitions(group, offsets)]

        def are_set() -> bool:
            (future,) = self.admin.alter_consumer_group_offsets(asked).values()
            return all(p.error is None for p in future.result().topic_partitions)

        wait_until(are_set, f"{group} at {positions}", 20)

    def forget_group(self, group: str) -> None:
        """Deletes a group without members: its committed positions are gone, as after offsets.retention.minutes."""
        for future in self.admin.delete_consumer_groups([group]).values():
            future.result()

    def await_committed(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Returns once the group has committed exactly these offsets."""
        wait_until(lambda: self.committed(group, topic) == offsets, f"{group} at {offsets} of {topic}")


FORGETFUL = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "500",
}
"""Settings of a broker that soon forgets transactional ids and producers."""


def transactional_ids(bootstrap_servers: str) -> list[str]:
    """What the brokers know, as text."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from kafka import KafkaAdminClient  # noqa: PLC0415  # has transaction admin calls; its import warns

    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        return [str(found) for found in admin.list_transactions()]
    finally:
        admin.close()


@contextmanager
def asking_for_password(user: str, password: str, **settings: str) -> Iterator[tuple[str, Cluster]]:
    """A broker that asks for a password: the address where it does so, and the cluster by a door where it does not."""
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for each in (a, b, c):
            each.bind(("127.0.0.1", 0))
        plain, controller, asking = (each.getsockname()[1] for each in (a, b, c))
    listeners = f"BROKER://127.0.0.1:{plain},CLIENT://127.0.0.1:{asking}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    guarding = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{login} required user_{user}="{password}";',
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    with EmbeddedKafka(kafka_classpath(), find_java(), port=plain, settings=guarding) as kafka:
        yield f"127.0.0.1:{asking}", Cluster(kafka.bootstrap_servers)


class RunningSlot:
    """A slot of a graph, in a thread of the test's process."""

    active: ClassVar[list[RunningSlot]] = []

    def __init__(self, graph: Graph, settings: Settings, number: int = 0, *, outputs_held: int = OUTPUTS_HELD) -> None:
        registry = FileRegistry(settings.schema_directory)
        around = Surroundings(KafkaLog(settings), registry, settings, outputs_held=outputs_held)
        self.slot = Slot(graph, number, around)
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.slot.run(lambda reports: None)
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.slot.stop()
        self.join()

    def join(self) -> None:
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


@contextmanager
def running(
    graph: Graph, settings: Settings, *numbers: int, outputs_held: int = OUTPUTS_HELD
) -> Iterator[list[RunningSlot]]:
    """The slots run inside the block, and must have ended without a failure after it.

    With no `outputs_held`, a transaction is open from its first output on.
    """
    slots = [RunningSlot(graph, settings, number, outputs_held=outputs_held) for number in numbers or (0,)]
    RunningSlot.active += slots
    try:
        yield slots
    finally:
        for slot in slots:
            slot.slot.stop()
        for slot in slots:
            slot.join()
            RunningSlot.active.remove(slot)
    failures = [repr(slot.failure) for slot in slots if slot.failure is not None]
    assert failures == [], failures


class WorkerProcess:
    """`kstreams run FILE:graph --slot N` as a process of its own."""

    def __init__(self, file: Path, slot: int, environment: dict[str, str], *options: str) -> None:
        clean = {name: value for name, value in os.environ.items() if name != REPORT_FD}
        self.log = file.with_name(f"{file.stem}-{slot}-{time.monotonic_ns()}.log")
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kstreams_py", "run", f"{file}:graph", "--slot", str(slot), *options],
                env={**clean, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        return self.process.wait(WAIT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)
