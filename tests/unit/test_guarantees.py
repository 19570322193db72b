"""processing/commits/guarantees.py: what each guarantee commits and when, after an error and at a rebalance too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import pytest

from kstreams_py.errors import (
    Abortable,
    ClientError,
    Fatal,
    Fenced,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
    Stop,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import Output
from kstreams_py.processing.commits import guarantees
from kstreams_py.processing.commits.attempts import CALLS_MAX, FAILURES_MAX, FAILURES_WARNED, WAIT_MAX
from kstreams_py.processing.commits.guarantees import LAST_DELIVERY_SECONDS, producer_mode
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.records import Positions
from kstreams_py.steps.dead_letters import Failure
from kstreams_py.steps.plan import Plan
from tests.unit.fakes import Read
from tests.unit.guarantee import A0, ALO, AMO, B0, EO, Bench, end, nothing, plan

# The order of outputs and offsets.


def test_producer_mode_of_each_guarantee_and_durability() -> None:
    """Transactional, acks, and whether a write that may have arrived may be repeated, whether it is reported."""
    found = {(str(g), str(d)): astuple(producer_mode(g, d)) for g in Guarantee for d in Durability}
    assert found == {
        ("exactly_once", "committed"): (True, -1, True, False),
        ("exactly_once", "leader"): (True, 1, True, False),
        ("exactly_once", "none"): (True, 0, True, False),
        ("at_least_once", "committed"): (False, -1, True, False),
        ("at_least_once", "leader"): (False, 1, True, False),
        ("at_least_once", "none"): (False, 0, True, False),
        ("at_most_once", "committed"): (False, -1, False, False),
        ("at_most_once", "leader"): (False, 1, False, False),
        ("at_most_once", "none"): (False, 0, False, False),
    }


@pytest.mark.parametrize("outputs_held", [0, 1, 9])
def test_exactly_once_commit_makes_outputs_and_offsets_visible_together(outputs_held: int) -> None:
    bench = Bench(outputs_held=outputs_held)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.write(b"2", 2)
    assert (bench.visible, bench.saved, bench.guarantee.busy) == ([], {}, True)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved, bench.guarantee.busy) == ([b"1", b"2"], {A0: 2}, False)


@pytest.mark.parametrize(
    ("guarantee", "order"),
    [
        (EO, ["produce", "send_offsets", "commit_transaction"]),
        (ALO, ["produce", "commit"]),
        (AMO, ["commit", "produce"]),
    ],
)
def test_guarantees_write_outputs_and_commit_offsets_in_their_own_order(guarantee: Guarantee, order: list[str]) -> None:
    bench = Bench(guarantee, linger=0.0 if guarantee is EO else 9.0)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.guarantee.commit()
    assert (bench.take_requests(), bench.visible, bench.saved) == (order, [b"1"], {A0: 1})


def test_exactly_once_few_outputs_are_held_until_the_commit_and_follow_the_offsets() -> None:
    bench = Bench(outputs_held=2)
    bench.write(b"1", 1)
    bench.write(b"2", 2)
    assert (bench.take_requests(), bench.session.state, bench.guarantee.busy) == ([], SessionState.READY, True)
    bench.guarantee.commit()
    assert bench.take_requests() == ["send_offsets", "produce", "commit_transaction"]
    assert (bench.visible, bench.saved, bench.guarantee.busy) == ([b"1", b"2"], {A0: 2}, False)


def test_exactly_once_outputs_beyond_the_held_count_are_written_in_order() -> None:
    bench = Bench(outputs_held=1)
    bench.write(b"1", 1)
    assert bench.take_requests() == []
    bench.write(b"2", 2)
    assert (bench.take_requests(), bench.session.state) == (["produce"], SessionState.OPEN)
    bench.write(b"3", 3)
    assert bench.take_requests() == ["produce"]
    bench.guarantee.commit()
    assert (bench.take_requests(), bench.visible) == (["send_offsets", "commit_transaction"], [b"1", b"2", b"3"])


def test_exactly_once_outputs_beyond_the_held_bytes_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarantees, "HELD_BYTES", 10)
    bench = Bench(outputs_held=9)
    bench.write(b"12345", 1)
    bench.write(b"67890", 2)
    assert bench.take_requests() == []
    bench.write(b"+", 3)
    assert (bench.take_requests(), bench.session.state) == (["produce"], SessionState.OPEN)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"12345", b"67890", b"+"], {A0: 3})


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_outputs_without_a_transaction_are_not_held(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, outputs_held=9)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.take_requests()
    bench.write()
    assert bench.take_requests() == ["produce"]


def test_exactly_once_held_outputs_are_dropped_after_a_failed_commit() -> None:
    bench = Bench(outputs_held=9)
    bench.write(b"1", 1)
    bench.cluster.faults.inject("send_offsets", error=Abortable("no longer a member"), applied=False)
    bench.recover(bench.fail_commit())
    assert not bench.guarantee.busy
    bench.write(b"2", 1)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"2"], {A0: 1})


def test_exactly_once_held_outputs_survive_a_producer_replacement() -> None:
    bench = Bench(outputs_held=9)
    bench.write(b"1", 1)
    bench.cluster.faults.inject("commit_transaction", late=6.0)
    bench.guarantee.commit()
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert bench.take_requests() == [
        "send_offsets", "produce", "commit_transaction",
        "membership", "init_transactions", "send_offsets", "produce", "commit_transaction",
    ]  # fmt: skip
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


def test_at_most_once_offsets_of_the_intake_are_committed_before_its_functions_run() -> None:
    bench = Bench(AMO)
    bench.guarantee.prepare(Taken([(Read("a", 3), Read("b", 4)), (Read("a", 4), Read("b", 7))]))
    assert (bench.saved, bench.guarantee.busy) == ({A0: 5, B0: 8}, False)


def test_at_most_once_offsets_of_steps_that_did_not_run_are_given_back() -> None:
    intake = Taken([(Read("a", 3), Read("b", 4)), (Read("a", 4), Read("b", 7))])
    bench = Bench(AMO)
    bench.guarantee.prepare(intake)
    bench.run(Plan(steps=1, intake=intake, interrupt=Stop()), {A0: 4, B0: 5})
    bench.guarantee.commit()
    assert bench.saved == {A0: 5, B0: 8}
    bench.guarantee.give_back()
    assert bench.saved == {A0: 4, B0: 5}


def test_at_most_once_output_that_fails_is_lost_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AMO)
    bench.cluster.faults.inject("produce", error=Abortable("writing to x: refused"), applied=False)
    bench.write(b"1", 1)
    bench.guarantee.commit()
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.counters.commits) == ([b"2"], 2)
    assert "p: at most once: an output is lost: writing to x: refused" in caplog.text


def test_at_most_once_output_that_the_broker_did_not_take_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AMO)
    written = plan(b"1").outputs
    bench.cluster.faults.inject("produce", error=Abortable("writing to x: no", written), applied=False)
    bench.write(b"1", 1)
    bench.recover(bench.fail_commit())
    bench.guarantee.commit()
    assert (bench.visible, bench.counters.commits, bench.counters.aborts) == ([b"1"], 1, 1)
    assert "lost" not in caplog.text


def test_at_most_once_output_that_fails_while_a_group_begins_is_written_again() -> None:
    """Outputs may be on their way when a new partition gets its first offset."""
    bench = Bench(AMO)
    bench.cluster.faults.inject("produce", error=Abortable("writing to x: no", plan(b"1").outputs), applied=False)
    bench.write(b"1", 1)
    bench.ledger.reset()
    with pytest.raises(Abortable) as raised:
        bench.guarantee.commit_start({A0: 7}, [*NAMED], [*BEGUN])
    assert bench.guarantee.recover(raised.value)
    bench.guarantee.commit_start({A0: 7}, [*NAMED], [*BEGUN])
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"a start", b"a start", b"a begun partition", b"1"], {A0: 7})


def test_at_most_once_outputs_no_client_has_taken_are_written_by_the_next_producer() -> None:
    bench = Bench(AMO)
    bench.guarantee._outputs += plan(b"1").outputs
    bench.guarantee._since = bench.clock()
    bench.recover(Fatal("the client failed"))
    bench.guarantee.commit()
    assert bench.visible == [b"1"]


def test_at_most_once_repeated_fatal_errors_end_the_worker_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    bench = Bench(AMO)
    for _ in range(FAILURES_MAX - 1):
        bench.guarantee.attempts._producers = 0
        bench.recover(Fatal("no such group"))
    with pytest.raises(Fatal) as caught:
        bench.guarantee.recover(Fatal("no such group"))
    assert str(caught.value) == (
        "g.p.0: 40 attempts in a row failed, at last by: no such group: remove the cause, then start the worker again"
    )


def test_at_least_once_output_that_fails_commits_no_offset() -> None:
    bench = Bench(ALO)
    bench.cluster.faults.inject("produce", error=Abortable("writing to x: refused"), applied=False)
    bench.write(b"1", 1)
    bench.recover(bench.fail_commit())
    assert (bench.visible, bench.saved, bench.counters.as_dict()["aborts"]) == ([], {}, 1)


def test_at_least_once_commit_that_fails_repeats_the_outputs() -> None:
    bench = Bench(ALO)
    bench.cluster.faults.inject("commit", error=OutcomeUnknown("no answer"), applied=False)
    bench.write()
    bench.recover(bench.fail_commit())
    bench.write()
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"1"], {A0: 1})


@pytest.mark.parametrize("outputs_held", [0, 9])
def test_commit_is_due_after_the_interval_or_at_the_record_limit(outputs_held: int) -> None:
    bench = Bench(outputs_held=outputs_held)
    assert not bench.guarantee.due
    bench.write()
    due = [bench.guarantee.due]
    events: list[Callable[[], object]] = [
        lambda: bench.clock.advance(0.0995),
        lambda: bench.clock.advance(0.001),
        bench.guarantee.commit,
        lambda: bench.guarantee.write(Plan(steps=99_999)),
        lambda: bench.guarantee.write(Plan(steps=1)),
        bench.guarantee.lost,
    ]
    for happens in events:
        happens()
        due.append(bench.guarantee.due)
    assert due == [False, False, True, False, False, True, False]


def test_commit_without_steps_makes_no_request() -> None:
    bench = Bench()
    bench.guarantee.commit()
    assert (bench.take_requests(), bench.counters.commits) == ([], 0)


def test_exactly_once_offsets_without_outputs_are_committed_alone_or_with_later() -> None:
    bench = Bench()
    alone = ["send_offsets", "commit_transaction"]
    bench.run(Plan(steps=4), {A0: 4})
    bench.guarantee.commit()
    assert (bench.visible, bench.saved, bench.take_requests()) == ([], {A0: 4}, alone)
    bench.ledger.advance({A0: 5})
    bench.guarantee.commit()
    assert (bench.saved, bench.take_requests()) == ({A0: 5}, alone)
    bench.write(position=6)
    bench.ledger.advance({B0: 7})
    bench.guarantee.commit()
    assert bench.saved == {A0: 6, B0: 7}


def test_exactly_once_offsets_without_outputs_are_committed_by_a_new_producer() -> None:
    bench = Bench()
    bench.write()
    bench.cluster.faults.inject("commit_transaction", late=6.0)
    bench.guarantee.commit()
    bench.ledger.advance({B0: 7})
    bench.guarantee.commit()
    assert bench.saved == {A0: 1, B0: 7}


def test_dead_letters_are_logged_with_their_processor(caplog: pytest.LogCaptureFixture) -> None:
    bench, failure = Bench(), Failure((Read("a", 7),), b"\x01" * 16, LookupError("no such plane"))
    bench.guarantee.write(Plan(failures=[failure], steps=1))
    place = f"(reading a[0]@7, delivery {'01' * 16})"
    text = f"p: dead letter: LookupError: no such plane {place}; `kstreams dead-letters list GRAPH` shows all"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", text)]


def test_counters_count_records_commits_and_aborts() -> None:
    bench = Bench()
    bench.write()
    bench.guarantee.commit()
    bench.write()
    bench.recover(Abortable("refused"))
    assert bench.counters.as_dict() == {
        "records_in": 1, "records_out": 1, "dead_letters": 0, "dropped": 0, "rolled_back": 1, "commits": 1,
        "aborts": 1, "retries": 0, "bytes_in": 0, "bytes_out": 1, "rebalances": 0,
    }  # fmt: skip


# Truth 1: an unknown outcome.


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_exactly_once_unknown_outcome_is_not_aborted_and_committed_offsets_decide(applied: bool) -> None:
    bench = Bench()
    bench.write(b"1", 1)
    bench.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=applied)
    bench.recover(bench.fail_commit())
    assert bench.take_requests() == ["produce", "send_offsets", "commit_transaction", "membership", "init_transactions"]
    committed = bench.committed.read([A0])
    assert (committed, bench.visible) == (({A0: 1}, [b"1"]) if applied else ({}, []))
    for position in range(committed.get(A0, 0), 2):
        bench.write(str(position + 1).encode(), position + 1)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_exactly_once_unknown_outcome_is_not_aborted_at_the_end(applied: bool) -> None:
    bench = Bench()
    bench.write()
    bench.cluster.faults.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=applied)
    bench.fail_commit()
    bench.guarantee.end()
    assert bench.take_requests() == ["produce", "send_offsets", "commit_transaction"]


# Truth 3: offsets of processed records.


def test_exactly_once_commits_offsets_of_processed_records_not_of_fetched_ones() -> None:
    bench = Bench()
    for number in range(10):
        bench.cluster.append("a", str(number).encode(), partition=0)
    assert len(bench.consumer.consume(100, 0.0)) == 10
    bench.write(position=3)
    bench.guarantee.commit()
    assert bench.saved == {A0: 3}


def test_exactly_once_aborted_offsets_are_not_in_the_next_commit() -> None:
    bench = Bench()
    bench.run(Plan(steps=2), {A0: 5, B0: 9})
    bench.recover(Abortable("refused"))
    bench.write(position=1)
    bench.guarantee.commit()
    assert bench.saved == {A0: 1}


# Truth 4: rebalances.


def test_exactly_once_commit_of_a_member_that_missed_a_rebalance_is_aborted() -> None:
    bench = Bench()
    bench.write()
    bench.miss_rebalance()
    error = bench.fail_commit()
    assert type(error) is Abortable
    bench.recover(error)
    assert (bench.visible, bench.saved) == ([], {})


def test_exactly_once_commit_uses_the_current_group_metadata() -> None:
    bench = Bench()
    other = bench.cluster.consumer("g.p", "g.p.1")
    other.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.consume(1, 0.0)
    bench.write()
    bench.guarantee.commit()  # with the generation that it joined after the session began
    assert bench.saved == {A0: 1}


def test_exactly_once_open_transaction_is_aborted_after_a_rebalance() -> None:
    bench = Bench()
    bench.write()
    bench.cluster.consumer("g.p", "g.p.1").subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.consume(1, 0.0)
    with pytest.raises(Abortable, match="partitions were revoked in mid-transaction") as caught:
        bench.guarantee.check()
    bench.recover(caught.value)
    bench.guarantee.check()
    assert ("abort_transaction" in bench.take_requests(), bench.visible, bench.saved) == (True, [], {})


def test_exactly_once_held_outputs_are_dropped_after_a_rebalance() -> None:
    bench = Bench(outputs_held=9)
    bench.write()
    bench.guarantee.lost()
    with pytest.raises(Abortable, match="partitions were revoked in mid-transaction"):
        bench.guarantee.check()
    bench.recover(bench.fail_commit())
    bench.guarantee.commit()
    assert (bench.take_requests(), bench.visible, bench.counters.aborts) == ([], [], 1)


def test_exactly_once_rebalance_between_transactions_aborts_nothing() -> None:
    bench = Bench()
    bench.ledger.advance({A0: 5})
    bench.guarantee.lost()
    bench.guarantee.check()
    assert bench.session.state is SessionState.READY
    bench.guarantee.commit()
    assert (bench.saved, bench.take_requests()) == ({}, [])


# Truth 6: a failed delivery.


def test_exactly_once_delivery_failure_of_one_record_aborts_the_whole_transaction() -> None:
    bench = Bench()
    bench.cluster.faults.inject("produce", nth=2, error=Abortable("writing to x[0]: refused"), applied=False)
    for position in (1, 2, 3):
        bench.write(str(position).encode(), position)
    error = bench.fail_commit()
    assert str(error) == "writing to x[0]: refused"
    bench.recover(error)
    assert (bench.visible, bench.saved) == ([], {})


# Truth 9: records of an aborted transaction.


@pytest.mark.parametrize("guarantee", [EO, ALO])
def test_abort_leaves_no_record_to_be_sent_later(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=5.0)
    bench.write(b"given up", 1)
    bench.recover(Abortable("refused"))
    bench.clock.advance(6.0)
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.cluster.records("x", "read_uncommitted")) == ([b"2"], bench.cluster.records("x"))


# Without transactions: waiting for the broker, and outputs that must not be lost.


def stall(bench: Bench, times: int = 1, error: ClientError | None = None) -> None:
    """Makes the producer's next flushes fail; they send nothing."""
    producer: Any = bench.session._producer
    flush, left = producer.flush, [error or Retriable("the broker makes no progress")] * times

    def flushing() -> None:
        if left:
            raise left.pop()
        flush()

    producer.flush = flushing


def refuse_writes(bench: Bench, times: int) -> None:
    """Makes the producer's next writes fail because its queue is full."""
    producer: Any = bench.session._producer
    write, left = producer.write, [Retriable("the producer's queue stayed full")] * times

    def writing(outputs: list[Output]) -> None:
        if left:
            raise left.pop()
        write(outputs)

    producer.write = writing


def drop_answers(bench: Bench, *, applied: bool = False, times: int = CALLS_MAX) -> None:
    """Makes the next commits of offsets fail without an answer; one call makes CALLS_MAX attempts."""
    for nth in range(1, times + 1):
        bench.cluster.faults.inject("commit", nth=nth, error=Retriable("no answer"), applied=applied)


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_flush_without_progress_keeps_the_outputs_and_the_commit_is_repeated(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=9.0)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    stall(bench, 2)
    producer = bench.session._producer
    for _ in range(2):
        error = bench.fail_commit()
        assert (type(error), bench.guarantee.must_repeat_commit) == (Retriable, True)
        assert not bench.guarantee.recover(error)
        assert (bench.session.state, bench.guarantee.uncommitted_steps, bench.visible) == (SessionState.OPEN, 1, [])
    bench.guarantee.commit()
    assert (bench.visible, bench.saved, bench.counters.as_dict()["aborts"]) == ([b"1"], {A0: 1}, 0)
    assert (bench.guarantee.must_repeat_commit, bench.guarantee.busy) == (False, False)
    assert bench.session._producer is producer


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_least_once_commit_without_an_answer_is_repeated_by_the_next_commit(applied: bool) -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    drop_answers(bench, applied=applied)
    error = bench.fail_commit()
    assert (bench.guarantee.must_repeat_commit, bench.guarantee.recover(error)) == (True, False)
    assert bench.guarantee.uncommitted_steps == 1
    bench.guarantee.commit()
    assert (bench.visible, bench.saved, bench.guarantee.must_repeat_commit) == ([b"1"], {A0: 1}, False)
    assert bench.take_requests() == ["produce", *["commit"] * (CALLS_MAX + 1)]


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_whose_commit_has_no_answer_is_prepared_again(applied: bool) -> None:
    bench, intake = Bench(AMO), Taken([(Read("a", 3), Read("b", 4))])
    bench.write(b"before", 3)
    drop_answers(bench, applied=applied)
    with pytest.raises(Retriable, match="no answer") as caught:
        bench.guarantee.prepare(intake)
    assert (bench.guarantee.must_repeat_commit, bench.guarantee.recover(caught.value)) == (True, False)
    assert (bench.session.state, bench.guarantee.uncommitted_steps) == (SessionState.OPEN, 1)
    bench.guarantee.prepare(intake)
    bench.guarantee.commit()
    assert (bench.saved, bench.visible, bench.guarantee.must_repeat_commit) == ({A0: 4, B0: 5}, [b"before"], False)


def test_at_most_once_older_offsets_do_not_replace_newer_committed_ones() -> None:
    bench = Bench(AMO)
    bench.ledger.advance({A0: 3, B0: 9})
    bench.guarantee.prepare(Taken([(Read("a", 3), Read("b", 9))]))
    bench.guarantee.commit()
    assert (bench.saved, bench.take_requests()) == ({A0: 4, B0: 10}, ["commit"])


def test_at_least_once_commit_without_progress_is_logged_and_repeated_without_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(ALO, session_timeout=1e6)
    bench.write()
    stall(bench, FAILURES_MAX + 5)
    for _ in range(FAILURES_MAX + 5):
        assert not bench.guarantee.recover(bench.fail_commit())
    assert [r.levelname for r in caplog.records] == ["WARNING"] * (FAILURES_MAX + 5 - FAILURES_WARNED + 1)
    assert caplog.messages[0] == "p: the broker makes no progress; asking again"
    assert (bench.slept[:3], bench.slept[-1]) == ([0.05, 0.1, 0.2], WAIT_MAX)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


def test_at_least_once_repeated_commit_that_is_refused_rewinds() -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    stall(bench)
    bench.guarantee.recover(bench.fail_commit())
    bench.cluster.faults.inject("commit", error=Abortable("no longer a member"), applied=False)
    error = bench.fail_commit()
    assert (type(error), bench.guarantee.recover(error)) == (Abortable, True)
    assert (bench.session.state, bench.guarantee.busy, bench.saved) == (SessionState.READY, False, {})


@pytest.mark.parametrize("error", [Retriable, Abortable])
def test_at_least_once_failure_with_nothing_open_keeps_the_producer(error: type[ClientError]) -> None:
    bench = Bench(ALO)
    producer = bench.session._producer
    assert bench.guarantee.recover(error("reading the committed offsets"))
    assert (bench.session.state, bench.session._producer) == (SessionState.READY, producer)


def set_apart(bench: Bench, *values: bytes) -> None:
    """Returns outputs to the guarantee, as after a refusal of one of them."""
    bench.guarantee.write(Plan())
    outputs = [output for value in values for output in plan(value).outputs]
    assert not bench.guarantee.recover(Refused(RecordRefused("x refuses a record"), outputs))


def record_calls(bench: Bench) -> list[str]:
    """A list that receives the producer's calls from now on."""
    producer: Any = bench.session.producer
    write, flush, calls = producer.write, producer.flush, list[str]()

    def writing(outputs: list[Output]) -> None:
        calls.append(f"write {len(outputs)}")
        write(outputs)

    def flushing() -> None:
        calls.append("flush")
        flush()

    producer.write, producer.flush = writing, flushing
    return calls


def test_at_most_once_outputs_set_apart_are_written_one_at_a_time() -> None:
    bench = Bench(AMO, linger=9.0)
    set_apart(bench, b"1", b"2")
    calls = record_calls(bench)
    bench.guarantee.commit()
    assert calls == ["flush", "write 1", "flush", "write 1", "flush"]
    assert bench.visible == [b"1", b"2"]


@pytest.mark.parametrize("fails", ["flush", "write"])
def test_at_most_once_output_set_apart_stays_until_its_producer_has_taken_it(fails: str) -> None:
    bench = Bench(AMO, linger=9.0)
    set_apart(bench, b"1", b"2")
    stall(bench, 1) if fails == "flush" else refuse_writes(bench, 1)
    assert type(bench.fail_commit()) is Retriable
    assert (bench.visible, bench.guarantee.must_repeat_commit) == ([], True)
    bench.guarantee.commit()
    assert (bench.visible, bench.guarantee.must_repeat_commit) == ([b"1", b"2"], False)


def test_at_most_once_output_that_failed_before_others_set_apart_is_lost_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(AMO, linger=9.0)
    set_apart(bench, b"1", b"2")
    stall(bench, 1, Abortable("writing to x: refused"))
    bench.guarantee.commit()
    assert bench.visible == [b"1", b"2"]
    assert "p: at most once: an output is lost: writing to x: refused" in caplog.text


# Revoked and lost partitions.


def test_exactly_once_revocation_commits_nothing_and_requires_an_abort() -> None:
    bench = Bench()
    bench.write()
    bench.guarantee.revoked(nothing)
    assert (bench.take_requests(), bench.session.state, bench.guarantee.busy) == (
        ["produce"],
        SessionState.ABORTABLE,
        True,
    )


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_revocation_without_transactions_commits_what_is_open(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=9.0)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.guarantee.revoked(nothing)
    assert (bench.visible, bench.saved, bench.guarantee.busy) == ([b"1"], {A0: 1}, False)


def test_at_least_once_revocation_with_a_failed_commit_drops_offsets_and_outputs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    drop_answers(bench)
    bench.guarantee.revoked(nothing)
    assert "p: partitions are revoked before a commit: no answer" in caplog.text
    assert (bench.session.state, bench.guarantee.uncommitted_steps) == (SessionState.ABORTABLE, 0)
    with pytest.raises(Abortable, match="partitions were revoked in mid-transaction") as caught:
        bench.guarantee.check()
    bench.recover(caught.value)
    bench.guarantee.commit()
    assert (bench.saved, bench.guarantee.must_repeat_commit) == ({}, False)


def test_at_most_once_outputs_not_flushed_before_a_revocation_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Another member may be past them: the client would write them behind its outputs."""
    bench = Bench(AMO, linger=9.0)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    stall(bench)
    bench.guarantee.revoked(nothing)
    assert "p: partitions are revoked before a commit: the broker makes no progress" in caplog.text
    assert "p: at most once: the partitions are lost: outputs may be lost" in caplog.text
    bench.guarantee.check()
    bench.guarantee.commit()
    bench.clock.advance(10.0)
    assert (bench.visible, bench.saved, bench.guarantee.must_repeat_commit) == ([], {A0: 1}, False)
    bench.guarantee.resume({A0: 1, B0: 0}, [A0, B0])
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert bench.visible == [b"2"]


@pytest.mark.parametrize(
    ("positions", "written"),
    [({A0: 1, B0: 0}, [b"1"]), ({A0: 2, B0: 0}, []), ({B0: 0}, [])],
    ids=["none is past them", "another one is past them", "the partition is not ours"],
)
def test_at_most_once_outputs_that_no_client_has_taken_wait_for_what_the_group_says(
    positions: Positions, written: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(AMO)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    refuse_writes(bench, 1)
    with pytest.raises(Retriable):
        bench.write(b"1", 1)
    bench.guarantee.lost()
    bench.guarantee.lost()
    bench.guarantee.commit()
    assert bench.visible == []
    assert bench.guarantee.resume(positions, positions) == positions
    bench.guarantee.commit()
    assert bench.visible == written
    assert ("p: at most once: outputs are lost: another worker has their partitions" in caplog.text) is (written == [])
    assert not bench.guarantee.busy


@pytest.mark.parametrize("error", [Retriable, Abortable])
def test_at_most_once_outputs_survive_a_recovery(error: type[ClientError]) -> None:
    bench = Bench(AMO, linger=9.0)
    bench.guarantee.prepare(Taken([Read("a", 0)]))
    bench.write(b"1", 1)
    assert bench.guarantee.recover(error("reading"))
    assert bench.session.state is SessionState.READY
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.counters.as_dict()["aborts"]) == ([b"1", b"2"], 1)


@pytest.mark.parametrize("error", [OutcomeUnknown, Fenced, Fatal])
@pytest.mark.parametrize("open_", [True, False])
def test_at_most_once_unusable_producer_is_replaced_and_its_outputs_logged(
    open_: bool, error: type[ClientError], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(AMO, linger=9.0)
    before = bench.session._producer
    if open_:
        bench.write(b"1", 1)
    assert bench.guarantee.recover(error("unusable"))
    assert ("p: at most once: outputs may be lost: unusable" in caplog.text) is open_
    assert (bench.session.state, bench.guarantee.busy) == (SessionState.READY, False)
    assert bench.session._producer is not before
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert bench.visible == [b"2"]


# The start of a group.


BEGUN: list[Output] = [("x", b"a begun partition", b"key", 0, None, None, 0, None)]
NAMED: list[Output] = [("x", b"a start", b"another key", 0, None, None, 0, None)]


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("starts", [{A0: 7}, {}], ids=["with offsets", "records only"])
def test_commit_start_commits_offsets_and_records(guarantee: Guarantee, starts: Positions) -> None:
    """Without transactions the offsets are named by a record before they are committed."""
    bench = Bench(guarantee, linger=9.0)
    bench.guarantee.commit_start(starts, [*NAMED], [*BEGUN])
    positions, commit = (["send_offsets"], ["commit_transaction"]) if guarantee is EO else (["produce", "commit"], [])
    assert bench.take_requests() == [*(positions if starts else []), "produce", *commit]
    named = [b"a start"] if starts and guarantee is not EO else []
    assert (bench.visible, bench.saved) == ([*named, b"a begun partition"], starts)
    assert (bench.session.state, bench.guarantee.busy) == (SessionState.READY, False)


@pytest.mark.parametrize("request_name", ["send_offsets", "produce", "commit_transaction"])
def test_exactly_once_commit_start_that_fails_recovers_and_commits_nothing(request_name: str) -> None:
    bench = Bench()
    bench.cluster.faults.inject(request_name, error=Abortable("refused"), applied=False)
    with pytest.raises(Abortable) as caught:
        bench.guarantee.commit_start({A0: 7}, [*NAMED], [*BEGUN])
    bench.recover(caught.value)
    assert (bench.visible, bench.saved) == ([], {})


# The end.


def test_end_aborts_only_an_open_transaction() -> None:
    bench = Bench()
    assert end(bench) == []
    bench = Bench()
    bench.write()
    assert end(bench) == ["abort_transaction"]
    bench = Bench()
    bench.write()
    bench.guarantee.lost()
    assert end(bench) == ["abort_transaction"]
    bench = Bench(ALO, linger=5.0)
    bench.write()
    assert end(bench) == []
    bench.clock.advance(6.0)
    assert bench.visible == []


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), NotAuthorized("no right")])
def test_exactly_once_end_with_a_failing_abort_raises_nothing_and_logs_the_cause(
    error: KStreamsError, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.write()
    bench.cluster.faults.inject("abort_transaction", error=error, applied=False)
    assert end(bench) == ["abort_transaction"]
    said = f"g.p.0: its transaction is left to its time-out: {error}" in caplog.text
    assert said is isinstance(error, NotAuthorized)  # an unknown outcome is cured by the next producer


def test_at_most_once_end_delivers_queued_outputs_once_the_broker_makes_progress() -> None:
    bench = Bench(AMO, linger=60.0)
    bench.write(b"1", 1)
    stall(bench, 3)
    assert (end(bench), bench.visible, bench.slept) == (["produce"], [b"1"], [0.1] * 3)


def test_at_most_once_end_delivers_outputs_that_a_full_queue_held_back() -> None:
    bench = Bench(AMO, linger=60.0)
    refuse_writes(bench, 1)
    with pytest.raises(Retriable):
        bench.write(b"1", 1)
    assert (end(bench), bench.visible) == (["produce"], [b"1"])


def test_at_most_once_end_delivers_outputs_set_apart() -> None:
    bench = Bench(AMO)
    set_apart(bench, b"1", b"2")
    bench.guarantee.end()
    assert bench.visible == [b"1", b"2"]


@pytest.mark.parametrize(
    ("error", "slept"),
    [
        (Retriable("the broker is away"), LAST_DELIVERY_SECONDS),
        (Abortable("refused"), LAST_DELIVERY_SECONDS),
        (Fatal("unusable"), 0.0),
    ],
)
def test_at_most_once_end_gives_up_after_its_limit_and_logs_the_loss(
    error: ClientError, slept: float, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(AMO, linger=1e6)
    bench.write(b"1", 1)
    stall(bench, 1_000, error)
    assert (end(bench), bench.visible) == ([], [])
    assert sum(bench.slept) == pytest.approx(slept, abs=0.2)
    assert f"p: at most once: outputs are lost: {error}" in caplog.text


def test_at_most_once_end_with_nothing_open_makes_no_request() -> None:
    bench = Bench(AMO)
    stall(bench)
    assert (end(bench), bench.slept) == ([], [])


def test_end_before_the_start_does_nothing() -> None:
    bench = Bench()
    fresh = bench.new_guarantee(bench.consumer)
    fresh.end()
    assert bench.take_requests() == []
