"""Where a sink's rows go: a table in SQLite, each row once by its delivery hash.

A sink writes here first and its positions are committed after, so a crash in between delivers the same steps again,
with the same delivery hashes: their rows are there already and are left as they are.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SinkUnavailable

BUSY_SECONDS: Final = 5.0
"""How long a writer waits for the others: well within a transaction's time limit."""

_HELD: Final = f"end what has held it for more than {BUSY_SECONDS:g} s"
_RIGHTS: Final = "give this user the right to write it and its directory"

_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_CANTOPEN: "make its directory, with the right to write there",
    sqlite3.SQLITE_CORRUPT: "restore it, or move it away",
    sqlite3.SQLITE_NOTADB: "move away what is there, or name another file",
    sqlite3.SQLITE_ERROR: "its table has other columns: correct them, or name another table",
}


class SqliteTable:
    """A table with the columns `delivery_hash`, its primary key, and those named; made when first needed.

    Several threads and processes may write to one file: each has a connection of its own, opened when first used.
    Every method raises SinkUnavailable, with the file and the remedy, where the file cannot be used.
    """

    def __init__(self, path: Path | str, table: str, columns: Sequence[str]) -> None:
        self.path = Path(path)
        self._table = _quoted(table)
        self._columns = [_quoted(name) for name in ("delivery_hash", *columns)]
        self._local = threading.local()

    def insert(self, rows: Iterable[Sequence[Any]]) -> int:
        """Writes rows of (delivery hash, value per column) in one transaction: all of them, or none.

        A row whose delivery hash is there is left out; returns how many were not.
        """
        names, values = ", ".join(self._columns), ", ".join("?" * len(self._columns))
        statement = f"INSERT INTO {self._table} ({names}) VALUES ({values}) ON CONFLICT (delivery_hash) DO NOTHING"
        with self._usable() as connection, _transaction(connection):
            return connection.executemany(statement, rows).rowcount

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows of (delivery hash, value per column), by delivery hash."""
        with self._usable() as connection:
            return connection.execute(f"SELECT {', '.join(self._columns)} FROM {self._table} ORDER BY 1").fetchall()

    def close(self) -> None:
        """Closes this thread's connection; it is opened again when needed."""
        connection = self._connections().pop(os.getpid(), None)
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection; what the file refuses is SinkUnavailable, what a row gets wrong is not."""
        try:
            connections, process = self._connections(), os.getpid()
            if process not in connections:
                connections[process] = self._open()
            yield connections[process]
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError):
            raise
        except sqlite3.DatabaseError as error:
            remedy = _REMEDIES.get(_code(error), "see to its disk")
            raise SinkUnavailable(f"{self.path}: {error}: {remedy}, then start again") from error

    def _connections(self) -> dict[int, sqlite3.Connection]:
        """This thread's, by process id: a connection must not be used, nor closed, across a fork."""
        found: dict[int, sqlite3.Connection] = self._local.__dict__.setdefault("connections", {})
        return found

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _write_ahead(connection)
            # The positions are committed right after, on brokers that may outlive this machine: what they say is done
            # must then be on the disk. NORMAL would survive a crash of the process, but not one of the machine.
            connection.execute("PRAGMA synchronous = FULL")
            first, *others = self._columns
            columns = ", ".join([f"{first} BLOB PRIMARY KEY", *others])
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) WITHOUT ROWID")
        except BaseException:
            connection.close()
            raise
        return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers and one writer at a time, without waiting for each other; kept by the file from then on.

    SQLite does not wait by itself for the lock that this change needs, when several open a new file at once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")  # to wait for other writers here, and not to be refused in the middle
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; SQLITE_ERROR where there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
