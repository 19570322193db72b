"""A table in PostgreSQL as the target of a sink."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kstreams_py.errors import MissingSoftware, RowRefused, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.pipelines import Mode
from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.settings import split_user
from kstreams_py.sinks.columns import (
    FLOATS,
    HASH_COLUMN,
    Columns,
    Taken,
    Types,
    check_expected,
    check_rows,
    check_table,
    first_refused,
    name_type,
    read_evidence,
    split_columns,
)

if TYPE_CHECKING:
    import psycopg

LIMIT_SECONDS: Final = 20.0
"""The longest time of one call. A server that does not answer for longer counts as away."""

_SETTINGS: Final = {
    "lock_timeout": "5s",  # of a row that another writer holds
    "statement_timeout": "15s",
    # a writer that was frozen in its transaction holds its rows: the server ends it
    "idle_in_transaction_session_timeout": "10s",
}

_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": "5",
    "application_name": "kstreams_py",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
}
"""Parameters of libpq, unless the URL has them."""

_TYPES: Final[dict[type, str]] = {
    str: "text",
    int: "bigint",
    float: "double precision",
    bool: "boolean",
    bytes: "bytea",
    Decimal: "numeric",
    datetime.datetime: "timestamp with time zone",
    datetime.date: "date",
}

_TAKEN: Final = {
    "text": Taken(frozenset({str})),
    "character varying": Taken(frozenset({str})),
    "smallint": Taken(frozenset({int})),
    "integer": Taken(frozenset({int})),
    "bigint": Taken(frozenset({int})),
    "numeric": Taken(frozenset({Decimal, int})),
    "double precision": Taken(FLOATS),
    "boolean": Taken(frozenset({bool})),
    "bytea": Taken(frozenset({bytes})),
    "timestamp with time zone": Taken(frozenset({datetime.datetime}), aware=True),
    "timestamp without time zone": Taken(frozenset({datetime.datetime}), aware=False),
    "date": Taken(frozenset({datetime.date})),
}
"""By the type of a column. Of others, PostgreSQL decides."""

_OF_ROWS: Final = ("22", "23", "P0", "42804", "54000")
"""Beginnings of the SQLSTATEs that a row causes: data, a constraint, a trigger, a type, the size of an index entry."""

_MAY_RETURN: Final = ("08", "40", "53200", "53300", "55P03", "57P", "57014", "25")
"""Of what passes: connections, serialization, memory, locks, a server that stops or is a standby for now."""

_LASTING: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
"""In messages of connections that another attempt does not open; libpq does not pass their SQLSTATE."""


@dataclass(frozen=True, init=False)
class PostgreSQL:
    """A table in PostgreSQL. Needs psycopg: `pip install 'kstreams_py[postgresql]'`.

    A table that is missing is created when the columns have types: str, int, float, bool, bytes, Decimal, date, and
    datetime with a time zone. Of a table that exists, columns that fill themselves may be left out. `write` returns
    after a synchronous commit.

    - `url`: `postgresql://user:password@host:port/database`, with any parameter of libpq. Not that of a pooler in
      transaction mode.
    - `table`: its name, with its schema if it is not on the search path: `"schema.table"`.
    - `columns`: names, or a mapping of name to Python type. None for a pipeline, whose rows have their own.
    - `evidence`: "hash" stores `delivery_hash` (bytea) as the primary key; "offsets" stores only the columns, and the
      offsets in the table `kstreams_offsets` of the same schema.

    Raises SettingsError if the URL, the columns or the evidence are not possible.
    """

    url: str = field(repr=False)
    name: str
    table: str
    columns: tuple[str, ...]
    types: Types
    evidence: Evidence

    def __init__(
        self, url: str, *, table: str, columns: Columns | None = None, evidence: Evidence | str = Evidence.HASH
    ) -> None:
        form = "postgresql://user:password@host:port/database"
        _, bare = split_user(url, "PostgreSQL", form, ("postgresql", "postgres"))
        name = re.sub(r"[?#].*", "", bare.replace("postgres:", "postgresql:", 1), flags=re.DOTALL)
        names, types = ((), ()) if columns is None else split_columns(columns, _TYPES)
        kept = read_evidence(evidence, tuple(Evidence))
        vars(self).update(url=url, name=name, table=table, columns=names, types=types, evidence=kept)

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """All."""
        return tuple(Mode)

    def __str__(self) -> str:
        return f"{self.name}: table {self.table}"

    def open(self, consumer: str) -> PostgreSQLConnection:
        """Connects, and makes the table if it is missing. `consumer`: owns the stored offsets.

        Raises SinkUnavailable; SettingsError if the table exists with other columns, or is missing and has no types;
        MissingSoftware without psycopg.
        """
        return PostgreSQLConnection(self, consumer)


class PostgreSQLConnection:
    """One thread's connection to a table in PostgreSQL: see SinkConnection."""

    def __init__(self, sink: PostgreSQL, consumer: str) -> None:
        try:
            import psycopg  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware("a PostgreSQL sink needs psycopg: pip install 'kstreams_py[postgresql]'") from None
        self._psycopg = psycopg
        self._sink = sink
        self._consumer = consumer
        self._names = (HASH_COLUMN, *sink.columns) if sink.evidence is Evidence.HASH else sink.columns
        schema, dot, self._table_name = sink.table.rpartition(".")
        self._table, self._offsets = _quoted(sink.table), _quoted(f"{schema}{dot}kstreams_offsets")
        self._accepted: list[Taken] = []
        self._insert = ""
        self._connection: psycopg.Connection[Any] | None = None
        with self._usable():
            pass

    def positions(self, partitions: Collection[TopicPartition]) -> Positions:
        """Reads the stored next offsets of these partitions."""
        if self._sink.evidence is Evidence.HASH:
            return {}
        with self._usable() as connection:
            return self._read(connection, partitions)

    def write(self, rows: Sequence[Row], positions: Positions, expected: Positions) -> int:
        """Stores rows, and with `OFFSETS` the positions, in one transaction; returns how many rows are new.

        With `HASH` it is one statement, so that no writer that was frozen can hold rows.
        """
        with self._usable() as connection:
            check_rows(rows, self._sink.columns, self._accepted)
            try:
                if self._sink.evidence is Evidence.HASH:
                    return self._execute(connection, rows)
                with connection.transaction():
                    self._advance(connection, positions, expected)
                    return self._execute(connection, rows)
            except (self._psycopg.Error, UnicodeEncodeError) as error:
                if not _is_of_rows(error):
                    raise
                self._refuse(connection, rows, error)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _usable(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection, made if there is none. Raises SinkUnavailable for errors that are not of a row."""
        try:
            if self._connection is None:
                self._connection = self._open()
            with _limited(self._connection):
                yield self._connection
        except self._psycopg.Error as error:
            with contextlib.suppress(self._psycopg.Error):
                self.close()
            raise self._unavailable(error) from error

    def _unavailable(self, error: psycopg.Error) -> SinkUnavailable:
        text, state = _first_line(error), error.sqlstate
        lasts = any(part in text for part in _LASTING) if state is None else not state.startswith(_MAY_RETURN)
        return SinkUnavailable(f"{self._sink}: {text}", may_return=not lasts)

    def _open(self) -> psycopg.Connection[Any]:
        try:
            parameters = _CONNECTION | self._psycopg.conninfo.conninfo_to_dict(self._sink.url)
        except self._psycopg.ProgrammingError:  # its text may have the password
            raise SettingsError(f"{self._sink.name} is no URL of PostgreSQL: correct it") from None
        connection = self._psycopg.connect(self._psycopg.conninfo.make_conninfo("", **parameters), autocommit=True)
        try:
            for name, value in _SETTINGS.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            # offsets are committed next: rows must be on the disk by then
            [(level,)] = connection.execute("SHOW synchronous_commit").fetchall()
            if level == "off":
                connection.execute("SET synchronous_commit = on")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Makes the tables that are missing, and checks the one that exists. Raises SettingsError."""
        needed = {self._table} if self._sink.evidence is Evidence.HASH else {self._table, self._offsets}
        if not all(_find(connection, table) for table in needed):
            with connection.transaction():
                # CREATE TABLE IF NOT EXISTS fails where two run at once
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('kstreams_py.sinks'))")
                self._create(connection, {table for table in needed if not _find(connection, table)})
        described = connection.execute(
            "SELECT attname, format_type(atttypid, NULL), atthasdef OR attidentity <> '' FROM pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (_find(connection, self._table),),
        ).fetchall()
        found = {name: kind for name, kind, _ in described}
        unfilled = [name for name, _, is_filled in described if not is_filled]
        check_table(str(self._sink), self._names, found, unfilled)
        self._accepted = [
            self._accept(name, found[name], kind)
            for name, kind in zip(self._sink.columns, self._sink.types, strict=True)
        ]
        names = ", ".join(map(_quote, self._names))
        values = ", ".join(f"%b::{found[name]}[]" for name in self._names)
        self._insert = f"INSERT INTO {self._table} ({names}) SELECT * FROM unnest({values})"
        if self._sink.evidence is Evidence.HASH:
            self._insert += f" ON CONFLICT ({HASH_COLUMN}) DO NOTHING"
        try:
            connection.execute(f"EXPLAIN {self._insert}", [[] for _ in self._names])
        except self._psycopg.errors.InsufficientPrivilege:
            raise
        except self._psycopg.ProgrammingError as error:
            raise SettingsError(
                f"{self._sink} cannot store the sink's rows: {_first_line(error)}: name another table"
            ) from error

    def _accept(self, name: str, found: str, kind: type | None) -> Taken:
        """What a column takes. Raises SettingsError if its declared type is not that of the table."""
        if found.endswith("[]"):
            raise SettingsError(
                f"{self._sink}: column {name!r} is {found}: a sink stores no arrays: choose another column"
            )
        taken = _TAKEN.get(found, Taken(None))
        if kind is not None and (taken.types is None or kind not in taken.types):
            raise SettingsError(
                f"{self._sink}: column {name!r} is {found}, and the sink declares {name_type(kind)}: "
                "declare a type that fits, or name another table"
            )
        return taken

    def _create(self, connection: psycopg.Connection[Any], missing: set[str]) -> None:
        if self._offsets in missing:
            connection.execute(
                f"CREATE TABLE {self._offsets} (table_name text, consumer text, topic text, partition integer,"
                " next_offset bigint NOT NULL, PRIMARY KEY (table_name, consumer, topic, partition))",
                (),
            )
        if self._table not in missing:
            return
        untyped = [name for name, kind in zip(self._sink.columns, self._sink.types, strict=True) if kind is None]
        if untyped:
            raise SettingsError(
                f"{self._sink} does not exist: create it, or declare the types of its columns: "
                f"columns={{{untyped[0]!r}: str, ...}}"
            )
        columns = [
            f"{_quote(name)} {_TYPES[kind]}"
            for name, kind in zip(self._sink.columns, self._sink.types, strict=True)
            if kind is not None
        ]
        if self._sink.evidence is Evidence.HASH:
            columns.insert(0, f"{HASH_COLUMN} bytea PRIMARY KEY")
        connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})", ())
        if self._sink.evidence is Evidence.OFFSETS:
            # a table that was dropped has lost its rows: offsets that are left of it would leave them out
            connection.execute(f"DELETE FROM {self._offsets} WHERE table_name = %s", (self._table_name,))

    def _execute(self, connection: psycopg.Connection[Any], rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        columns: list[list[Any]] = [list(column) for column in zip(*(row.values for row in rows), strict=True)]
        for column, taken in zip(columns, self._accepted, strict=True):
            _convert_integers(column, taken)
        if self._sink.evidence is Evidence.HASH:
            columns.insert(0, [row.delivery_hash for row in rows])
        return connection.execute(self._insert, columns).rowcount

    def _read(
        self, connection: psycopg.Connection[Any], partitions: Collection[TopicPartition], lock: str = ""
    ) -> Positions:
        found = connection.execute(
            f"SELECT topic, partition, next_offset FROM {self._offsets} WHERE table_name = %s AND consumer = %s"
            f" AND (topic, partition) IN (SELECT * FROM unnest(%s::text[], %s::integer[])) ORDER BY 1, 2 {lock}",
            (self._table_name, self._consumer, [tp.topic for tp in partitions], [tp.partition for tp in partitions]),
        ).fetchall()
        return {TopicPartition(topic, partition): offset for topic, partition, offset in found}

    def _advance(self, connection: psycopg.Connection[Any], positions: Positions, expected: Positions) -> None:
        """Stores positions, if what is stored is what is expected. Raises StaleWriter."""
        name = str(self._sink)
        check_expected(name, self._read(connection, {*positions, *expected}, "FOR UPDATE"), expected)
        arrays = "unnest(%(topics)s::text[], %(numbers)s::integer[], %(offsets)s::bigint[])"
        values = f"{arrays} AS new(topic, partition, next_offset)"
        insert = (  # of two writers that saw no offsets, the second waits here for the first, and is stale
            f"INSERT INTO {self._offsets} (table_name, consumer, topic, partition, next_offset)"
            f" SELECT %(table)s, %(consumer)s, new.* FROM {values} ON CONFLICT DO NOTHING"
        )
        update = (
            f"UPDATE {self._offsets} AS old SET next_offset = new.next_offset FROM {values}"
            " WHERE old.topic = new.topic AND old.partition = new.partition"
            " AND table_name = %(table)s AND consumer = %(consumer)s"
        )
        for statement, is_new in ((insert, True), (update, False)):
            changed = sorted(tp for tp in positions if (tp not in expected) == is_new)
            parameters = {
                "table": self._table_name,
                "consumer": self._consumer,
                "topics": [tp.topic for tp in changed],
                "numbers": [tp.partition for tp in changed],
                "offsets": [positions[tp] for tp in changed],
            }
            if changed and connection.execute(statement, parameters).rowcount < len(changed):
                raise StaleWriter(f"{name}: another writer has stored the first offsets of {changed[0]}")

    def _refuse(self, connection: psycopg.Connection[Any], rows: Sequence[Row], error: Exception) -> NoReturn:
        """Finds the row that PostgreSQL refused, and raises RowRefused; nothing is stored."""
        reasons: dict[int, Exception] = {len(rows): error}

        def accepts(first: Sequence[Row]) -> bool:
            try:
                with connection.transaction(force_rollback=True):
                    self._execute(connection, first)
                    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except (self._psycopg.Error, UnicodeEncodeError) as refusal:
                if not _is_of_rows(refusal):
                    raise
                reasons[len(first)] = refusal
                return False
            return True

        index = first_refused(rows, accepts)
        if index is None:  # what a constraint looks at has changed in the meantime
            raise SinkUnavailable(f"{self._sink}: {_first_line(error)}", may_return=True) from error
        reason = reasons.get(index + 1, error)
        raise RowRefused(f"{self._sink} does not take the row: {_first_line(reason)}", index) from error


@contextlib.contextmanager
def _limited(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Ends the connection if a call takes longer than the limit: libpq waits for an answer without end."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = threading.Timer(LIMIT_SECONDS, line.shutdown, (socket.SHUT_RDWR,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()


def _find(connection: psycopg.Connection[Any], table: str) -> int | None:
    """The oid of a table, by its quoted name; None if it does not exist."""
    [(oid,)] = connection.execute("SELECT to_regclass(%s)::oid", (table.replace("%%", "%"),)).fetchall()
    return oid  # type: ignore[no-any-return]


def _convert_integers(column: list[Any], taken: Taken) -> None:
    """Makes floats or decimals of the integers in a column that takes both: psycopg sends lists of one type."""
    types = taken.types or frozenset()
    kind: type = float if types == FLOATS else Decimal
    if kind in types and int in set(map(type, column)):
        column[:] = [kind(value) if type(value) is int else value for value in column]


def _is_of_rows(error: Exception) -> bool:
    """Whether a row causes the error, so that the same rows fail again."""
    state: str | None = getattr(error, "sqlstate", None)
    if state is None:  # psycopg itself refuses a value
        return type(error).__name__ == "DataError" or isinstance(error, UnicodeEncodeError)
    return state.startswith(_OF_ROWS)


def _first_line(error: Exception) -> str:
    """The message of an error without its details, which have values of the row."""
    return str(error).strip().partition("\n")[0]


def _quote(name: str) -> str:
    # psycopg formats statements, those without parameters if it is given ()
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def _quoted(name: str) -> str:
    return ".".join(map(_quote, name.split(".", 1)))
