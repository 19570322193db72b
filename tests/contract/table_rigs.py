"""The targets of pipelines under test: how each is declared, read without Spark, and made unusable for a while."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
import pyarrow.parquet
from filelock import FileLock
from pyspark.sql import Row as SparkRow

from bench.servers import Server
from kstreams_py.formats.serdes import Json, String
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import Mode, Table
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet, PostgreSQL
from tests.system.harness import Cluster


class TableRig(Protocol):
    """One place for a table."""

    @property
    def settings(self) -> Settings:
        """How the place is reached, if it is a topic."""
        ...

    def declare(self, graph: Graph) -> Any:
        """A declaration of the place for a pipeline of this graph; each is equal to the others."""
        ...

    def rows(self) -> list[tuple[Any, ...]]:
        """The published rows in order, read without Spark and without the target; none without any run."""
        ...

    def decode(self, row: SparkRow) -> tuple[Any, ...]:
        """The row that the pipeline has returned, of one of the target's DataFrame."""
        ...

    def broken(self) -> AbstractContextManager[str]:
        """Makes the place refuse runs, for a while; yields a part of the message."""
        ...


class ParquetRig:
    settings: Final = Settings()

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "table"

    def declare(self, graph: Graph) -> Table:
        return Parquet(self._directory)

    def rows(self) -> list[tuple[Any, ...]]:
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in Parquet(self._directory).files()]
        return sorted((tuple(row.values()) for table in tables for row in table.to_pylist()), key=repr)

    def decode(self, row: SparkRow) -> tuple[Any, ...]:
        return tuple(row)

    @contextmanager
    def broken(self) -> Iterator[str]:
        with FileLock(self._directory / "_lock"):
            yield "is locked"


class DeltaRig:
    settings: Final = Settings()

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "table"

    def declare(self, graph: Graph) -> Table:
        return Delta(str(self._directory))

    def rows(self) -> list[tuple[Any, ...]]:
        """Those of the files that the log has added, and not removed since."""
        files = set[str]()
        for commit in sorted((self._directory / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
            files -= {action["remove"]["path"] for action in actions if "remove" in action}
            files |= {action["add"]["path"] for action in actions if "add" in action}
        tables = [pyarrow.parquet.ParquetFile(self._directory / name).read() for name in files]
        return sorted((tuple(row.values()) for table in tables for row in table.to_pylist()), key=repr)

    def decode(self, row: SparkRow) -> tuple[Any, ...]:
        return tuple(row)

    @contextmanager
    def broken(self) -> Iterator[str]:
        """Its log is a directory that cannot be read."""
        log = self._directory / "_delta_log"
        log.rename(self._directory / "away")
        log.write_text("no directory")
        try:
            yield "DELTA_TABLE_NOT_FOUND"
        finally:
            log.unlink()
            (self._directory / "away").rename(log)


class PostgreSQLRig:
    settings: Final = Settings()

    def __init__(self, server: Server) -> None:
        self._server = server
        self._url = f"postgresql://postgres:secret@127.0.0.1:{server.port}/postgres"
        self._table = f"s{uuid.uuid4().hex}.stored"
        with psycopg.connect(self._url) as connection:
            connection.execute(f"CREATE SCHEMA {self._table.partition('.')[0]}")

    def declare(self, graph: Graph) -> Table:
        return PostgreSQL(self._url, table=self._table)

    def execute(self, statement: str) -> None:
        """A statement of others; `{table}` and `{name}` are the table with its schema, and without."""
        with psycopg.connect(self._url) as connection:
            connection.execute(statement.format(table=self._table, name=self._table.partition(".")[2]).encode())

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.execute("SELECT to_regclass(%s)", (self._table,)).fetchone()
            if found == (None,):
                return []
            return sorted(connection.execute(f"SELECT * FROM {self._table}").fetchall(), key=repr)

    def decode(self, row: SparkRow) -> tuple[Any, ...]:
        return tuple(row)

    @contextmanager
    def broken(self) -> Iterator[str]:
        self._server.stop()
        try:
            yield "connection"
        finally:
            self._server.start()


class TopicRig:
    def __init__(self, cluster: Cluster, name: str, mode: Mode) -> None:
        self.settings = Settings(bootstrap_servers=cluster.bootstrap_servers)
        self._cluster, self._topic, self._mode = cluster, f"{name}.table", mode
        cluster.create(self._topic, partitions=3)

    def declare(self, graph: Graph) -> Topic:
        return graph.topic(self._topic, key=String(), value=Json())

    def rows(self) -> list[tuple[Any, ...]]:
        """All records; of an upsert the newest of each key."""
        records = [(m.key(), tuple(json.loads(m.value()).values())) for m in self._cluster.read(self._topic)]
        found = dict(records).values() if self._mode is Mode.UPSERT else [row for _, row in records]
        return sorted(found, key=repr)

    def decode(self, row: SparkRow) -> tuple[Any, ...]:
        return tuple(json.loads(row["value"]).values())

    @contextmanager
    def broken(self) -> Iterator[str]:
        usable = self.settings
        self.settings = Settings.load(bootstrap_servers="127.0.0.1:9", request_timeout_ms=500)
        try:
            yield "127.0.0.1:9"
        finally:
            self.settings = usable
