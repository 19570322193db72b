"""The pipe from a worker to its supervisor: one line of JSON for each report, written without waiting."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kstreams_py.errors import KStreamsError
from kstreams_py.running.reports import Report

REPORT_FD: Final = "KSTREAMS_REPORT_FD"
"""The environment variable with the file descriptor to which a worker writes its reports and its last error."""


def report_writer() -> Callable[[Sequence[Report]], None] | None:
    """A function that writes reports to the supervisor of this process; None without a supervisor.

    It does not wait: while the pipe is full, because the supervisor is stopped, reports are dropped. It raises
    BrokenPipeError if the supervisor has ended.
    """
    fd = os.environ.get(REPORT_FD)
    if fd is None:
        return None

    def write(reports: Sequence[Report]) -> None:
        for report in reports:
            _write_line(int(fd), report.as_dict())

    return write


def report_error(error: KStreamsError) -> bool:
    """Reports to the supervisor the error that ends this worker.

    Returns False if there is no supervisor, or its pipe takes no more: the caller must then show the error itself.
    """
    fd = os.environ.get(REPORT_FD)
    if fd is None:
        return False
    try:
        return _write_line(int(fd), {"error": f"{type(error).__name__}: {error}"}, b"\n")  # ends a report that was cut
    except OSError:
        return False


def _write_line(fd: int, fields: Mapping[str, object], before: bytes = b"") -> bool:
    """Writes a line without waiting; False if the pipe does not take the whole of it.

    A line longer than PIPE_BUF (4,096 bytes on Linux, 512 on macOS) may be cut in a pipe that is almost full.
    """
    line = before + json.dumps(fields).encode() + b"\n"
    os.set_blocking(fd, False)
    try:
        return os.write(fd, line) == len(line)
    except BlockingIOError:
        return False


class PipeReader:
    """The supervisor's end of one worker's pipe: decodes reports from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Report | str]:
        """Returns the reports that are complete now; a str is the error that ends the worker."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):  # it was cut: the pipe was full
                fields = json.loads(line)
                found.append(fields["error"] if "error" in fields else Report(**fields))
        return found
