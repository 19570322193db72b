"""Records the run of a test on real brokers: sends, reads, offsets, faults. The checker judges the history."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import confluent_kafka as ck

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.records import TopicPartition
from kstreams_py.testing import Anomaly, Expected, History, check, explain
from tests.system.harness import Cluster, metadata, wait_until, watermarks

logger = logging.getLogger(__name__)

COORDINATOR_CHANGES = {
    ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
    ck.KafkaError.NOT_COORDINATOR,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._TRANSPORT,
}
"""Errors while a coordinator is down or moves."""

LEADER_CHANGES = {
    ck.KafkaError._DESTROY_BROKER,
    ck.KafkaError._TIMED_OUT,
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.LEADER_NOT_AVAILABLE,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
    ck.KafkaError.OFFSET_NOT_AVAILABLE,
}
"""Errors while a leader is down or moves."""

Record = tuple[str, bytes, bytes | None, int]
"""Topic, value, key, partition (-1: chosen by key)."""


class Recorder:
    """The history of one test, and the plain clients whose writes and reads it records."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.history = History()
        self.cluster = Cluster(bootstrap_servers)
        self.admin = self.cluster.admin
        self.common: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self.topics: set[str] = set()
        self._consumers: dict[str, ck.Consumer] = {}

    def close(self) -> None:
        """Ends its clients: a function of a graph, and so a cache, may hold this for longer than the broker lives."""
        self.cluster.close()
        del self.admin
        self._consumers.clear()

    # Writes.

    @contextmanager
    def feeding(self, record: Callable[[int], Record], *, at_once: int = 0, per_second: int = 0) -> Iterator[Feeder]:
        """Writes records 0, 1, 2, ...: `at_once` first, `per_second` in the block; waits for all acknowledgements."""
        feeder = Feeder(self, record, at_once, per_second)
        try:
            yield feeder
        finally:
            feeder.finish()
        assert feeder.failure is None, feeder.failure

    def write(self, topic: str, values: Sequence[bytes], *, key: bytes | None = None, partition: int = -1) -> None:
        """Writes values in order, acknowledged on return; without a key, each value is its own key."""
        with self.feeding(lambda i: (topic, values[i], key or values[i], partition), at_once=len(values)):
            pass

    # Reads.

    @contextmanager
    def reading(self, *topics: str) -> Iterator[Reader]:
        """Reads the topics from their start during the block; `Reader.finish` reads on to their ends."""
        reader = Reader(self, topics)
        try:
            yield reader
        finally:
            reader.stop()
        assert reader.failure is None, reader.failure

    def ends(self, topic: str, isolation: str = "read_committed") -> dict[int, int]:
        """The last stable offset of each partition, or its high watermark."""
        # a consumer is used: the admin client occupies a whole CPU while a leader is down
        consumer = self._consumer(f"ends, {isolation}", {"isolation.level": isolation})
        found: dict[int, int] = {}

        def is_answered() -> bool:
            wanted = [ck.TopicPartition(topic, p, ck.OFFSET_END) for p in self.cluster.partitions(topic)]
            try:
                partitions = consumer.offsets_for_times(wanted, 2)
            except ck.KafkaException as error:
                errors = [error.args[0]]
            else:
                errors = [p.error for p in partitions if p.error is not None]
                found.update({p.partition: p.offset for p in partitions})
            if others := [error for error in errors if error.code() not in LEADER_CHANGES]:
                raise ck.KafkaException(others[0])
            if errors:
                metadata(consumer, topic)  # otherwise the client goes on asking the old leader
            return not errors

        wait_until(is_answered, f"the ends of {topic}")
        return found

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Records and returns the group's committed offsets; none while its coordinator does not answer."""
        # a consumer is used: the admin client aborts the process if a coordinator answers after its time-out
        consumer = self._consumer(group, {})
        wanted = [ck.TopicPartition(topic, p) for p in self.cluster.partitions(topic)]
        try:
            found = {p.partition: p.offset for p in consumer.committed(wanted, timeout=5) if p.offset >= 0}
        except ck.KafkaException as error:
            if error.args[0].code() in COORDINATOR_CHANGES:
                return {}
            raise
        self.history.positions(group, {TopicPartition(topic, p): position for p, position in found.items()})
        return found

    def _consumer(self, group: str, settings: dict[str, str]) -> ck.Consumer:
        if group not in self._consumers:
            self._consumers[group] = ck.Consumer({**self.common, "group.id": group, **settings})
        return self._consumers[group]

    def await_done(self, group: str, *topics: str) -> None:
        """Returns once the group's committed offsets are the ends of every partition of these topics."""
        for topic in topics:
            self.await_no_open_transaction(topic)
            wait_until(partial(self._has_read_out, group, topic), f"{group} has read {topic} out")

    def _has_read_out(self, group: str, topic: str) -> bool:
        """Reads the ends again each time: an at_most_once processor commits offsets before it writes its outputs."""
        positions, ends = self.committed(group, topic), self.ends(topic)
        # a group begins with a committed offset of 0 in an empty partition
        return {p: at for p, at in positions.items() if at} == {p: end for p, end in ends.items() if end}

    def await_no_open_transaction(self, *topics: str) -> None:
        """Returns once the last stable offset of every partition is its high watermark."""
        for topic in topics:
            wait_until(
                lambda: self.ends(topic) == self.ends(topic, "read_uncommitted"),  # noqa: B023
                f"all transactions on {topic} are finished",
            )

    def await_in_sync(self) -> None:
        """Returns once every replica of every topic is in sync and each partition has a leader."""

        def full() -> bool:
            topics = metadata(self.admin).topics.values()
            return all(len(p.isrs) == len(p.replicas) and p.leader >= 0 for t in topics for p in t.partitions.values())

        wait_until(full, "every replica is in sync")

    def await_equal_replicas(self, kafka: EmbeddedKafka, *topics: str) -> None:
        """Returns once all replicas of each partition are equal byte by byte in the brokers' log files."""
        for topic in topics:
            for p in self.cluster.partitions(topic):

                def equal() -> bool:
                    logs = [
                        b"".join(segment.read_bytes() for segment in sorted(replica.glob("*.log")))
                        for replica in kafka.data_dir.glob(f"broker-*/data/{topic}-{p}")  # noqa: B023
                    ]
                    return len(logs) > 1 and len(set(logs)) == 1

                wait_until(equal, f"the replicas of {topic}[{p}] are equal")

    # The verdict.

    def anomalies(self, *expected: Expected) -> list[Anomaly]:
        """Reads every topic to its end a last time, then checks the whole history."""
        for each in expected:
            self.topics |= {each.inputs} if isinstance(each.inputs, str) else {*each.inputs}
            self.topics |= {each.to} if isinstance(each.to, str) else {*each.to}
        self.await_no_open_transaction(*sorted(self.topics))
        for topic in sorted(self.topics):
            ends = self.ends(topic, "read_uncommitted")
            self.history.final_read("afterwards", topic, self.cluster.read(topic), ends)
        return check(self.history, expected)

    def verify(self, *expected: Expected) -> None:
        """Fails with the evidence if the history has any anomaly."""
        anomalies = self.anomalies(*expected)
        assert not anomalies, explain(anomalies)


class Feeder:
    """A plain producer that writes in a thread; idempotent, so that a resent record is stored once."""

    def __init__(self, recorder: Recorder, record: Callable[[int], Record], at_once: int, per_second: int) -> None:
        self.recorder = recorder
        self.written = 0
        self.failure: BaseException | None = None
        self._record = record
        self._per_second = per_second
        self._at_once = at_once
        self._ending = threading.Event()
        # one request at a time gives one order for all records
        self._delivered: Callable[[object, Any], None] = recorder.history.on_delivery(sender="feeder")
        self._producer = ck.Producer(
            {
                **recorder.common,
                "enable.idempotence": True,
                "max.in.flight": 1,  # with more, librdkafka #4953 doubles records when a leader moves (seen here)
                "partitioner": "murmur2_random",
                "linger.ms": 5,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write(self._at_once)
            while not self._ending.wait(0.25):  # the pace: a worker commits what comes at once
                self._write(self._per_second // 4)
            assert self._producer.flush(60) == 0, "not all records were acknowledged"
        except BaseException as error:
            self.failure = error

    def _write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            self._send(self._record(number))
        self.written += count
        self._producer.poll(0)

    def _send(self, record: Record) -> None:
        topic, value, key, partition = record
        self.recorder.topics.add(topic)
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery=self._delivered)
                return
            except BufferError:
                self._producer.poll(0.05)

    def finish(self) -> None:
        self._ending.set()
        self._thread.join()


class Reader:
    """A plain read_committed consumer that reads whole topics in a thread and records them."""

    def __init__(self, recorder: Recorder, topics: tuple[str, ...]) -> None:
        self.recorder = recorder
        self.failure: BaseException | None = None
        self.values: dict[str, list[bytes]] = {topic: [] for topic in topics}
        self.times: dict[tuple[str, int], list[float]] = defaultdict(list)
        self._name = f"concurrent reader {time.monotonic_ns()}"
        self._reached = {(topic, p): 0 for topic in topics for p in recorder.cluster.partitions(topic)}
        self._stopping = threading.Event()
        self._consumer = ck.Consumer(
            {
                **recorder.common,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
            }
        )
        starts = [ck.TopicPartition(topic, p, 0) for topic, p in self._reached]
        for start in starts:
            watermarks(self._consumer, start)
        self._consumer.assign(starts)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                found: list[Any] = self._consumer.consume(1_000, 0.05)
                self.recorder.history.read(self._name, [m for m in found if m.error() is None])
                for m in found:
                    self._take(m)
        except BaseException as error:
            self.failure = error
        finally:
            self._consumer.close()

    def _take(self, m: Any) -> None:
        place = m.topic(), m.partition()
        if m.error() is None:
            self.values[m.topic()].append(m.value())
            self.times[place].append(time.monotonic())
            self._reached[place] = m.offset() + 1
        elif m.error().code() == ck.KafkaError._PARTITION_EOF:
            self._reached[place] = m.offset()
        elif m.error().code() == ck.KafkaError._AUTO_OFFSET_RESET:
            raise ck.KafkaException(m.error())

    def await_more(self, count: int) -> None:
        """Returns once `count` more records of each topic have been read since the call."""
        wanted = {topic: len(values) + count for topic, values in self.values.items()}
        wait_until(
            lambda: self.failure or all(len(values) >= wanted[topic] for topic, values in self.values.items()),
            f"{count} more records of each of {', '.join(wanted)}",
        )
        assert self.failure is None, self.failure

    def finish(self) -> None:
        """Reads to the present ends and stops: nothing more is written."""
        for topic in self.values:
            ends = self.recorder.ends(topic)
            wait_until(
                lambda: self.failure or all(self._reached[topic, p] >= end for p, end in ends.items()),  # noqa: B023
                f"the concurrent reader at {ends} of {topic}",
            )
        self.stop()
        for topic in self.values:
            ends = self.recorder.ends(topic, "read_uncommitted")
            self.recorder.history.read_out(self._name, topic, ends)
        for (topic, p), times in sorted(self.times.items()):
            gap, at = max(((b - a, a - times[0]) for a, b in itertools.pairwise(times)), default=(0.0, 0.0))
            logger.info("%s[%d]: %d records, %.1f s without one from %.1f s on", topic, p, len(times), gap, at)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
