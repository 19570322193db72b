"""The state that a worker reports, by what happens to it, and the reasons for which its producer is replaced."""

from __future__ import annotations

import pytest

from kstreams_py.errors import Abortable, ClientError, Fenced, OutcomeUnknown, Retriable
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.metrics import RENEWALS, WorkerState
from kstreams_py.processing.commits import session
from tests.unit.guarantee import Bench
from tests.unit.plant import Plant

JOINING, RUNNING, SPARE, AWAY = (WorkerState.JOINING, WorkerState.RUNNING, WorkerState.SPARE, WorkerState.BROKER_AWAY)


def test_worker_joins_until_it_has_read_the_committed_offsets_and_runs_then() -> None:
    plant = Plant()
    worker = plant.worker()
    seen = [worker.state]
    worker.start()
    seen.append(worker.state)
    worker.run_turn()
    assert [*seen, worker.state, worker.counters.rebalances] == [JOINING, JOINING, RUNNING, 1]


def test_worker_of_a_group_with_more_members_than_partitions_is_a_spare() -> None:
    plant = Plant(partitions=1)
    workers = [plant.worker(0), plant.worker(1)]
    for worker in workers:
        worker.start()
    for _ in range(10):
        for worker in workers:
            worker.run_turn()
    assert sorted(worker.state for worker in workers) == [RUNNING, SPARE]


def test_worker_that_loses_its_membership_joins_again() -> None:
    plant = Plant()
    worker = plant.started()
    worker.run_turn()
    worker._on_lost()
    worker._follow_group()
    assert (worker.state, worker.counters.rebalances) == (JOINING, 2)


def test_worker_whose_attempt_has_no_answer_waits_for_the_broker_until_it_is_back() -> None:
    plant = Plant()
    plant.feed("a", "1")
    worker = plant.started()
    worker.run_turn()
    for nth in range(1, 6):
        plant.cluster.faults.inject("send_offsets", nth=nth, error=Retriable("no answer"), applied=False)
        plant.cluster.faults.inject("committed", nth=nth, error=Retriable("no answer"), applied=False)
    seen = []
    for _ in range(30):
        worker.run_turn()
        seen.append(worker.state)
    assert seen[0] is AWAY
    assert (seen[-1], plant.out()) == (RUNNING, ["1"])


def test_worker_whose_attempt_was_refused_does_not_wait_for_the_broker() -> None:
    plant = Plant()
    plant.feed("a", "1")
    worker = plant.started()
    plant.cluster.faults.inject("send_offsets", error=Abortable("refused"), applied=False)
    states = set()
    for _ in range(10):
        worker.run_turn()
        states.add(worker.state)
    assert (states, plant.out(), worker.counters.aborts) == ({RUNNING}, ["1"], 1)


# Why a producer is replaced.


@pytest.mark.parametrize(
    ("error", "reason"), [(OutcomeUnknown, "unknown_outcome"), (Fenced, "fenced"), (Abortable, None), (Retriable, None)]
)
def test_renewal_is_counted_with_its_reason_and_an_abort_is_none(error: type[ClientError], reason: str | None) -> None:
    bench = Bench()
    bench.write()
    bench.recover(error("why"))
    assert bench.counters.renewals == ({reason: 1} if reason else {})


def test_renewal_after_a_transaction_that_the_broker_timed_out_has_its_own_reason() -> None:
    bench = Bench()
    bench.write()
    bench.guarantee._send()
    bench.clock.advance(60.0)
    bench.recover(Fenced("why"))
    assert bench.counters.renewals == {"timed_out": 1}


def test_renewal_after_an_abort_that_failed_has_its_own_reason() -> None:
    bench = Bench()
    bench.write()
    bench.guarantee._send()
    bench.cluster.faults.inject("abort_transaction", error=Abortable("no"), applied=False)
    bench.recover(Abortable("why"))
    assert bench.counters.renewals == {"abort_failed": 1}


def test_renewal_because_of_a_late_request_has_its_own_reason() -> None:
    bench = Bench()
    bench.cluster.faults.inject("send_offsets", late=6.0)
    for offset in (1, 2):
        bench.write(b"%d" % offset, offset)
        bench.guarantee.commit()
    assert bench.counters.renewals == {"late_request": 1}


def test_renewal_without_transactions_is_a_failure() -> None:
    bench = Bench(Guarantee.AT_LEAST_ONCE)
    bench.write()
    bench.recover(OutcomeUnknown("why"))
    assert bench.counters.renewals == {"failure": 1}


def test_every_reason_of_the_session_is_in_the_table() -> None:
    assert {*session._REASONS.values(), "timed_out", "abort_failed", "late_request", "failure"} == set(RENEWALS)


def test_open_transaction_has_an_age_and_a_ready_session_has_none() -> None:
    bench = Bench()
    assert bench.session.open_seconds is None
    bench.session.open()
    bench.clock.advance(1.5)
    assert bench.session.open_seconds == pytest.approx(1.5)
    bench.guarantee.commit()
    assert bench.session.open_seconds is None
