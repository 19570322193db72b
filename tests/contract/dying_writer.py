"""A process that writes to a sink, and is killed at a line of its code; and what is wrong with what it leaves."""

from __future__ import annotations

import json
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


def find_crash_anomalies(sink: Sink, read: Callable[[], list[int]]) -> tuple[int, list[str]]:
    """Kills a writer at each line of a write in turn, each followed by a restart; returns the lines and what is wrong.

    `read`: the numbers that the target has, in order.
    """
    anomalies = []
    connection = sink.open(CONSUMER)
    line, first, is_killed = 0, 0, True
    with dying_writer(sink) as write:
        while is_killed:
            line += 1
            is_killed = write(line, first)
            before, after = list(range(first)), list(range(first + ROWS))
            if (found := read()) not in (before, after):
                anomalies.append(f"line {line}: {found[first:]} of {ROWS} rows")
            resume(connection, sink.evidence, first)
            if (found := read()) != after:
                anomalies.append(f"line {line}, restarted: {found[first:]} instead of {after[first:]}")
                break
            first += ROWS
    connection.close()
    return line - 1, anomalies


@contextmanager
def dying_writer(sink: Sink) -> Iterator[Callable[[int, int], bool]]:
    """A function of a line and the number of a first row, whose process writes these rows until it is killed there.

    It returns whether the process was killed: there are not more lines otherwise.
    """
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

    def send(content: bytes) -> None:
        commands.write(len(content).to_bytes(4, "big") + content)
        commands.flush()

    def write(line: int, first: int) -> bool:
        send(json.dumps([line, first]).encode())
        answer = answers.readline()
        assert answer in (b"killed\n", b"finished\n"), answer
        return answer == b"killed\n"

    send(pickle.dumps(sink))
    try:
        yield write
    finally:
        commands.close()
        answers.close()
        process.wait(60)


def _write(sink: Sink, line: int, first: int) -> None:
    """Writes three rows, and kills this process at the line of a sink's modules that is the nth it comes to."""
    connection = sink.open(CONSUMER)
    expected = connection.positions([INPUT])
    lines = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))
            if len(lines) == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    connection.write(rows_from(first), {INPUT: first + ROWS}, expected)
    sys.settrace(None)


def main() -> None:
    """Forks a writer for each command: a process that starts Python for each takes ten times as long."""
    import psycopg  # noqa: F401, PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415
    import redis  # noqa: F401, PLC0415

    from kstreams_py.sinks import manifest  # noqa: PLC0415

    pa.array([0])  # imports pandas
    vars(manifest)["MERGED_AT_ONCE"] = 2  # so that nearly each write merges files

    def receive() -> bytes:
        return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big"))

    sink: Sink = pickle.loads(receive())
    while command := receive():
        line, first = json.loads(command)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _write(sink, line, first)
                status = 0
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "finished", -signal.SIGKILL: "killed"}.get(code, f"failed with {code}"), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
