"""A table in SQLite as the target of a sink, and for functions that insert rows themselves."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import RowRefused, SettingsError, SinkUnavailable
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.sinks.columns import (
    FLOATS,
    HASH_COLUMN,
    Columns,
    TakenValues,
    Types,
    check_expected,
    check_rows,
    check_table,
    format_columns,
    read_evidence,
    split_columns,
)

BUSY_SECONDS: Final = 5.0
"""Seconds that a writer waits for other writers: well within a transaction's time-out."""

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
}

_OF_ROWS: Final = {
    sqlite3.SQLITE_ERROR,  # raised by a function in a constraint or a trigger, such as "malformed JSON"
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_MISUSE,
}

MAY_RETURN: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def open_file(path: Path) -> sqlite3.Connection:
    """Opens a file, and creates it if it is missing; a commit returns once it is on disk. Raises sqlite3.Error.

    The connection begins no transaction by itself, and any thread may use it, one at a time.
    """
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _write_ahead(connection)
        # NORMAL survives a crash of the process, but not of the machine
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def look_into_file(path: Path) -> sqlite3.Connection:
    """Opens a file to read it, or an empty one in memory if `open_file` would create it. Raises sqlite3.Error."""
    if not path.exists() and os.access(path.parent, os.W_OK):
        return sqlite3.connect(":memory:")
    # mode=ro leaves a new -wal and -shm behind, and its error for a path that is not a file differs from open_file's
    is_written = any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal"))
    options = "mode=rw" if not path.is_file() else "mode=ro" if is_written else "immutable=1"
    uri = f"{path.absolute().as_uri()}?{options}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Sets the file's journal mode to WAL, so that readers and one writer do not wait for each other.

    SQLite's busy time-out does not cover the lock for this change, which several writers of a new file may need at
    once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commits the changes made in the block, or rolls them back if the block raises."""
    connection.execute("BEGIN IMMEDIATE")  # waits for other writers here, instead of failing at the first row
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def describe_error(path: Path, error: sqlite3.Error) -> str:
    """Returns a message with the file and the remedy. A caller that waits for a locked file continues by itself."""
    remedy = _REMEDIES.get(code_of(error), "check its disk")
    return f"{path}: {error}: {remedy}{'' if code_of(error) in MAY_RETURN else ', then start again'}"


def is_of_file(error: sqlite3.Error) -> bool:
    """Returns whether the error comes from the file or its disk, rather than from a row."""
    return code_of(error) not in _OF_ROWS


def code_of(error: sqlite3.Error) -> int:
    """Returns SQLite's primary error code; SQLITE_ERROR if there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


_TYPES: Final[dict[type, str]] = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB", bool: "INTEGER"}

_OFFSETS: Final = "kstreams_offsets"
"""The table of the next offsets, by consumer and table."""

_NUMBERS: Final = re.compile(r"[ \t-\r]*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[ \t-\r]*")
"""The texts that SQLite takes for numbers."""


@dataclass(frozen=True, init=False)
class SQLite:
    """A table in SQLite. It is created when it is first opened.

    Several processes may write to one file. Commits are on the disk before `write` returns. Values are None, str,
    bytes, bool, float, and int of 64 bits; a column with a type takes only those that SQLite returns unchanged.

    - `path`: the path of the file. Its directory must exist.
    - `columns`: names, or a mapping of name to Python type.
    - `evidence`: "hash" stores `delivery_hash` as the primary key; "offsets" stores only the columns, and the offsets
      in the table `kstreams_offsets` of the same file.

    Raises SettingsError if the columns or the evidence are not possible.
    """

    path: Path
    table: str
    columns: tuple[str, ...]
    types: Types
    evidence: Evidence

    def __init__(
        self, path: Path | str, *, table: str, columns: Columns, evidence: Evidence | str = Evidence.HASH
    ) -> None:
        names, types = split_columns(columns, _TYPES)
        if len({name.lower() for name in (HASH_COLUMN, *names)}) <= len(names):
            raise SettingsError(
                f"two of the columns {format_columns((HASH_COLUMN, *names))} have the same name in SQLite, which "
                "ignores case: rename one"
            )
        kept = read_evidence(evidence, tuple(Evidence))
        vars(self).update(path=Path(path), table=table, columns=names, types=types, evidence=kept)

    def __str__(self) -> str:
        return f"{self.path}: table {self.table}"

    def check(self, rows: Sequence[Row]) -> None:
        """See RowRules."""
        created = zip((_TYPES[kind] if kind else "" for kind in self.types), self.types, strict=True)
        check_rows(
            rows, self.columns, [_accepted(_taken(declared, is_strict=False), kind) for declared, kind in created]
        )

    def open(self, consumer: str) -> SQLiteConnection:
        """Opens the file, and creates the table if it is missing. `consumer`: the owner of the stored offsets.

        Raises SinkUnavailable, and SettingsError if the table exists with other columns.
        """
        return SQLiteConnection(self, consumer)

    def inspect(self) -> None:
        """See Inspectable."""
        SQLiteConnection(self, "", is_read_only=True).close()


class SQLiteConnection:
    """One thread's connection to a table in SQLite: see SinkConnection."""

    def __init__(self, sink: SQLite, consumer: str, *, is_read_only: bool = False) -> None:
        """Opens the table. `is_read_only`: see Inspectable.inspect."""
        self.sink = sink
        self._is_read_only = is_read_only
        self._consumer = consumer
        self._accepted: list[TakenValues] = []
        names = (HASH_COLUMN, *sink.columns) if sink.evidence is Evidence.HASH else sink.columns
        self._names = names
        self._insert = f"INSERT INTO {quoted(sink.table)} ({listed(names)}) VALUES ({', '.join('?' * len(names))})"
        if sink.evidence is Evidence.HASH:
            self._insert += f" ON CONFLICT ({HASH_COLUMN}) DO NOTHING"
        self._connection: sqlite3.Connection | None = None
        with self.usable():
            pass

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the stored next offsets of these partitions."""
        if self.sink.evidence is Evidence.HASH:
            return {}
        with self.usable() as connection:
            return self._read(connection, partitions)

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Stores rows, and with `OFFSETS` the positions, in one transaction; returns how many rows are new."""
        with self.usable() as connection:
            check_rows(rows, self.sink.columns, self._accepted)
            with transaction(connection):
                if self.sink.evidence is Evidence.HASH:
                    return self._execute(connection, [(row.delivery_hash, *row.values) for row in rows])
                check_expected(str(self.sink), self._read(connection, {*positions, *expected}), expected)
                self._store(connection, positions)
                return self._execute(connection, [row.values for row in rows])

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def usable(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection, and opens it if necessary.

        Raises SinkUnavailable, with the remedy, if the file cannot be used.
        """
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except sqlite3.DatabaseError as error:
            message = describe_error(self.sink.path, error)
            raise SinkUnavailable(message, may_return=code_of(error) in MAY_RETURN) from error

    def _execute(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> int:
        remaining = iter(rows)
        try:
            return connection.executemany(self._insert, remaining).rowcount
        except (sqlite3.Error, OverflowError) as error:  # OverflowError: a text or bytes of 2 GiB
            if isinstance(error, sqlite3.Error):
                if is_of_file(error):
                    raise
                self._explain(connection)  # raises an error that no row causes, such as for a table that was dropped
            index = len(rows) - len(list(remaining)) - 1  # rows are fetched one by one, each before it is stored
            raise RowRefused(f"{self.sink} does not take the row: {error}", index) from error

    def _read(self, connection: sqlite3.Connection, partitions: Collection[TopicPartition]) -> Positions:
        asked = f"SELECT topic, partition, next_offset FROM {_OFFSETS} WHERE consumer = ? AND table_name = ?"
        found = connection.execute(asked, (self._consumer, self.sink.table)).fetchall()
        stored = {TopicPartition(topic, partition): offset for topic, partition, offset in found}
        return {tp: stored[tp] for tp in partitions if tp in stored}

    def _store(self, connection: sqlite3.Connection, positions: Positions) -> None:
        connection.executemany(
            f"INSERT OR REPLACE INTO {_OFFSETS} VALUES (?, ?, ?, ?, ?)",
            [(self.sink.table, self._consumer, *tp, offset) for tp, offset in positions.items()],
        )

    def _open(self) -> sqlite3.Connection:
        # SqliteTable closes it in any thread, once the thread of the connection has ended
        connection = look_into_file(self.sink.path) if self._is_read_only else open_file(self.sink.path)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Creates the missing tables, and checks the existing one. Raises SettingsError."""
        needed = {self.sink.table} if self.sink.evidence is Evidence.HASH else {self.sink.table, _OFFSETS}
        if self._is_read_only and self.sink.table not in _tables(connection):
            return
        if needed - _tables(connection) and not self._is_read_only:
            with transaction(connection):
                self._create(connection, needed - _tables(connection))
        found = connection.execute(
            "SELECT name, type, dflt_value IS NULL AND NOT hidden FROM pragma_table_xinfo(?)", (self.sink.table,)
        ).fetchall()
        check_table(
            str(self.sink), self._names, [name for name, *_ in found], [name for name, _, empty in found if empty]
        )
        is_strict = _is_strict(connection, self.sink.table)
        taken = {name: _taken(declared, is_strict=is_strict) for name, declared, _ in found}
        declared = zip(self.sink.columns, self.sink.types, strict=True)
        self._accepted = [_accepted(taken[name], kind) for name, kind in declared]
        try:
            self._explain(connection)
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_ERROR:
                raise
            raise SettingsError(f"{self.sink} cannot store the sink's rows: {error}: name another table") from error

    def _explain(self, connection: sqlite3.Connection) -> None:
        """Raises sqlite3.Error if the statement does not fit the table."""
        connection.execute(f"EXPLAIN {self._insert}", [None] * len(self._names))

    def _create(self, connection: sqlite3.Connection, missing: set[str]) -> None:
        sink = self.sink
        if _OFFSETS in missing:
            connection.execute(
                f"CREATE TABLE {_OFFSETS} (table_name TEXT, consumer TEXT, topic TEXT, partition INTEGER,"
                " next_offset INTEGER NOT NULL, PRIMARY KEY (table_name, consumer, topic, partition)) WITHOUT ROWID"
            )
        if sink.table not in missing:
            return
        types = [_TYPES[kind] if kind else "" for kind in sink.types]
        columns = [f"{quoted(name)} {kind}".strip() for name, kind in zip(sink.columns, types, strict=True)]
        if sink.evidence is Evidence.HASH:
            key = f"{HASH_COLUMN} BLOB PRIMARY KEY"
            connection.execute(f"CREATE TABLE {quoted(sink.table)} ({', '.join([key, *columns])}) WITHOUT ROWID")
        else:
            connection.execute(f"CREATE TABLE {quoted(sink.table)} ({', '.join(columns)})")
            # a dropped table has lost its rows: its old offsets would keep them out of the new table
            connection.execute(f"DELETE FROM {_OFFSETS} WHERE table_name = ?", (sink.table,))


class SqliteTable:
    """A table that functions write to directly, by delivery hash; created when first used.

    Several threads and processes may write to one file: each opens its own connection when first used.
    Every method raises SinkUnavailable, with the file and the remedy, if the file or its table cannot be used.
    """

    def __init__(self, path: Path | str, table: str, columns: Sequence[str]) -> None:
        self.path = Path(path)
        self._table = table
        self._columns = tuple(columns)
        self._local = threading.local()

    def insert(self, rows: Iterable[Sequence[Any]]) -> int:
        """Writes rows of (delivery hash, value per column) in one transaction; returns how many are new.

        A row whose delivery hash is stored already is ignored. Raises RowRefused if SQLite does not take a row; then no
        row is written.
        """
        return self._connected().write([Row(row[0], tuple(row[1:])) for row in rows], {}, {})

    def rows(self) -> list[tuple[Any, ...]]:
        """Reads all rows of (delivery hash, value per column), ordered by delivery hash."""
        names = listed((HASH_COLUMN, *self._columns))
        with self._connected().usable() as connection:
            return connection.execute(f"SELECT {names} FROM {quoted(self._table)} ORDER BY 1").fetchall()

    def close(self) -> None:
        """Closes this thread's connection; the next call opens it again."""
        connection = self._connections().pop(os.getpid(), None)
        if connection is not None:
            connection.close()

    def _connected(self) -> SQLiteConnection:
        connections, process = self._connections(), os.getpid()
        if process not in connections:
            try:
                sink = SQLite(self.path, table=self._table, columns=self._columns)
                connections[process] = sink.open("")
            except SettingsError as error:
                # the worker must stop: otherwise each record would become a dead letter
                raise SinkUnavailable(f"{error}, then start again") from error
        return connections[process]

    def _connections(self) -> dict[int, SQLiteConnection]:
        """Returns this thread's connections by process id: after a fork, they must be neither used nor closed."""
        if not hasattr(self._local, "connections"):
            self._local.connections = _Connections()
        found: _Connections = self._local.connections
        return found


class _Connections(dict[int, SQLiteConnection]):
    """One thread's connections. The one of this process is closed when the thread ends, or the table is freed.

    Otherwise Python 3.13 warns of each (ResourceWarning), and tests may treat a warning as an error.
    """

    def __del__(self) -> None:
        connection = self.pop(os.getpid(), None)
        if connection is not None:
            connection.close()


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}


def _is_strict(connection: sqlite3.Connection, table: str) -> bool:
    """Returns whether the table is STRICT, which SQLite 3.37 introduced."""
    if sqlite3.sqlite_version_info < (3, 37):
        return False
    return connection.execute("SELECT 1 FROM pragma_table_list(?) WHERE strict", (table,)).fetchone() is not None


def _accepted(taken: TakenValues, kind: type | None) -> TakenValues:
    """Returns the values that a column takes and that have its declared type; all that it takes if none is declared."""
    if kind is None or taken.types is None:
        return taken
    return taken._replace(types=taken.types & (FLOATS if kind is float else {kind}))


def _taken(declared: str, *, is_strict: bool) -> TakenValues:
    """Returns the values that a column of a declared type returns unchanged.

    The column's affinity converts other values: https://sqlite.org/datatype3.html, 3.1. NaN would become NULL.
    """
    kind = declared.upper()
    if "INT" in kind:
        return TakenValues(frozenset({int, bool, float, bytes}), nan=False, bits=64)
    if any(part in kind for part in ("CHAR", "CLOB", "TEXT")):
        return TakenValues(frozenset({str, bytes}))
    if not kind or "BLOB" in kind or (is_strict and kind == "ANY"):
        return TakenValues(frozenset(_TYPES), nan=False, bits=64)
    if any(part in kind for part in ("REAL", "FLOA", "DOUB")):
        return TakenValues(FLOATS, nan=False)
    return TakenValues(frozenset(_TYPES), nan=False, converted=_NUMBERS, bits=64)


def quoted(name: str) -> str:
    """Returns a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Returns names as a list of SQL."""
    return ", ".join(map(quoted, names))
