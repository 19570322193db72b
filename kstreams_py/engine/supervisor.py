"""Worker processes: one per slot, restarted under the same slot with back-off and a cap, stopped together."""

from __future__ import annotations

import gc
import json
import logging
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from rich.console import Console

from kstreams_py.config import Settings
from kstreams_py.engine.slot import Slot, drain_on_signals
from kstreams_py.engine.target import load, target_of
from kstreams_py.engine.topics import check_topics
from kstreams_py.engine.topics import create_topics as create_graph_topics
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.watch import LOOK_MAX, Stillness, Watch
from kstreams_py.errors import KStreamsError, Replaced, WorkersFailed, WorkerStuck
from kstreams_py.metrics import Report
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.registry import open_registry
from kstreams_py.ports.terminal import Progress
from kstreams_py.topology import Graph

logger = logging.getLogger(__name__)

REPORT_FD: Final = "KSTREAMS_REPORT_FD"
"""In a worker's environment: the file descriptor for its reports, one line of JSON each, and for why it ends."""

FINAL: Final = frozenset({2, 5})
"""Exit statuses of errors.py that a restart cannot mend, for any slot."""

RESTARTS_MAX: Final = 8
"""Restarts of a slot in a row, none of whose workers was healthy, until everything is stopped."""

GARBAGE_THRESHOLD: Final = 100_000
"""New objects between two collections in a worker: a fetch makes ten thousand records, none of them garbage in a cycle;
with Python's 700, a tenth of a worker's time went into looking (measured)."""

HEALTHY_SECONDS: Final = 10.0
"""A worker that ran so long was healthy; so was one that committed before somebody killed it."""

BACKOFF: Final = (0.0, 0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0)
"""Seconds before each restart in a row: the first two at once, because a seat is waiting."""

STANDBY_DELAY: Final = 2.0
"""Seconds after a start until the next process is made ready, so that it takes no time from the worker that starts."""


@dataclass(slots=True)
class _Child:
    slot: int
    watch: Watch
    process: subprocess.Popen[bytes] | None = None
    buffer: bytes = b""
    restarts: int = 0
    start_at: float = 0.0
    started_at: float = 0.0
    committed: bool = False
    error: str = ""
    """Why it ended, in its own words."""
    reports: dict[str, Report] = field(default_factory=dict)
    """The newest by processor, with the counts of this slot's earlier processes in them."""
    past: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """The counts of those earlier processes alone."""
    latest: dict[str, Report] = field(default_factory=dict)
    """The newest of this process alone, as far as they may tell that it is stuck."""
    stillness: Stillness = field(default_factory=Stillness)
    lines: int = 0
    stuck: str = ""
    """Why it is being killed."""
    taken: str = ""
    """Why it is not to be restarted: another worker holds its slot, somewhere else."""

    def why(self, status: int) -> str:
        named = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"{named} ({self.stuck})" if self.stuck else self.error or named

    def shown(self) -> list[Report]:
        """What a slot that was taken did still counts; what is left to do there is for another to say."""
        return [replace(report, lag=0) if self.taken else report for report in self.reports.values()]


class Supervisor:
    """Runs `command(slot)` for each slot until `stop`, or until a worker ends by itself.

    `standby` is a command that does what needs no slot, then reads one from its input: what died is replaced by a
    process that is up already, without the time that a Python takes to start and import.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        slots: Sequence[int],
        *,
        drain_seconds: float,
        environment: Mapping[str, str] | None = None,
        standby: Sequence[str] | None = None,
        stuck_timeout_ms: int | None = None,
    ) -> None:
        self._command = command
        self._standby = standby
        self._spare: tuple[subprocess.Popen[bytes], int] | None = None
        self._spare_at = 0.0
        self._environment = {**os.environ, **(environment or {})}
        self._stuck_timeout_ms = stuck_timeout_ms
        self._children = {slot: _Child(slot, Watch(slot, stuck_timeout_ms)) for slot in slots}
        self._drain_seconds = drain_seconds
        self._turned_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._asked = False
        self._kill = False

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the running workers, by slot."""
        return {slot: process.pid for slot, child in self._children.items() if (process := child.process) is not None}

    def stop(self) -> None:
        """Drains all workers; called again, kills them."""
        self._kill = self._asked
        self._asked = self._stopping = True

    def run(self, show: Callable[[Sequence[Report]], None]) -> None:
        """Starts and restarts until stopped; `show` gets the newest reports of all workers.

        Raises WorkersFailed with the exit status to end with.
        """
        try:
            while not self._stopping:
                self._catch_up()
                for child in self._children.values():
                    self._keep(child)
                self._keep_spare()
                if self._listen(0.1):
                    show(self._reports())
        finally:
            undone = self._end()
            self._listen(0)
            show(self._reports())
        if undone:
            slots, why = ", ".join(map(str, undone)), "was ended at once" if self._kill else "did not drain"
            status = 130 if self._kill else max(1, *undone.values())  # 130: as a shell has it for Ctrl-C
            raise WorkersFailed(f"slot {slots} {why}: what was not committed is done again at the next start", status)

    def _catch_up(self) -> None:
        """If this process was stopped for a while, what waits in the pipes is old: nobody is judged by it."""
        now = time.monotonic()
        if now - self._turned_at > LOOK_MAX:
            self._listen(0)  # all of it: a pipe holds no more than one read takes
            for child in self._children.values():
                child.latest = {}
        self._turned_at = now

    def _keep(self, child: _Child) -> None:
        process = child.process
        if process is None:
            if not child.taken and time.monotonic() >= child.start_at:
                self._start(child)
            return
        status = process.poll()
        if status is None:
            self._watch(child, process)
            return
        self._forget(child)
        ran_well = time.monotonic() - child.started_at >= HEALTHY_SECONDS or (status < 0 and child.committed)
        if ran_well and not child.stuck:
            child.restarts = 0
        if status == 0:
            logger.info("slot %d ended by itself: stopping the others", child.slot)
            self._stopping = True
        elif status == Replaced.exit_status:
            self._let_go(child, child.why(status))
        elif status in FINAL:
            raise WorkersFailed(f"slot {child.slot} ended by {child.why(status)}", status)
        elif child.restarts >= RESTARTS_MAX:
            raise WorkersFailed(
                f"slot {child.slot} died {child.restarts + 1} times in a row, at last by {child.why(status)}",
                status if status > 0 else 1,
            )
        else:
            child.start_at = time.monotonic() + BACKOFF[min(child.restarts, len(BACKOFF) - 1)]
            child.restarts += 1
            logger.warning(
                "slot %d ended by %s: restarting it (%d in a row)", child.slot, child.why(status), child.restarts
            )

    def _watch(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        """Kills a worker that has stood still for stuck_timeout_ms: who is stuck does not drain."""
        if child.stuck:
            return
        silent = child.stillness.look(child.lines, time.monotonic())
        found = child.watch.look(child.latest.values(), silent, has_reported=child.lines > 0)
        if found is not None:
            child.stuck = found.why
            commits = child.latest[found.processor].counters["commits"] if found.processor else child.committed
            child.restarts = 0 if commits else child.restarts
            limit = f"stuck_timeout_ms ({self._stuck_timeout_ms})"
            logger.warning(
                "slot %d (process %d) is stuck, for longer than %s: killing it", child.slot, process.pid, limit
            )
            process.kill()

    def _let_go(self, child: _Child, why: str) -> None:
        """Leaves a slot to whoever has taken it. Raises WorkersFailed if it was the last."""
        child.taken = why
        if others := [str(each.slot) for each in self._children.values() if not each.taken]:
            going = f"slot {others[0]} goes" if len(others) == 1 else f"slots {', '.join(others)} go"
            logger.warning("slot %d ended by %s: it is not restarted here, %s on", child.slot, why, going)
        else:
            ends = (f"slot {each.slot} ended by {each.taken}" for each in self._children.values())
            raise WorkersFailed("; ".join(ends), Replaced.exit_status)

    def _start(self, child: _Child) -> None:
        spare, self._spare = self._spare, None
        if spare is None:
            child.process, reading = self._spawn(self._command(child.slot), subprocess.DEVNULL)
        else:
            child.process, reading = spare
            assert child.process.stdin is not None
            with suppress(BrokenPipeError):  # it has just died: that is seen as any other death
                child.process.stdin.write(b"%d\n" % child.slot)
                child.process.stdin.close()
        self._spare_at = time.monotonic() + STANDBY_DELAY
        child.started_at = time.monotonic()
        child.committed = False
        child.error = child.stuck = ""
        child.latest, child.lines, child.stillness = {}, 0, Stillness()
        child.watch = Watch(child.slot, self._stuck_timeout_ms)
        child.past = {processor: report.counters for processor, report in child.reports.items()}
        self._selector.register(reading, selectors.EVENT_READ, child)

    def _spawn(self, command: Sequence[str], stdin: int) -> tuple[subprocess.Popen[bytes], int]:
        """A process, and where its reports can be read."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        try:
            process = subprocess.Popen(
                [*command],
                env={**self._environment, REPORT_FD: str(writing)},
                pass_fds=(writing,),
                stdin=stdin,
                start_new_session=True,  # a Ctrl-C in the terminal is the supervisor's to pass on
            )
        finally:
            os.close(writing)
        return process, reading

    def _keep_spare(self) -> None:
        """Has a process ready for the next death, unless there is one or workers are being started."""
        if self._spare is not None and self._spare[0].poll() is not None:
            self._drop_spare()
        if self._standby is not None and self._spare is None and time.monotonic() >= self._spare_at:
            self._spare = self._spawn(self._standby, subprocess.PIPE)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            process, reading = self._spare
            process.kill()
            process.communicate()
            os.close(reading)
            self._spare = None
            self._spare_at = time.monotonic() + STANDBY_DELAY

    def _forget(self, child: _Child) -> None:
        """Reads what is left of a dead worker's reports, and keeps its counts."""
        child.process = None
        for key in [key for key in self._selector.get_map().values() if key.data is child]:
            self._read(key.fd, child)
            if key.fd in self._selector.get_map():
                self._close(key.fd)
        child.buffer = b""

    def _close(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    def _listen(self, seconds: float) -> bool:
        return sum(self._read(key.fd, key.data) for key, _ in self._selector.select(seconds)) > 0

    def _read(self, fd: int, child: _Child) -> bool:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._close(fd)
        *lines, child.buffer = (child.buffer + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "error" in said:
                child.error = said["error"]
                continue
            report = child.latest[said["processor"]] = Report(**said)
            child.lines += 1
            child.reports[report.processor] = report.after(child.past.get(report.processor, {}))
            child.committed |= report.counters["commits"] > 0
        return bool(lines)

    def _reports(self) -> list[Report]:
        return [report for child in self._children.values() for report in child.shown()]

    def _end(self) -> dict[int, int]:
        """SIGTERM to all, a bound for draining, then SIGKILL; the exit status of each slot that did not drain."""
        self._drop_spare()
        running = {slot: child.process for slot, child in self._children.items() if child.process is not None}
        for process in running.values():
            process.terminate()
        deadline = time.monotonic() + self._drain_seconds
        while any(p.poll() is None for p in running.values()) and time.monotonic() < deadline and not self._kill:
            self._listen(0.05)
        for slot, process in running.items():
            if process.poll() is None:
                why = "was asked to end at once" if self._kill else f"did not drain within {self._drain_seconds:g} s"
                logger.warning("slot %d (process %d) %s: killing it", slot, process.pid, why)
                process.kill()
            process.wait()
        for child in self._children.values():
            self._forget(child)
            if child.slot in running and child.error:
                logger.warning("slot %d ended by %s", child.slot, child.error)
        # a process that has not begun yet dies of the signal; whose slot was taken meanwhile has nothing left to do
        drained = (0, -signal.SIGTERM, Replaced.exit_status)
        return {slot: process.returncode for slot, process in running.items() if process.returncode not in drained}


def report_writer() -> Callable[[Sequence[Report]], None] | None:
    """In a worker under a supervisor: writes reports to it, and raises BrokenPipeError once it is gone.

    Never waits: a supervisor that is stopped, so that its pipe is full, misses reports.
    """
    fd = os.environ.get(REPORT_FD)
    if fd is None:
        return None

    def write(reports: Sequence[Report]) -> None:
        for report in reports:
            _write_line(int(fd), report.as_dict())

    return write


def told(error: KStreamsError) -> bool:
    """Whether there is a supervisor that was told why this worker ends; it is then for it to tell the user."""
    fd = os.environ.get(REPORT_FD)
    if fd is None:
        return False
    try:
        return _write_line(int(fd), {"error": f"{type(error).__name__}: {error}"})
    except OSError:
        return False


def _write_line(fd: int, said: Mapping[str, object]) -> bool:
    """Whether the pipe took the line, at once. Up to PIPE_BUF bytes are taken as a whole or not at all (POSIX)."""
    line = json.dumps(said).encode() + b"\n"
    if len(line) > select.PIPE_BUF:
        return False
    os.set_blocking(fd, False)
    try:
        os.write(fd, line)
    except BlockingIOError:
        return False
    return True


def worker_command(target: str) -> Callable[[int], list[str]]:
    """The command line of one slot's worker; its settings go by the environment, where no one can list them."""
    return lambda slot: [sys.executable, "-m", "kstreams_py", "run", target, "--slot", str(slot)]


def standby_command(target: str) -> list[str]:
    """The command line of a process that will be a worker once it reads its slot."""
    return [sys.executable, "-m", "kstreams_py", "standby", target]


def awaited_slot() -> int | None:
    """In a process on standby: the slot, as soon as it is needed; None if its supervisor is gone."""
    line = sys.stdin.readline()
    return int(line) if line else None


def run(
    graph: Graph,
    *,
    workers: int = 1,
    slots: Sequence[int] | None = None,
    settings: Settings | None = None,
    create_topics: bool = False,
) -> None:
    """Runs a graph until Ctrl-C, SIGTERM or a function's Stop; what is done by then is committed.

    `slots` are those of this machine, 0 to `workers` - 1 unless given. One runs in this process, several in a process
    each; for those the graph must be a global of an importable module, or of the script at hand, which must call this
    under `if __name__ == "__main__":`. To be called from the main thread. Raises KStreamsError.
    """
    settings = settings or Settings.load()
    numbers = list(range(workers)) if slots is None else list(slots)
    if len(numbers) == 1:
        run_slot(graph, numbers[0], settings, create=create_topics)
    else:
        run_slots(target_of(graph), numbers, settings, create=create_topics)


def run_slot(graph: Graph, number: int, settings: Settings, *, create: bool = False) -> None:
    """Runs one slot in this process, reporting to the supervisor that started it or to the terminal."""
    gc.freeze()
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    registry = open_registry(settings.schema_registry_url, settings.schema_directory)
    log = KafkaLog(settings)
    slot = Slot(graph, number, Surroundings(log, registry, settings))
    drain_on_signals(slot)
    try:
        _run_and_report(slot, number, settings, create=create)
    finally:
        log.close()


def _run_and_report(slot: Slot, number: int, settings: Settings, *, create: bool) -> None:
    write = report_writer()
    if write is None:
        watch = Watch(number, settings.stuck_timeout_ms)
        with Progress(Console(stderr=True)) as progress:

            def show(reports: Sequence[Report]) -> None:
                progress.show(reports)
                if found := watch.look(reports):
                    limit = f"stuck_timeout_ms ({settings.stuck_timeout_ms})"
                    raise WorkerStuck(f"slot {number}: {found.why}; it ends after {limit}: start it again")

            slot.run(show, create=create)
        return

    orphaned = False

    def report(reports: Sequence[Report]) -> None:
        nonlocal orphaned
        try:
            if not orphaned:
                write(reports)
        except BrokenPipeError:
            orphaned = True
            logger.warning("the supervisor is gone: draining")
            slot.stop()

    slot.run(report, create=create)


def run_slots(target: str, slots: Sequence[int], settings: Settings, *, create: bool = False) -> None:
    """Runs a worker process for each slot, with progress in the terminal. Ctrl-C and SIGTERM drain, a second kills."""
    graph = load(target)
    graph.validate()
    log = KafkaLog(settings)
    if create:
        create_graph_topics(graph, log)
    check_topics(graph, log)  # once here, so that a mistake is told once and not by every worker
    drain = settings.drain_timeout_ms / 1000 + 5
    supervisor = Supervisor(
        worker_command(target),
        slots,
        drain_seconds=drain,
        environment=settings.as_environment(),
        standby=standby_command(target),
        stuck_timeout_ms=settings.stuck_timeout_ms,
    )
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: supervisor.stop())
    with Progress(Console(stderr=True)) as progress:
        supervisor.run(progress.show)
