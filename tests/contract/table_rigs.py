"""The targets of pipelines under test: how each is declared, read without Spark, and made unusable for a while."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow.parquet
from filelock import FileLock

from bench.servers import Server
from kstreams_py.graph.pipelines import Table
from kstreams_py.sinks import Parquet, PostgreSQL


class TableRig(Protocol):
    """One place for a table."""

    def declare(self) -> Table:
        """A declaration of the place; each is equal to the others."""
        ...

    def rows(self) -> list[tuple[Any, ...]]:
        """The published rows in order, read without Spark and without the target; none without any run."""
        ...

    def broken(self) -> AbstractContextManager[str]:
        """Makes the place refuse runs, for a while; yields a part of the message."""
        ...


class ParquetRig:
    def __init__(self, directory: Path) -> None:
        self._directory = directory / "table"

    def declare(self) -> Table:
        return Parquet(self._directory)

    def rows(self) -> list[tuple[Any, ...]]:
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in Parquet(self._directory).files()]
        return sorted((tuple(row.values()) for table in tables for row in table.to_pylist()), key=repr)

    @contextmanager
    def broken(self) -> Iterator[str]:
        with FileLock(self._directory / "_lock"):
            yield "is locked"


class PostgreSQLRig:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._url = f"postgresql://postgres:secret@127.0.0.1:{server.port}/postgres"
        self._table = f"s{uuid.uuid4().hex}.stored"
        with psycopg.connect(self._url) as connection:
            connection.execute(f"CREATE SCHEMA {self._table.partition('.')[0]}")

    def declare(self) -> Table:
        return PostgreSQL(self._url, table=self._table)

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            found = connection.execute("SELECT to_regclass(%s)", (self._table,)).fetchone()
            if found == (None,):
                return []
            return sorted(connection.execute(f"SELECT * FROM {self._table}").fetchall(), key=repr)

    @contextmanager
    def broken(self) -> Iterator[str]:
        self._server.stop()
        try:
            yield "connection"
        finally:
            self._server.start()
