"""running/pipe.py: the reports and the error that a worker sends to its supervisor."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterator

import pytest

from kstreams_py.errors import TopicError
from kstreams_py.running.pipe import REPORT_FD, PipeReader, report_error, report_writer
from kstreams_py.running.reports import Report


def test_report_error_writes_to_the_supervisor_and_is_false_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(REPORT_FD, raising=False)
    assert not report_error(TopicError("no\nsuch topic"))
    reading, writing = os.pipe()
    monkeypatch.setenv(REPORT_FD, str(writing))
    assert report_error(TopicError("no\nsuch topic"))
    assert os.read(reading, 10_000) == b'\n{"error": "TopicError: no\\nsuch topic"}\n'
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


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ends of a pipe to a supervisor, which is stopped."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setenv(REPORT_FD, str(writing))
    yield reading, writing
    os.close(reading)
    os.close(writing)


def make_report(number: int, length: int) -> Report:
    """A report whose line has so many bytes."""
    report = Report("p", 0, {"commits": number}, 3)
    return Report("p" * (1 + length - len(line_of(report))), 0, report.counters, 3)


def line_of(report: Report) -> bytes:
    return json.dumps(report.as_dict()).encode() + b"\n"


LARGEST = 1 << 18
"""More bytes than a new pipe holds, on Linux (65,536) or macOS."""


def fill(length: int) -> list[Report]:
    """Writes more reports than the pipe takes, each of so many bytes; returns all of them."""
    write = report_writer()
    assert write is not None
    written = [make_report(10_000 + number, length) for number in range(LARGEST // length)]
    write(written)
    return written


def read_all(pipe: tuple[int, int]) -> bytes:
    """All that the pipe holds."""
    data = b""
    while select.select([pipe[0]], [], [], 0)[0]:
        data += os.read(pipe[0], 1 << 20)
    return data


def test_full_pipe_takes_no_more_reports_and_never_a_part_of_one(pipe: tuple[int, int]) -> None:
    written = fill(500)
    data = read_all(pipe)
    assert data.endswith(b"\n")
    reports = PipeReader().feed(data)
    assert 10 < len(reports) < len(written)
    assert reports == written[: len(reports)]
    write = report_writer()
    assert write is not None
    write(written[:1])
    assert PipeReader().feed(read_all(pipe)) == written[:1], "written once the pipe was read"


def test_report_that_is_cut_by_a_full_pipe_is_left_out_and_an_error_after_it_arrives(pipe: tuple[int, int]) -> None:
    """With 512 bytes, PIPE_BUF of macOS, each report is such a one."""
    written = fill(3 * select.PIPE_BUF - 100)
    error = TopicError("no such topic")
    assert not report_error(error)
    first = os.read(pipe[0], 2 * select.PIPE_BUF)
    rest = read_all(pipe)
    assert not (first + rest).endswith(b"\n"), "the last report is cut"
    assert report_error(error)
    reader = PipeReader()
    reports = [*reader.feed(first), *reader.feed(rest)]
    assert reports == written[: len(reports)]
    assert 2 < len(reports) < len(written)
    assert reader.feed(read_all(pipe)) == ["TopicError: no such topic"]
    write = report_writer()
    assert write is not None
    write(written[:1])
    assert reader.feed(read_all(pipe)) == written[:1]


def test_error_of_any_length_is_reported_unless_the_pipe_is_full(pipe: tuple[int, int]) -> None:
    error = TopicError("a" * 2 * select.PIPE_BUF)
    assert report_error(error)
    assert PipeReader().feed(read_all(pipe)) == [f"TopicError: {error}"]
    fill(500)
    assert not report_error(error)
    assert [each for each in PipeReader().feed(read_all(pipe)) if isinstance(each, str)] == []
