"""Measures the cost of an idle worker with many processors, and of its /metrics: `python -m bench.idle`.

A graph of 20 maps runs with a supervisor, `--workers 1` and `--http`, against a broker of this run, and reads nothing.
Prints the worker's and the supervisor's share of a core and resident memory, and the time of /metrics, each beside its
target. Ends with status 1 if a target is missed; under other load, a machine misses the target of /metrics.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from bench.loads import GaveUp
from bench.processes import Running, cpu_seconds, resident
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java

PROCESSORS: Final = 20

GRAPH: Final = f"""
import kstreams_py as ks

graph = ks.Graph("idle", errors="idle.errors")
for number in range({PROCESSORS}):
    graph.map(graph.topic(f"in{{number}}"), to=graph.topic(f"out{{number}}"), id=f"p{{number}}")(lambda value: value)
"""

START_SECONDS: Final = 120.0
"""The longest time until the workers are ready."""

REQUESTS: Final = 200
"""The number of timed requests for /metrics."""


class Figure(NamedTuple):
    """A measured value, and the target that it must not exceed; None if there is none."""

    name: str
    value: float
    unit: str
    most: float | None

    @property
    def is_reached(self) -> bool:
        return self.most is None or self.value <= self.most


def child_of(pid: int) -> int:
    """Returns the oldest child of a process: the worker of a supervisor, which starts its standby later."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True).stdout
    return min(map(int, found.split()))


@contextmanager
def idle_run(bootstrap_servers: str, directory: Path) -> Iterator[tuple[Running, Callable[[str], tuple[int, bytes]]]]:
    """Yields a run of the graph that is ready, and a function that requests one of its pages."""
    graph, log = directory / "idle_graph.py", directory / "log"
    graph.write_text(GRAPH, encoding="utf-8")
    command = ["run", str(graph), "--workers", "1", "--http", "127.0.0.1:0", "--create-topics", "--partitions", "4"]
    # bytecode is written, as for an installed package
    left_out = ("KSTREAMS_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    environment["KSTREAMS_BOOTSTRAP_SERVERS"] = bootstrap_servers
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kstreams_py", *command], env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    running = Running(process, log)
    try:
        yield running, _await_ready(running)
    finally:
        running.end()


def _await_ready(running: Running) -> Callable[[str], tuple[int, bytes]]:
    def get(path: str) -> tuple[int, bytes]:
        found = re.search(r" at http://(\S+)", running.log.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            return 0, b""
        connection = http.client.HTTPConnection(found[1], timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    deadline = time.monotonic() + START_SECONDS
    while get("/readyz")[0] != http.client.OK:
        if running.process.poll() is not None or time.monotonic() > deadline:
            raise GaveUp(f"the idle worker is not ready: {running.output_tail}")
        time.sleep(0.2)
    return get


def measure(bootstrap_servers: str, directory: Path, warm: float, seconds: float) -> list[Figure]:
    """Measures the processes for `seconds`, after `warm` seconds; then times /metrics."""
    with idle_run(bootstrap_servers, directory) as (supervisor, get):
        time.sleep(warm)
        pids = {"worker": child_of(supervisor.process.pid), "supervisor": supervisor.process.pid}
        began, before = time.monotonic(), {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(seconds)
        passed = time.monotonic() - began
        shares = {name: 100 * (cpu_seconds(pid) - before[name]) / passed for name, pid in pids.items()}
        times = []
        for _ in range(REQUESTS):
            asked = time.perf_counter()
            get("/metrics")
            times.append(1_000 * (time.perf_counter() - asked))
            time.sleep(0.01)
        return [
            Figure("worker, of a core", shares["worker"], "%", 3.0),
            Figure("worker, memory", resident(pids["worker"]) / 1e6, "MB", 90.0),
            Figure("/metrics, median", median(times), "ms", 20.0),
            Figure("/metrics, 99 of 100", quantiles(times, n=100)[-1], "ms", None),
            Figure("/metrics, size", len(get("/metrics")[1]) / 1e3, "kB", None),
            Figure("supervisor, of a core", shares["supervisor"], "%", None),
            Figure("supervisor, memory", supervisor.rss() / 1e6, "MB", None),
        ]


def show(figures: list[Figure], console: Console) -> bool:
    """Prints the table; returns whether all targets are reached."""
    table = Table(title=f"An idle run of {PROCESSORS} processors", title_justify="left")
    for column in ("", "measured", "at most", ""):
        table.add_column(column, justify="left" if not column else "right")
    for each in figures:
        most = "" if each.most is None else f"{each.most:g} {each.unit}"
        verdict = "" if each.most is None else "reached" if each.is_reached else "missed"
        table.add_row(each.name, f"{each.value:.1f} {each.unit}", most, verdict)
    console.print(table)
    return all(each.is_reached for each in figures)


def main(
    seconds: Annotated[float, typer.Option(help="measured seconds", min=1)] = 60.0,
    warm: Annotated[float, typer.Option(help="seconds before that", min=0)] = 20.0,
    bootstrap_servers: Annotated[str | None, typer.Option(help="a cluster, instead of a broker for this run")] = None,
) -> None:
    """Measure what an idle worker of 20 processors costs, and its /metrics."""
    console: Any = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"load before: {os.getloadavg()[0]:.1f} processes")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        if bootstrap_servers:
            figures = measure(bootstrap_servers, Path(directory), warm, seconds)
        else:
            with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
                figures = measure(kafka.bootstrap_servers, Path(directory), warm, seconds)
    if not show(figures, console):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
