"""The rows of a table in SQLite as a source. Claims are rows of another table in the same file."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstreams_py.errors import SettingsError, did_you_mean
from kstreams_py.graph.source import SourceStatus
from kstreams_py.sinks.sqlite import listed, quoted
from kstreams_py.sources import claims
from kstreams_py.sources.claims import (
    CLAIMS,
    LEASE,
    ClaimedInputs,
    ClaimsFile,
    bytes_of,
    check_file,
    checked_lease,
    is_no_text,
)
from kstreams_py.sources.inspection import inspect_claims, retry_claims
from kstreams_py.sources.passes import LOOKED_AT, Look, Passes


@dataclass(frozen=True, init=False)
class SQLite:
    """The rows of a table in SQLite, including rows that are inserted later. Each row is a dict of column to value.

    A row that was acknowledged is never read again, whatever changes in it. The claims of all workers and graphs are in
    the table `kstreams_claims` of the same file, which is created; the file's journal mode becomes WAL. All workers
    must run on one machine.

    - `path`: the path of the file.
    - `key`: a column that identifies a row for ever: the primary key, or NOT NULL and UNIQUE. A key that is used again
      after its row was deleted is not read.
    - `columns`: the columns to read; None for all.
    - `ends`: no more rows are inserted: the job ends when all rows are done.
    - `lease`: seconds after which the claims of a silent worker are taken over.
    """

    path: Path
    table: str
    key: str
    columns: tuple[str, ...] | None
    ends: bool
    lease: float

    def __init__(
        self,
        path: Path | str,
        *,
        table: str,
        key: str,
        columns: Iterable[str] | None = None,
        ends: bool = False,
        lease: float = LEASE,
    ) -> None:
        seconds = checked_lease(lease)
        names = None if columns is None else tuple(columns)
        vars(self).update(path=Path(path), table=table, key=key, columns=names, ends=ends, lease=seconds)

    def __str__(self) -> str:
        return f"{self.path}: table {self.table}"

    def open(self, reader: str) -> ClaimsFile:
        """See Source."""
        check_file(self.path)
        return ClaimsFile(self.path, self._reader(reader), self.lease, _TableRows(self))

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """See InspectedSource."""
        return inspect_claims(self.path, self._reader(reader), limit)

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """See InspectedSource."""
        return retry_claims(self, self.path, self._reader(reader), keys)

    def _reader(self, reader: str) -> str:
        """Returns the name under which claims are kept: another table, or another key column, has other inputs."""
        return f"{reader} {self.table}.{self.key}"


class _TableRows(ClaimedInputs):
    """The rows of a table: see ClaimedInputs."""

    def __init__(self, source: SQLite) -> None:
        self._source = source
        self._columns: tuple[str, ...] = ()
        self._key = quoted(source.key)
        """The key column, with the collation by which it identifies a row."""
        self._passes = Passes(claims.read_clock, ends=source.ends)

    def prepare(self, connection: sqlite3.Connection) -> None:
        """See ClaimedInputs."""
        self._columns = self._checked_columns(connection)

    def values(self, connection: sqlite3.Connection, keys: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        """See ClaimedInputs."""
        asked = f"SELECT {listed(self._columns)} FROM {quoted(self._source.table)} WHERE {self._key} = ?"
        rows = ((key, connection.execute(asked, (key,)).fetchone()) for key in keys)
        return {key: dict(zip(self._columns, row, strict=True)) for key, row in rows if row is not None}

    def find(self, connection: sqlite3.Connection, reader: str, limit: int) -> list[tuple[Any, dict[str, Any]]]:
        """See ClaimedInputs: in the order of their keys."""
        rows = list[tuple[Any, ...]]()

        def look(after: Any) -> Look:
            nonlocal rows
            rows, last, is_end = self._look(connection, reader, limit, after)
            return Look(len(rows), len(rows), last, is_end)

        self._passes.find(look)
        self.are_complete = self._passes.are_complete
        return [(row[0], dict(zip(self._columns, row[1:], strict=True))) for row in rows]

    def _look(
        self, connection: sqlite3.Connection, reader: str, limit: int, after: Any
    ) -> tuple[list[tuple[Any, ...]], Any, bool]:
        """Looks at the next rows after a key.

        Returns up to `limit` unclaimed rows, the last key looked at, and whether it is the table's last key.
        """
        key = self._key
        since, began = ("", ()) if after is None else (f"WHERE {key} > {_place_of(after)}", (_bound(after),))
        keys = f"SELECT {quoted(self._source.key)} FROM {quoted(self._source.table)} {since} ORDER BY {key}"
        until = connection.execute(f"{keys} LIMIT 1 OFFSET {LOOKED_AT - 1}", began).fetchone()
        # read before the rows: a row that is inserted after this is beyond the end, or found in the next pass
        last = until or connection.execute(f"{keys} DESC LIMIT 1", began).fetchone()
        found = self._select(connection, reader, limit, after, until)
        if len(found) == limit:
            return found, found[-1][0], False
        return found, last and last[0], until is None

    def _select(
        self, connection: sqlite3.Connection, reader: str, limit: int, after: Any, until: tuple[Any] | None
    ) -> list[tuple[Any, ...]]:
        """Returns up to `limit` rows that no worker has claimed, each with its key and its columns."""
        column, key = f"t.{quoted(self._source.key)}", f"t.{self._key}"
        since, began = ("", ()) if after is None else (f"AND {key} > {_place_of(after)}", (_bound(after),))
        to, ended = ("", ()) if until is None else (f"AND {key} <= {_place_of(until[0])}", (_bound(until[0]),))
        asked = (
            f"SELECT {column}, {', '.join(f't.{quoted(each)}' for each in self._columns)}"
            f" FROM {quoted(self._source.table)} AS t"
            f" LEFT JOIN {CLAIMS} AS c ON c.reader = ? AND c.key = +{column}"  # + removes its affinity: c.key has none
            f" WHERE c.key IS NULL {since} {to} ORDER BY {key} LIMIT ?"
        )
        return connection.execute(asked, (reader, *began, *ended, limit)).fetchall()

    def _checked_columns(self, connection: sqlite3.Connection) -> tuple[str, ...]:
        """Returns the columns to read. Raises SettingsError for a table that cannot be read as it is declared."""
        source = self._source
        found = connection.execute('SELECT name, "notnull", pk FROM pragma_table_info(?)', (source.table,)).fetchall()
        names = [name for name, *_ in found]
        if not names:
            raise SettingsError(f"{source.path} has no table {source.table!r}: correct the table of the source")
        for name in (source.key, *(source.columns or ())):
            if name not in names:
                close = did_you_mean(name, names) or f"it has {', '.join(names)}"
                raise SettingsError(f"{source} has no column {name!r}: {close}")
        if not self._is_key(connection, {name: (notnull, pk) for name, notnull, pk in found}):
            raise SettingsError(
                f"{source}: column {source.key!r} does not identify a row: name a column that is the primary key, or "
                "NOT NULL and UNIQUE"
            )
        return source.columns or tuple(names)

    def _is_key(self, connection: sqlite3.Connection, found: dict[str, tuple[int, int]]) -> bool:
        notnull, pk = found[self._source.key]
        if pk and sum(1 for _, part in found.values() if part) == 1:
            kind = connection.execute(
                "SELECT type FROM pragma_table_info(?) WHERE name = ?", (self._source.table, self._source.key)
            ).fetchone()[0]
            if kind.upper() == "INTEGER":
                return True
        # a primary key of another type may be NULL, except in tables WITHOUT ROWID: https://sqlite.org/lang_createtable.html
        if not notnull:
            return False
        unique = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
        for index in connection.execute(unique, (self._source.table,)).fetchall():
            parts = connection.execute("SELECT name, coll FROM pragma_index_xinfo(?) WHERE key", index).fetchall()
            if [name for name, _ in parts] == [self._source.key]:
                # the column's own collation may treat two keys of the index as equal
                self._key = f"{quoted(self._source.key)} COLLATE {quoted(parts[0][1])}"
                return True
        return False


def _place_of(key: Any) -> str:
    """Returns the placeholder of a key in a statement."""
    return "CAST(? AS TEXT)" if is_no_text(key) else "?"


def _bound(key: Any) -> Any:
    """Returns the parameter for the placeholder of a key."""
    return bytes_of(key) if is_no_text(key) else key
