"""Measures the seconds and the memory of `kstreams recover audit`: `scripts/bench audit`.

A map copies 1,000,000 records of 100 bytes, and a join 500,000 pairs of such records. Each graph is audited, and then
one with a tenth of its records, each time by the command in a process of its own. Prints the medians of the rounds
beside the requirements: 60 s, and 64 bytes of memory for each further input. Ends with status 1 if one is missed, which
other load on the machine may cause.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from bench.__main__ import broker
from bench.loads import Cluster, GaveUp

REQUIRED_SECONDS: Final = 60.0
REQUIRED_BYTES: Final = 64.0

START_SECONDS: Final = 120.0
"""The time limit of the run that writes the outputs."""

MAP: Final = "graph.map(topic({0!r}), to=topic({1!r}), id='work')(lambda value: value)"
JOIN: Final = "graph.join(topic({0!r}), topic({1!r}), by='order', to=topic({2!r}), id='work')(lambda a, b: a)"


class Audited:
    """A graph whose inputs are processed."""

    def __init__(self, cluster: Cluster, processor: str, inputs: int, records: int) -> None:
        """Runs the graph until `records` of each input are processed. Raises GaveUp."""
        self._steps = records
        name = cluster.name("audit")
        topics = [cluster.filled("100 B", records, copy) for copy in range(inputs)]
        self._file = cluster.directory / f"{name}.py"
        declared = processor.format(*topics, cluster.create(f"{name}.out"))
        self._file.write_text(
            f"import kstreams_py as ks\ngraph = ks.Graph({name!r})\ntopic = graph.topic\n{declared}\n"
        )
        self._environment = {**os.environ, "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap}
        run = self._command("run", "--slot", "0")
        worker = subprocess.Popen(run, env=self._environment, stderr=subprocess.DEVNULL)
        try:
            with cluster.committed(f"{name}.work", tuple(topics)) as total:
                deadline = time.monotonic() + START_SECONDS
                while total() < records * inputs:
                    if time.monotonic() > deadline or worker.poll() is not None:
                        raise GaveUp(f"{name} has not processed its inputs")
                    time.sleep(0.1)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()

    def measure(self) -> tuple[float, float]:
        """Audits the graph. Returns the seconds, and the most memory in bytes. Raises GaveUp."""
        began = time.perf_counter()
        process = subprocess.Popen(self._command("recover audit"), env=self._environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as output:
            text = output.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or f"{self._steps:,} inputs" not in text:
            raise GaveUp(f"the audit ended with status {process.returncode}: {text}")
        return time.perf_counter() - began, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _command(self, verb: str, *options: str) -> list[str]:
        return [sys.executable, "-m", "kstreams_py", *verb.split(), f"{self._file}:graph", *options]


def main(
    records: Annotated[int, typer.Option(help="inputs of each graph", min=1000)] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="audits of each graph", min=1)] = 3,
) -> None:
    """Measure how long an audit takes, and how much memory."""
    console: Any = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"load before: {os.getloadavg()[0]:.1f} processes")
    table = Table(title=f"Audits of {records:,} inputs", title_justify="left")
    for column in ("", "seconds", "MB", "MB of a tenth", "bytes for a further input", ""):
        table.add_column(column, justify="left" if not column else "right")
    missed = False
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, broker(None) as address:
        cluster = Cluster(address, Path(directory))
        for name, processor, inputs in (("map", MAP, 1), ("join", JOIN, 2)):
            whole, part = (Audited(cluster, processor, inputs, size // inputs) for size in (records, records // 10))
            found = [(*whole.measure(), part.measure()[1]) for _ in range(rounds)]
            seconds, most, least = (median(figures) for figures in zip(*found, strict=True))
            each = (most - least) / (records * 0.9)
            is_missed = seconds > REQUIRED_SECONDS * records / 1_000_000 or each > REQUIRED_BYTES
            missed |= is_missed
            shown = (f"{seconds:,.1f}", f"{most / 1e6:,.0f}", f"{least / 1e6:,.0f}", f"{each:,.1f}")
            table.add_row(name, *shown, "missed" if is_missed else "reached")
    console.print(table)
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
