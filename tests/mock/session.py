"""Runs one worker on a mock cluster that answers one kind of request with an error, and records the outcome.

The worker runs turn by turn in the thread of its cell, so that many cells run in parallel. Its clock is the real clock
plus the time it has slept, so that a sleep takes no time.

A mock cluster does not fence, shows uncommitted records, and drops the offsets of a transaction (cluster.py). So each
output has its transaction in a header, a ledger keeps the committed transactions and their offsets, and the worker
reads committed offsets from it. A stub answers who holds the membership, and the settings of topics, as the mock
cluster supports neither DescribeGroups nor DescribeConfigs.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import confluent_kafka as ck

from kstreams_py import Graph, Settings
from kstreams_py.errors import ClientError, Refused, Retriable
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.kafka.contracts import ProducerMode, TopicInfo
from kstreams_py.kafka.errors import REFUSED
from kstreams_py.kafka.groups import Pending
from kstreams_py.kafka.membership import Holder
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.processing.commits.guarantees import COMMITTERS
from kstreams_py.processing.worker import Worker, open_worker
from kstreams_py.records import Headers, Positions, TopicPartition
from kstreams_py.steps.environment import Environment
from tests.mock.cluster import ALWAYS, Api, MockCluster
from tests.mock.plain import read_all, wait_until, write

E = ck.KafkaError

Report = Callable[[ck.KafkaError | None, ck.Message], None]
"""Called once for each delivery, with its error or None."""

INPUT: Final = "in"
OUTPUT: Final = "out"
DEAD_LETTERS: Final = "dead"
FIRST = TopicPartition(INPUT, 0)

RECORDS: Final = 4

WARNINGS: Final = 5
"""A warning repeated this often is endless: all bounds of the session, as the test sets them, are lower."""

UNASSIGNED: Final = 12
"""The same for a warning each 2 s of a member without an assignment, which may wait 23 s for its JoinGroup (JOIN)."""

CELL_SECONDS: Final = 180.0
"""Seconds after which a condition that does not come true fails a test: a join without an answer takes 63 s."""

ENDLESS_SECONDS: Final = 300.0
"""Bound of a run under endless errors, some of which make each client occupy a CPU."""

SILENT_TURNS: Final = 60
SILENT_SECONDS: Final = 15.0
"""Turns and seconds without progress and without a warning after which a session stands still."""

STARTING: Final = {
    Api.InitProducerId,
    Api.FindCoordinator,
    Api.JoinGroup,
    Api.SyncGroup,
    Api.OffsetFetch,
    Api.ListOffsets,
    Api.Metadata,
}
"""Requests sent at the start. The other requests are answered with an error once a record has been committed."""

REFUSALS: Final = 100
"""How often the output topic refuses; other topics, such as that of the dead letters, do not refuse."""

SPARING: Final = {"retry.backoff.ms": 100, "reconnect.backoff.ms": 300}
"""Without these, a client under endless errors occupies a whole CPU."""

JOIN: Final = {"heartbeat.interval.ms": 200, "max.poll.interval.ms": 20_000}
"""A mock cluster that was delayed expires members that wait for the answer to their JoinGroup, and never answers: the
client waits 3 s longer than max.poll.interval.ms. A real broker counts waiting members as alive."""

TOGETHER: Final = {"linger.ms": 1_000, "socket.timeout.ms": 50_000, "max.poll.interval.ms": 60_000}
"""The outputs of a step are one batch, however long the thread is preempted between two of them; a flush sends it. A
cell that gets no CPU time for long keeps its membership."""

SETTINGS: Final = [
    Settings(
        request_timeout_ms=limit,
        session_timeout_ms=session,
        transaction_timeout_ms=transaction,
        kafka={**JOIN, **client},
    )
    for limit, session, transaction, client in ((70_000, 50_000, 50_000, TOGETHER), (1_500, 4_000, 4_000, SPARING))
]
"""Settings for one error, whose limits a slow machine does not reach, and for endless errors, which exhaust limits.

Made at import: pytest changes the environment while cells run.
"""

SESSION: Final = 15_000
"""Session time-out of members after one error, in milliseconds. It is most of the time of a cell that joins again: a
member waits for its JoinGroup one session less a second (cluster.py). `Settings` demands as much as a transaction has.
"""

CODES_OF_A_GROUP: Final = {E.GROUP_AUTHORIZATION_FAILED, E.INVALID_GROUP_ID}
"""Error codes of FindCoordinator for a group only."""

IN_THE_BACKGROUND: Final = {Api.Fetch, Api.Heartbeat}
"""Requests that the client sends repeatedly by itself."""


@dataclass(frozen=True)
class Cell:
    """A request answered with an error code, once or for ever, under a guarantee."""

    api: Api
    code: int
    forever: bool
    guarantee: Guarantee
    dead_letters: bool = True
    """The graph has a dead-letter topic."""
    taken: bool = False
    """The group answers that another worker holds the slot."""
    topic: str = ""
    """The topic of Metadata."""

    def __str__(self) -> str:
        code = "disconnected" if self.code == E._TRANSPORT else E(self.code).name()
        of = "".join(f" of {topic}" for topic in [self.topic] if topic)
        variant = " without dead letters" * (not self.dead_letters) + " taken" * self.taken
        return f"{self.api.name}{of} {code} {'for ever' if self.forever else 'once'} {self.guarantee}{variant}"


@dataclass
class Seen:
    """What was observed in a cell."""

    ended: Exception | None = None
    done: bool = False
    """All records were committed; under endless errors: while the errors lasted."""
    waited: str = ""
    """The warning that was repeated."""
    calls: list[int] = field(default_factory=list)
    """Calls of the function."""
    outputs: list[int] = field(default_factory=list)
    """The visible outputs."""
    dead: int = 0
    position: int = 0
    producers: int = 0
    asked: int = 0
    """How often the group was asked who holds the membership."""
    aborted: int = 0
    assigned: int = 0
    recovered: int = 0
    answers: int = 0
    """Requests of this kind since the first error."""
    warnings: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[int]:
        """Committed records that have neither an output nor a dead letter."""
        return [number for number in range(self.position) if number not in self.outputs][self.dead :]

    @property
    def doubled(self) -> list[int]:
        """Outputs written more than once."""
        return [number for number, copies in Counter(self.outputs).items() if copies > 1]

    @property
    def rejoined(self) -> bool:
        """Whether the worker joined the group again."""
        return any(is_rejoining(line) for line in self.warnings)


def is_rejoining(line: str) -> bool:
    """Whether a warning says that the worker joins its group again."""
    return "joining again" in line


class Ledger:
    """The committed transactions and offsets that real brokers would have."""

    def __init__(self) -> None:
        self.positions: Positions = {}
        self.transactions: set[bytes] = set()
        self.begun = 0
        self.aborted = 0


class LedgerProducer:
    """A client that records its transactions in a ledger."""

    def __init__(self, client: ck.Producer, ledger: Ledger) -> None:
        self._client = client
        self._ledger = ledger
        self._transaction = b"none"
        self._positions: Positions = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        callback: Report | None,
        on_delivery: Report | None,
        timestamp: int,
        headers: Headers | None,
    ) -> None:
        of_transaction: list[tuple[str, str | bytes | None]] = [*(headers or ()), ("transaction", self._transaction)]
        self._client.produce(topic, value, key, partition, callback, on_delivery, timestamp, of_transaction)

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


class CellCluster(KafkaCluster):
    """The cluster of a cell: real clients, which are counted, and stubs for what the mock cluster does not support."""

    def __init__(self, settings: Settings, *, taken: bool, patient: bool) -> None:
        super().__init__(settings, patient=patient)
        self.ledger = Ledger()
        self.producers = 0
        self.asked = 0
        self.before_first_producer: Callable[[], None] = lambda: None
        self._taken = taken
        self._member: KafkaConsumer | None = None

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return {name: TopicInfo(name=name, topic_id=name, partitions=1, replication=1, settings={}) for name in names}

    def offsets_retention_minutes(self) -> int | None:
        return None

    def pending(self, group: str, partitions: Collection[TopicPartition]) -> Pending:
        raise Retriable("a mock cluster does not support it")

    def _forget_old_assignment(self, group: str, instance_id: str, topics: Collection[str]) -> None:
        pass

    def _holder(self, group: str, instance_id: str) -> Holder | None:
        self.asked += 1
        assert self._member is not None
        return Holder("another" if self._taken else self._member.member_id, "client", "host", True, 1)

    def consumer(self, group: str, instance_id: str, **options: bool) -> KafkaConsumer:
        member = self._member = super().consumer(group, instance_id, **options)
        if self._patient:
            member.patience = self._limit
        committed, commit = member.committed, member.commit

        def read(partitions: Collection[TopicPartition]) -> Positions:
            found = committed(partitions)
            return found | {tp: at for tp, at in self.ledger.positions.items() if tp in partitions}

        def save(positions: Positions, notes: Mapping[TopicPartition, str] | None = None) -> None:
            commit(positions, notes)
            self.ledger.positions |= positions

        member.committed, member.commit = read, save  # type: ignore[method-assign]
        return member

    def producer(self, mode: ProducerMode, transactional_id: str, batch_bytes: int | None = None) -> KafkaProducer:
        if not self.producers:
            self.before_first_producer()
        self.producers += 1
        producer = super().producer(mode, transactional_id, batch_bytes)
        connect = producer._connect

        def keep_ledger() -> None:
            producer._producer = LedgerProducer(producer._producer, self.ledger)  # type: ignore[assignment]

        def reconnect() -> None:
            connect()
            keep_ledger()

        producer._connect = reconnect  # type: ignore[method-assign]
        keep_ledger()
        return producer


class Lines(logging.Handler):
    """The product's warnings by the thread that logged them: each cell has its own thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of_threads: dict[int, list[str]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if (lines := self.of_threads.get(record.thread or 0)) is not None:
            lines.append(record.getMessage())


class Clock:
    """The real time plus the time slept."""

    def __init__(self) -> None:
        self._slept = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds


class Run:
    """Runs a cell."""

    def __init__(self, cell: Cell, lines: Lines, directory: Path) -> None:
        self._cell = cell
        self._lines = lines
        self._directory = directory
        self._seen = Seen()
        self._recovered_at = 0

    def run(self) -> Seen:
        """Starts a cluster and a worker, injects the error, and records what was observed."""
        seen = self._seen
        self._lines.of_threads[threading.get_ident()] = seen.warnings
        with MockCluster(brokers=1) as self._mock:
            self._prepare()
            try:
                self._drive()
            except Exception as error:
                seen.ended = error.with_traceback(None)  # the traceback's frames hold clients
            self._clear_errors()
            if self._worker is not None:
                self._worker.close()
            self._read_results()
            self._cluster.close()
        del self._lines.of_threads[threading.get_ident()]
        return seen

    def _prepare(self) -> None:
        cell = self._cell
        graph = self._graph = Graph("g", errors=DEAD_LETTERS if cell.dead_letters else None)

        @graph.map(graph.topic(INPUT), to=graph.topic(OUTPUT), id="p", guarantee=cell.guarantee)
        def copy(value: bytes) -> bytes:
            self._seen.calls.append(int(value))
            return value

        self._mock.create(INPUT, OUTPUT, DEAD_LETTERS, graph.beginnings)
        changed: dict[str, Any] = {"bootstrap_servers": self._mock.bootstrap_servers}
        if not cell.forever:
            changed["session_timeout_ms"] = SESSION
        self._settings = SETTINGS[cell.forever].model_copy(update=changed)
        self._cluster = CellCluster(self._settings, taken=cell.taken, patient=not cell.forever)
        self._worker: Worker | None = None

    def _make_worker(self) -> Worker:
        clock = Clock()
        registry = FileRegistry(self._directory)
        environment = Environment(self._cluster, registry, self._settings, clock, clock.sleep)
        worker = self._worker = open_worker(self._graph, self._graph.processors[0], 0, environment, Event())
        assigned, recover = worker._on_assigned, worker.committer.recover

        def count_assignment(partitions: set[TopicPartition]) -> None:
            self._seen.assigned += 1
            assigned(partitions)

        def count_recovery(error: ClientError) -> bool:
            assert sys.exc_info()[1] is None, "a client never lets go of it if a call fails now: see kafka/clients.py"
            # after a refusal, at_most_once only writes its outputs again
            if not (isinstance(error, Refused) and self._cell.guarantee is Guarantee.AT_MOST_ONCE):
                self._seen.recovered += 1
                self._recovered_at = len(self._seen.warnings)
            return recover(error)

        worker._on_assigned = count_assignment  # type: ignore[method-assign]
        worker.committer.recover = count_recovery  # type: ignore[method-assign]
        return worker

    def _write(self, numbers: range) -> None:
        values = [b"%d" % number for number in numbers]
        # sent by the flush; otherwise the worker may read them one by one, and one output is refused alone
        together = {"linger.ms": 60_000}
        assert set(write(self._mock, INPUT, values, together)) == {"ok"}

    def _inject(self) -> None:
        cell = self._cell
        # ListOffsets is sent twice at once: for the start and for the end
        count = ALWAYS if cell.forever else 2 if self._concerns_the_group or cell.api is Api.ListOffsets else 1
        self._mock.track()
        if cell.topic:
            self._mock.set_topic_error(cell.topic, cell.code)
        elif cell.api is Api.Produce and cell.code in REFUSED:
            self._mock.answer_partition(OUTPUT, 0, cell.api, *[cell.code] * min(count, REFUSALS))
        else:
            self._mock.answer(cell.api, *[cell.code] * count)

    @property
    def _concerns_the_group(self) -> bool:
        """Whether the error is for the group. The client drops the first answer if its bootstrap connection ended."""
        return self._cell.api is Api.FindCoordinator and self._cell.code in CODES_OF_A_GROUP

    def _clear_errors(self) -> None:
        self._mock.clear()
        if self._cell.topic:
            self._mock.set_topic_error(self._cell.topic, 0)

    def _drive(self) -> None:
        cell = self._cell
        if cell.api in STARTING:
            self._write(range(RECORDS))
            self._start_with_error()
        else:
            worker = self._make_worker()
            worker.start()
            self._write(range(1))
            self._until(lambda: self._is_done(1), "a record is committed before the error")
            if cell.api is Api.Heartbeat:
                self._inject()
                if not cell.forever:
                    self._until(self._is_over, "the idle member has received the error")
                    self._write(range(1, RECORDS))
            elif cell.api is Api.Fetch:
                # or librdkafka may report the end instead of the error (see cluster.py)
                self._until(lambda: worker.consumer.ends.get(FIRST) == 1, "the end was reported before the error")
                self._inject()
                self._write(range(1, RECORDS))
            else:
                self._write(range(1, RECORDS))
                self._inject()
        if not cell.forever:
            self._until(lambda: self._is_done(RECORDS) and self._is_over(), "all is committed after the error")
            self._seen.done = True
            self._write(range(RECORDS, RECORDS + 1))  # the error may still affect the next transaction
            self._until(lambda: self._is_done(RECORDS + 1), "the next record is committed")
            return
        self._run_under_errors()
        self._seen.answers = len(self._mock.requests(cell.api))
        self._clear_errors()
        if cell.api is Api.Heartbeat:
            self._write(range(1, RECORDS))
        self._until(lambda: self._is_done(RECORDS), "all is committed once the error is over")

    def _start_with_error(self) -> None:
        """Starts a worker and injects the error; of FindCoordinator, for the group or the transactional id by code."""
        cell = self._cell
        if cell.api is not Api.FindCoordinator or not COMMITTERS[cell.guarantee].transactional:
            if cell.api is Api.Metadata and not cell.forever:
                self._give_the_error_to_the_consumer()
            self._inject()
            self._make_worker().start()
            return
        if cell.code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            self._cluster.before_first_producer = self._inject_for_the_transactional_id
            self._mock.track()
            self._make_worker().start()
            return
        if self._concerns_the_group:
            self._cluster.before_first_producer = self._leave_the_transactional_id_out
        elif not cell.forever:
            self._give_the_error_to_the_consumer()
        self._inject()
        self._make_worker().start()
        if self._concerns_the_group and cell.forever:
            self._inject()

    def _give_the_error_to_the_consumer(self) -> None:
        """The producer, which sends the same request, is created after the consumer has sent its own."""
        self._cluster.before_first_producer = partial(self._await_asked, self._cell.api)

    def _await_asked(self, api: Api, times: int = 1) -> None:
        wait_until(lambda: len(self._mock.requests(api)) >= times, f"{api.name} is sent")

    def _inject_for_the_transactional_id(self) -> None:
        self._await_asked(Api.FindCoordinator)
        self._inject()

    def _leave_the_transactional_id_out(self) -> None:
        self._await_asked(Api.FindCoordinator, 2)
        if self._cell.forever:
            self._mock.clear(Api.FindCoordinator)

    def _run_under_errors(self) -> None:
        """Runs turns under the errors until a warning repeats, all is committed, or the worker stands still."""
        seen, cell = self._seen, self._cell
        assert self._worker is not None
        before, begun, turns = len(seen.warnings), time.monotonic(), 0
        counted = before
        while (seconds := time.monotonic() - begun) < ENDLESS_SECONDS:
            turns += 1
            self._worker.run_turn()
            if len(seen.warnings) > counted:
                counted = len(seen.warnings)
                seen.waited = self._repeated_warning(before)
            if seen.waited:
                return
            # during the errors of Heartbeat no record is written, so there is nothing to commit
            seen.done = cell.api is not Api.Heartbeat and self._is_done(RECORDS)
            silent = turns > SILENT_TURNS and seconds >= SILENT_SECONDS and len(seen.warnings) == before
            if seen.done or silent:
                return
        raise AssertionError("the worker neither ends, nor repeats a warning, nor commits")

    def _repeated_warning(self, before: int) -> str:
        """The warning that the worker repeats; warnings of silence count from the last recovery only."""
        counts = Counter(re.sub(r"\d+", "#", line) for line in self._seen.warnings[before:])
        recent = Counter(re.sub(r"\d+", "#", line) for line in self._seen.warnings[max(before, self._recovered_at) :])
        for line, count in counts.items():
            is_unassigned = "has made it no assignment" in line
            times = recent[line] if is_unassigned or "nothing has been read" in line else count
            if times >= (UNASSIGNED if is_unassigned else WARNINGS):
                return line
        return ""

    def _until(self, condition: Callable[[], object], what: str) -> None:
        assert self._worker is not None
        deadline = time.monotonic() + CELL_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"after {CELL_SECONDS:g} s still not: {what}"
            self._worker.run_turn()

    def _is_over(self) -> bool:
        """Whether the error was sent and the worker has recovered from it."""
        assert self._worker is not None
        asked = len(self._mock.requests(self._cell.api))
        settled = not (self._worker.consumer.tainted or self._worker._must_rewind) and bool(self._worker._assigned)
        return settled and asked >= (3 if self._cell.api in IN_THE_BACKGROUND else 1)

    def _is_done(self, count: int) -> bool:
        assert self._worker is not None
        return self._cluster.ledger.positions.get(FIRST, 0) >= count and not self._worker.committer.busy

    def _read_results(self) -> None:
        seen, cluster = self._seen, self._cluster
        seen.outputs = [int(message.value()) for message in self._visible(OUTPUT)]
        seen.dead = len(self._visible(DEAD_LETTERS))
        seen.position = cluster.ledger.positions.get(FIRST, 0)
        seen.producers, seen.asked, seen.aborted = cluster.producers, cluster.asked, cluster.ledger.aborted
        seen.answers = seen.answers or len(self._mock.requests(self._cell.api))

    def _visible(self, topic: str) -> list[Any]:
        """The records that a read_committed reader gets."""
        found = read_all(self._mock, topic)
        if not COMMITTERS[self._cell.guarantee].transactional:
            return found
        return [m for m in found if dict(m.headers() or ()).get("transaction") in self._cluster.ledger.transactions]
