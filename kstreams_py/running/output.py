"""The output of worker processes: pipes from each to its supervisor, which writes whole lines with their slot.

A worker writes as to any pipe: a write waits while the pipe is full, and the pipe is read to its end after the worker
has died. Nothing is dropped. A worker does not depend on its supervisor: it also holds the reading ends and the
supervisor's own outputs. While the supervisor is stopped, the worker empties full pipes into these outputs itself; once
the supervisor has ended, it writes to them directly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kstreams_py.printable import clean_line
from kstreams_py.running.pipe import REPORT_FD
from kstreams_py.running.terminal.lines import LineJoiner

OUTPUT_FDS: Final = "KSTREAMS_OUTPUT_FDS"
"""The environment variable with the file descriptors that a worker needs to go on without its supervisor."""

STOPPED_SECONDS: Final = 3.0
"""A worker empties a full pipe itself once its supervisor has read nothing for this many seconds."""

LOOK_SECONDS: Final = 0.5
"""Seconds between two checks of a worker's pipes while its supervisor reads."""

LINE_SECONDS: Final = 1.0
"""Seconds that a worker waits for the end of a line that it has begun to read."""

READ_MAX: Final = 1 << 16
"""The maximum size of one read in bytes: the capacity of a pipe."""

FINISH_SECONDS: Final = 5.0
"""Seconds to wait for the end of output that a child process of a worker still holds open."""

STDOUT: Final = 1
STDERR: Final = 2

Write = Callable[[int, str, Sequence[bytes]], None]
"""Takes the output (STDOUT or STDERR), the slot as text, and lines without their ends. Several threads call it."""


class WorkerOutput:
    """The supervisor's side of a worker process's output. A thread reads each pipe until its last writer has ended."""

    def __init__(self, write: Write, slot: str) -> None:
        self.slot = slot
        """The prefix of the lines; a standby gets its slot later."""
        self._write = write
        # counts the supervisor's reads: nothing else distinguishes a stopped reader from a slow one
        self._mark = tempfile.TemporaryFile()  # noqa: SIM115, open as long as the pipes
        opened: list[int] = []
        try:
            for _ in range(2):
                opened += os.pipe()
            opened += (_copy(fd) for fd in (STDOUT, STDERR))
        except OSError:
            for each in opened:
                os.close(each)
            self._mark.close()
            raise
        self._reading, self._writing, self._originals = opened[0:4:2], opened[1:4:2], opened[4:]
        self._reads = 0
        self._open = 2
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: int, fd: int
    ) -> subprocess.Popen[bytes]:
        """Starts a process with this output; it inherits `fd` as well."""
        passed = (*self._reading, *self._originals, self._mark.fileno())
        try:
            process = subprocess.Popen(
                [*command],
                env={**environment, OUTPUT_FDS: ",".join(map(str, passed))},
                pass_fds=(fd, *passed),
                stdin=stdin,
                stdout=self._writing[0],
                stderr=self._writing[1],
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the supervisor
            )
        except BaseException:
            for each in self._reading:
                os.close(each)
            self._mark.close()
            raise
        finally:
            for each in (*self._writing, *self._originals):
                os.close(each)
        for output, reading in zip((STDOUT, STDERR), self._reading, strict=True):
            thread = threading.Thread(target=self._read, args=(output, reading), name="output", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine allows no more threads
                process.kill()
                process.wait()
                for each in self._reading[len(self._threads) :]:
                    self._close(each)
                raise OSError(errno.EAGAIN, str(error)) from None
            self._threads.append(thread)
        return process

    def finish(self, deadline: float) -> None:
        """Waits until all output has been passed on, at most until `deadline` (in time.monotonic() seconds)."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _read(self, output: int, reading: int) -> None:
        lines = LineJoiner()
        while data := os.read(reading, READ_MAX):
            with self._lock:
                self._reads += 1
                os.pwrite(self._mark.fileno(), self._reads.to_bytes(8), 0)
            self._pass_on(output, lines.feed(data))
        if rest := lines.rest():
            self._pass_on(output, [rest])
        self._close(reading)

    def _close(self, reading: int) -> None:
        os.close(reading)
        with self._lock:
            self._open -= 1
            if not self._open:
                self._mark.close()

    def _pass_on(self, output: int, lines: Sequence[bytes]) -> None:
        if lines:
            with contextlib.suppress(OSError):  # the reader of the output has gone, but the worker must go on
                self._write(output, self.slot, lines)


def _copy(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return os.open(os.devnull, os.O_WRONLY)


def keep_output() -> None:
    """Makes a worker write whole lines to its supervisor, and go on alone if the supervisor is stopped or ends.

    Does nothing in a process that no supervisor has started.
    """
    fds = os.environ.pop(OUTPUT_FDS, None)
    if fds is None:
        return
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Python would buffer 8 kB, and lose them in a crash; with PYTHONUNBUFFERED it would write parts of lines
            stream.reconfigure(line_buffering=True, write_through=False)
    numbers = [int(fd) for fd in fds.split(",")]
    for fd in numbers:
        os.set_inheritable(fd, False)
    detour = Detour(numbers[0:2], numbers[2:4], numbers[4], int(os.environ[REPORT_FD]))
    threading.Thread(target=detour.run, name="output", daemon=True).start()


class Detour:
    """Carries a worker's output past its supervisor while the supervisor is stopped, and after it has ended."""

    def __init__(self, reading: Sequence[int], originals: Sequence[int], mark: int, report_fd: int) -> None:
        """Takes file descriptors.

        - `reading`: the reading ends of standard output and standard error.
        - `originals`: the standard output and standard error of the supervisor.
        - `mark`: the file that counts the supervisor's reads.
        - `report_fd`: a pipe that only the supervisor reads.
        """
        self._reading = reading
        self._originals = originals
        self._mark_fd = mark
        self._report_fd = report_fd
        self._lines = [LineJoiner(), LineJoiner()]
        self._mark = b""
        self._stopped_since: float | None = None

    def run(self) -> None:
        """Watches the supervisor until it has ended, then writes without it."""
        alive = select.poll()
        alive.register(self._report_fd, 0)  # poll reports only an error: the reader has ended
        seconds = LOOK_SECONDS
        while not alive.poll(int(seconds * 1000)):
            seconds = 0.01 if self._look() else LOOK_SECONDS
        self._go_on_alone()

    def _look(self) -> bool:
        """Empties pipes that are full because the supervisor is stopped; returns whether it is stopped."""
        mark, now = os.pread(self._mark_fd, 8, 0), time.monotonic()
        if mark != self._mark:
            self._mark, self._stopped_since = mark, None
            self._end_lines()
        full = [number for number in (0, 1) if not _ready(number + 1, select.POLLOUT)]
        if not full and self._stopped_since is None:
            return False
        if self._stopped_since is None:
            self._stopped_since = now
        if now - self._stopped_since < STOPPED_SECONDS:
            if not full:
                self._stopped_since = None
            return False
        for number in full:
            lines, reading = self._lines[number], self._reading[number]
            # read up to the end of a line, or the supervisor would get the rest of a cut line
            while os.pread(self._mark_fd, 8, 0) == mark and _ready(
                reading, select.POLLIN, LINE_SECONDS if lines.has_rest else 0.0
            ):
                self._pass_on(number, lines.feed(os.read(reading, READ_MAX)))
        return True

    def _go_on_alone(self) -> None:
        for number in (0, 1):
            os.dup2(self._originals[number], number + 1)
        self._end_lines()
        threads = [threading.Thread(target=self._empty, args=(number,), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()

    def _empty(self, number: int) -> None:
        lines = LineJoiner()
        while data := os.read(self._reading[number], READ_MAX):
            self._pass_on(number, lines.feed(data))
        self._end_line(number, lines)

    def _end_lines(self) -> None:
        for number in (0, 1):
            self._end_line(number, self._lines[number])

    def _end_line(self, number: int, lines: LineJoiner) -> None:
        if rest := lines.rest():
            self._pass_on(number, [rest])

    def _pass_on(self, number: int, lines: Sequence[bytes]) -> None:
        data = b"".join(clean_line(line) + b"\n" for line in lines)
        with contextlib.suppress(OSError):  # the terminal has ended too
            while data:
                data = data[os.write(self._originals[number], data) :]


def _ready(fd: int, event: int, seconds: float = 0.0) -> bool:
    """Returns whether a pipe can be read or written, now or within `seconds`."""
    poll = select.poll()
    poll.register(fd, event)
    return any(found & event for _, found in poll.poll(seconds * 1000))


def write_lines(output: int, lines: Sequence[bytes]) -> None:
    """Writes lines to this process's own output."""
    stream = sys.stdout if output == STDOUT else sys.stderr
    data = b"".join(line + b"\n" for line in lines)
    stream.flush()
    try:
        fd = stream.fileno()
    except OSError:  # a stream in memory has replaced it
        stream.buffer.write(data)
        return
    while data:  # in as few calls as possible: a worker without its supervisor may write at the same time
        data = data[os.write(fd, data) :]
