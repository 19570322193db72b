"""Runs a worker process for each slot, restarts it with back-off and a limit, and stops all together."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kstreams_py.errors import Replaced, WorkersFailed
from kstreams_py.log_fields import repeated
from kstreams_py.running.output import FINISH_SECONDS, WorkerOutput, Write
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.reports import Report
from kstreams_py.running.status import RunStatus
from kstreams_py.running.supervised import Next, SupervisedSlot
from kstreams_py.running.watch import LOOK_MAX

logger = logging.getLogger(__name__)

STANDBY_DELAY: Final = 2.0
"""Seconds from a worker's start to a standby's, so that the standby takes no CPU from the worker."""


SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC})
"""Start errors that may pass: too few file descriptors or processes, too little memory or space."""

SCARCE_SECONDS: Final = 1.0
"""Seconds until a start that failed with one of these errors is tried again."""

LAST_LINES_SECONDS: Final = 0.2
"""Seconds that the supervisor waits for the last lines of an ended worker, so that they precede its own lines."""


class _Process(NamedTuple):
    """A process, the file descriptor from which its reports are read, and its output unless that is inherited."""

    popen: subprocess.Popen[bytes]
    reading: int
    output: WorkerOutput | None


class _Child:
    """A slot and its process. `process` is None while there is none."""

    def __init__(self, slot: SupervisedSlot) -> None:
        self.slot = slot
        self.process: subprocess.Popen[bytes] | None = None
        self.output: WorkerOutput | None = None
        """The output of the newest process."""


class Supervisor:
    """Runs a process for each slot until `stop`, until a worker drains by itself, or until restarts do not help.

    - `command`: returns the command line of a slot's worker.
    - `slots`: the numbers of the slots.
    - `drain_seconds`: the time after `stop` at which workers that have not drained are killed.
    - `environment`: variables in addition to this process's own.
    - `standby`: a command that imports everything, then reads a slot number from standard input. A process on standby
      replaces a dead worker without the time that Python takes to start. None for no standby.
    - `stuck_timeout_ms`: a worker that is stuck for this long is replaced; with None, a warning is logged.
    - `clock`: monotonic seconds.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._standby = standby
        self._output: Write | None = None
        self._spare: _Process | None = None
        self._spare_at = 0.0
        self._environment = {**os.environ, **(environment or {})}
        self._stuck_timeout_ms = stuck_timeout_ms
        self._children = [_Child(SupervisedSlot(number, stuck_timeout_ms)) for number in slots]
        self._drain_seconds = drain_seconds
        self._clock = clock
        self._turned_at = clock()
        self._selector = selectors.DefaultSelector()
        self._stopping = False
        self._killing = False
        self.are_inputs_done = False
        """Whether the run has ended because the sources of its graph have no input left."""
        self._observe: Callable[[RunStatus], None] | None = None

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the running workers, by slot."""
        return {child.slot.number: process.pid for child in self._children if (process := child.process) is not None}

    def forbid_restarts(self) -> None:
        """Makes `run` stop all workers and raise WorkersFailed when one dies. Call it before `run`."""
        for child in self._children:
            child.slot.restarts_max = 0

    def stop(self) -> None:
        """Lets all workers drain; then `run` returns. May be called from any thread and from a signal handler."""
        self._stopping = True

    def kill(self) -> None:
        """Like `stop`, but kills the workers: what is not committed is processed again at the next start."""
        self._killing = self._stopping = True

    def run(
        self,
        show: Callable[[Sequence[Report]], None],
        observe: Callable[[RunStatus], None] | None = None,
        output: Write | None = None,
    ) -> None:
        """Starts and restarts workers until stopped.

        - `show`: called with the newest reports of all workers.
        - `observe`: called with the status of all slots in each turn.
        - `output`: takes the workers' standard output and error in whole lines, from several threads. With None,
          workers write to the outputs of this process.

        Raises WorkersFailed, which has the exit status for this process.
        """
        self._observe, self._output = observe, output
        try:
            while not self._stopping:
                self._catch_up()
                for child in self._children:
                    self._keep(child)
                self._keep_spare()
                self._note_status()
                if self._listen(0.1):
                    show(self._reports())
        finally:
            undone = self._end()
            self._selector.close()
            deadline = time.monotonic() + FINISH_SECONDS
            for child in self._children:
                if child.output is not None:
                    child.output.finish(deadline)
            show(self._reports())
        if undone:
            slots, why = ", ".join(map(str, undone)), "was ended at once" if self._killing else "did not drain"
            status = 130 if self._killing else max(1, *undone.values())  # 130: the status of a shell after Ctrl-C
            raise WorkersFailed(f"slot {slots} {why}: uncommitted work is done again at the next start", status)

    def _catch_up(self) -> None:
        """If this process itself was stopped, discards the reports in the pipes: they are old."""
        now = self._clock()
        if now - self._turned_at > LOOK_MAX:
            self._listen(0)  # one read takes everything that a pipe holds
            for child in self._children:
                child.slot.forget_latest()
        self._turned_at = now

    def _keep(self, child: _Child) -> None:
        """Starts the slot's process if it has none and may have one; otherwise watches it, and acts on its end."""
        slot, process, now = child.slot, child.process, self._clock()
        if process is None:
            if not slot.taken and now >= slot.start_at and not self._starts(child):
                slot.start_at = now + SCARCE_SECONDS
            return
        status = process.poll()
        if status is None:
            if slot.look(now):
                limit = f"stuck_timeout_ms ({self._stuck_timeout_ms})"
                logger.warning(
                    "slot %d (process %d) is stuck, for longer than %s: killing it", slot.number, process.pid, limit,
                    extra={"slot": slot.number},
                )  # fmt: skip
                process.kill()
            return
        self._read_rest(child)
        slot.note_end(status, time.time())
        match slot.end(status, now):
            case Next.STOP:
                why = "as all inputs of its sources are done" if slot.are_inputs_done else "by itself"
                then = ": stopping the others" if len(self._children) > 1 else ""
                logger.info("slot %d ended %s%s", slot.number, why, then, extra={"slot": slot.number})
                self.are_inputs_done |= slot.are_inputs_done
                self._stopping = True
            case Next.LEAVE:
                self._leave(slot)
            case Next.RESTART:
                logger.warning(
                    "slot %d ended by %s: restarting it (%d in a row)", slot.number, slot.why(status), slot.restarts,
                    extra={"slot": slot.number},
                )  # fmt: skip

    def _leave(self, slot: SupervisedSlot) -> None:
        """Leaves a slot to the worker that took it. Raises WorkersFailed if no other slot is left here."""
        if others := [str(child.slot.number) for child in self._children if not child.slot.taken]:
            going = f"slot {others[0]} goes" if len(others) == 1 else f"slots {', '.join(others)} go"
            logger.warning("slot %d ended by %s: it is not restarted here; %s on", slot.number, slot.taken, going)
        else:
            ends = (f"slot {child.slot.number} ended by {child.slot.taken}" for child in self._children)
            beside = run_both([child.slot.number for child in self._children])
            raise WorkersFailed(f"{'; '.join(ends)}; {beside}", Replaced.exit_status)

    def _starts(self, child: _Child) -> bool:
        """Starts the slot's process; returns False if that is impossible now."""
        spare, self._spare = self._spare, None
        if spare is None:
            spawned = self._spawn(self._command(child.slot.number), subprocess.DEVNULL, str(child.slot.number))
            if spawned is None:
                return False
            process = spawned
        else:
            process = spare
            if spare.output is not None:
                spare.output.slot = str(child.slot.number)
            assert spare.popen.stdin is not None
            with suppress(BrokenPipeError):  # it has just died: `_keep` handles that like any other end
                spare.popen.stdin.write(b"%d\n" % child.slot.number)
                spare.popen.stdin.close()
        child.process, child.output = process.popen, process.output
        now = self._clock()
        self._spare_at = now + STANDBY_DELAY
        child.slot.begin(now)
        child.slot.started += 1
        self._selector.register(process.reading, selectors.EVENT_READ, child)
        return True

    def _spawn(self, command: Sequence[str], stdin: int, name: str) -> _Process | None:
        """Starts a process; `name` is the prefix of its output. Logs and returns None if that is impossible now."""
        try:
            return self._spawn_or_raise(command, stdin, name)
        except OSError as error:
            if error.errno not in SCARCE:
                raise
            logger.warning(
                "cannot start a process for slot %s: %s: retrying every %g s; raise the limit, or free resources",
                name, error, SCARCE_SECONDS, extra=repeated(f"failed starts of slot {name}", str(error)),
            )  # fmt: skip
            return None

    def _spawn_or_raise(self, command: Sequence[str], stdin: int, name: str) -> _Process:
        reading, writing = os.pipe()
        try:
            os.set_blocking(reading, False)
            environment = {**self._environment, REPORT_FD: str(writing)}
            if self._output is not None:
                output = WorkerOutput(self._output, name)
                return _Process(output.spawn(command, environment, stdin, writing), reading, output)
            process = subprocess.Popen(
                [*command],
                env=environment,
                pass_fds=(writing,),
                stdin=stdin,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the supervisor
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return _Process(process, reading, None)

    def _keep_spare(self) -> None:
        """Starts a standby process unless there is one, or a worker was started less than STANDBY_DELAY ago."""
        if self._spare is not None and self._spare.popen.poll() is not None:
            self._drop_spare()
        if self._standby is not None and self._spare is None and self._clock() >= self._spare_at:
            self._spare = self._spawn(self._standby, subprocess.PIPE, "standby")
            if self._spare is None:
                self._spare_at = self._clock() + STANDBY_DELAY

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.popen.kill()
            self._spare.popen.communicate()
            os.close(self._spare.reading)
            self._spare = None
            self._spare_at = self._clock() + STANDBY_DELAY

    def _read_rest(self, child: _Child) -> None:
        """Reads the rest of a dead worker's pipe and closes it."""
        child.process = None
        if child.output is not None:
            child.output.finish(time.monotonic() + LAST_LINES_SECONDS)
        for key in [key for key in self._selector.get_map().values() if key.data is child]:
            self._read(key.fd, child)
            if key.fd in self._selector.get_map():
                self._close(key.fd)

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
        return child.slot.feed(data)

    def _reports(self) -> list[Report]:
        return [report for child in self._children for report in child.slot.reports()]

    def _note_status(self) -> None:
        if self._observe is not None:
            pids = self.pids
            slots = tuple(child.slot.status(pids.get(child.slot.number)) for child in self._children)
            self._observe(RunStatus(slots, self._clock(), stopping=self._stopping))

    def _end(self) -> dict[int, int]:
        """Sends SIGTERM, and SIGKILL after `drain_seconds` or `kill`. Returns the statuses of undrained slots."""
        self._drop_spare()
        running = [(child, child.process) for child in self._children if child.process is not None]
        self._note_status()  # before the workers know, so that /readyz turns false first
        for _, process in running:
            process.terminate()
        deadline = self._clock() + self._drain_seconds
        while any(p.poll() is None for _, p in running) and self._clock() < deadline and not self._killing:
            self._listen(0.05)
            self._note_status()
        for child, process in running:
            if process.poll() is None:
                why = "was asked to end at once" if self._killing else f"did not drain within {self._drain_seconds:g} s"
                logger.warning("slot %d (process %d) %s: killing it", child.slot.number, process.pid, why)
                process.kill()
            process.wait()
            self._read_rest(child)
            if child.slot.error:
                logger.warning("slot %d ended by %s", child.slot.number, child.slot.error)
        return {
            child.slot.number: process.returncode
            for child, process in running
            if not child.slot.has_drained(process.returncode)
        }


def run_both(slots: Collection[int]) -> str:
    """Returns the remedy for a run whose slots another run has taken: as many slots, numbered after its own."""
    first, last = max(slots) + 1, max(slots) + len(slots)
    return f"to run both, start one of them with --slots {first if first == last else f'{first}-{last}'}"
