"""engine/slot.py: what a slot reports of its loops while they turn, stand still or end, on a log in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kstreams_py.config import Settings
from kstreams_py.engine import slot as module
from kstreams_py.engine.slot import Slot
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.watch import LOOK_MAX
from kstreams_py.errors import BrokerUnavailable, DrainTimeout
from kstreams_py.metrics import Report
from kstreams_py.testing import ManualClock, MemoryLog, MemoryRegistry
from kstreams_py.topology import Graph

WAIT = 60.0


class Gate:
    """Lets a function pass so many times; knows when it waits."""

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
    """Something of a log in memory, for the threads of a slot: one call at a time."""

    def __init__(self, inner: Any, lock: Any = None) -> None:
        self._inner = inner
        self._lock = lock or threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                answer = found(*(each._inner if isinstance(each, Locked) else each for each in arguments), **options)
            if name == "consume" and not answer:
                time.sleep(0.001)  # as who waits for a record: a loop that spins takes the time of the others
            return Locked(answer, self._lock) if name in ("producer", "consumer") else answer

        return call


class Run:
    """A slot that runs in a thread; each report takes a second, of a clock that nothing else moves."""

    def __init__(self, graph: Graph, log: Any, settings: Settings, clock: ManualClock) -> None:
        self.clock = clock
        self.slot = Slot(graph, 0, Surroundings(log, MemoryRegistry(), settings))
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
        """The newest reports, after so many more."""
        for _ in range(count):
            self._asked.release()
            assert self._given.acquire(timeout=WAIT)
        return self.reports

    def until(self, condition: Callable[[dict[str, Report]], object]) -> None:
        """Takes reports until one is so."""
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
    """Starts a slot of a graph with a processor for each function, on a topic of its own with so many records."""
    started: list[tuple[Run, Sequence[Any]]] = []

    def make(*functions: Any, records: int = 1, log: Any = None, **settings: Any) -> Run:
        log, graph = log or Locked(MemoryLog()), Graph("g", errors="dead")
        for i, function in enumerate(functions):
            graph.map(graph.topic(f"in{i}"), to=graph.topic(f"out{i}"), id=f"p{i}")(function)
        log.create_topics([(name, 1, -1, {}) for name in graph.topics])
        for i in range(len(functions)):
            for number in range(records):
                log.append(f"in{i}", b"%d" % number)
        started.append((run := Run(graph, log, Settings(**settings), clock), functions))
        return run

    yield make
    for run, functions in started:
        for function in functions:
            if isinstance(function, Gate):
                function.let_pass(1_000)
        run.end()


def still(run: Run, count: int = 1) -> list[float]:
    """For how long the first processor stood still, in each of the next reports.

    The first of them may have been made already when what it should show had not happened yet.
    """
    return [run.next()["p0"].still_seconds for _ in range(count)]


def await_still(run: Run) -> None:
    """Returns with the first report in which the first processor stands still."""
    run.until(lambda reports: reports["p0"].still_seconds == 1.0)


def test_function_that_does_not_return_stands_still_and_its_line_is_named(start: MakeRun) -> None:
    gate = Gate()
    run = start(gate, lambda value: value)
    gate.await_call()
    await_still(run)
    assert still(run, 2) == [2.0, 3.0]
    line = Gate.__call__.__code__.co_firstlineno + 2
    assert run.reports["p0"].place == f"__call__ (test_slot.py, line {line})"
    run.until(lambda reports: reports["p1"].still_seconds == 0.0)
    assert run.reports["p0"].still_seconds >= 3.0
    gate.let_pass()
    run.until(lambda reports: (reports["p0"].still_seconds, reports["p0"].place) == (0.0, ""))


def test_functions_that_return_one_after_the_other_in_a_long_turn_do_not_stand_still(start: MakeRun) -> None:
    gate = Gate()
    run = start(gate, records=10)
    for _ in range(10):
        gate.await_call()
        assert still(run, 5)[-1] in (3.0, 4.0)
        gate.let_pass()


def test_call_to_the_broker_that_does_not_return_stands_still_and_is_named(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = Gate(), Locked(MemoryLog())
    producer = log.producer
    monkeypatch.setattr(log, "producer", lambda *arguments: producer(*gate(arguments)), raising=False)
    run = start(lambda value: value, log=log)
    gate.await_call()
    await_still(run)
    assert still(run, 2) == [2.0, 3.0]
    assert run.reports["p0"].place.startswith("_renew (transaction.py, line ")
    gate.let_pass(1_000)


def test_time_that_the_process_was_stopped_is_not_time_that_a_loop_stood_still(
    start: MakeRun, clock: ManualClock
) -> None:
    gate = Gate()
    run = start(gate)
    gate.await_call()
    await_still(run)
    clock.advance(3_600.0)
    assert still(run, 3)[-1] == 1.0 + LOOK_MAX + 2.0


def test_slot_reports_at_once_so_that_its_silence_can_be_told_from_its_start(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_INTERVAL", 3_600.0)
    assert list(start(lambda value: value).next()) == ["p0"]


def test_loop_that_has_ended_does_not_stand_still_while_others_drain(start: MakeRun) -> None:
    gate = Gate()
    run = start(lambda value: value, gate, drain_timeout_ms=3_600_000)
    gate.await_call()
    run.until(lambda reports: reports["p1"].still_seconds == 1.0)
    run.slot.stop()
    run.until(lambda reports: (reports["p0"].still_seconds, reports["p1"].still_seconds >= 18.0) == (0.0, True))


def test_report_that_raises_ends_the_loops_before_it_is_raised(start: MakeRun) -> None:
    run = start(lambda value: value, drain_timeout_ms=3_600_000)

    def broken() -> None:
        raise OSError("the terminal is gone")

    run.on_report = broken
    run.join()
    assert repr(run.failure) == repr(OSError("the terminal is gone"))
    assert [thread.name for thread in threading.enumerate() if thread.name == "p0"] == []


def of_lag() -> bool:
    """Whether it is for the reports that the ends are asked for; workers ask where they begin."""
    return threading.current_thread().name == "lag"


def test_broker_that_does_not_answer_for_the_ends_holds_up_neither_reports_nor_the_end(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, log = Gate(), Locked(MemoryLog())
    ends = log.ends
    monkeypatch.setattr(
        log, "ends", lambda partitions: ends(gate(partitions) if of_lag() else partitions), raising=False
    )
    run = start(lambda value: value, log=log)
    gate.await_call()
    assert run.next(3)["p0"].lag is None
    run.end()
    assert run.failure is None
    gate.let_pass(1_000)


def test_lag_is_unknown_while_the_ends_are_and_known_again_after(
    start: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Locked(MemoryLog())
    ends, answers = log.ends, threading.Event()

    def asked(partitions: Any) -> Any:
        if of_lag() and not answers.is_set():
            raise BrokerUnavailable("no broker")
        return ends(partitions)

    monkeypatch.setattr(log, "ends", asked, raising=False)
    run = start(lambda value: value, log=log)
    for known in (False, True, False):
        answers.set() if known else answers.clear()
        run.until(lambda reports, lag=0 if known else None: reports["p0"].lag == lag)


def test_loop_that_outlasts_the_drain_is_named(start: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    run = start(gate, lambda value: value, drain_timeout_ms=3_000)
    gate.await_call()
    begun = time.monotonic()

    def clock() -> float:
        """Stands still until the other loop has ended, however busy the machine is."""
        return begun if any(thread.name == "p1" for thread in threading.enumerate()) else time.monotonic()

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    run.end()
    assert repr(run.failure) == repr(DrainTimeout("p0 did not end within drain_timeout_ms (3 s)"))


@pytest.mark.parametrize(("minutes", "level"), [(1_439, logging.WARNING), (1_440, logging.INFO), (None, None)])
def test_retention_of_positions_is_said_at_the_start(
    start: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    minutes: int | None,
    level: int | None,
) -> None:
    caplog.set_level(logging.INFO, "kstreams_py")
    log = Locked(MemoryLog())
    monkeypatch.setattr(log, "offsets_retention_minutes", lambda: minutes, raising=False)
    start(lambda value: value, log=log).next()
    found = [(r.levelno, r.getMessage()) for r in caplog.records if "offsets.retention" in r.getMessage()]
    text = (
        f"offsets.retention.minutes is {minutes}: a job that is stopped for longer loses its committed positions, "
        "and ends with status 5 until they are set"
    )
    assert found == ([] if minutes is None else [(level, text)])
