"""A plant: one processor over a cluster in memory, and the workers that run it, one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

import pytest

from kstreams_py.errors import Abortable, Retriable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.commits.attempts import CALLS_MAX
from kstreams_py.processing.topics import BEGINNINGS_SETTINGS, JOURNAL_SETTINGS
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.plan import Plan
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry

A0, A1, B0, B1 = (TopicPartition(topic, number) for topic in "ab" for number in (0, 1))
EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


class Crash(BaseException):
    """The process dies here."""


class Plant:
    """One processor g.p on a cluster in memory, and the workers that run it, one after the other."""

    def __init__(
        self,
        kind: str = "map",
        function: Callable[..., Any] | None = None,
        *,
        guarantee: Guarantee = EO,
        linger: float = 0.0,
        partitions: int = 2,
        session_timeout: float = 15.0,
        settings: Settings | None = None,
        outputs_held: int = 0,
        dead: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.clock = ManualClock()
        self.cluster = MemoryCluster(self.clock, linger=linger, session_timeout=session_timeout)
        self.graph = Graph("g", guarantee=guarantee, errors="dead")
        for name in "abx":
            self.graph.topic(name)
        inputs = "a" if kind == "map" else "ab"
        how = {"by": "order"} if kind == "join" else {}
        getattr(self.graph, kind)(*inputs, to="x", id="p", **how, **options)(
            function or (concatenate if kind == "join" else copy_value)
        )
        (self.processor,) = self.graph.processors
        self.journal = self.graph.journal_topic(self.processor)
        names = ["a", "b", "x", "dead", self.graph.beginnings, *([self.journal] if self.journal else [])]
        single = ("x", "dead", self.graph.beginnings)
        settings_of = {"dead": dead or {}, self.journal: JOURNAL_SETTINGS, self.graph.beginnings: BEGINNINGS_SETTINGS}
        self.cluster.create_topics(
            [(name, 1 if name in single else partitions, -1, settings_of.get(name, {})) for name in names]
        )
        self._begin(["a"] if kind == "map" else ["a", "b"], partitions)
        self.settings = settings or Settings()
        self.outputs_held = outputs_held
        self.timeouts: list[float] = []
        """The timeouts that `consume` was called with."""

    def _begin(self, inputs: Sequence[str], partitions: int) -> None:
        """Commits offset 0 for the group, and writes to the graph's topic of beginnings that it has begun."""
        positions = self.cluster._broker.group("g.p").positions
        for name, info in self.cluster.topics(inputs).items():
            for number in range(partitions):
                positions[TopicPartition(name, number)] = 0
                key = json.dumps(["p", name, info.topic_id, number]).encode()
                self.cluster.append(self.graph.beginnings, json.dumps({"partitions": partitions}).encode(), key)

    def worker(self, slot: int = 0) -> Worker:
        environment = Environment(
            self.cluster, MemoryRegistry(), self.settings, self.clock, self.clock.advance, self.outputs_held
        )
        return open_worker(self.graph, self.processor, slot, environment, Event())

    def feed(self, topic: str, *values: str, partition: int = 0) -> None:
        for value in values:
            self.cluster.append(topic, value.encode(), partition=partition)

    def started(self) -> Worker:
        """A worker that has joined; the test runs its turns."""
        worker = self.worker()
        worker.start()
        worker.run_turn()  # joins
        return worker

    def run(
        self, worker: Worker | None = None, *, idle: int = 3, hook: Callable[[int], None] = lambda turn: None
    ) -> None:
        """Runs a worker until `idle` turns in a row had nothing to do; calls `hook` with the number of each turn."""
        worker = worker or self.worker()
        consume, turns, dry = worker.consumer.consume, 0, 0

        def counting(limit: int, timeout: float) -> Sequence[Any]:
            nonlocal turns, dry
            if worker._assigned or dry:  # the first turn joins
                turns += 1
                hook(turns)
            assert turns < 1_000, "the worker is never idle"
            self.timeouts.append(timeout)
            records = consume(limit, timeout)
            if not records:
                self.clock.advance(timeout)  # as a real consume waits
            dry = 0 if records or worker.committer.busy else dry + 1
            if dry == idle:
                worker._stopping.set()
            return records

        worker.consumer.consume = counting  # type: ignore[method-assign]
        worker.run()

    def crash(self, worker: Worker | None = None, **run: Any) -> None:
        """Runs a worker into a Crash, and leaves it as a killed process would."""
        worker = worker or self.worker()
        worker.committer.end = worker.consumer.close = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(Crash):
            self.run(worker, **run)

    def out(self) -> list[str]:
        """The values of the whole output topic as a reader sees them."""
        return [(m.value() or b"").decode() for m in self.cluster.records("x")]

    @property
    def dead_letter_count(self) -> int:
        """How many dead letters a reader sees."""
        return len(self.cluster.records("dead"))

    @property
    def saved(self) -> Positions:
        """The committed offsets other than 0, at which the group began."""
        return {tp: offset for tp, offset in self.cluster.groups["g.p"].items() if offset}


def copy_value(value: bytes) -> bytes:
    return value


def concatenate(a: bytes, b: bytes) -> bytes:
    return a + b


def fetch_always(worker: Worker, records: int) -> None:
    worker.intakes.pace.fetch = records
    worker.intakes.pace.ran = lambda steps, seconds: None  # type: ignore[method-assign]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def twice(value: bytes) -> Iterator[bytes]:
    yield value + b"-1"
    yield value + b"-2"


def of_twice(first: int, last: int) -> list[str]:
    return [f"{number}-{part}" for number in range(first, last) for part in (1, 2)]


def leave_commits_unanswered(
    plant: Plant, times: int = CALLS_MAX, *, applied: bool = False, late: float | None = None
) -> None:
    """Leaves the next commits of offsets without an answer; CALLS_MAX are the attempts of one call."""
    for nth in range(1, times + 1):
        plant.cluster.faults.inject("commit", nth=nth, error=Retriable("no answer"), applied=applied, late=late)


def start_interrupted(plant: Plant) -> Worker:
    """Starts a worker whose turn fails after it has written the outputs of a plan; the rest of its intake is owed."""
    worker = plant.started()
    write = worker.committer.write

    def fail_after_write(plan: Plan) -> None:
        worker.committer.write = write  # type: ignore[method-assign]
        write(plan)
        raise Abortable("why")

    worker.committer.write = fail_after_write  # type: ignore[method-assign]
    with pytest.raises(Abortable):
        worker.turn()
    worker._recover(Abortable("why"))
    return worker


def fail_flushes(worker: Worker, times: int) -> None:
    """Makes the producer's next flushes fail, with no record sent."""
    producer: Any = worker.committer.session._producer
    flush, left = producer.flush, [Retriable("the broker makes no progress")] * times

    def flushing() -> None:
        if left:
            raise left.pop()
        flush()

    producer.flush = flushing


def fail_next_write(worker: Worker) -> None:
    """Makes the producer's next write fail because its queue is full."""
    producer: Any = worker.committer.session._producer
    write, left = producer.write, [Retriable("the queue is full")]

    def writing(outputs: list[Output]) -> None:
        if left:
            raise left.pop()
        write(outputs)

    producer.write = writing
