"""`kstreams demo flights`: processes a year of departures, kills workers meanwhile, and checks every row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event
from typing import Final

from pyarrow.parquet import ParquetFile

from kstreams_py.demo import data, data_files, report
from kstreams_py.demo.checks import Results, exit_status, judge
from kstreams_py.demo.data import Delays
from kstreams_py.demo.flights_graph import airports, departed, flights, graph
from kstreams_py.demo.recoveries import Recoveries, are_running
from kstreams_py.demo.screen import LOG, Screen, log_writer, open_cluster, prepare
from kstreams_py.demo.traffic import TICK, GroupProgress, Kills, Loader, TopicWatch, Traffic
from kstreams_py.embedded.jars import spark_jars
from kstreams_py.errors import ClientError, PipelineFailed
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.hashes import hash_prefix
from kstreams_py.graph.names import group_of
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.operations.dead_letters.text import Describer
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.running.status import RunStatus
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.terminal.progress import LockedConsole
from kstreams_py.running.wiring import supervise
from kstreams_py.settings import Settings
from kstreams_py.sinks import Parquet, SqliteTable

TARGET: Final = "kstreams_py.demo.flights_graph:graph"
SLOTS: Final = (0, 1, 2)

RATE: Final = 5_000
"""Departures per second, or fewer if the kills need more time."""

SECONDS_PER_KILL: Final = 2.0

LETTERS: Final = 5
"""The number of dead letters that the report shows, spread evenly over all dead letters."""

STALLED: Final = 60.0
"""Seconds without a new record before the run ends early, and its results are checked as they are."""


def run(records: int | None, kills: int, seed: int, output: Path) -> int:
    """Runs the demo, and returns the exit status: 0 if every check holds, otherwise 1.

    - `records`: how many departures to process, spread evenly over the year; None for all.
    - `kills`: how many workers to kill, spread evenly over the run.
    - `seed`: the seed of the random kills.
    - `output`: the directory of the report and its data; files of an earlier run are replaced.
    """
    began = time.monotonic()
    screen = Screen(LockedConsole(stderr=False))
    output = _prepared(output)
    spark_jars(screen.say)
    screen.say("reading the departures of 2013")
    rows = data_files.read(records)
    expected = data.expect(rows)
    screen.say("starting a Kafka broker on this machine")
    with open_cluster(output) as (settings, cluster):
        registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
        create_topics(graph, cluster)
        topics = check_topics(graph, cluster)
        loader = Loader(cluster, registry, graph, rows, max(len(rows) / RATE, SECONDS_PER_KILL * kills))
        traffic = FlightsStage(settings, cluster, output, screen).run(topics, loader, Kills(kills, len(rows), seed))
        screen.say("reading everything back, and running the pipeline on Spark")
        results = Results(graph, topics, registry, rows)
        with ThreadPoolExecutor() as pool:
            by_spark = pool.submit(_run_pipeline, settings, output)
            results.read(cluster)
            results.take_stored(_stored(output))
            delays = by_spark.result()
        described = Describer(graph, registry)
        shown = data.spread(sorted(results.letters, key=lambda letter: (letter.timestamp, letter.place)), LETTERS)
        letters = [report.ShownLetter(letter, described.content(letter)) for letter in shown]
    checks = judge(expected, results.found([topic.name for topic in airports], flights.name, delays))
    screen.table(checks)
    page = output / "report.html"
    facts = report.CommandFacts(seed, len(SLOTS), time.monotonic() - began, is_sample=records is not None)
    found = report.ReportedRun(graph, checks, traffic, delays, data_files.carriers(), letters, facts)
    page.write_text(report.page(found), encoding="utf-8")
    screen.say(f"report: {page}")
    return exit_status(checks)


@dataclass(frozen=True, slots=True)
class FlightsStage:
    """Runs the workers, the traffic and the screen together."""

    settings: Settings
    cluster: KafkaCluster
    output: Path
    screen: Screen

    def run(self, topics: dict[str, TopicInfo], loader: Loader, kills: Kills) -> Traffic:
        """Runs the workers until every departure has its outcome, or no new record comes for STALLED seconds.

        Departures are written once all workers have joined, so kills evenly spaced by count are evenly spaced in time.
        Raises the failure that ended the workers.
        """
        partitions = [TopicPartition(name, p) for name, info in topics.items() for p in range(info.partitions)]
        watch, stopping = TopicWatch(self.cluster, partitions), Event()
        supervisor = supervise(TARGET, SLOTS, self.settings, _environment(self.settings, self.output))
        progress = GroupProgress(self.cluster, graph, partitions, watch)
        recoveries, joined, began = Recoveries(_sources(topics)), Event(), list[float]()

        def note(status: RunStatus) -> None:
            recoveries.note(status)
            if are_running(status, [processor.id for processor in graph.processors], len(SLOTS)):
                joined.set()

        def load() -> None:
            while not joined.wait(TICK):
                if stopping.is_set():
                    return
            began.append(self.screen.begin())
            loader.run(stopping)

        self.screen.say(f"{len(SLOTS)} workers, {kills.left} kills to come; the log is {self.output / LOG}")
        with self.screen, ThreadPoolExecutor() as pool:
            workers = pool.submit(supervisor.run, lambda _: None, note, log_writer(self.output / LOG, self.screen))
            others = [pool.submit(each) for each in (load, lambda: watch.run(stopping))]
            try:
                while not (loader.done and not kills.left and progress.complete()):
                    for task in (workers, *others):
                        if task.done():
                            task.result()  # raises its exception, if it has one
                    if workers.done() or time.monotonic() - watch.last_arrival > STALLED:
                        self.screen.say("[red]no new records[/]: checking the results as they are")
                        break
                    self._turn(watch, loader, kills, supervisor, recoveries)
            finally:
                supervisor.stop()
                try:
                    workers.result()
                finally:
                    stopping.set()
        progress.close()
        found = recoveries.seconds(kills.done, watch.seen)
        self.screen.recovered(found)
        return Traffic(
            began[0] if began else watch.last_arrival,
            watch.arrivals,
            kills.done,
            found,
            watch.longest_pause.get(departed.name, 0.0),
        )

    def _ends(self, partitions: Sequence[TopicPartition]) -> Positions | None:
        """Returns the ends of the topics; None if the cluster does not answer.

        The ends include uncommitted records: a killed process's commits may lie behind an open transaction of another.
        """
        try:
            return self.cluster.ends(partitions, committed=False)
        except ClientError:
            return None

    def _turn(
        self, watch: TopicWatch, loader: Loader, kills: Kills, supervisor: Supervisor, recoveries: Recoveries
    ) -> None:
        """Kills a worker if one is due, and shows the counts."""
        if kill := kills.look(watch.counts[flights.name], supervisor.pids):
            self.screen.killed(kill, len(kills.done), len(kills.done) + kills.left)
        counts = {topic.name: watch.counts[topic.name] for topic in graph.topics.values() if topic not in airports}
        self.screen.counts(counts, loader.written, loader.records)
        time.sleep(TICK)
        if kill and (ends := self._ends(watch.partitions)) is not None:
            recoveries.note_ends(kill, ends)


def _environment(settings: Settings, output: Path) -> dict[str, str]:
    """Returns the environment variables of the graph's processes."""
    return {**settings.as_environment(), "KSTREAMS_DEMO_DIRECTORY": str(output)}


def _sources(topics: dict[str, TopicInfo]) -> Callable[[str, TopicPartition], bytes]:
    """Returns a function that returns the prefix of the delivery hashes of a processor and an input partition."""

    @cache
    def source(processor: str, tp: TopicPartition) -> bytes:
        return hash_prefix(group_of(graph.name, processor), tp.topic, topics[tp.topic].topic_id, tp.partition)

    return source


def _prepared(output: Path) -> Path:
    """Creates the directory if necessary, and removes the files of an earlier run."""
    names = ("report.html", LOG, "flights.sqlite", "flights.sqlite-wal", "flights.sqlite-shm", "delays")
    return prepare(output, names)


def _stored(output: Path) -> list[tuple[object, ...]]:
    table = SqliteTable(output / "flights.sqlite", "departed", data.FIELDS)
    try:
        return table.rows()
    finally:
        table.close()


def _run_pipeline(settings: Settings, output: Path) -> Delays:
    """Runs the graph's pipeline in its own Spark driver, and reads its table. Raises PipelineFailed."""
    command = [sys.executable, "-P", "-m", "kstreams_py", "pipeline", "run", TARGET, "--once"]
    with (output / LOG).open("ab") as log:
        done = subprocess.run(
            command, env=os.environ | _environment(settings, output), stderr=log, stdout=log, check=False
        )
    if done.returncode:
        raise PipelineFailed(f"the pipeline ended with status {done.returncode}: {output / LOG} has the reason")
    rows = [row for file in Parquet(output / "delays").files() for row in ParquetFile(file).read().to_pylist()]
    return {(row["carrier"], row["month"]): (row["flights"], row["delay"], row["cancelled"]) for row in rows}
