"""Starts the process of a version of a graph's code, and passes on its reports and its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.running.output import FINISH_SECONDS, WorkerOutput, Write
from kstreams_py.running.pipe import REPORT_FD

NO_BYTECODE: Final = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python identifies source by second and size: after two quick saves, it could run the bytecode of the first."""

Position = tuple[str, int, int]
"""A topic, a partition and an offset."""


@dataclass(frozen=True)
class VersionReady:
    """A version has been checked, and waits for `go`. `created`: the topics that it created; `warning`: "" if none."""

    version: Version
    created: Sequence[str]
    warning: str


@dataclass(frozen=True)
class OutputsShown:
    """A version has shown its outputs up to these positions."""

    version: Version
    positions: Sequence[Position]


@dataclass(frozen=True)
class VersionEnded:
    """The process of a version has ended, with its exit status and its error or ""."""

    version: Version
    status: int
    error: str


class Version:
    """The process of a version, see version.py. Reports come from threads; the last report says that it has ended."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        report: Callable[[VersionReady | OutputsShown | VersionEnded], None],
        write: Write,
    ) -> None:
        """Starts the process.

        - `command`: its command line.
        - `environment`: variables in addition to this process's own.
        - `report`: takes its reports.
        - `write`: takes the lines that it writes.
        """
        self._report = report
        self._error = ""
        self._lock = threading.Lock()
        reading, writing = os.pipe()
        self._output = WorkerOutput(write, "")
        try:
            self._process = self._output.spawn(
                command,
                {**os.environ, **environment, **NO_BYTECODE, REPORT_FD: str(writing)},
                subprocess.PIPE,
                writing,
            )
        finally:
            os.close(writing)
        assert self._process.stdin is not None
        self._stdin = self._process.stdin
        listening = threading.Thread(target=self._listen, args=(reading,), name="version", daemon=True)
        listening.start()
        threading.Thread(target=self._await_end, args=(listening,), name="version end", daemon=True).start()

    def go(self, positions: Iterable[Position]) -> None:
        """Makes the version run and show outputs from these positions on."""
        line = json.dumps({"positions": list(positions)}).encode() + b"\n"
        with self._lock, suppress(BrokenPipeError):  # it has just died; its end is reported
            if not self._stdin.closed:
                self._stdin.write(line)
                self._stdin.flush()

    def stop(self) -> None:
        """Makes the version drain; ends its workers immediately if called a second time."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kills a version that does not run yet."""
        self._process.kill()

    def _listen(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            for line in pipe:
                with suppress(ValueError):  # a killed process may leave an incomplete last line
                    self._take(json.loads(line))

    def _await_end(self, listening: threading.Thread) -> None:
        status = self._process.wait()
        deadline = time.monotonic() + FINISH_SECONDS
        # with a limit: a process that the code has forked may hold the pipes open
        listening.join(FINISH_SECONDS)
        self._output.finish(deadline)
        with self._lock, suppress(BrokenPipeError):
            self._stdin.close()
        self._report(VersionEnded(self, status, self._error))

    def _take(self, said: Mapping[str, Any]) -> None:
        if "ready" in said:
            self._report(VersionReady(self, said["ready"], said["idle"]))
        elif "positions" in said:
            self._report(OutputsShown(self, [(topic, number, at) for topic, number, at in said["positions"]]))
        else:
            self._error = said["error"]


def version_command(target: str, workers: int, partitions: int | None) -> list[str]:
    """Returns the command line of a version's process."""
    more = [] if partitions is None else ["--partitions", str(partitions)]
    return [sys.executable, "-P", "-m", "kstreams_py", "dev-version", target, "--workers", str(workers), *more]
