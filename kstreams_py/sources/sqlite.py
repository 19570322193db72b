"""The rows of a table in SQLite as a source. Claims are rows of another table in the same file."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SettingsError, SourceUnavailable, did_you_mean
from kstreams_py.graph.source import Claim
from kstreams_py.sinks.sqlite import MAY_RETURN, code_of, describe_error, listed, open_file, quoted, transaction
from kstreams_py.sources.suspects import REASON, choose

LEASE: Final = 10.0
"""The default seconds after which the claims of a worker that is silent are taken over."""

FREE, CLAIMED, DONE, REFUSED = range(4)
"""The states of a claim: given back, under way, acknowledged, acknowledged with a reason why it was not processed."""

_CLAIMS: Final = "kstreams_claims"
_OWNERS: Final = "kstreams_claim_owners"

_COLUMNS: Final = {
    _CLAIMS: ("reader", "key", "state", "owner", "deaths", "reason"),
    _OWNERS: ("owner", "lease", "lease_until", "process"),
}

_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {_CLAIMS} (reader TEXT, key BLOB, state INTEGER NOT NULL, owner INTEGER,
    deaths INTEGER NOT NULL, reason TEXT, PRIMARY KEY (reader, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {_CLAIMS}_open ON {_CLAIMS} (reader) WHERE state <= {CLAIMED};
CREATE TABLE IF NOT EXISTS {_OWNERS} (owner INTEGER PRIMARY KEY AUTOINCREMENT, lease REAL NOT NULL,
    lease_until REAL NOT NULL, process TEXT NOT NULL);
"""
"""The index has the claims that are not done, which are few: without it, a search for them would read all."""

_DEAD: Final = "(lease_until < ? OR lease_until > ? + lease)"
"""An owner whose lease is over; or that began at another start of the machine, as no lease ends later than that."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_clock() -> float:
    """Returns the seconds since the start of this machine, also while it slept; the same in all processes.

    The time of day may jump, and would end leases that are held, or keep those of the dead.
    """
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, init=False)
class SQLite:
    """The rows of a table in SQLite, those that are inserted later included. Each row is a dict of column to value.

    A row that was acknowledged is never read again, whatever changes in it. The claims of all workers and graphs are in
    the table `kstreams_claims` of the same file, which is created; the file's journal mode becomes WAL. All workers run
    on one machine.

    - `path`: the path of the file.
    - `key`: a column that identifies a row for ever: the primary key, or NOT NULL and UNIQUE. A key that is used again
      after its row was deleted is not read.
    - `columns`: those to read; None for all.
    - `ends`: no row is inserted any more: the job ends when all rows are done.
    - `lease`: seconds after which the claims of a worker that is silent are taken over.
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
        if lease <= 0:
            raise SettingsError(f"lease={lease}: give seconds above 0")
        names = None if columns is None else tuple(columns)
        vars(self).update(path=Path(path), table=table, key=key, columns=names, ends=ends, lease=float(lease))

    def __str__(self) -> str:
        return f"{self.path}: table {self.table}"

    def open(self, reader: str) -> SQLiteReader:
        """See Source."""
        return SQLiteReader(self, reader)


class SQLiteReader:
    """One worker's connection to the rows of a table: see SourceConnection."""

    def __init__(self, source: SQLite, reader: str) -> None:
        self.source = source
        # another table, or another key of it, has other rows
        self._reader = f"{reader} {source.table}.{source.key}"
        self._connection: sqlite3.Connection | None = None
        self._keeper: sqlite3.Connection | None = None
        """The connection of the thread that keeps the claims."""
        self._owner: int | None = None
        """The number of this worker among all owners of claims; None until its first claim."""
        self._renewed_at = 0.0
        self._held = set[Any]()
        """The keys that this worker has claimed and that have no end."""
        self._is_doubtful = False
        """Whether a read has failed: claims may be there that nobody knows of."""
        self._columns: tuple[str, ...] = ()
        self._after: Any = None
        """The last key that was read in the current pass over the table; None at its start."""
        self._passed_at = float("-inf")
        """When a pass was last begun, and how long it takes to look through the table in one."""
        self._pass_seconds = 0.0
        self._searched_at = float("-inf")
        """When claims to be read again were last looked for."""
        self.waits_alone = False
        self.is_exhausted = False
        with self._usable():
            pass

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        doubtful, self._is_doubtful = self._is_doubtful, True
        with self._usable() as connection:
            if self._owner is None or read_clock() > self._renewed_at + self.source.lease / 3:
                self._renew(connection)
                self._renewed_at = read_clock()
            claims = self._read_unknown(connection) if doubtful else []
            claims += self._read_again(connection, limit - len(claims), alone=alone)
            if not self.waits_alone:
                claims += self._read_new(connection, limit - len(claims))
        self._is_doubtful = False
        self._held.update(claim.token for claim in claims)
        return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        self._end(DONE, ((None, claim) for claim in claims))

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection. The reason is in the column `reason` of `kstreams_claims`, with the state 3."""
        self._end(REFUSED, ((reason, claim) for claim, reason in claims))

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""
        given = f"UPDATE {_CLAIMS} SET state = {FREE}, deaths = deaths + ? WHERE reader = ? AND key = ?"
        rows = [(int(failed), self._reader, claim.token, self._owner) for claim in claims]
        with self._usable() as connection, transaction(connection):
            connection.executemany(f"{given} AND owner = ? AND state = {CLAIMED}", rows)
        self._held.difference_update(claim.token for claim in claims)
        self._searched_at = float("-inf")

    @property
    def lease(self) -> float:
        """See SourceConnection."""
        return self.source.lease

    def keep(self) -> None:
        """See SourceConnection."""
        if self._owner is None:
            return
        try:
            if self._keeper is None:
                self._keeper = open_file(self.source.path)
            self._renew(self._keeper)
        except sqlite3.DatabaseError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """See SourceConnection."""
        for connection in (self._connection, self._keeper):
            if connection is not None:
                connection.close()
        self._connection = self._keeper = None

    def _end(self, state: int, claims: Iterable[tuple[str | None, Claim]]) -> None:
        ended = f"UPDATE {_CLAIMS} SET state = {state}, reason = ? WHERE reader = ? AND key = ? AND owner = ?"
        rows = [(reason, self._reader, claim.token, self._owner) for reason, claim in claims]
        with self._usable() as connection, transaction(connection):
            connection.executemany(f"{ended} AND state = {CLAIMED}", rows)
        self._held.difference_update(key for _, _, key, _ in rows)

    def _read_again(self, connection: sqlite3.Connection, limit: int, *, alone: bool) -> list[Claim]:
        """Claims inputs that were given back, or whose worker is dead."""
        now = read_clock()
        if limit <= 0:
            return []
        if not (alone and self.waits_alone) and now < self._searched_at + self.source.lease / 4:
            return []
        self._searched_at = now
        asked = (
            f"SELECT key, deaths + (state = {CLAIMED}) FROM {_CLAIMS} LEFT JOIN {_OWNERS} USING (owner)"
            f" WHERE reader = ? AND state <= {CLAIMED}"
            f" AND (state = {FREE} OR lease IS NULL OR {_DEAD})"
        )
        with transaction(connection):
            found = connection.execute(asked, (self._reader, now, now)).fetchall()
            deaths = {key: count for key, count in found if key not in self._held}
            chosen = choose(deaths, limit, alone=alone)
            values = self._values(connection, chosen.read)
            refused = [(REASON, self._reader, key) for key in chosen.refused]
            refused += [("its row was deleted", self._reader, key) for key in chosen.read if key not in values]
            connection.executemany(
                f"UPDATE {_CLAIMS} SET state = {REFUSED}, reason = ? WHERE reader = ? AND key = ?", refused
            )
            connection.executemany(
                f"UPDATE {_CLAIMS} SET state = {CLAIMED}, owner = ?, deaths = ? WHERE reader = ? AND key = ?",
                [(self._owner, deaths[key], self._reader, key) for key in values],
            )
        self.waits_alone = chosen.left or chosen.are_suspects
        return [self._claim(key, value, deaths[key]) for key, value in values.items()]

    def _read_unknown(self, connection: sqlite3.Connection) -> list[Claim]:
        """Returns the claims of this worker that it does not know of: those of a read whose commit had no answer."""
        # the first condition is that of the index
        asked = (
            f"SELECT key, deaths FROM {_CLAIMS} WHERE state <= {CLAIMED} AND reader = ? AND owner = ?"
            f" AND state = {CLAIMED}"
        )
        found = dict(connection.execute(asked, (self._reader, self._owner)).fetchall())
        values = self._values(connection, [key for key in found if key not in self._held])
        return [self._claim(key, value, found[key]) for key, value in values.items()]

    def _values(self, connection: sqlite3.Connection, keys: Sequence[Any]) -> dict[Any, dict[str, Any]]:
        asked = f"SELECT {listed(self._columns)} FROM {quoted(self.source.table)} WHERE {quoted(self.source.key)} = ?"
        rows = ((key, connection.execute(asked, (key,)).fetchone()) for key in keys)
        return {key: dict(zip(self._columns, row, strict=True)) for key, row in rows if row is not None}

    def _read_new(self, connection: sqlite3.Connection, limit: int) -> list[Claim]:
        """Claims rows that nobody has claimed, in the order of their keys, in passes over the whole table."""
        now = read_clock()
        if limit <= 0:
            return []
        if self._after is None:
            # a pass reads the claims of all rows: it takes a tenth of the time at most
            if now < self._passed_at + 10 * self._pass_seconds:
                return []
            self._passed_at = now
        key, table = quoted(self.source.key), quoted(self.source.table)
        since = "" if self._after is None else f"AND t.{key} > ?"
        asked = (
            f"SELECT t.{key}, {', '.join(f't.{quoted(each)}' for each in self._columns)} FROM {table} AS t"
            f" LEFT JOIN {_CLAIMS} AS c ON c.reader = ? AND c.key = +t.{key}"  # + lets it use the index, of no affinity
            f" WHERE c.key IS NULL {since} ORDER BY t.{key} LIMIT ?"
        )
        began = (self._reader,) if self._after is None else (self._reader, self._after)
        rows, is_shared = connection.execute(asked, (*began, limit)).fetchall(), False
        if rows:
            claimed = [(self._reader, row[0], self._owner) for row in rows]
            with transaction(connection):
                before = connection.total_changes
                connection.executemany(f"INSERT OR IGNORE INTO {_CLAIMS} VALUES (?, ?, {CLAIMED}, ?, 0, NULL)", claimed)
                is_shared = connection.total_changes - before < len(rows)
        if len(rows) < limit:
            self._pass_seconds = read_clock() - now if self._after is None else 0.0
        self._after = rows[-1][0] if len(rows) == limit else None
        if self.source.ends and not rows and self._passed_at == now:
            left = f"SELECT 1 FROM {_CLAIMS} WHERE reader = ? AND state <= {CLAIMED} LIMIT 1"
            self.is_exhausted = connection.execute(left, (self._reader,)).fetchone() is None
        if is_shared:  # another worker has claimed some of them meanwhile
            asked = f"SELECT key FROM {_CLAIMS} WHERE state <= {CLAIMED} AND reader = ? AND owner = ?"
            own = {key for (key,) in connection.execute(asked, (self._reader, self._owner))} - self._held
            rows = [row for row in rows if row[0] in own]
        names = self._columns
        return [self._claim(row[0], dict(zip(names, row[1:], strict=True)), 0) for row in rows]

    def _claim(self, key: Any, value: dict[str, Any], deaths: int) -> Claim:
        return Claim(key if type(key) is int else repr(key).encode(), value, deaths, key)

    def _renew(self, connection: sqlite3.Connection) -> None:
        """Renews the lease; registers this worker as an owner first, if it is none."""
        lease, process = self.source.lease, f"process {os.getpid()}"
        until = read_clock() + lease
        if self._owner is None:
            connection.execute(f"DELETE FROM {_OWNERS} WHERE {_DEAD}", (read_clock(), read_clock()))
            made = f"INSERT INTO {_OWNERS} (lease, lease_until, process) VALUES (?, ?, ?)"
            self._owner = connection.execute(made, (lease, until, process)).lastrowid
            return
        # if this worker was frozen past its lease, another one may have deleted it
        renewed = f"INSERT INTO {_OWNERS} VALUES (?, ?, ?, ?) ON CONFLICT (owner) DO UPDATE SET lease_until = ?"
        connection.execute(renewed, (self._owner, lease, until, process, until))

    @contextmanager
    def _usable(self) -> Iterator[sqlite3.Connection]:
        """Yields the connection, and opens it if necessary. Raises SourceUnavailable with the remedy."""
        try:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection
        except sqlite3.DatabaseError as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: sqlite3.Error) -> SourceUnavailable:
        return SourceUnavailable(describe_error(self.source.path, error), may_return=code_of(error) in MAY_RETURN)

    def _open(self) -> sqlite3.Connection:
        if not self.source.path.is_file():
            raise SettingsError(f"there is no file {str(self.source.path)!r}: correct the path of the source")
        connection = open_file(self.source.path)
        # SQLite takes any bytes as text: those that are not UTF-8 become half surrogates, which no target takes
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            # what a crash of the machine takes of the claims is read again, and stored once by its origin
            connection.execute("PRAGMA synchronous = NORMAL")
            self._columns = self._checked_columns(connection)
            self._create(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _checked_columns(self, connection: sqlite3.Connection) -> tuple[str, ...]:
        """Returns the columns to read. Raises SettingsError for a table that cannot be read as it is declared."""
        source = self.source
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
        notnull, pk = found[self.source.key]
        if pk and sum(1 for _, part in found.values() if part) == 1:
            kind = connection.execute(
                "SELECT type FROM pragma_table_info(?) WHERE name = ?", (self.source.table, self.source.key)
            ).fetchone()[0]
            # a primary key of another type may be NULL, except in tables WITHOUT ROWID: https://sqlite.org/lang_createtable.html
            if kind.upper() == "INTEGER" or notnull:
                return True
        if not notnull:
            return False
        unique = 'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial'
        return any(
            [name for (name,) in connection.execute("SELECT name FROM pragma_index_info(?)", index)]
            == [self.source.key]
            for index in connection.execute(unique, (self.source.table,)).fetchall()
        )

    def _create(self, connection: sqlite3.Connection) -> None:
        with transaction(connection):
            for statement in filter(str.strip, _CREATE.split(";")):
                connection.execute(statement)
        for table, expected in _COLUMNS.items():
            found = tuple(name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
            if found != expected:
                raise SettingsError(
                    f"{self.source.path}: table {table} is of another version of kstreams_py (its columns are "
                    f"{', '.join(found)}): read it with that version, or drop it to read all rows again"
                )
