"""worker.py: the loop from fetch to commit on a cluster in memory: its commits, its recovery, and crashes."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    DrainTimeout,
    Fatal,
    Fenced,
    GraphError,
    InputLost,
    NotAuthorized,
    OutcomeUnknown,
    RecordTooLarge,
    Replaced,
    Retriable,
    Stop,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.graph.retry import Retry
from kstreams_py.kafka.contracts import Output
from kstreams_py.metrics import WorkerState
from kstreams_py.processing.commits.attempts import CALLS_MAX
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.intakes import Pace, Search
from kstreams_py.processing.tasks import task, tasks
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.worker import IDLE_WAIT, Worker
from kstreams_py.records import HASH_HEADER, Positions, TopicPartition
from kstreams_py.settings import ClientSettings, Settings
from kstreams_py.steps import outputs
from kstreams_py.steps.plan import Plan
from kstreams_py.testing.memory_clients import MemoryConsumer
from tests.tables import each_case
from tests.unit.plant import (
    A0,
    A1,
    ALO,
    AMO,
    B0,
    B1,
    EO,
    Crash,
    Plant,
    fail_flushes,
    fail_next_write,
    fetch_always,
    leave_commits_unanswered,
    numbers,
    of_twice,
    start_interrupted,
    twice,
)

Seen = list[bytes]


# When a worker commits.


def test_input_without_further_records_is_committed_at_once() -> None:
    plant = Plant()
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.turn()
    assert (plant.out(), worker.committer.session.state) == ([], SessionState.OPEN)
    worker.turn()
    assert (plant.out(), worker.committer.session.state, plant.saved) == (["1", "2"], SessionState.READY, {A0: 2})


def test_input_with_further_records_is_committed_at_the_interval() -> None:
    plant = Plant(function=lambda value: plant.clock.advance(0.001), settings=Settings(commit_interval_ms=100))
    plant.feed("a", *numbers(0, 1_000))
    worker = plant.started()
    fetch_always(worker, 60)
    committed = []
    for _ in range(5):
        worker.turn()
        committed.append((worker.counters.commits, plant.saved.get(A0, 0)))
    assert committed == [(0, 0), (0, 0), (1, 180), (1, 180), (1, 180)]


def test_record_limit_commits_the_processed_offset_and_not_the_fetched_one() -> None:
    """Truth 3: the position of the consumer is ahead of the processed records."""
    at: list[int] = []

    def function(value: bytes) -> bytes:
        if value == b"500":
            at.append(plant.saved[A0])
        return value

    plant = Plant(function=function, settings=Settings(commit_records=500))
    plant.feed("a", *numbers(0, 1_200))
    worker = plant.started()
    worker.intakes.pace.fetch = 1_200
    worker.turn()
    assert (at, plant.saved, worker.counters.commits) == ([500], {A0: 1_000}, 2)


def test_idle_worker_does_nothing_but_wait_for_records() -> None:
    plant = Plant()
    plant.run(idle=10)
    assert [r for r in plant.cluster.faults.requests if r != "consume"] == [
        "create_topics", "topics", "topics", "subscribe", "init_transactions", "hanging", "read", "committed",
    ]  # fmt: skip
    assert plant.timeouts == [IDLE_WAIT] * 10


def test_busy_worker_does_not_wait_for_records() -> None:
    plant = Plant()
    plant.feed("a", "1")
    plant.run(idle=2)
    assert plant.timeouts == [IDLE_WAIT, IDLE_WAIT, 0.0, IDLE_WAIT, IDLE_WAIT]


def test_markers_behind_the_last_record_are_committed_with_it_or_after_an_idle_wait() -> None:
    """Truth 10: the end of a partition is an offset, not a record."""
    plant = Plant()
    writer = plant.cluster.producer(producer_mode(EO, Durability.COMMITTED), "other")
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
    writer = plant.cluster.producer(producer_mode(EO, Durability.COMMITTED), "other")
    writer.init_transactions()
    writer.begin_transaction()
    writer.write([("a", b"v", None, 0, None, None, 0, None)])
    writer.abort_transaction()
    worker = plant.started()
    for _ in range(3):
        worker.turn()  # `consume` returns at once, without records
    assert plant.saved == {}


# How many records a worker takes at once.


def test_pace_grows_fourfold_for_fast_functions_and_shrinks_at_once_for_slow_ones() -> None:
    pace = Pace(whole_fetches=False)
    seen = []
    for steps, seconds in [(100, 0.0), (400, 0.001), (500, 0.5), (200, 2.0), (20, 600.0), (1, 0.1), (1, 0.001)]:
        seen.append((pace.fetch, pace.take))
        pace.ran(steps, seconds)
    assert seen == [(100, 100), (400, 400), (1_600, 500), (200, 200), (20, 20), (1, 1), (2, 2)]
    assert pace.fetch == 8


def test_pace_stays_within_its_limits() -> None:
    pace, whole = Pace(whole_fetches=False), Pace(whole_fetches=True)
    for _ in range(20):
        pace.ran(pace.fetch, 0.0)
        whole.ran(1_000_000, 0.001)
    assert (pace.fetch, pace.take) == (Pace.FETCH_MAX, Pace.TAKE_MAX) == (10_000, 500)
    assert (whole.fetch, whole.take) == (10_000, 10_000)


def test_pace_gives_a_slow_function_fewer_records_and_a_fast_one_more() -> None:
    seconds = [0.05]
    plant = Plant(function=lambda value: plant.clock.advance(seconds[0]))
    plant.feed("a", *numbers(0, 5_000))
    worker = plant.started()
    worker.turn()
    assert worker.intakes.pace.fetch == 4
    seconds[0] = 0.0
    for _ in range(3):
        worker.turn()
    assert worker.intakes.pace.fetch == 4 * 4**3


@pytest.mark.parametrize(("kind", "guarantee"), [("alts", EO), ("map", AMO)])
def test_fetch_is_taken_as_a_whole_where_every_intake_costs_a_commit(kind: str, guarantee: Guarantee) -> None:
    plant = Plant(kind, guarantee=guarantee)
    plant.feed("a", *numbers(0, 1_000))
    worker = plant.started()
    worker.intakes.pace.fetch = 1_000
    before = len(plant.cluster.faults.requests)
    worker.turn()
    commits = [r for r in plant.cluster.faults.requests[before:] if r.startswith("commit")]
    assert commits == (["commit_transaction"] if guarantee is EO else ["commit"])


def test_input_of_a_join_that_is_far_ahead_is_paused_until_the_other_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "BUFFER_LIMIT", 50)
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
    assert len(worker.tasks.by_partition[0].queues["a"].records) == 100
    plant.feed("b", *["!"] * 60)
    worker.turn()
    assert paused[-1] == set()
    worker.committer.end()
    plant.feed("b", *["!"] * 940)
    plant.run()
    assert plant.out() == [f"{number}!" for number in range(1_000)]


def test_fetch_of_a_join_is_limited_by_the_bytes_that_its_buffers_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that the client has fetched are added to those that are buffered already."""
    monkeypatch.setattr(tasks, "BUFFER_BYTES", 100 * (task.RECORD_BYTES + 1_000))
    plant = Plant("join")
    for number in range(1_000):
        plant.cluster.append("a", b"%1000d" % number, partition=number % 2)
    worker = plant.started()
    worker.intakes.pace.fetch = 60
    limits, consume = list[int](), worker.consumer.consume

    def watched(limit: int, timeout: float) -> Any:
        limits.append(limit)
        return consume(limit, timeout)

    worker.consumer.consume = watched  # type: ignore[method-assign]
    worker.turn()
    worker.intakes.pace.fetch = 10_000
    worker.turn()
    worker.turn()
    assert limits == [60, 40, tasks.TAKEN_AT_LEAST]


@pytest.mark.parametrize("guarantee", list(Guarantee))
@pytest.mark.parametrize("kind", ["map", "alts"])
def test_outputs_of_a_generator_are_written_before_too_many_are_held(
    kind: str, guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` is called once for the whole intake."""
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    plant = Plant(kind, twice, guarantee=guarantee)
    plant.feed("a", *numbers(0, 50))
    worker = plant.started()
    written, saved = list[int](), list[Positions]()
    write, prepare = worker.committer.write, worker.committer.prepare

    def count(plan: Plan) -> None:
        written.append(len(plan.outputs))
        write(plan)

    def keep(intake: Taken) -> None:
        saved.append(intake.positions())
        prepare(intake)

    monkeypatch.setattr(worker.committer, "write", count)
    monkeypatch.setattr(worker.committer, "prepare", keep)
    plant.run(worker)
    assert (written, saved) == ([10] * 10, [{A0: 50}])
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize("guarantee", list(Guarantee))
def test_drain_in_the_middle_of_an_intake_that_is_run_in_parts_loses_nothing(
    guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)

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


@pytest.mark.parametrize("then", ["run_turn", "finish", "_on_revoked"])
def test_at_most_once_failure_between_parts_of_an_intake_loses_no_step_not_yet_run(
    then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets were committed before: no other worker would run it."""
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", *numbers(0, 50))
    worker = start_interrupted(plant)
    assert worker.tasks.owes
    getattr(worker, then)()
    worker._follow_group()
    assert worker.tasks.rest is None
    worker.finish()
    worker.close()
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize("commit_fails", [False, True])
@pytest.mark.parametrize("then", ["run_turn", "finish", "_on_revoked"])
def test_at_most_once_stop_in_the_rest_of_an_intake_gives_the_steps_after_it_back(
    then: str, commit_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets were committed before: no other worker would run them."""
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    stopped = list[bytes]()

    def function(value: bytes) -> Iterator[bytes]:
        if value == b"30" and not stopped:
            stopped.append(value)
            raise Stop("enough")
        yield from twice(value)

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", *numbers(0, 50))
    worker = start_interrupted(plant)
    assert (stopped, worker.tasks.owes) == ([], True)
    if commit_fails:
        fail_flushes(worker, 1)
    getattr(worker, then)()
    worker._follow_group()
    worker.finish()
    worker.close()
    plant.run()
    assert (plant.out(), plant.saved) == (of_twice(0, 50), {A0: 50})


@pytest.mark.parametrize(
    ("of_topic", "of_client", "limit"),
    [({}, {}, 1_000_000), ({"max.message.bytes": "5000"}, {}, 5_000), ({}, {"message.max.bytes": "7000"}, 7_000)],
)
def test_dead_letter_is_no_larger_than_its_topic_and_the_client_accept(
    of_topic: dict[str, str], of_client: dict[str, str], limit: int
) -> None:
    def function(value: bytes) -> None:
        raise LookupError

    plant = Plant(function=function, settings=Settings(kafka=ClientSettings(of_client)), dead=of_topic)
    plant.cluster.append("a", b"v" * 1_040_000)
    plant.run()
    (found,) = plant.cluster.records("dead")
    assert limit * 0.9 < len(found.value() or b"") < limit


# How a worker ends.


def test_drain_commits_the_steps_that_were_run_and_takes_no_more() -> None:
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
def test_interrupt_while_the_queue_of_the_client_is_full_skips_no_record(guarantee: Guarantee) -> None:
    """Without transactions the write is repeated in a later turn, which must not pass the step that raised."""
    raised = list[bytes]()

    def function(value: bytes) -> bytes:
        if value == b"3" and not raised:
            raised.append(value)
            fail_next_write(worker)
            raise Stop("enough")
        return value

    plant = Plant(function=function, guarantee=guarantee)
    plant.feed("a", *numbers(0, 6))
    worker = plant.worker()
    plant.run(worker)
    assert worker._stopping.is_set()
    plant.run()
    assert (plant.out(), plant.dead_letter_count) == (numbers(0, 6), 0)


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize(
    "error", [Stop("enough"), ZeroDivisionError("enough"), Abortable("enough")], ids=lambda error: type(error).__name__
)
def test_interrupt_commits_the_steps_before_it_and_a_new_worker_continues_there(
    guarantee: Guarantee, error: Exception
) -> None:
    raised = list[bytes]()

    def function(value: bytes) -> bytes:
        if value == b"3" and not raised:
            raised.append(value)
            raise error
        return value

    plant = Plant(function=function, guarantee=guarantee, stop_on=ArithmeticError)
    plant.feed("a", *numbers(0, 6))
    if isinstance(error, Stop):
        plant.run()
    else:
        with pytest.raises(type(error), match="enough"):
            plant.run()
    assert (plant.out(), plant.dead_letter_count) == (numbers(0, 3), 0)
    plant.run()
    tried = {"3"} if guarantee is AMO and not isinstance(error, Stop) else set()  # at most once: not tried again
    assert (plant.out(), plant.dead_letter_count) == ([number for number in numbers(0, 6) if number not in tried], 0)


def test_interrupt_whose_commit_fails_is_reached_again_after_the_rewind(caplog: pytest.LogCaptureFixture) -> None:
    calls = Seen()

    def function(value: bytes) -> bytes:
        calls.append(value)
        if value == b"1":
            raise Stop
        return value

    plant = Plant(function=function)
    plant.feed("a", "0", "1")
    plant.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=False)
    plant.run()
    assert (plant.out(), calls) == (["0"], [b"0", b"1"] * 2)


@pytest.mark.parametrize("guarantee", Guarantee)
def test_output_that_is_refused_ends_the_worker_where_no_dead_letter_can_be_written(guarantee: Guarantee) -> None:
    plant = Plant(function=lambda value: value * 1_000_000, guarantee=guarantee, errors=None)
    plant.feed("a", "1", "22")
    with pytest.raises(RecordTooLarge, match=r"a record \(1000093 bytes\) is larger than topic 'x' takes"):
        plant.run()
    assert (plant.out(), plant.saved) == ([], {A0: 2} if guarantee is AMO else {})


@each_case("hash_header", [True, False])
@each_case("refused", [{"7"}, {"0", "1"}, {"19"}, set(numbers(0, 20))])
@each_case("batch", [False, True])
@each_case("guarantee", Guarantee)
@each_case("where", ["client", "broker"])
def test_output_that_is_refused_is_a_dead_letter_and_all_others_are_delivered_once(
    guarantee: Guarantee, batch: bool, refused: set[str], where: str, hash_header: bool
) -> None:
    large = 1_000_000 if where == "client" else 2_000

    def one(value: bytes) -> bytes:
        return value.ljust(large) if value.decode() in refused else value

    function: Any = (lambda values: [one(value) for value in values]) if batch else one
    plant = Plant(function=function, guarantee=guarantee, batch=batch, hash_header=hash_header, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 20))
    plant.run()
    delivered = Counter(plant.out())
    assert (set(delivered), plant.dead_letter_count) == (set(numbers(0, 20)) - refused, len(refused))
    assert guarantee is ALO or set(delivered.values()) <= {1}
    assert plant.saved == {A0: 20}


def test_refused_outputs_among_others_are_dead_letters_and_do_not_end_the_worker() -> None:
    """Ten of a thousand: a transaction with a refused output is halved until it is one step."""
    bad = set(numbers(0, 1_000)[::100])
    plant = Plant(function=lambda value: value.ljust(2_000) if value.decode() in bad else value, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 1_000))
    plant.run()
    assert (plant.out(), plant.dead_letter_count) == ([n for n in numbers(0, 1_000) if n not in bad], 10)


def test_input_that_was_deleted_before_it_was_read_ends_the_worker() -> None:
    plant = Plant()
    plant.feed("a", *numbers(0, 5))
    plant.run()
    plant.feed("a", *numbers(5, 10))
    plant.cluster.truncate(A0, 8)
    with pytest.raises(InputLost, match=r"a\[0\]: position 5 is not in the log, which holds 8 to 10"):
        plant.run()
    assert plant.out() == numbers(0, 5)


def test_worker_that_cannot_start_closes_its_consumer() -> None:
    plant = Plant()
    plant.cluster.faults.inject("init_transactions", error=BrokerUnavailable("no broker"), applied=False)
    worker, closed = plant.worker(), list[str]()
    worker.consumer.close = lambda: closed.append("consumer")  # type: ignore[method-assign]
    with pytest.raises(BrokerUnavailable):
        worker.run()
    assert closed == ["consumer"]


@pytest.mark.parametrize("error", [Abortable, Retriable, OutcomeUnknown, Fenced])
def test_drain_that_cannot_commit_is_logged_and_commits_nothing(
    error: type[ClientError], caplog: pytest.LogCaptureFixture
) -> None:
    worker: Worker

    def stopping(value: bytes) -> bytes:
        worker._stopping.set()
        return value

    plant = Plant(function=stopping)
    plant.feed("a", "1", "2")
    worker = plant.worker()
    for nth in range(1, 6 if error is Retriable else 2):
        plant.cluster.faults.inject("send_offsets", nth=nth, error=error("no"), applied=False)
    plant.run(worker)
    assert "p: the last steps are not committed and will be run again: no" in caplog.text
    assert (plant.out(), plant.saved) == ([], {})


def test_last_commit_of_unknown_outcome_is_not_aborted() -> None:
    """Truth 1, at the end of a worker."""
    worker: Worker

    def stopping(value: bytes) -> bytes:
        worker._stopping.set()
        return value

    plant = Plant(function=stopping)
    plant.feed("a", "1")
    plant.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=True)
    worker = plant.worker()
    plant.run(worker)
    assert ("abort_transaction" in plant.cluster.faults.requests, plant.out()) == (False, ["1"])


# Recovery.


def fill_inputs(plant: Plant) -> list[str]:
    """Fills the inputs of a plant; returns the expected outputs, partition by partition."""
    for partition, first in ((0, 0), (1, 10)):
        plant.feed("a", *numbers(first, first + 5), partition=partition)
        if plant.processor.kind != "map":
            plant.feed("b", *(f"-{n}" for n in numbers(first, first + 5)), partition=partition)
    every = [*numbers(0, 5), *numbers(10, 15)]
    if plant.processor.kind == "join":
        return [f"{n}-{n}" for n in every]
    return every if plant.processor.kind == "map" else [*every, *(f"-{n}" for n in every)]


def ordered(values: Sequence[str]) -> list[str]:
    """Sorts values by input and partition, and keeps the order within each."""
    return sorted(values, key=lambda value: (value.startswith("-"), len(value)))


@each_case("kind", ["map", "join", "alts"])
@each_case(
    ("error", "applied"), [(Retriable, False), (Abortable, False), (OutcomeUnknown, False), (OutcomeUnknown, True)]
)
@each_case("request_name", ["produce", "send_offsets", "commit_transaction", "consume", "committed"])
def test_exactly_once_rewind_after_a_failure_reads_every_record_again_exactly_once(
    request_name: str, error: type[ClientError], applied: bool, kind: str
) -> None:
    """Truth 5: after any failure the worker rewinds to the committed offsets."""
    plant = Plant(kind)
    expected = fill_inputs(plant)
    for nth in range(1, 6 if error is Retriable else 2):  # five are one call's attempts
        plant.cluster.faults.inject(request_name, nth=nth, error=error("why"), applied=applied)
    plant.run(idle=8)  # each attempt to rewind calls `consume` first
    assert ordered(plant.out()) == expected
    again = plant.worker()
    plant.run(again)
    assert (ordered(plant.out()), again.counters.records_in) == (expected, 0)


@pytest.mark.parametrize("kind", ["map", "join", "alts"])
@pytest.mark.parametrize("moment", [1, 2, 3])
def test_exactly_once_worker_that_was_fenced_but_not_replaced_delivers_once(moment: int, kind: str) -> None:
    plant = Plant(kind)
    expected = fill_inputs(plant)

    def fence(turn: int) -> None:
        if turn == moment:
            plant.cluster.producer(producer_mode(EO, Durability.COMMITTED), "g.p.0").init_transactions()

    plant.run(hook=fence)
    assert ordered(plant.out()) == expected


@each_case("guarantee", [ALO, AMO])
@each_case("request_name", ["produce", "commit", "consume", "committed"])
@each_case("error", [Abortable, OutcomeUnknown])
def test_failure_without_transactions_loses_or_repeats_only_what_is_allowed(
    guarantee: Guarantee, request_name: str, error: type[ClientError]
) -> None:
    plant = Plant(guarantee=guarantee)
    expected = fill_inputs(plant)
    plant.cluster.faults.inject(request_name, error=error("why"), applied=False)
    plant.run()
    lost = guarantee is AMO and request_name == "produce"  # the batch in flight
    copies = 0 if lost else 2 if guarantee is ALO and request_name == "commit" else 1
    assert Counter(plant.out()) == Counter(expected * copies)


def test_rewind_waits_while_another_transaction_has_pending_offsets() -> None:
    plant = Plant()
    plant.feed("a", "1", "2")
    other = plant.cluster.producer(producer_mode(EO, Durability.COMMITTED), "g.p.7")
    other.init_transactions()
    other.begin_transaction()
    joined = plant.cluster.consumer("g.p", "g.p.7")
    joined.subscribe(["a"], lambda _: None, lambda: None, lambda: None)
    joined.consume(1, 0.0)
    other.send_offsets({A0: 1}, joined)  # it dies here: its transaction times out 10 s later
    plant.clock.advance(14.0)
    joined.consume(1, 0.0)
    plant.run(hook=lambda turn: plant.clock.advance(1.0), idle=60)
    assert plant.out() == ["1", "2"]


def test_function_that_outlives_its_transaction_is_called_again_and_delivers_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Truth 7: a producer fenced by a transaction timeout was not replaced."""
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
        worker.run_turn()
    assert (plant.out(), calls) == (numbers(0, 4), [b"0", b"1", b"0", b"1", b"2", b"3"])
    assert "the broker timed the transaction out" in caplog.text


def test_worker_whose_membership_is_lost_is_joining_until_it_has_an_assignment() -> None:
    """It went back to the committed offsets of no partition, and was taken for a spare."""
    plant = Plant(guarantee=Guarantee.AT_LEAST_ONCE)
    worker = plant.started()
    plant.feed("a", "0")
    for nth in range(1, 6):
        plant.cluster.faults.inject("membership", nth=nth, error=Retriable("no answer"), applied=False)

    def turn() -> WorkerState:
        worker.run_turn()
        return worker.state

    assert turn() is WorkerState.RUNNING
    plant.clock.advance(20.0)
    plant.feed("a", "1")
    assert [turn() for _ in range(9)] == [WorkerState.JOINING] * 6 + [WorkerState.RUNNING] * 3
    assert plant.out() == ["0", "0", "1"]


def test_rebalance_in_mid_transaction_moves_the_work_to_the_other_worker_once() -> None:
    """Truth 4: the open transaction cannot be committed any more."""
    plant = Plant()
    expected = fill_inputs(plant)
    first, second = plant.worker(0), plant.worker(1)

    def hook(number: int) -> None:
        if number == 2:  # the first worker has written all outputs, and committed none
            assert first.committer.session.state is SessionState.OPEN
            second.start()
        if number >= 2:
            second.run_turn()

    plant.run(first, hook=hook, idle=5)
    assert (sorted(plant.out()), first.counters.aborts) == (sorted(expected), 1)
    assert (first.counters.records_in, first.counters.rolled_back, second.counters.records_in) == (5, 10, 5)
    assert plant.saved == {A0: 5, A1: 5}


def test_rebalance_that_revokes_all_partitions_commits_no_open_transaction() -> None:
    plant = Plant(partitions=1)
    plant.feed("a", "1", "2")
    loser, winner = plant.worker(1), plant.worker(0)  # range assignment starts at the lowest instance id

    def hook(number: int) -> None:
        if number == 2:
            assert loser.committer.session.state is SessionState.OPEN
            winner.start()
        if number >= 2:
            winner.run_turn()

    plant.run(loser, hook=hook, idle=5)
    assert (plant.out(), loser.counters.commits, winner.counters.commits) == (["1", "2"], 0, 1)


def test_revoked_partitions_are_removed_from_the_ledger() -> None:
    plant = Plant()
    first, second = plant.started(), plant.worker(1)
    first.run_turn()
    assert set(first.ledger.positions) == {A0, A1}
    second.start()
    for worker in (second, first, second, first, second):
        worker.run_turn()
    assert (set(first.ledger.positions), set(second.ledger.positions)) == ({A0}, {A1})
    third = plant.cluster.consumer("g.p", "g.p.2")
    third.subscribe(["a"], lambda _: None, lambda: None, lambda: None)
    first.run_turn()  # the new generation waits for the second
    assert (first.ledger.positions, first._assigned) == ({}, None)


def test_worker_without_a_partition_waits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plant = Plant(partitions=1)
    plant.feed("a", "1")
    first = plant.started()
    second = plant.worker(1)
    plant.run(second, hook=lambda number: first.run_turn(), idle=4)
    assert (plant.out(), first.counters.records_in, second.counters.records_in) == (["1"], 1, 0)
    assert "p: holds a[0]" in caplog.text
    assert "p: holds no partition" in caplog.text


def test_replaced_worker_ends_and_its_open_transaction_is_never_visible() -> None:
    plant = Plant()
    expected = fill_inputs(plant)
    zombie = plant.worker()

    def hook(number: int) -> None:
        if number == 2:
            assert zombie.committer.session.state is SessionState.OPEN
            plant.run(plant.worker())  # the same slot

    with pytest.raises(Replaced, match=r"another worker has taken the slot of g.p.0 over"):
        plant.run(zombie, hook=hook)
    assert ordered(plant.out()) == expected
    plant.run()
    assert ordered(plant.out()) == expected


def test_worker_frozen_beyond_its_session_commits_nothing_when_it_wakes() -> None:
    """While it sleeps in mid-transaction, its partitions are reassigned and its transaction is aborted."""
    plant = Plant()
    expected = fill_inputs(plant)
    zombie, successor = plant.worker(0), plant.worker(1)

    def hook(number: int) -> None:
        if number == 2:
            assert zombie.committer.session.state is SessionState.OPEN
            plant.clock.advance(16.0)
            plant.run(successor)

    plant.run(zombie, hook=hook, idle=5)
    plant.run()
    assert ordered(plant.out()) == expected
    assert successor.counters.records_in == 10


# Without transactions: commits that wait, and steps that only a crash may lose or repeat.


def record_calls(seen: Seen) -> Callable[[bytes], bytes]:
    """Returns a function that appends each value it is called with to `seen`."""

    def function(value: bytes) -> bytes:
        seen.append(value)
        return value

    return function


def record_pauses(worker: Worker) -> list[set[TopicPartition]]:
    """A list to which each call of `pause` appends its partitions."""
    paused, pause = list[set[TopicPartition]](), worker.consumer.pause

    def pausing(partitions: Collection[TopicPartition]) -> None:
        paused.append(set(partitions))
        pause(partitions)

    worker.consumer.pause = pausing  # type: ignore[method-assign]
    return paused


@pytest.mark.parametrize("waits", ["commit", "commit whose answer is lost", "flush"])
@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_unanswered_offset_commit_rewinds_nothing_and_drops_nothing(guarantee: Guarantee, waits: str) -> None:
    calls = Seen()
    plant = Plant(function=record_calls(calls), guarantee=guarantee, linger=60.0)
    worker = plant.started()
    paused = record_pauses(worker)
    plant.feed("a", *numbers(0, 4))
    if waits == "flush":
        fail_flushes(worker, 3)
    else:
        leave_commits_unanswered(plant, 3 * CALLS_MAX, applied="lost" in waits)
    last = 4
    for _ in range(9):
        worker.run_turn()
        if worker.committer.must_repeat_commit:
            plant.feed("a", str(last))  # fetched once the commit is acknowledged
            last += 1
    assert (plant.out(), calls) == (numbers(0, 7), [number.encode() for number in numbers(0, 7)])
    assert (last, plant.saved, worker.counters.aborts) == (7, {A0: 7}, 0)
    assert plant.cluster.faults.requests.count("committed") == 1  # at the start
    assert [partitions for partitions in paused if partitions] == [{A0, A1}] * 3


@pytest.mark.parametrize("late", [None, 30.0], ids=["without an answer", "late"])
@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_that_may_be_committed_is_run(applied: bool, late: float | None) -> None:
    """After a rejoin the committed offsets may be past it, so that no worker would run it."""
    calls = Seen()
    plant = Plant(function=record_calls(calls), guarantee=AMO)
    expected = fill_inputs(plant)
    leave_commits_unanswered(plant, applied=applied, late=late)
    plant.run(idle=6)
    plant.clock.advance(31.0)
    plant.run()
    assert ordered(plant.out()) == expected
    assert Counter(calls) == Counter(number.encode() for number in expected)


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_that_may_be_committed_is_run_after_another_error(applied: bool) -> None:
    plant = Plant(guarantee=AMO)
    expected = fill_inputs(plant)
    leave_commits_unanswered(plant, 1, applied=applied)
    plant.cluster.faults.inject("commit", nth=2, error=Abortable("rebalance in progress"), applied=False)
    plant.run()
    assert ordered(plant.out()) == expected


@pytest.mark.parametrize("how", ["drained", "Stop", "retried"])
def test_at_most_once_intake_committed_by_a_call_that_failed_is_given_back(how: str) -> None:
    """The group says that the offsets are committed, so the worker goes on with the intake that it has."""
    failures: dict[str, list[Exception]] = {"drained": [], "Stop": [Stop()], "retried": [ConnectionError()]}
    fails = failures[how]

    def function(value: bytes) -> bytes:
        if fails:
            raise fails.pop()
        return value

    plant = Plant(function=function, guarantee=AMO, retry=Retry())
    plant.feed("a", *numbers(0, 3))
    leave_commits_unanswered(plant, 1, applied=True)
    plant.cluster.faults.inject("commit", nth=2, error=Abortable("rebalance in progress"), applied=False)
    worker = plant.started()
    worker.run_turn()
    worker.run_turn()
    assert (plant.saved, plant.out()) == ({A0: 3}, [])
    if how != "drained":
        worker.run_turn()
    worker.finish()
    worker.close()
    plant.run()
    assert (plant.out(), plant.saved) == (numbers(0, 3), {A0: 3})


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_that_may_be_committed_is_run_before_its_worker_ends(applied: bool) -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    expected = fill_inputs(plant)
    leave_commits_unanswered(plant, applied=applied)
    worker = plant.started()
    worker.run_turn()
    assert worker.committer.must_repeat_commit
    worker.finish()
    worker.close()
    assert ordered(plant.out()) == expected
    plant.run()
    assert ordered(plant.out()) == expected


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_that_may_be_committed_before_a_refused_attempt_is_run(applied: bool) -> None:
    plant = Plant(guarantee=AMO)
    expected = fill_inputs(plant)
    leave_commits_unanswered(plant, 1, applied=applied)
    plant.cluster.faults.inject("commit", nth=2, error=Abortable("rebalance in progress"), applied=False)
    worker = plant.started()
    worker.run_turn()
    worker.finish()
    worker.close()
    plant.run()
    assert ordered(plant.out()) == expected


def test_at_most_once_intake_that_may_be_committed_is_run_once_partitions_are_back() -> None:
    plant = Plant(guarantee=AMO)
    plant.feed("a", "1")
    leave_commits_unanswered(plant, 1, applied=True)
    plant.cluster.faults.inject("commit", nth=2, error=Abortable("no member any more"), applied=False)
    worker = plant.started()
    worker.run_turn()
    plant.clock.advance(16.0)  # longer than the session
    for _ in range(5):
        worker.run_turn()
    assert (plant.out(), plant.saved) == (["1"], {A0: 1})


@pytest.mark.parametrize(
    ("times", "applied"), [(5, True), (5, False), (10, False)], ids=["carried out", "lost", "lost again"]
)
def test_at_most_once_intake_that_may_be_committed_is_run_before_a_revocation(times: int, applied: bool) -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    expected = fill_inputs(plant)
    first, second = plant.started(), plant.worker(1)
    leave_commits_unanswered(plant, times, applied=applied)
    first.run_turn()
    assert first.committer.must_repeat_commit
    second.start()
    for worker in (first, second) * 6:
        worker.run_turn()
    assert (ordered(plant.out()), plant.saved) == (expected, {A0: 5, A1: 5})
    assert [set(worker.ledger.positions) for worker in (first, second)] == [{A0}, {A1}]


def test_revoked_callback_that_cannot_commit_is_logged_and_gives_its_partitions_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant = Plant(guarantee=AMO)
    plant.feed("a", "1")
    worker = plant.started()
    leave_commits_unanswered(plant, 2 * CALLS_MAX)
    worker.run_turn()
    worker._on_revoked()
    assert "p: partitions are revoked before a commit: no answer" in caplog.text
    assert (worker._assigned, worker.ledger.positions, worker.intakes._taken) == (None, {}, None)


@pytest.mark.parametrize("nth", range(1, 9))
def test_at_most_once_output_that_meets_a_full_queue_in_the_search_is_delivered(nth: int) -> None:
    plant = Plant(function=lambda value: value.ljust(2_000) if value in b"23" else value, guarantee=AMO, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 6))
    worker = plant.started()
    producer: Any = worker.committer.session._producer
    write, writes = producer.write, 0

    def writing(outputs: list[Output]) -> None:
        nonlocal writes
        writes += 1
        if writes == nth:
            raise Retriable("the producer's queue stayed full")
        write(outputs)

    producer.write = writing
    for _ in range(30):
        worker.run_turn()
    assert (sorted(plant.out()), plant.dead_letter_count, writes > 8) == (["0", "1", "4", "5"], 2, True)


def test_at_most_once_dead_letter_names_the_step_of_the_refused_among_equal_outputs() -> None:
    plant = Plant(function=lambda value: value.ljust(2_000), guarantee=AMO, hash_header=False)
    worker = plant.started()
    for limit in ("10000", "1000"):
        plant.cluster._broker.topics["x"].settings["max.message.bytes"] = limit
        plant.feed("a", "1")
        for _ in range(4):
            worker.run_turn()
    (dead_letter,) = plant.cluster.records("dead")
    topic_id = plant.cluster.topics(["a"])["a"].topic_id
    assert dict(dead_letter.headers() or ())[HASH_HEADER] == hash_prefix("g.p", "a", topic_id, 0) + pack_offset(1)


def test_at_most_once_drain_waits_until_queued_outputs_are_delivered() -> None:
    plant = Plant(guarantee=AMO, linger=60.0)
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.run_turn()
    fail_flushes(worker, 4)
    worker.finish()
    assert plant.out() == ["1", "2"]


def test_at_most_once_drain_that_takes_too_long_raises_that_outputs_are_lost() -> None:
    plant = Plant(guarantee=AMO, linger=1e6, settings=Settings(drain_timeout_ms=8_000))
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.run_turn()
    fail_flushes(worker, 1_000)
    before = plant.clock()
    with pytest.raises(
        DrainTimeout, match=r"^p: at most once: steps or outputs are lost: the broker makes no progress: raise drain_"
    ):
        worker.finish()
    assert 4.0 <= plant.clock() - before < 9.0  # half of drain_timeout_ms, and the wait before the last attempt


def test_at_least_once_drain_with_an_unanswered_commit_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant(guarantee=ALO)
    plant.feed("a", "1")
    worker = plant.started()
    worker.run_turn()
    leave_commits_unanswered(plant)
    worker.finish()
    worker.close()
    assert "p: the last steps are not committed and will be run again: no answer" in caplog.text
    plant.run()
    assert plant.out() == ["1", "1"]


def test_at_most_once_drain_writes_the_dead_letter_of_an_output_that_is_refused() -> None:
    plant = Plant(function=lambda value: value.ljust(2_000) if value == b"2" else value, guarantee=AMO, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", "1", "2", "3")
    worker = plant.started()
    worker.run_turn()
    worker.finish()
    assert (plant.out(), plant.dead_letter_count) == (["1", "3"], 1)


def test_at_most_once_replaced_worker_writes_nothing_of_what_its_client_has_queued() -> None:
    """Its replacement begins behind these outputs; a batch with one that is refused would come back late, too."""
    plant = Plant(function=lambda value: value.ljust(2_000) if value == b"2" else value, guarantee=AMO, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", "1", "2", "3")
    worker = plant.started()
    worker.run_turn()
    plant.worker().start()
    worker.run_turn()
    with pytest.raises(Replaced):
        worker.run_turn()
    worker.close()
    assert (plant.out(), plant.dead_letter_count) == ([], 0)


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_member_whose_commit_may_arrive_late_commits_its_open_steps_and_rejoins(
    guarantee: Guarantee, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Seen()
    plant = Plant(function=record_calls(calls), guarantee=guarantee, linger=60.0)
    plant.feed("a", *numbers(0, 3))
    worker = plant.started()
    worker.run_turn()
    plant.feed("a", *numbers(3, 6))
    assert isinstance(worker.consumer, MemoryConsumer)
    worker.consumer.tainted = True
    plant.cluster.faults.inject("commit", error=None, late=5.0)
    before = len(plant.cluster.faults.requests)
    worker.run_turn()
    saves = ["produce", "commit"] if guarantee is ALO else ["produce"]
    assert [r for r in plant.cluster.faults.requests[before:] if r != "read"] == ["consume", *saves, "subscribe"]
    assert (plant.out(), worker._assigned, worker.ledger.positions) == (numbers(0, 3), None, {})
    assert "p: a commit of offsets may reach the broker late: joining again" in caplog.text
    for _ in range(4):
        worker.run_turn()
    plant.clock.advance(6.0)
    plant.cluster.ends([A0])  # any request lets the late commit arrive
    assert (plant.out(), calls) == (numbers(0, 6), [number.encode() for number in numbers(0, 6)])
    assert plant.saved == {A0: 6}


def test_member_whose_commit_may_arrive_late_does_not_rejoin_when_it_ends() -> None:
    """After a rejoin the offsets of steps that were not run could not be given back."""

    def function(value: bytes) -> bytes:
        if value == b"3":
            raise Stop
        return value

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", *numbers(0, 6))
    leave_commits_unanswered(plant, late=30.0)
    plant.run()
    assert (plant.out(), plant.saved) == (numbers(0, 3), {A0: 3})


# Callbacks and assignments.


def test_error_in_a_callback_is_raised_by_the_next_turn_and_not_inside_the_client() -> None:
    """An exception inside the callback would leave the client in the middle of a rebalance."""
    plant = Plant(guarantee=ALO)
    plant.feed("a", "1")
    worker = plant.started()
    worker.run_turn()
    plant.cluster.faults.inject("commit", error=NotAuthorized("the right to commit is missing"), applied=False)
    worker._on_revoked()
    assert (worker._assigned, worker.ledger.positions) == (None, {})
    with pytest.raises(NotAuthorized, match="the right to commit is missing"):
        worker.run_turn()


@pytest.mark.parametrize("guarantee", Guarantee)
def test_lost_partitions_are_given_up_without_a_commit(guarantee: Guarantee) -> None:
    plant = Plant(guarantee=guarantee)
    plant.feed("a", "1", "2")
    worker = plant.started()
    worker.run_turn()
    before = len(plant.cluster.faults.requests)
    worker._on_lost()
    worker._follow_group()
    assert (plant.cluster.faults.requests[before:], worker._assigned, worker.ledger.positions) == ([], None, {})
    assert worker.committer.uncommitted_steps == (2 if guarantee is AMO else 0)


def test_assigned_partitions_of_topics_that_are_not_read_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """A static member first gets its old assignment."""
    caplog.set_level(logging.INFO)
    plant = Plant()
    plant.cluster._broker.groups["g.p"].positions.clear()  # as if deleted by hand, or never written by an older release
    plant.cluster._broker.topics[plant.graph.beginnings].partitions[0].truncate(100)
    worker = plant.worker()
    worker.start()
    worker.turn()
    worker._on_assigned({A0, A1, TopicPartition("old", 0), TopicPartition("older", 1)})
    plant.feed("a", "1", "2")
    for _ in range(4):
        worker.run_turn()
    assert "p: not read any more: old[0], older[1]" in caplog.text
    assert (plant.out(), set(worker.ledger.positions)) == (["1", "2"], {A0, A1})


UNEQUAL = "processor 'p' (join) reads 'a' with 2 partitions, but 'b' with 3: give both the same number of partitions"


def test_join_with_one_input_that_grew_while_running_ends_with_both_counts() -> None:
    plant = Plant("join")
    worker = plant.started()
    plant.cluster.grow("b", 3)
    worker._on_assigned({A0, A1, B0, B1, TopicPartition("b", 2)})
    with pytest.raises(GraphError) as caught:
        worker.run_turn()
    assert str(caught.value) == UNEQUAL


def test_join_with_one_input_that_grew_before_its_start_ends_with_both_counts() -> None:
    """Its counts would include the growth, so that no later check finds a new partition."""
    plant = Plant("join")
    plant.cluster.grow("b", 3)
    with pytest.raises(GraphError) as caught:
        plant.worker()
    assert str(caught.value) == UNEQUAL


def test_alts_with_inputs_that_grew_while_running_grows_its_journal() -> None:
    plant = Plant("alts")
    worker = plant.started()
    for topic in "ab":
        plant.cluster.grow(topic, 3)
    a2, b2 = TopicPartition("a", 2), TopicPartition("b", 2)
    plant.feed("a", "1", partition=2)
    worker._on_assigned({A0, A1, B0, B1, a2, b2})
    for _ in range(4):
        worker.run_turn()
    assert (plant.out(), plant.saved) == (["1"], {a2: 1})
    assert [m.partition() for m in plant.cluster.records(plant.journal or "")] == [2]
    asked = plant.cluster.faults.requests.count("topics")
    worker._on_assigned({A0, A1, B0, B1, a2, b2})
    worker.run_turn()
    assert plant.cluster.faults.requests.count("topics") == asked  # the growth is known


@pytest.mark.parametrize("request_name", ["topics", "starts"])
@pytest.mark.parametrize("kind", ["alts", "join"])
def test_running_worker_waits_for_brokers_when_its_inputs_have_grown(kind: str, request_name: str) -> None:
    plant = Plant(kind)
    worker = plant.started()
    worker.run_turn()
    for topic in "ab":
        plant.cluster.grow(topic, 3)
        plant.feed(topic, "1", partition=2)
    for nth in range(1, 4):
        error = BrokerUnavailable("no Kafka broker answers")
        plant.cluster.faults.inject(request_name, nth=nth, error=error, applied=False)
    worker._on_assigned({A0, A1, B0, B1, TopicPartition("a", 2), TopicPartition("b", 2)})
    states = []
    for _ in range(12):
        worker.run_turn()
        states.append(worker.state)
    assert (states[0], states[-1]) == (WorkerState.BROKER_AWAY, WorkerState.RUNNING)
    assert plant.out() == (["1", "1"] if kind == "alts" else ["11"])


@pytest.mark.parametrize("request_name", ["topics", "starts"])
def test_running_worker_ends_if_credentials_are_refused_when_inputs_have_grown(request_name: str) -> None:
    """The next start may have others: to wait would be without end."""
    plant = Plant("join")
    worker = plant.started()
    worker.run_turn()
    for topic in "ab":
        plant.cluster.grow(topic, 3)
    refused = BrokerUnavailable("the broker refuses the credentials", may_return=False)
    plant.cluster.faults.inject(request_name, error=refused, applied=False)
    worker._on_assigned({A0, A1, B0, B1, TopicPartition("a", 2), TopicPartition("b", 2)})
    with pytest.raises(BrokerUnavailable, match="refuses the credentials"):
        worker.run_turn()


def test_alts_with_inputs_that_grew_before_its_worker_opened_grows_its_journal() -> None:
    plant = Plant("alts")
    for topic in "ab":
        plant.cluster.grow(topic, 3)
    plant.feed("a", "1", partition=2)
    worker = plant.started()
    for _ in range(4):
        worker.run_turn()
    assert (plant.out(), plant.saved) == (["1"], {TopicPartition("a", 2): 1})
    assert [m.partition() for m in plant.cluster.records(plant.journal or "")] == [2]


# The search for what fails a transaction.


def test_search_halves_until_one_step_fails_and_doubles_until_all_are_committed() -> None:
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


def test_search_restarts_at_a_failure_and_ends_at_the_size_of_its_largest_failure() -> None:
    search, limits = Search(), list[int]()
    search.failed(8)
    for steps, failed in ((4, False), (8, True), (4, False), (8, False)):
        search.failed(steps) if failed else search.committed(steps)
        limits.append(search.limit)
    assert limits == [8, 4, 8, sys.maxsize]
    search.failed(4)
    search.committed(2)
    search.committed(4)
    assert not search.searching  # the largest failure of the previous search is forgotten


def test_search_limit_is_not_changed_by_commits_without_steps_or_without_a_search() -> None:
    search = Search()
    search.committed(100)
    assert search.limit == sys.maxsize
    search.failed(8)
    search.committed(0)
    assert search.limit == 4


def test_transaction_that_takes_too_long_is_halved_until_it_is_committed() -> None:
    """With the limit halved, each intake is committed by itself."""
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
    assert not worker.intakes._search.searching


def test_dead_letter_that_is_refused_ends_the_worker() -> None:
    """The output is refused, and so is its dead letter."""
    plant = Plant(function=lambda value: value.ljust(2_000), guarantee=EO, linger=60.0)
    for topic in ("x", "dead"):
        plant.cluster._broker.topics[topic].settings["max.message.bytes"] = "100"
    plant.feed("a", "1", "2")
    with pytest.raises(RecordTooLarge, match="topic 'dead'"):
        plant.run()
    assert (plant.out(), plant.dead_letter_count, plant.saved) == ([], 0, {})


# Crashes.


def crash_points(
    kind: str, guarantee: Guarantee, linger: float, function: Callable[..., Any] | None = None
) -> Iterator[tuple[int, bool, Plant, list[str]]]:
    """Yields a plant for each request of a run; its process died at that request, which was applied or lost."""
    plain = Plant(kind, function, guarantee=guarantee, linger=linger)
    expected = fill_inputs(plain)
    worker = plain.worker()
    before = len(plain.cluster.faults.requests)
    plain.run(worker)
    for nth in range(1, len(plain.cluster.faults.requests) - before + 1):
        for applied in (True, False):
            plant = Plant(kind, function, guarantee=guarantee, linger=linger)
            fill_inputs(plant)
            worker = plant.worker()
            plant.cluster.faults.inject("", nth=nth, error=Crash(), applied=applied)
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
    assert set(copies) == {1, 2}  # a crash between the outputs and the offsets duplicates


@pytest.mark.parametrize("linger", [0.0, 60.0], ids=["sent at once", "lingering"])
def test_at_most_once_crash_at_every_request_duplicates_nothing(linger: float) -> None:
    lost = Counter[int]()
    for nth, applied, plant, expected in crash_points("map", AMO, linger):
        plant.run()
        found = plant.out()
        assert len(found) == len(set(found)), f"request {nth}, {'carried out' if applied else 'lost'}"
        assert set(found) <= set(expected)
        lost[len(expected) - len(found)] += 1
    assert len(lost) > 1  # a crash between the offsets and the outputs loses


def test_exactly_once_dead_letters_are_delivered_once_with_the_outputs() -> None:
    def function(value: bytes) -> bytes:
        if value in (b"1", b"12"):
            raise LookupError(value)
        return value

    points = 0
    for nth, applied, plant, expected in crash_points("map", EO, 0.0, function):
        plant.run()
        found = (sorted(plant.out()), plant.dead_letter_count)
        request = f"request {nth}, {'carried out' if applied else 'lost'}"
        assert found == (sorted({*expected} - {"1", "12"}), 2), request
        points += 1
    assert points > 10


# The choices of alts.


def fetch_in_order(worker: Worker, *order: str) -> None:
    """Sorts the records of each fetch in this order of topics."""
    consume = worker.consumer.consume

    def sorted_consume(limit: int, timeout: float) -> Sequence[Any]:
        return sorted(consume(limit, timeout), key=lambda m: order.index(m.topic()))

    worker.consumer.consume = sorted_consume  # type: ignore[method-assign]


def test_exactly_once_alts_crash_after_its_choices_retries_in_the_same_order() -> None:
    calls = Seen()
    plant = Plant("alts", record_calls(calls), partitions=1)
    plant.feed("a", "a0", "a1")
    plant.feed("b", "b0")
    first = plant.worker()
    fetch_in_order(first, "a", "b")
    plant.cluster.faults.inject("produce", nth=2, error=Crash(), applied=False)  # the first one is for the journal
    plant.crash(first)
    assert (calls, plant.out()) == ([b"a0", b"a1", b"b0"], [])
    plant.feed("b", "b1", "b2")
    plant.feed("a", "a2")
    second = plant.worker()
    fetch_in_order(second, "b", "a")
    plant.run(second)
    assert plant.out()[:3] == ["a0", "a1", "b0"]
    assert sorted(plant.out()) == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_exactly_once_alts_retry_in_parts_that_crashes_follows_the_first_order() -> None:
    """Each attempt fetches another part of the inputs first; all call the function in the same order."""
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
        plant.cluster.faults.inject("produce", nth=2, error=Crash(), applied=False)  # the first one is for the journal
        plant.crash(worker)
    calls.append([])
    worker = plant.worker()
    fetch_first(worker, "a", 1)
    plant.run(worker)
    assert calls == [[b"b0", b"b1", b"a0"], [b"b0"], [b"b0", b"b1", b"a0"]]
    assert plant.out() == ["b0", "b1", "a0"]


def fetch_first(worker: Worker, topic: str, records: int) -> None:
    """Makes a worker fetch `records` records at a time, those of `topic` first."""
    assign = worker.consumer.assign
    worker.consumer.assign = lambda positions: assign(  # type: ignore[method-assign]
        dict(sorted(positions.items(), key=lambda item: item[0].topic != topic))
    )
    fetch_always(worker, records)


def test_exactly_once_alts_rewinds_to_its_choices_after_a_failure_in_one_process() -> None:
    calls = Seen()
    plant = Plant("alts", record_calls(calls), partitions=1)
    plant.feed("a", "a0")
    plant.feed("b", "b0")
    worker = plant.worker()
    plant.cluster.faults.inject("send_offsets", nth=2, error=Abortable("why"), applied=False)
    fetch_in_order(worker, "b", "a")
    plant.run(worker, hook=lambda number: fetch_in_order(worker, "a", "b") if worker.counters.aborts else None)
    assert (calls, plant.out()) == ([b"b0", b"a0"] * 2, ["b0", "a0"])


def test_alts_choices_are_committed_before_the_function_is_called() -> None:
    journaled: list[int] = []

    def function(value: bytes) -> bytes:
        journaled.append(len(plant.cluster.records(plant.journal or "")))
        return value

    plant = Plant("alts", function, partitions=1)
    plant.feed("a", "a0", "a1")
    plant.run(hook=lambda number: plant.feed("b", "b0") if number == 3 else None)
    assert journaled == [1, 1, 2]


def test_alts_journal_holds_the_choices_of_every_intake() -> None:
    plant = Plant("alts", partitions=1)
    worker = plant.worker()
    fetch_in_order(worker, "b", "a")
    plant.feed("a", "a0", "a1")
    plant.feed("b", "b0")
    plant.run(worker, hook=lambda number: plant.feed("a", "a2") if number == 3 else None)
    a, b = (plant.cluster.topics("ab")[topic].topic_id for topic in "ab")
    assert [Choices.decode(m.value() or b"") for m in plant.cluster.records(plant.journal or "")] == [
        Choices((("b", 0), ("a", 1)), (InputStart("b", b, 0), InputStart("a", a, 0))),
        Choices((("a", 2),), (InputStart("a", a, 2),)),
    ]


def test_alts_choices_that_no_longer_apply_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant("alts", partitions=1)
    plant.feed("a", "a0")
    assert plant.journal is not None
    a, b = (plant.cluster.topics("ab")[topic].topic_id for topic in "ab")
    stale = Choices(
        (("b", 22), ("c", 5), ("a", 0)),
        (InputStart("b", "before", 20), InputStart("c", "id", 0), InputStart("a", "", 0)),
    )
    plant.cluster.append(plant.journal, stale.encode())
    plant.feed("b", "b0")
    plant.run()
    assert sorted(plant.out()) == ["a0", "b0"]
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "p: partition 0: 'c' is no longer an input: choices saved for it are dropped",
        "p: partition 0: 'b' was deleted and created again: choices saved for it are dropped",
    ]
    newest = Choices.decode(plant.cluster.records(plant.journal)[-1].value() or b"")
    assert newest == Choices((("a", 0), ("b", 0)), (InputStart("a", a, 0), InputStart("b", b, 0)))


# Counters and fatal errors.


def test_counters_of_a_worker_count_records_dead_letters_and_commits() -> None:
    def function(value: bytes) -> bytes | None:
        if value == b"1":
            raise LookupError
        return None if value == b"2" else value

    plant = Plant(function=function)
    plant.feed("a", *numbers(0, 5))
    worker = plant.worker()
    plant.run(worker)
    (letter,) = plant.cluster.records("dead")
    assert worker.counters.as_dict() == {
        "records_in": 5, "records_out": 3, "dead_letters": 1, "dropped": 0, "rolled_back": 0, "commits": 1,
        "aborts": 0, "retries": 0, "bytes_in": 5, "bytes_out": 3 + len(letter.value() or b""), "rebalances": 1,
    }  # fmt: skip
    steps, commits = worker.counters.step_seconds, worker.counters.commit_seconds
    assert (sum(steps.counts), sum(commits.counts), worker.counters.renewals) == (5, 1, {})


def test_fatal_error_of_a_client_ends_the_worker_without_a_new_producer() -> None:
    plant = Plant()
    plant.feed("a", "1")
    plant.cluster.faults.inject("send_offsets", error=Fatal("of no use"), applied=False)
    worker = plant.worker()
    with pytest.raises(Fatal, match="of no use"):
        plant.run(worker)
    assert plant.cluster.faults.requests.count("init_transactions") == 1
