"""running/pipe.py: the reports and the error that a worker sends to its supervisor."""

from __future__ import annotations

import fcntl
import json
import os
import select
from collections.abc import Iterator

import pytest

from kstreams_py.errors import TopicError
from kstreams_py.running.pipe import REPORT_FD, report_error, report_writer
from kstreams_py.running.reports import Report


def test_report_error_writes_to_the_supervisor_and_is_false_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(REPORT_FD, raising=False)
    assert not report_error(TopicError("no\nsuch topic"))
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    assert report_error(TopicError("no\nsuch topic"))
    assert os.read(reading, 10_000) == b'{"error": "TopicError: no\\nsuch topic"}\n'
    os.close(reading)
    assert not report_error(TopicError("no\nsuch topic"))
    os.close(writing)


def test_report_writer_writes_to_the_supervisor_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REPORT_FD, raising=False)
    assert report_writer() is None
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    write = report_writer()
    assert write is not None
    reports = [Report("p", 0, {"commits": 1}, 3), Report("q", 0, {"commits": 2}, None)]
    write(reports)
    assert [Report(**json.loads(line)) for line in os.read(reading, 10_000).splitlines()] == reports
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        write(reports)
    os.close(writing)


SMALLEST = 4_096
"""Bytes that a pipe holds at least, on Linux."""


@pytest.fixture
def full_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ends of a small pipe to a supervisor, filled with reports that are not read."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, SMALLEST)
    monkeypatch.setenv(REPORT_FD, str(writing))
    write = report_writer()
    assert write is not None
    for commits in range(SMALLEST // 50):
        write([Report("p", 0, {"commits": commits}, 3), Report("q", 0, {"commits": commits}, 3)])
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_full_pipe_takes_no_more_reports_and_never_a_part_of_one(full_pipe: tuple[int, int]) -> None:
    reading, _ = full_pipe
    data = os.read(reading, 2 * SMALLEST)
    assert data.endswith(b"\n")
    reports = [Report(**json.loads(line)) for line in data.splitlines()]
    assert 10 < len(reports) < 100
    assert reports == [Report("pq"[i % 2], 0, {"commits": i // 2}, 3) for i in range(len(reports))]
    write = report_writer()
    assert write is not None
    write(reports[:1])
    assert [Report(**json.loads(line)) for line in os.read(reading, SMALLEST).splitlines()] == reports[:1], (
        "written once the pipe was read"
    )


def test_error_that_a_full_pipe_does_not_take_is_left_to_the_worker(full_pipe: tuple[int, int]) -> None:
    reading, _ = full_pipe
    error = TopicError("no such topic: " + "a" * 249)
    assert not report_error(error)
    assert b"error" not in os.read(reading, 2 * SMALLEST)
    assert report_error(error)


def test_error_that_is_too_long_for_one_atomic_write_is_left_to_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    most = select.PIPE_BUF - len('{"error": "TopicError: "}\n')
    assert [report_error(TopicError("a" * length)) for length in (most, most + 1)] == [True, False]
    assert len(os.read(reading, 100_000)) == select.PIPE_BUF
    os.close(reading)
    os.close(writing)
