"""What a simulated run reads: plain records, and transactions of strangers that end late, or in an abort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from kstreams_py.delivery import PROMISES, Durability
from kstreams_py.errors import LogError
from kstreams_py.record import TopicPartition
from kstreams_py.testing import MemoryLog
from tests.simulation.plan import EO, FAILS, GHOST, HALTS, PARTITIONS, REFUSED, SKIPS, STOPS, Plan


class Inputs:
    """The records of all input partitions, written little by little, each with a value of its own.

    So every partition has gaps: markers, aborted ranges, and open transactions that hold up what is behind them.
    """

    def __init__(self, plan: Plan, log: MemoryLog, random: Random, *, older: bool) -> None:
        """With `older`, each partition has records already that nobody is to read."""
        self.unsettled: set[bytes] = set()
        """Records of transactions that are still open."""
        self.fed_at = 0.0
        """When something was written last."""
        self.lives = dict.fromkeys(plan.inputs, 0)
        """How often each topic was deleted and created again."""
        self._plan = plan
        self._log = log
        self._random = random
        self._counts = dict.fromkeys(plan.inputs, PARTITIONS)
        if older:
            for tp in self.partitions:
                self._append(tp, [b"older", b"older"])
        self.starts = log.ends(self.partitions)
        """Where what is to be read begins, where that is not the start."""
        self._writes = list(self._mixed([self._feed_of(tp) for tp in self.partitions]))

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic, count in self._counts.items() for number in range(count)]

    @property
    def left(self) -> bool:
        """There is more to come."""
        return bool(self._writes)

    def feed(self) -> None:
        """Writes a little, or nothing."""
        for _ in range(self._random.choice((9, 0, 0, 1, 1, 2))):
            if self._writes:
                self._write(self._writes.pop(0))

    def _write(self, write: Callable[[], None]) -> None:
        """Writes, whatever the workers' leaders and coordinators may be up to."""
        network = self._log._network
        outages, network._outages = network._outages, []
        write()
        network._outages = outages
        self.fed_at = self._log.clock()

    @property
    def behind(self) -> list[str]:
        """Topics that have fewer partitions than others, because only these have grown."""
        return [topic for topic, count in self._counts.items() if count < max(self._counts.values())]

    def grow(self, topics: Sequence[str]) -> None:
        """Adds a partition to topics, with records in it before anybody can know; more are to come."""
        for topic in topics:
            count = self._counts[topic]
            self._counts[topic] = count + 1
            self._log.grow(topic, count + 1)
            first, *feed = self._feed_of(TopicPartition(topic, count))
            self._write(first)
            self._writes = list(self._mixed([self._writes, feed]))

    def remake(self, topic: str) -> None:
        """Deletes a topic and creates it again; what was still to come is written to the new one."""
        self._log.delete(topic)
        self._log.create_topics([(topic, self._counts[topic], -1, {})])
        self.lives[topic] += 1
        self.starts = {tp: 0 if tp.topic == topic else start for tp, start in self.starts.items()}

    def _mixed(self, feeds: list[list[Callable[[], None]]]) -> Iterator[Callable[[], None]]:
        """All writes to be made, those of each feed in order: plain records, transactions that end later, or never."""
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
        """How values are written, and what ends their transaction, if there is one."""
        how = self._random.choice(("plain", "plain", "committed", "aborted"))
        if how == "plain":
            return [lambda: self._append(tp, values)], []
        stranger = self._log.producer(PROMISES[EO], Durability.COMMITTED, f"stranger of {values[0]!r}")
        written = [GHOST + value for value in values] if how == "aborted" else values

        def write() -> None:
            stranger.init_transactions()
            stranger.begin_transaction()
            stranger.write([(tp.topic, value, self._key(), tp.partition, None, None, 0, None) for value in written])
            stranger.flush()
            self.unsettled.update(written)

        def end() -> None:
            self.unsettled.difference_update(written)
            try:
                stranger.abort_transaction() if how == "aborted" else stranger.commit_transaction()
            except LogError:  # it has timed out
                if how == "committed":
                    self._append(tp, [value + b"'" for value in values])

        return [write] if how == "committed" else [write, lambda: self._append(tp, values)], [end]

    def _key(self) -> bytes:
        return self._random.choice((b"k1", b"k2", b"k3"))

    def _append(self, tp: TopicPartition, values: Sequence[bytes]) -> None:
        for value in values:
            self._log.append(tp.topic, value, self._key(), partition=tp.partition)
