"""Measures how many rows a second each target of a sink stores: `scripts/bench sinks`.

One connection writes batches of 1,000 rows of about 100 bytes, each with a delivery hash of 16 bytes, or with the
offsets of its batch. Every write is on the disk before the next begins. PostgreSQL and Redis are started for the run.
Every target runs once in each round. Prints the medians of the rounds beside the requirements. Ends with status 1 if a
requirement is missed, which other load on the machine may cause.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from bench.servers import start_postgresql, start_redis
from kstreams_py.graph.sink import Row, Sink
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, SQLite

BATCH: Final = 1_000
COLUMNS: Final = {"carrier": str, "month": int, "delay": float, "note": str}
NOTE: Final = "x" * 70
INPUT: Final = TopicPartition("bench", 0)

REQUIRED: Final = {
    "PostgreSQL, hash": 20_000,
    "SQLite, hash": 50_000,
    "Parquet, offsets": 100_000,
}
"""The required rows a second."""


def declare_sinks(stack: ExitStack, directory: Path) -> dict[str, Callable[[], Sink]]:
    """Returns functions that declare a new target for a run, by its name. Servers run until the stack is closed."""
    postgresql = stack.enter_context(closing(start_postgresql(sync=True)))
    redis = stack.enter_context(closing(start_redis("--appendfsync", "always")))
    database = f"postgresql://postgres@127.0.0.1:{postgresql.port}/postgres"

    def name() -> str:
        return f"t{uuid.uuid4().hex}"

    def postgres(evidence: str) -> Sink:
        return PostgreSQL(database, table=name(), columns=COLUMNS, evidence=evidence)

    def sqlite(evidence: str) -> Sink:
        return SQLite(directory / name(), table="rows", columns=COLUMNS, evidence=evidence)

    return {
        "PostgreSQL, hash": lambda: postgres("hash"),
        "PostgreSQL, offsets": lambda: postgres("offsets"),
        "SQLite, hash": lambda: sqlite("hash"),
        "SQLite, offsets": lambda: sqlite("offsets"),
        "Parquet, offsets": lambda: Parquet(directory / name(), columns=COLUMNS),
        "Redis, hash": lambda: Redis(f"redis://127.0.0.1:{redis.port}/0", key=name(), columns=COLUMNS),
    }


def make_batches() -> Iterator[list[Row]]:
    number = 0
    while True:
        yield [Row(n.to_bytes(16, "big"), ("UA", n, n * 0.5, f"{n:08}{NOTE}")) for n in range(number, number + BATCH)]
        number += BATCH


def measure(sink: Sink, seconds: float) -> float:
    """Measures rows a second after the first batch, without the time that it takes to make the rows."""
    written, spent = 0, 0.0
    with closing(sink.open("bench.sink")) as connection:
        for rows in make_batches():
            began = time.perf_counter()
            connection.write(rows, {INPUT: written + BATCH}, {INPUT: written} if written else {})
            spent += time.perf_counter() - began if written else 0
            written += BATCH
            if spent > seconds:
                return (written - BATCH) / spent
    raise AssertionError("batches do not end")


def main(
    seconds: Annotated[float, typer.Option(help="seconds of each run", min=0.1)] = 5.0,
    rounds: Annotated[int, typer.Option(help="runs of each target", min=1)] = 3,
) -> None:
    """Measure how many rows a second each target of a sink stores."""
    console: Any = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(f"load before: {os.getloadavg()[0]:.1f} processes")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ExitStack() as stack:
        sinks = declare_sinks(stack, Path(directory))
        rates: dict[str, list[float]] = {name: [] for name in sinks}
        for _ in range(rounds):
            for name, declare in sinks.items():
                rates[name].append(measure(declare(), seconds))
    table = Table(title=f"Rows a second, in batches of {BATCH:,}", title_justify="left")
    for column in ("", "median", "least", "most", "required", ""):
        table.add_column(column, justify="left" if not column else "right")
    missed = False
    for name, found in rates.items():
        required = REQUIRED.get(name)
        verdict = "" if required is None else "reached" if median(found) >= required else "missed"
        missed |= verdict == "missed"
        shown = [f"{rate:,.0f}" for rate in (median(found), min(found), max(found))]
        table.add_row(name, *shown, "" if required is None else f"{required:,}", verdict)
    console.print(table)
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
