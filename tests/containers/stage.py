"""What the tests on containers share: departures go in, the outcome is compared with the file, row by row."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testcontainers.core.container import DockerContainer

from kstreams_py import Settings
from kstreams_py.demo import data
from kstreams_py.demo.checks import judge
from kstreams_py.demo.flights_graph import airports, flights, graph
from kstreams_py.demo.results import Results
from kstreams_py.demo.traffic import Loader, Progress, Watch
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.registry import open_registry
from kstreams_py.ports.sinks import SqliteTable
from kstreams_py.record import TopicPartition
from tests.system.harness import wait_until

TARGET: Final = "kstreams_py.demo.flights_graph:graph"
LIMIT: Final = 180.0
"""Seconds until all departures must have their outcome."""

STARTUP_SECONDS: Final = 180
"""Until a broker must be healthy."""


@dataclass(frozen=True)
class Broker:
    """A broker in a container, and the settings with which this process reaches it."""

    container: DockerContainer
    settings: Settings


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def stopped(container: DockerContainer) -> int:
    """SIGTERM, and the exit status of what then ends; SIGKILL, which is 137, after 30 s."""
    wrapped = container.get_wrapped_container()
    wrapped.stop(timeout=30)
    return int(wrapped.wait()["StatusCode"])


class Flights:
    """The flights graph seen from outside its workers: topics are made, departures written, outcomes counted."""

    def __init__(self, settings: Settings, records: int) -> None:
        self.rows = data.read(records)
        self.log = KafkaLog(settings)
        self.registry = open_registry(settings.schema_registry_url, settings.schema_directory)
        create_topics(graph, self.log)
        self.topics = check_topics(graph, self.log)
        partitions = [TopicPartition(name, p) for name, info in self.topics.items() for p in range(info.partitions)]
        self.watch = Watch(self.log, partitions)
        self._loader: Loader | None = None
        self._progress = Progress(self.log, graph, partitions, self.watch)

    @contextmanager
    def running(self, write_in: float | None = None) -> Iterator[None]:
        """Records are counted inside the block, and departures written in so many seconds, unless others do that."""
        stopping = threading.Event()
        if write_in is not None:
            self._loader = Loader(self.log, self.registry, graph, self.rows, write_in)
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
        """Returns once so many departed flights are committed."""
        wait_until(lambda: self.watch.counts["flights.departed"] >= number, f"{number} departed flights", LIMIT)

    def await_all(self) -> None:
        """Returns once every departure has its outcome."""

        def done() -> bool:
            return (self._loader is None or self._loader.done) and self._progress.complete()

        wait_until(done, "every departure has its outcome", LIMIT)

    def wrong(self, stored: Path) -> list[str]:
        """The lines of the demo's table that do not hold; `stored` is the directory with the table of SQLite."""
        results = Results(graph, self.topics, self.registry, self.rows)
        results.read(self.log)
        results.take_stored(_stored(stored))
        by_topic = data.delays(results.rows["departed"])
        checks = judge(
            data.expect(self.rows), results.found([topic.name for topic in airports], flights.name, by_topic)
        )
        return [f"{check.what}: {check.found} and not {check.expected}" for check in checks if not check.ok]


def _stored(directory: Path) -> list[tuple[object, ...]]:
    """Rows of a table that another user may own: of a copy."""
    copy = directory.with_name(f"{directory.name}-copy")
    copy.mkdir()
    for file in directory.glob("flights.sqlite*"):
        shutil.copyfile(file, copy / file.name)
    table = SqliteTable(copy / "flights.sqlite", "departed", data.FIELDS)
    try:
        return table.rows()
    finally:
        table.close()
