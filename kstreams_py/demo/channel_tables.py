"""The tables of a demo over channels: the flights that are read, the flights that are stored, and counts of both."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kstreams_py.demo.channel_checks import StoredRow, TablesFound
from kstreams_py.demo.channels_graph import COLUMNS, SOURCE, TARGET
from kstreams_py.demo.data import FIELDS, Row
from kstreams_py.sinks import SQLite
from kstreams_py.sinks.sqlite import listed
from kstreams_py.sources import SQLite as SourceTable
from kstreams_py.sources.claims import CLAIMS, DONE, REFUSED

_COUNTED: Final = """
CREATE TABLE counted (written INTEGER NOT NULL, stored INTEGER NOT NULL);
INSERT INTO counted VALUES (0, 0);
CREATE TRIGGER counted_written BEFORE INSERT ON {table} BEGIN UPDATE counted SET written = written + 1; END;
CREATE TRIGGER counted_stored AFTER INSERT ON {table} BEGIN UPDATE counted SET stored = stored + 1; END;
"""
"""The first trigger runs for each row that is written, the second only for rows whose hash is new."""


@dataclass(frozen=True, slots=True)
class DemoTables:
    """The two tables.

    - `directory`: the directory of their files.
    - `reads`, `stores`: the tables as the graph declares them.
    - `columns`: the columns of `stores`, with their types.
    """

    directory: Path
    reads: SourceTable = SOURCE
    stores: SQLite = TARGET
    columns: Mapping[str, type] = field(default_factory=lambda: COLUMNS)

    @property
    def files(self) -> list[str]:
        """The names of the files of both tables."""
        return [f"{path.name}{end}" for path in (self.source, self.target) for end in ("", "-wal", "-shm")]

    @property
    def source(self) -> Path:
        """The path of the file with the flights that are read."""
        return self.directory / self.reads.path.name

    @property
    def target(self) -> Path:
        """The path of the file with the flights that are stored."""
        return self.directory / self.stores.path.name

    def create(self, rows: Sequence[Row]) -> None:
        """Creates both tables, and fills the first one. The key of a flight is its number, from 1 on."""
        with closing(sqlite3.connect(self.source)) as connection, connection:
            connection.execute(
                f"CREATE TABLE {self.reads.table} ({self.reads.key} INTEGER PRIMARY KEY, {listed(FIELDS)})"
            )
            marks = ", ".join("?" * (1 + len(FIELDS)))
            numbered = ((number, *row) for number, row in enumerate(rows, 1))
            connection.executemany(f"INSERT INTO {self.reads.table} VALUES ({marks})", numbered)
        SQLite(self.target, table=self.stores.table, columns=self.columns).open("").close()
        with closing(sqlite3.connect(self.target)) as connection, connection:
            connection.executescript(_COUNTED.format(table=self.stores.table))

    def count(self) -> tuple[int, int]:
        """Returns how many rows have been written so far, and how many of them were new."""
        with closing(sqlite3.connect(self.target)) as connection:
            written, stored = connection.execute("SELECT written, stored FROM counted").fetchone()
        return written, stored

    def read(self) -> TablesFound:
        """Reads the result of a run."""
        with closing(sqlite3.connect(self.source)) as connection:
            states = dict(connection.execute(f"SELECT state, count(*) FROM {CLAIMS} GROUP BY state"))
            refused = dict(connection.execute(f"SELECT key, reason FROM {CLAIMS} WHERE state = {REFUSED}"))
            deaths = Counter(dict(connection.execute(f"SELECT key, deaths FROM {CLAIMS} WHERE deaths > 0")))
        with closing(sqlite3.connect(self.target)) as connection:
            rows = Counter[StoredRow](connection.execute(f"SELECT {listed(self.columns)} FROM {self.stores.table}"))
        return TablesFound(rows, refused, states.get(DONE, 0), sum(states.values()), deaths, self.count()[0])
