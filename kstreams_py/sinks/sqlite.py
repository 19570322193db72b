"""A table in SQLite as a sink, which stores each row once, by its delivery hash.

Rows are written before offsets are committed. A crash in between delivers the same steps again, with the same delivery
hashes: rows that are stored already are left unchanged.
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
"""How long a writer waits for other writers: well within a transaction's time-out."""

_HELD: Final = f"end the program that has locked it for more than {BUSY_SECONDS:g} s"
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
    """A table with the primary key `delivery_hash` and the named columns; created when first used.

    Several threads and processes may write to one file: each opens its own connection when first used.
    Every method raises SinkUnavailable, with the file and the remedy, if the file cannot be used.
    """

    def __init__(self, path: Path | str, table: str, columns: Sequence[str]) -> None:
        self.path = Path(path)
        self._table = _quoted(table)
        self._columns = [_quoted(name) for name in ("delivery_hash", *columns)]
        self._local = threading.local()

    def insert(self, rows: Iterable[Sequence[Any]]) -> int:
        """Writes rows of (delivery hash, value per column) in one transaction; returns how many are new.

        A row whose delivery hash is stored already is ignored.
        """
        names, values = ", ".join(self._columns), ", ".join("?" * len(self._columns))
        statement = f"INSERT INTO {self._table} ({names}) VALUES ({values}) ON CONFLICT (delivery_hash) DO NOTHING"
        with self._usable() as connection, _transaction(connection):
            return connection.executemany(statement, rows).rowcount

    def rows(self) -> list[tuple[Any, ...]]:
        """Reads all rows of (delivery hash, value per column), ordered by delivery hash."""
        with self._usable() as connection:
            return connection.execute(f"SELECT {', '.join(self._columns)} FROM {self._table} ORDER BY 1").fetchall()

    def close(self) -> None:
        """Closes this thread's connection; the next call opens it again."""
        connection = self._connections().pop(os.getpid(), None)
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection. Raises SinkUnavailable for errors of the file, and errors of a row unchanged."""
        try:
            connections, process = self._connections(), os.getpid()
            if process not in connections:
                connections[process] = self._open()
            yield connections[process]
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError):
            raise
        except sqlite3.DatabaseError as error:
            remedy = _REMEDIES.get(_code(error), "check its disk")
            raise SinkUnavailable(f"{self.path}: {error}: {remedy}, then start again") from error

    def _connections(self) -> dict[int, sqlite3.Connection]:
        """This thread's connections by process id: after a fork, one must be neither used nor closed."""
        if not hasattr(self._local, "connections"):
            self._local.connections = _Connections()
        found: _Connections = self._local.connections
        return found

    def _open(self) -> sqlite3.Connection:
        # closed by whichever thread finds that its own has ended
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _write_ahead(connection)
            # offsets are committed next, on brokers that may outlive this machine: rows must be on the disk by then.
            # NORMAL survives a crash of the process, but not of the machine
            connection.execute("PRAGMA synchronous = FULL")
            first, *others = self._columns
            columns = ", ".join([f"{first} BLOB PRIMARY KEY", *others])
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._table} ({columns}) WITHOUT ROWID")
        except BaseException:
            connection.close()
            raise
        return connection


class _Connections(dict[int, sqlite3.Connection]):
    """One thread's connections; that of this process is closed with the end of the thread, or of the table.

    Otherwise Python 3.13 warns of each (ResourceWarning), which tests may take for an error.
    """

    def __del__(self) -> None:
        connection = self.pop(os.getpid(), None)
        if connection is not None:
            connection.close()


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Sets the file's journal mode to WAL, so that readers and one writer do not wait for each other.

    SQLite's busy time-out does not cover the lock for this change, which several may need at once for a new file.
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
    connection.execute("BEGIN IMMEDIATE")  # waits for other writers here, instead of failing at the first row
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; SQLITE_ERROR if there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
