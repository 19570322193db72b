"""`kstreams demo flights`: processes a year of departures, kills workers meanwhile, and checks every row."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from rich.console import Console

from kstreams_py import spark
from kstreams_py.demo import data, data_files, report
from kstreams_py.demo.checks import exit_status, judge
from kstreams_py.demo.data import Delays
from kstreams_py.demo.flights_graph import airports, departed, flights, graph
from kstreams_py.demo.results import Results
from kstreams_py.demo.screen import Screen
from kstreams_py.demo.traffic import TICK, Kills, Loader, Progress, Traffic, Watch
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import SettingsError
from kstreams_py.formats.registries import open_registry
from kstreams_py.formats.registry import Registry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.wiring import worker_command
from kstreams_py.settings import Settings
from kstreams_py.sinks import SqliteTable

TARGET: Final = "kstreams_py.demo.flights_graph:graph"
SLOTS: Final = (0, 1, 2)

LOG: Final = "run.log"

RATE: Final = 5_000
"""Departures per second, or fewer where the kills need more time."""

SECONDS_PER_KILL: Final = 2.0

STALLED: Final = 60.0
"""Seconds without a new record before the run ends early, and its results are checked as they are."""


def run(records: int | None, kills: int, seed: int, output: Path) -> int:
    """Runs the demo, and returns the exit status: 0 if every check holds, otherwise 1.

    - `records`: how many of the first departures of the file to process; None for all.
    - `kills`: how many workers to kill.
    - `seed`: of the random kills.
    - `output`: the directory of the report and its data; replaces the files of an earlier run.
    """
    began = time.monotonic()
    screen = Screen(Console())
    output = _prepared(output)
    jars = spark_jars(screen.say)
    screen.say("reading the departures of 2013")
    rows = data_files.read(records)
    expected = data.expect(rows)
    screen.say("starting a Kafka broker on this machine")
    with _cluster(output) as (settings, cluster):
        registry = open_registry(settings.schema_registry_url, settings.schema_directory)
        create_topics(graph, cluster)
        topics = check_topics(graph, cluster)
        loader = Loader(cluster, registry, graph, rows, max(len(rows) / RATE, SECONDS_PER_KILL * kills))
        traffic = Stage(settings, cluster, output, screen).run(topics, loader, Kills(kills, len(rows), seed))
        screen.say("reading everything back, by Spark too")
        results = Results(graph, topics, registry, rows)
        with ThreadPoolExecutor() as pool:
            by_spark = pool.submit(_delays_by_spark, settings, registry, jars, output)
            results.read(cluster)
            results.take_stored(_stored(output))
            delays = by_spark.result()
    checks = judge(expected, results.found([topic.name for topic in airports], flights.name, delays))
    screen.table(checks)
    page = output / "report.html"
    shown = report.Run(
        graph, checks, traffic, delays, data_files.carriers(), seed, len(SLOTS), time.monotonic() - began
    )
    page.write_text(report.page(shown), encoding="utf-8")
    screen.say(f"report: {page}")
    return exit_status(checks)


@dataclass(frozen=True, slots=True)
class Stage:
    """Runs the workers, the traffic and the screen together."""

    settings: Settings
    cluster: KafkaCluster
    output: Path
    screen: Screen

    def run(self, topics: dict[str, TopicInfo], loader: Loader, kills: Kills) -> Traffic:
        """Runs the workers until every departure has its outcome, or no new record comes for STALLED seconds.

        Raises the failure that ended the workers.
        """
        partitions = [TopicPartition(name, p) for name, info in topics.items() for p in range(info.partitions)]
        watch, stopping, supervisor = Watch(self.cluster, partitions), Event(), self._supervisor()
        progress = Progress(self.cluster, graph, partitions, watch)
        self.screen.say(f"{len(SLOTS)} workers, {kills.left} kills to come; the log is {self.output / LOG}")
        with self.screen, ThreadPoolExecutor() as pool:
            started = time.monotonic()
            workers = pool.submit(supervisor.run, lambda _: None)
            others = [pool.submit(each.run, stopping) for each in (loader, watch)]
            try:
                while not (loader.done and not kills.left and progress.complete()):
                    for task in (workers, *others):
                        if task.done():
                            task.result()  # raises its exception, if it has one
                    if workers.done() or time.monotonic() - watch.last_arrival > STALLED:
                        self.screen.say("[red]no new records[/]: checking the results as they are")
                        break
                    self._turn(watch, loader, kills, supervisor)
            finally:
                supervisor.stop()
                try:
                    workers.result()
                finally:
                    stopping.set()
        progress.close()
        return Traffic(started, watch.arrivals, kills.done, watch.longest_pause.get(departed.name, 0.0))

    def _turn(self, watch: Watch, loader: Loader, kills: Kills, supervisor: Supervisor) -> None:
        """Kills a worker if one is due, and shows the counts."""
        if kill := kills.look(watch.counts[flights.name], supervisor.pids):
            self.screen.killed(kill, len(kills.done), len(kills.done) + kills.left)
        counts = {topic.name: watch.counts[topic.name] for topic in graph.topics.values() if topic not in airports}
        self.screen.counts(counts, loader.written, loader.records)
        time.sleep(TICK)

    def _supervisor(self) -> Supervisor:
        command, logged = worker_command(TARGET), 'log=$1; shift; exec "$@" 2>>"$log"'
        return Supervisor(
            lambda slot: ["/bin/sh", "-c", logged, "worker", str(self.output / LOG), *command(slot)],
            SLOTS,
            drain_seconds=self.settings.drain_timeout_ms / 1000 + 5,
            stuck_timeout_ms=self.settings.stuck_timeout_ms,
            environment={**self.settings.as_environment(), "KSTREAMS_DEMO_DIRECTORY": str(self.output)},
        )


def _prepared(output: Path) -> Path:
    """Makes the directory if necessary, and removes the files of an earlier run."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", LOG, "flights.sqlite", "flights.sqlite-wal", "flights.sqlite-shm"):
            (output / name).unlink(missing_ok=True)
        shutil.rmtree(output / "delays.parquet", ignore_errors=True)
    except OSError as error:
        raise SettingsError(f"the directory {output} cannot be written ({error}): name another with --output") from None
    return output.resolve()


@contextmanager
def _cluster(output: Path) -> Iterator[tuple[Settings, KafkaCluster]]:
    """Settings and the cluster of a temporary broker, with a temporary directory of schemas."""
    with (
        _logged_to(output / LOG),
        tempfile.TemporaryDirectory(prefix="kstreams-schemas-") as schemas,
        EmbeddedKafka() as kafka,
    ):
        settings = Settings.load(bootstrap_servers=kafka.bootstrap_servers, schema_directory=Path(schemas))
        yield settings, KafkaCluster(settings)


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Writes the log of this process to the file of the workers' log: the terminal is the screen's."""
    root, handler = logging.getLogger(), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before
        handler.close()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirects standard error, also of processes started meanwhile, to a file."""
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _stored(output: Path) -> list[tuple[object, ...]]:
    table = SqliteTable(output / "flights.sqlite", "departed", data.FIELDS)
    try:
        return table.rows()
    finally:
        table.close()


def _delays_by_spark(settings: Settings, registry: Registry, jars: Sequence[Path], output: Path) -> Delays:
    """Computes the table from the committed topic, writes it as Parquet, and reads it back."""
    logging.getLogger("py4j").setLevel(logging.WARNING)  # at INFO it logs its sockets
    with _stderr_to(output / LOG):
        session = spark.session("kstreams demo flights", jars=jars, java=find_java(for_spark=True))
    parquet = str(output / "delays.parquet")
    try:
        spark.view(session, departed, registry=registry, settings=settings).createOrReplaceTempView("departed")
        table = session.sql(
            "SELECT carrier, month, count(*) AS flights, avg(arr_delay) AS delay FROM departed GROUP BY carrier, month"
        )
        table.coalesce(1).sortWithinPartitions("carrier", "month").write.parquet(parquet)
        found = session.read.parquet(parquet).collect()
    finally:
        session.stop()
    return {(row["carrier"], row["month"]): (row["flights"], row["delay"]) for row in found}
