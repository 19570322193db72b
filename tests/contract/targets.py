"""The targets of sinks under test: how each is declared, read without the sink, broken and repaired."""

from __future__ import annotations

import json
import resource
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg
import pyarrow.parquet
import redis
from filelock import FileLock

from bench.servers import Server
from kstreams_py.graph.sink import Evidence, Sink
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, SQLite

Columns = Sequence[str] | Mapping[str, type]


class Target(Protocol):
    """One target in a place of its own."""

    evidence: Evidence

    def declare(self, columns: Columns) -> Sink:
        """A declaration of the place."""
        ...

    def rows(self) -> list[tuple[Any, ...]]:
        """What the place has, read by the client alone, in any order; nothing if it does not exist."""
        ...

    def broken(self) -> AbstractContextManager[str]:
        """Makes the place unusable, for a while; yields a part of the message."""
        ...


class SQLiteTarget:
    def __init__(self, directory: Path, evidence: Evidence) -> None:
        self.path = directory / "rows.sqlite"
        self.evidence = evidence
        self._columns: tuple[str, ...] = ()

    def declare(self, columns: Columns) -> Sink:
        self._columns = tuple(columns)
        return SQLite(self.path, table="stored", columns=columns, evidence=self.evidence)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def rows(self) -> list[tuple[Any, ...]]:
        made = self.execute("SELECT 1 FROM sqlite_master WHERE name = 'stored'")
        return self.execute(f"SELECT {', '.join(self._columns)} FROM stored") if made else []

    @contextmanager
    def broken(self) -> Iterator[str]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield "database is locked"
            other.execute("ROLLBACK")


class PostgreSQLTarget:
    def __init__(self, server: Server, evidence: Evidence) -> None:
        self.server = server
        # a busy machine takes longer to accept a connection than a writer may wait
        self.url = f"postgresql://postgres:secret@127.0.0.1:{server.port}/postgres?connect_timeout=60"
        self.evidence = evidence
        self.schema = f"s{uuid.uuid4().hex}"
        self.execute(f"CREATE SCHEMA {self.schema}")
        self._columns: tuple[str, ...] = ()

    def declare(self, columns: Columns) -> Sink:
        self._columns = tuple(columns)
        return PostgreSQL(self.url, table=f"{self.schema}.stored", columns=columns, evidence=self.evidence)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(f"SET search_path = {self.schema}")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def rows(self) -> list[tuple[Any, ...]]:
        [(made,)] = self.execute("SELECT to_regclass('stored') IS NOT NULL")
        return self.execute(f"SELECT {', '.join(self._columns)} FROM stored") if made else []

    @contextmanager
    def broken(self) -> Iterator[str]:
        self.server.stop()
        try:
            yield "connection"
        finally:
            self.server.start()


class RedisTarget:
    evidence: Final = Evidence.HASH

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = f"redis://127.0.0.1:{server.port}/0"
        self.key = uuid.uuid4().hex

    def declare(self, columns: Columns) -> Sink:
        return Redis(self.url, key=self.key, columns=columns)

    def rows(self) -> list[tuple[Any, ...]]:
        with redis.Redis.from_url(self.url) as client:
            keys = [key for key in client.scan_iter(f"{self.key}:*", count=1000) if not key.endswith(b":columns")]
            return [tuple(json.loads(value).values()) for value in client.mget(keys)] if keys else []

    @contextmanager
    def broken(self) -> Iterator[str]:
        self.server.stop()
        try:
            yield "onnection"
        finally:
            self.server.start()


class ParquetTarget:
    evidence: Final = Evidence.OFFSETS

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "rows"
        self.sink: Parquet | None = None

    def declare(self, columns: Columns) -> Sink:
        assert isinstance(columns, Mapping)
        self.sink = Parquet(self.directory, columns=columns)
        return self.sink

    def rows(self) -> list[tuple[Any, ...]]:
        assert self.sink is not None
        tables = [pyarrow.parquet.ParquetFile(path).read() for path in self.sink.files()]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]

    @contextmanager
    def broken(self) -> Iterator[str]:
        with FileLock(self.directory / "_lock"):
            yield "is locked"


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """Refuses files of this process that are larger, as a full disk refuses them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
