"""A process that writes to a sink, and is killed at a point of its code; and what is wrong with what it leaves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from kstreams_py.errors import StaleWriter
from kstreams_py.graph.sink import Evidence, Row, Sink, SinkConnection
from kstreams_py.records import TopicPartition
from tests.contract.dying_process import ROOT, dying_processes, kill_this_process, serve

TRACED: Final = (str(ROOT / "kstreams_py" / "sinks"), str(ROOT / "tests" / "contract" / "naive_sink.py"))
CONSUMER: Final = "graph.processor"
INPUT: Final = TopicPartition("in", 0)
ROWS: Final = 3
"""Rows of one write."""


def rows_from(first: int) -> list[Row]:
    return [Row(number.to_bytes(16, "big"), (number,)) for number in range(first, first + ROWS)]


def resume(connection: SinkConnection, evidence: Evidence, first: int) -> None:
    """Writes as a worker does that starts again: from the offsets of the target, or again if it stores hashes."""
    end = {INPUT: first + ROWS}
    while True:
        stored = connection.positions([INPUT])
        if stored == end:
            return
        try:
            connection.write(rows_from(first), end, stored)
        except StaleWriter:  # the target committed what its dead writer had sent
            continue
        if evidence is Evidence.HASH:
            return


Write = Callable[[Sink, int, int, bool], bool]
"""Writes rows from a number on, in a process that dies at a point; returns whether it did: else there are no more."""


def find_crash_anomalies(
    write: Write, sink: Sink, read: Callable[[], list[int]], *, at_each_line: bool
) -> tuple[int, list[str]]:
    """Kills a writer at each point of a write in turn, and restarts it; returns the points, and what is wrong.

    Points are the lines of the sink's modules, or those of them that follow a call out of these modules: a process
    that dies leaves what it has told others, and between two such calls it changes nothing but its memory.

    `read`: the numbers that the target has, in order.
    """
    anomalies = []
    connection = sink.open(CONSUMER)
    point, first, is_killed = 0, 0, True
    while is_killed:
        point += 1
        is_killed = write(sink, point, first, at_each_line)
        before, after = list(range(first)), list(range(first + ROWS))
        if (found := read()) not in (before, after):
            anomalies.append(f"point {point}: {found[first:]} of {ROWS} rows")
        resume(connection, sink.evidence, first)
        if (found := read()) != after:
            anomalies.append(f"point {point}, restarted: {found[first:]} instead of {after[first:]}")
            break
        first += ROWS
    connection.close()
    return point - 1, anomalies


@contextmanager
def dying_writer() -> Iterator[Write]:
    """A process that forks a writer for each call: it imports the clients once."""
    with dying_processes("tests.contract.dying_writer") as run:
        yield partial(run, _write)


def _write(sink: Sink, point: int, first: int, at_each_line: bool) -> None:
    """Writes three rows, and kills this process at the nth point that it comes to."""
    connection = sink.open(CONSUMER)
    expected = connection.positions([INPUT])
    lines, points, has_called = set(), 0, True

    def is_traced(frame: FrameType | None) -> bool:
        return frame is not None and frame.f_code.co_filename.startswith(TRACED)

    def see_call(frame: FrameType, event: str, function: Any) -> None:
        nonlocal has_called
        if event == "c_call" and is_traced(frame):
            has_called |= (function.__module__ or type(function.__self__).__module__) != "builtins"
        elif event == "call" and is_traced(frame.f_back):
            has_called |= not is_traced(frame)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal points, has_called
        if not is_traced(frame):
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in lines:
            lines.add(line)
            points += at_each_line or has_called
            has_called = False
            if points == point:
                kill_this_process()
        return trace

    sys.setprofile(see_call)
    sys.settrace(trace)
    connection.write(rows_from(first), {INPUT: first + ROWS}, expected)
    sys.settrace(None)
    sys.setprofile(None)


def main() -> None:
    import psycopg  # noqa: F401, PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415
    import redis  # noqa: F401, PLC0415

    from kstreams_py.sinks import manifest  # noqa: PLC0415

    pa.array([0])  # imports pandas
    vars(manifest)["MERGED_AT_ONCE"] = 2  # so that nearly each write merges files
    serve()


if __name__ == "__main__":
    main()
