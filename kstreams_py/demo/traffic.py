"""The traffic around the workers: writes departures, counts committed records, kills and freezes workers."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from threading import Event
from typing import Final

from kstreams_py.demo.data import FIELDS, ORIGIN, TAILNUM, TIME_HOUR, Row
from kstreams_py.demo.recoveries import Kill, Seen
from kstreams_py.errors import ClientError
from kstreams_py.formats.registry import Registry
from kstreams_py.formats.serdes import bind
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, Consumer, Output
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import HASH_HEADER, Message, Positions, TopicPartition, readable_headers

TICK: Final = 0.05
"""Seconds between two batches of departures."""


FIRST_KILL: Final = 0.03
LAST_KILL: Final = 0.97
"""The fractions of the run between which all kills happen; after the last kill, its slot has more to commit."""


@lru_cache(maxsize=16)
def _milliseconds(hour: str) -> int:
    return int(datetime.fromisoformat(hour).timestamp() * 1000)


class Loader:
    """Writes the departures to their airports' topics, evenly over `seconds`."""

    def __init__(self, cluster: Cluster, registry: Registry, graph: Graph, rows: Sequence[Row], seconds: float) -> None:
        self.written = 0
        self.records = len(rows)
        self.done = False
        """Whether all departures are written and acknowledged."""
        self._rows = rows
        self._seconds = seconds
        self._producer = cluster.producer(
            producer_mode(Guarantee.AT_LEAST_ONCE, Durability.COMMITTED), f"{graph.name}.loader"
        )
        self._topics = {
            origin: (topic.name, bind(topic.value, registry, f"{topic.name}-value").serialize)
            for origin in {row[ORIGIN] for row in rows}
            for topic in [graph.topics[f"flights.{origin.lower()}"]]
        }

    def run(self, stopping: Event) -> None:
        """Writes until all departures are acknowledged, or `stopping` is set; then drops the producer."""
        started = time.monotonic()
        try:
            while self.written < len(self._rows) and not stopping.is_set():
                share = min(1.0, (time.monotonic() - started) / self._seconds)
                due = self._rows[self.written : int(share * len(self._rows))]
                self._producer.write([self._record(row) for row in due])
                self.written += len(due)
                stopping.wait(TICK)
            self._producer.flush()
            self.done = self.written == len(self._rows)
        finally:
            self._producer.drop()

    def _record(self, row: Row) -> Output:
        topic, serialize = self._topics[row[ORIGIN]]
        key = None if row[TAILNUM] is None else row[TAILNUM].encode()
        value = serialize(dict(zip(FIELDS, row, strict=True)))
        return (topic, value, key, -1, None, None, _milliseconds(row[TIME_HOUR]), None)


class TopicWatch:
    """Reads every topic from its start, as records are committed, and keeps counts and times."""

    def __init__(self, cluster: Cluster, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = list(partitions)
        self.counts: Counter[str] = Counter()
        self.arrivals: list[tuple[float, str, int]] = []
        """(monotonic time, topic, number of records), in order of time."""
        self.reached: Positions = {}
        """The offset after the last record read, by partition."""
        self.seen: list[Seen] = []
        """When committed records were read, and the last offsets of each source, in order of time."""
        self.longest_pause: dict[str, float] = {}
        """The longest time in seconds between two records of one partition, by topic."""
        self.last_arrival = time.monotonic()
        self._last: dict[TopicPartition, float] = {}
        self._consumer = cluster.consumer("flights.demo.watch", "flights.demo.watch")
        self._consumer.assign(dict.fromkeys(self.partitions, 0))

    def run(self, stopping: Event) -> None:
        """Reads until `stopping` is set."""
        while not stopping.is_set():
            self.look()
        self._consumer.close()

    def look(self) -> int:
        """Reads the records that have arrived, and returns their number."""
        records = self._consumer.consume(10_000, 0.1)
        if records:
            self._saw(records, time.monotonic())
        return len(records)

    def has_seen(self, ends: Positions) -> bool:
        """Returns whether every record before these ends has been read."""
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
        sources: defaultdict[bytes, Positions] = defaultdict(dict)
        for m in records:
            for name, value in readable_headers(m):
                if name == HASH_HEADER and value:
                    sources[value[:8]][TopicPartition(m.topic(), m.partition())] = m.offset()
        if sources:
            self.seen.append((now, sources))


class Kills:
    """Kills workers of random slots at random points of the run.

    - `number`: the number of kills.
    - `records`: the number of records in the whole run. The run is divided into one part for each kill. Each kill is in
      the middle half of its part, so that no two kills are close together.
    - `seed`: the seed of the points and the slots.
    """

    def __init__(self, number: int, records: int, seed: int) -> None:
        self._random = random.Random(seed)
        first, last = FIRST_KILL * records, LAST_KILL * records
        parts = [number - part - 1 + self._random.uniform(0.25, 0.75) for part in range(number)]
        self._due = [int(first + (last - first) * part / number) for part in parts]
        self.done: list[Kill] = []

    @property
    def left(self) -> int:
        """The number of kills still to come."""
        return len(self._due)

    def look(self, done: int, pids: Mapping[int, int]) -> Kill | None:
        """Kills a worker if `done` records have reached the next point; returns the kill, or None.

        - `pids`: process ids by slot. A process that was killed before is left out: it may not be reaped yet.
        """
        killed = {kill.pid for kill in self.done}
        living = {slot: pid for slot, pid in pids.items() if pid not in killed}
        if not self._due or done < self._due[-1] or not living:
            return None
        slot = self._random.choice(sorted(living))
        kill = Kill(time.monotonic(), slot, living[slot])
        try:
            os.kill(kill.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None  # it has ended by itself; the next look kills another one
        self._due.pop()
        self.done.append(kill)
        return kill


AWAKE_SECONDS: Final = 1.5
"""Seconds for which a worker is left alone after a freeze: the freeze is there to test what it does then."""


class Freeze:
    """Freezes a worker of a random slot in the middle of the run, and lets it go on.

    - `seconds`: how long the worker is frozen.
    - `records`: the number of records in the whole run.
    - `seed`: the seed of the slot.
    """

    def __init__(self, seconds: float, records: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._seconds, self._due = seconds, records // 2
        self._frozen: Kill | None = None
        self._is_awake = False
        self.has_thawed = False
        """Whether a worker was frozen for `seconds`, and has gone on."""

    @property
    def is_under_way(self) -> bool:
        """Whether a worker is frozen, or has just been."""
        return self._frozen is not None and time.monotonic() < self._frozen.at + self._seconds + AWAKE_SECONDS

    def look(self, done: int, pids: Mapping[int, int]) -> Kill | None:
        """Freezes a worker once `done` records have reached the middle, and returns it; lets it go on when it is time.

        - `pids`: process ids by slot.
        """
        if self._frozen is not None:
            if time.monotonic() >= self._frozen.at + self._seconds:
                self.end()
                self.has_thawed = True
            return None
        if done < self._due or not pids:
            return None
        slot = self._random.choice(sorted(pids))
        try:
            os.kill(pids[slot], signal.SIGSTOP)
        except ProcessLookupError:
            return None  # it has ended by itself; the next look freezes another one
        self._frozen = Kill(time.monotonic(), slot, pids[slot])
        return self._frozen

    def end(self) -> None:
        """Lets a frozen worker go on: it cannot be stopped while it is frozen."""
        if self._frozen is not None and not self._is_awake:
            self._is_awake = True
            with suppress(ProcessLookupError):
                os.kill(self._frozen.pid, signal.SIGCONT)


class GroupProgress:
    """Compares the committed offsets of the graph's groups with the ends of their inputs."""

    def __init__(self, cluster: Cluster, graph: Graph, partitions: Iterable[TopicPartition], watch: TopicWatch) -> None:
        self._cluster = cluster
        self._watch = watch
        self._partitions = sorted(partitions)
        self._groups: list[tuple[Processor, Consumer]] = [
            (processor, cluster.consumer(group_of(graph.name, processor.id), f"{graph.name}.demo.progress"))
            for processor in graph.processors
        ]

    def complete(self) -> bool:
        """Returns whether every processor has processed all its input; False if the cluster does not answer.

        Asks in the order of the graph, because the output of one processor is the input of the next. Committed offsets
        are compared with the last record: only transaction markers may follow it before the end.
        """
        try:
            return all(self._is_done(processor, consumer) for processor, consumer in self._groups)
        except ClientError:
            return False

    def _is_done(self, processor: Processor, consumer: Consumer) -> bool:
        names = {topic.name for topic in processor.inputs}
        inputs = [tp for tp in self._partitions if tp.topic in names]
        if not self._watch.has_seen(self._cluster.ends(inputs)):
            return False
        committed = consumer.committed(inputs)
        return all(committed.get(tp, 0) >= self._watch.reached.get(tp, 0) for tp in inputs)

    def close(self) -> None:
        """Closes the consumers."""
        for _, consumer in self._groups:
            consumer.close()


@dataclass(frozen=True, slots=True)
class Traffic:
    """A run as seen from outside. Times are monotonic, in seconds.

    - `started`: the time of the first write.
    """

    started: float
    arrivals: Sequence[tuple[float, str, int]]
    kills: Sequence[Kill]
    recoveries: Sequence[float | None]
    """Seconds from each kill to the slot's next commit; None if it committed nothing more."""
    longest_pause: float
    """The longest time between two departed flights of one partition."""

    @property
    def seconds(self) -> float:
        """The seconds from the first write of a departure to the last record that was seen."""
        return (self.arrivals[-1][0] if self.arrivals else self.started) - self.started
