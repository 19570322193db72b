"""Claims in PostgreSQL, in tables beside the source's: which rows are under way, who claimed them, which are done.

Each change is one statement that commits by itself and returns little, so that a worker that is frozen at any moment
holds no lock. Leases use the clock of the database.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.errors import SettingsError
from kstreams_py.sinks.postgresql_columns import DESCRIBE, quote
from kstreams_py.sinks.postgresql_connections import commit_to_disk, find_table
from kstreams_py.sources.claims import CLAIMED, DONE, FREE, REFUSED, other_version
from kstreams_py.sources.passes import LOOKED_AT, Look
from kstreams_py.sources.postgresql_tables import ReadTable, needing, show

if TYPE_CHECKING:
    import psycopg

_COLUMNS: Final = {
    "kstreams_claims": ("reader", "key", "state", "owner", "batch", "deaths", "reason"),
    "kstreams_claim_owners": ("owner", "lease", "lease_until", "process"),
    "kstreams_source_id": ("reader", "id", "table_oid"),
}

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {schema}.kstreams_claims (reader text COLLATE "C", key text COLLATE "C",
    state smallint NOT NULL, owner bigint, batch bigint, deaths integer NOT NULL, reason text,
    PRIMARY KEY (reader, key));
CREATE INDEX IF NOT EXISTS kstreams_claims_open ON {schema}.kstreams_claims (reader, owner, batch) WHERE state <= 1;
CREATE TABLE IF NOT EXISTS {schema}.kstreams_claim_owners (
    owner bigint PRIMARY KEY, lease double precision NOT NULL, lease_until timestamp with time zone NOT NULL,
    process text NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.kstreams_source_id (reader text COLLATE "C" PRIMARY KEY, id text NOT NULL,
    table_oid oid NOT NULL)
"""
"""The order of the collation "C" never changes; a new library on the server may change the order of other collations.

The index has the few open claims: without it, a search for them would read all claims.
"""

_NOW: Final = "clock_timestamp()"

_UNTIL: Final = f"{_NOW} + %(lease)s * interval '1 second'"

DEAD: Final = f"(lease_until < {_NOW} OR lease_until > {_NOW} + 2 * lease * interval '1 second')"
"""An owner whose lease is over, or began before the clock was set back: it must not keep its claims for long."""


_OWN: Final = f"c.reader = %(reader)s AND c.owner = %(owner)s AND c.state = {CLAIMED}"


def find_claims(connection: psycopg.Connection[Any], source: str, table: ReadTable) -> bool:
    """Returns whether all tables for the claims of a table exist. Raises SettingsError for claims of another version.

    - `source`: the name of the table in messages.
    """
    oids = {name: find_table(connection, f"{table.schema}.{name}") for name in _COLUMNS}
    for name, oid in oids.items():
        found = tuple(column for column, *_ in connection.execute(DESCRIBE, (oid,)))
        if oid is not None and found != _COLUMNS[name]:
            raise other_version(source, name, found)
    return None not in oids.values()


class Abandoned(NamedTuple):
    """A claim that may be taken: it was given back, or its owner is dead. `deaths` counts this death, too."""

    key: str
    state: int
    owner: int | None
    deaths: int


class ClaimTables:
    """The claims of one reader of one table, in the session of a worker.

    - `owner`: the number of this worker among the owners of claims, and its lease in seconds.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], source: str, reader: str, table: ReadTable, owner: tuple[int, float]
    ) -> None:
        """Creates missing tables.

        - `source`: the name of the table in messages.

        Raises SettingsError for claims of another version or of another table, and for missing rights.
        """
        self._connection, self._table = connection, table
        self._owner, self._lease = owner
        self._claims, self._owners, self._identity = (f"{table.schema}.{name}" for name in _COLUMNS)
        self._reader = f"{reader} {table.label}"
        encoding = connection.info.parameter_status("server_encoding")
        self._encoding = "utf-8" if encoding == "UTF8" else "ascii"
        commit_to_disk(connection)  # rows are stored under this identity, which must not be lost
        self._create(source)
        self.identity = f"{self._identify(source)} {self._reader}"
        # a crash of the machine may lose claims: their rows are read again, and recognized by their origins
        connection.execute("SET synchronous_commit = off")

    def _create(self, source: str) -> None:
        schema, role = show(self._table.schema), show(quote(self._connection.info.user))
        if not find_claims(self._connection, source, self._table):
            with needing(source, f"GRANT CREATE ON SCHEMA {schema} TO {role}"), self._connection.transaction():
                # CREATE TABLE IF NOT EXISTS fails if two workers run it concurrently
                self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('kstreams_py.sources'))")
                self._connection.execute(_CREATE.format(schema=schema))
            find_claims(self._connection, source, self._table)
        names = [f"{schema}.{name}" for name in _COLUMNS]
        needed = "bool_and(has_table_privilege(name, kind))"
        rights = f"SELECT {needed} FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS kind"
        kinds = ["SELECT", "INSERT", "UPDATE", "DELETE"]
        if not self._connection.execute(rights, (names, kinds)).fetchall()[0][0]:
            granted = f"GRANT {', '.join(kinds)} ON {', '.join(names)} TO {role}"
            raise SettingsError(f"{source}: a right to the tables of claims is missing: run {granted}")

    def _identify(self, source: str) -> str:
        """Returns an id that distinguishes this table from others that had its name.

        Raises SettingsError if rows of another table with this name were claimed. Their keys may be the same: then it
        would be wrong to skip the rows of a new table, and just as wrong to read all rows of a restored one again.
        """
        asked = f"SELECT id, table_oid FROM {self._identity} WHERE reader = %(reader)s"
        given = self._parameters() | {"id": uuid.uuid4().hex, "oid": self._table.oid}
        found = self._connection.execute(asked, given).fetchone()
        if found is None or found[1] != self._table.oid:
            self._connection.execute(
                f"INSERT INTO {self._identity} AS old VALUES (%(reader)s, %(id)s, %(oid)s)"
                " ON CONFLICT (reader) DO UPDATE SET id = excluded.id, table_oid = excluded.table_oid"
                " WHERE old.table_oid <> excluded.table_oid"
                f" AND NOT EXISTS (SELECT FROM {self._claims} WHERE reader = %(reader)s)",
                given,
            )
            found = self._connection.execute(asked, given).fetchone()
        if found is None or found[1] != self._table.oid:
            where = "WHERE reader = '{}'".format(self._reader.replace("'", "''"))
            raise SettingsError(
                f"{source} was created again, or restored, since its rows were claimed: if its rows are different now, "
                f"run DELETE FROM {show(self._claims)} {where}; if they are the same, run UPDATE "
                f"{show(self._identity)} SET table_oid = {self._table.oid} {where}"
            )
        return str(found[0])

    def _parameters(self) -> dict[str, Any]:
        return {
            "reader": self._reader,
            "owner": self._owner,
            "lease": self._lease,
            "process": f"process {os.getpid()} on {socket.gethostname()}",
            "table": show(self._table.name),
        }

    def renew(self, connection: psycopg.Connection[Any] | None = None) -> bool:
        """Renews the lease of this worker, or begins it; returns whether the table is still the same.

        - `connection`: None for the connection of the worker.
        """
        statement = (
            f"INSERT INTO {self._owners} (owner, lease, lease_until, process)"
            f" VALUES (%(owner)s, %(lease)s, {_UNTIL}, %(process)s)"
            " ON CONFLICT (owner) DO UPDATE SET lease_until = excluded.lease_until"
            " RETURNING to_regclass(%(table)s)::oid"
        )
        [(oid,)] = (connection or self._connection).execute(statement, self._parameters()).fetchall()
        return bool(oid == self._table.oid)

    def delete_dead(self) -> None:
        """Deletes dead owners, so that their claims have no owner. An owner that was only frozen begins a new lease."""
        dead = f"SELECT owner FROM {self._owners} WHERE {DEAD} FOR UPDATE SKIP LOCKED"
        self._connection.execute(f"DELETE FROM {self._owners} WHERE owner IN ({dead})", ())

    def claim(self, batch: int, after: str | None, limit: int) -> Look:
        """Claims up to `limit` unclaimed rows among the next ones after a key."""
        # a scalar subquery is an index lookup for each row; for NOT EXISTS, PostgreSQL may choose a plan that reads all
        # claims for each row, as long as it has no statistics
        table = self._table
        key, shown = f"t.{table.key}", f't.{table.key}::text COLLATE "C"'
        rows = f"{table.name} AS t {'' if after is None else f'WHERE {key} > %(after)s::{table.kind}'}"
        statement = (
            "WITH free AS MATERIALIZED (SELECT place, key FROM"
            f" (SELECT {key} AS place, {shown} AS key FROM {rows} ORDER BY {key} LIMIT {LOOKED_AT}) AS seen WHERE"
            f" (SELECT 1 FROM {self._claims} AS c WHERE c.reader = %(reader)s AND c.key = seen.key) IS NULL"
            " ORDER BY place LIMIT %(limit)s"
            f"), claimed AS (INSERT INTO {self._claims} (reader, key, state, owner, batch, deaths)"
            f" SELECT %(reader)s, key, {CLAIMED}, %(owner)s, %(batch)s, 0 FROM free ORDER BY place"
            " ON CONFLICT DO NOTHING RETURNING 1"
            "), counted AS MATERIALIZED ("
            "SELECT count(*) AS found, (SELECT key FROM free ORDER BY place DESC LIMIT 1) AS last FROM free"
            "), until AS MATERIALIZED ("
            f"SELECT CASE WHEN found < %(limit)s THEN (SELECT {shown} FROM {rows} ORDER BY {key} OFFSET {LOOKED_AT - 1}"
            " LIMIT 1) END AS key FROM counted"
            ") SELECT found, (SELECT count(*) FROM claimed), CASE WHEN found = %(limit)s THEN last"
            f" WHEN until.key IS NULL THEN (SELECT {shown} FROM {rows} ORDER BY {key} DESC LIMIT 1) ELSE until.key END,"
            " found < %(limit)s AND until.key IS NULL FROM counted, until"
        )
        given = self._parameters() | {"batch": batch, "after": after, "limit": limit}
        [(found, claimed, last, is_end)] = self._connection.execute(statement, given).fetchall()
        return Look(found, claimed, last, is_end)

    def find_abandoned(self) -> list[Abandoned]:
        """Returns claims that may be taken, those with the most deaths first."""
        statement = (
            f"SELECT c.key, c.state, c.owner, c.deaths + c.state FROM {self._claims} AS c"
            f" LEFT JOIN {self._owners} AS o ON o.owner = c.owner"
            f" WHERE c.reader = %(reader)s AND c.state <= {CLAIMED} AND (c.state = {FREE}"
            f" OR (c.owner IS DISTINCT FROM %(owner)s AND (o.owner IS NULL OR {DEAD})))"
            f" ORDER BY c.deaths + c.state DESC, c.key LIMIT {LOOKED_AT}"
        )
        found = self._connection.execute(statement, self._parameters()).fetchall()
        return [Abandoned(*each) for each in found]

    def take(self, abandoned: Sequence[Abandoned], batch: int, reason: str | None = None) -> int:
        """Takes abandoned claims, or refuses their rows with a reason. Returns how many: workers compete for them."""
        statement = (
            f"WITH taken AS (SELECT c.key FROM unnest(%(keys)s::text[], %(states)s::smallint[], %(owners)s::bigint[])"
            f" AS given(key, state, owner) JOIN {self._claims} AS c ON c.reader = %(reader)s AND c.key = given.key"
            " WHERE c.state = given.state AND c.owner IS NOT DISTINCT FROM given.owner FOR UPDATE OF c SKIP LOCKED)"
            f" UPDATE {self._claims} AS c SET state = %(state)s, owner = %(owner)s, batch = %(batch)s,"
            " deaths = deaths + state, reason = %(reason)s FROM taken"
            " WHERE c.reader = %(reader)s AND c.key = taken.key"
        )
        arrays = {"keys": [each.key for each in abandoned], "states": [each.state for each in abandoned]}
        arrays["owners"] = [each.owner for each in abandoned]
        state = CLAIMED if reason is None else REFUSED
        others = {"batch": batch, "state": state, "reason": reason}
        return self._connection.execute(statement, self._parameters() | arrays | others).rowcount

    def select(self, batch: int, keys: Sequence[str] | None = None) -> psycopg.Cursor[Any]:
        """Selects this worker's claims of a batch: key, deaths, batch, whether the row is there, and its columns.

        - `keys`: select the claims with these keys instead, of any batch.
        """
        table = self._table
        columns = ", ".join(f"t.{each}" for each in table.columns)
        which = "c.batch = %(batch)s" if keys is None else "c.key = ANY (%(keys)s::text[])"
        statement = (
            f"SELECT c.key, c.deaths, c.batch, t.{table.key} IS NOT NULL, {columns} FROM {self._claims} AS c"
            f" LEFT JOIN {table.name} AS t ON t.{table.key} = c.key::{table.kind}"
            f" WHERE {_OWN} AND {which} ORDER BY t.{table.key}"
        )
        return self._connection.execute(statement, self._parameters() | {"batch": batch, "keys": keys})

    def own_keys(self) -> list[str]:
        """Returns the keys of this worker's claims."""
        found = self._connection.execute(f"SELECT key FROM {self._claims} AS c WHERE {_OWN}", self._parameters())
        return [key for (key,) in found]

    def acknowledge(self, keys: Sequence[str], batch: int) -> None:
        """Marks this worker's claims as done, but not those that another worker has taken over.

        - `batch`: the oldest batch of the claims. Without it, the index would be searched from the first claim on.
        """
        self._update(f"state = {DONE}", {"keys": keys, "batch": batch})

    def give_back(self, keys: Sequence[str], batch: int, *, failed: bool) -> None:
        """Gives this worker's claims back. `failed`: this counts as a death."""
        change = f"state = {FREE}, deaths = deaths + %(failed)s"
        self._update(change, {"keys": keys, "batch": batch, "failed": int(failed)})

    def _update(self, change: str, given: dict[str, Any]) -> None:
        which = f"{_OWN} AND c.batch >= %(batch)s AND c.key = ANY (%(keys)s::text[])"
        self._connection.execute(f"UPDATE {self._claims} AS c SET {change} WHERE {which}", self._parameters() | given)

    def refuse(self, keys: Sequence[str], reasons: Sequence[str]) -> None:
        """Marks this worker's claims as refused, each with the reason."""
        statement = (
            f"UPDATE {self._claims} AS c SET state = {REFUSED}, reason = given.reason"
            " FROM unnest(%(keys)s::text[], %(reasons)s::text[]) AS given(key, reason)"
            f" WHERE {_OWN} AND c.key = given.key"
        )
        # reasons may have characters that the database cannot store: NUL, lone surrogates, letters outside its encoding
        texts = [each.replace("\0", "\\0").encode(self._encoding, "backslashreplace") for each in reasons]
        given = {"keys": keys, "reasons": [each.decode(self._encoding) for each in texts]}
        self._connection.execute(statement, self._parameters() | given)

    def are_open(self) -> bool:
        """Returns whether any claim is neither done nor refused."""
        statement = f"SELECT EXISTS (SELECT FROM {self._claims} WHERE reader = %(reader)s AND state <= {CLAIMED})"
        [(found,)] = self._connection.execute(statement, self._parameters()).fetchall()
        return bool(found)
