"""engine/worker.py: the loop, from fetch to commit, on a log in memory: what it commits when, and what a crash does."""

from __future__ import annotations

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

import pytest

from kstreams_py import buffers, task
from kstreams_py.config import Settings
from kstreams_py.delivery import (
    PROMISES,
    Choices,
    Durability,
    Guarantee,
    Output,
    Start,
    hash_prefix,
    pack_offset,
)
from kstreams_py.engine.states import State
from kstreams_py.engine.topics import BEGINNINGS_SETTINGS, JOURNAL_SETTINGS
from kstreams_py.engine.transaction import CALLS_MAX, Surroundings
from kstreams_py.engine.worker import IDLE_WAIT, Pace, Search, Worker
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    DrainTimeout,
    Fatal,
    Fenced,
    GraphError,
    InputLost,
    LogError,
    NotAuthorized,
    OutcomeUnknown,
    RecordTooLarge,
    Replaced,
    Retriable,
    Stop,
)
from kstreams_py.record import HASH_HEADER, Positions, TopicPartition
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.topology import Graph

A0, A1, B0, B1 = (TopicPartition(topic, number) for topic in "ab" for number in (0, 1))
EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
Seen = list[bytes]


class Crash(BaseException):
    """The process dies here."""


class Plant:
    """One processor g.p over a log in memory, and the workers that run it, one after the other."""

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
        self.log = MemoryLog(self.clock, linger=linger, session_timeout=session_timeout)
        self.graph = Graph("g", guarantee=guarantee, errors="dead")
        for name in "abx":
            self.graph.topic(name)
        inputs = "a" if kind == "map" else "ab"
        getattr(self.graph, kind)(*inputs, to="x", id="p", **options)(
            function or (joining if kind == "join" else passing)
        )
        (self.processor,) = self.graph.processors
        self.journal = self.graph.journal(self.processor)
        names = ["a", "b", "x", "dead", self.graph.beginnings, *([self.journal] if self.journal else [])]
        single = ("x", "dead", self.graph.beginnings)
        settings_of = {"dead": dead or {}, self.journal: JOURNAL_SETTINGS, self.graph.beginnings: BEGINNINGS_SETTINGS}
        self.log.create_topics(
            [(name, 1 if name in single else partitions, -1, settings_of.get(name, {})) for name in names]
        )
        self._begin(["a"] if kind == "map" else ["a", "b"], partitions)
        self.settings = settings or Settings()
        self.outputs_held = outputs_held
        self.timeouts: list[float] = []
        """What `consume` was called with."""

    def _begin(self, inputs: Sequence[str], partitions: int) -> None:
        """The group has begun: it has positions, and the graph's topic of beginnings says so."""
        positions = self.log._broker.group("g.p").positions
        for name, info in self.log.topics(inputs).items():
            for number in range(partitions):
                positions[TopicPartition(name, number)] = 0
                key = json.dumps(["p", name, info.topic_id, number]).encode()
                self.log.append(self.graph.beginnings, json.dumps({"partitions": partitions}).encode(), key)

    def worker(self, slot: int = 0) -> Worker:
        around = Surroundings(
            self.log, MemoryRegistry(), self.settings, self.clock, self.clock.advance, self.outputs_held
        )
        return Worker(self.graph, self.processor, slot, around, Event())

    def feed(self, topic: str, *values: str, partition: int = 0) -> None:
        for value in values:
            self.log.append(topic, value.encode(), partition=partition)

    def started(self) -> Worker:
        """A worker that has joined, and is turned by hand."""
        worker = self.worker()
        worker.start()
        worker.turn()  # joins
        worker.rewind()
        return worker

    def run(
        self, worker: Worker | None = None, *, idle: int = 3, hook: Callable[[int], None] = lambda turn: None
    ) -> None:
        """Runs a worker until so many turns in a row found nothing to do; `hook` gets the number of each turn."""
        worker = worker or self.worker()
        consume, turns, dry = worker.consumer.consume, 0, 0

        def counting(limit: int, timeout: float) -> Sequence[Any]:
            nonlocal turns, dry
            if worker._assigned or dry:  # the first turn joins
                turns += 1
                hook(turns)
            assert turns < 1_000, "the input does not run dry"
            self.timeouts.append(timeout)
            records = consume(limit, timeout)
            if not records:
                self.clock.advance(timeout)  # as who waits in vain
            dry = 0 if records or worker.session.busy else dry + 1
            if dry == idle:
                worker._stopping.set()
            return records

        worker.consumer.consume = counting  # type: ignore[method-assign]
        worker.run()

    def crash(self, worker: Worker | None = None, **run: Any) -> None:
        """Runs a worker into a Crash, and leaves it as a killed process would."""
        worker = worker or self.worker()
        worker.session.end = worker.consumer.close = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(Crash):
            self.run(worker, **run)

    def out(self) -> list[str]:
        """The values of the whole output topic as a reader sees them."""
        return [(m.value() or b"").decode() for m in self.log.records("x")]

    @property
    def letters(self) -> int:
        """How many dead letters a reader sees."""
        return len(self.log.records("dead"))

    @property
    def saved(self) -> Positions:
        """The committed positions that are not where the group began."""
        return {tp: offset for tp, offset in self.log.group("g.p").items() if offset}


def passing(value: bytes) -> bytes:
    return value


def joining(a: bytes, b: bytes) -> bytes:
    return a + b


def turn(worker: Worker) -> None:
    """One turn, with its way back."""
    try:
        if worker._astray:
            worker.rewind()
        worker.turn()
    except LogError as error:
        worker._astray = True
        worker.session.recover(error)


def fetch_always(worker: Worker, records: int) -> None:
    worker.pace.fetch = records
    worker.pace.ran = lambda steps, seconds: None  # type: ignore[method-assign]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


# When it commits.


def test_dry_input_is_committed_at_once() -> None:
    plant = Plant()
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.turn()
    assert (plant.out(), worker.session.state) == ([], State.OPEN)
    worker.turn()
    assert (plant.out(), worker.session.state, plant.saved) == (["1", "2"], State.READY, {A0: 2})


def test_full_input_is_committed_at_the_interval() -> None:
    plant = Plant(function=lambda value: plant.clock.advance(0.001), settings=Settings(commit_interval_ms=100))
    plant.feed("a", *numbers(0, 1_000))
    worker = plant.started()
    fetch_always(worker, 60)
    committed = []
    for _ in range(5):
        worker.turn()
        committed.append((worker.counters.commits, plant.saved.get(A0, 0)))
    assert committed == [(0, 0), (0, 0), (1, 180), (1, 180), (1, 180)]


def test_full_input_is_committed_at_the_record_limit_at_what_was_processed_not_fetched() -> None:
    """Truth 3: the consumer has read on."""
    at: list[int] = []

    def function(value: bytes) -> bytes:
        if value == b"500":
            at.append(plant.saved[A0])
        return value

    plant = Plant(function=function, settings=Settings(commit_records=500))
    plant.feed("a", *numbers(0, 1_200))
    worker = plant.started()
    worker.pace.fetch = 1_200
    worker.turn()
    assert (at, plant.saved, worker.counters.commits) == ([500], {A0: 1_000}, 2)


def test_idle_worker_does_nothing_but_wait_for_records() -> None:
    plant = Plant()
    plant.run(idle=10)
    assert [r for r in plant.log.requests if r != "consume"] == [
        "create_topics", "topics", "topics", "subscribe", "init_transactions", "committed",
    ]  # fmt: skip
    assert plant.timeouts == [IDLE_WAIT] * 10


def test_busy_worker_does_not_wait_for_records() -> None:
    plant = Plant()
    plant.feed("a", "1")
    plant.run(idle=2)
    assert plant.timeouts == [IDLE_WAIT, IDLE_WAIT, 0.0, IDLE_WAIT, IDLE_WAIT]


def test_markers_behind_the_last_record_are_committed_with_it_or_after_an_idle_wait() -> None:
    """Truth 10: the end is a position, not a record."""
    plant = Plant()
    writer = plant.log.producer(PROMISES[EO], Durability.COMMITTED, "other")
    writer.init_transactions()

    def write(partition: int, *, commit: bool) -> None:
        writer.begin_transaction()
        writer.write([("a", b"v", None, partition, None, None, 0, None)])
        writer.commit_transaction() if commit else writer.abort_transaction()

    write(0, commit=True)
    write(0, commit=False)
    write(1, commit=False)
    plant.run()
    assert (plant.out(), plant.saved) == (["v"], {A0: 4, A1: 2})
    plant.run(hook=lambda turn: write(1, commit=False) if turn == 2 else None)
    assert plant.saved == {A0: 4, A1: 4}


def test_markers_alone_are_not_committed_while_records_may_be_on_their_way() -> None:
    plant = Plant()
    writer = plant.log.producer(PROMISES[EO], Durability.COMMITTED, "other")
    writer.init_transactions()
    writer.begin_transaction()
    writer.write([("a", b"v", None, 0, None, None, 0, None)])
    writer.abort_transaction()
    worker = plant.started()
    for _ in range(3):
        worker.turn()  # an answer without records, at once
    assert plant.saved == {}


# How much it takes at once.


def test_pace_grows_fourfold_for_fast_functions_and_shrinks_at_once_for_slow_ones() -> None:
    pace = Pace(whole_fetches=False)
    seen = []
    for steps, seconds in [(100, 0.0), (400, 0.001), (500, 0.5), (200, 2.0), (20, 600.0), (1, 0.1), (1, 0.001)]:
        seen.append((pace.fetch, pace.take))
        pace.ran(steps, seconds)
    assert seen == [(100, 100), (400, 400), (1_600, 500), (200, 200), (20, 20), (1, 1), (2, 2)]
    assert pace.fetch == 8


def test_pace_has_its_limits() -> None:
    pace, whole = Pace(whole_fetches=False), Pace(whole_fetches=True)
    for _ in range(20):
        pace.ran(pace.fetch, 0.0)
        whole.ran(1_000_000, 0.001)
    assert (pace.fetch, pace.take) == (Pace.FETCH_MAX, Pace.TAKE_MAX) == (10_000, 500)
    assert (whole.fetch, whole.take) == (10_000, 10_000)


def test_slow_function_is_given_fewer_records_and_a_fast_one_more() -> None:
    seconds = [0.05]
    plant = Plant(function=lambda value: plant.clock.advance(seconds[0]))
    plant.feed("a", *numbers(0, 5_000))
    worker = plant.started()
    worker.turn()
    assert worker.pace.fetch == 4
    seconds[0] = 0.0
    for _ in range(3):
        worker.turn()
    assert worker.pace.fetch == 4 * 4**3


@pytest.mark.parametrize(("kind", "guarantee"), [("alts", EO), ("map", AMO)])
def test_fetch_is_taken_as_a_whole_where_every_intake_costs_a_commit(kind: str, guarantee: Guarantee) -> None:
    plant = Plant(kind, guarantee=guarantee)
    plant.feed("a", *numbers(0, 1_000))
    worker = plant.started()
    worker.pace.fetch = 1_000
    before = len(plant.log.requests)
    worker.turn()
    assert [r for r in plant.log.requests[before:] if r.startswith("commit")] in (
        ["commit_transaction"],
        ["commit"],
    )


def test_input_of_a_join_that_is_far_ahead_is_paused_until_the_other_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "BUFFER_LIMIT", 50)
    plant = Plant("join")
    plant.feed("a", *numbers(0, 1_000))
    worker = plant.started()
    paused = []
    pause = worker.consumer.pause

    def watched(partitions: Any) -> None:
        paused.append(set(partitions))
        pause(partitions)

    worker.consumer.pause = watched  # type: ignore[method-assign]
    for _ in range(5):
        worker.turn()
    assert paused == [{A0}] * 5
    assert len(worker.tasks._buffers._tasks[0]["a"].records) == 100
    plant.feed("b", *["!"] * 60)
    worker.turn()
    assert paused[-1] == set()
    worker.session.end()
    plant.feed("b", *["!"] * 940)
    plant.run()
    assert plant.out() == [f"{number}!" for number in range(1_000)]


def test_input_of_a_join_that_is_far_ahead_comes_in_no_faster_than_its_bytes_have_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the client has ready would come on top of what waits."""
    monkeypatch.setattr(buffers, "BUFFER_BYTES", 100 * (buffers.RECORD_BYTES + 1_000))
    plant = Plant("join")
    for number in range(1_000):
        plant.log.append("a", b"%1000d" % number, partition=number % 2)
    worker = plant.started()
    worker.pace.fetch = 60
    limits, consume = list[int](), worker.consumer.consume

    def watched(limit: int, timeout: float) -> Any:
        limits.append(limit)
        return consume(limit, timeout)

    worker.consumer.consume = watched  # type: ignore[method-assign]
    worker.turn()
    worker.pace.fetch = 10_000
    worker.turn()
    worker.turn()
    assert limits == [60, 40, buffers.TAKEN_AT_LEAST]


def twice(value: bytes) -> Iterator[bytes]:
    yield value + b"-1"
    yield value + b"-2"


def of_twice(first: int, last: int) -> list[str]:
    return [f"{number}-{part}" for number in range(first, last) for part in (1, 2)]


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("kind", ["map", "alts"])
def test_outputs_of_a_generator_are_written_before_too_many_are_held(
    kind: str, guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guarantee saves first is saved once for the whole intake."""
    monkeypatch.setattr(task, "OUTPUTS_MAX", 10)
    plant = Plant(kind, twice, guarantee=guarantee)
    plant.feed("a", *numbers(0, 50))
    worker = plant.started()
    written, saved = list[int](), list[Positions]()
    write, prepare = worker.session.write, worker.session.prepare
    worker.session.write = lambda plan: (written.append(len(plan.outputs)), write(plan))[1]  # type: ignore[method-assign]
    worker.session.prepare = lambda intake: (saved.append(intake.positions()), prepare(intake))[1]  # type: ignore[method-assign]
    plant.run(worker)
    assert (written, saved) == ([10] * 10, [{A0: 50}])
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_drain_in_the_middle_of_an_intake_that_is_run_in_parts_loses_nothing(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "OUTPUTS_MAX", 10)

    def function(value: bytes) -> Iterator[bytes]:
        if value == b"7":
            worker._stopping.set()
        yield from twice(value)

    plant = Plant(function=function, guarantee=guarantee)
    plant.feed("a", *numbers(0, 50))
    worker = plant.worker()
    plant.run(worker)
    plant.run()
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize("then", ["step", "finish", "_on_revoked", "_on_lost"])
def test_at_most_once_failure_between_the_parts_of_an_intake_loses_no_step_that_was_not_run(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its positions were saved before: nobody else would run it."""
    monkeypatch.setattr(task, "OUTPUTS_MAX", 10)
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", *numbers(0, 50))
    worker = plant.started()
    write = worker.session.write

    def failing(plan: Any) -> None:
        worker.session.write = write  # type: ignore[method-assign]
        write(plan)
        raise Abortable("why")

    worker.session.write = failing  # type: ignore[method-assign]
    with pytest.raises(Abortable):
        worker.turn()
    worker._recover(Abortable("why"))
    assert worker.tasks.rest is not None
    getattr(worker, then)()
    assert worker.tasks.rest is None
    worker.finish()
    worker.close()
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize(
    ("of_topic", "of_client", "limit"),
    [({}, {}, 1_000_000), ({"max.message.bytes": "5000"}, {}, 5_000), ({}, {"message.max.bytes": "7000"}, 7_000)],
)
def test_dead_letter_is_no_larger_than_its_topic_and_the_client_take(
    of_topic: dict[str, str], of_client: dict[str, str], limit: int
) -> None:
    def function(value: bytes) -> None:
        raise LookupError

    plant = Plant(function=function, settings=Settings(kafka=of_client), dead=of_topic)
    plant.log.append("a", b"v" * 1_040_000)
    plant.run()
    (found,) = plant.log.records("dead")
    assert limit * 0.9 < len(found.value() or b"") < limit


# How it ends.


def test_drain_commits_what_is_done_and_takes_no_more() -> None:
    worker: Worker

    def function(value: bytes) -> bytes:
        if value == b"5":
            worker._stopping.set()
        return value

    plant = Plant(function=function)
    plant.feed("a", *numbers(0, 800))
    worker = plant.worker()
    fetch_always(worker, 700)
    plant.run(worker)
    assert (plant.out(), plant.saved) == (numbers(0, Pace.TAKE_MAX), {A0: Pace.TAKE_MAX})
    plant.run()
    assert plant.out() == numbers(0, 800)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_interrupt_whose_outputs_the_client_cannot_take_yet_skips_no_record(guarantee: Guarantee) -> None:
    """Without transactions the write goes on in a later turn, which must not go past the step that raised."""
    raised = list[bytes]()

    def function(value: bytes) -> bytes:
        if value == b"3" and not raised:
            raised.append(value)
            stall_write(worker)
            raise Stop("enough")
        return value

    plant = Plant(function=function, guarantee=guarantee)
    plant.feed("a", *numbers(0, 6))
    worker = plant.worker()
    plant.run(worker)
    assert worker._stopping.is_set()
    plant.run()
    assert (plant.out(), plant.letters) == (numbers(0, 6), 0)


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("error", [Stop("enough"), ZeroDivisionError("enough"), Abortable("enough")])
def test_interrupt_commits_what_is_done_before_it_and_a_new_worker_goes_on_there(
    guarantee: Guarantee, error: Exception
) -> None:
    raised = list[bytes]()

    def function(value: bytes) -> bytes:
        if value == b"3" and not raised:
            raised.append(value)
            raise error
        return value

    plant = Plant(function=function, guarantee=guarantee, unhandled_exceptions=ArithmeticError)
    plant.feed("a", *numbers(0, 6))
    if isinstance(error, Stop):
        plant.run()
    else:
        with pytest.raises(type(error), match="enough"):
            plant.run()
    assert (plant.out(), plant.letters) == (numbers(0, 3), 0)
    plant.run()
    tried = {"3"} if guarantee is AMO and not isinstance(error, Stop) else set()  # and may not be tried again
    assert (plant.out(), plant.letters) == ([number for number in numbers(0, 6) if number not in tried], 0)


def test_interrupt_whose_commit_fails_is_met_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        if value == b"1":
            raise Stop
        return value

    plant = Plant(function=function)
    plant.feed("a", "0", "1")
    plant.log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False)
    plant.run()
    assert (plant.out(), calls) == (["0"], [b"0", b"1"] * 2)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_output_that_is_refused_ends_the_worker_where_no_dead_letter_can_be_written(guarantee: Guarantee) -> None:
    plant = Plant(function=lambda value: value * 1_000_000, guarantee=guarantee, errors=None)
    plant.feed("a", "1", "22")
    with pytest.raises(RecordTooLarge, match=r"topic 'x' \(1000093 bytes\) is larger than it takes"):
        plant.run()
    assert (plant.out(), plant.saved) == ([], {A0: 2} if guarantee is AMO else {})


@pytest.mark.parametrize("hash_header", [True, False])
@pytest.mark.parametrize("refused", [{"7"}, {"0", "1"}, {"19"}, set(numbers(0, 20))], ids=len)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("where", ["client", "broker"])
def test_output_that_is_refused_is_a_dead_letter_and_all_others_are_delivered_once(
    guarantee: Guarantee, batch: bool, refused: set[str], where: str, hash_header: bool
) -> None:
    large = 1_000_000 if where == "client" else 2_000

    def one(value: bytes) -> bytes:
        return value.ljust(large) if value.decode() in refused else value

    function: Any = (lambda values: [one(value) for value in values]) if batch else one
    plant = Plant(function=function, guarantee=guarantee, batch=batch, hash_header=hash_header, linger=60.0)
    plant.log._broker.topics["x"].settings["max.message.bytes"] = "1000"  # type: ignore[index]
    plant.feed("a", *numbers(0, 20))
    plant.run()
    delivered = Counter(plant.out())
    assert (set(delivered), plant.letters) == (set(numbers(0, 20)) - refused, len(refused))
    assert guarantee is ALO or set(delivered.values()) <= {1}
    assert plant.saved == {A0: 20}


def test_refused_outputs_beside_others_end_no_worker_that_shares_a_transaction_with_them() -> None:
    """Ten of a thousand, under a load that goes on: every transaction is halved until it is one step."""
    bad = set(numbers(0, 1_000)[::100])
    plant = Plant(function=lambda value: value.ljust(2_000) if value.decode() in bad else value, linger=60.0)
    plant.log._broker.topics["x"].settings["max.message.bytes"] = "1000"  # type: ignore[index]
    plant.feed("a", *numbers(0, 1_000))
    plant.run()
    assert (plant.out(), plant.letters) == ([n for n in numbers(0, 1_000) if n not in bad], 10)


def test_input_that_was_deleted_before_it_was_read_ends_the_worker() -> None:
    plant = Plant()
    plant.feed("a", *numbers(0, 5))
    plant.run()
    plant.feed("a", *numbers(5, 10))
    plant.log.truncate(A0, 8)
    with pytest.raises(InputLost, match=r"a\[0\]: position 5 is not in the log, which holds 8 to 10"):
        plant.run()
    assert plant.out() == numbers(0, 5)


def test_worker_that_cannot_start_lets_everything_go() -> None:
    plant = Plant()
    plant.log.inject("init_transactions", error=BrokerUnavailable("nobody there"), applied=False)
    worker, closed = plant.worker(), list[str]()
    worker.consumer.close = lambda: closed.append("consumer")  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable):
        worker.run()
    assert closed == ["consumer"]


@pytest.mark.parametrize("error", [Abortable, Retriable, OutcomeUnknown, Fenced])
def test_drain_that_cannot_commit_says_so_and_the_records_are_done_again(
    error: type[LogError], caplog: pytest.LogCaptureFixture
) -> None:
    worker: Worker

    def stopping(value: bytes) -> bytes:
        worker._stopping.set()
        return value

    plant = Plant(function=stopping)
    plant.feed("a", "1", "2")
    worker = plant.worker()
    for nth in range(1, 6 if error is Retriable else 2):
        plant.log.inject("send_offsets", nth=nth, error=error("no"), applied=False)
    plant.run(worker)
    assert "p: what was open is not committed and will be done again: no" in caplog.text
    assert (plant.out(), plant.saved) == ([], {})


def test_outcome_of_the_last_commit_that_is_unknown_is_not_aborted() -> None:
    """Truth 1, at the end of a worker."""
    worker: Worker

    def stopping(value: bytes) -> bytes:
        worker._stopping.set()
        return value

    plant = Plant(function=stopping)
    plant.feed("a", "1")
    plant.log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=True)
    worker = plant.worker()
    plant.run(worker)
    assert ("abort_transaction" in plant.log.requests, plant.out()) == (False, ["1"])


# The way back.


def records(plant: Plant) -> list[str]:
    """Fills the inputs of a plant; returns what has to come out, in the order of each partition."""
    for partition, first in ((0, 0), (1, 10)):
        plant.feed("a", *numbers(first, first + 5), partition=partition)
        if plant.processor.kind != "map":
            plant.feed("b", *(f"-{n}" for n in numbers(first, first + 5)), partition=partition)
    every = [*numbers(0, 5), *numbers(10, 15)]
    if plant.processor.kind == "join":
        return [f"{n}-{n}" for n in every]
    return every if plant.processor.kind == "map" else [*every, *(f"-{n}" for n in every)]


def ordered(values: Sequence[str]) -> list[str]:
    """By input and partition; within these, as they came."""
    return sorted(values, key=lambda value: (value.startswith("-"), len(value)))


@pytest.mark.parametrize("kind", ["map", "join", "alts"])
@pytest.mark.parametrize(
    ("error", "applied"), [(Retriable, False), (Abortable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)]
)
@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction", "consume", "committed"])
def test_exactly_once_rewind_after_a_failure_reads_every_record_again_exactly_once(
    request_name: str, error: type[LogError], applied: bool, kind: str
) -> None:
    """Truth 5: positions go back to those committed, for every way to fail."""
    plant = Plant(kind)
    expected = records(plant)
    for nth in range(1, 6 if error is Retriable else 2):  # in vain until it is given up
        plant.log.inject(request_name, nth=nth, error=error("why"), applied=applied)
    plant.run(idle=8)  # each attempt to go back hears the group first
    assert ordered(plant.out()) == expected
    again = plant.worker()
    plant.run(again)
    assert (ordered(plant.out()), again.counters.records_in) == (expected, 0)


@pytest.mark.parametrize("kind", ["map", "join", "alts"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_exactly_once_worker_that_was_fenced_but_not_replaced_delivers_once(moment: int, kind: str) -> None:
    plant = Plant(kind)
    expected = records(plant)

    def fence(turn: int) -> None:
        if turn == moment:
            plant.log.producer(PROMISES[EO], Durability.COMMITTED, "g.p.0").init_transactions()

    plant.run(hook=fence)
    assert ordered(plant.out()) == expected


@pytest.mark.parametrize("guarantee", [ALO, AMO])
@pytest.mark.parametrize("request_name", ["produce", "commit", "consume", "committed"])
@pytest.mark.parametrize("error", [Abortable, OutcomeUnknown])
def test_other_guarantees_go_on_after_a_failure_with_what_they_promise(
    guarantee: Guarantee, request_name: str, error: type[LogError]
) -> None:
    plant = Plant(guarantee=guarantee)
    expected = records(plant)
    plant.log.inject(request_name, error=error("why"), applied=False)
    plant.run()
    lost = guarantee is AMO and request_name == "produce"  # the one batch that was under way
    copies = 0 if lost else 2 if guarantee is ALO and request_name == "commit" else 1
    assert Counter(plant.out()) == Counter(expected * copies)


def test_rewind_waits_while_another_transaction_holds_positions_back() -> None:
    plant = Plant()
    plant.feed("a", "1", "2")
    other = plant.log.producer(PROMISES[EO], Durability.COMMITTED, "g.p.7")
    other.init_transactions()
    other.begin_transaction()
    joined = plant.log.consumer("g.p", "g.p.7")
    joined.subscribe(["a"], lambda _: None, lambda: None, lambda: None)
    joined.consume(1, 0.0)
    other.send_offsets({A0: 1}, joined)  # and dies: its transaction outlives it by 10 s
    plant.clock.advance(14.0)
    joined.consume(1, 0.0)
    plant.run(hook=lambda turn: plant.clock.advance(1.0), idle=60)
    assert plant.out() == ["1", "2"]


def test_function_that_outlives_its_transaction_is_called_again_and_delivers_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Truth 7: the broker's time-out is no replacement."""
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        if len(calls) == 2:
            plant.clock.advance(11.0)
        return value

    plant = Plant(function=function)
    plant.feed("a", "0", "1", "2")
    plant.feed("a", "3")
    worker = plant.started()
    fetch_always(worker, 1)
    for _ in range(9):
        turn(worker)
    assert (plant.out(), calls) == (numbers(0, 4), [b"0", b"1", b"0", b"1", b"2", b"3"])
    assert "the broker timed the transaction out" in caplog.text


def test_rebalance_in_mid_transaction_moves_the_work_to_the_other_worker_once() -> None:
    """Truth 4: what is open cannot be committed any more."""
    plant = Plant()
    expected = records(plant)
    first, second = plant.worker(0), plant.worker(1)

    def hook(number: int) -> None:
        if number == 2:  # the first one has written all, and committed nothing
            assert first.session.state is State.OPEN
            second.session.start()
            second.consumer.subscribe(["a"], second._on_assigned, second._on_revoked, second._on_lost)
        if number >= 2:
            turn(second)

    plant.run(first, hook=hook, idle=5)
    assert (sorted(plant.out()), first.counters.aborts) == (sorted(expected), 1)
    assert (first.counters.records_in, second.counters.records_in) == (15, 5)
    assert plant.saved | {A0: 5, A1: 5} == plant.saved


def test_rebalance_that_leaves_no_partition_commits_nothing_of_what_was_open() -> None:
    plant = Plant(partitions=1)
    plant.feed("a", "1", "2")
    loser, winner = plant.worker(1), plant.worker(0)  # a range begins with the lowest seat

    def hook(number: int) -> None:
        if number == 2:
            assert loser.session.state is State.OPEN
            winner.session.start()
            winner.consumer.subscribe(["a"], winner._on_assigned, winner._on_revoked, winner._on_lost)
        if number >= 2:
            turn(winner)

    plant.run(loser, hook=hook, idle=5)
    assert (plant.out(), loser.counters.commits, winner.counters.commits) == (["1", "2"], 0, 1)


def test_partitions_that_were_taken_away_are_no_longer_counted_as_held() -> None:
    plant = Plant()
    first, second = plant.started(), plant.worker(1)
    turn(first)
    assert set(first.tasks.positions) == {A0, A1}
    second.start()
    for worker in (second, first, second, first, second):
        turn(worker)
    assert (set(first.tasks.positions), set(second.tasks.positions)) == ({A0}, {A1})
    third = plant.log.consumer("g.p", "g.p.2")
    third.subscribe(["a"], lambda _: None, lambda: None, lambda: None)
    turn(first)  # the new generation waits for the second
    assert (first.tasks.positions, first._assigned) == ({}, set())


def test_worker_without_a_partition_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plant = Plant(partitions=1)
    plant.feed("a", "1")
    first = plant.started()
    second = plant.worker(1)
    plant.run(second, hook=lambda number: turn(first), idle=4)
    assert (plant.out(), first.counters.records_in, second.counters.records_in) == (["1"], 1, 0)
    assert "p: holds a[0]" in caplog.text
    assert "p: holds no partition" in caplog.text


def test_replaced_worker_ends_and_what_it_had_open_is_never_seen() -> None:
    plant = Plant()
    expected = records(plant)
    zombie = plant.worker()

    def hook(number: int) -> None:
        if number == 2:
            assert zombie.session.state is State.OPEN
            plant.run(plant.worker())  # the same slot

    with pytest.raises(Replaced, match=r"another worker has taken the slot of g.p.0 over"):
        plant.run(zombie, hook=hook)
    assert ordered(plant.out()) == expected
    plant.run()
    assert ordered(plant.out()) == expected


def test_worker_frozen_beyond_its_session_commits_nothing_when_it_wakes() -> None:
    """A zombie: its partitions and its transaction are gone while it sleeps in mid-transaction."""
    plant = Plant()
    expected = records(plant)
    zombie, heir = plant.worker(0), plant.worker(1)

    def hook(number: int) -> None:
        if number == 2:
            assert zombie.session.state is State.OPEN
            plant.clock.advance(16.0)
            plant.run(heir)

    plant.run(zombie, hook=hook, idle=5)
    plant.run()
    assert ordered(plant.out()) == expected
    assert heir.counters.records_in == 10


# Without transactions: a commit that waits, and what only a crash may lose.


def unanswered(plant: Plant, times: int = CALLS_MAX, *, applied: bool = False, late: float | None = None) -> None:
    """Lets the next plain commits find no answer; five are one call's attempts."""
    for nth in range(1, times + 1):
        plant.log.inject("commit", nth=nth, error=Retriable("no answer"), applied=applied, late=late)


def stall(worker: Worker, times: int) -> None:
    """Lets the producer's next flushes fail, with nothing sent."""
    producer: Any = worker.session._producer
    flush, left = producer.flush, [Retriable("the broker makes no progress")] * times

    def flushing() -> None:
        if left:
            raise left.pop()
        flush()

    producer.flush = flushing


def stall_write(worker: Worker) -> None:
    """Lets the producer's next write fail because its queue is full."""
    producer: Any = worker.session._producer
    write, left = producer.write, [Retriable("the queue is full")]

    def writing(outputs: list[Output]) -> None:
        if left:
            raise left.pop()
        write(outputs)

    producer.write = writing


def keeping(seen: Seen) -> Callable[[bytes], bytes]:
    """A function that keeps what it was called with."""

    def function(value: bytes) -> bytes:
        seen.append(value)
        return value

    return function


def pauses(worker: Worker) -> list[set[TopicPartition]]:
    """What a worker pauses, as it does."""
    paused, pause = list[set[TopicPartition]](), worker.consumer.pause

    def pausing(partitions: Collection[TopicPartition]) -> None:
        paused.append(set(partitions))
        pause(partitions)

    worker.consumer.pause = pausing  # type: ignore[method-assign]
    return paused


@pytest.mark.parametrize("waits", ["commit", "commit whose answer is lost", "flush"])
@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_plain_commit_without_an_answer_rewinds_nothing_and_drops_nothing(guarantee: Guarantee, waits: str) -> None:
    calls = Seen()
    plant = Plant(function=keeping(calls), guarantee=guarantee, linger=60.0)
    worker = plant.started()
    paused = pauses(worker)
    plant.feed("a", *numbers(0, 4))
    if waits == "flush":
        stall(worker, 3)
    else:
        unanswered(plant, 3 * CALLS_MAX, applied="lost" in waits)
    last = 4
    for _ in range(9):
        worker.step()
        if worker.session.pending:
            plant.feed("a", str(last))  # is fetched once the commit has its answer
            last += 1
    assert (plant.out(), calls) == (numbers(0, 7), [number.encode() for number in numbers(0, 7)])
    assert (last, plant.saved, worker.counters.aborts) == (7, {A0: 7}, 0)
    assert plant.log.requests.count("committed") == 1  # as it started
    assert [partitions for partitions in paused if partitions] == [{A0, A1}] * 3


@pytest.mark.parametrize("late", [None, 30.0], ids=["without an answer", "that may come late"])
@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_whose_positions_may_be_saved_is_run(applied: bool, late: float | None) -> None:
    """Once its membership is taken again, the committed positions would be behind it."""
    calls = Seen()
    plant = Plant(function=keeping(calls), guarantee=AMO)
    expected = records(plant)
    unanswered(plant, applied=applied, late=late)
    plant.run(idle=6)
    plant.clock.advance(31.0)
    plant.run()
    assert ordered(plant.out()) == expected
    assert Counter(calls) == Counter(number.encode() for number in expected)


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_whose_positions_may_be_saved_is_run_after_another_error(applied: bool) -> None:
    plant = Plant(guarantee=AMO)
    expected = records(plant)
    unanswered(plant, 1, applied=applied)
    plant.log.inject("commit", nth=2, error=Abortable("rebalance in progress"), applied=False)
    plant.run()
    assert ordered(plant.out()) == expected


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_whose_positions_may_be_saved_is_run_before_its_worker_ends(applied: bool) -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    expected = records(plant)
    unanswered(plant, applied=applied)
    worker = plant.started()
    worker.step()
    assert worker.session.pending
    worker.finish()
    worker.close()
    assert ordered(plant.out()) == expected
    plant.run()
    assert ordered(plant.out()) == expected


@pytest.mark.parametrize(
    ("times", "applied"), [(5, True), (5, False), (10, False)], ids=["carried out", "lost", "lost again"]
)
def test_at_most_once_intake_whose_positions_may_be_saved_is_run_before_its_partitions_go(
    times: int, applied: bool
) -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    expected = records(plant)
    first, second = plant.started(), plant.worker(1)
    unanswered(plant, times, applied=applied)
    first.step()
    assert first.session.pending
    second.start()
    for worker in (first, second) * 6:
        worker.step()
    assert (ordered(plant.out()), plant.saved) == (expected, {A0: 5, A1: 5})
    assert [set(worker.tasks.positions) for worker in (first, second)] == [{A0}, {A1}]


def test_callback_that_cannot_save_what_was_taken_says_so_and_lets_go(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant(guarantee=AMO)
    plant.feed("a", "1")
    worker = plant.started()
    unanswered(plant, 2 * CALLS_MAX)
    worker.step()
    worker._on_revoked()
    assert "p: partitions are taken away while a commit waits: no answer" in caplog.text
    assert (worker._assigned, worker.tasks.positions, worker._prepared) == (set(), {}, None)


@pytest.mark.parametrize("nth", range(1, 9))
def test_at_most_once_output_that_finds_no_room_while_a_refused_one_is_looked_for_is_delivered(nth: int) -> None:
    plant = Plant(function=lambda value: value.ljust(2_000) if value in b"23" else value, guarantee=AMO, linger=60.0)
    plant.log._broker.topics["x"].settings["max.message.bytes"] = "1000"  # type: ignore[index]
    plant.feed("a", *numbers(0, 6))
    worker = plant.started()
    producer: Any = worker.session._producer
    write, writes = producer.write, 0

    def writing(outputs: list[Output]) -> None:
        nonlocal writes
        writes += 1
        if writes == nth:
            raise Retriable("the producer's queue stayed full")
        write(outputs)

    producer.write = writing
    for _ in range(30):
        worker.step()
    assert (sorted(plant.out()), plant.letters, writes > 8) == (["0", "1", "4", "5"], 2, True)


def test_at_most_once_dead_letter_is_that_of_the_step_whose_output_was_refused_and_not_of_an_equal_one() -> None:
    plant = Plant(function=lambda value: value.ljust(2_000), guarantee=AMO, hash_header=False)
    worker = plant.started()
    for limit in ("10000", "1000"):
        plant.log._broker.topics["x"].settings["max.message.bytes"] = limit  # type: ignore[index]
        plant.feed("a", "1")
        for _ in range(4):
            worker.step()
    (letter,) = plant.log.records("dead")
    topic_id = plant.log.topics(["a"])["a"].topic_id
    assert dict(letter.headers() or ())[HASH_HEADER] == hash_prefix("g.p", "a", topic_id, 0) + pack_offset(1)


def test_at_most_once_drain_waits_until_what_is_queued_is_delivered() -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.step()
    stall(worker, 4)
    worker.finish()
    assert plant.out() == ["1", "2"]


def test_at_most_once_drain_that_takes_too_long_says_what_is_lost() -> None:
    plant = Plant(guarantee=AMO, linger=1e6, settings=Settings(drain_timeout_ms=8_000))
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.step()
    stall(worker, 1_000)
    before = plant.clock()
    with pytest.raises(DrainTimeout, match=r"^p: at most once: outputs are lost: the broker makes no progress$"):
        worker.finish()
    assert 4.0 <= plant.clock() - before < 9.0  # half of it, and the wait before the last attempt


def test_at_least_once_drain_whose_commit_waits_ends_at_once_and_is_done_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant = Plant(guarantee=ALO)
    plant.feed("a", "1")
    worker = plant.started()
    worker.step()
    unanswered(plant)
    worker.finish()
    worker.close()
    assert "p: what was open is not committed and will be done again: no answer" in caplog.text
    plant.run()
    assert plant.out() == ["1", "1"]


def test_at_most_once_drain_writes_the_dead_letter_of_an_output_that_is_refused() -> None:
    plant = Plant(function=lambda value: value.ljust(2_000) if value == b"2" else value, guarantee=AMO, linger=60.0)
    plant.log._broker.topics["x"].settings["max.message.bytes"] = "1000"  # type: ignore[index]
    plant.feed("a", "1", "2", "3")
    worker = plant.started()
    worker.step()
    worker.finish()
    assert (plant.out(), plant.letters) == (["1", "3"], 1)


def test_at_most_once_worker_that_is_replaced_delivers_what_was_beside_an_output_that_is_refused() -> None:
    """A batch is refused as a whole, also once nothing but the producer is left of its worker."""
    plant = Plant(function=lambda value: value.ljust(2_000) if value == b"2" else value, guarantee=AMO, linger=60.0)
    plant.log._broker.topics["x"].settings["max.message.bytes"] = "1000"  # type: ignore[index]
    plant.feed("a", "1", "2", "3")
    worker = plant.started()
    worker.step()
    plant.worker().start()
    worker.step()
    with pytest.raises(Replaced):
        worker.step()
    assert (plant.out(), plant.letters) == ([], 0)
    worker.close()
    assert (plant.out(), plant.letters) == (["1", "3"], 1)


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_member_whose_commit_may_come_late_commits_what_is_open_and_joins_again(
    guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Seen()
    plant = Plant(function=keeping(calls), guarantee=guarantee, linger=60.0)
    plant.feed("a", *numbers(0, 3))
    worker = plant.started()
    worker.step()
    plant.feed("a", *numbers(3, 6))
    worker.consumer.tainted = True
    plant.log.inject("commit", error=None, late=5.0)
    before = len(plant.log.requests)
    worker.step()
    saves = ["produce", "commit"] if guarantee is ALO else ["produce"]
    assert [r for r in plant.log.requests[before:] if r != "read"] == ["consume", *saves, "subscribe"]
    assert (plant.out(), worker._assigned, worker.tasks.positions) == (numbers(0, 3), set(), {})
    assert "p: a commit of positions may come late: taking the seat anew" in caplog.text
    for _ in range(4):
        worker.step()
    plant.clock.advance(6.0)
    plant.log.ends([A0])  # the late one arrives
    assert (plant.out(), calls) == (numbers(0, 6), [number.encode() for number in numbers(0, 6)])
    assert plant.saved == {A0: 6}


def test_member_whose_commit_may_come_late_does_not_join_again_to_end() -> None:
    """Positions of steps that were not run could not be given back then."""

    def function(value: bytes) -> bytes:
        if value == b"3":
            raise Stop
        return value

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", *numbers(0, 6))
    unanswered(plant, late=30.0)
    plant.run()
    assert (plant.out(), plant.saved) == (numbers(0, 3), {A0: 3})


# What callbacks meet, and what an assignment has.


def test_what_a_callback_meets_is_raised_by_the_turn_and_not_inside_of_the_client() -> None:
    """An exception there would leave the client in the middle of a rebalance."""
    plant = Plant(guarantee=ALO)
    plant.feed("a", "1")
    worker = plant.started()
    worker.step()
    plant.log.inject("commit", error=NotAuthorized("the right to commit is missing"), applied=False)
    worker._on_revoked()
    assert (worker._assigned, worker.tasks.positions) == (set(), {})
    with pytest.raises(NotAuthorized, match="the right to commit is missing"):
        worker.step()


@pytest.mark.parametrize("guarantee", Guarantee)
def test_partitions_that_are_lost_are_let_go_without_a_commit(guarantee: Guarantee) -> None:
    plant = Plant(guarantee=guarantee)
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.step()
    before = len(plant.log.requests)
    worker._on_lost()
    assert (plant.log.requests[before:], worker._assigned, worker.tasks.positions) == ([], set(), {})
    assert worker.session.steps == (2 if guarantee is AMO else 0)


def test_assignment_of_topics_that_this_deployment_does_not_read_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A static member is given its old assignment first."""
    caplog.set_level(logging.INFO)
    plant = Plant()
    plant.log._broker.groups["g.p"].positions.clear()  # by hand, or by an older release
    plant.log._broker.topics[plant.graph.beginnings].partitions[0].truncate(100)
    worker = plant.worker()
    worker.start()
    worker.turn()
    worker._on_assigned({A0, A1, TopicPartition("old", 0), TopicPartition("older", 1)})
    plant.feed("a", "1", "2")
    for _ in range(4):
        worker.step()
    assert "p: not read any more: old[0], older[1]" in caplog.text
    assert (plant.out(), set(worker.tasks.positions)) == (["1", "2"], {A0, A1})


def test_join_of_which_one_input_has_more_partitions_now_ends_with_both_counts() -> None:
    plant = Plant("join")
    worker = plant.started()
    plant.log.grow("b", 3)
    worker._on_assigned({A0, A1, B0, B1, TopicPartition("b", 2)})
    with pytest.raises(GraphError) as caught:
        worker.step()
    assert str(caught.value) == (
        "processor 'p' (join) reads 'a' with 2 partitions and 'b' with 3: give both the same number of partitions"
    )


def test_join_of_which_one_input_grew_before_its_worker_was_made_ends_with_both_counts() -> None:
    """Its counts would be those after the growth: no partition is new to it, and one input has none to wait for."""
    plant = Plant("join")
    plant.log.grow("b", 3)
    with pytest.raises(GraphError) as caught:
        plant.worker()
    assert str(caught.value) == (
        "processor 'p' (join) reads 'a' with 2 partitions and 'b' with 3: give both the same number of partitions"
    )


def test_alts_whose_inputs_have_more_partitions_now_goes_on_with_a_journal_that_has_them_too() -> None:
    plant = Plant("alts")
    worker = plant.started()
    for topic in "ab":
        plant.log.grow(topic, 3)
    a2, b2 = TopicPartition("a", 2), TopicPartition("b", 2)
    plant.feed("a", "1", partition=2)
    worker._on_assigned({A0, A1, B0, B1, a2, b2})
    for _ in range(4):
        worker.step()
    assert (plant.out(), plant.saved) == (["1"], {a2: 1})
    assert [m.partition() for m in plant.log.records(plant.journal or "")] == [2]
    asked = plant.log.requests.count("topics")
    worker._on_assigned({A0, A1, B0, B1, a2, b2})
    worker.step()
    assert plant.log.requests.count("topics") == asked  # it knows


def test_alts_whose_inputs_grew_before_its_worker_was_made_lets_its_journal_grow() -> None:
    plant = Plant("alts")
    for topic in "ab":
        plant.log.grow(topic, 3)
    plant.feed("a", "1", partition=2)
    worker = plant.started()
    for _ in range(4):
        worker.step()
    assert (plant.out(), plant.saved) == (["1"], {TopicPartition("a", 2): 1})
    assert [m.partition() for m in plant.log.records(plant.journal or "")] == [2]


# The search for what fails a transaction.


def test_search_halves_until_a_single_step_fails_and_doubles_until_all_got_through() -> None:
    search, seen = Search(), list[tuple[int, bool]]()
    assert (search.limit, search.searching) == (sys.maxsize, False)
    for steps in (9, 4, 2, 1):
        single = search.failed(steps)
        seen.append((search.limit, single))
    assert (seen, search.searching) == ([(4, False), (2, False), (1, False), (1, True)], True)
    limits = []
    for steps in (1, 2, 4, 8):
        search.committed(steps)
        limits.append(search.limit)
    assert (limits, search.searching) == ([2, 4, 8, sys.maxsize], False)


def test_search_begins_again_at_a_failure_and_goes_back_to_the_largest_transaction_of_all() -> None:
    search, limits = Search(), list[int]()
    search.failed(8)
    for steps, failed in ((4, False), (8, True), (4, False), (8, False)):
        search.failed(steps) if failed else search.committed(steps)
        limits.append(search.limit)
    assert limits == [8, 4, 8, sys.maxsize]
    search.failed(4)
    search.committed(2)
    search.committed(4)
    assert not search.searching  # what was the largest before is forgotten


def test_search_is_not_moved_by_commits_without_steps_or_without_a_search() -> None:
    search = Search()
    search.committed(100)
    assert search.limit == sys.maxsize
    search.failed(8)
    search.committed(0)
    assert search.limit == 4


def test_transaction_that_takes_too_long_is_halved_until_it_gets_through() -> None:
    """Halved, each intake is committed by itself."""
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        plant.clock.advance(0.3)
        return value

    plant = Plant(function=function, session_timeout=1e6, settings=Settings(commit_interval_ms=9_000))
    plant.feed("a", *numbers(0, 100))
    worker = plant.worker()
    fetch_always(worker, 20)  # two intakes fit into a transaction, three do not
    plant.run(worker)
    assert (plant.out(), worker.counters.aborts, len(calls)) == (numbers(0, 100), 2, 100 + 2 * 60)
    assert not worker.search.searching


def test_output_that_is_refused_though_its_step_is_a_dead_letter_ends_the_worker() -> None:
    """The dead letter itself is refused."""
    plant = Plant(function=lambda value: value.ljust(2_000), guarantee=EO, linger=60.0)
    for topic in ("x", "dead"):
        plant.log._broker.topics[topic].settings["max.message.bytes"] = "100"  # type: ignore[index]
    plant.feed("a", "1", "2")
    with pytest.raises(RecordTooLarge, match="topic 'dead'"):
        plant.run()
    assert (plant.out(), plant.letters, plant.saved) == ([], 0, {})


# Crashes.


def crash_points(kind: str, guarantee: Guarantee, linger: float) -> Iterator[tuple[int, bool, Plant, list[str]]]:
    """A plant for each request of a run that is carried out or lost when the process dies of it."""
    plain = Plant(kind, guarantee=guarantee, linger=linger)
    expected = records(plain)
    worker = plain.worker()
    before = len(plain.log.requests)
    plain.run(worker)
    for nth in range(1, len(plain.log.requests) - before + 1):
        for applied in (True, False):
            plant = Plant(kind, guarantee=guarantee, linger=linger)
            records(plant)
            worker = plant.worker()
            plant.log.inject("", nth=nth, error=Crash(), applied=applied)
            plant.crash(worker)
            yield nth, applied, plant, expected


@pytest.mark.parametrize("linger", [0.0, 60.0], ids=["sent at once", "lingering"])
@pytest.mark.parametrize("kind", ["map", "join", "alts"])
def test_exactly_once_crash_at_every_request_delivers_once(kind: str, linger: float) -> None:
    points = 0
    for nth, applied, plant, expected in crash_points(kind, EO, linger):
        plant.run()
        assert ordered(plant.out()) == expected, f"request {nth}, {'carried out' if applied else 'lost'}"
        points += 1
    assert points > 10


@pytest.mark.parametrize("linger", [0.0, 60.0], ids=["sent at once", "lingering"])
def test_at_least_once_crash_at_every_request_loses_nothing(linger: float) -> None:
    copies = Counter[int]()
    for nth, applied, plant, expected in crash_points("map", ALO, linger):
        plant.run()
        found = Counter(plant.out())
        assert set(found) == set(expected), f"request {nth}, {'carried out' if applied else 'lost'}"
        copies.update(found.values())
    assert set(copies) == {1, 2}  # a crash between the outputs and the positions doubles


@pytest.mark.parametrize("linger", [0.0, 60.0], ids=["sent at once", "lingering"])
def test_at_most_once_crash_at_every_request_doubles_nothing(linger: float) -> None:
    lost = Counter[int]()
    for nth, applied, plant, expected in crash_points("map", AMO, linger):
        plant.run()
        found = plant.out()
        assert len(found) == len(set(found)), f"request {nth}, {'carried out' if applied else 'lost'}"
        assert set(found) <= set(expected)
        lost[len(expected) - len(found)] += 1
    assert len(lost) > 1  # a crash between the positions and the outputs loses


def test_exactly_once_dead_letters_are_delivered_once_with_the_outputs() -> None:
    def function(value: bytes) -> bytes:
        if value in (b"1", b"12"):
            raise LookupError(value)
        return value

    requests = 20
    for nth in range(1, requests):
        plant = Plant(function=function)
        expected = records(plant)
        worker = plant.worker()
        plant.log.inject("", nth=nth, error=Crash(), applied=nth % 2 == 0)
        try:
            plant.crash(worker)
        except pytest.fail.Exception:  # this run has fewer requests
            break
        plant.run()
        assert (sorted(plant.out()), plant.letters) == (sorted({*expected} - {"1", "12"}), 2)
    assert nth > 5


# The choices of alts.


def by_topic(worker: Worker, *order: str) -> None:
    """Lets the records of a fetch come in this order of topics."""
    consume = worker.consumer.consume

    def sorted_consume(limit: int, timeout: float) -> Sequence[Any]:
        return sorted(consume(limit, timeout), key=lambda m: order.index(m.topic()))

    worker.consumer.consume = sorted_consume  # type: ignore[method-assign]


def test_exactly_once_alts_crash_after_its_choices_were_journaled_retries_in_the_same_order() -> None:
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        return value

    plant = Plant("alts", function, partitions=1)
    plant.feed("a", "a0", "a1")
    plant.feed("b", "b0")
    first = plant.worker()
    by_topic(first, "a", "b")
    plant.log.inject("produce", nth=2, error=Crash(), applied=False)  # the first is that of the journal
    plant.crash(first)
    assert (calls, plant.out()) == ([b"a0", b"a1", b"b0"], [])
    plant.feed("b", "b1", "b2")
    plant.feed("a", "a2")
    second = plant.worker()
    by_topic(second, "b", "a")
    plant.run(second)
    assert plant.out()[:3] == ["a0", "a1", "b0"]
    assert sorted(plant.out()) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_exactly_once_alts_retry_in_parts_that_crashes_too_still_follows_the_first_order() -> None:
    """Each attempt sees another part of the inputs first; the function is called in one order by all of them."""
    calls: list[Seen] = []

    def function(value: bytes) -> bytes:
        calls[-1].append(value)
        return value

    plant = Plant("alts", function, partitions=1)
    plant.feed("a", "a0")
    plant.feed("b", "b0", "b1")
    for first, fetch in [("b", 100), ("b", 1)]:
        calls.append([])
        worker = plant.worker()
        fetch_first(worker, first, fetch)
        plant.log.inject("produce", nth=2, error=Crash(), applied=False)  # the first is that of the journal
        plant.crash(worker)
    calls.append([])
    worker = plant.worker()
    fetch_first(worker, "a", 1)
    plant.run(worker)
    assert calls == [[b"b0", b"b1", b"a0"], [b"b0"], [b"b0", b"b1", b"a0"]]
    assert plant.out() == ["b0", "b1", "a0"]


def fetch_first(worker: Worker, topic: str, records: int) -> None:
    """Lets a worker fetch so many records at a time, those of a topic first."""
    assign = worker.consumer.assign
    worker.consumer.assign = lambda positions: assign(  # type: ignore[method-assign]
        dict(sorted(positions.items(), key=lambda item: item[0].topic != topic))
    )
    fetch_always(worker, records)


def test_exactly_once_alts_rewinds_to_its_choices_after_a_failure_in_the_same_process() -> None:
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        return value

    plant = Plant("alts", function, partitions=1)
    plant.feed("a", "a0")
    plant.feed("b", "b0")
    worker = plant.worker()
    plant.log.inject("send_offsets", nth=2, error=Abortable("why"), applied=False)
    by_topic(worker, "b", "a")
    plant.run(worker, hook=lambda number: by_topic(worker, "a", "b") if worker.counters.aborts else None)
    assert (calls, plant.out()) == ([b"b0", b"a0"] * 2, ["b0", "a0"])


def test_alts_choices_are_committed_before_the_function_is_called() -> None:
    journaled: list[int] = []

    def function(value: bytes) -> bytes:
        journaled.append(len(plant.log.records(plant.journal or "")))
        return value

    plant = Plant("alts", function, partitions=1)
    plant.feed("a", "a0", "a1")
    plant.run(hook=lambda number: plant.feed("b", "b0") if number == 3 else None)
    assert journaled == [1, 1, 2]


def test_alts_journal_holds_the_choices_of_every_intake() -> None:
    plant = Plant("alts", partitions=1)
    worker = plant.worker()
    by_topic(worker, "b", "a")
    plant.feed("a", "a0", "a1")
    plant.feed("b", "b0")
    plant.run(worker, hook=lambda number: plant.feed("a", "a2") if number == 3 else None)
    a, b = (plant.log.topics("ab")[topic].topic_id for topic in "ab")
    assert [Choices.decode(m.value() or b"") for m in plant.log.records(plant.journal or "")] == [
        Choices((("b", 0), ("a", 1)), (Start("b", b, 0), Start("a", a, 0))),
        Choices((("a", 2),), (Start("a", a, 2),)),
    ]


def test_alts_whose_choices_hold_no_more_goes_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant("alts", partitions=1)
    plant.feed("a", "a0")
    assert plant.journal is not None
    of_b = plant.log.topics(["b"])["b"].topic_id
    stale = Choices((("b", 22), ("c", 5), ("a", 0)), (Start("b", "before", 20), Start("c", "id", 0), Start("a", "", 0)))
    plant.log.append(plant.journal, stale.encode())
    plant.feed("b", "b0")
    plant.run()
    assert sorted(plant.out()) == ["a0", "b0"]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "p: partition 0: 'c' is no input any more: choices saved for it are dropped",
        "p: partition 0: 'b' was deleted and created again: choices saved for it are dropped",
    ]
    newest = Choices.decode(plant.log.records(plant.journal)[-1].value() or b"")
    assert {start.topic_id for start in newest.starts if start.topic == "b"} <= {of_b}


# What it counts.


def test_counters_of_a_worker_tell_what_it_did() -> None:
    def function(value: bytes) -> bytes | None:
        if value == b"1":
            raise LookupError
        return None if value == b"2" else value

    plant = Plant(function=function)
    plant.feed("a", *numbers(0, 5))
    worker = plant.worker()
    plant.run(worker)
    assert worker.counters.as_dict() == {
        "records_in": 5, "records_out": 3, "dead_letters": 1, "commits": 1, "aborts": 0,
    }  # fmt: skip


def test_fatal_error_of_a_client_ends_the_worker_without_a_renewal() -> None:
    plant = Plant()
    plant.feed("a", "1")
    plant.log.inject("send_offsets", error=Fatal("of no use"), applied=False)
    worker = plant.worker()
    with pytest.raises(Fatal, match="of no use"):
        plant.run(worker)
    assert plant.log.requests.count("init_transactions") == 1
