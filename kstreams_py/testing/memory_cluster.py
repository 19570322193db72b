"""MemoryCluster: a cluster in memory, on a clock that only the test moves, with injected faults.

It is deterministic, and only one thread may use it. It follows Kafka's rules (memory_broker.py) and passes the same
contract suite as a real cluster (tests/contract/)::

    cluster = MemoryCluster()
    cluster.create_topics([("in", 1, -1, {}), ("out", 1, -1, {})])
    cluster.append("in", b"hello")
    # the second commit is carried out, but its answer is lost
    cluster.faults.inject("commit_transaction", nth=2, error=OutcomeUnknown("no answer"))
    ...
    assert [m.value() for m in cluster.records("out")] == [b"HELLO"]

Nothing happens between two calls: `consume` never waits, and the effects of time (time-outs, expired sessions,
lingering records, late requests) happen at the next call after the clock was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.kafka.contracts import Consumer, ProducerMode, TopicInfo
from kstreams_py.kafka.groups import POSITIONS_TOPIC, GroupOffsets, Pending, positions_partition
from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.records import Headers, Message, Positions, TopicPartition
from kstreams_py.testing.events import Isolation
from kstreams_py.testing.memory_broker import Broker
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer, Network
from kstreams_py.testing.memory_records import Content, Marker, as_read, milliseconds
from kstreams_py.testing.memory_source import MemorySource
from kstreams_py.testing.memory_target import MemoryTarget
from kstreams_py.testing.request_faults import Outage, RequestFault


class Faults:
    """Injects faults into one MemoryCluster."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def requests(self) -> Sequence[str]:
        """The names of all requests so far, in order."""
        return self._network.requests

    def watch(self, watcher: Callable[[str, object], RequestFault | None]) -> None:
        """Calls `watcher` before each request with its name and its producer or consumer (None: the cluster itself).

        The watcher may move the clock, run other workers meanwhile, or return a fault for this request. If it raises,
        the request is not made.
        """
        self._network.watcher = watcher

    def inject(
        self,
        request: str,
        *,
        nth: int = 1,
        error: BaseException | None = None,
        applied: bool = True,
        late: float | None = None,
    ) -> None:
        """Injects a fault into the nth request of a name from now on.

        - `request`: a name in `requests`, or "" for any.
        - `error`: raised in the caller; required for a lost request.
        - `applied`: whether the request is carried out or lost.
        - `late`: seconds after which the request reaches the broker (once more); its producer is then tainted.

        Requests have the names of the calls, with exceptions: `write` makes a "produce" for each batch to a partition.
        A transaction makes an "add_partition" for each partition, and an "add_offsets" before its first offsets. A
        client with retries repeats a "produce" or "add_partition" after a Retriable error; other errors fail the batch.
        """
        self._network.inject(request, nth, RequestFault(error, applied, late))

    def begin_outage(
        self, seconds: float, requests: Collection[str], applied: Callable[[], bool] = lambda: False
    ) -> None:
        """Makes requests of these names raise Retriable for `seconds`.

        - `applied`: called for each request; returns whether it is carried out.

        With "heartbeat", the groups are unavailable to their members: no session ends, and no rebalance happens.
        """
        self._network.begin_outage(Outage(self._network.clock() + seconds, frozenset(requests), applied))

    def limit_queues(self, records: int) -> None:
        """Makes `write` raise once a producer has this many unanswered records, as librdkafka does at a full queue."""
        self._network.queue_records = records

    def delete_topic(self, topic: str) -> None:
        """Deletes a topic and the committed offsets of its partitions."""
        self._network.pass_time()
        self._network.broker.delete_topic(topic)

    def forget_positions(self, group: str) -> None:
        """Deletes a group's committed offsets, as a broker does after the group had no members for too long."""
        self._network.pass_time()
        self._network.broker.group(group).positions.clear()

    def hold_markers(self, partition: TopicPartition) -> None:
        """Holds back the markers of a partition until they are released. POSITIONS stands for the committed offsets.

        Until then, the transaction is open in this partition alone, and its producer begins no other one.
        """
        self._network.broker.markers.hold(partition)

    def release_markers(self, partition: TopicPartition) -> None:
        """Writes the markers of a partition that were held back."""
        self._network.broker.markers.release(partition)

    def skip_markers(self, *partitions: TopicPartition) -> None:
        """Writes no markers to these partitions from now on: transactions hang there. POSITIONS: see hold_markers."""
        self._network.pass_time()
        self._network.broker.markers.skipped = set(partitions)

    def end_hanging(self, transactional_id: str, partition: TopicPartition, *, commits: bool) -> None:
        """Writes the marker that a partition did not get, as an operator does."""
        self._network.pass_time()
        (mine,) = [each for each in self._network.opened.values() if each.transactional_id == transactional_id]
        self._network.broker.markers.write(partition, Marker(mine.producer_id, commits))


class ManualClock:
    """A clock that only `advance` moves; seconds since 1970."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock. It also serves as `sleep`."""
        self._now += seconds


class Groups(Mapping[str, Positions]):
    """The committed offsets of each group, by its name; empty for an unknown group."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getitem__(self, name: str) -> Positions:
        self._network.pass_time()
        return dict(self._network.broker.group(name).positions)

    def __iter__(self) -> Iterator[str]:
        return iter(self._network.broker.groups)

    def __len__(self) -> int:
        return len(self._network.broker.groups)


class _Reader:
    """Reads partitions without a group, as kafka/reader.py does."""

    _network: Network
    _broker: Broker

    def starts(self, partitions: Collection[TopicPartition], since: int | None = None) -> Positions:
        return self._network.request(
            "starts", lambda: {tp: self._broker.partition(tp).first(since) for tp in partitions}
        )

    def ends(self, partitions: Collection[TopicPartition], *, committed: bool = True) -> Positions:
        def end(tp: TopicPartition) -> int:
            partition = self._broker.partition(tp)
            return partition.stable if committed else partition.end

        return self._network.request("ends", lambda: {tp: end(tp) for tp in partitions})

    def newest(self, partition: TopicPartition) -> Message | None:
        def newest() -> Message | None:
            found = self._broker.partition(partition).newest()
            return None if found is None else as_read(found, None)

        return self._network.request("newest", newest)

    def read(
        self, partition: TopicPartition, start: int = 0, limit: int | None = None, *, committed: bool = True
    ) -> Sequence[Message]:
        asked = Isolation.COMMITTED if committed else Isolation.UNCOMMITTED

        def read() -> list[Message]:
            return [as_read(m, None) for m in islice(self._broker.partition(partition).read(start, asked), limit)]

        return self._network.request("read", read)


class _Transactions(_Reader):
    """Reads committed and pending offsets of groups, and open transactions."""

    def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> GroupOffsets:
        def read() -> GroupOffsets:
            found = self._broker.group(group)
            pending = {tp for positions in found.pending.values() for tp in positions}
            committed = {tp: found.positions[tp] for tp in sorted(partitions) if tp in found.positions}
            return GroupOffsets(committed, frozenset(pending & set(partitions)))

        return self._network.request("group_offsets", read)

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        def describe() -> Pending:
            held = self._broker.group(group).pending
            pinned = sorted(set(partitions) & {tp for positions in held.values() for tp in positions})
            if not pinned:
                return Pending(group, ())
            kept_in = TopicPartition(POSITIONS_TOPIC, positions_partition(group, 1))
            return Pending(group, tuple(pinned), kept_in, tuple(self._network.opened[each] for each in sorted(held)))

        return self._network.request("pending", describe)

    def open_transactions(self, partition: TopicPartition) -> tuple[OpenTransaction, ...]:
        def describe() -> tuple[OpenTransaction, ...]:
            starts = self._broker.partition(partition).writers
            return tuple(replace(self._network.opened[each], start=start) for each, start in starts.items())

        return self._network.request("open_transactions", describe)

    def hanging(
        self, transactional_id: str, partitions: Collection[TopicPartition], group: str = ""
    ) -> dict[TopicPartition, OpenTransaction]:
        def describe() -> dict[TopicPartition, OpenTransaction]:
            found = self._broker.hanging(transactional_id, partitions, group)
            opened = self._network.opened
            return {
                tp: replace(opened[held], start=start, hangs=True, state="Empty") for tp, (held, start) in found.items()
            }

        return self._network.request("hanging", describe)


class MemoryCluster(_Transactions):
    """kafka.contracts.Cluster in memory. Times are in seconds.

    - `clock`: a ManualClock by default.
    - `transaction_timeout`, `session_timeout`: as in Kafka.
    - `linger`: how long producers keep records before they send them, unless a flush or a commit comes first. A
      producer that is dropped loses them.
    - `marker_delay`: how long after the answer to a commit its records and offsets become visible.
    - `chance`: a seeded Random: fetches return partitions in random order, and sometimes few or no records.
    - `metadata_age`: the longest time until consumers learn of new partitions.

    `named` returns another cluster of the same kind, made at its first use, with faults of its own. `faults` injects
    faults. `groups` has the committed offsets of each group, by its name.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        transaction_timeout: float = 10.0,
        session_timeout: float = 10.0,
        linger: float = 0.0,
        marker_delay: float = 0.0,
        chance: Random | None = None,
        metadata_age: float = 0.0,
    ) -> None:
        self.clock: Callable[[], float] = clock or ManualClock()
        self._broker = Broker(
            transaction_timeout=transaction_timeout, session_timeout=session_timeout, marker_delay=marker_delay
        )
        self._network = Network(self._broker, self.clock, linger, chance)
        self._metadata_age = metadata_age
        self._others: dict[str, MemoryCluster] = {}
        self._make_other = partial(
            MemoryCluster,
            self.clock,
            transaction_timeout=transaction_timeout,
            session_timeout=session_timeout,
            linger=linger,
            marker_delay=marker_delay,
            chance=chance,
            metadata_age=metadata_age,
        )
        self.faults = Faults(self._network)
        self.groups = Groups(self._network)

    def limit_values(self, size: int) -> None:
        """Limits the size of values that consumers read, as the setting `value_bytes_max` does."""
        self._network.value_bytes_max = size

    # kafka.contracts.Cluster

    def named(self, name: str) -> MemoryCluster:
        if not name:
            return self
        if name not in self._others:
            self._others[name] = self._make_other()
        return self._others[name]

    def consumer(self, group: str, instance_id: str, **_: bool) -> MemoryConsumer:
        return MemoryConsumer(self._network, group, instance_id, self._metadata_age)

    def producer(
        self,
        mode: ProducerMode,
        transactional_id: str,
        batch_bytes: int | None = None,  # noqa: ARG002, records are sent one by one here
    ) -> MemoryProducer:
        return MemoryProducer(self._network, mode, transactional_id)

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        def describe() -> dict[str, TopicInfo]:
            found = {name: self._broker.topics[name] for name in names if name in self._broker.topics}
            return {
                name: TopicInfo(
                    name, topic.topic_id, len(topic.partitions), 1, dict(topic.settings), topic.own_settings
                )
                for name, topic in found.items()
            }

        return self._network.request("topics", describe)

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        def create() -> None:
            for name, partitions, _, settings in topics:
                self._broker.create_topic(name, partitions, settings)

        self._network.request("create_topics", create)

    def delete_topics(self, names: Collection[str]) -> None:
        def delete() -> None:
            for name in names:
                if name in self._broker.topics:
                    self._broker.delete_topic(name)

        self._network.request("delete_topics", delete)

    def leave(self, consumer: Consumer) -> bool:
        assert isinstance(consumer, MemoryConsumer)
        return self._network.request("leave", consumer.give_up)

    def grow(self, topic: str, partitions: int) -> None:
        self._network.request("grow", lambda: self._broker.grow_topic(topic, partitions))

    def offsets_retention_minutes(self) -> int | None:
        return None

    def truncate(self, partition: TopicPartition, before: int) -> None:
        self._network.request("truncate", lambda: self._broker.partition(partition).truncate(before))

    # For tests.

    def target(
        self,
        evidence: Evidence | str = Evidence.HASH,
        refuses: Callable[[tuple[Any, ...]], str] = lambda _: "",
        check: Callable[[Sequence[Row]], None] = lambda _: None,
    ) -> MemoryTarget:
        """Makes a sink's target whose requests have the faults of this cluster; see MemoryTarget."""
        return MemoryTarget(self._network, Evidence(evidence), refuses, check)

    def source(self, values: Iterable[Any] = ()) -> MemorySource:
        """Makes a source of these inputs, whose requests have the faults of this cluster; see MemorySource."""
        return MemorySource(values, clock=self.clock, request=self._network.request)

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int = -1,
    ) -> None:
        """Writes a record outside of any transaction, without faults; parameters as in kafka.contracts.Output.

        - `headers`: a name with lone surrogates stands for bytes that are not UTF-8, as in `os.fsdecode`.
        - `timestamp`: None is the current time; 0 stays 0, which other clients can write.
        """
        self._network.pass_time()
        now = self.clock()
        at = milliseconds(now) if timestamp is None else timestamp
        content = Content(key, value, list(headers) if headers else None, at)
        number = self._broker.topic(topic).partition_for(key) if partition < 0 else partition
        self._broker.produce(TopicPartition(topic, number), [content], None, None)

    def records(self, topic: str, isolation: Isolation | str = Isolation.COMMITTED) -> Sequence[Message]:
        """Returns the records of a topic that are visible at this isolation level, by partition and offset."""
        self._network.pass_time()
        asked = Isolation(isolation)
        return [m for partition in self._broker.topic(topic).partitions for m in partition.read(0, asked)]
