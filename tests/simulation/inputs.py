"""What a simulated run reads: plain records, and transactions of strangers that end late, or in an abort."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from kstreams_py.delivery import PROMISES, Durability
from kstreams_py.errors import LogError
from kstreams_py.record import TopicPartition
from kstreams_py.testing import MemoryLog
from tests.simulation.plan import EO, FAILS, GHOST, HALTS, PARTITIONS, SKIPS, STOPS, Plan


class Inputs:
    """The records of all input partitions, written little by little, each with a value of its own.

    So every partition has gaps: markers, aborted ranges, and open transactions that hold up what is behind them.
    """

    def __init__(self, plan: Plan, log: MemoryLog, random: Random) -> None:
        self.partitions = [TopicPartition(topic, number) for topic in plan.kind.inputs for number in range(PARTITIONS)]
        self.places: dict[bytes, tuple[TopicPartition, int]] = {}
        """Where each record is."""
        self.unsettled: set[bytes] = set()
        """Records of transactions that are still open."""
        self.fed_at = 0.0
        """When something was written last."""
        self._plan = plan
        self._log = log
        self._random = random
        self._writes = list(self._feeds())

    @property
    def left(self) -> bool:
        """There is more to come."""
        return bool(self._writes)

    def feed(self) -> None:
        """Writes a little, or nothing."""
        for _ in range(self._random.choice((9, 0, 0, 1, 1, 2))):
            if self._writes:
                self._writes.pop(0)()
                self.fed_at = self._log.clock()

    def _feeds(self) -> Iterator[Callable[[], None]]:
        """Writes to be made, in order: plain records, transactions that end later, or in an abort."""
        feeds = [self._feed_of(tp) for tp in self.partitions]
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
        mark = self._random.choices((b"", FAILS, SKIPS, HALTS, STOPS), (20, 3, 2, 1, 1))[0]
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
            self._locate(tp)

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
        self._locate(tp)

    def _locate(self, tp: TopicPartition) -> None:
        for m in self._log.records(tp.topic, "read_uncommitted"):
            self.places[m.value() or b""] = TopicPartition(m.topic(), m.partition()), m.offset()
