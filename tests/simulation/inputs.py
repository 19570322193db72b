"""The inputs of a simulated run: plain records, and transactions of other producers that end late or are aborted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from kstreams_py.errors import ClientError
from kstreams_py.graph.guarantees import Durability
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from kstreams_py.testing import MemoryCluster
from tests.simulation.plan import EO, FAILS, GHOST, HALTS, PARTITIONS, REFUSED, SKIPS, STOPS, Plan


class Inputs:
    """The records of all input partitions, written bit by bit, each with a different value.

    Every partition has gaps: markers, aborted ranges, and open transactions that delay the records after them.
    """

    def __init__(self, plan: Plan, cluster: MemoryCluster, random: Random, *, older: bool) -> None:
        """With `older`, each partition already has records, which must not be read."""
        self.unsettled: set[bytes] = set()
        """The values of transactions that are still open."""
        self.fed_at = 0.0
        """Clock time of the last write."""
        self.recreations = dict.fromkeys(plan.inputs, 0)
        """How often each topic was deleted and created again."""
        self._plan = plan
        self._cluster = cluster
        self._random = random
        self._counts = dict.fromkeys(plan.inputs, PARTITIONS)
        if older:
            for tp in self.partitions:
                self._append(tp, [b"older", b"older"])
        self.starts = cluster.ends(self.partitions)
        """The first offset that must be read, for partitions with older records."""
        self._writes = list(self._mixed([self._feed_of(tp) for tp in self.partitions]))

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self._counts.items() for number in range(count)]

    @property
    def left(self) -> bool:
        """More records will be written."""
        return bool(self._writes)

    def feed(self) -> None:
        """Writes up to nine times, often not at all."""
        for _ in range(self._random.choice((9, 0, 0, 1, 1, 2))):
            if self._writes:
                self._write(self._writes.pop(0))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes in spite of outages, which are for the workers only."""
        network = self._cluster._network
        outages, network._outages = network._outages, []
        write()
        network._outages = outages
        self.fed_at = self._cluster.clock()

    @property
    def behind(self) -> list[str]:
        """Topics that have fewer partitions than others, because only the others have grown."""
        return [topic for topic, count in self._counts.items() if count < max(self._counts.values())]

    def grow(self, topics: Sequence[str]) -> None:
        """Adds a partition to topics, and writes its first records at once."""
        for topic in topics:
            count = self._counts[topic]
            self._counts[topic] = count + 1
            self._cluster.grow(topic, count + 1)
            first, *feed = self._feed_of(TopicPartition(topic, count))
            self._write(first)
            self._writes = list(self._mixed([self._writes, feed]))

    def remake(self, topic: str) -> None:
        """Deletes a topic and creates it again; the remaining records are written to the new one."""
        self._cluster.faults.delete_topic(topic)
        self._cluster.create_topics([(topic, self._counts[topic], -1, {})])
        self.recreations[topic] += 1
        self.starts = {tp: 0 if tp.topic == topic else start for tp, start in self.starts.items()}

    def _mixed(self, feeds: list[list[Callable[[], None]]]) -> Iterator[Callable[[], None]]:
        """All writes in random order, those of each feed in its order."""
        feeds = [feed for feed in feeds if feed]
        while feeds:
            yield self._random.choice(feeds).pop(0)
            feeds = [feed for feed in feeds if feed]

    def _feed_of(self, tp: TopicPartition) -> list[Callable[[], None]]:
        feed: list[Callable[[], None]] = []
        held: list[Callable[[], None]] = []
        index = 0
        while index < self._plan.records:
            count = min(self._random.randint(1, 3), self._plan.records - index)
            values = [self._value(tp, index + i) for i in range(count)]
            index += count
            if self._random.random() < 0.5:  # else the transaction before it ends after its first write
                feed += held
                held = []
            writes, end = self._written(tp, values)
            feed += [writes[0], *held, *writes[1:]]
            held = end
        return feed + held

    def _value(self, tp: TopicPartition, index: int) -> bytes:
        mark = self._random.choices((b"", FAILS, SKIPS, HALTS, STOPS, REFUSED), (20, 3, 2, 1, 1, 1))[0]
        return f"{tp.topic}{tp.partition}.{index}".encode() + (mark if tp.topic == "a" else b"")

    def _written(
        self, tp: TopicPartition, values: list[bytes]
    ) -> tuple[list[Callable[[], None]], list[Callable[[], None]]]:
        """Returns the writes of these values, and the writes that end their transaction, if there is one."""
        how = self._random.choice(("plain", "plain", "committed", "aborted"))
        if how == "plain":
            return [lambda: self._append(tp, values)], []
        mode, name = producer_mode(EO, Durability.COMMITTED), f"producer of {values[0]!r}"
        other_producer = self._cluster.producer(mode, name)
        written = [GHOST + value for value in values] if how == "aborted" else values

        def write() -> None:
            other_producer.init_transactions()
            other_producer.begin_transaction()
            at = tp.partition
            other_producer.write([(tp.topic, value, self._key(), at, None, None, 0, None) for value in written])
            other_producer.flush()
            self.unsettled.update(written)

        def end() -> None:
            self.unsettled.difference_update(written)
            try:
                other_producer.abort_transaction() if how == "aborted" else other_producer.commit_transaction()
            except ClientError:  # the transaction has timed out
                if how == "committed":
                    self._append(tp, [value + b"'" for value in values])

        return [write] if how == "committed" else [write, lambda: self._append(tp, values)], [end]

    def _key(self) -> bytes:
        return self._random.choice((b"k1", b"k2", b"k3"))

    def _append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        for value in values:
            self._cluster.append(tp.topic, value, self._key(), partition=tp.partition)
