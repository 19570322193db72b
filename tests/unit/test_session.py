"""The session: the states of the producer, and how it is replaced."""

from __future__ import annotations

import logging
from itertools import product

import pytest

from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    ClientError,
    Fatal,
    Fenced,
    NotAuthorized,
    OutcomeUnknown,
    Replaced,
    Retriable,
    Unavailable,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.processing.commits.session import MEMBERSHIP_ASKED_MAX
from kstreams_py.processing.commits.states import FAILURES, TRANSITIONS, SessionState
from kstreams_py.records import TopicPartition
from tests.tables import each_case
from tests.unit.guarantee import A0, ALO, AMO, B0, EO, ERRORS, Bench

# The table.


@each_case(("before", "after"), [*product(SessionState, SessionState)])
def test_transition_is_made_if_it_is_in_the_table_and_refused_if_not(before: SessionState, after: SessionState) -> None:
    session = Bench().session
    session.state = before
    if after in TRANSITIONS[before]:
        session._move(after)
        assert session.state is after
    else:
        with pytest.raises(AssertionError, match=f"g.p.0: {before} -> {after} is not in the table"):
            session._move(after)
        assert session.state is before


def test_failure_state_leads_to_ready_or_worse_and_never_to_an_open_transaction() -> None:
    """Otherwise a transaction of unknown outcome, or one of a fenced producer, could be aborted."""
    for severity, state in enumerate(FAILURES):
        assert TRANSITIONS[state] <= {SessionState.READY, *FAILURES[severity + 1 :]}
    assert TRANSITIONS[SessionState.FATAL] == set()


@pytest.mark.parametrize("state", [SessionState.READY, SessionState.OPEN])
def test_every_failure_is_possible_whether_or_not_a_transaction_is_open(state: SessionState) -> None:
    assert set(FAILURES) <= TRANSITIONS[state]


@pytest.mark.parametrize("must_abort", [False, True], ids=["open", "must abort"])
@pytest.mark.parametrize("error", [error for error in ERRORS if error is not Fatal])
def test_every_failure_of_an_open_transaction_is_recovered_even_after_a_rebalance(
    error: type[ClientError], must_abort: bool
) -> None:
    bench = Bench()
    bench.write()
    if must_abort:
        bench.guarantee.lost()
    bench.recover(error("why"))
    assert ("abort_transaction" in bench.take_requests()) == (error in (Retriable, Abortable))
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved[A0], bench.counters.aborts) == ([b"2"], 2, 1)


@pytest.mark.parametrize("error", [error for error in ERRORS if error is not Fatal])
def test_every_failure_without_an_open_transaction_is_recovered(error: type[ClientError]) -> None:
    bench = Bench()
    bench.recover(error("why"))
    assert "abort_transaction" not in bench.take_requests()
    bench.write()
    bench.guarantee.commit()
    assert bench.visible == [b"1"]


def test_fatal_failure_ends_the_session() -> None:
    bench, fatal = Bench(), Fatal("of no use")
    bench.write()
    with pytest.raises(Fatal) as caught:
        bench.guarantee.recover(fatal)
    assert (caught.value, bench.session.state) == (fatal, SessionState.FATAL)
    bench.guarantee.end()
    assert bench.take_requests() == ["produce"]


def test_session_that_never_started_recovers_with_a_new_producer() -> None:
    bench = Bench()
    fresh = bench.new_guarantee(bench.consumer)
    fresh.recover(Abortable("nothing was open"))
    assert (fresh.session.state, bench.take_requests()) == (SessionState.READY, ["membership", "init_transactions"])


# Truth 2: requests that may arrive late.


@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction"])
def test_tainted_producer_is_replaced_before_the_next_begin(
    request_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.cluster.faults.inject(request_name, late=6.0)
    bench.write(b"1", 1)
    bench.guarantee.commit()
    bench.take_requests()
    bench.write(b"2", 2)
    assert bench.take_requests() == ["membership", "init_transactions", "produce"]
    assert "g.p.0: a request timed out or lost its connection: a new producer is needed" in caplog.text
    bench.clock.advance(6.5)  # the late request arrives while the next transaction is open
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


def test_producer_tainted_by_an_abort_is_replaced_before_the_next_begin() -> None:
    bench = Bench()
    bench.write(b"1", 1)
    bench.cluster.faults.inject("abort_transaction", late=6.0)
    bench.recover(Abortable("why"))
    bench.write(b"2", 2)
    bench.clock.advance(6.5)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"2"], {A0: 2})


def test_producer_that_is_not_tainted_is_kept() -> None:
    bench = Bench()
    for position in (1, 2, 3):
        bench.write(position=position)
        bench.guarantee.commit()
    assert "init_transactions" not in bench.take_requests()


# Truth 7: fenced, or timed out.


def replace(bench: Bench, *, joins: bool) -> None:
    """Another worker of the slot fences this one; with `joins`, it joins the group first."""
    if joins:
        bench.cluster.consumer("g.p", "g.p.0").subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.cluster.producer(producer_mode(EO, Durability.COMMITTED), "g.p.0").init_transactions()
    bench.take_requests()


def test_fenced_session_renews_its_producer_with_the_membership_and_ends_without_it() -> None:
    for joins in (False, True):
        bench = Bench()
        bench.write()
        replace(bench, joins=joins)
        error = bench.fail_commit()
        assert type(error) is Fenced
        if joins:
            with pytest.raises(Replaced, match=r"another worker has taken the slot of g\.p\.0 over"):
                bench.guarantee.recover(error)
            assert bench.session.state is SessionState.FATAL
            bench.guarantee.end()
            assert not {"init_transactions", "abort_transaction"} & set(bench.take_requests())
        else:
            bench.recover(error)
            assert "init_transactions" in bench.take_requests()
            bench.write()
            bench.guarantee.commit()
            assert bench.visible == [b"1"]


@pytest.mark.parametrize("fails", [OutcomeUnknown, Fenced])
def test_session_fences_nobody_while_its_own_join_has_no_answer(fails: type[ClientError]) -> None:
    """The group names a member that may be this one or its replacement."""
    bench = Bench()
    bench.write()
    bench.cluster.faults.inject("subscribe", error=Retriable("no answer"))
    bench.consumer.rejoin()
    bench.take_requests()
    assert bench.guarantee.recover(fails("why")), "the worker has to rewind"
    assert set(bench.take_requests()) == {"membership"}
    with pytest.raises(
        Retriable, match=r"g\.p\.0: its group does not tell whether it still holds the slot \(member 2;"
    ) as raised:
        bench.guarantee.check()
    bench.consume()
    bench.recover(raised.value)
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"2"], {A0: 2})


def test_fenced_by_a_transaction_timeout_is_logged_apart_from_another_producer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.write()
    bench.clock.advance(11.0)
    bench.recover(bench.fail_commit())
    assert (
        "g.p.0: the broker timed the transaction out after 11.0 s: its steps or the broker's answers took longer "
        "than transaction_timeout_ms" in caplog.text
    )
    bench.write()
    replace(bench, joins=False)
    bench.recover(bench.fail_commit())
    assert "g.p.0: fenced, but the membership is still ours: taking the transactional id back" in caplog.text
    assert caplog.text.count("timed the transaction out") == 1


@pytest.mark.parametrize("answer", [NotAuthorized("no right"), BrokerUnavailable("refused", may_return=False)])
def test_fenced_without_the_right_to_ask_for_the_membership_ends_the_session(answer: Unavailable) -> None:
    bench = Bench()
    bench.write()
    replace(bench, joins=False)
    error = bench.fail_commit()
    bench.take_requests()
    bench.cluster.faults.inject("membership", error=answer, applied=False)
    with pytest.raises(type(answer)) as raised:
        bench.guarantee.recover(error)
    assert (raised.value, bench.take_requests()) == (answer, ["membership"])


@pytest.mark.parametrize("answer", [Abortable, Fatal])
def test_fenced_with_no_use_of_the_answers_about_the_membership_ends_the_session(answer: type[Exception]) -> None:
    bench = Bench()
    bench.write()
    replace(bench, joins=False)
    error = bench.fail_commit()
    bench.take_requests()
    for nth in range(1, MEMBERSHIP_ASKED_MAX + 1):
        bench.cluster.faults.inject("membership", nth=nth, error=answer("no answer"), applied=False)
    with pytest.raises(Fatal, match="its group does not say whether it still holds the slot"):
        bench.guarantee.recover(error)
    assert (bench.session.state, bench.take_requests()) == (SessionState.FATAL, ["membership"] * MEMBERSHIP_ASKED_MAX)


# Truth 8: a producer that the broker has forgotten.


@pytest.mark.parametrize("request_name", ["send_offsets", "produce"])
def test_producer_that_the_broker_has_forgotten_is_replaced(request_name: str) -> None:
    bench = Bench()
    bench.cluster.faults.inject(request_name, error=OutcomeUnknown("unknown producer id"), applied=False)
    bench.write(b"1", 1)
    bench.recover(bench.fail_commit())
    bench.write(b"1", 1)
    bench.guarantee.commit()
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


# Truth 9: failed aborts, and transactions that a producer left open.


@pytest.mark.parametrize("error", ERRORS)
def test_failed_abort_renews_the_producer(error: type[ClientError]) -> None:
    bench = Bench()
    bench.write(b"given up", 1)
    bench.cluster.faults.inject("abort_transaction", error=error("no"), applied=False)
    bench.recover(Abortable("why"))
    asked = bench.take_requests()
    assert asked[:3] == ["produce", "abort_transaction", "membership"]
    assert asked[3:] == [*["membership"] * (11 if error is Fenced else 0), "init_transactions"]
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert bench.visible == [b"2"]


def test_renewed_producer_aborts_what_the_old_one_left_open() -> None:
    bench = Bench()
    bench.write(b"left open", 1)
    bench.recover(OutcomeUnknown("no answer"))
    assert bench.cluster.ends([TopicPartition("x", 0)]) == {TopicPartition("x", 0): 2}  # the record and an abort marker
    assert bench.visible == []


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_producers_without_transactions_are_replaced_without_fencing(guarantee: Guarantee) -> None:
    bench = Bench(guarantee)
    bench.write()
    bench.recover(Abortable("why"))
    assert "init_transactions" not in bench.cluster.faults.requests
    bench.write(b"2", 2)
    bench.guarantee.commit()
    assert bench.visible == [b"1", b"2"]


# Transactions that take too long.


def test_timed_out_is_true_after_a_transaction_timeout_until_the_next_failure() -> None:
    bench, seen = Bench(), list[bool]()
    for seconds in (11.0, 0.0, 11.0):
        bench.write()
        bench.clock.advance(seconds)
        bench.recover(bench.fail_commit() if seconds else Abortable("no"))
        seen.append(bench.session.timed_out)
    bench.write()
    replace(bench, joins=False)  # fenced at once
    bench.recover(bench.fail_commit())
    assert [*seen, bench.session.timed_out] == [True, False, True, False]


# The start.


def test_start_fences_the_previous_worker_and_drops_its_pending_offsets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    zombie = Bench()
    zombie.write(b"zombie", 5)
    zombie.ledger.advance({B0: 9})
    # it dies with its offsets pending
    zombie.cluster.faults.inject("commit_transaction", error=KeyboardInterrupt(), applied=False)
    with pytest.raises(KeyboardInterrupt):
        zombie.guarantee.commit()
    successor = zombie.new_guarantee(zombie.consumer)
    with pytest.raises(Retriable, match="pending in a transaction"):
        zombie.committed.read([A0])
    successor.session.start()
    assert zombie.committed.read([A0, B0]) == {}
    assert type(zombie.fail_commit()) is Fenced
    assert zombie.visible == []
