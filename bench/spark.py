"""Measures the cost of the data pipeline on Spark: `scripts/bench spark`, or `python -m bench.spark`.

It runs against a broker of this run, with Spark in two local threads. The figures are medians of rounds, in each of
which both sides run:

- read: a query over all records of a view of 100-byte values, beside the same query over Spark's Kafka reader with the
  same options. It counts the records and their bytes.
- avro: the same for Avro values, beside `from_avro`. It adds up every field.
- cut: a cut of 10 topics of 8 partitions, while the bench plays the two slots of a processor that makes 1,000
  transactions a minute, each with a record of every topic.
- increment: a run of a pipeline that appends to Parquet files, with 1 % new records, beside its first run; both in a
  session that has made earlier runs.
- follow: the time from a commit to the row in a published Parquet file, with `kstreams pipeline run --follow` every
  second, at 20 transactions a second.
- memory: the growth of the driver over many appending runs in one session, from the first quarter to the last run. The
  heap is measured after a collection.

Prints a table. Ends with status 1 if a target is missed, which other load on the machine may cause.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, NamedTuple

import confluent_kafka as ck
import typer
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.avro.functions import from_avro
from rich.console import Console
from rich.table import Table

import kstreams_py as ks
from bench.__main__ import broker
from bench.contestants.job import ORDER
from bench.loads import Cluster, GaveUp
from bench.processes import Running, resident
from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import cut, options, session, view
from kstreams_py.spark.pipelines.runner import run_once

TOPICS, CUT_PARTITIONS, UPSTREAM_A_MINUTE, UPSTREAM_SLOTS = 10, 8, 1_000, 2

NEW_RECORDS: Final = 1_000
"""The records of each run over which memory is measured."""

SECONDS: Final = 60.0
"""The longest time of a request in a transaction, which may otherwise wait forever."""

FOLLOWED_SECONDS: Final = 0.05
FOLLOW_PATIENCE: Final = 400.0
"""Seconds between two followed transactions, and the longest time until all of their rows are there."""

WARM_RUNS: Final = 5
"""The first runs of a session, which are not measured: Spark starts in them, and its code is not compiled yet."""

FOLLOWED: Final = """
import kstreams_py as ks

graph = ks.Graph({name!r})


@graph.pipeline(graph.topic({topic!r}, value=ks.String()), to=ks.Parquet({table!r}), mode="append", every="1 second")
def added(records):
    return records.select("value")
"""


class Figure(NamedTuple):
    """A measured value beside its target.

    - `limit`: the least value, or the most if `is_least` is false; None without a target.
    - `detail`: the figures that the value was computed from.
    """

    name: str
    value: float
    unit: str
    limit: float | None
    detail: str
    is_least: bool = False

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        is_reached = self.value >= self.limit if self.is_least else self.value <= self.limit
        return "reached" if is_reached else "missed"

    @property
    def target(self) -> str:
        return "" if self.limit is None else f"{'≥' if self.is_least else '≤'} {self.limit:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: records of the large topics, rounds, cuts, followed transactions, and memory runs."""

    records: int = 5_000_000
    rounds: int = 3
    cuts: int = 30
    followed: int = 600
    runs: int = 200


QUICK: Final = Size(100_000, 1, 5, 20, 8)


class Bench:
    """One broker, and the sessions of Spark that read it, one at a time."""

    def __init__(self, cluster: Cluster, size: Size) -> None:
        self.cluster = cluster
        self.size = size
        self.settings = ks.Settings(bootstrap_servers=cluster.bootstrap)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        quiet = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
        spark = session("bench", jars=spark_jars(), java=find_java(for_spark=True), quiet=False, **quiet)
        try:
            yield spark
        finally:
            spark.stop()

    def compare(self, name: str, ours: Callable[[], DataFrame], by_hand: Callable[[], DataFrame]) -> Figure:
        """Measures the speed of our query relative to the one by hand, which returns the same row, after a warm-up."""
        seconds: dict[Callable[[], DataFrame], list[float]] = {ours: [], by_hand: []}
        for number in range(self.size.rounds + 1):
            found = list[Any]()
            for query in (ours, by_hand) if number % 2 else (by_hand, ours):
                began = time.perf_counter()
                found += query().collect()
                if number:
                    seconds[query].append(time.perf_counter() - began)
            if found[0] != found[1]:
                raise GaveUp(f"{name}: the view returned other rows than the query by hand: {found}")
        ratio = median(hand / view for view, hand in zip(seconds[ours], seconds[by_hand], strict=True))
        detail = f"{median(seconds[ours]):.2f} s, by hand {median(seconds[by_hand]):.2f} s"
        return Figure(name, ratio, " x by hand", 0.95, detail, is_least=True)

    def appending(self, spark: SparkSession, topic: str) -> Callable[[int], float]:
        """Returns a function that runs a pipeline which appends to Parquet files of its own.

        The function takes the expected number of rows, and returns the seconds of the run. It raises GaveUp if the run
        appended another number of rows.
        """
        graph = ks.Graph(self.cluster.name("appending"))
        table = ks.Parquet(self.cluster.directory / graph.name)
        declare = graph.pipeline(graph.topic(topic), to=table, mode="append", id="added")
        declare(lambda records: records.select("value", "partition", "offset"))

        def run(rows: int) -> float:
            began = time.perf_counter()
            found = run_once(graph.pipelines[0], graph, spark, self.settings)
            if found is None or found.rows != rows:
                raise GaveUp(f"a run that was to append {rows} rows ended as {found}")
            return time.perf_counter() - began

        return run


def measure_reading(bench: Bench) -> Iterator[Figure]:
    topic = ks.Graph("bench").topic(bench.cluster.filled("100 B", bench.size.records))
    sums = ("count(*)", "sum(length(value))")
    with bench.session() as spark:
        yield bench.compare(
            "read and count",
            lambda: view(spark, topic, settings=bench.settings).selectExpr(*sums),
            lambda: by_hand(bench, spark, topic.name).selectExpr(*sums),
        )


def measure_avro(bench: Bench) -> Iterator[Figure]:
    avro = ks.Avro(ORDER)
    topic = ks.Graph("bench").topic(bench.cluster.filled("avro", bench.size.records), value=avro)
    sums = ("sum(number)", "sum(length(customer))", "sum(quantity)", "sum(price)", "sum(length(note))")
    with bench.session() as spark:
        order = from_avro(sf.expr("substring(value, 6)"), avro.schema).alias("order")
        yield bench.compare(
            "Avro decoded",
            lambda: view(spark, topic, settings=bench.settings).selectExpr(*sums),
            lambda: by_hand(bench, spark, topic.name).select(order).select("order.*").selectExpr(*sums),
        )


def by_hand(bench: Bench, spark: SparkSession, topic: str) -> DataFrame:
    """Returns the frame of Spark's Kafka reader, with the options of view()."""
    return spark.read.format("kafka").options(**options(topic, bench.settings)).load()


def measure_cuts(bench: Bench) -> Iterator[Figure]:
    cluster, graph = bench.cluster, ks.Graph(bench.cluster.name("cut"))
    outputs = [cluster.create(f"{graph.name}.{number}", CUT_PARTITIONS) for number in range(TOPICS)]
    given = graph.topic(cluster.create(f"{graph.name}.in", CUT_PARTITIONS))
    graph.map(given, to=[graph.topic(each) for each in outputs], id="split")(lambda _: {})
    found = list[float]()
    with upstream(cluster, f"{graph.name}.split", given.name, outputs) as committed:
        began, before = time.monotonic(), committed()
        for _ in range(bench.size.cuts):
            start = time.perf_counter()
            cut(graph, outputs, settings=bench.settings)
            found.append(time.perf_counter() - start)
        rate = (committed() - before) / (time.monotonic() - began) * 60
    detail = f"{len(found)} cuts beside {rate:,.0f} transactions a minute"
    yield Figure("transactions beside cuts", rate, " a minute", 0.95 * UPSTREAM_A_MINUTE, "", is_least=True)
    yield Figure("cut, median", median(found), " s", 1, detail)
    yield Figure("cut, longest", max(found), " s", 1, detail)


@contextmanager
def upstream(cluster: Cluster, group: str, given: str, outputs: list[str]) -> Iterator[Callable[[], int]]:
    """Plays a processor that makes transactions, in threads. Yields a function that counts them."""
    is_ended, numbers = threading.Event(), [0] * UPSTREAM_SLOTS
    consumer = ck.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    metadata = consumer.consumer_group_metadata()

    def write(slot: int, producer: Any) -> None:
        began = time.monotonic()
        while not is_ended.wait(began + numbers[slot] * 60 * UPSTREAM_SLOTS / UPSTREAM_A_MINUTE - time.monotonic()):
            offset, number = divmod(numbers[slot], CUT_PARTITIONS // UPSTREAM_SLOTS)
            partition = number * UPSTREAM_SLOTS + slot
            producer.begin_transaction()
            for topic in outputs:
                producer.produce(topic, b"x" * 100, partition=partition)
            producer.send_offsets_to_transaction([ck.TopicPartition(given, partition, offset + 1)], metadata, SECONDS)
            producer.commit_transaction(SECONDS)
            numbers[slot] += 1

    producers = [transactional(cluster, f"{group}.{slot}") for slot in range(UPSTREAM_SLOTS)]
    threads = [threading.Thread(target=write, args=each) for each in enumerate(producers)]
    for thread in threads:
        thread.start()
    try:
        while all(thread.is_alive() for thread in threads) and not all(numbers):
            time.sleep(0.02)
        yield lambda: sum(numbers)
        if not all(thread.is_alive() for thread in threads):
            raise GaveUp("the transactions upstream have ended by themselves")
    finally:
        is_ended.set()
        for thread in threads:
            thread.join()
        consumer.close()


def transactional(cluster: Cluster, name: str) -> Any:
    """Returns a producer with this transactional id."""
    connection = {"bootstrap.servers": cluster.bootstrap, "log_level": 3}  # a new broker is asked again, with a warning
    producer = ck.Producer({**connection, "transactional.id": name, "retry.backoff.ms": 2})
    producer.init_transactions(SECONDS)
    return producer


def measure_increments(bench: Bench) -> Iterator[Figure]:
    records, new = bench.size.records, bench.size.records // 100
    topic = bench.cluster.filled("100 B", records, 1)
    first, later, cold = list[float](), list[float](), list[float]()
    with bench.session() as spark:
        run = bench.appending(spark, topic)
        run(records)
        for _ in range(WARM_RUNS):
            bench.cluster.write(topic, "100 B", new)
            cold.append(run(new))
        for number in range(WARM_RUNS, WARM_RUNS + bench.size.rounds):
            run = bench.appending(spark, topic)
            first.append(run(records + number * new))
            bench.cluster.write(topic, "100 B", new)
            later.append(run(new))
    detail = f"{median(later):.2f} s of {median(first):.2f} s; in a new session {cold[0]:.2f} s"
    yield Figure("run with 1 % new", median(later) / median(first), " x the first", 0.1, detail)


def measure_following(bench: Bench) -> Iterator[Figure]:
    cluster = bench.cluster
    topic, table = cluster.create(cluster.name("followed")), ks.Parquet(cluster.directory / "followed")
    producer = transactional(cluster, topic)
    committed, seen, runs, found = list[float](), set[Path](), 0, list[float]()
    with following(cluster, topic, table) as running:
        deadline = time.monotonic() + FOLLOW_PATIENCE
        while len(found) < bench.size.followed:
            if running.process.poll() is not None or time.monotonic() > deadline:
                raise GaveUp(f"the pipeline has not followed: {running.output_tail}")
            producer.begin_transaction()
            producer.produce(topic, b"%d" % len(committed))
            committed.append(time.monotonic())
            producer.commit_transaction(SECONDS)
            new, now = [path for path in table.files() if path not in seen], time.monotonic()
            seen.update(new)
            runs += bool(new)
            if runs > WARM_RUNS:
                found += [now - committed[int(value)] for path in new for value in values_of(path)]
            time.sleep(FOLLOWED_SECONDS)
    detail = f"{len(found)} rows, longest {max(found):.2f} s"
    yield Figure("commit to row, median", median(found), " s", 3, detail)


def values_of(path: Path) -> list[str]:
    values: list[str] = parquet.ParquetFile(path).read(["value"]).column("value").to_pylist()
    return values


@contextmanager
def following(cluster: Cluster, topic: str, table: ks.Parquet) -> Iterator[Running]:
    """Runs `kstreams pipeline run --follow` for a pipeline that appends the records of a topic."""
    file, log = cluster.directory / "followed.py", cluster.directory / "followed.log"
    file.write_text(FOLLOWED.format(name=topic, topic=topic, table=str(table.directory)), encoding="utf-8")
    environment = {
        **os.environ,
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap,
        "JAVA_HOME": str(find_java(for_spark=True).resolve().parent.parent),
    }
    command = [sys.executable, "-m", "kstreams_py", "pipeline", "run", str(file), "--follow"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    running = Running(process, log)
    try:
        yield running
    finally:
        running.end()


COLLECTIONS: Final = 3
"""After a collection has found the broadcasts of a query, some 0.2 MB, Spark drops them in a thread of its own."""


class Memory(NamedTuple):
    """The resident memory of Python and of Java, and Java's heap after a collection, in bytes."""

    python: int
    java: int
    heap: int


FLAT_MB: Final = {"python": 10, "java": None, "heap": 10}
"""The most that each may grow, in MB; None for Java, which takes its whole heap before it collects."""


def measure_memory(bench: Bench) -> Iterator[Figure]:
    marks, found, seconds = (bench.size.runs // 4, bench.size.runs), list[Memory](), list[float]()
    topic = bench.cluster.create(bench.cluster.name("memory"))
    with bench.session() as spark:
        run = bench.appending(spark, topic)
        for number in range(1, bench.size.runs + 1):
            bench.cluster.write(topic, "100 B", NEW_RECORDS)
            seconds.append(run(NEW_RECORDS))
            if number in marks:
                found.append(memory_of(spark))
    before, after = found
    for name, early, late in zip(Memory._fields, before, after, strict=True):
        detail = f"{early / 1e6:.0f} MB after {marks[0]} runs, {late / 1e6:.0f} MB after {marks[1]}"
        yield Figure(f"growth of {name}", (late - early) / 1e6, " MB", FLAT_MB[name], detail)
    early_seconds, late_seconds = (median(seconds[mark - marks[0] // 2 : mark]) for mark in marks)
    detail = f"{early_seconds:.2f} s before run {marks[0]}, {late_seconds:.2f} s before run {marks[1]}"
    yield Figure("growth of a run", late_seconds - early_seconds, " s", None, detail)


def memory_of(spark: SparkSession) -> Memory:
    gc.collect()  # Python's references keep objects of Java
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001, the only way to the driver's Java process
    runtime = jvm.java.lang.Runtime.getRuntime()
    for _ in range(COLLECTIONS):
        jvm.java.lang.System.gc()
        time.sleep(1)
    heap = runtime.totalMemory() - runtime.freeMemory()
    return Memory(resident(os.getpid()), resident(jvm.java.lang.ProcessHandle.current().pid()), heap)


MEASURES: Final[dict[str, Callable[[Bench], Iterator[Figure]]]] = {
    "read": measure_reading,
    "avro": measure_avro,
    "cut": measure_cuts,
    "increment": measure_increments,
    "follow": measure_following,
    "memory": measure_memory,
}


def main(
    records: Annotated[int | None, typer.Option(help="of the large topics, 5,000,000 by default", min=1000)] = None,
    rounds: Annotated[int | None, typer.Option(help="3 by default, 1 with --quick", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="small numbers, which reach no target for sure")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(MEASURES)}; may repeat")] = None,
) -> None:
    """Measure views, cuts and pipelines on Spark."""
    if unknown := set(only or ()) - MEASURES.keys():
        raise typer.BadParameter(f"{min(unknown)!r} is not known: choose from {', '.join(MEASURES)}")
    size = QUICK if quick else Size()
    size = replace(size, records=records or size.records, rounds=rounds or size.rounds)
    console: Any = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(f"load before: {os.getloadavg()[0]:.1f} processes")
    table = Table(title=f"Spark, {size.records:,} records", title_justify="left")
    for column in ("", "measured", "target", "", "of which"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    has_missed = False
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, broker(None) as address:
        bench = Bench(Cluster(address, Path(directory)), size)
        for name in only or MEASURES:
            try:
                for figure in MEASURES[name](bench):
                    measured = f"{figure.value:.2f}{figure.unit}"
                    console.print(f"{figure.name}: {measured}: {figure.detail}")
                    table.add_row(figure.name, measured, figure.target, figure.verdict, figure.detail)
                    has_missed |= figure.verdict == "missed"
            except (GaveUp, ck.KafkaException) as error:
                table.add_row(name, "", "", "missed", f"gave up: {error}")
                has_missed = True
    console.print(table)
    if has_missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
