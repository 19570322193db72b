"""Repetitions after an error: their number, their pauses, and when the worker gives up."""

from __future__ import annotations

import logging

import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    Fatal,
    Fenced,
    KStreamsError,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
)
from kstreams_py.metrics import WorkerState
from kstreams_py.processing.commits.attempts import CALLS_MAX, FAILURES_MAX, FAILURES_WARNED, PRODUCERS_MAX, WAIT_MAX
from kstreams_py.processing.commits.session import MEMBERSHIP_ASKED_MAX
from kstreams_py.processing.commits.states import SessionState
from tests.unit.guarantee import A0, ALO, EO, Bench


def fail_again(bench: Bench, error: ClientError, times: int) -> None:
    """Writes and recovers from an error, so many times."""
    for _ in range(times):
        bench.write()
        bench.recover(error)


# Truth 9: calls that are late or never return.


@pytest.mark.parametrize("request_name", ["send_offsets", "commit"])
def test_retriable_error_repeats_the_call_up_to_its_limit(request_name: str) -> None:
    bench = Bench(ALO if request_name == "commit" else EO)
    for position, times in enumerate((CALLS_MAX - 1, CALLS_MAX), 1):
        bench.slept.clear()
        bench.write(position=position)
        for nth in range(1, times + 1):
            bench.cluster.faults.inject(request_name, nth=nth, error=Retriable("busy"), applied=False)
        if times < CALLS_MAX:
            bench.guarantee.commit()
            assert bench.slept == [0.1, 0.2, 0.4, 0.8]
        else:
            with pytest.raises(Retriable, match="busy"):
                bench.guarantee.commit()
            assert bench.guarantee.recover(Retriable("busy")) is (request_name != "commit")
            assert bench.guarantee.must_repeat_commit is (request_name == "commit")
            assert bench.guarantee.busy is bench.guarantee.must_repeat_commit


def test_exactly_once_retriable_error_past_the_limit_aborts_the_transaction() -> None:
    bench = Bench()
    bench.write(b"1", 1)
    for nth in range(1, CALLS_MAX + 1):
        bench.cluster.faults.inject("send_offsets", nth=nth, error=Retriable("busy"), applied=False)
    bench.recover(bench.fail_commit())
    assert bench.take_requests() == ["produce", *["send_offsets"] * CALLS_MAX, "abort_transaction"]
    assert (bench.visible, bench.saved) == ([], {})


def test_repeated_aborts_log_warnings_until_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    for commits in (False, False, False, False, True, False):
        bench.write()
        if commits:
            bench.guarantee.commit()
        else:
            bench.recover(Abortable("no"))
    levels = [record.levelname for record in caplog.records if "going back" in record.getMessage()]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING", "INFO"]


def test_records_that_time_out_while_no_broker_answers_are_waited_for_without_limit() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(FAILURES_MAX + 1):
        bench.write()
        bench.recover(Abortable("writing to out: no answer", unanswered=True))
        assert bench.guarantee.attempts.away is WorkerState.BROKER_AWAY
    bench.write()
    bench.guarantee.commit()
    assert bench.guarantee.attempts.away is None


def test_error_that_is_not_retriable_does_not_repeat_the_call() -> None:
    bench = Bench()
    bench.write()
    bench.cluster.faults.inject("send_offsets", error=Abortable("no"), applied=False)
    bench.fail_commit()
    assert (bench.take_requests(), bench.slept) == (["produce", "send_offsets"], [])


@pytest.mark.parametrize(
    ("error", "starts"),
    [(Retriable, True), (Abortable, True), *((each, False) for each in (Abortable, OutcomeUnknown, Fenced))],
)
def test_producers_that_cannot_start_are_replaced_up_to_a_limit(error: type[ClientError], starts: bool) -> None:
    bench = Bench()
    bench.write()
    bench.guarantee.commit()
    for nth in range(1, 1_000):
        bench.cluster.faults.inject("init_transactions", nth=nth, error=error("no"), applied=False)
    with pytest.raises(Fatal, match=f"g.p.0: {PRODUCERS_MAX} producers in a row could not commit, at last by: no"):
        bench.session.start() if starts else bench.guarantee.recover(OutcomeUnknown("no answer"))
    assert bench.session.state is SessionState.FATAL
    assert bench.take_requests().count("init_transactions") == PRODUCERS_MAX + 1
    assert bench.slept == [min(0.1 * 2**i, 5.0) for i in range(1, PRODUCERS_MAX + 1)]


@pytest.mark.parametrize("fails", [OutcomeUnknown, Fenced, Abortable, Retriable])
@pytest.mark.parametrize(
    ("request_name", "answer"),
    [("membership", Retriable), ("membership", BrokerUnavailable), ("init_transactions", Retriable)],
)
def test_broker_that_is_away_is_waited_for_before_the_producer_is_replaced(
    request_name: str, answer: type[KStreamsError], fails: type[ClientError]
) -> None:
    """The group has to be heard between two attempts, and a stop as well: each attempt makes one request."""
    bench, attempts = Bench(session_timeout=1e6), 2 * max(PRODUCERS_MAX, FAILURES_MAX, MEMBERSHIP_ASKED_MAX)
    bench.write()
    for nth in range(1, attempts + 1):
        bench.cluster.faults.inject(request_name, nth=nth, error=answer("no answer"), applied=False)
    bench.cluster.faults.inject("abort_transaction", error=OutcomeUnknown("no"), applied=False)
    error: ClientError = fails("why")
    for attempt in range(attempts):
        assert bench.guarantee.recover(error), "the worker has to rewind"
        assert bench.take_requests().count(request_name) <= 1 + (request_name == "membership" and fails is Fenced)
        state = SessionState.FENCED if fails is Fenced else SessionState.UNKNOWN
        assert (bench.session.state, bench.session.open_seconds) == (state, None)
        with pytest.raises(Retriable, match="no answer") as raised:
            bench.guarantee.check()
        error = raised.value
        is_away = attempt > 0 or fails is Retriable
        assert bench.guarantee.attempts.away is (WorkerState.BROKER_AWAY if is_away else None)
    assert max(bench.slept) == WAIT_MAX
    bench.recover(error)
    assert bench.counters.renewals == {"fenced" if fails is Fenced else "unknown_outcome": 1}
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved[A0]) == ([b"2"], 2)


def test_late_request_in_an_outage_is_settled_once_the_broker_answers() -> None:
    bench = Bench()
    bench.cluster.faults.inject("commit_transaction", late=6.0)
    bench.write(b"1", 1)
    bench.guarantee.commit()
    bench.cluster.faults.inject("membership", error=BrokerUnavailable("no broker"), applied=False)
    with pytest.raises(Retriable, match="no broker"):
        bench.write(b"2", 2)
    bench.recover(Retriable("no broker"))
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved[A0]) == ([b"1", b"2"], 2)


def test_producers_whose_transactions_all_fail_are_replaced_up_to_a_limit() -> None:
    bench = Bench(session_timeout=1e6)
    fail_again(bench, OutcomeUnknown("no answer"), PRODUCERS_MAX)
    bench.write()
    with pytest.raises(Fatal):
        bench.guarantee.recover(OutcomeUnknown("no answer"))
    replaced = bench.take_requests().count("init_transactions")
    assert (bench.counters.aborts, replaced) == (PRODUCERS_MAX + 1, PRODUCERS_MAX)


def test_producer_replacements_are_counted_from_the_last_commit() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(3):
        fail_again(bench, OutcomeUnknown("no answer"), PRODUCERS_MAX)
        bench.write()
        bench.guarantee.commit()
        bench.slept.clear()
        fail_again(bench, OutcomeUnknown("no answer"), 1)
        assert bench.slept == []  # the first replacement after a commit waits for nothing
        bench.write()
        bench.guarantee.commit()


def test_producer_replacement_without_a_broker_raises_broker_unavailable() -> None:
    bench = Bench()
    bench.cluster.faults.inject("init_transactions", error=BrokerUnavailable("no broker"), applied=False)
    with pytest.raises(BrokerUnavailable):
        bench.guarantee.recover(OutcomeUnknown("no answer"))


# Repeated failures.


def test_repeated_aborts_wait_longer_each_time_then_end_the_session() -> None:
    bench = Bench(session_timeout=1e6)
    fail_again(bench, Abortable("refused"), FAILURES_MAX - 1)
    pauses = [min(0.05 * 2**number, WAIT_MAX) for number in range(FAILURES_MAX - FAILURES_WARNED)]
    assert bench.slept == [round(seconds, 3) for seconds in pauses]
    bench.write()
    with pytest.raises(Fatal) as caught:
        bench.guarantee.recover(Abortable("refused"))
    assert str(caught.value) == (
        "g.p.0: 40 attempts in a row failed, at last by: refused: remove the cause, then start the worker again"
    )
    assert bench.session.state is SessionState.FATAL


def test_aborts_are_counted_from_the_last_commit() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(3):
        fail_again(bench, Abortable("refused"), FAILURES_MAX - 1)
        bench.write()
        bench.guarantee.commit()
        bench.slept.clear()
    assert bench.visible == [b"1"] * 3


def test_outage_without_limit_and_a_rebalance_after_it_do_not_end_the_session() -> None:
    bench = Bench(session_timeout=1e6)
    fail_again(bench, Retriable("no broker answers"), FAILURES_MAX + 5)
    fail_again(bench, Abortable("partitions were revoked"), 1)
    bench.write()
    bench.guarantee.commit()
    assert bench.visible == [b"1"]


def test_search_for_a_refused_output_counts_as_no_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(session_timeout=1e6)
    fail_again(bench, Refused(RecordRefused("topic 'x' refuses a record")), FAILURES_MAX + 5)
    assert (bench.slept, bench.counters.as_dict()["aborts"]) == ([], FAILURES_MAX + 5)
    assert {(r.levelname, r.getMessage()) for r in caplog.records} == {
        ("INFO", "p: topic 'x' refuses a record; looking for the record")
    }
