"""The pipe from a worker to its supervisor: lines of JSON, written without waiting.

Each report is a line with the fields of bounded size. Fields of unbounded size follow in lines of their own, as many in
each as fit, and only if they have changed: measures, texts (TEXTS), the pending inputs of each source, and the lags of
partitions. If the pipe does not take such a line, its fields are written with a later report.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from kstreams_py.errors import KStreamsError
from kstreams_py.metrics import PendingFigures, WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.reports import Report

REPORT_FD: Final = "KSTREAMS_REPORT_FD"
"""The environment variable with the file descriptor to which a worker writes its reports and its last error."""

ITEMS_MAX: Final = 2_048
"""The maximum size of a line of several items, in bytes: it must fit beside bounded lines in Linux's smallest pipe."""

TEXTS: Final = ("failure", "why", "hidden")
"""The fields of a report that are texts of any length."""

TEXT_MAX: Final = 400
"""The maximum length of a text in a report."""


def report_writer() -> Callable[[Sequence[Report]], None] | None:
    """Returns a function that writes reports to the supervisor of this process; None without a supervisor.

    The function does not wait: while the pipe is full because the supervisor is stopped, reports are dropped. It raises
    BrokenPipeError if the supervisor has ended.
    """
    fd = os.environ.get(REPORT_FD)
    return None if fd is None else _Writer(int(fd)).write


def report_drained(*, are_inputs_done: bool = False) -> None:
    """Reports to the supervisor that this worker has drained.

    - `are_inputs_done`: the worker has ended because the sources of its graph have no input left.

    Waits while the pipe is full: without this line, status 0 means that a function has ended the process.
    """
    fd = int(os.environ[REPORT_FD])
    os.set_blocking(fd, True)
    with suppress(BrokenPipeError):  # the supervisor has ended
        os.write(fd, b"\n" + _line({"drained": True, "inputs_done": are_inputs_done}))


def report_error(error: KStreamsError) -> bool:
    """Reports to the supervisor the error that ends this worker.

    Returns False if there is no supervisor, or its pipe takes no more: the caller must then show the error itself.
    """
    fd = os.environ.get(REPORT_FD)
    if fd is None:
        return False
    try:
        line = b"\n" + _line({"error": f"{type(error).__name__}: {error}"})  # \n ends a report that was cut
        return _write(int(fd), line) == len(line)
    except OSError:
        return False


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _write(fd: int, data: bytes) -> int:
    """Writes without waiting; returns how many bytes the pipe has taken.

    Up to PIPE_BUF bytes (4,096 on Linux, 512 on macOS) are written whole or not at all; more may be cut if the pipe is
    almost full.
    """
    os.set_blocking(fd, False)
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0


Item = tuple[Any, ...]
"""A part of the unbounded fields: ("measure", name, value), ("why", text), ("source", name, figures)."""


class _Writer:
    """Writes the reports of one worker process; remembers what the supervisor has received for each processor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_cut = False
        """Whether the pipe took only a part of the last line."""
        self._sent: dict[str, dict[Item, Any]] = {}
        self._generations: dict[str, int] = {}
        """How often each processor has lost items, such as lags: the supervisor then discards older items."""

    def write(self, reports: Sequence[Report]) -> None:
        """Writes all bounded lines first: a supervisor must hear of every loop, even if nothing else fits."""
        all_items = {report.processor: _items(report) for report in reports}
        for report in reports:
            items = all_items[report.processor]
            sent = self._sent.setdefault(report.processor, {})
            if not sent.keys() <= items.keys():
                self._generations[report.processor] = self._generations.get(report.processor, 0) + 1
                sent.clear()
            generation = self._generations.get(report.processor, 0)
            self._write_line(_line({**report.head(), "generation": generation}))
        for report in reports:
            sent = self._sent[report.processor]
            newest = all_items[report.processor].items()
            changed = [each for each in newest if each[0] not in sent or sent[each[0]] != each[1]]
            if not self._write_items(report.processor, changed):
                return

    def _write_items(self, processor: str, items: Sequence[tuple[Item, Any]]) -> bool:
        """Writes items in as many lines as they need; returns False if the pipe takes no more."""
        if not items:
            return True
        generation = self._generations.get(processor, 0)
        line = _line(
            {"processor": processor, "generation": generation, "items": [[*name, value] for name, value in items]}
        )
        if len(line) > ITEMS_MAX and len(items) > 1:
            half = len(items) // 2
            return self._write_items(processor, items[:half]) and self._write_items(processor, items[half:])
        if not self._write_line(line):
            return False
        self._sent[processor].update(items)
        return True

    def _write_line(self, line: bytes) -> bool:
        """Writes a line; returns False if the pipe does not take all of it."""
        data = b"\n" + line if self._is_cut else line
        written = _write(self._fd, data)
        if written:
            self._is_cut = written < len(data)
        return written == len(data)


def _items(report: Report) -> dict[Item, Any]:
    """Returns the unbounded parts of a report, by name."""
    items: dict[Item, Any] = {("measure", name): value for name, value in report.measures.items()}
    items |= {(name,): text[:TEXT_MAX] for name in TEXTS if (text := getattr(report, name))}
    items |= {("lag", *tp): lag for tp, lag in report.lags.items()}
    items |= {("source", name): each._replace(why=each.why[:TEXT_MAX]) for name, each in report.sources.items()}
    return items


def as_figures(values: Sequence[Any]) -> PendingFigures:
    """Returns figures that were sent as JSON."""
    found = PendingFigures(*values)
    return found._replace(tasks=tuple(found.tasks))


class PipeReader:
    """The supervisor's end of one worker's pipe: decodes reports from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""
        self._heads: dict[str, Report] = {}
        self.has_drained = False
        """Whether the worker has reported that it has drained."""
        self.are_inputs_done = False
        """Whether the worker has drained because its sources have no input left."""
        self._items: dict[str, tuple[int, dict[Item, Any]]] = {}
        """The newest items of each processor, and their generation."""

    def feed(self, data: bytes) -> list[Report | str]:
        """Takes bytes, and returns the newest report of each processor for which they complete a line.

        A line of items gives the newest report once more, with these items. A str is the error that ends the worker.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        found: dict[str, Report | str] = {}
        for line in lines:
            with suppress(ValueError):  # the line was cut because the pipe was full
                fields = json.loads(line)
                if "drained" in fields:
                    self.has_drained = True
                    self.are_inputs_done |= fields.get("inputs_done", False)
                elif "error" in fields:
                    found[""] = str(fields["error"])
                else:
                    self._read(fields)
                    found[fields["processor"]] = ""
        return [error or self._whole(name) for name, error in found.items() if error or name in self._heads]

    def forget(self) -> None:
        """Discards the newest reports, which are out of date; items are kept."""
        self._heads = {}

    def _read(self, fields: dict[str, Any]) -> None:
        processor, generation = fields["processor"], fields.pop("generation", 0)
        if self._items.get(processor, (-1, {}))[0] != generation:
            self._items[processor] = generation, {}
        items = self._items[processor][1]
        if (sent := fields.get("items")) is None:
            fields["state"] = WorkerState(fields.get("state", WorkerState.RUNNING))
            self._heads[processor] = Report(**fields)
        else:
            items.update({tuple(each[:-1]): each[-1] for each in sent})

    def _whole(self, processor: str) -> Report:
        """Returns the newest report of a processor, with its items."""
        head, items = self._heads[processor], self._items[processor][1]
        if not items:
            return head
        return replace(
            head,
            measures={name[1]: value for name, value in items.items() if name[0] == "measure"},
            lags={TopicPartition(name[1], name[2]): value for name, value in items.items() if name[0] == "lag"},
            sources={name[1]: as_figures(value) for name, value in items.items() if name[0] == "source"},
            **{name: items.get((name,), "") for name in TEXTS},
        )
