"""engine/transaction.py: what is saved when, the table of states, and the truths about transactions, without a broker.

The truths are those of ARCHITECTURE.md; where one needs a loop around it, its test is in test_worker.py.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from kstreams_py.config import Settings
from kstreams_py.dead_letter import Failure
from kstreams_py.delivery import PROMISES, Choices, Durability, Guarantee, Output
from kstreams_py.engine import transaction
from kstreams_py.engine.states import TRANSITIONS, State
from kstreams_py.engine.transaction import (
    ABORTS_MAX,
    ABORTS_WARNED,
    CALLS_MAX,
    END_SECONDS,
    RENEWALS_MAX,
    SEAT_ASKED_MAX,
    WAIT_MAX,
    Session,
    Surroundings,
)
from kstreams_py.errors import (
    Abortable,
    BrokerUnavailable,
    Fatal,
    Fenced,
    LogError,
    NotAuthorized,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Replaced,
    Retriable,
)
from kstreams_py.groups import Pending
from kstreams_py.metrics import Counters
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.task import Intake, Plan
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.topology import Graph
from tests.unit.fakes import Read, raising

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
EO, ALO, AMO = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE
ERRORS: list[type[LogError]] = [Retriable, Abortable, OutcomeUnknown, Fenced, Fatal]


class Bench:
    """A started session of g.p in slot 0, which reads a and b and writes x, and the log it works on."""

    def __init__(
        self,
        guarantee: Guarantee = EO,
        *,
        alts: bool = False,
        linger: float = 0.0,
        session_timeout: float = 30.0,
        outputs_held: int = 0,
    ) -> None:
        self.outputs_held = outputs_held
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock, linger=linger, session_timeout=session_timeout)
        self.slept: list[float] = []
        graph = Graph("g", guarantee=guarantee)
        for name in "abx":
            graph.topic(name)
        (graph.alts if alts else graph.join)("a", "b", to="x", id="p")(lambda *values: None)
        (self.processor,) = graph.processors
        self.journal = graph.journal(self.processor)
        topics = ["a", "b", "x", *([self.journal] if self.journal else [])]
        self.log.create_topics([(name, 2, -1, {}) for name in topics])
        self.counters = Counters()
        self.consumer = self.log.consumer("g.p", "g.p.0")
        self.assigned: set[TopicPartition] = set()
        self.consumer.subscribe(["a", "b"], self._assigned, self._revoked, self._revoked)
        self.session = self.session_of(self.consumer)
        self.consume()
        self.session.start()
        self._seen = 0
        self.did()

    def session_of(self, consumer: Any) -> Session:
        return Session(
            self.processor,
            consumer,
            Surroundings(self.log, MemoryRegistry(), Settings(), self.clock, self._sleep, self.outputs_held),
            transactional_id="g.p.0",
            journal=self.journal,
            counters=self.counters,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.clock.advance(seconds)

    def consume(self) -> None:
        """Serves a rebalance, and starts where it assigned partitions."""
        self.consumer.consume(1, 0.0)
        if self.assigned:
            self.consumer.assign(dict.fromkeys(self.assigned, 0))
            self.assigned = set()

    def _assigned(self, partitions: set[TopicPartition]) -> None:
        self.assigned = partitions

    def _revoked(self) -> None:
        self.session.settle()

    def did(self) -> list[str]:
        """The requests since the last call, but those that the client makes on its own behalf."""
        seen, self._seen = getattr(self, "_seen", 0), len(self.log.requests)
        return [request for request in self.log.requests[seen:] if request not in ("add_partition", "add_offsets")]

    @property
    def visible(self) -> list[bytes | None]:
        return [m.value() for m in self.log.records("x")]

    @property
    def saved(self) -> Positions:
        return self.log.group("g.p")

    def write(self, value: bytes = b"1", position: int = 1) -> None:
        self.session.write(plan(value, position))

    def fail(self, error: LogError) -> None:
        """Recovers from an error, which must be a way back."""
        self.session.recover(error)
        assert self.session.state is State.READY

    def failed_commit(self) -> LogError:
        """Commits in vain."""
        with pytest.raises(LogError) as caught:
            self.session.commit()
        return caught.value


def plan(value: bytes = b"1", position: int = 1) -> Plan:
    return Plan(outputs=[("x", value, None, 0, None, None, 0, None)], positions={A0: position}, records=1)


def choosing(*runs: tuple[str, int], partition: int = 0) -> Intake:
    steps = [Read(topic, offset, partition=partition) for topic, offset in runs]
    return Intake(steps, {partition: Choices(runs)})


# The table.

LEGAL = {
    State.READY: {State.OPEN, State.RETRIABLE, State.ABORTABLE, State.UNKNOWN, State.FENCED, State.FATAL},
    State.OPEN: {State.READY, State.RETRIABLE, State.ABORTABLE, State.UNKNOWN, State.FENCED, State.FATAL},
    State.RETRIABLE: {State.READY, State.UNKNOWN, State.FENCED, State.ABORTABLE, State.FATAL},
    State.ABORTABLE: {State.READY, State.UNKNOWN, State.FENCED, State.FATAL},
    State.UNKNOWN: {State.READY, State.FENCED, State.FATAL},
    State.FENCED: {State.READY, State.FATAL},
    State.FATAL: set[State](),
}


@pytest.mark.parametrize(("before", "after"), [*product(State, State)])
def test_transition_is_made_if_it_is_in_the_table_and_refused_if_not(before: State, after: State) -> None:
    session = Bench().session
    session.state = before
    if after in TRANSITIONS[before]:
        session._move(after)
        assert session.state is after
    else:
        with pytest.raises(AssertionError, match=f"g.p.0: {before} -> {after} is not in the table"):
            session._move(after)
        assert session.state is before


def test_table_is_as_drawn_and_has_no_way_from_unknown_or_fenced_to_an_abort() -> None:
    assert TRANSITIONS == LEGAL
    for state in (State.UNKNOWN, State.FENCED, State.FATAL):
        assert not TRANSITIONS[state] & {State.OPEN, State.RETRIABLE, State.ABORTABLE}


@pytest.mark.parametrize("doomed", [False, True], ids=["open", "doomed"])
@pytest.mark.parametrize("error", [error for error in ERRORS if error is not Fatal])
def test_every_failure_has_a_way_back_whether_or_not_a_rebalance_came_first(
    error: type[LogError], doomed: bool
) -> None:
    bench = Bench()
    bench.write()
    if doomed:
        bench.session.revoke()
    bench.fail(error("why"))
    assert ("abort_transaction" in bench.did()) == (error in (Retriable, Abortable))
    bench.write(b"2", 2)
    bench.session.commit()
    assert (bench.visible, bench.saved[A0], bench.counters.aborts) == ([b"2"], 2, 1)


@pytest.mark.parametrize("error", [error for error in ERRORS if error is not Fatal])
def test_every_failure_with_nothing_open_has_a_way_back(error: type[LogError]) -> None:
    bench = Bench()
    bench.fail(error("why"))
    assert "abort_transaction" not in bench.did()
    bench.write()
    bench.session.commit()
    assert bench.visible == [b"1"]


def test_fatal_failure_ends_the_session() -> None:
    bench, fatal = Bench(), Fatal("of no use")
    bench.write()
    with pytest.raises(Fatal) as caught:
        bench.session.recover(fatal)
    assert (caught.value, bench.session.state) == (fatal, State.FATAL)
    bench.session.end()
    assert bench.did() == ["produce"]


def test_session_that_never_started_recovers_with_a_producer() -> None:
    bench = Bench()
    fresh = bench.session_of(bench.consumer)
    fresh.recover(Abortable("nothing was open"))
    assert (fresh.state, bench.did()) == (State.READY, ["hold_seat", "init_transactions"])


# What is saved when.


@pytest.mark.parametrize("outputs_held", [0, 1, 9])
def test_exactly_once_commit_makes_outputs_and_positions_visible_together(outputs_held: int) -> None:
    bench = Bench(outputs_held=outputs_held)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.write(b"2", 2)
    assert (bench.visible, bench.saved, bench.session.busy) == ([], {}, True)
    bench.session.commit()
    assert (bench.visible, bench.saved, bench.session.busy) == ([b"1", b"2"], {A0: 2}, False)


@pytest.mark.parametrize(
    ("guarantee", "order"),
    [
        (EO, ["produce", "send_offsets", "commit_transaction"]),
        (ALO, ["produce", "commit"]),
        (AMO, ["commit", "produce"]),
    ],
)
def test_guarantees_differ_in_the_order_of_their_effects(guarantee: Guarantee, order: list[str]) -> None:
    bench = Bench(guarantee, linger=0.0 if guarantee is EO else 9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.session.commit()
    assert (bench.did(), bench.visible, bench.saved) == (order, [b"1"], {A0: 1})


def test_outputs_are_held_while_they_are_few_and_follow_the_positions() -> None:
    bench = Bench(outputs_held=2)
    bench.write(b"1", 1)
    bench.write(b"2", 2)
    assert (bench.did(), bench.session.state, bench.session.busy) == ([], State.READY, True)
    bench.session.commit()
    assert bench.did() == ["send_offsets", "produce", "commit_transaction"]
    assert (bench.visible, bench.saved, bench.session.busy) == ([b"1", b"2"], {A0: 2}, False)


def test_outputs_are_written_in_order_once_they_are_more_than_few() -> None:
    bench = Bench(outputs_held=1)
    bench.write(b"1", 1)
    assert bench.did() == []
    bench.write(b"2", 2)
    assert (bench.did(), bench.session.state) == (["produce"], State.OPEN)
    bench.write(b"3", 3)
    assert bench.did() == ["produce"]
    bench.session.commit()
    assert (bench.did(), bench.visible) == (["send_offsets", "commit_transaction"], [b"1", b"2", b"3"])


def test_few_outputs_that_are_large_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "HELD_BYTES", 10)
    bench = Bench(outputs_held=9)
    bench.write(b"12345", 1)
    bench.write(b"67890", 2)
    assert bench.did() == []
    bench.write(b"+", 3)
    assert (bench.did(), bench.session.state) == (["produce"], State.OPEN)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"12345", b"67890", b"+"], {A0: 3})


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_outputs_without_a_transaction_are_not_held(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, outputs_held=9)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.did()
    bench.write()
    assert bench.did() == ["produce"]


def test_outputs_that_were_held_are_not_in_the_transaction_after_a_failure() -> None:
    bench = Bench(outputs_held=9)
    bench.write(b"1", 1)
    bench.log.inject("send_offsets", error=Abortable("no more ours"), applied=False)
    bench.fail(bench.failed_commit())
    assert not bench.session.busy
    bench.write(b"2", 1)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"2"], {A0: 1})


def test_outputs_that_were_held_survive_a_new_producer() -> None:
    bench = Bench(outputs_held=9)
    bench.write(b"1", 1)
    bench.log.inject("commit_transaction", late=6.0)
    bench.session.commit()
    bench.write(b"2", 2)
    bench.session.commit()
    assert bench.did() == [
        "send_offsets", "produce", "commit_transaction",
        "hold_seat", "init_transactions", "send_offsets", "produce", "commit_transaction",
    ]  # fmt: skip
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


def test_at_most_once_positions_of_the_whole_intake_are_saved_before_its_functions_run() -> None:
    bench = Bench(AMO)
    bench.session.prepare(Intake([(Read("a", 3), Read("b", 4)), (Read("a", 4), Read("b", 7))]))
    assert (bench.saved, bench.session.busy) == ({A0: 5, B0: 8}, False)


def test_at_most_once_positions_of_what_was_not_run_are_given_back() -> None:
    intake = Intake([(Read("a", 3), Read("b", 4)), (Read("a", 4), Read("b", 7))])
    bench = Bench(AMO)
    bench.session.prepare(intake)
    bench.session.give_back(intake, {A0: 4, B0: 5, TopicPartition("a", 1): 9})
    assert bench.saved == {A0: 4, B0: 5}


def test_at_most_once_output_that_fails_is_lost_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AMO)
    bench.log.inject("produce", error=Abortable("writing to x: refused"), applied=False)
    bench.write(b"1", 1)
    bench.session.commit()
    bench.write(b"2", 2)
    bench.session.commit()
    assert (bench.visible, bench.counters.commits) == ([b"2"], 2)
    assert "p: at most once: an output is lost: writing to x: refused" in caplog.text


def test_at_most_once_output_that_the_broker_did_not_take_is_written_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(AMO)
    written = plan(b"1").outputs
    bench.log.inject("produce", error=Abortable("writing to x: no", written), applied=False)
    bench.write(b"1", 1)
    bench.fail(bench.failed_commit())
    bench.session.commit()
    assert (bench.visible, bench.counters.commits, bench.counters.aborts) == ([b"1"], 1, 1)
    assert "lost" not in caplog.text


def test_at_most_once_outputs_that_no_client_has_taken_are_written_by_the_next_producer() -> None:
    bench = Bench(AMO)
    bench.session._outputs += plan(b"1").outputs
    bench.session._since = bench.clock()
    bench.fail(Fatal("the client failed"))
    bench.session.commit()
    assert bench.visible == [b"1"]


def test_at_most_once_fatal_errors_in_a_row_end_the_worker_with_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    bench = Bench(AMO)
    for _ in range(ABORTS_MAX - 1):
        bench.session._renewals = 0
        bench.fail(Fatal("no such group"))
    with pytest.raises(Fatal) as caught:
        bench.session.recover(Fatal("no such group"))
    assert str(caught.value) == "g.p.0: 40 attempts in a row failed, at last by: no such group"


def test_abort_that_is_refused_at_the_end_hides_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.write()
    bench.log.inject("abort_transaction", error=NotAuthorized("no right"), applied=False)
    bench.session.end()
    assert "p: its transaction is left to its time-out: no right" in caplog.text


def test_at_least_once_output_that_fails_keeps_the_positions_back() -> None:
    bench = Bench(ALO)
    bench.log.inject("produce", error=Abortable("writing to x: refused"), applied=False)
    bench.write(b"1", 1)
    bench.fail(bench.failed_commit())
    assert (bench.visible, bench.saved, bench.counters.as_dict()["aborts"]) == ([], {}, 1)


def test_at_least_once_positions_that_fail_are_done_again_with_the_outputs() -> None:
    bench = Bench(ALO)
    bench.log.inject("commit", error=OutcomeUnknown("no answer"), applied=False)
    bench.write()
    bench.fail(bench.failed_commit())
    bench.write()
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"1"], {A0: 1})


@pytest.mark.parametrize("outputs_held", [0, 9])
def test_commit_is_due_after_the_interval_or_at_the_record_limit(outputs_held: int) -> None:
    bench, due = Bench(outputs_held=outputs_held), list[bool]()

    def look() -> None:
        due.append(bench.session.due)

    look()
    bench.write()
    bench.clock.advance(0.0995)
    look()
    bench.clock.advance(0.001)
    look()
    bench.session.commit()
    look()
    bench.session.write(Plan(records=99_999))
    look()
    bench.session.write(Plan(records=1))
    look()
    bench.session.revoke()
    look()
    assert due == [False, False, True, False, False, True, False]


def test_commit_of_nothing_does_nothing() -> None:
    bench = Bench()
    bench.session.commit()
    assert (bench.did(), bench.counters.commits) == ([], 0)


def test_positions_that_were_only_reached_are_committed_alone_or_with_the_outputs() -> None:
    bench = Bench()
    bench.session.reached({A0: 5})
    bench.session.commit()
    assert (bench.saved, bench.did()) == ({A0: 5}, ["send_offsets", "commit_transaction"])
    bench.write(position=6)
    bench.session.reached({B0: 7})
    bench.session.commit()
    assert bench.saved == {A0: 6, B0: 7}


def test_positions_that_were_reached_are_committed_by_a_new_producer_too() -> None:
    bench = Bench()
    bench.write()
    bench.log.inject("commit_transaction", late=6.0)
    bench.session.commit()
    bench.session.reached({B0: 7})
    bench.session.commit()
    assert bench.saved == {A0: 1, B0: 7}


def test_plan_without_outputs_commits_its_positions() -> None:
    bench = Bench()
    bench.session.write(Plan(positions={A0: 4}, records=4))
    bench.session.commit()
    assert (bench.visible, bench.saved, bench.did()) == ([], {A0: 4}, ["send_offsets", "commit_transaction"])


def test_dead_letters_are_logged_with_their_processor(caplog: pytest.LogCaptureFixture) -> None:
    bench, failure = Bench(), Failure((Read("a", 7),), b"\x01" * 16, LookupError("no such plane"))
    bench.session.write(Plan(failures=[failure], records=1))
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", f"p: dead letter: LookupError: no such plane (reading a[0]@7, delivery {'01' * 16})")
    ]


def test_counters_count_what_was_written_committed_and_given_up() -> None:
    bench = Bench()
    bench.write()
    bench.session.commit()
    bench.write()
    bench.fail(Abortable("why"))
    assert bench.counters.as_dict() == {
        "records_in": 2, "records_out": 2, "dead_letters": 0, "commits": 1, "aborts": 1,
    }  # fmt: skip


# Truth 1: an outcome that is unknown.


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_outcome_unknown_is_never_aborted_and_the_committed_positions_decide(applied: bool) -> None:
    bench = Bench()
    bench.write(b"1", 1)
    bench.log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=applied)
    bench.fail(bench.failed_commit())
    assert bench.did() == ["produce", "send_offsets", "commit_transaction", "hold_seat", "init_transactions"]
    committed = bench.session.committed([A0])
    assert (committed, bench.visible) == (({A0: 1}, [b"1"]) if applied else ({}, []))
    for position in range(committed.get(A0, 0), 2):
        bench.write(str(position + 1).encode(), position + 1)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_outcome_unknown_is_not_aborted_when_the_session_ends_either(applied: bool) -> None:
    bench = Bench()
    bench.write()
    bench.log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=applied)
    bench.failed_commit()
    bench.session.end()
    assert bench.did() == ["produce", "send_offsets", "commit_transaction"]


# Truth 2: a request that may come late.


@pytest.mark.parametrize("request_name", ["produce", "send_offsets", "commit_transaction"])
def test_tainted_producer_is_replaced_before_the_next_begin(
    request_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    bench.log.inject(request_name, late=6.0)
    bench.write(b"1", 1)
    bench.session.commit()
    bench.did()
    bench.write(b"2", 2)
    assert bench.did() == ["hold_seat", "init_transactions", "produce"]
    assert "g.p.0: a request timed out or lost its connection: a new producer is needed" in caplog.text
    bench.clock.advance(6.5)  # the late request arrives while the next transaction is open
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1", b"2"], {A0: 2})


def test_producer_tainted_by_an_abort_is_replaced_before_the_next_begin() -> None:
    bench = Bench()
    bench.write(b"1", 1)
    bench.log.inject("abort_transaction", late=6.0)
    bench.fail(Abortable("why"))
    bench.write(b"2", 2)
    bench.clock.advance(6.5)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"2"], {A0: 2})


def test_producer_tainted_while_choices_are_journaled_is_replaced_before_the_outputs() -> None:
    bench = Bench(alts=True)
    bench.log.inject("commit_transaction", late=6.0)
    bench.session.prepare(choosing(("a", 0)))
    bench.write()
    bench.clock.advance(6.5)
    assert (bench.visible, bench.saved) == ([], {A0: 0})


def test_producer_that_is_not_tainted_is_kept() -> None:
    bench = Bench()
    for position in (1, 2, 3):
        bench.write(position=position)
        bench.session.commit()
    assert "init_transactions" not in bench.did()


# Truth 3: positions.


def test_positions_are_those_processed_never_those_fetched() -> None:
    bench = Bench()
    for number in range(10):
        bench.log.append("a", str(number).encode(), partition=0)
    assert len(bench.consumer.consume(100, 0.0)) == 10
    bench.write(position=3)
    bench.session.commit()
    assert bench.saved == {A0: 3}


def test_positions_that_were_aborted_are_not_in_the_next_commit() -> None:
    bench = Bench()
    bench.session.write(Plan(positions={A0: 5, B0: 9}, records=2))
    bench.fail(Abortable("why"))
    bench.write(position=1)
    bench.session.commit()
    assert bench.saved == {A0: 1}


# Truth 4: the group.


def test_commit_of_a_member_that_missed_a_rebalance_is_an_abort() -> None:
    bench = Bench()
    bench.write()
    other = bench.log.consumer("g.p", "g.p.1")
    other.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.subscribe(
        ["a", "b"], lambda _: None, lambda: None, lambda: None
    )  # its process was replaced: a new member
    other.consume(1, 0.0)
    error = bench.failed_commit()
    assert type(error) is Abortable
    bench.fail(error)
    assert (bench.visible, bench.saved) == ([], {})


def test_choices_of_a_member_that_missed_a_rebalance_are_not_journaled() -> None:
    """They would overwrite those of the worker that has the partitions now."""
    bench = Bench(alts=True)
    other = bench.log.consumer("g.p", "g.p.1")
    other.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.subscribe(
        ["a", "b"], lambda _: None, lambda: None, lambda: None
    )  # its process was replaced: a new member
    other.consume(1, 0.0)
    with pytest.raises(Abortable):
        bench.session.prepare(choosing(("a", 3)))
    assert (choices_of(bench), bench.saved) == ([], {})


def test_group_metadata_of_a_commit_is_that_of_its_moment() -> None:
    bench = Bench()
    other = bench.log.consumer("g.p", "g.p.1")
    other.subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.consume(1, 0.0)
    bench.write()
    bench.session.commit()  # with the generation that it has joined since the session began
    assert bench.saved == {A0: 1}


def test_rebalance_dooms_the_open_transaction() -> None:
    bench = Bench()
    bench.write()
    bench.log.consumer("g.p", "g.p.1").subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.consumer.consume(1, 0.0)
    with pytest.raises(Abortable, match="partitions were taken away in mid-transaction") as caught:
        bench.session.check()
    bench.fail(caught.value)
    bench.session.check()
    assert ("abort_transaction" in bench.did(), bench.visible, bench.saved) == (True, [], {})


def test_rebalance_dooms_outputs_that_are_held() -> None:
    bench = Bench(outputs_held=9)
    bench.write()
    bench.session.revoke()
    with pytest.raises(Abortable, match="partitions were taken away in mid-transaction"):
        bench.session.check()
    bench.fail(bench.failed_commit())
    bench.session.commit()
    assert (bench.did(), bench.visible, bench.counters.aborts) == ([], [], 1)


def test_rebalance_between_transactions_dooms_nothing_and_forgets_positions_of_lost_partitions() -> None:
    bench = Bench()
    bench.session.reached({A0: 5})
    bench.session.revoke()
    bench.session.check()
    assert bench.session.state is State.READY
    bench.session.commit()
    assert (bench.saved, bench.did()) == ({}, [])


# Truth 6: one delivery that fails.


def test_delivery_failure_of_one_record_aborts_the_whole_transaction() -> None:
    bench = Bench()
    bench.log.inject("produce", nth=2, error=Abortable("writing to x[0]: refused"), applied=False)
    for position in (1, 2, 3):
        bench.write(str(position).encode(), position)
    error = bench.failed_commit()
    assert str(error) == "writing to x[0]: refused"
    bench.fail(error)
    assert (bench.visible, bench.saved) == ([], {})


# Truth 7: fenced, or timed out.


def replace(bench: Bench, *, seat: bool) -> None:
    """Another worker of the slot fences this one; with `seat`, it sits down in the group before."""
    if seat:
        bench.log.consumer("g.p", "g.p.0").subscribe(["a", "b"], lambda _: None, lambda: None, lambda: None)
    bench.log.producer(PROMISES[EO], Durability.COMMITTED, "g.p.0").init_transactions()
    bench.did()


def test_fenced_with_the_seat_held_renews_and_without_it_ends() -> None:
    for seat in (False, True):
        bench = Bench()
        bench.write()
        replace(bench, seat=seat)
        error = bench.failed_commit()
        assert type(error) is Fenced
        if seat:
            with pytest.raises(Replaced, match=r"another worker has taken the slot of g\.p\.0 over"):
                bench.session.recover(error)
            assert bench.session.state is State.FATAL
            bench.session.end()
            assert not {"init_transactions", "abort_transaction"} & set(bench.did())
        else:
            bench.fail(error)
            assert "init_transactions" in bench.did()
            bench.write()
            bench.session.commit()
            assert bench.visible == [b"1"]


def test_fenced_by_the_brokers_time_out_is_told_from_a_fencing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.write()
    bench.clock.advance(11.0)
    bench.fail(bench.failed_commit())
    assert (
        "g.p.0: the broker timed the transaction out after 11.0 s: its steps or the broker's answers took longer "
        "than transaction_timeout_ms" in caplog.text
    )
    bench.write()
    replace(bench, seat=False)
    bench.fail(bench.failed_commit())
    assert "g.p.0: fenced, but the seat is still ours: taking the transactional id back" in caplog.text
    assert caplog.text.count("timed the transaction out") == 1


@pytest.mark.parametrize("answer", [Retriable, Abortable, BrokerUnavailable])
def test_fenced_without_an_answer_about_the_seat_does_not_take_the_id_back(answer: type[Exception]) -> None:
    bench = Bench()
    bench.write()
    replace(bench, seat=False)
    error = bench.failed_commit()
    bench.did()
    for nth in range(1, SEAT_ASKED_MAX + 1):
        bench.log.inject("hold_seat", nth=nth, error=answer("no answer"), applied=False)
    with pytest.raises(Fatal, match="its group does not say whether it still holds the slot"):
        bench.session.recover(error)
    assert (bench.session.state, bench.did()) == (State.FATAL, ["hold_seat"] * SEAT_ASKED_MAX)


# Truth 8: a producer that the broker has forgotten.


@pytest.mark.parametrize("request_name", ["send_offsets", "produce"])
def test_producer_that_was_forgotten_is_made_anew(request_name: str) -> None:
    bench = Bench()
    bench.log.inject(request_name, error=OutcomeUnknown("unknown producer id"), applied=False)
    bench.write(b"1", 1)
    bench.fail(bench.failed_commit())
    bench.write(b"1", 1)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


# Truth 9: nothing comes late, nothing takes for ever.


@pytest.mark.parametrize("guarantee", [EO, ALO])
def test_abort_leaves_nothing_that_could_be_sent_late(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=5.0)
    bench.write(b"given up", 1)
    bench.fail(Abortable("why"))
    bench.clock.advance(6.0)
    bench.write(b"2", 2)
    bench.session.commit()
    assert (bench.visible, bench.log.records("x", "read_uncommitted")) == ([b"2"], bench.log.records("x"))


@pytest.mark.parametrize("error", ERRORS)
def test_abort_failure_renews(error: type[LogError]) -> None:
    bench = Bench()
    bench.write(b"given up", 1)
    bench.log.inject("abort_transaction", error=error("no"), applied=False)
    bench.fail(Abortable("why"))
    asked = bench.did()
    assert asked[:3] == ["produce", "abort_transaction", "hold_seat"]
    assert asked[3:] == [*["hold_seat"] * (11 if error is Fenced else 0), "init_transactions"]
    bench.write(b"2", 2)
    bench.session.commit()
    assert bench.visible == [b"2"]


@pytest.mark.parametrize("request_name", ["send_offsets", "init_transactions", "commit"])
def test_retriable_is_called_again_then_given_up(request_name: str) -> None:
    bench = Bench(ALO if request_name == "commit" else EO)

    def call() -> None:
        if request_name == "init_transactions":
            bench.session.start()
        else:
            bench.session.commit()

    for times in (CALLS_MAX - 1, CALLS_MAX):
        bench.slept.clear()
        if request_name != "init_transactions":
            bench.write()
        for nth in range(1, times + 1):
            bench.log.inject(request_name, nth=nth, error=Retriable("busy"), applied=False)
        if times < CALLS_MAX:
            call()
            assert bench.slept[-4:] == [0.1, 0.2, 0.4, 0.8]
        elif request_name == "init_transactions":
            call()  # a producer that cannot be started is followed by another
        else:
            with pytest.raises(Retriable, match="busy"):
                call()
            assert bench.session.recover(Retriable("busy")) is (request_name != "commit")
            assert bench.session.pending is (request_name == "commit")
            assert bench.session.busy is bench.session.pending


def test_retriable_in_vain_aborts_the_transaction() -> None:
    bench = Bench()
    bench.write(b"1", 1)
    for nth in range(1, CALLS_MAX + 1):
        bench.log.inject("send_offsets", nth=nth, error=Retriable("busy"), applied=False)
    bench.fail(bench.failed_commit())
    assert bench.did() == ["produce", *["send_offsets"] * CALLS_MAX, "abort_transaction"]
    assert (bench.visible, bench.saved) == ([], {})


def test_transactions_given_up_in_a_row_are_warned_of_until_one_is_committed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench()
    for commits in (False, False, False, False, True, False):
        bench.write()
        if commits:
            bench.session.commit()
        else:
            bench.fail(Abortable("no"))
    levels = [record.levelname for record in caplog.records if "going back" in record.getMessage()]
    assert levels == ["INFO", "INFO", "WARNING", "WARNING", "INFO"]


def test_other_errors_of_a_call_are_not_repeated() -> None:
    bench = Bench()
    bench.write()
    bench.log.inject("send_offsets", error=Abortable("no"), applied=False)
    bench.failed_commit()
    assert (bench.did(), bench.slept) == (["produce", "send_offsets"], [])


@pytest.mark.parametrize("error", [Retriable, Abortable, OutcomeUnknown, Fenced])
def test_renewals_are_capped(error: type[LogError]) -> None:
    bench = Bench()
    bench.write()
    bench.session.commit()
    for nth in range(1, 1_000):
        bench.log.inject("init_transactions", nth=nth, error=error("no"), applied=False)
    with pytest.raises(Fatal, match=f"g.p.0: {RENEWALS_MAX} producers in a row could not commit, at last by: "):
        bench.session.recover(OutcomeUnknown("no answer"))
    assert bench.session.state is State.FATAL
    calls = CALLS_MAX if error is Retriable else 1
    assert bench.did().count("init_transactions") == (RENEWALS_MAX + 1) * calls
    pauses = [seconds for seconds in bench.slept if error is not Retriable]
    assert pauses == [min(0.1 * 2**i, 5.0) for i in range(1, RENEWALS_MAX + 1)][: len(pauses)]


def test_renewals_of_transactions_that_fail_each_time_are_capped() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(RENEWALS_MAX):
        bench.write()
        bench.fail(OutcomeUnknown("no answer"))
    bench.write()
    with pytest.raises(Fatal):
        bench.session.recover(OutcomeUnknown("no answer"))
    assert (bench.counters.aborts, bench.did().count("init_transactions")) == (RENEWALS_MAX + 1, RENEWALS_MAX)


def test_renewals_are_counted_from_the_last_commit() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(3):
        for _ in range(RENEWALS_MAX):
            bench.write()
            bench.fail(OutcomeUnknown("no answer"))
        bench.write()
        bench.session.commit()
        bench.slept.clear()
        bench.write()
        bench.fail(OutcomeUnknown("no answer"))
        assert bench.slept == []  # the first one after a commit is at once
        bench.write()
        bench.session.commit()


def test_renewal_that_no_broker_answers_ends_the_session() -> None:
    bench = Bench()
    bench.log.inject("init_transactions", error=BrokerUnavailable("nobody there"), applied=False)
    with pytest.raises(BrokerUnavailable):
        bench.session.recover(OutcomeUnknown("no answer"))


def test_renewed_producer_aborts_what_the_old_one_left_open() -> None:
    bench = Bench()
    bench.write(b"left open", 1)
    bench.fail(OutcomeUnknown("no answer"))
    assert bench.log.ends([TopicPartition("x", 0)]) == {TopicPartition("x", 0): 2}  # the record and an abort marker
    assert bench.visible == []


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_producers_without_transactions_are_replaced_without_fencing(guarantee: Guarantee) -> None:
    bench = Bench(guarantee)
    bench.write()
    bench.fail(Abortable("why"))
    assert "init_transactions" not in bench.log.requests
    bench.write(b"2", 2)
    bench.session.commit()
    assert bench.visible == [b"1", b"2"]


# Without transactions: what waits, and what must not be lost.


def stall(bench: Bench, times: int = 1, error: LogError | None = None) -> None:
    """Lets the producer's next flushes fail, with nothing sent."""
    producer: Any = bench.session._producer
    flush, left = producer.flush, [error or Retriable("the broker makes no progress")] * times

    def flushing() -> None:
        if left:
            raise left.pop()
        flush()

    producer.flush = flushing


def refuse_writes(bench: Bench, times: int) -> None:
    """Lets the producer's queue be full for the next writes."""
    producer: Any = bench.session._producer
    write, left = producer.write, [Retriable("the producer's queue stayed full")] * times

    def writing(outputs: list[Output]) -> None:
        if left:
            raise left.pop()
        write(outputs)

    producer.write = writing


def unanswered(bench: Bench, *, applied: bool = False, times: int = CALLS_MAX) -> None:
    """Lets the next plain commits find no answer; five are one call's attempts."""
    for nth in range(1, times + 1):
        bench.log.inject("commit", nth=nth, error=Retriable("no answer"), applied=applied)


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_flush_without_progress_leaves_everything_as_it_is_and_the_commit_goes_on(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    stall(bench, 2)
    producer = bench.session._producer
    for _ in range(2):
        error = bench.failed_commit()
        assert (type(error), bench.session.pending, bench.session.recover(error)) == (Retriable, True, False)
        assert (bench.session.state, bench.session.steps, bench.visible) == (State.OPEN, 1, [])
    bench.session.commit()
    assert (bench.visible, bench.saved, bench.counters.as_dict()["aborts"]) == ([b"1"], {A0: 1}, 0)
    assert (bench.session.pending, bench.session.busy, bench.session._producer) == (False, False, producer)


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_least_once_positions_without_an_answer_are_saved_by_the_next_commit(applied: bool) -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    unanswered(bench, applied=applied)
    error = bench.failed_commit()
    assert (bench.session.pending, bench.session.recover(error), bench.session.steps) == (True, False, 1)
    bench.session.commit()
    assert (bench.visible, bench.saved, bench.session.pending) == ([b"1"], {A0: 1}, False)
    assert bench.did() == ["produce", *["commit"] * (CALLS_MAX + 1)]


@pytest.mark.parametrize("applied", [True, False], ids=["carried out", "lost"])
def test_at_most_once_intake_whose_positions_found_no_answer_is_prepared_again(applied: bool) -> None:
    bench, intake = Bench(AMO), Intake([(Read("a", 3), Read("b", 4))])
    bench.write(b"before", 3)
    unanswered(bench, applied=applied)
    with pytest.raises(Retriable, match="no answer") as caught:
        bench.session.prepare(intake)
    assert (bench.session.pending, bench.session.recover(caught.value)) == (True, False)
    assert (bench.session.state, bench.session.steps) == (State.OPEN, 1)
    bench.session.prepare(intake)
    bench.session.commit()
    assert (bench.saved, bench.visible, bench.session.pending) == ({A0: 4, B0: 5}, [b"before"], False)


def test_at_most_once_positions_that_were_reached_are_not_put_back_behind_those_saved_since() -> None:
    bench = Bench(AMO)
    bench.session.reached({A0: 3, B0: 9})
    bench.session.prepare(Intake([(Read("a", 3), Read("b", 9))]))
    bench.session.commit()
    assert (bench.saved, bench.did()) == ({A0: 4, B0: 10}, ["commit"])


def test_commit_that_waits_is_said_and_waited_for_and_never_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(ALO, session_timeout=1e6)
    bench.write()
    stall(bench, ABORTS_MAX + 5)
    for _ in range(ABORTS_MAX + 5):
        assert not bench.session.recover(bench.failed_commit())
    assert [r.levelname for r in caplog.records] == ["WARNING"] * (ABORTS_MAX + 5 - ABORTS_WARNED + 1)
    assert caplog.messages[0] == "p: the broker makes no progress; asking again"
    assert (bench.slept[:3], bench.slept[-1]) == ([0.05, 0.1, 0.2], WAIT_MAX)
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


def test_commit_that_waits_and_then_fails_otherwise_goes_back() -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    stall(bench)
    bench.session.recover(bench.failed_commit())
    bench.log.inject("commit", error=Abortable("no member any more"), applied=False)
    error = bench.failed_commit()
    assert (type(error), bench.session.recover(error)) == (Abortable, True)
    assert (bench.session.state, bench.session.busy, bench.saved) == (State.READY, False, {})


@pytest.mark.parametrize("error", [Retriable, Abortable])
def test_failure_with_nothing_open_keeps_a_producer_without_transactions(error: type[LogError]) -> None:
    bench = Bench(ALO)
    producer = bench.session._producer
    assert bench.session.recover(error("reading the committed positions"))
    assert (bench.session.state, bench.session._producer) == (State.READY, producer)


def test_outputs_that_are_delivered_apart_are_never_under_way_together() -> None:
    bench = Bench(AMO, linger=9.0)
    apart = deque([*plan(b"1").outputs, *plan(b"2").outputs])
    seen = []
    while apart:
        bench.session.deliver(apart)
        seen.append((len(apart), bench.visible))
    bench.session.commit()
    assert [*seen, bench.visible] == [(1, []), (0, [b"1"]), [b"1", b"2"]]


@pytest.mark.parametrize("fails", ["flush", "write"])
def test_output_that_is_delivered_apart_stays_until_its_producer_has_taken_it(fails: str) -> None:
    bench = Bench(AMO, linger=9.0)
    apart = deque([*plan(b"1").outputs, *plan(b"2").outputs])
    stall(bench, 1) if fails == "flush" else refuse_writes(bench, 1)
    with pytest.raises(Retriable):
        bench.session.deliver(apart)
    assert (len(apart), bench.session.pending) == (2, True)
    while apart:
        bench.session.deliver(apart)
    bench.session.commit()
    assert bench.visible == [b"1", b"2"]


def test_output_that_failed_before_others_are_delivered_apart_is_lost_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(AMO, linger=9.0)
    apart = deque(plan(b"1").outputs)
    stall(bench, 1, Abortable("writing to x: refused"))
    bench.session.deliver(apart)
    bench.session.commit()
    assert bench.visible == [b"1"]
    assert "p: at most once: an output is lost: writing to x: refused" in caplog.text


# Without transactions: partitions that are taken away.


def test_exactly_once_settle_commits_nothing_and_dooms_what_is_open() -> None:
    bench = Bench()
    bench.write()
    bench.session.settle()
    assert (bench.did(), bench.session.state, bench.session.busy) == (["produce"], State.ABORTABLE, True)


@pytest.mark.parametrize("guarantee", [ALO, AMO])
def test_settle_commits_what_is_open_where_that_takes_no_transaction(guarantee: Guarantee) -> None:
    bench = Bench(guarantee, linger=9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.session.settle()
    assert (bench.visible, bench.saved, bench.session.busy) == ([b"1"], {A0: 1}, False)


def test_at_least_once_settle_that_fails_lets_go_of_positions_and_outputs(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(ALO)
    bench.write(b"1", 1)
    unanswered(bench)
    bench.session.settle()
    assert "p: partitions are taken away before a commit: no answer" in caplog.text
    assert (bench.session.state, bench.session.steps) == (State.ABORTABLE, 0)
    with pytest.raises(Abortable, match="partitions were taken away in mid-transaction") as caught:
        bench.session.check()
    bench.fail(caught.value)
    bench.session.commit()
    assert (bench.saved, bench.session.pending) == ({}, False)


def test_at_most_once_outputs_that_could_not_be_flushed_are_delivered_after_the_revocation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their positions are saved: nobody else would write them."""
    bench = Bench(AMO, linger=9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.session.reached({B0: 9})
    bench.write(b"1", 1)
    stall(bench)
    bench.session.settle()
    assert "p: partitions are taken away before a commit: the broker makes no progress" in caplog.text
    assert (bench.session.state, bench.session.pending, bench.visible) == (State.OPEN, True, [])
    bench.session.check()
    bench.session.commit()
    assert (bench.visible, bench.saved, bench.session.busy) == ([b"1"], {A0: 1}, False)


def test_at_most_once_lost_partitions_leave_the_outputs_to_be_delivered() -> None:
    bench = Bench(AMO, linger=9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    bench.session.revoke()
    bench.session.check()
    bench.session.commit()
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


@pytest.mark.parametrize("error", [Retriable, Abortable])
def test_at_most_once_outputs_survive_the_way_back(error: type[LogError]) -> None:
    bench = Bench(AMO, linger=9.0)
    bench.session.prepare(Intake([Read("a", 0)]))
    bench.write(b"1", 1)
    assert bench.session.recover(error("reading"))
    assert bench.session.state is State.READY
    bench.write(b"2", 2)
    bench.session.commit()
    assert (bench.visible, bench.counters.as_dict()["aborts"]) == ([b"1", b"2"], 1)


@pytest.mark.parametrize("error", [OutcomeUnknown, Fenced, Fatal])
@pytest.mark.parametrize("open_", [True, False])
def test_at_most_once_producer_of_no_further_use_is_replaced_and_what_it_had_is_said(
    open_: bool, error: type[LogError], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(AMO, linger=9.0)
    before = bench.session._producer
    if open_:
        bench.write(b"1", 1)
    assert bench.session.recover(error("of no use"))
    assert ("p: at most once: outputs may be lost: of no use" in caplog.text) is open_
    assert (bench.session.state, bench.session.busy) == (State.READY, False)
    assert bench.session._producer is not before
    bench.write(b"2", 2)
    bench.session.commit()
    assert bench.visible == [b"2"]


# Attempts in vain.


def test_transactions_given_up_in_a_row_wait_ever_longer_and_end_the_session() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(ABORTS_MAX - 1):
        bench.write()
        bench.fail(Abortable("refused"))
    doubled = [min(0.05 * 2**number, WAIT_MAX) for number in range(ABORTS_MAX - ABORTS_WARNED)]
    assert bench.slept == [round(seconds, 3) for seconds in doubled]
    bench.write()
    with pytest.raises(Fatal) as caught:
        bench.session.recover(Abortable("refused"))
    assert str(caught.value) == "g.p.0: 40 attempts in a row failed, at last by: refused"
    assert bench.session.state is State.FATAL


def test_transactions_given_up_are_counted_from_the_last_commit() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(3):
        for _ in range(ABORTS_MAX - 1):
            bench.write()
            bench.fail(Abortable("refused"))
        bench.write()
        bench.session.commit()
        bench.slept.clear()


def test_broker_that_is_away_is_waited_for_without_end() -> None:
    bench = Bench(session_timeout=1e6)
    for _ in range(ABORTS_MAX + 5):
        bench.write()
        bench.fail(Retriable("no broker answers"))
    bench.write()
    bench.session.commit()
    assert bench.visible == [b"1"]


def test_search_for_a_refused_output_is_no_attempt_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(session_timeout=1e6)
    for _ in range(ABORTS_MAX + 5):
        bench.write()
        bench.fail(Refused(RecordRefused("topic 'x' refuses a record")))
    assert (bench.slept, bench.counters.as_dict()["aborts"]) == ([], ABORTS_MAX + 5)
    assert {(r.levelname, r.getMessage()) for r in caplog.records} == {
        ("INFO", "p: topic 'x' refuses a record; looking for the record")
    }


def test_transaction_that_took_too_long_is_told_from_other_failures_until_the_next_one() -> None:
    bench, seen = Bench(), list[bool]()
    for seconds in (11.0, 0.0, 11.0):
        bench.write()
        bench.clock.advance(seconds)
        bench.fail(bench.failed_commit() if seconds else Abortable("no"))
        seen.append(bench.session.timed_out)
    bench.write()
    replace(bench, seat=False)  # fenced at once
    bench.fail(bench.failed_commit())
    assert [*seen, bench.session.timed_out] == [True, False, True, False]


# Where a group begins.

BEGUN: list[Output] = [("x", b"a begun partition", b"key", 0, None, None, 0, None)]


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("starts", [{A0: 7}, {}], ids=["with positions", "of positions there are"])
def test_begin_commits_positions_and_records_before_anything_is_read(guarantee: Guarantee, starts: Positions) -> None:
    bench = Bench(guarantee, linger=9.0)
    bench.session.begin(starts, [*BEGUN])
    positions, commit = (["send_offsets"], ["commit_transaction"]) if guarantee is EO else (["commit"], [])
    assert bench.did() == [*(positions if starts else []), "produce", *commit]
    assert (bench.visible, bench.saved) == ([b"a begun partition"], starts)
    assert (bench.session.state, bench.session.busy) == (State.READY, False)


@pytest.mark.parametrize("request_name", ["send_offsets", "produce", "commit_transaction"])
def test_exactly_once_begin_that_fails_has_a_way_back_and_leaves_nothing(request_name: str) -> None:
    bench = Bench()
    bench.log.inject(request_name, error=Abortable("why"), applied=False)
    with pytest.raises(Abortable) as caught:
        bench.session.begin({A0: 7}, [*BEGUN])
    bench.fail(caught.value)
    assert (bench.visible, bench.saved) == ([], {})


# The choices of alts.


def choices_of(bench: Bench) -> list[tuple[int, Choices]]:
    assert bench.journal is not None
    return [(m.partition(), Choices.decode(m.value() or b"")) for m in bench.log.records(bench.journal)]


def test_alts_choices_are_committed_before_the_functions_run() -> None:
    bench = Bench(alts=True)
    bench.session.prepare(choosing(("a", 3), ("b", 1)))
    assert choices_of(bench) == [(0, Choices((("a", 3), ("b", 1))))]
    assert (bench.session.state, bench.saved) == (State.READY, {A0: 3, B0: 1})
    assert bench.did() == ["send_offsets", "produce", "commit_transaction"]
    assert [m.headers() for m in bench.log.records(bench.journal or "")] == [[("ks-type", b"alts-choices")]]
    assert bench.session.journaled(0) == Choices((("a", 3), ("b", 1)))
    assert bench.session.journaled(1) == Choices()


def test_alts_choices_are_known_before_the_log_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of a committed record may come to its partition after the answer to the commit."""
    bench = Bench(alts=True)
    bench.session.prepare(choosing(("a", 3)))
    monkeypatch.setattr(bench.log, "newest", lambda partition: None)
    bench.fail(Abortable("why"))
    assert bench.session.journaled(0) == Choices((("a", 3),))


def test_alts_choices_of_a_task_that_was_elsewhere_meanwhile_are_read_anew() -> None:
    bench = Bench(alts=True)
    bench.session.prepare(choosing(("a", 3)))
    bench.session.revoke()
    other = bench.log.producer(PROMISES[EO], Durability.COMMITTED, "g.p.1")
    other.init_transactions()
    other.begin_transaction()
    newer = Choices((("b", 9),))
    other.write([(bench.journal or "", newer.encode(), None, 0, None, None, 0, None)])
    other.commit_transaction()
    assert bench.session.journaled(0) == newer


def test_alts_choices_do_not_commit_before_what_was_open() -> None:
    bench = Bench(alts=True)
    bench.write()
    bench.session.prepare(choosing(("a", 1)))
    opened, journaled = ["produce", "send_offsets"], ["send_offsets", "produce"]
    assert bench.did() == [*opened, "commit_transaction", *journaled, "commit_transaction"]
    assert (bench.visible, bench.saved) == ([b"1"], {A0: 1})


def test_alts_choices_of_several_partitions_are_journaled_in_one_transaction() -> None:
    bench = Bench(alts=True)
    both = Intake([], choosing(("a", 1)).choices | choosing(("b", 2), partition=1).choices)
    bench.session.prepare(both)
    assert choices_of(bench) == [(0, Choices((("a", 1),))), (1, Choices((("b", 2),)))]
    assert bench.did() == ["send_offsets", "produce", "produce", "commit_transaction"]


def test_alts_that_follows_saved_choices_journals_nothing() -> None:
    bench = Bench(alts=True)
    bench.write()
    bench.session.prepare(Intake([Read("a", 0)]))
    assert (bench.did(), bench.session.busy) == (["produce"], True)


def test_alts_choices_that_cannot_be_journaled_stop_the_step() -> None:
    bench = Bench(alts=True)
    bench.log.inject("commit_transaction", error=OutcomeUnknown("no answer"), applied=True)
    with pytest.raises(OutcomeUnknown) as caught:
        bench.session.prepare(choosing(("a", 3)))
    bench.fail(caught.value)
    assert bench.session.journaled(0) == Choices((("a", 3),))  # it was carried out: what follows has to follow it


def test_processors_without_a_journal_have_no_choices() -> None:
    for bench in (Bench(), Bench(ALO, alts=True)):
        bench.session.prepare(choosing(("a", 3)))
        assert (bench.session.journaled(0), bench.did()) == (Choices(), [])


def test_journal_is_truncated_now_and_then_but_for_the_newest_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "JOURNAL_TRUNCATED_EVERY", 3)
    bench = Bench(alts=True)
    kept = []
    for number in range(7):
        bench.session.prepare(choosing(("a", number)))
        kept.append([choices.runs[0][1] for _, choices in choices_of(bench)])
    assert kept == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [5, 6]]


def test_journal_that_was_emptied_by_others_is_not_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "JOURNAL_TRUNCATED_EVERY", 1)
    bench = Bench(alts=True)
    monkeypatch.setattr(bench.log, "newest", lambda partition: None)
    bench.session.prepare(choosing(("a", 0)))
    assert (len(choices_of(bench)), "truncate" in bench.did()) == (1, False)


# The end.


def end(bench: Bench) -> Sequence[str]:
    bench.did()
    bench.session.end()
    bench.session.end()
    return bench.did()


def test_end_aborts_what_is_open_and_nothing_else() -> None:
    bench = Bench()
    assert end(bench) == []
    bench = Bench()
    bench.write()
    assert end(bench) == ["abort_transaction"]
    bench = Bench()
    bench.write()
    bench.session.revoke()
    assert end(bench) == ["abort_transaction"]
    bench = Bench(ALO, linger=5.0)
    bench.write()
    assert end(bench) == []
    bench.clock.advance(6.0)
    assert bench.visible == []


def test_end_with_a_failing_abort_lets_go_all_the_same() -> None:
    bench = Bench()
    bench.write()
    bench.log.inject("abort_transaction", error=OutcomeUnknown("no answer"), applied=False)
    assert end(bench) == ["abort_transaction"]


def test_at_most_once_end_delivers_what_is_queued_once_the_broker_goes_on() -> None:
    bench = Bench(AMO, linger=60.0)
    bench.write(b"1", 1)
    stall(bench, 3)
    assert (end(bench), bench.visible, bench.slept) == (["produce"], [b"1"], [0.1] * 3)


def test_at_most_once_end_writes_what_is_held_too() -> None:
    """The producer's queue was full."""
    bench = Bench(AMO, linger=60.0)
    refuse_writes(bench, 1)
    with pytest.raises(Retriable):
        bench.write(b"1", 1)
    assert (end(bench), bench.visible) == (["produce"], [b"1"])


def test_at_most_once_end_delivers_what_is_to_be_delivered_apart_though_nothing_else_is() -> None:
    """As after a new producer, which has taken nothing yet."""
    bench = Bench(AMO)
    apart = deque([*plan(b"1").outputs, *plan(b"2").outputs])
    bench.session.end(apart)
    assert (list(apart), bench.visible) == ([], [b"1", b"2"])


@pytest.mark.parametrize(
    ("error", "slept"),
    [(Retriable("the broker is away"), END_SECONDS), (Abortable("refused"), 0.0), (Fatal("of no use"), 0.0)],
)
def test_at_most_once_end_gives_up_within_its_bound_and_says_what_is_lost(
    error: LogError, slept: float, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(AMO, linger=1e6)
    bench.write(b"1", 1)
    stall(bench, 1_000, error)
    assert (end(bench), bench.visible) == ([], [])
    assert sum(bench.slept) == pytest.approx(slept, abs=0.2)
    assert f"p: at most once: outputs are lost: {error}" in caplog.text


def test_at_most_once_end_with_nothing_open_asks_nobody() -> None:
    bench = Bench(AMO)
    stall(bench)
    assert (end(bench), bench.slept) == ([], [])


def test_end_before_the_start_does_nothing() -> None:
    bench = Bench()
    fresh = bench.session_of(bench.consumer)
    fresh.end()
    assert bench.did() == []


def test_committed_positions_of_no_partition_ask_nobody() -> None:
    bench = Bench()
    assert (bench.session.committed([]), bench.did()) == ({}, [])


def test_positions_that_stay_pending_are_named_every_30_seconds_with_what_holds_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    pending = Pending("g.p", (A0,), TopicPartition("__consumer_offsets", 7), (), "no rights")
    monkeypatch.setattr(bench.log, "pending", lambda group, partitions: pending)

    def warned_after(seconds: float) -> list[str]:
        caplog.clear()
        bench.clock.advance(seconds)
        bench.log.inject("committed", error=Retriable("pending in a transaction"), applied=False)
        with pytest.raises(Retriable, match="pending in a transaction"):
            bench.session.committed([A0, B0])
        return caplog.messages[:]

    named = [f"g.p.0: committed positions have not been readable for 30 s: {pending.describe(0)}"]
    assert [warned_after(seconds) for seconds in (0, 29.9, 0.1, 29.9, 0.1)] == [[], [], named, [], named]
    assert bench.session.committed([A0, B0]) == {}, "they are readable"
    assert [warned_after(seconds) for seconds in (29.9, 0.2)] == [[], []], "it counts from here"
    monkeypatch.setattr(bench.log, "pending", lambda *_: raising(BrokerUnavailable("no broker")))
    unknown = "which transaction holds them is not known: no broker"
    assert warned_after(30) == [f"g.p.0: committed positions have not been readable for 30 s: {unknown}"]


def test_start_fences_the_worker_before_and_waits_for_its_positions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    zombie = Bench()
    zombie.write(b"zombie", 5)
    zombie.session.reached({B0: 9})
    zombie.log.inject("commit_transaction", error=KeyboardInterrupt(), applied=False)  # dies with its positions pending
    with pytest.raises(KeyboardInterrupt):
        zombie.session.commit()
    heir = zombie.session_of(zombie.consumer)
    with pytest.raises(Retriable, match="pending in a transaction"):
        heir.committed([A0])
    heir.start()
    assert heir.committed([A0, B0]) == {}
    assert type(zombie.failed_commit()) is Fenced
    assert zombie.visible == []
