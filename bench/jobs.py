"""Measures graphs of channels: `scripts/bench jobs`. No broker is started.

- *memory*: a queue in memory, three tasks, a sink in memory; 100 bytes a value.
- *SQLite*: the rows of a table in SQLite to a table in another file, each once by its hash.
- *latency*: from the call that adds an input to the write of its row, at 1,000 a second, in memory.
- *acker*: acknowledgements of three copies of an input, and its memory before and after.
- *RSS*: the memory of a process that runs the tasks of the row *memory*, then again with ten times as many inputs.

Each row runs once in each round, and the figures are medians. Ends with status 1 if a requirement is missed, which
other load on the machine may cause.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.graph.source import Claim
from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.identity import new_ids, new_patterns
from kstreams_py.jobs.job import Job
from kstreams_py.records import Positions

VALUE: Final = b"x" * 100

RATE: Final = 1_000
"""Inputs a second of the row *latency*."""

LATENCY_INPUTS: Final = 5_000


class Target(NamedTuple):
    """A requirement: the least, or the most, of a figure."""

    figure: str
    least: float = 0.0
    most: float = float("inf")

    @property
    def is_bounded(self) -> bool:
        """Whether anything is required of the figure."""
        return self.least > 0 or self.most < float("inf")


TARGETS: Final = (
    Target("memory, segments/s", least=200_000),
    Target("memory, µs of CPU a segment", most=5),
    Target("SQLite, rows/s", least=50_000),
    Target("latency, median ms", most=1),
    Target("latency, p99 ms", most=10),
    Target("acker, acks/s", least=1_000_000),
    Target("acker, entries left", most=0),
    Target("RSS, peak MB"),
    Target("RSS, MB more at the peak of ten times the inputs", most=5),
    Target("RSS, MB more after these", most=5),
)


class Stored:
    """A sink and its target in memory, which notes when it was written."""

    columns = ("value",)
    evidence = Evidence.HASH

    def __init__(self) -> None:
        self.written_at: dict[Any, float] = {}
        self.count = 0

    def open(self, _: str) -> Stored:
        return self

    def write(self, rows: Sequence[Row], _: Positions, __: Positions) -> int:
        now = time.perf_counter()
        self.count += len(rows)
        if isinstance(rows[0].values[0], int):
            self.written_at |= {row.values[0]: now for row in rows}
        return len(rows)

    def positions(self, _: object) -> Positions:
        return {}

    def close(self) -> None:
        """There is nothing to close."""


class Queue:
    """A source in memory, as lean as a source can be: it keeps a count of what was acknowledged, and no claims."""

    lease = float("inf")
    identity = ""
    waits_alone = False
    refused = 0

    def __init__(self, values: Sequence[Any] = (), *, ends: bool = True) -> None:
        self.values, self._ends = [*values], ends
        self._read, self._done = 0, 0
        self._wake: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        return "a queue"

    def add(self, value: Any) -> None:
        self.values.append(value)
        self._wake()

    def wake_by(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def open(self, _: str) -> Queue:
        return self

    @property
    def is_exhausted(self) -> bool:
        return self._ends and self._done == len(self.values)

    def read(self, limit: int, *, alone: bool) -> list[Claim]:  # noqa: ARG002, nothing is read twice
        begin = self._read
        found = self.values[begin : begin + limit]
        self._read += len(found)
        return [Claim(number, value, 0, None) for number, value in enumerate(found, begin)]

    def ack(self, claims: Sequence[Claim]) -> None:
        self._done += len(claims)

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        raise AssertionError(claims[0])

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """Drops them: the run is over."""

    def keep(self) -> None:
        """There is no claim to keep."""

    def close(self) -> None:
        """There is nothing to close."""


class Counted(Queue):
    """The same, with values that are made as they are read: a list of them would be what is measured."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    @property
    def is_exhausted(self) -> bool:
        return self._done == self._count

    def read(self, limit: int, *, alone: bool) -> list[Claim]:  # noqa: ARG002, nothing is read twice
        begin, self._read = self._read, min(self._read + limit, self._count)
        return [Claim(number, bytes(len(VALUE)), 0, None) for number in range(begin, self._read)]


def make_chain(source: Queue, sink: Stored) -> ks.Graph:
    """Returns a graph of three tasks."""
    graph = ks.Graph("bench")
    rows, parsed, enriched = graph.source("rows", source), graph.channel("parsed"), graph.channel("enriched")
    graph.map(rows, to=parsed, id="parse")(lambda value: value)
    graph.map(parsed, to=enriched, id="enrich")(lambda value: value)
    graph.sink(enriched, to=sink, id="store")(lambda value: (value,))
    graph.validate()
    return graph


def measure_memory(inputs: int) -> dict[str, float]:
    """Measures a job in memory."""
    sink = Stored()
    graph = make_chain(Queue([VALUE] * inputs), sink)
    began, worked = time.perf_counter(), time.process_time()
    Job("bench", graph.tasks, JobEnvironment()).run(lambda: False)
    seconds, worked = time.perf_counter() - began, time.process_time() - worked
    assert sink.count == inputs
    return {"memory, segments/s": inputs / seconds, "memory, µs of CPU a segment": worked / inputs * 1e6}


def measure_sqlite(directory: Path, inputs: int) -> dict[str, float]:
    """Measures rows from one file to another."""
    source, target = directory / "source.db", directory / "target.db"
    for path in (source, target):
        path.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", ((n, "x" * 100) for n in range(inputs)))
    graph = ks.Graph("bench")
    rows = graph.source("rows", sources.SQLite(source, table="orders", key="id", ends=True))
    stored = sinks.SQLite(target, table="stored", columns={"id": int, "item": str})
    graph.sink(rows, to=stored, id="store")(lambda row: (row["id"], row["item"]))
    graph.validate()
    began = time.perf_counter()
    Job("bench", graph.tasks, JobEnvironment()).run(lambda: False)
    seconds = time.perf_counter() - began
    with closing(sqlite3.connect(target)) as connection:
        assert connection.execute("SELECT count(*) FROM stored").fetchone() == (inputs,)
    return {"SQLite, rows/s": inputs / seconds}


def measure_latency() -> dict[str, float]:
    """Measures the time from an input to its row while inputs come one by one."""
    source, sink, added = Queue(ends=False), Stored(), dict[int, float]()
    graph = make_chain(source, sink)
    job, ended = Job("bench", graph.tasks, JobEnvironment()), threading.Event()
    thread = threading.Thread(target=job.run, args=(ended.is_set,))
    thread.start()
    began = time.perf_counter()
    for number in range(LATENCY_INPUTS):
        while time.perf_counter() < began + number / RATE:
            time.sleep(0.0002)
        added[number] = time.perf_counter()
        source.add(number)
    while len(sink.written_at) < LATENCY_INPUTS:
        time.sleep(0.01)
    ended.set()
    thread.join()
    waits = sorted((sink.written_at[number] - at) * 1000 for number, at in added.items())
    return {"latency, median ms": median(waits), "latency, p99 ms": quantiles(waits, n=100)[-1]}


def measure_acker(inputs: int) -> dict[str, float]:
    """Measures acknowledgements of three copies of each input."""
    acker, acks, seconds = Acker(), 0, 0.0
    for _ in range(0, inputs, 1_000):
        ids = new_ids(os.urandom, 1_000)
        copies = [new_patterns(os.urandom, 1_000) for _ in range(3)]
        began = time.perf_counter()
        acker.open(ids, [one ^ two ^ three for one, two, three in zip(*copies, strict=True)])
        done = [acker.ack(ids, patterns) for patterns in copies]
        seconds += time.perf_counter() - began
        acks += 3_000
        assert done == [[], [], ids]
    return {"acker, acks/s": acks / seconds, "acker, entries left": len(acker)}


def run_counted(inputs: int) -> tuple[float, float]:
    """Runs a job; returns the most MB of memory that this process has ever had, and those that it has now."""
    sink = Stored()
    Job("bench", make_chain(Counted(inputs), sink).tasks, JobEnvironment()).run(lambda: False)
    assert sink.count == inputs
    gc.collect()
    # the maximum that getrusage returns may be that of the process that started this one
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak, now = (int(status[each].removesuffix(" kB")) * 1024 / 1e6 for each in ("VmHWM", "VmRSS"))
    return peak, now


def measure_rss(inputs: int) -> dict[str, float]:
    """Measures the memory of this process, which has done nothing else."""
    run_counted(inputs)  # what is made once, such as the arenas of Python, is no growth
    (peak, before), (higher, after) = run_counted(inputs), run_counted(10 * inputs)
    return {
        "RSS, peak MB": peak,
        "RSS, MB more at the peak of ten times the inputs": higher - peak,
        "RSS, MB more after these": after - before,
    }


def in_new_process(measure: Callable[[int], dict[str, float]], inputs: int) -> dict[str, float]:
    """Returns what a function measures in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, inputs).result()


def show(found: Mapping[str, Sequence[float]], targets: Sequence[Target]) -> bool:
    """Prints the figures; returns whether all targets are met. `found`: the values of each figure."""
    table, missed = Table("figure", "median", "from", "to", "target"), False
    for target in targets:
        values = found[target.figure]
        reached = median(values)
        met = target.least <= reached <= target.most
        missed |= not met
        wanted = f"≥ {target.least:,.0f}" if target.least else f"≤ {target.most:,.0f}"
        judged = f"{wanted}: {'met' if met else 'missed'}" if target.is_bounded else ""
        table.add_row(target.figure, *(f"{each:,.2f}" for each in (reached, min(values), max(values))), judged)
    Console().print(table)
    return not missed


def main(
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    inputs: Annotated[int, typer.Option(min=1_000, help="of a run")] = 300_000,
) -> None:
    """Measures graphs of channels."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(rounds):
            measured = measure_memory(inputs) | measure_sqlite(Path(directory), inputs // 2)
            measured |= measure_latency() | measure_acker(inputs) | in_new_process(measure_rss, inputs // 3)
            for figure, value in measured.items():
                found.setdefault(figure, []).append(value)
    sys.exit(not show(found, TARGETS))


if __name__ == "__main__":
    typer.run(main)
