"""A sink as it is often written: the offset is committed apart from the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions, TopicPartition


@dataclass(frozen=True)
class NaiveSink:
    """A table in SQLite, and its offsets in another transaction."""

    path: Path
    columns: tuple[str, ...] = ("value",)
    evidence: Evidence = Evidence.OFFSETS

    def open(self, consumer: str) -> NaiveConnection:
        return NaiveConnection(sqlite3.connect(self.path))


class NaiveConnection:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE TABLE IF NOT EXISTS stored (value)")
        connection.execute("CREATE TABLE IF NOT EXISTS next (topic, partition, offset, PRIMARY KEY (topic, partition))")

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        found = self._connection.execute("SELECT topic, partition, offset FROM next").fetchall()
        return {TopicPartition(topic, partition): offset for topic, partition, offset in found}

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        self._connection.executemany("INSERT INTO stored VALUES (?)", [row.values for row in rows])
        self._connection.commit()
        self._connection.executemany("REPLACE INTO next VALUES (?, ?, ?)", [(*tp, o) for tp, o in positions.items()])
        self._connection.commit()
        return len(rows)

    def close(self) -> None:
        self._connection.close()
