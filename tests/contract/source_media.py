"""What sources read, one class for each: the contract suite runs on all of them."""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from bench.servers import Server
from kstreams_py import sources
from kstreams_py.graph.sink import Evidence
from kstreams_py.graph.source import Source, SourceConnection
from kstreams_py.sources import claims
from kstreams_py.testing.memory_source import MemorySource
from tests.contract.targets import PostgreSQLTarget

LEASE: Final = 10.0

READER: Final = "shop.orders"


class Medium(ABC):
    """Inputs somewhere, by number, which a source reads; the clock of its leases, and the connections of a test.

    The value of an input has its number as `id`, and `item {number}` as `item`.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.ahead = 1_700_000_000.0
        """How far the time of day is ahead of the clock of the leases: it jumps."""
        self._opened: list[SourceConnection] = []

    def set_clocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Gives the claims of workers the clocks of this test."""
        monkeypatch.setattr(claims, "time", self)

    def clock_gettime(self, clock: int) -> float:
        """Replaces `time.clock_gettime`."""
        return self.time() if clock == time.CLOCK_REALTIME else self.now

    def time(self) -> float:
        """Replaces `time.time`."""
        return self.now + self.ahead

    @abstractmethod
    def insert(self, *ids: int) -> None:
        """Adds inputs."""

    @abstractmethod
    def delete(self) -> None:
        """Deletes all inputs, also those that are claimed."""

    @abstractmethod
    def source(self, **options: Any) -> Source:
        """Returns the source. `options`: those that all sources have: `ends`, `lease`."""

    def key_of(self, number: int) -> str:
        """Returns the key of an input as operators see it."""
        return str(number)

    @abstractmethod
    def refused(self) -> list[tuple[int, str]]:
        """Returns the number and the reason of each input that was refused."""

    def wait(self, seconds: float) -> None:
        """Lets the clock of the leases go on."""
        self.now += seconds

    def open(self, reader: str = READER, **options: Any) -> SourceConnection:
        self._opened.append(self.source(**{"lease": LEASE, **options}).open(reader))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()


class InMemory(Medium):
    def __init__(self) -> None:
        super().__init__()
        self._source = MemorySource(ends=False, lease=LEASE, clock=lambda: self.now)

    def insert(self, *ids: int) -> None:
        self._source.inputs |= {each: {"id": each, "item": f"item {each}"} for each in ids}

    def delete(self) -> None:
        self._source.inputs.clear()

    def source(self, **options: Any) -> Source:
        self._source.ends = options.get("ends", False)
        return self._source

    def refused(self) -> list[tuple[int, str]]:
        kept = self._source.kept[READER].items()
        return [(key, each.reason or "") for key, each in kept if each.state == "refused"]


class InSQLite(Medium):
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.set_clocks(monkeypatch)
        self.path = directory / "shop.db"
        self.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")

    def insert(self, *ids: int) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany("INSERT INTO orders VALUES (?, ?)", [(each, f"item {each}") for each in ids])

    def delete(self) -> None:
        self.run("DELETE FROM orders")

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def source(self, **options: Any) -> Source:
        return sources.SQLite(self.path, **{"table": "orders", "key": "id", **options})

    def refused(self) -> list[tuple[int, str]]:
        return self.run("SELECT key, reason FROM kstreams_claims WHERE state = 3")


class InFiles(Medium):
    """Lines of JSON: each `insert` makes a file, in the order of its lowest number."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.set_clocks(monkeypatch)
        self.directory = directory
        self._inserted: dict[str, list[int]] = {}

    def insert(self, *ids: int) -> None:
        path = self.directory / f"{min(ids):06}.jsonl"
        self._inserted[str(path)] = sorted(ids)
        lines = (json.dumps({"id": each, "item": f"item {each}"}) + "\n" for each in sorted(ids))
        path.write_text("".join(lines), encoding="utf-8")

    def delete(self) -> None:
        for path in self.directory.glob("*.jsonl"):
            path.unlink()

    def source(self, **options: Any) -> Source:
        given = {"paths": self.directory / "*.jsonl", "format": "jsonl", "claims": self.directory / "claims.db"}
        return sources.Files(**{**given, **options})

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.directory / "claims.db")) as connection, connection:
            return connection.execute(statement).fetchall()

    def refused(self) -> list[tuple[int, str]]:
        return [(self._inserted[path][line - 1], reason) for path, line, reason in self.refused_lines()]

    def key_of(self, number: int) -> str:
        """Returns the key of an input as operators see it."""
        path, ids = next((path, ids) for path, ids in self._inserted.items() if number in ids)
        return f"{path}:{ids.index(number) + 1}"

    def refused_lines(self) -> list[tuple[str, int, str]]:
        """Returns the path, the number and the reason of each, by what the claims file has."""
        return self.run(
            "SELECT path, key & 0xffffffffff AS line, reason FROM kstreams_claims AS c JOIN kstreams_files AS f"
            " ON f.reader = c.reader AND file = key >> 40 WHERE state = 3"
        )


class InPostgreSQL(Medium):
    """Rows in a schema of its own. What waits is the worker's clock; the leases in the table end sooner instead."""

    def __init__(self, _: Path, monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
        super().__init__()
        self.set_clocks(monkeypatch)
        self.target = PostgreSQLTarget(server, Evidence.HASH)
        self.run = self.target.execute
        self.run("CREATE TABLE orders (id bigint PRIMARY KEY, item text)")

    def insert(self, *ids: int) -> None:
        self.run(f"INSERT INTO orders SELECT id, 'item ' || id FROM unnest(ARRAY{[*ids]}) AS id")

    def delete(self) -> None:
        self.run("DELETE FROM orders")

    def source(self, **options: Any) -> Source:
        given = {"key": "id", **options, "table": f"{self.target.schema}.{options.get('table', 'orders')}"}
        return sources.PostgreSQL(self.target.url, **given)

    def refused(self) -> list[tuple[int, str]]:
        return self.run("SELECT key::bigint, reason FROM kstreams_claims WHERE state = 3 ORDER BY 1")

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if self.run("SELECT to_regclass('kstreams_claim_owners')") != [(None,)]:
            self.run(f"UPDATE kstreams_claim_owners SET lease_until = lease_until - interval '{seconds} seconds'")
