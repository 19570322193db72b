"""running/start.py and running/wiring.py: how a run is put together, in the foreground and in a thread of a program."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kstreams_py
import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable, DrainTimeout, SettingsError, TopicError, WorkerStuck
from kstreams_py.graph.topology import Graph
from kstreams_py.running import start as module
from kstreams_py.running import wiring
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.reports import Report
from kstreams_py.running.slot import Slot
from kstreams_py.running.start import Running, run
from kstreams_py.running.status import RunStatus
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.wiring import (
    SIGNALS,
    SlotRun,
    SupervisedRun,
    awaited_slot,
    run_in_foreground,
    standby_command,
    worker_command,
)
from kstreams_py.settings import Settings
from kstreams_py.testing import MemoryCluster

WAIT = 30.0

STILL = "it is in f (g.py, line 1): its function does not return, or the broker does not answer"

THE_GRAPH = Graph("g")
THE_GRAPH.sink(THE_GRAPH.topic("a"), id="p")(lambda value: None)


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """A cluster in memory in place of a real one; the garbage collector is left alone."""
    cluster = MemoryCluster()
    monkeypatch.setattr(cluster, "close", lambda: None, raising=False)
    monkeypatch.setattr(wiring, "KafkaCluster", lambda settings: cluster)
    monkeypatch.setattr(wiring, "open_registry", lambda url, directory, client: None)
    monkeypatch.setattr(wiring, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    return cluster


# Command lines.


def test_worker_command_names_target_and_slot_and_no_setting() -> None:
    assert worker_command("flights:graph")(3) == [
        sys.executable, "-P", "-m", "kstreams_py", "run", "flights:graph", "--slot", "3",
    ]  # fmt: skip


def test_every_command_line_with_this_python_leaves_out_the_current_directory() -> None:
    package = Path(kstreams_py.__file__).parent
    lines = {line.strip() for path in package.rglob("*.py") for line in path.read_text("utf-8").splitlines()}
    started = [line for line in lines if "[sys.executable," in line]
    assert len(started) > 5
    assert [line for line in started if '[sys.executable, "-P", "-m", ' not in line] == []


def test_file_that_is_planted_in_the_current_directory_is_imported_by_no_worker(tmp_path: Path) -> None:
    for name in ("filelock", "json", "kstreams_py", "re", "redis", "typer"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'taken')!r}, 'a').write({name!r})\n")
    graph = tmp_path / "graphs" / "flights.py"
    graph.parent.mkdir()
    (graph.parent / "beside.py").write_text("name = 'flights'\n")
    graph.write_text(
        "import beside, kstreams_py as ks\ngraph = ks.Graph(beside.name)\n"
        "graph.map(graph.topic('a'), to=graph.topic('b'), id='p')(lambda value: value)\n"
    )
    command = [*standby_command(f"{graph}:graph")[:4], "graph", f"{graph}:graph"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (shown.returncode, "flights" in shown.stdout) == (0, True), shown
    assert not (tmp_path / "taken").exists()


def test_standby_reads_its_slot_and_ends_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("7\n"))
    assert (awaited_slot(), awaited_slot()) == (7, None)


# One slot in this process.


class FakeSlot:
    """A slot that makes one report for each entry of `still`, and ends."""

    observed: Mapping[str, Any]
    still: Sequence[float] = (0.0,)
    """For how long its processor stands still, in each report."""
    signals: Sequence[signal.Signals] = ()
    """The signals that its process receives after the last report."""

    def __init__(self, graph: Graph, number: int, environment: Any) -> None:
        FakeSlot.observed = {
            "graph": graph,
            "slot": number,
            "cluster": environment.cluster,
            "settings": environment.settings,
        }
        self.stopped, self.are_inputs_done, self.has_begun = False, False, True

    def stop(self) -> None:
        self.stopped = True

    def run(self, report: Callable[[Sequence[Report]], None], *, create: bool, partitions: int) -> None:
        FakeSlot.observed = {**FakeSlot.observed, "create": create, "partitions": partitions}
        for still in self.still:
            counters = {"commits": 1, "records_in": 1, "records_out": 0, "dead_letters": 0}
            report([Report("p", 0, counters, 0, still, "f (g.py, line 1)")])
        for signum in self.signals:
            signal.raise_signal(signum)
        FakeSlot.observed = {**FakeSlot.observed, "stopped": self.stopped, "on_ctrl_c": signal.getsignal(signal.SIGINT)}


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The pipe to a supervisor, both ends; a FakeSlot runs."""
    monkeypatch.setattr(wiring, "Slot", FakeSlot)
    ends = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(ends[1]))
    yield ends
    for fd in ends:
        os.close(fd)


def read_reported_processors(pipe: tuple[int, int]) -> list[str]:
    """The processors in the reports that the supervisor can read, and "drained" where the slot says that."""
    os.set_blocking(pipe[0], False)
    try:
        found = [json.loads(line) for line in os.read(pipe[0], 10_000).splitlines() if line]
        return [each.get("processor", "drained") for each in found]
    except BlockingIOError:
        return []


@pytest.mark.parametrize("how", ["alone", "supervised", "orphaned"])
def test_one_slot_runs_in_this_process_and_reports_to_its_supervisor_if_there_is_one(
    how: str,
    wired: MemoryCluster,
    pipe: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if how == "alone":
        monkeypatch.delenv(REPORT_FD)
    if how == "orphaned":
        reading, writing = os.pipe()
        os.close(reading)
        monkeypatch.setenv(REPORT_FD, str(writing))
    settings, before = Settings(), [signal.getsignal(signum) for signum in SIGNALS]
    monkeypatch.setattr(FakeSlot, "still", (0.0, 0.0))
    run_in_foreground(SlotRun(THE_GRAPH, 3, settings, create=True, partitions=7))
    assert {name: value for name, value in FakeSlot.observed.items() if name != "on_ctrl_c"} == {
        "graph": THE_GRAPH, "slot": 3, "cluster": wired, "settings": settings, "create": True, "partitions": 7,
        "stopped": how == "orphaned",
    }  # fmt: skip
    assert caplog.messages == ["the supervisor has ended: draining"] * (how == "orphaned")
    assert read_reported_processors(pipe) == (["p", "p", "drained"] if how == "supervised" else [])
    assert [signal.getsignal(signum) for signum in SIGNALS] == before
    if how == "orphaned":
        os.close(writing)


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_drains_a_slot_and_a_second_ctrl_c_ends_its_process(
    signum: signal.Signals, wired: MemoryCluster, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSlot, "signals", (signum,))
    run_in_foreground(SlotRun(THE_GRAPH, 3, Settings()))
    assert (FakeSlot.observed["stopped"], FakeSlot.observed["on_ctrl_c"]) == (True, signal.SIG_DFL)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "supervised"])
def test_slot_that_stands_still_warns_only_without_a_supervisor(
    alone: bool,
    wired: MemoryCluster,
    pipe: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(FakeSlot, "still", (0.0, 31.0, 32.0, 0.0))
    if alone:
        monkeypatch.delenv(REPORT_FD)
    run_in_foreground(SlotRun(THE_GRAPH, 3, Settings()))
    warnings = [
        f"slot 3: p has made no progress for 31 s: {STILL}; set stuck_timeout_ms to have such a worker restarted",
        "slot 3: p turns again, after 32 s",
    ]
    assert caplog.messages == (warnings if alone else [])


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "supervised"])
def test_slot_that_is_stuck_ends_itself_only_without_a_supervisor(
    alone: bool, wired: MemoryCluster, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSlot, "still", (0.0, 5.0))
    settings = Settings(stuck_timeout_ms=5_000)
    if not alone:
        run_in_foreground(SlotRun(THE_GRAPH, 3, settings))
        assert read_reported_processors(pipe) == ["p", "p", "drained"]
        return
    monkeypatch.delenv(REPORT_FD)
    message = f"slot 3: p has made no progress for 5 s: {STILL}; it ends after stuck_timeout_ms (5000): start it again"
    with pytest.raises(WorkerStuck, match=f"^{re.escape(message)}$") as caught:
        run_in_foreground(SlotRun(THE_GRAPH, 3, settings))
    assert caught.value.exit_status == 1


def test_slot_serves_its_reports_only_without_a_supervisor(
    wired: MemoryCluster, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[RunStatus] = []

    @contextmanager
    def observing(graph: Graph, settings: Settings) -> Iterator[Callable[[RunStatus], None]]:
        assert (graph, settings.http) == (THE_GRAPH, "127.0.0.1:0")
        yield noted.append

    monkeypatch.setattr(wiring, "observing", observing)
    settings = Settings(http="127.0.0.1:0")
    run_in_foreground(SlotRun(THE_GRAPH, 3, settings))
    assert (read_reported_processors(pipe), noted) == (["p", "drained"], [])
    monkeypatch.delenv(REPORT_FD)
    run_in_foreground(SlotRun(THE_GRAPH, 3, settings))
    (status,) = noted
    assert [(slot.number, slot.pid, slot.reports[0].processor) for slot in status.slots] == [(3, os.getpid(), "p")]


@pytest.mark.parametrize("slots", [1, 2])
def test_address_that_is_taken_ends_a_run_before_its_workers_start(
    slots: int, wired: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.delenv(REPORT_FD, raising=False)
    monkeypatch.setattr(wiring, "load", lambda target: THE_GRAPH)
    monkeypatch.setattr(Slot, "run", lambda *_, **__: started.append("slot"))
    monkeypatch.setattr(Supervisor, "run", lambda *_: started.append("supervisor"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(http=f"127.0.0.1:{taken.getsockname()[1]}")
        of_slots = SlotRun(THE_GRAPH, 0, settings) if slots == 1 else SupervisedRun("any:graph", [0, 1], settings)
        with pytest.raises(SettingsError, match=rf"^http: {settings.http} cannot be served: Address already in use: "):
            of_slots.run(lambda: started.append("started"))
    assert started == []


# Several slots in processes.


class FakeSupervisor:
    """Records its options and calls; its run raises two signals."""

    options: Mapping[str, Any]
    calls: Sequence[str]
    are_inputs_done = False

    def __init__(self, command: Callable[[int], Sequence[str]], slots: Sequence[int], **options: Any) -> None:
        FakeSupervisor.options = {"command": command(slots[0])[-2:], "slots": slots, **options}
        FakeSupervisor.calls = []

    def stop(self) -> None:
        FakeSupervisor.calls = [*FakeSupervisor.calls, "stop"]

    def kill(self) -> None:
        FakeSupervisor.calls = [*FakeSupervisor.calls, "kill"]

    def run(self, show: Callable[[Sequence[Report]], None], observe: object, output: object) -> None:
        show([])
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)


def test_several_slots_are_checked_once_and_stopped_by_signals(
    wired: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "Supervisor", FakeSupervisor)
    monkeypatch.setattr(wiring, "load", lambda target: THE_GRAPH)
    settings = Settings(drain_timeout_ms=2_000, stuck_timeout_ms=60_000)
    with pytest.raises(TopicError, match="missing topics: a: "):
        run_in_foreground(SupervisedRun("m:graph", [4, 5], settings))
    assert FakeSupervisor.calls == []
    run_in_foreground(SupervisedRun("m:graph", [4, 5], settings, create=True))
    assert FakeSupervisor.options == {
        "command": ["--slot", "4"], "slots": [4, 5], "drain_seconds": 7.0, "environment": settings.as_environment(),
        "standby": standby_command("m:graph"), "stuck_timeout_ms": 60_000,
    }  # fmt: skip
    assert (FakeSupervisor.calls, list(wired.topics(["a"]))) == (["stop", "kill"], ["a"])


@pytest.mark.parametrize("how", ["alone", "supervised", "several slots"])
def test_run_names_the_processors_without_a_dead_letter_topic_once(
    how: str,
    wired: MemoryCluster,
    pipe: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The slots of a supervisor, which says it for them, do not say it again."""
    caplog.set_level(logging.INFO, "kstreams_py")
    graph = Graph("shop", errors="shop.errors")
    for name in ("price", "store", "kept"):
        errors = "shop.errors" if name == "kept" else None
        errors = "shop.errors" if name == "kept" else None
        graph.sink(graph.topic(f"of.{name}"), id=name, errors=errors)(lambda value: None)
    if how == "alone":
        monkeypatch.delenv(REPORT_FD)
    if how == "several slots":
        monkeypatch.setattr(wiring, "Supervisor", FakeSupervisor)
        monkeypatch.setattr(wiring, "load", lambda target: graph)
        run_in_foreground(SupervisedRun("m:graph", [4, 5], Settings(), create=True))
    else:
        run_in_foreground(SlotRun(graph, 3, Settings()))
    text = (
        "without a dead-letter topic: price, store: a record for which a function raises is dropped with a warning: "
        'errors="shop.errors" keeps it'
    )
    found = [(r.levelno, r.getMessage()) for r in caplog.records if "dead-letter" in r.getMessage()]
    assert found == ([] if how == "supervised" else [(logging.INFO, text)])


# run() and start().


@pytest.mark.parametrize("background", [False, True], ids=["run", "start"])
def test_one_slot_runs_in_this_process_and_several_in_processes_of_their_own(
    background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def record(what: Any, slots: Any, settings: Settings, *, create: bool, background: bool) -> None:
        calls.append((what, slots, create, background))

    for name, fake in {"SlotRun": record, "SupervisedRun": record, "Running": lambda _: None}.items():
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "run_in_foreground", lambda _: None)
    begin: Any = module.start if background else module.run
    begin(THE_GRAPH)
    begin(THE_GRAPH, workers=2, settings=Settings(), create_topics=True)
    begin(THE_GRAPH, slots=[7])
    begin(THE_GRAPH, slots=range(4, 6))
    target = f"{__name__}:THE_GRAPH"
    assert calls == [
        (THE_GRAPH, 0, False, background), (target, [0, 1], True, background),
        (THE_GRAPH, 7, False, background), (target, [4, 5], False, background),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "slots"), [({"workers": 0}, []), ({"slots": [1, 1]}, [1, 1]), ({"slots": [0, -1]}, [0, -1])]
)
def test_invalid_slot_numbers_are_refused(options: dict[str, Any], slots: list[int]) -> None:
    with pytest.raises(SettingsError) as caught:
        run(THE_GRAPH, **options)
    assert str(caught.value) == (
        f"slots {slots}: give one or more numbers from 0 on, each once, or workers of 1 or more"
    )


class FakeRun:
    """A run that ends once it is stopped, with its failure; at once with `lasts=False` or `starts=False`."""

    def __init__(self, failure: BaseException | None = None, *, starts: bool = True, lasts: bool = True) -> None:
        self.failure, self.starts, self.lasts = failure, starts, lasts
        self.stopped, self.drained = threading.Event(), False

    def own_process(self) -> None:
        raise AssertionError("a run in a thread must not own the process")

    def stop(self) -> None:
        self.stopped.set()

    def run(self, on_start: Callable[[], None], /) -> None:
        if self.starts:
            on_start()
            assert not self.lasts or self.stopped.wait(WAIT)
            self.drained = True
        if self.failure is not None:
            raise self.failure


def test_running_graph_runs_until_it_is_stopped() -> None:
    fake = FakeRun()
    running = Running(fake)
    assert (running.wait(0.0), fake.drained) == (False, False)
    running.stop()
    running.stop()
    assert (running.wait(WAIT), running.wait(), fake.drained) == (True, True, True)


def test_running_graph_drains_at_the_end_of_the_block() -> None:
    fake = FakeRun()
    with Running(fake) as running:
        assert not running.wait(0.0)
    assert (fake.drained, running.wait(0.0)) == (True, True)


def test_running_graph_may_end_by_itself() -> None:
    with Running(FakeRun(lasts=False)) as running:
        assert running.wait(WAIT)


@pytest.mark.parametrize(
    "failure",
    [TopicError("missing topics: a"), BrokerUnavailable("no broker"), KeyError("a")],
    ids=lambda failure: type(failure).__name__,
)
def test_error_that_prevents_the_start_is_raised_by_the_start(failure: Exception) -> None:
    with pytest.raises(type(failure)) as caught:
        Running(FakeRun(failure, starts=False))
    assert caught.value is failure


def test_error_that_stopped_the_workers_is_raised_by_wait_and_the_end_of_the_block() -> None:
    failure = DrainTimeout("p did not end")
    running, raised = Running(FakeRun(failure)), []
    for end in (lambda: running.__exit__(None, None, None), lambda: running.wait(WAIT)):
        with pytest.raises(DrainTimeout) as caught:
            end()
        raised.append(caught.value)
    assert raised == [failure, failure]


@pytest.mark.parametrize("failure", [None, DrainTimeout("p did not end")], ids=["drained", "failed"])
def test_exception_in_the_block_is_raised_once_the_workers_have_drained(
    failure: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeRun(failure)
    with pytest.raises(ZeroDivisionError), Running(fake):
        raise ZeroDivisionError
    assert fake.drained
    logged = ["the workers were stopped by DrainTimeout: p did not end"]
    assert caplog.messages == ([] if failure is None else logged)


@pytest.fixture
def topics(wired: MemoryCluster) -> MemoryCluster:
    wired.create_topics([("a", 1, -1, {}), (THE_GRAPH.beginnings, 1, -1, {})])
    return wired


def test_graph_runs_in_a_thread_of_a_program_without_changing_its_signal_handlers(
    topics: MemoryCluster, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no report to a supervisor of the program either."""
    before = [signal.getsignal(signum) for signum in SIGNALS]

    def program() -> list[Any]:
        with ks.start(THE_GRAPH, slots=[5], settings=Settings()) as running:
            return [running.wait(WAIT), [signal.getsignal(signum) for signum in SIGNALS]]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(program).result(WAIT) == [True, before]
    assert (FakeSlot.observed["slot"], FakeSlot.observed["stopped"], read_reported_processors(pipe)) == (5, False, [])


def test_start_of_a_graph_whose_topics_are_missing_is_refused(wired: MemoryCluster) -> None:
    with pytest.raises(TopicError, match="missing topics: a: "):
        ks.start(THE_GRAPH, settings=Settings())
