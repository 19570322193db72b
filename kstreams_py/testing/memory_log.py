"""MemoryLog: a delivery.Log without a cluster, on a clock that only the test moves, with faults on request.

It is deterministic and for one thread; it keeps Kafka's rules (memory_broker.py) and passes the contract suite that the
real one passes (tests/contract/)::

    log = MemoryLog()
    log.create_topics([("in", 1, -1, {}), ("out", 1, -1, {})])
    log.append("in", b"hello")
    log.inject("commit_transaction", nth=2, error=OutcomeUnknown("no answer"))       # carried out, the answer is lost
    ...
    assert [m.value() for m in log.records("out")] == [b"HELLO"]

Nothing happens while a test does nothing: `consume` never waits, and what time brings (time-outs, expired sessions,
lingering records, late requests) comes with the next call after the clock was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random

from kstreams_py.delivery import Consumer, Durability, Promise, TopicInfo
from kstreams_py.groups import POSITIONS_TOPIC, Pending, positions_partition
from kstreams_py.record import Headers, Message, Positions, TopicPartition
from kstreams_py.testing.memory_broker import Broker, Content, Isolation
from kstreams_py.testing.memory_clients import Fault, MemoryConsumer, MemoryProducer, Network, Outage


class ManualClock:
    """A clock that only `advance` moves; seconds since 1970."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the clock; serves as the `sleep` of what waits."""
        self._now += seconds


class MemoryLog:
    """delivery.Log in memory.

    `transaction_timeout` and `session_timeout` are in seconds of the clock. With `linger` (seconds), what producers
    write stays with them for so long, or until a flush or a commit, and a producer that is dropped loses it. With
    `marker_delay` (seconds), a transaction's records and positions show that much after the answer to its commit. With
    `chance` (seeded), a consumer gets what happens to have come: of any partition first, little or nothing at times.
    Consumers learn of new partitions after `metadata_age` (seconds) at most.
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

    # delivery.Log

    def consumer(self, group: str, instance_id: str, **_: bool) -> MemoryConsumer:
        return MemoryConsumer(self._network, group, instance_id, self._metadata_age)

    def producer(
        self,
        promise: Promise,
        durability: Durability,
        transactional_id: str,
        batch_bytes: int | None = None,  # noqa: ARG002, records travel one by one here
    ) -> MemoryProducer:
        return MemoryProducer(self._network, promise, durability, transactional_id)

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        def describe() -> dict[str, TopicInfo]:
            found = {name: self._broker.topics[name] for name in names if name in self._broker.topics}
            return {
                name: TopicInfo(name, topic.topic_id, len(topic.partitions), 1, dict(topic.settings))
                for name, topic in found.items()
            }

        return self._network.request("topics", describe)

    def create_topics(self, topics: Iterable[tuple[str, int, int, Mapping[str, str]]]) -> None:
        def create() -> None:
            for name, partitions, _, settings in topics:
                self._broker.create_topic(name, partitions, settings)

        self._network.request("create_topics", create)

    def leave(self, consumer: Consumer) -> bool:
        assert isinstance(consumer, MemoryConsumer)
        return self._network.request("leave", consumer.give_up)

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        def describe() -> Pending:
            held = self._broker.group(group).pending
            pinned = sorted(set(partitions) & {tp for positions in held.values() for tp in positions})
            if not pinned:
                return Pending(group, ())
            kept_in = TopicPartition(POSITIONS_TOPIC, positions_partition(group, 1))
            return Pending(group, tuple(pinned), kept_in, tuple(self._network.opened[each] for each in sorted(held)))

        return self._network.request("pending", describe)

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        return self._network.request("ends", lambda: {tp: self._broker.partition(tp).stable for tp in partitions})

    def starts(self, partitions: Collection[TopicPartition]) -> Positions:
        return self._network.request("starts", lambda: {tp: self._broker.partition(tp).start for tp in partitions})

    def grow(self, topic: str, partitions: int) -> None:
        self._network.request("grow", lambda: self._broker.grow_topic(topic, partitions))

    def offsets_retention_minutes(self) -> int | None:
        return None

    def read(self, partition: TopicPartition) -> Sequence[Message]:
        return self._network.request("read", lambda: list(self._broker.partition(partition).read(0, "read_committed")))

    def newest(self, partition: TopicPartition) -> Message | None:
        return self._network.request("newest", self._broker.partition(partition).newest)

    def truncate(self, partition: TopicPartition, before: int) -> None:
        self._network.request("truncate", lambda: self._broker.partition(partition).truncate(before))

    # What is there.

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int = 0,
        partition: int = -1,
    ) -> None:
        """Writes a record outside of any transaction, past all faults; arguments as in delivery.Output."""
        self._network.pass_time()
        now = self.clock()
        content = Content(key, value, list(headers) if headers else None, timestamp or int(now * 1000))
        number = self._broker.topic(topic).place(key) if partition < 0 else partition
        self._broker.produce(TopicPartition(topic, number), [content], None, None)

    def records(self, topic: str, isolation: Isolation = "read_committed") -> Sequence[Message]:
        """All records of a topic that a reader sees, by partition and offset."""
        self._network.pass_time()
        return [m for partition in self._broker.topic(topic).partitions for m in partition.read(0, isolation)]

    def group(self, name: str) -> Positions:
        """The committed positions of a group."""
        self._network.pass_time()
        return dict(self._broker.group(name).positions)

    def delete(self, topic: str) -> None:
        """Deletes a topic, and the positions that groups have in it."""
        self._network.pass_time()
        self._broker.delete_topic(topic)

    def forget_positions(self, group: str) -> None:
        """Deletes a group's positions, as the broker does once the group had no members for too long."""
        self._network.pass_time()
        self._broker.group(group).positions.clear()

    # What goes wrong.

    @property
    def requests(self) -> Sequence[str]:
        """The names of all requests so far, in order: each is a place where something can break."""
        return self._network.requests

    def watch(self, watcher: Callable[[str, object], Fault | None]) -> None:
        """Calls `watcher` before each request with its name and its producer or consumer (None: the log itself).

        It may move the clock, let other workers run meanwhile, return what befalls this very request, or raise: then
        the request is never made.
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
        """Lets the nth request of this name from now on ("" for any; see `requests`) go wrong.

        It is carried out (`applied`) or lost on its way, and raises `error` (needed where it is lost) in its caller.
        With `late` seconds, the request reaches the broker (once more) that much later, and its producer is tainted.

        Requests are named as the calls are, but that `write` makes a "produce" of each batch to one partition, and a
        transaction an "add_partition" of each partition and an "add_offsets" before its first positions. A Retriable
        error of "produce" or "add_partition" makes the client try again, if that is its promise; others fail the batch.
        """
        self._network.inject(request, nth, Fault(error, applied, late))

    def begin_outage(
        self, seconds: float, requests: Collection[str], applied: Callable[[], bool] = lambda: False
    ) -> None:
        """For so long, requests of these names raise Retriable, carried out (`applied`, asked each time) or not.

        With "heartbeat", members hear nothing of their groups: no session ends, and no rebalance is served.
        """
        self._network.begin_outage(Outage(self.clock() + seconds, frozenset(requests), applied))
