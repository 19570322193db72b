"""A process that writes to a sink, and is killed at a point of its code; and what is wrong with what it leaves."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kstreams_py.errors import StaleWriter
from kstreams_py.graph.sink import Evidence, Row, Sink, SinkConnection
from kstreams_py.records import TopicPartition

ROOT: Final = Path(__file__).parents[2]
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
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.dying_writer"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    commands, answers = process.stdin, process.stdout

    def write(sink: Sink, point: int, first: int, at_each_line: bool) -> bool:
        content = pickle.dumps((sink, point, first, at_each_line))
        commands.write(len(content).to_bytes(4, "big") + content)
        commands.flush()
        answer = answers.readline()
        assert answer in (b"killed\n", b"finished\n"), answer
        return answer == b"killed\n"

    try:
        yield write
    finally:
        commands.close()
        answers.close()
        process.wait(60)


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
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.setprofile(see_call)
    sys.settrace(trace)
    connection.write(rows_from(first), {INPUT: first + ROWS}, expected)
    sys.settrace(None)
    sys.setprofile(None)


def main() -> None:
    """Forks a writer for each command: a process that starts Python for each takes ten times as long."""
    import psycopg  # noqa: F401, PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415
    import redis  # noqa: F401, PLC0415

    from kstreams_py.sinks import manifest  # noqa: PLC0415

    pa.array([0])  # imports pandas
    vars(manifest)["MERGED_AT_ONCE"] = 2  # so that nearly each write merges files
    while content := sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big")):
        command = pickle.loads(content)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _write(*command)
                status = 0
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "finished", -signal.SIGKILL: "killed"}.get(code, f"failed with {code}"), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
