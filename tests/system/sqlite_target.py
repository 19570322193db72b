"""A user's own target of a sink: a table in SQLite, which can end or stop its process around a commit."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SinkUnavailable, StaleWriter
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions, TopicPartition

STRIKES: Final = {
    "killed before the commit": signal.SIGKILL,
    "killed after the commit": signal.SIGKILL,
    "stopped before the write": signal.SIGSTOP,
}
"""Files in the target's directory: the process that removes one of them gets the signal, at that place."""


@dataclass(frozen=True)
class SqliteTarget:
    """A table in `directory`/rows.db; with hashes as evidence, the hash is its key."""

    directory: str
    evidence: Evidence
    columns: tuple[str, ...] = ("value", "number")

    def open(self, consumer: str) -> Connection:
        return Connection(self, consumer)

    def create(self) -> None:
        """Creates the file. SQLite does not wait for readers when it changes the journal mode."""
        with closing(sqlite3.connect(f"{self.directory}/rows.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")  # the test reads meanwhile

    def read(self) -> list[tuple[Any, ...]]:
        """All rows; none before a worker has made the table."""
        with sqlite3.connect(f"file:{self.directory}/rows.db?mode=rwc", uri=True, timeout=30.0) as connection:
            made = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'stored'").fetchall()
            return connection.execute("SELECT value, number FROM stored").fetchall() if made else []


class Connection:
    """kstreams_py.graph.sink.SinkConnection."""

    def __init__(self, target: SqliteTarget, consumer: str) -> None:
        self._directory = Path(target.directory)
        self._by_hash = target.evidence is Evidence.HASH
        self._consumer = consumer
        self._connection = sqlite3.connect(self._directory / "rows.db", timeout=5.0, isolation_level=None)
        key = "hash BLOB PRIMARY KEY" if self._by_hash else "hash BLOB"
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS stored ({key}, value, number)")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS offsets "
            "(consumer, topic, partition, next, PRIMARY KEY (consumer, topic, partition))"
        )

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        found = self._connection.execute(
            "SELECT topic, partition, next FROM offsets WHERE consumer = ?", (self._consumer,)
        )
        stored = {TopicPartition(topic, partition): at for topic, partition, at in found}
        return {tp: stored[tp] for tp in partitions if tp in stored}

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        self._strike("stopped before the write")
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise SinkUnavailable(str(error), may_return=True) from error
        try:
            if not self._by_hash:
                if (found := self.positions(positions)) != expected:
                    raise StaleWriter(f"{found} is stored, and not {expected}")
                connection.executemany(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?, ?)",
                    [(self._consumer, *tp, at) for tp, at in positions.items()],
                )
            new = connection.executemany(
                "INSERT OR IGNORE INTO stored VALUES (?, ?, ?)", [(row.delivery_hash, *row.values) for row in rows]
            ).rowcount
            self._strike("killed before the commit")
            connection.execute("COMMIT")
            self._strike("killed after the commit")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return new

    def close(self) -> None:
        self._connection.close()

    def _strike(self, place: str) -> None:
        try:
            (self._directory / place).unlink()
        except FileNotFoundError:
            return
        signal.raise_signal(STRIKES[place])  # in this thread: it takes no lock before its process is stopped
