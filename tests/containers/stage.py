"""Helpers of the container tests: write departures, and compare the outputs with the file, row by row."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testcontainers.core.container import DockerContainer

from kstreams_py import Settings
from kstreams_py.demo import data, data_files
from kstreams_py.demo.checks import Results, judge
from kstreams_py.demo.flights_graph import airports, flights, graph
from kstreams_py.demo.traffic import GroupProgress, Loader, TopicWatch
from kstreams_py.formats.registries import open_registry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import SqliteTable
from tests.waiting import wait_until

TARGET: Final = "kstreams_py.demo.flights_graph:graph"
LIMIT: Final = 180.0
"""Seconds within which all departures must have their outcome."""

STARTUP_SECONDS: Final = 180
"""Seconds within which a broker must be healthy."""


@dataclass(frozen=True)
class Broker:
    """A broker in a container, and the settings with which this process reaches it."""

    container: DockerContainer
    settings: Settings


def stop_container(container: DockerContainer) -> int:
    """Sends SIGTERM, and SIGKILL after 30 s (status 137); returns the exit status."""
    wrapped = container.get_wrapped_container()
    wrapped.stop(timeout=30)
    return int(wrapped.wait()["StatusCode"])


class Flights:
    """Creates the topics of the flights graph, writes departures, and counts their outcomes."""

    def __init__(self, settings: Settings, records: int) -> None:
        self.rows = data_files.read(records)
        self.cluster = KafkaCluster(settings)
        self.registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
        create_topics(graph, self.cluster)
        self.topics = check_topics(graph, self.cluster)
        partitions = [TopicPartition(name, p) for name, info in self.topics.items() for p in range(info.partitions)]
        self.watch = TopicWatch(self.cluster, partitions)
        self._loader: Loader | None = None
        self._progress = GroupProgress(self.cluster, graph, partitions, self.watch)

    @contextmanager
    def running(self, write_in: float | None = None) -> Iterator[None]:
        """Counts records inside the block, and writes the departures within `write_in` seconds; None writes none."""
        stopping = threading.Event()
        if write_in is not None:
            self._loader = Loader(self.cluster, self.registry, graph, self.rows, write_in)
        runs = [each.run for each in (self._loader, self.watch) if each is not None]
        threads = [threading.Thread(target=run, args=(stopping,)) for run in runs]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
            self._progress.close()

    def await_departed(self, number: int) -> None:
        """Waits until this number of departed flights is committed."""
        wait_until(lambda: self.watch.counts["flights.departed"] >= number, f"{number} departed flights", LIMIT)

    def await_all(self) -> None:
        """Waits until every departure has its outcome."""

        def is_done() -> bool:
            return (self._loader is None or self._loader.done) and self._progress.complete()

        wait_until(is_done, "every departure has its outcome", LIMIT)

    def failed_checks(self, stored: Path) -> list[str]:
        """Returns the checks of the demo that fail; `stored` is the directory with the SQLite file."""
        results = Results(graph, self.topics, self.registry, self.rows)
        results.read(self.cluster)
        results.take_stored(_read_stored_rows(stored))
        by_topic = data.delays(results.rows["departed"], results.rows["cancelled"])
        checks = judge(
            data.expect(self.rows), results.found([topic.name for topic in airports], flights.name, by_topic)
        )
        return [f"{check.what}: {check.found} instead of {check.expected}" for check in checks if not check.ok]


def _read_stored_rows(directory: Path) -> list[tuple[object, ...]]:
    """Reads the table from a copy of its file, which another user may own."""
    copy = directory.with_name(f"{directory.name}-copy")
    copy.mkdir()
    for file in directory.glob("flights.sqlite*"):
        shutil.copyfile(file, copy / file.name)
    table = SqliteTable(copy / "flights.sqlite", "departed", data.FIELDS)
    try:
        return table.rows()
    finally:
        table.close()
