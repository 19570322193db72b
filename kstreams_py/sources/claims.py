"""Claims in a SQLite file: which inputs of a source are under way, who claimed them, and which are done.

All workers that share the claims run on one machine, whose locks and clock the claims use.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SettingsError, SourceUnavailable
from kstreams_py.graph.source import Claim
from kstreams_py.sinks.sqlite import MAY_RETURN, code_of, describe_error, open_file, transaction
from kstreams_py.sources.sizes import weigh
from kstreams_py.sources.suspects import DELETED, REASON, choose, has_suspects

LEASE: Final = 10.0
"""The default seconds after which the claims of a silent worker are taken over."""

CLAIMS: Final = "kstreams_claims"
OWNERS: Final = "kstreams_claim_owners"
_IDENTITY: Final = "kstreams_source_id"

FREE, CLAIMED, DONE, REFUSED = range(4)
"""The states of a claim: given back, under way, acknowledged, and acknowledged with a reason but not processed."""

_COLUMNS: Final = {
    CLAIMS: ("reader", "key", "state", "owner", "deaths", "reason"),
    OWNERS: ("owner", "lease", "lease_until", "process"),
    _IDENTITY: ("id",),
}

_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {CLAIMS} (reader TEXT, key BLOB, state INTEGER NOT NULL, owner INTEGER,
    deaths INTEGER NOT NULL, reason TEXT, PRIMARY KEY (reader, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {CLAIMS}_open ON {CLAIMS} (reader) WHERE state <= {CLAIMED};
CREATE INDEX IF NOT EXISTS {CLAIMS}_refused ON {CLAIMS} (reader) WHERE state = {REFUSED};
CREATE TABLE IF NOT EXISTS {OWNERS} (owner INTEGER PRIMARY KEY AUTOINCREMENT, lease REAL NOT NULL,
    lease_until REAL NOT NULL, process TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS {_IDENTITY} (id TEXT NOT NULL);
"""
"""The indexes have only the few claims that are not done: without them, a search for these would read all claims."""

_ESCAPED: Final = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, in text that was decoded with `surrogateescape`."""

_NO_TEXT_REASON: Final = "its key is not UTF-8: correct the key in the table, and the row is read by the new one"

DEAD: Final = "(lease_until < ? OR lease_until > ? + lease)"
"""Selects owners whose lease is over, or began before the machine restarted: no valid lease ends that late."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def read_clock() -> float:
    """Returns the seconds since this machine started, including its sleep; the same in all processes.

    With the time of day, a jump of the clock would end leases that are held, or prolong the leases of dead workers.
    """
    return time.clock_gettime(_CLOCK)


def checked_lease(lease: float) -> float:
    """Returns the seconds of a lease. Raises SettingsError if the lease is not above 0."""
    if lease <= 0:
        raise SettingsError(f"lease={lease}: give seconds above 0")
    return float(lease)


class ClaimedInputs(ABC):
    """The inputs to claim. Each has a key, which never changes."""

    forgets_done: bool = False
    """Whether the claims of done inputs are deleted, because `find` knows without them which inputs it has returned."""

    are_complete: bool = False
    """Whether the last `find` ended a pass that found no input, and no more inputs will come."""

    @abstractmethod
    def prepare(self, connection: sqlite3.Connection) -> None:
        """Checks the inputs on a new connection. Raises SettingsError if they cannot be read as they are declared."""

    @abstractmethod
    def find(self, connection: sqlite3.Connection, reader: str, limit: int) -> Sequence[tuple[Any, Any]]:
        """Returns the key and the value of up to `limit` inputs that `reader` has not claimed."""

    @abstractmethod
    def values(self, connection: sqlite3.Connection, keys: Sequence[Any]) -> Mapping[Any, Any]:
        """Returns the values of inputs by their keys; leaves out inputs that were deleted."""

    def take(self, _: sqlite3.Connection, found: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        """Returns the inputs of `find` that may be claimed. Called in the transaction that claims them."""
        return found

    def name_of(self, key: Any) -> str:
        """Returns the name of an input, as `kstreams sources list` prints it."""
        return show_key(key)

    def load(self, _: sqlite3.Connection, found: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any, int]]:
        """Returns the inputs of `find` or `values`: the key, the value for functions, and the bytes of the data.

        Called after the claim: the call may take long, because other workers do not wait for it.
        """
        return [(key, value, weigh(value)) for key, value in found]

    def close(self) -> None:  # noqa: B027 most have nothing to close
        """Closes what is open."""


class ClaimsFile:
    """One worker's connection to a source that keeps its claims in a SQLite file: see SourceConnection."""

    def __init__(self, path: Path, reader: str, lease: float, inputs: ClaimedInputs) -> None:
        """Opens the file, and creates it and its tables if they are missing.

        Raises SourceUnavailable, and SettingsError for claims of another version.
        """
        self._path, self._reader, self._inputs = path, reader, inputs
        self.lease = lease
        self._connection: sqlite3.Connection | None = None
        self._keeper: sqlite3.Connection | None = None
        """The connection of the thread that keeps the claims."""
        self._owner: int | None = None
        """The number of this worker among all owners of claims; None until its first `read`."""
        self._renewed_at = 0.0
        self._held = set[Any]()
        """The keys that this worker has claimed, and has neither acknowledged nor given back."""
        self._is_doubtful = False
        """Whether a read has failed, so that this worker may have claims that it does not know of."""
        self._searched_at = float("-inf")
        """When claims to be read again were last looked for."""
        self.waits_alone = False
        self.is_exhausted = False
        self.refused = 0
        self.identity = ""
        with self._usable():
            pass

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        doubtful = self._is_doubtful
        self._is_doubtful = doubtful or limit > 0
        with self._usable() as connection:
            if self._owner is None or read_clock() > self._renewed_at + self.lease / 3:
                self._renew(connection)
                self._renewed_at = read_clock()
            if not limit:
                return []
            if claims := self._read_unknown(connection) if doubtful else []:
                # inputs that are read beside suspects would be suspects after the next death
                self.waits_alone = has_suspects(claim.attempts for claim in claims)
            else:
                claims = self._read_again(connection, limit, alone=alone)
                if not self.waits_alone and len(claims) < limit:
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
        given = f"UPDATE {CLAIMS} SET state = {FREE}, deaths = deaths + ? WHERE reader = ? AND key = ?"
        rows = [(int(failed), self._reader, claim.token, self._owner) for claim in claims]
        with self._usable() as connection, transaction(connection):
            connection.executemany(f"{given} AND owner = ? AND state = {CLAIMED}", rows)
        self._held.difference_update(claim.token for claim in claims)
        self._searched_at = float("-inf")

    def name_of(self, claim: Claim) -> str:
        """See NamingConnection."""
        return self._inputs.name_of(claim.token)

    def keep(self) -> None:
        """See SourceConnection."""
        if self._owner is None:
            return
        try:
            if self._keeper is None:
                self._keeper = open_file(self._path)
            self._renew(self._keeper)
        except sqlite3.DatabaseError as error:
            raise self._unavailable(error) from error

    def close(self) -> None:
        """See SourceConnection."""
        self._inputs.close()
        for connection in (self._connection, self._keeper):
            if connection is not None:
                connection.close()
        self._connection = self._keeper = None

    def _end(self, state: int, claims: Iterable[tuple[str | None, Claim]]) -> None:
        ended = f"UPDATE {CLAIMS} SET state = {state}, reason = ?1"
        if state == DONE and self._inputs.forgets_done:
            ended = f"DELETE FROM {CLAIMS}"
        rows = [(reason, self._reader, claim.token, self._owner) for reason, claim in claims]
        with self._usable() as connection, transaction(connection):
            connection.executemany(f"{ended} WHERE reader = ?2 AND key = ?3 AND owner = ?4 AND state = {CLAIMED}", rows)
        self._held.difference_update(key for _, _, key, _ in rows)

    def _read_again(self, connection: sqlite3.Connection, limit: int, *, alone: bool) -> list[Claim]:
        """Claims inputs that were given back, or whose worker is dead."""
        now = read_clock()
        if not (alone and self.waits_alone) and now < self._searched_at + self.lease / 4:
            return []
        self._searched_at = now
        asked = (
            f"SELECT key, deaths, state = {CLAIMED} FROM {CLAIMS} LEFT JOIN {OWNERS} USING (owner)"
            f" WHERE reader = ? AND state <= {CLAIMED}"
            f" AND (state = {FREE} OR lease IS NULL OR {DEAD})"
        )
        with transaction(connection):
            # read the clock again: others may have renewed their leases while this waited for the file
            now = read_clock()
            found = connection.execute(asked, (self._reader, now, now)).fetchall()
            taken = {key: bool(died) for key, _, died in found}
            deaths = {key: count + died for key, count, died in found if key not in self._held}
            chosen = choose(deaths, limit, alone=alone)
            values = self._inputs.values(connection, chosen.read)
            refused = self._give_up(connection, REASON, chosen.refused)
            refused += self._give_up(connection, DELETED, (key for key in chosen.read if key not in values))
            connection.executemany(
                f"UPDATE {CLAIMS} SET state = {CLAIMED}, owner = ?, deaths = ? WHERE reader = ? AND key = ?",
                [(self._owner, deaths[key], self._reader, key) for key in values],
            )
        self.refused += refused
        self.waits_alone = chosen.left or chosen.are_suspects
        loaded = self._inputs.load(connection, [*values.items()])
        return [claim_of(key, value, deaths[key], size, taken_over=taken[key]) for key, value, size in loaded]

    def _read_unknown(self, connection: sqlite3.Connection) -> list[Claim]:
        """Returns claims of this worker that it does not know of, from a read whose commit got no answer."""
        deaths = {key: count for key, count in self._own(connection) if key not in self._held}
        values = self._inputs.values(connection, [*deaths])
        if deleted := deaths.keys() - values.keys():
            with transaction(connection):
                refused = self._give_up(connection, DELETED, deleted)
            self.refused += refused
        loaded = self._inputs.load(connection, [*values.items()])
        return [claim_of(key, value, deaths[key], size) for key, value, size in loaded]

    def _give_up(self, connection: sqlite3.Connection, reason: str, keys: Iterable[Any]) -> int:
        """Refuses inputs that are not read again; returns how many."""
        refused = f"UPDATE {CLAIMS} SET state = {REFUSED}, reason = ? WHERE reader = ? AND key = ?"
        rows = [(reason, self._reader, key) for key in keys]
        connection.executemany(refused, rows)
        return len(rows)

    def _own(self, connection: sqlite3.Connection) -> list[tuple[Any, int]]:
        """Returns the keys of this worker's claims, each with its number of deaths."""
        # the first condition lets SQLite use the partial index
        asked = (
            f"SELECT key, deaths FROM {CLAIMS} WHERE state <= {CLAIMED} AND reader = ? AND owner = ?"
            f" AND state = {CLAIMED}"
        )
        return connection.execute(asked, (self._reader, self._owner)).fetchall()

    def _read_new(self, connection: sqlite3.Connection, limit: int) -> list[Claim]:
        """Claims inputs that no worker has claimed."""
        found, are_shared = self._inputs.find(connection, self._reader, limit), False
        if found:
            with transaction(connection):
                found = self._inputs.take(connection, found)
                found = self._refuse_no_text(connection, found)
                claimed, before = [(self._reader, key, self._owner) for key, _ in found], connection.total_changes
                connection.executemany(f"INSERT OR IGNORE INTO {CLAIMS} VALUES (?, ?, {CLAIMED}, ?, 0, NULL)", claimed)
                are_shared = connection.total_changes - before < len(found)
        elif self._inputs.are_complete:
            left = f"SELECT 1 FROM {CLAIMS} WHERE reader = ? AND state <= {CLAIMED} LIMIT 1"
            self.is_exhausted = connection.execute(left, (self._reader,)).fetchone() is None
        if are_shared:  # another worker has claimed some of them in the meantime
            own = {key for key, _ in self._own(connection)} - self._held
            found = [(key, value) for key, value in found if key in own]
        return [claim_of(key, value, 0, size) for key, value, size in self._inputs.load(connection, found)]

    def _refuse_no_text(
        self, connection: sqlite3.Connection, found: Sequence[tuple[Any, Any]]
    ) -> Sequence[tuple[Any, Any]]:
        """Refuses inputs whose key is not text in UTF-8: no statement could name it. Returns the others."""
        keys = [key for key, _ in found if is_no_text(key)]
        if not keys:
            return found
        refused = f"INSERT OR IGNORE INTO {CLAIMS} VALUES (?, CAST(? AS TEXT), {REFUSED}, NULL, 0, ?)"
        before = connection.total_changes
        connection.executemany(refused, [(self._reader, bytes_of(key), _NO_TEXT_REASON) for key in keys])
        self.refused += connection.total_changes - before
        return [each for each in found if not is_no_text(each[0])]

    def _renew(self, connection: sqlite3.Connection) -> None:
        """Renews the lease, or registers this worker as an owner if it is not one yet."""
        process = f"process {os.getpid()}"
        until = read_clock() + self.lease
        if self._owner is None:
            made = f"INSERT INTO {OWNERS} (lease, lease_until, process) VALUES (?, ?, ?)"
            with transaction(connection):
                now = read_clock()
                connection.execute(f"DELETE FROM {OWNERS} WHERE {DEAD}", (now, now))
                self._owner = connection.execute(made, (self.lease, now + self.lease, process)).lastrowid
            return
        # if this worker was frozen past its lease, another one may have deleted its row
        renewed = f"INSERT INTO {OWNERS} VALUES (?, ?, ?, ?) ON CONFLICT (owner) DO UPDATE SET lease_until = ?"
        connection.execute(renewed, (self._owner, self.lease, until, process, until))

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
        return SourceUnavailable(describe_error(self._path, error), may_return=code_of(error) in MAY_RETURN)

    def _open(self) -> sqlite3.Connection:
        connection = open_file(self._path)
        # SQLite takes any bytes as text: those that are not UTF-8 become lone surrogates, which no target takes
        connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
        try:
            self._inputs.prepare(connection)
            self._create(connection)
            # a crash of the machine may lose claims: their inputs are read again, and recognized by their origins
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        with transaction(connection):
            create_tables(connection, self._path, _CREATE, _COLUMNS)
            # another file under the same name has other inputs with the same keys
            made = f"INSERT INTO {_IDENTITY} SELECT ? WHERE NOT EXISTS (SELECT 1 FROM {_IDENTITY})"
            connection.execute(made, (uuid.uuid4().hex,))
            (made,) = connection.execute(f"SELECT id FROM {_IDENTITY}").fetchone()
            self.identity = f"{made} {self._reader}"


def show_key(key: Any) -> str:
    """Returns a key as text: text as it is, anything else by its `repr`."""
    return key if isinstance(key, str) else repr(key)


def is_no_text(key: Any) -> bool:
    """Returns whether a key is text with bytes that are not UTF-8, which SQLite allows."""
    return type(key) is str and _ESCAPED.search(key) is not None


def bytes_of(key: str) -> bytes:
    """Returns the bytes of a text in SQLite."""
    return key.encode("utf-8", "surrogateescape")


def check_file(path: Path) -> None:
    """Raises SettingsError if there is no file."""
    if not path.is_file():
        raise SettingsError(f"there is no file {str(path)!r}: correct the path of the source")


def create_tables(
    connection: sqlite3.Connection, path: Path, statements: str, columns: Mapping[str, tuple[str, ...]]
) -> None:
    """Creates the tables of a claims file that are missing, in a transaction.

    - `columns`: the columns of each table. Raises SettingsError if a table has others.
    """
    for statement in filter(str.strip, statements.split(";")):
        connection.execute(statement)
    check_tables(connection, path, columns)


def check_tables(connection: sqlite3.Connection, path: Path, columns: Mapping[str, tuple[str, ...]] = _COLUMNS) -> bool:
    """Returns whether a claims file has all its tables. Raises SettingsError if one has other columns."""
    are_there = True
    for table, expected in columns.items():
        found = tuple(name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,)))
        are_there &= bool(found)
        if found and found != expected:
            raise other_version(path, table, found)
    return are_there


def other_version(place: object, table: str, columns: Iterable[str]) -> SettingsError:
    """Returns the error for a table of claims that has other columns."""
    return SettingsError(
        f"{place}: table {table} is of another version of kstreams_py (its columns are {', '.join(columns)}): read it "
        "with that version, or drop it to read all inputs again"
    )


def claim_of(key: Any, value: Any, deaths: int, size: int, *, taken_over: bool = False) -> Claim:
    """Returns the claim of an input. `key`: a number, or a value whose `repr` no other key has."""
    return Claim(key if type(key) is int else repr(key).encode(), value, deaths, key, taken_over, size=size)
