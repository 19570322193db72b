"""What goes on around the workers: departures come in, a reader counts what is committed, slots are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from threading import Event
from typing import Final

from kstreams_py.delivery import PROMISES, Consumer, Durability, Guarantee, Log, Output
from kstreams_py.demo.data import FIELDS, ORIGIN, TAILNUM, TIME_HOUR, Row
from kstreams_py.errors import LogError
from kstreams_py.record import Message, Positions, TopicPartition
from kstreams_py.serde import Registry, bind
from kstreams_py.topology import Graph, Processor

TICK: Final = 0.05
"""Seconds between two batches of departures."""


@lru_cache(maxsize=16)
def _milliseconds(hour: str) -> int:
    return int(datetime.fromisoformat(hour).timestamp() * 1000)


class Loader:
    """Writes the departures to their airports' topics, evenly over a time."""

    def __init__(self, log: Log, registry: Registry, graph: Graph, rows: Sequence[Row], seconds: float) -> None:
        self.written = 0
        self.records = len(rows)
        self.done = False
        """All is written and acknowledged."""
        self._rows = rows
        self._seconds = seconds
        self._producer = log.producer(PROMISES[Guarantee.AT_LEAST_ONCE], Durability.COMMITTED, f"{graph.name}.loader")
        self._topics = {
            origin: (topic.name, bind(topic.value, registry, f"{topic.name}-value").serialize)
            for origin in {row[ORIGIN] for row in rows}
            for topic in [graph.topics[f"flights.{origin.lower()}"]]
        }

    def run(self, stopping: Event) -> None:
        """Returns once all is acknowledged, or when told to stop."""
        started = time.monotonic()
        while self.written < len(self._rows) and not stopping.is_set():
            share = min(1.0, (time.monotonic() - started) / self._seconds)
            due = self._rows[self.written : int(share * len(self._rows))]
            self._producer.write([self._record(row) for row in due])
            self.written += len(due)
            stopping.wait(TICK)
        self._producer.flush()
        self.done = self.written == len(self._rows)

    def _record(self, row: Row) -> Output:
        topic, serialize = self._topics[row[ORIGIN]]
        key = None if row[TAILNUM] is None else row[TAILNUM].encode()
        value = serialize(dict(zip(FIELDS, row, strict=True)))
        return (topic, value, key, -1, None, None, _milliseconds(row[TIME_HOUR]), None)


class Watch:
    """A reader of every topic from its start, as records become visible: committed ones only."""

    def __init__(self, log: Log, partitions: Iterable[TopicPartition]) -> None:
        self.counts: Counter[str] = Counter()
        self.arrivals: list[tuple[float, str, int]] = []
        """(monotonic time, topic, records), in order."""
        self.reached: Positions = {}
        """The position after the last record seen."""
        self.longest_pause: dict[str, float] = {}
        """Per topic, the longest time in seconds that one of its partitions had nothing new, between two records."""
        self.last_arrival = time.monotonic()
        self._last: dict[TopicPartition, float] = {}
        self._consumer = log.consumer("flights.demo.watch", "flights.demo.watch")
        self._consumer.assign(dict.fromkeys(partitions, 0))

    def run(self, stopping: Event) -> None:
        """Reads until told to stop."""
        while not stopping.is_set():
            self.look()
        self._consumer.close()

    def look(self) -> int:
        """Takes in what there is, and returns how many records that was."""
        records = self._consumer.consume(10_000, 0.1)
        if records:
            self._saw(records, time.monotonic())
        return len(records)

    def has_seen(self, ends: Positions) -> bool:
        """Whether all that was visible when these were the ends has been seen."""
        return all(self._consumer.ends.get(tp, -1) >= end for tp, end in ends.items())

    def _saw(self, records: Sequence[Message], now: float) -> None:
        reached = {TopicPartition(m.topic(), m.partition()): m.offset() + 1 for m in records}
        for tp in reached:
            pause = now - self._last.get(tp, now)
            self.longest_pause[tp.topic] = max(pause, self.longest_pause.get(tp.topic, 0.0))
            self._last[tp] = now
        self.last_arrival = now
        self.reached.update(reached)
        counts = Counter(m.topic() for m in records)
        self.counts.update(counts)
        self.arrivals += [(now, topic, n) for topic, n in counts.items()]


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL: when (monotonic seconds), and whom it met."""

    at: float
    slot: int
    pid: int


class Kills:
    """Kills a random slot's worker each time the work done reaches one of some random marks, in records."""

    def __init__(self, number: int, records: int, seed: int) -> None:
        self._random = random.Random(seed)
        first, last = int(0.05 * records), int(0.97 * records)
        self._due = sorted((self._random.randint(first, last) for _ in range(number)), reverse=True)
        self.done: list[Kill] = []

    @property
    def left(self) -> int:
        """How many are still to come."""
        return len(self._due)

    def look(self, done: int, pids: Mapping[int, int]) -> Kill | None:
        """Kills a worker if it is time; one that was not killed before, since its process may not be reaped yet."""
        killed = {kill.pid for kill in self.done}
        living = {slot: pid for slot, pid in pids.items() if pid not in killed}
        if not self._due or done < self._due[-1] or not living:
            return None
        slot = self._random.choice(sorted(living))
        kill = Kill(time.monotonic(), slot, living[slot])
        try:
            os.kill(kill.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None  # it has ended by itself; the next one is met
        self._due.pop()
        self.done.append(kill)
        return kill


class Progress:
    """Whether the graph's processors have done all there is, by what their groups have committed."""

    def __init__(self, log: Log, graph: Graph, partitions: Iterable[TopicPartition], watch: Watch) -> None:
        self._log = log
        self._watch = watch
        self._partitions = sorted(partitions)
        self._groups: list[tuple[Processor, Consumer]] = [
            (processor, log.consumer(f"{graph.name}.{processor.id}", f"{graph.name}.demo.progress"))
            for processor in graph.processors
        ]

    def complete(self) -> bool:
        """Asks for one processor after the other, in the order of the graph: what one has done is the next one's input.

        A position may stay before the end, where only transaction markers follow; the last record counts.
        """
        try:
            return all(self._done(processor, consumer) for processor, consumer in self._groups)
        except LogError:
            return False  # not known now

    def _done(self, processor: Processor, consumer: Consumer) -> bool:
        names = {topic.name for topic in processor.inputs}
        inputs = [tp for tp in self._partitions if tp.topic in names]
        if not self._watch.has_seen(self._log.ends(inputs)):
            return False
        committed = consumer.committed(inputs)
        return all(committed.get(tp, 0) >= self._watch.reached.get(tp, 0) for tp in inputs)

    def close(self) -> None:
        """Lets the groups go."""
        for _, consumer in self._groups:
            consumer.close()


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a run looked like from outside. Times are monotonic, in seconds."""

    started: float
    arrivals: Sequence[tuple[float, str, int]]
    kills: Sequence[Kill]
    longest_pause: float
    """The longest time without a new departed flight in some partition, between two of them."""
