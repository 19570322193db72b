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
from bench.measure import Entry, latency, memory, throughput
from bench.processes import compare_with
from kstreams_py.errors import MissingSoftware
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import KAFKA_VERSION, find_java, kafka_classpath

BROKER = {"group.initial.rebalance.delay.ms": "0", "log.segment.delete.delay.ms": "1000"}
"""No contestant waits for others to join; what was deleted is gone at once, for results are large."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: records are per throughput run, seconds per latency run."""

    rounds: int
    records: int
    warm: int
    latency_seconds: float
    latency_warm: float
    memory: tuple[int, int] | None
    chaos_seconds: float | None

    def of(self, entry: Entry) -> tuple[int, int]:
        """Measured and warm-up records of one entry: fewer where a record costs more."""
        share = 1.0 if entry.load == "100 B" else 0.5
        return int(self.records * share), int(self.warm * share)


FULL = Size(3, 1_000_000, 400_000, 15, 4, (200_000, 2_000_000), 45)
QUICK = Size(1, 150_000, 50_000, 4, 1, None, None)
SEED = 1
QUIET = 0.5


class Bench:
    """One run of the plan, or of the part of it that was asked for."""

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
        """Every round of every entry, then what is run once; Ctrl-C leaves the results of what was done."""
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
            # every other round backwards: the broker is faster the longer it has run
            for entry, how in entries if number % 2 else reversed(entries):
                self._measure(number, entry, how)
        if self._size.memory and self._wanted(plan.MEMORY_ENTRY):
            self._measure(1, plan.MEMORY_ENTRY, self._memory)
        if self._size.chaos_seconds:
            for number in range(1, self._size.rounds + 1):
                for entry in filter(self._wanted, self._rows(plan.CHAOS_ENTRIES)):
                    self._measure(number, entry, partial(self._chaos, seed=SEED + number - 1))

    def _warm_up(self) -> None:
        """A run that does not count: a broker is slow until its code is compiled."""
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

    def _tell(self, line: str) -> None:
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

    def _chaos(self, entry: Entry, seed: int) -> dict[str, float]:
        assert self._size.chaos_seconds is not None
        return chaos(self._cluster, entry, self._size.chaos_seconds, seed, self._tell)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="one round of less, under 2 minutes")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"a workload: {', '.join(plan.WORKLOADS)}; may repeat")] = None,
    contestant: Annotated[
        list[str] | None, typer.Option(help="whose name begins so, such as kstreams_py or 'by hand'; may repeat")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="3 unless quick", min=1)] = None,
    records: Annotated[int | None, typer.Option(help="measured in a throughput run", min=1000)] = None,
    bootstrap_servers: Annotated[str | None, typer.Option(help="a cluster, instead of a broker for this run")] = None,
    against: Annotated[
        Path | None, typer.Option(help="a checkout of another commit: its kstreams_py beside this one, and no others")
    ] = None,
    out: Annotated[Path, typer.Option(help="directory of results.json and results.svg")] = Path("bench", "results"),
) -> None:
    """Throughput, latency, memory and faults of kstreams_py beside its peers."""
    if unknown := set(only or ()) - set(plan.WORKLOADS):
        raise typer.BadParameter(f"{min(unknown)!r} is no workload: choose from {', '.join(plan.WORKLOADS)}")
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
        console.print(f"this machine is busy ({load:.1f} processes on average): the figures will be too")
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
def broker(given: str | None) -> Iterator[str]:
    """The address of the cluster that was given, else of one broker for this run."""
    if given:
        yield given
        return
    with EmbeddedKafka(kafka_classpath(), find_java(), settings=BROKER) as kafka:
        yield kafka.bootstrap_servers


if __name__ == "__main__":
    typer.run(main)
