"""Shows the claims in PostgreSQL to operators, and lets refused rows be read again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kstreams_py.errors import SourceUnavailable
from kstreams_py.graph.source import RefusedInput, SourceStatus
from kstreams_py.sinks.postgresql_connections import Database, limited
from kstreams_py.sources.claims import CLAIMED, FREE, REFUSED
from kstreams_py.sources.inspection import count_claims
from kstreams_py.sources.postgresql_claims import DEAD, find_claims
from kstreams_py.sources.postgresql_tables import ReadTable, describe_table
from kstreams_py.sources.suspects import SUSPECTED, check_refused

if TYPE_CHECKING:
    import psycopg


class ClaimedTable(NamedTuple):
    """A table whose claims are inspected.

    - `source`: its name in messages.
    - `settings`: the settings of the session.
    """

    url: str
    source: str
    table: str
    key: str
    settings: Mapping[str, str]

    def inspect(self, reader: str, limit: int) -> SourceStatus:
        """See InspectedSource."""
        with self._opened() as (connection, table):
            if not find_claims(connection, self.source, table):
                return SourceStatus()
            claims, owners = f"{table.schema}.kstreams_claims", f"{table.schema}.kstreams_claim_owners"
            given = {"reader": f"{reader} {table.label}", "limit": limit}
            counted = connection.execute(
                f"SELECT state, is_dead, count(*), count(*) FILTER (WHERE deaths + is_dead::int >= {SUSPECTED})"
                f" FROM (SELECT c.state, c.deaths, c.state = {CLAIMED} AND (o.owner IS NULL OR {DEAD}) AS is_dead"
                f" FROM {claims} AS c LEFT JOIN {owners} AS o ON o.owner = c.owner"
                f" WHERE c.reader = %(reader)s AND c.state <= {CLAIMED}) AS open GROUP BY state, is_dead",
                given,
            ).fetchall()
            of_refused = f"FROM {claims} WHERE reader = %(reader)s AND state = {REFUSED}"
            [(refused,)] = connection.execute(f"SELECT count(*) {of_refused}", given).fetchall()
            asked = f"SELECT key, deaths, reason {of_refused} ORDER BY key::{table.kind} DESC LIMIT %(limit)s"
            shown = tuple(RefusedInput(*each) for each in connection.execute(asked, given).fetchall())
        return count_claims(counted)._replace(refused=refused, shown=shown)

    def retry(self, reader: str, keys: Collection[str] | None) -> int:
        """See InspectedSource."""
        with self._opened() as (connection, table):
            if not find_claims(connection, self.source, table):
                check_refused(self.source, (), keys)
                return 0
            given = {"reader": f"{reader} {table.label}", "keys": None if keys is None else [*keys]}
            which = f"{table.schema}.kstreams_claims", f"WHERE reader = %(reader)s AND state = {REFUSED}"
            with connection.transaction():
                found = connection.execute(f"SELECT key FROM {' '.join(which)} FOR UPDATE", given).fetchall()
                check_refused(self.source, {key for (key,) in found}, keys)
                return connection.execute(
                    f"UPDATE {which[0]} SET state = {FREE}, owner = NULL, deaths = 0, reason = NULL {which[1]}"
                    " AND (%(keys)s::text[] IS NULL OR key = ANY (%(keys)s::text[]))",
                    given,
                ).rowcount

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[psycopg.Connection[Any], ReadTable]]:
        """Yields a session, and the table. Raises SourceUnavailable, and SettingsError."""
        database = Database(self.url, "a PostgreSQL source")
        try:
            opened = database.connect(self.settings, prepare_threshold=None, client_encoding="utf8")
            with contextlib.closing(opened) as connection, limited(connection):
                yield connection, describe_table(connection, self.source, self.table, self.key, (self.key,))
        except database.psycopg.Error as error:
            text = f"{self.source}: {database.describe(error)}"
            raise SourceUnavailable(text, may_return=database.may_return(error)) from error
