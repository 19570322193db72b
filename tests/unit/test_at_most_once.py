"""At most once: what ends a worker, or its membership, loses neither unrun steps nor outputs that can be written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    DrainTimeout,
    GraphError,
    KStreamsError,
    NotAuthorized,
    RecordRefused,
    RecordTooLarge,
    Refused,
    Retriable,
    Stop,
)
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.graph.hashes import hash_prefix, pack_offset
from kstreams_py.processing.commits.attempts import CALLS_MAX
from kstreams_py.processing.commits.guarantees import AtMostOnce
from kstreams_py.processing.worker import Worker
from kstreams_py.records import HASH_HEADER
from kstreams_py.settings import Settings
from kstreams_py.steps import outputs
from kstreams_py.steps.plan import Plan
from kstreams_py.testing.memory_clients import MemoryConsumer
from tests.unit.plant import (
    A0,
    AMO,
    Plant,
    fail_flushes,
    leave_commits_unanswered,
    numbers,
    of_twice,
    start_interrupted,
    twice,
)


@pytest.mark.parametrize("hash_header", [True, False])
def test_at_most_once_refused_output_without_dead_letters_loses_no_other_step(
    hash_header: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the whole intake are committed, and its rest is not run yet when the output is refused."""
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)

    def function(value: bytes) -> Iterator[bytes]:
        yield value.ljust(2_000) if value == b"3" else value

    plant = Plant(function=function, guarantee=AMO, errors=None, hash_header=hash_header)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 50))
    with pytest.raises(RecordTooLarge, match="topic 'x'"):
        plant.run()
    assert (sorted(plant.out(), key=int), plant.saved) == ([n for n in numbers(0, 50) if n != "3"], {A0: 50})


@pytest.mark.parametrize("error", [Retriable("no answer"), Abortable("a rebalance")])
def test_at_most_once_offsets_are_given_back_by_the_next_attempt_if_the_first_fails(error: ClientError) -> None:
    """Found by the simulation (seed 4183): the worker ended with a word, and the steps were lost."""

    def function(value: bytes) -> bytes:
        if value == b"1":
            plant.cluster.faults.inject("commit", error=error, applied=False)
            raise Stop("enough")
        return value

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", *numbers(0, 5))
    plant.run()
    assert (plant.out(), plant.saved) == (["0"], {A0: 1})


@pytest.mark.parametrize("error", [NotAuthorized("topic 'x'"), GraphError("why")])
def test_at_most_once_error_that_only_a_person_can_cure_gives_back_what_was_not_run(
    error: KStreamsError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", *numbers(0, 50))
    worker, written = plant.worker(), list[int]()
    write = worker.committer.write

    def fail_once(plan: Plan) -> None:
        written.append(plan.steps)
        if len(written) == 2:
            raise error
        write(plan)

    monkeypatch.setattr(worker.committer, "write", fail_once)
    with pytest.raises(type(error), match=str(error)):
        plant.run(worker)
    assert (written, plant.out(), plant.saved) == ([5, 5], of_twice(0, 5), {A0: 10})
    plant.run()
    assert plant.out() == of_twice(0, 5) + of_twice(10, 50)


def test_at_most_once_steps_that_cannot_be_given_back_are_named_as_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", "1")
    worker = plant.worker()

    def fail(_: object) -> None:
        plant.cluster.faults.inject("commit", error=NotAuthorized("group 'g.p'"), applied=False)
        worker.ledger.cursors[A0].next = 0
        raise NotAuthorized("topic 'x'")

    monkeypatch.setattr(worker.committer, "write", fail)
    with pytest.raises(NotAuthorized, match="topic 'x'"):
        plant.run(worker)
    assert "p: at most once: steps that were not run are lost: group 'g.p'" in caplog.text


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("kind", ["map", "join", "batch", "batched join"])
def test_value_that_cannot_be_decoded_for_want_of_a_registry_is_read_again(guarantee: Guarantee, kind: str) -> None:
    """The function was not called for that record: nothing of it is lost, whatever the guarantee."""

    class Registered:
        away = True

        def serialize(self, value: bytes) -> bytes:
            return value

        def deserialize(self, data: bytes) -> bytes:
            if self.away and data == b"3":
                raise BrokerUnavailable("the schema registry does not answer")
            return data

    seen = list[Any]()

    def one(*values: Any) -> Any:
        seen.append(values)
        return values[0]

    plant = Plant("join" if "join" in kind else "map", one, guarantee=guarantee, batch="batch" in kind)
    serde = Registered()
    object.__setattr__(plant.graph.topics["a"], "value", serde)
    for topic in "ab":
        plant.feed(topic, *numbers(0, 6))
    with pytest.raises(BrokerUnavailable, match="registry"):
        plant.run()
    before = [] if "batch" in kind else numbers(0, 3)
    assert (plant.out(), len(seen), plant.dead_letter_count) == (before, len(before), 0)
    serde.away = False
    plant.run()
    assert (plant.out(), plant.dead_letter_count) == (numbers(0, 6), 0)


def test_at_most_once_equal_outputs_that_are_refused_each_have_a_dead_letter() -> None:
    """Without a delivery hash, outputs are traced to their steps by what they are."""
    plant = Plant(function=lambda value: value[:1].ljust(2_000), guarantee=AMO, hash_header=False, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", "10", "11", "12")
    plant.run()
    topic_id = plant.cluster.topics(["a"])["a"].topic_id
    assert [dict(m.headers() or ())[HASH_HEADER] for m in plant.cluster.records("dead")] == [
        hash_prefix("g.p", "a", topic_id, 0) + pack_offset(offset) for offset in range(3)
    ]


def stop_once(at: bytes) -> Callable[[bytes], bytes]:
    """A function that raises Stop at its first call with a value."""
    stopped = list[bytes]()

    def function(value: bytes) -> bytes:
        if value == at and not stopped:
            stopped.append(value)
            raise Stop("enough")
        return value

    return function


def raise_error(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


def run_on(plant: Plant, worker: Worker) -> BaseException | None:
    """Runs a worker that has joined to its end; returns the exception that ended it."""
    try:
        worker._run_turns()
    except KStreamsError as error:
        return error
    finally:
        worker.close()
    return None


def queue_outputs(*values: str, linger: float = 60.0, **options: Any) -> tuple[Plant, Worker]:
    """A plant and its worker, whose client holds the outputs of its first turn."""
    plant = Plant(guarantee=AMO, linger=linger, **options)
    plant.feed("a", *values)
    worker = plant.started()
    worker.turn()
    return plant, worker


def test_drain_ended_by_missing_rights_gives_the_steps_after_a_stop_back() -> None:
    plant, worker = queue_outputs(*numbers(0, 6), function=stop_once(b"2"))
    producer: Any = worker.committer.session._producer
    flush, producer.flush = producer.flush, raise_error(NotAuthorized("topic 'x'"))
    with pytest.raises(NotAuthorized):
        worker._run_turns()
    producer.flush = flush
    worker.close()
    assert plant.saved == {A0: 2}
    plant.run()
    assert plant.out() == numbers(0, 6)


def test_drain_that_takes_too_long_gives_the_steps_after_a_stop_back() -> None:
    settings = Settings(drain_timeout_ms=8_000)
    plant, worker = queue_outputs(*numbers(0, 6), function=stop_once(b"2"), linger=1e6, settings=settings)
    fail_flushes(worker, 1_000)
    assert isinstance(run_on(plant, worker), DrainTimeout)
    assert plant.saved == {A0: 2}


@pytest.mark.parametrize("hash_header", [True, False])
@pytest.mark.parametrize("kind", ["map", "join", "alts", "batch", "generator"])
def test_dead_letter_that_cannot_be_encoded_for_want_of_a_registry_loses_no_step(kind: str, hash_header: bool) -> None:
    def one(value: bytes, *_: bytes) -> bytes:
        if value == b"3":
            raise LookupError
        return value

    def several(value: bytes) -> Iterator[bytes]:
        yield one(value)

    def batch(values: list[bytes]) -> list[Any]:
        return [LookupError() if value == b"3" else value for value in values]

    function: Any = {"batch": batch, "generator": several}.get(kind, one)
    options: dict[str, Any] = {"batch": True} if kind == "batch" else {}
    plant = Plant(
        kind if kind in ("join", "alts") else "map", function, guarantee=AMO, hash_header=hash_header, **options
    )
    plant.feed("a", *numbers(0, 6))
    if kind == "join":
        plant.feed("b", *numbers(0, 6))
    worker = plant.worker()
    assert worker.runner._failures.dead_letters is not None
    away = raise_error(BrokerUnavailable("the schema registry does not answer"))
    worker.runner._failures.dead_letters = replace(worker.runner._failures.dead_letters, encode=away)
    with pytest.raises(BrokerUnavailable, match="registry"):
        plant.run(worker)
    plant.run()
    assert (plant.out(), plant.dead_letter_count) == (["0", "1", "2", "4", "5"], 1)


def test_refused_output_whose_dead_letter_cannot_be_encoded_stays_to_be_written() -> None:
    plant = Plant(function=lambda v: v.ljust(2_000) if v == b"1" else v, guarantee=AMO, linger=60.0)
    plant.cluster._broker.topics["x"].settings["max.message.bytes"] = "1000"
    plant.feed("a", *numbers(0, 3))
    worker = plant.worker()
    dead_letters = worker.runner._failures.dead_letters
    assert dead_letters is not None
    error = BrokerUnavailable("the schema registry does not answer")
    calls = list[object]()

    def encode(value: Any) -> bytes | None:
        calls.append(value)
        if len(calls) == 1:
            raise error
        return dead_letters.encode(value)

    worker.runner._failures.dead_letters = replace(dead_letters, encode=encode)
    with pytest.raises(BrokerUnavailable, match="registry"):
        plant.run(worker)
    assert (sorted(plant.out()), plant.dead_letter_count, len(calls)) == (["0", "2"], 1, 2)


@pytest.mark.parametrize("applied", [True, False])
def test_intake_whose_commit_has_no_answer_is_given_back_as_an_error_ends_the_worker(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(guarantee=AMO)
    plant.feed("a", *numbers(0, 4))
    worker = plant.started()
    leave_commits_unanswered(plant, applied=applied)
    worker.run_turn()
    monkeypatch.setattr(worker.consumer, "consume", raise_error(NotAuthorized("group")))
    assert isinstance(run_on(plant, worker), NotAuthorized)
    plant.run()
    assert plant.out() == numbers(0, 4)


@pytest.mark.parametrize("applied", [True, False])
def test_intake_whose_commit_has_no_answer_twice_is_given_back_at_a_revocation(applied: bool) -> None:
    plant = Plant(guarantee=AMO)
    plant.feed("a", *numbers(0, 4))
    worker = plant.started()
    leave_commits_unanswered(plant, 2 * CALLS_MAX, applied=applied)
    worker.run_turn()
    worker._on_revoked()
    worker.close()
    plant.run()
    assert plant.out() == numbers(0, 4)


def test_partitions_revoked_while_rights_are_missing_give_their_unrun_steps_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outputs that could not be written are lost: once the partitions are gone, they would come too late."""
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", *numbers(0, 20))
    worker = start_interrupted(plant)
    producer: Any = worker.committer.session._producer
    error = NotAuthorized("topic 'x'")
    write, producer.write = producer.write, raise_error(error)
    worker._on_revoked()
    producer.write = write
    assert run_on(plant, worker) is error
    assert plant.saved == {A0: 10}
    plant.run()
    assert plant.out() == of_twice(0, 5) + of_twice(10, 20)


@pytest.mark.parametrize("times", [1, 2])
def test_outputs_that_come_back_while_a_worker_ends_are_written_again(times: int) -> None:
    plant, worker = queue_outputs("1", "2")
    producer: Any = worker.committer.session._producer
    returned = [("x", value, None, -1, None, None, 0, None) for value in (b"1", b"2")]
    flush, failures = producer.flush, [Abortable("not enough replicas", returned)] * times

    def fail() -> None:
        if failures:
            producer._purge()
            raise failures.pop()
        flush()

    producer.flush = fail
    worker.finish()
    worker.close()
    assert plant.out() == ["1", "2"]


def test_outputs_behind_one_that_is_lost_are_delivered() -> None:
    plant, worker = queue_outputs("1", "2", "3", function=lambda value: value[::1] if value != b"2" else value[9])
    inject = plant.cluster.faults.inject
    inject("produce", error=Abortable("x: it may be written"), applied=True)
    for nth in range(2, 5):
        inject("produce", nth=nth, error=Retriable("no answer"), applied=False)
    worker.run_turn()
    worker.finish()
    worker.close()
    assert (plant.out(), plant.dead_letter_count) == (["1", "3"], 1)


def test_outputs_set_apart_behind_one_that_is_lost_are_delivered_at_the_end() -> None:
    plant, worker = queue_outputs("1", "2", "3")
    assert isinstance(worker.committer, AtMostOnce)
    producer: Any = worker.committer.session._producer
    producer._purge()
    returned = [("x", value, None, -1, None, None, 0, None) for value in (b"1", b"2", b"3")]
    worker.committer._refused.set_apart(Refused(RecordRefused("x refuses"), returned))
    flush, calls = producer.flush, list[None]()

    def fail_second() -> None:
        calls.append(None)
        if len(calls) == 2:
            producer._purge()
            raise Abortable("timed out")
        flush()

    producer.flush = fail_second
    worker.close()
    assert plant.out() == ["2", "3"]


@pytest.mark.parametrize("errors", ["dead", None])
def test_refused_output_of_the_rest_of_revoked_partitions_loses_no_other_step(
    errors: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)

    def function(value: bytes) -> Iterator[bytes]:
        yield value.ljust(1_500_000) if value == b"7" else value
        yield value

    plant = Plant(function=function, guarantee=AMO, errors=errors)
    plant.feed("a", *numbers(0, 20))
    worker = start_interrupted(plant)
    worker._on_revoked()
    worker._stopping.set()
    ended = run_on(plant, worker)
    expected = Counter(numbers(0, 20) * 2) - Counter(["7"])
    assert (Counter(plant.out()), plant.dead_letter_count) == (expected, 1 if errors else 0)
    assert isinstance(ended, RecordTooLarge) is (errors is None)


def test_refused_output_without_dead_letters_is_raised_after_any_outage() -> None:
    plant = Plant(function=lambda v: v.ljust(1_500_000) if v == b"1" else v, guarantee=AMO, errors=None, linger=60.0)
    plant.feed("a", "0", "1", "2")
    worker = plant.started()
    worker.run_turn()
    fail_flushes(worker, 30)
    assert isinstance(run_on(plant, worker), RecordTooLarge)
    assert plant.out() == ["0", "2"]


# A membership that is lost. Another worker begins at the committed offsets: what is written later would come after its
# outputs.


def stall(plant: Plant, has_other: bool, *later: str) -> Worker:
    """Lets the session of the worker pass; another one runs the records that come meanwhile."""
    plant.feed("a", *later)
    plant.clock.advance(plant.cluster._broker.session_timeout + 1)
    other = plant.worker(1)
    if has_other:
        other.start()
        for _ in range(5):
            other.run_turn()
        other.finish()
        other.close()
        plant.cluster.leave(other.consumer)
    return other


def go_on(plant: Plant, worker: Worker) -> list[str]:
    """Runs a worker that has stalled until it has joined again and has nothing to do; returns all outputs."""
    for _ in range(10):
        worker.run_turn()
        plant.clock.advance(0.2)
    worker.finish()
    worker.close()
    return plant.out()


@pytest.mark.parametrize("has_other", [True, False], ids=["another worker", "no other worker"])
def test_worker_stalled_after_its_commit_writes_nothing_behind_its_successor(has_other: bool) -> None:
    """If no other worker is past them, they are written in their order."""

    def function(value: bytes) -> bytes:
        if value == b"1" and len(plant.cluster.records("a")) == 4:
            stall(plant, has_other, *numbers(4, 8))
        return value

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", *numbers(0, 4))
    worker = plant.started()
    worker.run_turn()
    assert go_on(plant, worker) == numbers(4 if has_other else 0, 8)
    assert plant.saved == {A0: 8}


@pytest.mark.parametrize("has_other", [True, False], ids=["another worker", "no other worker"])
def test_unrun_steps_of_a_lost_membership_are_run_if_no_successor_is_past_them(
    has_other: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outputs, "OUTPUTS_MAX", 10)
    plant = Plant(function=twice, guarantee=AMO)
    plant.feed("a", *numbers(0, 50))
    worker = start_interrupted(plant)
    worker.intakes.commit()
    stall(plant, has_other, *numbers(50, 60))
    assert go_on(plant, worker) == of_twice(0, 5) + of_twice(50 if has_other else 5, 60)
    assert ("at most once: steps that waited are lost: another worker has a[0]" in caplog.text) is has_other


@pytest.mark.parametrize("has_other", [True, False], ids=["another worker", "no other worker"])
def test_outputs_queued_in_the_client_when_the_membership_is_lost_are_dropped(
    has_other: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The client would write them whoever has the partitions."""
    plant, worker = queue_outputs("1", "2", linger=1e6)
    stall(plant, has_other, "3", "4")
    assert go_on(plant, worker) == ["3", "4"]
    assert (worker.counters.records_in, worker.counters.records_out) == ((2, 0) if has_other else (4, 2))
    assert "p: at most once: the partitions are lost: outputs may be lost" in caplog.text


@pytest.mark.parametrize("has_other", [True, False], ids=["another worker", "no other worker"])
def test_outputs_set_apart_at_a_lost_membership_never_come_behind_a_successor(has_other: bool) -> None:
    plant, worker = queue_outputs("1", "2")
    producer: Any = worker.committer.session._producer
    producer._purge()
    returned = [("x", value, None, -1, None, None, 0, None) for value in (b"1", b"2")]
    worker.committer.recover(Refused(RecordRefused("x refuses"), returned))
    stall(plant, has_other, "3", "4")
    assert sorted(go_on(plant, worker)) == (["3", "4"] if has_other else ["1", "2", "3", "4"])
    assert (worker.counters.records_in, worker.counters.records_out) == ((2, 0) if has_other else (4, 4))


def test_worker_that_ends_without_its_partitions_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    plant, worker = queue_outputs("1", "2")
    producer: Any = worker.committer.session._producer
    producer._purge()
    worker.committer.recover(Refused(RecordRefused("x refuses"), [("x", b"1", None, -1, None, None, 0, None)] * 2))
    stall(plant, has_other=True)
    worker.run_turn()
    worker.close()
    assert (plant.out(), worker.counters.records_in, worker.counters.records_out) == ([], 2, 0)
    assert "outputs are lost: the worker ends, and another one may have their partitions" in caplog.text


def test_function_slower_than_half_a_session_asks_the_group_before_the_write() -> None:
    def function(value: bytes) -> bytes:
        assert isinstance(worker.consumer, MemoryConsumer)
        for _ in range(3):
            plant.clock.advance(4.0)
            worker.consumer.heartbeat()
        return value

    plant = Plant(function=function, guarantee=AMO)
    plant.feed("a", "1")
    worker = plant.started()
    before = len(plant.cluster.faults.requests)
    worker.run_turn()
    assert plant.cluster.faults.requests[before:] == ["consume", "commit", "commit", "produce"]
    assert plant.out() == ["1"]
