"""running/slot.py: what a slot reports of its loops while they turn, stand still or end, on a cluster in memory."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable, DrainTimeout, FunctionExited, Replaced
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import WorkerState
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.processing.worker import Worker
from kstreams_py.records import TopicPartition
from kstreams_py.running import slot as module
from kstreams_py.running.reports import Report
from kstreams_py.running.slot import Slot
from kstreams_py.running.watch import LOOK_MAX
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import ManualClock, MemoryCluster, MemoryRegistry
from kstreams_py.testing.memory_source import MemorySource

WAIT = 60.0


class Gate:
    """A function that blocks in each call until `let_pass`."""

    def __init__(self) -> None:
        self.waits = threading.Semaphore(0)
        self._passes = threading.Semaphore(0)

    def __call__(self, value: Any) -> Any:
        self.waits.release()
        assert self._passes.acquire(timeout=WAIT)
        return value

    def let_pass(self, times: int = 1) -> None:
        self._passes.release(times)

    def await_call(self) -> None:
        assert self.waits.acquire(timeout=WAIT)


class Locked:
    """A cluster in memory, or a client of it, that the threads of a slot call one at a time."""

    def __init__(self, inner: Any, lock: Any = None) -> None:
        self._inner = inner
        self._lock = lock or threading.RLock()

    def named(self, name: str) -> Any:
        return Locked(self._inner.named(name), self._lock) if name else self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                answer = found(*(each._inner if isinstance(each, Locked) else each for each in arguments), **options)
            if name == "consume" and not answer:
                time.sleep(0.001)  # as a real consume waits: a loop that spins would slow the others
            return Locked(answer, self._lock) if name in ("producer", "consumer") else answer

        return call


class Run:
    """A slot that runs in a thread; each report advances the manual clock by one second, and nothing else does."""

    def __init__(self, graph: Graph, cluster: Any, settings: Settings, clock: ManualClock) -> None:
        self.clock = clock
        self.slot = Slot(graph, 0, Environment(cluster, MemoryRegistry(), settings))
        self.failure: BaseException | None = None
        self.reports: dict[str, Report] = {}
        self.on_report: Callable[[], None] = lambda: None
        self._asked, self._given = threading.Semaphore(0), threading.Semaphore(0)
        self._free = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.slot.run(self._report)
        except BaseException as error:
            self.failure = error

    def _report(self, reports: Sequence[Report]) -> None:
        if not self._free:
            assert self._asked.acquire(timeout=WAIT)
        self.reports = {report.processor: report for report in reports}
        self.clock.advance(1.0)
        self.on_report()
        self._given.release()

    def next(self, count: int = 1) -> dict[str, Report]:
        """Awaits `count` more reports; returns the newest."""
        for _ in range(count):
            self._asked.release()
            assert self._given.acquire(timeout=WAIT)
        return self.reports

    def until(self, condition: Callable[[dict[str, Report]], object]) -> None:
        """Awaits reports until the condition holds."""
        for _ in range(5_000):
            if condition(self.next()):
                return
        raise AssertionError(self.reports)

    def end(self) -> None:
        self.slot.stop()
        self.join()

    def join(self) -> None:
        self._free = True
        self._asked.release()
        self._thread.join(WAIT)
        assert not self._thread.is_alive()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(module, "REPORT_INTERVAL", 0.001)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    return clock


MakeRun = Callable[..., Run]


@pytest.fixture
def start(clock: ManualClock) -> Iterator[MakeRun]:
    """Starts a slot of a graph with one processor per function; each reads its own topic of `records` records.

    With the cluster `west`, the first one writes there.
    """
    started: list[tuple[Run, Sequence[Any]]] = []

    def make(
        *functions: Any, records: int = 1, cluster: Any = None, west: Any = None, retry: Any = None, **settings: Any
    ) -> Run:
        cluster, graph = cluster or Locked(MemoryCluster()), Graph("g", errors=None if west else "dead", retry=retry)
        for i, function in enumerate(functions):
            to = graph.topic(f"out{i}", cluster="west" if west and not i else "")
            graph.map(graph.topic(f"in{i}"), to=to, id=f"p{i}")(function)
        for topic in graph.topics.values():
            (west if topic.cluster else cluster).create_topics([(topic.name, 1, -1, {})])
        for i in range(len(functions)):
            for number in range(records):
                cluster.append(f"in{i}", b"%d" % number)
        started.append((run := Run(graph, cluster, Settings(**settings), clock), functions))
        return run

    yield make
    for run, functions in started:
        for function in functions:
            if isinstance(function, Gate):
                function.let_pass(1_000)
        run.end()


def read_still_seconds(run: Run, count: int = 1) -> list[float]:
    """For how long the first processor stood still, in each of the next `count` reports.

    The first of them may be older than the event that it should show.
    """
    return [run.next()["p0"].still_seconds for _ in range(count)]


def await_still(run: Run) -> None:
    """Returns with the first report in which the first processor stands still."""
    run.until(lambda reports: reports["p0"].still_seconds == 1.0)


def test_function_that_does_not_return_is_reported_as_still_with_its_line(start: MakeRun) -> None:
    gate = Gate()
    run = start(gate, lambda value: value)
    gate.await_call()
    await_still(run)
    assert read_still_seconds(run, 2) == [2.0, 3.0]
    line = Gate.__call__.__code__.co_firstlineno + 2
    assert run.reports["p0"].place == f"__call__ (test_slot.py, line {line})"
    run.until(lambda reports: reports["p1"].still_seconds == 0.0)
    assert run.reports["p0"].still_seconds >= 3.0
    gate.let_pass()
    run.until(lambda reports: (reports["p0"].still_seconds, reports["p0"].place) == (0.0, ""))


@pytest.mark.parametrize("concurrency", [1, 2])
def test_task_whose_call_does_not_return_is_reported_as_still_and_no_other(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr("kstreams_py.running.jobs.time", SimpleNamespace(monotonic=clock))
    gate, graph = Gate(), Graph("g")
    parsed = graph.channel("parsed")
    graph.map(graph.source("rows", MemorySource([7], ends=False)), to=parsed, id="parse")(lambda value: value)
    graph.sink(parsed, id="p0", concurrency=concurrency)(gate)
    run = Run(graph, MemoryCluster(), Settings(), clock)
    gate.await_call()
    await_still(run)
    assert read_still_seconds(run, 2) == [2.0, 3.0]
    line = Gate.__call__.__code__.co_firstlineno + 2
    assert run.reports["p0"].place == f"__call__ (test_slot.py, line {line})"
    # a report comes as soon as it is asked for: the job's thread may not have turned since the one before
    run.until(lambda reports: reports["parse"].still_seconds == 0.0)
    assert run.reports["p0"].still_seconds >= 3.0
    pending = run.reports["parse"].sources["rows"]
    assert (pending.pending, pending.key, pending.tasks) == (1, "0", ("p0",))
    gate.let_pass()
    run.until(lambda reports: reports["parse"].measures["inputs:done:rows"] and reports["p0"].still_seconds == 0.0)
    run.end()
    assert run.failure is None


def test_long_turn_whose_functions_return_is_not_reported_as_still(start: MakeRun) -> None:
    gate = Gate()
    run = start(gate, records=10)
    for _ in range(10):
        gate.await_call()
        assert read_still_seconds(run, 5)[-1] in (3.0, 4.0)
        gate.let_pass()


def test_broker_call_that_does_not_return_is_reported_as_still_with_its_line(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, cluster = Gate(), Locked(MemoryCluster())
    producer = cluster.producer
    monkeypatch.setattr(cluster, "producer", lambda *arguments: producer(*gate(arguments)), raising=False)
    run = start(lambda value: value, cluster=cluster)
    gate.await_call()
    await_still(run)
    assert read_still_seconds(run, 2) == [2.0, 3.0]
    assert run.reports["p0"].place.startswith("renew (session.py, line ")
    gate.let_pass(1_000)


def test_time_in_which_the_process_was_stopped_does_not_count_as_still(start: MakeRun, clock: ManualClock) -> None:
    gate = Gate()
    run = start(gate)
    gate.await_call()
    await_still(run)
    clock.advance(3_600.0)
    assert read_still_seconds(run, 3)[-1] == 1.0 + LOOK_MAX + 2.0


def test_slot_makes_its_first_report_at_once(start: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that reports late would look like one whose process does not report."""
    monkeypatch.setattr(module, "REPORT_INTERVAL", 3_600.0)
    assert list(start(lambda value: value).next()) == ["p0"]


def test_loop_that_has_ended_is_not_reported_as_still_while_others_drain(start: MakeRun) -> None:
    gate = Gate()
    run = start(lambda value: value, gate, drain_timeout_ms=3_600_000)
    gate.await_call()
    run.until(lambda reports: reports["p1"].still_seconds == 1.0)
    run.slot.stop()
    run.until(lambda reports: (reports["p0"].still_seconds, reports["p1"].still_seconds >= 18.0) == (0.0, True))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_in_a_loop_fails_the_slot_and_names_function_and_record(
    start: MakeRun, error: type[BaseException]
) -> None:
    def leave(_: Any) -> None:
        raise error

    run = start(leave)
    run.join()
    assert isinstance(run.failure, FunctionExited)
    assert re.match(rf"p0: leave ended by {error.__name__}: .*\(reading in0\[0\]@0, delivery ", str(run.failure))


def test_exit_of_code_that_is_no_functions_fails_the_slot(start: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "run", lambda _: sys.exit(0))
    run = start(lambda _: None)
    run.join()
    assert (type(run.failure), str(run.failure)) == (FunctionExited, "p0: its loop was ended by SystemExit(0)")


def test_report_that_raises_ends_the_loops_before_it_is_raised(start: MakeRun) -> None:
    run = start(lambda value: value, drain_timeout_ms=3_600_000)

    def broken() -> None:
        raise OSError("the terminal is gone")

    run.on_report = broken
    run.join()
    assert repr(run.failure) == repr(OSError("the terminal is gone"))
    assert [thread.name for thread in threading.enumerate() if thread.name == "p0"] == []


def is_lag_thread() -> bool:
    """Whether this thread reads ends for the lag of the reports; threads of workers read ends to find their start."""
    return threading.current_thread().name == "lag"


def test_broker_that_does_not_answer_for_the_lag_delays_neither_reports_nor_the_stop(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, cluster = Gate(), Locked(MemoryCluster())
    ends = cluster.ends
    monkeypatch.setattr(
        cluster, "ends", lambda partitions: ends(gate(partitions) if is_lag_thread() else partitions), raising=False
    )
    run = start(lambda value: value, cluster=cluster)
    gate.await_call()
    assert run.next(3)["p0"].lag is None
    run.end()
    assert run.failure is None
    gate.let_pass(1_000)


def test_lag_is_unknown_while_the_broker_is_unavailable_and_known_again_after(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Locked(MemoryCluster())
    ends, answers = cluster.ends, threading.Event()

    def asked(partitions: Any) -> Any:
        if is_lag_thread() and not answers.is_set():
            raise BrokerUnavailable("no broker")
        return ends(partitions)

    monkeypatch.setattr(cluster, "ends", asked, raising=False)
    run = start(lambda value: value, cluster=cluster)

    def await_lag(lag: int | None) -> None:
        run.until(lambda reports: reports["p0"].lag == lag)

    for known in (False, True, False):
        answers.set() if known else answers.clear()
        await_lag(0 if known else None)


def test_report_has_the_state_the_lags_and_the_measures_of_a_worker(start: MakeRun) -> None:
    def function(value: bytes) -> bytes:
        if value == b"1":
            raise LookupError("no such order")
        return value

    run = start(function, records=3)
    run.until(lambda reports: reports["p0"].counters["commits"] and reports["p0"].lag == 0)
    report = run.reports["p0"]
    assert (report.state, report.lags, report.open_seconds) == (
        WorkerState.RUNNING,
        {TopicPartition("in0", 0): 0},
        None,
    )
    assert sum(count for name, count in report.measures.items() if name.startswith("step_seconds:")) >= 3
    assert report.failure.startswith("LookupError: no such order (reading in0[0]@1, delivery ")


def test_state_is_broker_away_while_no_broker_answers_and_draining_from_the_stop_on(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, cluster = threading.Event(), Locked(MemoryCluster())
    ends = cluster.ends

    def ask(partitions: Any) -> Any:
        if away.is_set() and is_lag_thread():
            raise BrokerUnavailable("no broker answers")
        return ends(partitions)

    monkeypatch.setattr(cluster, "ends", ask, raising=False)
    gate = Gate()
    run = start(gate, cluster=cluster, drain_timeout_ms=3_600_000)
    gate.await_call()
    run.until(lambda reports: reports["p0"].state is WorkerState.RUNNING)
    away.set()
    run.until(lambda reports: reports["p0"].state is WorkerState.BROKER_AWAY)
    assert run.reports["p0"].lags == {TopicPartition("in0", 0): None}, "it holds the partition still"
    away.clear()
    run.until(lambda reports: reports["p0"].state is WorkerState.RUNNING)
    run.slot.stop()
    run.until(lambda reports: reports["p0"].state is WorkerState.DRAINING)


def test_state_is_replaced_once_another_worker_holds_the_slot(start: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, second = Gate(), Gate()

    def replaced(value: bytes) -> None:
        gate(value)
        raise Replaced("another worker holds the slot")

    monkeypatch.setattr(
        Worker, "run_turn", lambda worker: replaced(b"") if worker.processor.id == "p0" else second(b"")
    )
    run = start(gate, second, drain_timeout_ms=3_600_000)
    gate.await_call()
    gate.let_pass()
    run.until(lambda reports: reports["p0"].state is WorkerState.REPLACED)


def test_slot_without_partitions_asks_whether_the_broker_is_away(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, asked = Locked(MemoryCluster()), threading.Event()

    def ask(partitions: Any) -> Any:
        if is_lag_thread():
            assert list(partitions) == [TopicPartition("in0", 0)]
            asked.set()
        return {}

    monkeypatch.setattr(cluster, "ends", ask, raising=False)
    monkeypatch.setattr(Worker, "start", lambda worker: None)
    monkeypatch.setattr(Worker, "run_turn", lambda worker: time.sleep(0.001))
    run = start(lambda value: value, cluster=cluster)
    assert asked.wait(WAIT)
    assert (run.next()["p0"].state, run.reports["p0"].lags) == (WorkerState.JOINING, {})


def test_loop_that_outlasts_the_drain_is_named(start: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = start(gate, lambda value: value, drain_timeout_ms=3_000)
    gate.await_call()
    for _ in range(2):  # the second report is made after the call began
        run.next()
    now, begun = run.clock(), time.monotonic()

    def clock() -> float:
        """Does not advance before the other loop has ended, however busy the machine is."""
        waits = any(thread.name == "p1" for thread in threading.enumerate())
        return now if waits else now + time.monotonic() - begun

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    run.end()
    assert isinstance(run.failure, DrainTimeout)
    assert re.sub(r"line \d+", "line ...", str(run.failure)) == (
        "p0 (in __call__ (test_slot.py, line ...)) did not end within drain_timeout_ms (3 s): raise it above the "
        "longest call of a function"
    )


@pytest.mark.parametrize(("minutes", "warns"), [(1_439, True), (1_440, False), (None, False)])
def test_short_offsets_retention_is_warned_of_at_the_start(
    start: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    minutes: int | None,
    warns: bool,
) -> None:
    caplog.set_level(logging.INFO, "kstreams_py")
    cluster = Locked(MemoryCluster())
    monkeypatch.setattr(cluster, "offsets_retention_minutes", lambda: minutes, raising=False)
    start(lambda value: value, cluster=cluster).next()
    found = [(r.levelno, r.getMessage()) for r in caplog.records if "offsets.retention" in r.getMessage()]
    text = (
        f"offsets.retention.minutes is {minutes}: a job that is stopped for longer loses its committed offsets, "
        "and ends with status 5 until they are set"
    )
    assert found == ([(logging.WARNING, text)] if warns else [])


# Why.


def test_step_that_is_retried_is_reported_with_its_error_until_it_succeeds(start: MakeRun) -> None:
    refused = threading.Event()

    def ask(value: bytes) -> bytes:
        if not refused.is_set():
            raise ConnectionError("no prices today")
        return value

    retry = ks.Retry(attempts=1_000_000, backoff="1ms..1ms")
    run = start(ask, retry=retry)
    run.until(lambda reports: reports["p0"].state is WorkerState.RETRYING and reports["p0"].why)
    assert run.reports["p0"].why.startswith("partition 0 waits: ConnectionError: no prices today; attempt ")
    refused.set()
    run.until(lambda reports: (reports["p0"].state, reports["p0"].why) == (WorkerState.RUNNING, ""))


def test_ends_that_no_broker_answers_are_the_reason_of_its_state(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Locked(MemoryCluster())

    def refuse(_: Any) -> Any:
        raise BrokerUnavailable("no Kafka broker answers")

    run = start(lambda value: value, cluster=cluster)
    run.until(lambda reports: reports["p0"].state is WorkerState.RUNNING)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "ends", refuse, raising=False)
        run.until(lambda reports: reports["p0"].state is WorkerState.BROKER_AWAY)
        assert run.reports["p0"].why == "no Kafka broker answers"
    run.until(lambda reports: (reports["p0"].state, reports["p0"].why) == (WorkerState.RUNNING, ""))


def test_worker_whose_other_cluster_is_away_waits_for_it_and_does_not_stand_still(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Locked(MemoryCluster())
    west = cluster.named("west")
    monkeypatch.setattr(cluster, "named", lambda name: west if name else cluster, raising=False)
    gate, ends, away = Gate(), west.ends, threading.Event()

    def ask(partitions: Any) -> Any:
        if away.is_set() and threading.current_thread().name == "west":
            raise BrokerUnavailable("cluster 'west': no Kafka broker answers at west:9092")
        return ends(partitions)

    monkeypatch.setattr(west, "ends", ask, raising=False)
    run = start(gate, gate, cluster=cluster, west=west)
    gate.await_call()
    gate.await_call()
    run.until(lambda reports: min(each.still_seconds for each in reports.values()) > 60.0)
    away.set()
    run.until(lambda reports: reports["p0"].state is WorkerState.BROKER_AWAY)
    other = run.reports["p1"].still_seconds
    run.next(60)
    why = "cluster 'west': no Kafka broker answers at west:9092"
    assert {name: (each.state, each.why, each.still_seconds) for name, each in run.reports.items()} == {
        "p0": (WorkerState.BROKER_AWAY, why, 0.0),
        "p1": (WorkerState.RUNNING, "", other + 60.0),
    }
    assert f"outputs wait for cluster 'west': {why}" in {
        each.getMessage() for each in caplog.records if each.levelno == logging.WARNING
    }
    away.clear()
    run.until(lambda reports: reports["p0"].state is WorkerState.RUNNING)
    since = run.reports["p0"].still_seconds
    assert since < 60.0, "the outage does not count once it is over"
    run.until(lambda reports: reports["p0"].still_seconds > since)


def test_input_that_an_open_transaction_hides_is_reported_with_its_transactional_id(start: MakeRun) -> None:
    cluster = Locked(MemoryCluster(transaction_timeout=1e9))
    run = start(lambda value: value, lambda value: value, cluster=cluster)
    producer = cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), "billing")
    producer.init_transactions()
    producer.begin_transaction()
    producer.write([("in0", b"v", None, 0, None, None, 0, None)])
    producer.flush()
    run.until(lambda reports: "(billing)" in reports["p0"].hidden)
    assert run.reports["p0"].hidden.startswith("in0[0] is hidden by producer ")
    assert " (billing) from offset " in run.reports["p0"].hidden
    assert (run.reports["p1"].hidden_seconds, run.reports["p1"].hidden, run.reports["p0"].lag) == (0.0, "", 0)
    producer.commit_transaction()
    run.until(lambda reports: (reports["p0"].hidden_seconds, reports["p0"].hidden) == (0.0, ""))


def test_lags_are_known_while_the_transactions_that_hide_an_input_are_not_looked_up(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, hangs, released = Locked(MemoryCluster(transaction_timeout=1e9)), threading.Event(), threading.Event()

    def hang(_: Any) -> Any:
        hangs.set()
        released.wait()
        return ()

    monkeypatch.setattr(cluster, "open_transactions", hang, raising=False)
    run = start(lambda value: value, cluster=cluster)
    producer = cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), "billing")
    producer.init_transactions()
    producer.begin_transaction()
    producer.write([("in0", b"v", None, 0, None, None, 0, None)])
    producer.flush()
    run.until(lambda _: hangs.is_set())
    seconds = run.reports["p0"].hidden_seconds
    run.until(lambda reports: reports["p0"].hidden_seconds > seconds)
    producer.commit_transaction()
    run.until(lambda reports: (reports["p0"].hidden_seconds, reports["p0"].hidden) == (0.0, ""))
    released.set()
