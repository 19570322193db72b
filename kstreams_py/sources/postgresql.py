"""The rows of a table in PostgreSQL as a source. Claims are rows of other tables in the same schema."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import DecodeError, SourceUnavailable
from kstreams_py.formats.serdes import parse_json
from kstreams_py.graph.source import BadInput, Claim, SourceStatus
from kstreams_py.sinks.postgresql_connections import (
    SETTINGS,
    Database,
    check_table_name,
    first_line,
    limited,
    name_database,
)
from kstreams_py.sources import claims
from kstreams_py.sources.claims import LEASE, checked_lease
from kstreams_py.sources.passes import PAUSE, Passes
from kstreams_py.sources.postgresql_claims import ClaimTables
from kstreams_py.sources.postgresql_inspection import ClaimedTable
from kstreams_py.sources.postgresql_tables import describe_table
from kstreams_py.sources.sizes import weigh
from kstreams_py.sources.suspects import DELETED, REASON, choose, has_suspects

if TYPE_CHECKING:
    from datetime import timedelta

    import psycopg
    from psycopg.abc import Buffer

_WHAT: Final = "a PostgreSQL source"

NEVER: Final = float("-inf")
"""The time of events that have not happened."""

_SETTINGS: Final = SETTINGS | {
    # keys are identified by their text: it must be exact, and the same in all sessions
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    # rows and claims must be found by indexes: plans that read all claims at each look are too slow
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # a claim that another worker made first must not be an error
    "default_transaction_isolation": "read committed",
}


@dataclass(frozen=True, init=False)
class PostgreSQL:
    """The rows of a table in PostgreSQL, including rows that are inserted later. Needs psycopg:
    `pip install 'kstreams_py[postgresql]'`.

    Each row is a dict of column to value, as psycopg returns it; times with a zone are in UTC. A row with a value that
    Python cannot represent, such as the date infinity, an interval of a month or 1e400 in JSON, is refused with the
    reason.

    A row that was acknowledged is never read again, whatever changes in it. The claims of all workers and graphs are in
    the table `kstreams_claims` of the same schema, which is created.

    - `url`: `postgresql://user:password@host:port/database`, with any parameter of libpq. It must not be the URL of
      a pooler in transaction mode.
    - `table`: its name, with its schema if that is not on the search path: `"schema.table"`. It may be partitioned.
    - `key`: a column that identifies a row for ever: the primary key, or NOT NULL and UNIQUE. A key that is used again
      after its row was deleted is not read. A table that is created again is refused until it is known whether its rows
      are the same.
    - `columns`: the columns to read; None for all.
    - `ends`: no more rows are inserted: the job ends when all rows are done.
    - `lease`: seconds, by the clock of the database, after which the claims of a silent worker are taken over.
    """

    url: str = field(repr=False)
    name: str
    table: str
    key: str
    columns: tuple[str, ...] | None
    ends: bool
    lease: float

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: str,
        columns: Iterable[str] | None = None,
        ends: bool = False,
        lease: float = LEASE,
    ) -> None:
        name = name_database(url)
        check_table_name(table)
        seconds = checked_lease(lease)
        names = None if columns is None else tuple(columns)
        vars(self).update(url=url, name=name, table=table, key=key, columns=names, ends=ends, lease=seconds)

    def __str__(self) -> str:
        return f"{self.name}: table {self.table}"

    def check_software(self) -> None:
        """See NeedsSoftware."""
        Database(self.url, _WHAT)

    def open(self, reader: str) -> TableConnection:
        """See Source. Raises MissingSoftware without psycopg."""
        return TableConnection(self, reader)

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """See InspectedSource."""
        return self._claimed.inspect(reader, limit)

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """See InspectedSource."""
        return self._claimed.retry(reader, keys)

    @property
    def _claimed(self) -> ClaimedTable:
        return ClaimedTable(self.url, str(self), self.table, self.key, _SETTINGS)


class TableConnection:
    """One worker's connection to a table in PostgreSQL: see SourceConnection."""

    def __init__(self, source: PostgreSQL, reader: str) -> None:
        self._database = Database(source.url, _WHAT)
        self._source, self._reader = source, reader
        self.lease = source.lease
        self._connection: psycopg.Connection[Any] | None = None
        self._keeper: psycopg.Connection[Any] | None = None
        """The connection of the thread that keeps the claims; None until it is needed."""
        self._owner = int.from_bytes(os.urandom(8), "big") >> 1
        """The number of this worker among all owners of claims. A sequence could repeat a number after a crash."""
        self._renewed_at = self._search_at = NEVER
        """When the lease was last renewed, and when claims to be read again are next looked for."""
        self._batch = 0
        """The number of the last read."""
        self._held: dict[str, int] = {}
        """The batch of each claim that was returned and has not ended, by key."""
        self._is_doubtful = False
        """Whether this worker may have claims that it does not know of: a connection ended during a read, or the server
        ended and may have lost commits."""
        self._taken = set[str]()
        """The keys of claims that the last read took over from workers whose leases ended."""
        self.waits_alone = False
        self.is_exhausted = False
        self.refused = 0
        with self._usable():
            pass

    @property
    def identity(self) -> str:
        """See SourceConnection."""
        return self._tables.identity

    def read(self, limit: int, *, alone: bool) -> list[Claim]:
        """See SourceConnection."""
        with self._usable():
            self._renew()
            if not limit:
                return []
            if self._is_doubtful and (found := self._return_unknown(limit)):
                return found
            self._batch += 1
            self._taken.clear()
            claimed = self._claim_again(limit, alone=alone)
            if not self.waits_alone and claimed < limit:
                claimed += self._claim_new(limit - claimed)
            return self._return() if claimed else []

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        keys = [claim.token for claim in claims]
        with self._usable():
            self._tables.acknowledge(keys, self._oldest(keys))
        self._release(keys)

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection. The reason is in the column `reason` of `kstreams_claims`, with the state 3."""
        keys = [claim.token for claim, _ in claims]
        with self._usable():
            self._tables.refuse(keys, [reason for _, reason in claims])
        self._release(keys)

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        """See SourceConnection."""
        keys = [claim.token for claim in claims]
        with self._usable():
            self._tables.give_back(keys, self._oldest(keys), failed=failed)
        self._release(keys)
        self._search_at = NEVER

    def keep(self) -> None:
        """See SourceConnection. Opens a second connection, but only if the first one is in use for long."""
        now = claims.read_clock()
        if self._renewed_at == NEVER or now < self._renewed_at + self.lease / 3:
            return
        try:
            if self._keeper is None:
                self._keeper = self._database.connect(_SETTINGS)
            with limited(self._keeper):
                self._tables.renew(self._keeper)
            self._renewed_at = now
        except self._database.psycopg.Error as error:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                keeper.close()
            raise self._unavailable(error) from error

    def close(self) -> None:
        """See SourceConnection."""
        for connection in (self._connection, self._keeper):
            if connection is not None:
                connection.close()
        self._connection = self._keeper = None

    def _oldest(self, keys: Sequence[str]) -> int:
        return min((self._held.get(key, 0) for key in keys), default=0)

    def _release(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._held.pop(key, None)

    def _renew(self) -> None:
        """Renews the lease if that is due."""
        now = claims.read_clock()
        if now < self._renewed_at + self.lease / 3:
            return
        if self._renewed_at == NEVER:
            self._tables.delete_dead()
        if not self._tables.renew():
            self._disconnect()
            raise SourceUnavailable(f"{self._source} was dropped, or created again", may_return=True)
        self._renewed_at = now

    def _claim_again(self, limit: int, *, alone: bool) -> int:
        """Claims rows that were given back, or whose worker is dead; returns how many."""
        now = claims.read_clock()
        if not (alone and self.waits_alone) and now < self._search_at:
            return 0
        found = {each.key: each for each in self._tables.find_abandoned()}
        # the index keeps done claims until it is vacuumed: searches take at most a tenth of the time
        self._search_at = now + max(self.lease / 4, PAUSE * (claims.read_clock() - now))
        chosen = choose({key: each.deaths for key, each in found.items()}, limit, alone=alone)
        if chosen.refused:
            self.refused += self._tables.take([found[key] for key in chosen.refused], self._batch, REASON)
        self._taken.update(key for key in chosen.read if found[key].state == claims.CLAIMED)
        claimed = self._tables.take([found[key] for key in chosen.read], self._batch) if chosen.read else 0
        self.waits_alone = chosen.left or chosen.are_suspects
        if len(chosen.read) == limit and not chosen.are_suspects:
            self._search_at = NEVER  # there may be more
        return claimed

    def _claim_new(self, limit: int) -> int:
        """Claims unclaimed rows; returns how many."""
        claimed = self._passes.find(lambda after: self._tables.claim(self._batch, after, limit))
        if self._passes.are_complete:
            self.is_exhausted = not self._tables.are_open()
        return claimed

    def _return_unknown(self, limit: int) -> list[Claim]:
        """Returns claims of this worker that it does not know of."""
        unknown = [key for key in self._tables.own_keys() if key not in self._held]
        found = self._return(unknown[:limit]) if unknown else []
        self._is_doubtful = len(unknown) > limit
        if found:  # rows that are read beside suspects would be suspects after the next death
            self.waits_alone = has_suspects(claim.attempts for claim in found)
        return found

    def _return(self, keys: Sequence[str] | None = None) -> list[Claim]:
        """Returns the claims of this read, or the claims with these keys; refuses each claim whose row was deleted."""
        rows, bad = self._load(keys)
        if deleted := [row[0] for row in rows if not row[3]]:
            self._tables.refuse(deleted, [DELETED] * len(deleted))
            self.refused += len(deleted)
        key_of, names, found = self._table.key_of, self._table.names, list[Claim]()
        for key, deaths, batch, is_there, *values in rows:
            if is_there:
                self._held[key] = batch
                value = dict(zip(names, values, strict=True))
                found.append(Claim(key_of(key), value, deaths, key, key in self._taken, size=weigh(values)))
        for key, error in bad:
            self._held[key] = 0
            found.append(Claim(key_of(key), BadInput(error), 0, key))
        return found

    def _load(self, keys: Sequence[str] | None) -> tuple[list[Any], list[tuple[str, DecodeError]]]:
        """Returns the rows of claims, and the key and the error of each claim whose row cannot be read."""
        try:
            return _fetch(self._tables.select(self._batch, keys))
        except self._database.psycopg.Error as error:
            if self._database.is_of_server(error):
                raise
            if keys is not None and len(keys) == 1:
                return [], [(keys[0], _cannot_read(error))]
        # the server cannot send a value of one of the rows, such as text that is invalid in its encoding
        keys = [key for key in self._tables.own_keys() if key not in self._held] if keys is None else keys
        middle = (len(keys) + 1) // 2
        halves = [self._load(half) for half in (keys[:middle], keys[middle:]) if half]
        return [row for rows, _ in halves for row in rows], [each for _, bad in halves for each in bad]

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Opens the connection if necessary. Raises SourceUnavailable with the reason, and ends the connection."""
        try:
            if self._connection is None:
                self._connection = self._open()
            with limited(self._connection):
                yield
        except self._database.psycopg.Error as error:
            self._disconnect()
            raise self._unavailable(error) from error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(self._database.psycopg.Error):
                connection.close()

    def _unavailable(self, error: psycopg.Error) -> SourceUnavailable:
        return SourceUnavailable(
            f"{self._source}: {self._database.describe(error)}", may_return=self._database.may_return(error)
        )

    def _open(self) -> psycopg.Connection[Any]:
        source, owner = self._source, (self._owner, self.lease)
        # prepared statements would keep plans for other limits, and for earlier columns
        connection = self._database.connect(_SETTINGS, prepare_threshold=None, client_encoding="utf8")
        try:
            _refuse_changes(connection)
            with limited(connection):
                self._table = describe_table(connection, str(source), source.table, source.key, source.columns)
                self._tables = ClaimTables(connection, str(source), self._reader, self._table, owner)
        except BaseException:
            connection.close()
            raise
        # a server that crashed may have lost claims, too: another pass finds their rows
        self._is_doubtful, self._passes = True, Passes(claims.read_clock, ends=source.ends)
        return connection


def _refuse_changes(connection: psycopg.Connection[Any]) -> None:
    """Makes the connection refuse values that psycopg would change: months as 30 days, 1e400 in JSON as infinity."""
    from psycopg.types.datetime import IntervalLoader  # noqa: PLC0415 an extra
    from psycopg.types.json import set_json_loads  # noqa: PLC0415

    class ExactIntervals(IntervalLoader):
        def load(self, data: Buffer) -> timedelta:
            if b"mon" in (text := bytes(data)) or b"year" in text:
                raise ValueError(f"{text.decode()!r} has months or years, which no timedelta has")
            return super().load(data)

    connection.adapters.register_loader("interval", ExactIntervals)
    set_json_loads(lambda data: parse_json(data if isinstance(data, str) else data.decode()), connection)


def _fetch(cursor: psycopg.Cursor[Any]) -> tuple[list[Any], list[tuple[str, DecodeError]]]:
    """Returns the rows, and the key and the error of each row with a value that psycopg cannot load."""
    try:
        return cursor.fetchall(), []
    except MemoryError:
        raise
    except Exception:
        rows, bad = list[Any](), list[tuple[str, DecodeError]]()
        for number in range(cursor.rowcount):
            cursor.scroll(number, mode="absolute")
            try:
                rows.append(cursor.fetchone())
            except MemoryError:
                raise
            except Exception as error:
                assert cursor.pgresult is not None
                key = cursor.pgresult.get_value(number, 0) or b""
                bad.append((key.decode(), _cannot_read(error)))
        return rows, bad


def _cannot_read(error: Exception) -> DecodeError:
    return DecodeError(f"{first_line(error)}: change the value, or leave its column out by columns= of the source")
