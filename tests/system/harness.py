"""Shared by the tests on real brokers: write and read whole topics, run slots, wait for a condition."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

from kstreams_py import Graph, Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.embedded.nodes import free_ports
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.reports import Report
from kstreams_py.running.slot import Slot
from kstreams_py.steps.environment import OUTPUTS_HELD, Environment
from tests import waiting
from tests.system.launcher import Launched
from tests.waiting import WAIT

Config = Mapping[str, str]
"""Settings of a topic by Kafka's names."""

NONE: Final[Config] = {}

BATCH_BYTES = 500_000
"""Bytes of values that are written at once: the client makes one batch of them for each partition."""

MOVING = (ck.KafkaError.NOT_COORDINATOR, ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
"""Answers for a coordinator that has just started, or moves to another broker."""

SET_SECONDS = 10.0
"""Limit of a request that sets offsets. librdkafka asks for a group's coordinator again only once a connection changes,
which may be never on a broker that has just started (rdkafka_coord.c)."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT, *, pause: float = 0.02) -> None:
    """Returns once the condition is true; fails as soon as a running slot of this process has failed."""

    def met() -> object:
        found = condition()
        for slot in () if found else RunningSlot.active:
            assert slot.failure is None, f"{slot.failure!r} while waiting for: {what}"
        return found

    waiting.wait_until(met, what, seconds, pause=pause)


def watermarks(consumer: ck.Consumer, partition: ck.TopicPartition) -> tuple[int, int]:
    """The first and the end offset of a partition; asks again while the brokers do not know a new partition yet."""
    deadline = time.monotonic() + WAIT
    while True:
        try:
            found: tuple[int, int] = consumer.get_watermark_offsets(partition, 2)
            return found
        except ck.KafkaException:
            if time.monotonic() > deadline:
                raise
        # not in the handler: see kafka/clients.py
        with suppress(ck.KafkaException):  # otherwise the client goes on asking the old leader
            consumer.list_topics(partition.topic, 2)
        time.sleep(0.02)


def _knows(address: str, names: Sequence[str]) -> bool:
    """Whether one broker knows topics; True if it is away. A new client can ask no other one first."""
    client = AdminClient({"bootstrap.servers": address})
    try:
        return all(client.list_topics(name, 2).topics[name].error is None for name in names)
    except ck.KafkaException:
        return True


def metadata(client: Any, *topic: str, renew: Callable[[], Any] | None = None) -> Any:
    """The cluster metadata, with one topic or all; asks again when no broker answers in time.

    A request that is on its way to a broker that dies is sent again to that broker until it times out (librdkafka).

    - `renew`: makes the client to ask through next; None for the same one.
    """
    deadline = time.monotonic() + WAIT
    while True:
        try:
            return client.list_topics(*topic, timeout=5)
        except ck.KafkaException as error:
            unanswered = (ck.KafkaError._TIMED_OUT, ck.KafkaError._TRANSPORT)
            if error.args[0].code() not in unanswered or time.monotonic() > deadline:
                raise
            client = client if renew is None else renew()


class Cluster:
    """A broker seen through plain clients, without the framework."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        # to connect costs ten times as much as a request
        self._consumers = defaultdict[str, list[ck.Consumer]](list)
        """Those that read nothing now, by their isolation levels."""
        self._producers: list[ck.Producer] = []
        """Those that write nothing now."""
        self._of_groups: dict[str, ck.Consumer] = {}
        """Those that ask for the committed offsets of a group, by groups."""

    def close(self) -> None:
        """Ends its clients: a function of a graph, and so a cache, may hold this for longer than the broker lives."""
        del self.admin
        for clients in (self._consumers, self._producers, self._of_groups):
            clients.clear()

    def forget_groups(self) -> None:
        """Ends the clients of groups, which no other test asks for."""
        self._of_groups.clear()

    def create(self, *names: str, partitions: int = 1, replication: int = 1, config: Config = NONE) -> None:
        # a client that has heard of no controller waits for one until its request times out, whatever comes meanwhile
        wait_until(lambda: self._metadata(names[0]).controller_id >= 0, "the controller is known")
        left = [*names]

        def are_created() -> bool:
            new = [NewTopic(name, partitions, replication, config=dict(config)) for name in left]
            for name, future in self.admin.create_topics(new, request_timeout=20).items():
                try:
                    future.result()
                except ck.KafkaException as error:
                    if error.args[0].code() == ck.KafkaError._TIMED_OUT:
                        self._renew_admin()  # it waited for a controller, as above
                    elif "brokers are currently fenced" not in error.args[0].str():
                        raise
                else:
                    left.remove(name)
            return not left

        wait_until(are_created, "a broker takes topics: one that stood still is fenced until its next heartbeat")
        # the controller has answered; the brokers learn of the topics later, each at its own time
        wait_until(lambda: all(map(self._has, names)), "the topics are known")
        addresses = self.bootstrap_servers.split(",")
        for address in addresses if len(addresses) > 1 else ():
            wait_until(partial(_knows, address, names), f"the broker at {address} knows the topics")

    def delete(self, *names: str) -> None:
        for future in self.admin.delete_topics(list(names)).values():
            future.result()
        wait_until(lambda: not any(map(self._has, names)), "the topics are deleted")

    def _has(self, name: str) -> bool:
        """Whether there is a topic; the metadata of all topics would be those of the tests before, too."""
        return self._metadata(name).topics[name].error is None

    def _metadata(self, topic: str) -> Any:
        return metadata(self.admin, topic, renew=self._renew_admin)

    def _renew_admin(self) -> AdminClient:
        """Makes another client: one that heard of no brokers, as from a fenced one, may ask none (librdkafka #5301)."""
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        return self.admin

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
        """Writes in order, without idempotence: a producer id takes half a second.

        A batch that failed could be sent again after the next one, even with one request in flight (observed): so there
        is never a second batch in the queue.
        """
        common = {"bootstrap.servers": self.bootstrap_servers, "acks": "all", "linger.ms": 60_000}
        producer = self._producers.pop() if self._producers else ck.Producer(common)
        metadata(producer, topic)  # a client that has written to the topic would keep to the partitions that it knows
        number, queued = -1 if partition is None else partition, 0
        for i, value in enumerate(values):
            key = keys[i] if keys is not None else None
            producer.produce(topic, value, key, number, headers=headers, timestamp=timestamp)
            queued += 100 + len(value or b"")
            if queued > BATCH_BYTES:
                assert producer.flush(30) == 0
                queued = 0
        assert producer.flush(30) == 0
        self._producers.append(producer)

    def transaction(self, transactional_id: str, records: Sequence[tuple[str, bytes]], *, commit: bool = True) -> None:
        """Writes one transaction, committed or aborted, which leaves a marker in each partition."""
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

    def await_markers(self, *topics: str) -> None:
        """Waits until no transaction is open on the topics: a commit returns before its markers are written."""
        asked = {ck.TopicPartition(topic, p): OffsetSpec.latest() for topic in topics for p in self.partitions(topic)}

        def ends(level: ck.IsolationLevel) -> list[int]:
            found = self.admin.list_offsets(asked, isolation_level=level).values()
            return [future.result().offset for future in found]

        def none_is_open() -> bool:
            try:
                return ends(ck.IsolationLevel.READ_COMMITTED) == ends(ck.IsolationLevel.READ_UNCOMMITTED)
            except ck.KafkaException as error:
                # a broker that was frozen writes on, until it hears that the controller has taken its leaderships, and
                # for a moment does not know the epoch in which it has them again
                if error.args[0].code() not in (ck.KafkaError._NOENT, ck.KafkaError.UNKNOWN_LEADER_EPOCH):
                    raise
                self._metadata(topics[0])  # the client would keep to the leaders that it knows
                return False

        wait_until(none_is_open, f"no transaction is open on {topics}")

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions; waits for a broker that does not know the new topic yet."""
        found: list[int] = []

        def known() -> bool:
            found[:] = self._metadata(topic).topics[topic].partitions
            return bool(found)

        wait_until(known, f"{topic} is known")
        return sorted(found)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Any]:
        """Reads all records up to the last stable offset (or the end), sorted by partition and offset."""
        free = self._consumers[isolation]
        consumer = (
            free.pop()
            if free
            else ck.Consumer(
                {
                    "bootstrap.servers": self.bootstrap_servers,
                    "group.id": "unused",
                    "isolation.level": isolation,
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 10,
                }
            )
        )
        found: list[Any] = []
        ranges = {p: watermarks(consumer, ck.TopicPartition(topic, p)) for p in self.partitions(topic)}
        left, is_sound = {p for p, (low, end) in ranges.items() if low < end}, True
        consumer.assign([ck.TopicPartition(topic, p, ranges[p][0]) for p in left])
        count = sum(end - low for low, end in ranges.values())  # a consumer that waits for more fetches on and on
        deadline = time.monotonic() + 30
        while left:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            some: list[Any] = consumer.consume(min(count, 10_000), 0.005)
            for m in some:
                error = m.error()
                if error is None:
                    found.append(m)
                    is_end = m.offset() + 1 == ranges[m.partition()][1]  # otherwise a marker follows
                else:
                    is_end = error.code() == ck.KafkaError._PARTITION_EOF
                    is_sound &= is_end
                if is_end:
                    left.discard(m.partition())
        if is_sound:
            consumer.unassign()
            free.append(consumer)
        return sorted(found, key=lambda m: (m.partition(), m.offset()))

    def values(self, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
        return [m.value() for m in self.read(topic, isolation)]

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The group's committed offset of each partition that has one; waits for a coordinator that moves or loads."""
        if group not in self._of_groups:
            self._of_groups[group] = ck.Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
        consumer = self._of_groups[group]
        asked = [ck.TopicPartition(topic, p) for p in self.partitions(topic)]
        found: list[ck.TopicPartition] = []

        def answered() -> bool:
            try:
                found[:] = consumer.committed(asked, timeout=20)
            except ck.KafkaException as error:
                if error.args[0].code() not in MOVING:
                    raise
                return False
            return True

        waiting.wait_until(answered, f"the coordinator of {group} answers")
        return {p.partition: p.offset for p in found if p.offset >= 0}

    def members(self, group: str) -> list[str]:
        """The static members of a group, including those that wait for its rebalance."""
        found = self.admin.describe_consumer_groups([group])[group].result()
        return [member.group_instance_id for member in found.members]

    def set_committed(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets the committed offsets of a group that has no members, as an operator does."""
        wanted = [ck.TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        request = [ck.ConsumerGroupTopicPartitions(group, wanted)]

        def are_set() -> bool:
            (future,) = self.admin.alter_consumer_group_offsets(request, request_timeout=SET_SECONDS).values()
            try:
                return all(p.error is None for p in future.result().topic_partitions)
            except ck.KafkaException as error:
                if error.args[0].code() != ck.KafkaError._TIMED_OUT:
                    raise
                return False

        wait_until(are_set, f"{group} at {offsets}")

    def delete_records(self, topic: str, partition: int = 0, before: int = ck.OFFSET_END) -> None:
        """Deletes the records of a partition that are before an offset; all by default."""
        (future,) = self.admin.delete_records([ck.TopicPartition(topic, partition, before)]).values()
        future.result()

    def configure(self, topic: str, config: Config) -> None:
        """Changes settings of a topic."""
        resource = ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
                for setting, value in config.items()
            ],
        )
        (future,) = self.admin.incremental_alter_configs([resource]).values()
        future.result()

    def delete_group(self, group: str) -> None:
        """Deletes a group without members and its committed offsets, as offsets.retention.minutes does."""
        for future in self.admin.delete_consumer_groups([group]).values():
            future.result()

    def await_committed(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Returns once the group's committed offsets are exactly these."""
        wait_until(lambda: self.committed(group, topic) == offsets, f"{group} at {offsets} of {topic}", pause=0.05)


FORGETFUL = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "500",
}
"""Settings of a broker that expires transactional ids and producers after two seconds."""


def list_transactional_ids(bootstrap_servers: str) -> list[str]:
    """The transactions that the brokers know, each as text."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from kafka import KafkaAdminClient  # noqa: PLC0415  # it lists transactions; its import warns

    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        return [str(transaction) for transaction in admin.list_transactions()]
    finally:
        admin.close()


@contextmanager
def broker_with_password(user: str, password: str, **settings: str) -> Iterator[tuple[str, Cluster]]:
    """A broker with two listeners: gives the address that requires a password, and the cluster on the other one."""
    plain, controller, protected = free_ports([None] * 3)
    listeners = f"BROKER://127.0.0.1:{plain},CLIENT://127.0.0.1:{protected}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    all_settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "controller.quorum.voters": f"0@127.0.0.1:{controller}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": f'{login} required user_{user}="{password}";',
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    with (
        EmbeddedKafka(kafka_classpath(), find_java(), port=plain, settings=all_settings) as kafka,
        closing(Cluster(kafka.bootstrap_servers)) as cluster,
    ):
        yield f"127.0.0.1:{protected}", cluster


def await_joined(processor: str, *workers: WorkerProcess) -> None:
    """Waits until workers have partitions, and so handle signals.

    One that is frozen before it joins, or goes on before the next one of its slot has joined, may take the slot back.
    """
    wait_until(lambda: all(f"{processor}: holds" in each.text for each in workers), f"the workers of {processor} join")


class RunningSlot:
    """Runs a slot of a graph in a thread of the test's process."""

    active: ClassVar[list[RunningSlot]] = []

    def __init__(self, graph: Graph, settings: Settings, number: int = 0, *, outputs_held: int = OUTPUTS_HELD) -> None:
        registry = FileRegistry(settings.schema_directory)
        self._cluster = KafkaCluster(settings)  # a slot may outlive a test
        self.slot = Slot(graph, number, Environment(self._cluster, registry, settings, outputs_held=outputs_held))
        self.failure: BaseException | None = None
        self.reports: Sequence[Report] = ()
        """The newest of each processor."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.slot.run(self._keep)
        except BaseException as error:
            self.failure = error
        finally:
            self._cluster.close()

    def _keep(self, reports: Sequence[Report]) -> None:
        self.reports = reports

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
    """Runs the slots inside the block, stops them after it, and fails if one of them has failed.

    With `outputs_held=0`, a transaction is open from its first output on.
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


def await_stopped(pid: int) -> None:
    """Returns once a process that was sent SIGSTOP is stopped, or has ended: its threads run on until each has seen it.

    It is not a child of this process (launcher.py), which the one in process_table.py has to be.
    """

    def is_stopped() -> bool:
        try:
            stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        except OSError:  # a thread has ended
            return False
        return all(stat.rpartition(")")[2].split()[0] in "TZX" for stat in stats)

    wait_until(is_stopped, f"process {pid} is stopped")


class WorkerProcess:
    """Runs `kstreams run FILE:graph --slot N` as a process of its own."""

    def __init__(self, file: Path, slot: int, environment: dict[str, str], *options: str) -> None:
        clean = {name: value for name, value in os.environ.items() if name != REPORT_FD}
        self.log = file.with_name(f"{file.stem}-{slot}-{time.monotonic_ns()}.log")
        with self.log.open("wb") as out:
            arguments = ("run", f"{file}:graph", "--slot", slot, *options)
            self.process = Launched(arguments, {**clean, **environment}, stdout=out.fileno(), stderr=out.fileno())

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def send(self, signum: signal.Signals) -> None:
        """Sends a signal; returns after SIGSTOP once all threads are stopped: they run on until each has seen it."""
        self.process.send_signal(signum)
        if signum is signal.SIGSTOP:
            await_stopped(self.process.pid)

    def wait(self) -> int:
        return self.process.wait(WAIT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT)


@contextmanager
def starting_workers() -> Iterator[Callable[..., WorkerProcess]]:
    """Makes WorkerProcess; all of them are killed at the end of the block, and their texts shown if the test fails."""
    started: list[WorkerProcess] = []

    def start(file: Path, slot: int, environment: dict[str, str], *options: str) -> WorkerProcess:
        started.append(WorkerProcess(file, slot, environment, *options))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            worker.kill()
            sys.stdout.write(worker.text)
