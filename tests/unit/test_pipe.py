"""running/pipe.py: the reports and the error that a worker sends to its supervisor."""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from kstreams_py.errors import TopicError
from kstreams_py.metrics import PendingFigures, WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.pipe import REPORT_FD, TEXT_MAX, TEXTS, PipeReader, report_error, report_writer
from kstreams_py.running.reports import Report

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)


def test_report_error_writes_to_the_supervisor_and_is_false_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert PipeReader().feed(os.read(reading, 10_000)) == reports
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
    reports = [PipeReader().feed(line + b"\n")[0] for line in data.splitlines()]
    assert 10 < len(reports) < 100
    assert reports == [Report("pq"[i % 2], 0, {"commits": i // 2}, 3) for i in range(len(reports))]
    write = report_writer()
    assert write is not None
    write([Report("p", 0, {"commits": 0}, 3)])
    assert PipeReader().feed(os.read(reading, SMALLEST)) == reports[:1], "written once the pipe was read"


def test_error_that_a_full_pipe_does_not_take_is_left_to_the_worker(full_pipe: tuple[int, int]) -> None:
    reading, _ = full_pipe
    error = TopicError("no such topic: " + "a" * 249)
    assert not report_error(error)
    assert b"error" not in os.read(reading, 2 * SMALLEST)
    assert report_error(error)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """The ends of an empty pipe to a supervisor."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setenv(REPORT_FD, str(writing))
    yield reading, writing
    os.close(reading)
    os.close(writing)


LARGEST: Final = 1 << 18
"""More bytes than a new pipe holds, on Linux (65,536) or macOS."""


def fill(length: int) -> list[Report]:
    """Writes more reports than the pipe takes, each a line of so many bytes or more; returns all of them."""
    write = report_writer()
    assert write is not None
    written = [Report(f"{number:06}" + "p" * length, 0, {"commits": 1}, 3) for number in range(LARGEST // length)]
    write(written)
    return written


def test_report_that_is_cut_by_a_full_pipe_is_left_out_and_an_error_after_it_arrives(pipe: tuple[int, int]) -> None:
    """With 512 bytes, PIPE_BUF of macOS, each report is such a one."""
    written = fill(3 * select.PIPE_BUF - 100)
    error = TopicError("no such topic")
    assert not report_error(error)
    first = os.read(pipe[0], 2 * select.PIPE_BUF)
    rest = read_all(pipe[0])
    assert not (first + rest).endswith(b"\n"), "the last report is cut"
    assert report_error(error)
    reader = PipeReader()
    reports = [*reader.feed(first), *reader.feed(rest)]
    assert reports == written[: len(reports)]
    assert 2 < len(reports) < len(written)
    assert reader.feed(read_all(pipe[0])) == ["TopicError: no such topic"]


def test_what_a_full_pipe_cut_is_written_again_with_the_next_report(pipe: tuple[int, int]) -> None:
    write, reader, last = report_writer(), PipeReader(), Report("p", 0, {"commits": 1}, 3)
    assert write is not None
    write(
        [Report("q" * 3 * select.PIPE_BUF, 0, {"commits": number}, 3) for number in range(LARGEST // select.PIPE_BUF)]
    )
    reader.feed(read_all(pipe[0]))
    write([last])
    assert reader.feed(read_all(pipe[0])) == [last]


def test_error_of_any_length_is_reported_unless_the_pipe_is_full(pipe: tuple[int, int]) -> None:
    error = TopicError("a" * 2 * select.PIPE_BUF)
    assert report_error(error)
    assert PipeReader().feed(read_all(pipe[0])) == [f"TopicError: {error}"]
    fill(500)
    assert not report_error(error)
    assert [each for each in PipeReader().feed(read_all(pipe[0])) if isinstance(each, str)] == []


# What is not bounded.


def make_report(commits: int, lags: dict[TopicPartition, int | None], **fields: Any) -> Report:
    return Report("p", 0, {"commits": commits}, 3, lags=lags, **fields)


def make_lags(count: int, lag: int = 7) -> dict[TopicPartition, int | None]:
    return {TopicPartition("a-topic-with-a-long-name", number): lag for number in range(count)}


def read_all(reading: int) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(reading, 1 << 16)
        except BlockingIOError:
            return data


def test_whole_report_arrives_and_only_what_has_changed_is_written_again(pipe: tuple[int, int]) -> None:
    write, reader = report_writer(), PipeReader()
    assert write is not None
    measures = {"renewals:fenced": 1.0, "step_seconds:2": 40.0}
    sources = {"rows": PendingFigures(3, 1.5, "7", ("parse", "store"), "locked"), "more": PendingFigures()}
    first = make_report(
        1, {A0: 5, B0: None}, measures=measures, failure="KeyError: 'x'", state=WorkerState.SPARE, open_seconds=0.5,
        is_task=True, sources=sources,
    )  # fmt: skip
    write([first])
    assert reader.feed(read_all(pipe[0])) == [first]
    second = replace(
        first, counters={"commits": 2}, lags={A0: 4, B0: None}, measures={**measures, "step_seconds:2": 41.0},
        sources={**sources, "more": PendingFigures(1)},
    )  # fmt: skip
    write([second])
    data = read_all(pipe[0])
    assert b'["lag", "a", 0, 4]' in data
    assert b"renewals" not in data
    assert b'"b"' not in data
    assert b'"rows"' not in data
    assert reader.feed(data) == [second]
    write([second])
    assert read_all(pipe[0]).count(b"\n") == 1


def test_more_partitions_than_a_line_holds_arrive_in_several_lines(pipe: tuple[int, int]) -> None:
    write, reader = report_writer(), PipeReader()
    assert write is not None
    write([make_report(1, make_lags(1_000))])
    data = read_all(pipe[0])
    assert max(map(len, data.splitlines(keepends=True))) <= select.PIPE_BUF
    assert len(data.splitlines()) > 10
    assert reader.feed(data) == [make_report(1, make_lags(1_000))]


def test_more_partitions_than_the_pipe_holds_arrive_over_several_reports(pipe: tuple[int, int]) -> None:
    fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, SMALLEST)
    write, reader, whole = report_writer(), PipeReader(), make_report(1, make_lags(1_000))
    assert write is not None
    counts = [0]
    for _ in range(100):
        write([whole])
        (report,) = reader.feed(read_all(pipe[0]))
        assert isinstance(report, Report)
        assert report.counters == whole.counters, "each report arrives, however many partitions wait"
        counts.append(len(report.lags))
        if counts[-1] == 1_000:
            break
    assert len(counts) > 5
    assert counts == sorted(set(counts)), "some are added each time"
    assert report == whole


def test_partitions_that_a_worker_has_lost_are_forgotten(pipe: tuple[int, int]) -> None:
    write, reader = report_writer(), PipeReader()
    assert write is not None
    seen = []
    for lags in ({A0: 1, B0: 2}, {B0: 2}, {}, {A0: 9}):
        write([make_report(1, dict(lags))])
        seen += reader.feed(read_all(pipe[0]))
    assert [each.lags for each in seen if isinstance(each, Report)] == [{A0: 1, B0: 2}, {B0: 2}, {}, {A0: 9}]


def test_reader_that_forgets_old_reports_keeps_their_partitions_for_the_next(pipe: tuple[int, int]) -> None:
    write, reader = report_writer(), PipeReader()
    assert write is not None
    write([make_report(1, {A0: 1})])
    reader.feed(read_all(pipe[0]))
    reader.forget()
    assert reader.feed(b'{"processor": "p", "generation": 0, "items": [["lag", "b", 0, 2]]}\n') == []
    write([make_report(2, {A0: 1, B0: 2})])
    assert reader.feed(read_all(pipe[0])) == [make_report(2, {A0: 1, B0: 2})]


@pytest.mark.parametrize("name", TEXTS)
def test_text_arrives_cut_and_is_gone_when_it_is_empty_again(pipe: tuple[int, int], name: str) -> None:
    write, reader = report_writer(), PipeReader()
    assert write is not None
    write([make_report(1, {A0: 1}, **{name: "\x01" * 10_000})])
    (report,) = reader.feed(read_all(pipe[0]))
    assert report == make_report(1, {A0: 1}, **{name: "\x01" * TEXT_MAX})
    write([make_report(2, {A0: 1})])
    assert reader.feed(read_all(pipe[0])) == [make_report(2, {A0: 1})]
