"""One worker on a mock cluster that answers one request with an error: what the worker does, told by one of `Outcome`.

The worker is driven from outside, turn by turn, in the thread of its cell, so that several hundred cells run side by
side. Its clock is the real one plus what it has slept, so that it never waits for itself.

A mock cluster neither fences nor hides what is not committed, and forgets positions of a transaction (cluster.py). So
each output has its transaction in a header, a `Ledger` notes which transactions were committed and with which positions,
and the worker reads those back. Who holds the membership, and the settings of topics, are answered by a stub: the mock
cluster knows neither DescribeGroups nor DescribeConfigs.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Event
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py import Graph, Settings
from kstreams_py.delivery import Durability, Guarantee, Promise, TopicInfo
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import KStreamsError, Retriable
from kstreams_py.groups import Pending
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.clients import Holder, KafkaConsumer, KafkaProducer
from kstreams_py.ports.registry import FileRegistry
from kstreams_py.record import Positions, TopicPartition
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import BOUND, read_all, write

INPUT: Final = "in"
OUTPUT: Final = "out"
DEAD: Final = "dead"
RECORDS: Final = 4

REPEATED: Final = 5
"""A warning that came so often comes for ever: no bound of the session, as the test sets them, is as high."""

SILENT_TURNS: Final = 60
"""Turns in which nothing happens and nothing is said, each a virtual second."""

STARTING: Final = {
    Api.InitProducerId,
    Api.FindCoordinator,
    Api.JoinGroup,
    Api.SyncGroup,
    Api.OffsetFetch,
    Api.ListOffsets,
    Api.Metadata,
}
"""What a session asks when it starts; the others are answered so once a record was committed."""


class Ledger:
    """What was committed, as real brokers would have it."""

    def __init__(self) -> None:
        self.positions: Positions = {}
        self.transactions: set[bytes] = set()
        self.begun = 0
        self.aborted = 0


class LedgerProducer:
    """A client whose transactions go into a ledger."""

    def __init__(self, client: ck.Producer, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._transaction = b"none"
        self._positions: Positions = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def produce(self, *output: Any) -> None:
        self._client.produce(*output[:7], [*(output[7] or ()), ("transaction", self._transaction)])

    def begin_transaction(self) -> None:
        self._client.begin_transaction()
        self._ledger.begun += 1
        self._transaction = b"%d" % self._ledger.begun
        self._positions = {}

    def send_offsets_to_transaction(self, partitions: list[ck.TopicPartition], metadata: object, limit: float) -> None:
        self._client.send_offsets_to_transaction(partitions, metadata, limit)
        self._positions |= {TopicPartition(p.topic, p.partition): p.offset for p in partitions}

    def commit_transaction(self, limit: float) -> None:
        self._client.commit_transaction(limit)
        self._ledger.transactions.add(self._transaction)
        self._ledger.positions |= self._positions

    def abort_transaction(self, limit: float) -> None:
        self._ledger.aborted += 1
        self._client.abort_transaction(limit)


class CellLog(KafkaLog):
    """The log of one cell: its clients are the real ones, counted; `taken`: another worker holds the slot."""

    def __init__(self, settings: Settings, *, taken: bool) -> None:
        super().__init__(settings)
        self.ledger = Ledger()
        self.producers = 0
        self.asked = 0
        self.before_producer: Callable[[], None] = lambda: None
        self._taken = taken
        self._member: KafkaConsumer | None = None

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name=name, topic_id=name, partitions=1, replication=1, settings={}) for name in names}

    def offsets_retention_minutes(self) -> int | None:
        return None

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        raise Retriable("the mock cluster does not say")

    def _forget_old_assignment(self, group: str, seat: str, topics: Collection[str]) -> None:
        pass

    def _holder(self, group: str, seat: str) -> Holder | None:
        self.asked += 1
        assert self._member is not None
        return Holder("another" if self._taken else self._member._member, "client", "host")

    def consumer(self, group: str, seat: str, *, commits: bool = False) -> KafkaConsumer:
        member = self._member = super().consumer(group, seat, commits=commits)
        committed, commit = member.committed, member.commit

        def read(partitions: Collection[TopicPartition]) -> Positions:
            found = committed(partitions)
            return found | {tp: at for tp, at in self.ledger.positions.items() if tp in partitions}

        def save(positions: Positions) -> None:
            commit(positions)
            self.ledger.positions |= positions

        member.committed, member.commit = read, save  # type: ignore[method-assign]
        return member

    def producer(
        self, promise: Promise, durability: Durability, transactional_id: str, batch_bytes: int | None = None
    ) -> KafkaProducer:
        self.before_producer()
        self.producers += 1
        producer = super().producer(promise, durability, transactional_id, batch_bytes)
        producer._producer = LedgerProducer(producer._producer, self.ledger)  # type: ignore[assignment]
        return producer


class Lines(logging.Handler):
    """What the product logs, by the thread that logged it: each cell has its own."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.by_thread: dict[int, list[logging.LogRecord]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if (lines := self.by_thread.get(record.thread or 0)) is not None:
            lines.append(record)


@dataclass
class Seen:
    """What a cell came to."""

    ended: Exception | None = None
    done: bool = False
    waited: bool = False
    silent: bool = False
    recovered: bool = False
    calls: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    dead: int = 0
    position: int = 0
    producers: int = 0
    asked: int = 0
    aborted: int = 0
    rejoined: bool = False
    assigned: int = 0
    answers: int = 0
    recoveries: int = 0
    warnings: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cell:
    """One request, answered so once or for ever, under a guarantee; `topic` is whose Metadata has the error."""

    api: Api
    code: int
    forever: bool
    guarantee: Guarantee
    errors: bool = True
    taken: bool = False
    topic: str = ""


class Clock:
    """The real time, and what was slept and skipped."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped

    def sleep(self, seconds: float) -> None:
        self.skipped += seconds


class Run:
    """A cell that runs."""

    def __init__(self, cell: Cell, lines: Lines, directory: Path) -> None:
        self.cell = cell
        self.seen = Seen()
        self._lines = lines
        self._directory = directory
        self._clock = Clock()

    def run(self) -> Seen:
        mine = self._lines.by_thread[threading.get_ident()] = []
        with MockCluster(brokers=1) as self.mock:
            self._build()
            try:
                self._drive()
            except Exception as error:
                self.seen.ended = error.with_traceback(None)  # its frames hold the clients
            self.mock.clear()
            for topic in (INPUT, OUTPUT):
                self.mock.set_topic_error(topic, 0)
            self._look(mine)
            self.worker.close()
            self.log._reading_client = None
        del self._lines.by_thread[threading.get_ident()]
        return self.seen

    def _build(self) -> None:
        cell, graph = self.cell, Graph("g", errors=DEAD if self.cell.errors else None)
        source, target = graph.topic(INPUT), graph.topic(OUTPUT)

        @graph.map(source, to=target, id="p", guarantee=cell.guarantee)
        def copy(value: bytes) -> bytes:
            self.seen.calls.append(int(value))
            return value

        self.mock.create(INPUT, OUTPUT, DEAD, graph.beginnings)
        settings = Settings(
            bootstrap_servers=self.mock.bootstrap_servers,
            request_timeout_ms=1_500 if cell.forever else 10_000,
            session_timeout_ms=4_000,
            transaction_timeout_ms=4_000,
            kafka={"heartbeat.interval.ms": 200},
        )
        self.log = CellLog(settings, taken=cell.taken)
        around = Surroundings(self.log, FileRegistry(self._directory), settings, self._clock, self._clock.sleep)
        self.worker = Worker(graph, graph.processors[0], 0, around, Event())
        assign, assigned = self.worker._on_assigned, []

        def count(partitions: set[TopicPartition]) -> None:
            self.seen.assigned += 1
            assign(partitions)

        self.worker._on_assigned = count  # type: ignore[method-assign]
        recover = self.worker.session.recover

        def counted(error: Any) -> bool:
            self.seen.recoveries += 1
            return recover(error)

        self.worker.session.recover = counted  # type: ignore[method-assign]
        del assigned

    def _write(self, numbers: range) -> None:
        assert set(write(self.mock, INPUT, [b"%d" % number for number in numbers])) == {"ok"}

    def _inject(self) -> None:
        cell = self.cell
        self.mock.track()
        if cell.topic:
            self.mock.set_topic_error(cell.topic, cell.code)
        elif cell.forever:
            self.mock.answer_always(cell.api, cell.code)
        else:
            self.mock.answer(cell.api, cell.code)

    def _drive(self) -> None:
        cell, worker = self.cell, self.worker
        if cell.api in STARTING:
            self._write(range(RECORDS))
            self._inject()
            worker.start()
        else:
            worker.start()
            self._write(range(1))
            self._until(lambda: self._done(1), "a record is committed before the error")
            if cell.api in (Api.Fetch, Api.Heartbeat):
                self._inject()
                self._write(range(1, RECORDS))
            else:
                self._write(range(1, RECORDS))
                self._inject()
        before = len(self._said())
        if not cell.forever:
            self._until(lambda: self._done(RECORDS) and self._used_up(), "all is committed")
            self.seen.done = True
            return
        quiet, requests = 0, 0
        deadline = time.monotonic() + BOUND
        while not (self.seen.waited or self.seen.silent or self.seen.done):
            assert time.monotonic() < deadline, "it neither waits nor ends"
            worker.step()
            said = [re.sub(r"\d+", "#", line) for line in self._said()[before:]]
            self.seen.waited = bool(said) and Counter(said).most_common(1)[0][1] >= REPEATED
            asked = len(self.mock.requests(cell.api))
            self._clock.skipped += 1
            quiet += 1
            self.seen.silent = not said and quiet >= SILENT_TURNS
            self.seen.done = self._done(RECORDS) and (asked - requests > 3)
        self.seen.answers = len(self.mock.requests(cell.api))
        self.mock.clear()
        for topic in (INPUT, OUTPUT):
            self.mock.set_topic_error(topic, 0)
        self._until(lambda: self._done(RECORDS), "it goes on when the answers are well again")
        self.seen.recovered = True

    def _until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < deadline, f"after {BOUND:g} s still not: {what}"
            self.worker.step()

    def _used_up(self) -> bool:
        """The error was answered, and what followed from it has happened."""
        api = self.cell.api
        if self.cell.topic:
            return True
        return len(self.mock.requests(api)) >= (3 if api in (Api.Fetch, Api.Heartbeat) else 1)

    def _done(self, count: int) -> bool:
        position = self.log.ledger.positions.get(TopicPartition(INPUT, 0), 0)
        return position >= count and not self.worker.session.busy and not self.worker._apart

    def _said(self) -> list[str]:
        return [
            record.getMessage()
            for record in self._lines.by_thread[threading.get_ident()]
            if record.levelno >= logging.WARNING
        ]

    def _look(self, lines: list[logging.LogRecord]) -> None:
        seen, log = self.seen, self.log
        promise = self.worker.session.promise

        def visible(topic: str) -> list[Any]:
            found = read_all(self.mock, topic)
            if not promise.transactional:
                return found
            return [m for m in found if dict(m.headers() or ()).get("transaction") in log.ledger.transactions]

        seen.outputs = [int(m.value()) for m in visible(OUTPUT)]
        seen.dead = len(visible(DEAD))
        seen.position = log.ledger.positions.get(TopicPartition(INPUT, 0), 0)
        seen.producers, seen.asked, seen.aborted = log.producers, log.asked, log.ledger.aborted
        seen.warnings = [r.getMessage() for r in lines if r.levelno >= logging.WARNING]
        seen.lines = [f"{r.levelname} {r.getMessage()}" for r in lines]
        seen.rejoined = any("joining again" in line or "taking the seat anew" in line for line in seen.warnings)
        seen.answers = seen.answers or len(self.mock.requests(self.cell.api))
