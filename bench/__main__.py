"""`python -m bench`: runs the plan round by round against one broker, prints the tables, writes JSON and a plot."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import confluent_kafka as ck
import typer
from rich.console import Console

from bench import plan, report
from bench.chaos import chaos
from bench.loads import Cluster, GaveUp
from bench.measure import Entry, latency, memory, restore, throughput
from bench.processes import compare_with
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import KAFKA_VERSION, kafka_classpath
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import MissingSoftware

BROKER = {"group.initial.rebalance.delay.ms": "0", "log.segment.delete.delay.ms": "1000"}
"""No contestant waits for others to join; deleted topics free their disk space at once, because outputs are large."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run of the plan.

    - `records`, `warm`: measured and warm-up records of a throughput run.
    - `latency_seconds`, `latency_warm`: measured and warm-up seconds of a latency run.
    - `memory`: the numbers of records after which memory is measured; None to leave it out.
    - `chaos_seconds`: the length of a chaos run; None to leave it out.
    """

    rounds: int
    records: int
    warm: int
    latency_seconds: float
    latency_warm: float
    memory: tuple[int, int] | None
    chaos_seconds: float | None

    def of(self, entry: Entry) -> tuple[int, int]:
        """Returns measured and warm-up records of an entry: fewer if a record costs more."""
        share = 1.0 if entry.load in {"100 B", "keyed", "events"} else 0.5
        if entry.workload == plan.UNITS:
            share = 0.004  # about 10 s
        if entry.workload == plan.WAIT:
            share = 0.03 * entry.concurrency / 64  # about 5 s of calls
        return int(self.records * share), int(self.warm * share)


FULL = Size(3, 1_000_000, 400_000, 15, 4, (200_000, 2_000_000), 45)
QUICK = Size(1, 150_000, 50_000, 4, 1, None, None)
SEED = 1
QUIET = 0.5


class Bench:
    """One run of the plan, or of its entries that are `wanted`."""

    def __init__(
        self, cluster: Cluster, size: Size, wanted: Callable[[Entry], bool], console: Console, *, beside_before: bool
    ) -> None:
        self.results = report.Results()
        self._rows: Callable[[Iterable[Entry]], Iterable[Entry]] = plan.beside_before if beside_before else tuple
        self._cluster = cluster
        self._size = size
        self._wanted = wanted
        self._console = console

    def run(self) -> None:
        """Runs all rounds, then memory and chaos; Ctrl-C keeps the results so far."""
        try:
            self._run()
            self._cluster.close()
        except KeyboardInterrupt:
            self._console.print("interrupted: the rest is left out")

    def _run(self) -> None:
        entries = [(entry, self._throughput) for entry in self._rows(plan.ENTRIES) if self._wanted(entry)]
        entries += [(entry, self._latency) for entry in self._rows(plan.LATENCY_ENTRIES) if self._wanted(entry)]
        if entries:
            self._warm_up()
        for number in range(1, self._size.rounds + 1):
            # every other round backwards, because the broker becomes faster the longer it runs
            for entry, how in entries if number % 2 else reversed(entries):
                self._measure(number, entry, how)
        if self._size.memory and self._wanted(plan.MEMORY_ENTRY):
            self._measure(1, plan.MEMORY_ENTRY, self._memory)
        if self._wanted(plan.RESTORE_ENTRY):
            for number in range(1, self._size.rounds + 1):
                self._measure(number, plan.RESTORE_ENTRY, self._restore)
        if self._size.chaos_seconds:
            for number in range(1, self._size.rounds + 1):
                for entry in filter(self._wanted, self._rows(plan.CHAOS_ENTRIES)):
                    self._measure(number, entry, partial(self._chaos, seed=SEED + number - 1))

    def _warm_up(self) -> None:
        """Makes a run without measuring it: a broker is slow until its JVM has compiled its code."""
        try:
            throughput(self._cluster, plan.ENTRIES[0], *self._size.of(plan.ENTRIES[0]))
        except GaveUp as error:
            self._console.print(f"warming up: {error}", markup=False)

    def _measure(self, number: int, entry: Entry, how: Callable[[Entry], dict[str, float]]) -> None:
        if entry.id in self.results.missing:
            return
        try:
            figures = how(entry)
        except (GaveUp, MissingSoftware, ck.KafkaException) as error:
            self.results.missing[entry.id] = str(error)
            self._console.print(f"round {number}  {entry.id}: gave up, see below")
            return
        self.results.add(entry.id, figures)
        shown = ", ".join(f"{figure:,.1f} {name}" for name, figure in figures.items())
        self._console.print(f"round {number}  {entry.id:45} {shown}")

    def _log(self, line: str) -> None:
        self._console.print(line, markup=False)

    def _throughput(self, entry: Entry) -> dict[str, float]:
        return {plan.RATE: throughput(self._cluster, entry, *self._size.of(entry))}

    def _latency(self, entry: Entry) -> dict[str, float]:
        found = latency(self._cluster, entry, self._size.latency_seconds, self._size.latency_warm)
        return {"median ms": found.median, "p99 ms": found.p99}

    def _memory(self, entry: Entry) -> dict[str, float]:
        assert self._size.memory is not None
        early, late = memory(self._cluster, entry, *self._size.memory)
        return {"early MB": early, "late MB": late, "growth MB": late - early}

    def _restore(self, entry: Entry) -> dict[str, float]:
        return {"restore s": restore(self._cluster, entry, self._size.records)}

    def _chaos(self, entry: Entry, seed: int) -> dict[str, float]:
        assert self._size.chaos_seconds is not None
        return chaos(self._cluster, entry, self._size.chaos_seconds, seed, self._log)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="one round with fewer records, under 2 minutes")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"a workload: {', '.join(plan.WORKLOADS)}; may repeat")] = None,
    contestant: Annotated[
        list[str] | None, typer.Option(help="the start of names, such as kstreams_py or 'by hand'; may repeat")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="3 by default, 1 with --quick", min=1)] = None,
    records: Annotated[int | None, typer.Option(help="measured records of a throughput run", min=1000)] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="a cluster, instead of a broker for this run")] = None,
    against: Annotated[
        Path | None, typer.Option(help="a checkout of another commit: compare its kstreams_py with this one only")
    ] = None,
    out: Annotated[Path, typer.Option(help="directory of results.json and results.svg")] = Path("bench", "results"),
) -> None:
    """Measure throughput, latency, memory and recovery from faults of kstreams_py and its peers."""
    if unknown := set(only or ()) - set(plan.WORKLOADS):
        raise typer.BadParameter(f"{min(unknown)!r} is not a workload: choose from {', '.join(plan.WORKLOADS)}")
    size = QUICK if quick else FULL
    if rounds is not None:
        size = dataclasses.replace(size, rounds=rounds)
    if records is not None:
        size = dataclasses.replace(size, records=records, warm=records // 3)
    if quick and plan.CHAOS in (only or ()):
        size = dataclasses.replace(size, chaos_seconds=15)

    def wanted(entry: Entry) -> bool:
        named = contestant is None or entry.name.startswith(tuple(contestant))
        return named and (only is None or entry.workload in only)

    if against is not None:
        compare_with(against)
    targets = plan.TARGETS_BEFORE if against else plan.TARGETS
    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    started, load = time.monotonic(), os.getloadavg()[0]
    if load > QUIET:
        console.print(f"this machine is busy ({load:.1f} processes on average): the figures will vary")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, broker(bootstrap_servers) as address:
        bench = Bench(Cluster(address, Path(directory)), size, wanted, console, beside_before=against is not None)
        bench.run()
    bench.results.about = {
        "rounds": size.rounds,
        "records": size.records,
        "quick": quick,
        "cores": os.cpu_count(),
        "load before": round(load, 2),
        "python": platform.python_version(),
        "confluent-kafka": version("confluent-kafka"),
        "broker and Kafka Streams": KAFKA_VERSION,
        "seconds": round(time.monotonic() - started),
    }
    report.show(bench.results, targets, console)
    for file in report.write(bench.results, targets, out):
        console.print(f"wrote {file}")


@contextmanager
def broker(bootstrap_servers: str | None) -> Iterator[str]:
    """Yields the address of the cluster to use. `bootstrap_servers`: None for a broker of this run."""
    if bootstrap_servers:
        yield bootstrap_servers
        return
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=BROKER) as kafka:
        yield kafka.bootstrap_servers


if __name__ == "__main__":
    typer.run(main)
