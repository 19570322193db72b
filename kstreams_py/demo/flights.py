"""`kstreams demo flights`: a year of departures through the graph, workers killed all the while, every row checked."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from rich.console import Console

from kstreams_py.config import Settings
from kstreams_py.delivery import TopicInfo
from kstreams_py.demo import data, report
from kstreams_py.demo.checks import judge
from kstreams_py.demo.data import Delays, Row
from kstreams_py.demo.flights_graph import airports, departed, flights, graph
from kstreams_py.demo.results import Results
from kstreams_py.demo.screen import Screen
from kstreams_py.demo.traffic import Kill, Kills, Loader, Progress, Watch
from kstreams_py.engine.supervisor import Supervisor, worker_command
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.errors import KStreamsError
from kstreams_py.ports import spark
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath, spark_jars
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.registry import open_registry
from kstreams_py.ports.sinks import SqliteTable
from kstreams_py.record import TopicPartition

TARGET: Final = "kstreams_py.demo.flights_graph:graph"
SLOTS: Final = (0, 1, 2)

RATE: Final = 5_000
"""Departures a second, unless the kills need more time."""

SECONDS_PER_KILL: Final = 2.0

STALLED: Final = 60.0
"""Seconds without a new record, until what is there is checked as it is."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the run looked like from outside. Times are monotonic, in seconds."""

    started: float
    seconds: float
    """From the first departure to the last outcome."""
    arrivals: Sequence[tuple[float, str, int]]
    kills: Sequence[Kill]
    longest_pause: float
    """The longest time without a new departed flight in some partition, between two of them."""


def run(records: int | None, kills: int, seed: int, output: Path) -> int:
    """Runs the demo, writes its report into `output`, and returns the exit status: 0 if every check holds, else 1.

    `records` takes only so many departures. What an earlier run left in `output` is replaced.
    """
    screen = Screen(Console())
    output = _prepared(output)
    began = time.monotonic()
    screen.say("reading the departures of 2013")
    rows = data.read(records)
    expected = data.expect(rows)
    screen.say("starting a Kafka broker on this machine")
    with _logged_to(output / "run.log"), EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        settings = Settings.load(bootstrap_servers=kafka.bootstrap_servers, schema_directory=output / "schemas")
        log, registry = KafkaLog(settings), open_registry(settings.schema_registry_url, settings.schema_directory)
        create_topics(graph, log)
        topics = check_topics(graph, log)
        stage = Stage(settings, log, topics, output, screen)
        loader = Loader(log, registry, graph, rows, max(len(rows) / RATE, SECONDS_PER_KILL * kills))
        traffic = stage.run(loader, Kills(kills, len(rows), seed), len(rows))
        screen.say("reading everything back")
        results = Results(graph, topics, registry, rows)
        results.read(log)
        results.take_stored(SqliteTable(output / "flights.sqlite", "departed", data.FIELDS).rows())
        screen.say("Spark: mean delay per carrier and month, from the committed topic")
        delays = _delays_by_spark(settings, output / "delays.parquet")
    checks = judge(expected, results.found([topic.name for topic in airports], flights.name, delays))
    screen.table(checks)
    page = output / "report.html"
    page.write_text(report.page(graph, checks, traffic, delays, time.monotonic() - began, seed), encoding="utf-8")
    screen.say(f"report: {page}")
    return 0 if all(check.ok for check in checks) else 1


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the workers run: their cluster, and what may be seen of them."""

    settings: Settings
    log: KafkaLog
    topics: dict[str, TopicInfo]
    output: Path
    screen: Screen

    def run(self, loader: Loader, kills: Kills, records: int) -> Traffic:
        """Runs workers, loader and watch until all departures have their outcome, or nothing moves any more.

        Raises what made a worker end for good.
        """
        partitions = [TopicPartition(name, p) for name, info in self.topics.items() for p in range(info.partitions)]
        watch, stopping = Watch(self.log, partitions), Event()
        supervisor = self._supervisor()
        self.screen.say(f"{len(SLOTS)} workers; their log is {self.output / 'workers.log'}")
        with ThreadPoolExecutor() as pool, self.screen:
            started = time.monotonic()
            workers = pool.submit(supervisor.run, lambda _: None)
            loading, watching = pool.submit(loader.run, stopping), pool.submit(watch.run, stopping)
            ...
