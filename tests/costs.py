"""A pytest plugin: the dearest test files by CPU time, in a table at the end of a run.

Counts the CPU seconds of the pytest workers, of the processes that they have waited for, and, where the system tells
(Linux), of those that still run.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

ROWS: Final = 20

COLLECTION: Final = "collection"

TICKS: Final = os.sysconf("SC_CLK_TCK")


class Costs:
    """CPU seconds, seconds of a worker, and tests, by file."""

    def __init__(self) -> None:
        self._of = defaultdict[str, list[float]](lambda: [0.0, 0.0, 0])
        self._file = COLLECTION
        self._begun = 0.0, time.monotonic()
        self._tests = 0

    def add(self, what: str, cpu: float, elapsed: float = 0.0, tests: float = 0) -> None:
        self._of[what] = [a + b for a, b in zip(self._of[what], (cpu, elapsed, tests), strict=True)]

    def begin(self, file: str) -> None:
        """Counts what was used since the last call for the file before, and what comes for this one."""
        now = cpu_seconds(), time.monotonic()
        self.add(self._file, now[0] - self._begun[0], now[1] - self._begun[1], self._tests)
        self._file, self._begun, self._tests = file, now, 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if (file := item.nodeid.split("::", 1)[0]) != self._file:
            self.begin(file)
        self._tests += 1
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Adds the costs of a pytest worker that ends (xdist)."""
        for what, cost in getattr(node, "workeroutput", {}).get("costs", {}).items():
            self.add(what, *cost)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not session.config.pluginmanager.has_plugin("dsession"):  # its children are the pytest workers
            self.begin(COLLECTION)
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["costs"] = dict(self._of)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.table():
            terminalreporter.write_line(line)

    def table(self) -> list[str]:
        """The dearest files, then all files by directory."""
        directories = Costs()
        for what, cost in self._of.items():
            directories.add("/".join(Path(what).parts[:2]), *cost)
        all_of_it = [sum(column) for column in zip([0.0, 0.0, 0], *self._of.values(), strict=True)]
        return ["   CPU s  worker s  tests", *self._rows()[:ROWS], "", *directories._rows(), _row("in all", all_of_it)]

    def _rows(self) -> list[str]:
        return [_row(what, cost) for what, cost in sorted(self._of.items(), key=lambda each: -each[1][0])]


def _row(what: str, cost: list[float]) -> str:
    cpu, elapsed, tests = cost
    return f"{cpu:8.1f} {elapsed:9.1f} {tests:6.0f}  {what}"


def cpu_seconds() -> float:
    """CPU seconds of this process, of its children that have ended, and of those that run."""
    ended = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in ended) + sum(map(_of_running, _children(os.getpid())))


def _of_running(pid: int) -> float:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:15]
    return sum(map(int, fields)) / TICKS + sum(map(_of_running, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 thousands of calls
    except OSError:  # it has ended; or the system has no /proc
        return []
    return [int(child) for thread in threads for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
