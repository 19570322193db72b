"""A table in PostgreSQL as the target of a sink."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn
from uuid import UUID

from kstreams_py.errors import KStreamsError, RowRefused, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.pipelines import Mode, SparkNeeds
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
    first_refused,
    name_type,
    read_evidence,
    split_columns,
)
from kstreams_py.sinks.postgresql_columns import (
    DESCRIBE,
    UNKNOWN,
    Column,
    check_names,
    check_values,
    describe,
    make_insert,
    quote,
)
from kstreams_py.sinks.postgresql_connections import (
    Database,
    check_table_name,
    commit_to_disk,
    find_table,
    first_line,
    limited,
    name_database,
    quote_table,
)

if TYPE_CHECKING:
    import psycopg

_WHAT: Final = "a PostgreSQL sink"

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
"""PostgreSQL's types for the columns of a created table, by Python's."""

_TEXT: Final = TakenValues(frozenset({str}), nul=False)
_INTEGERS: Final = TakenValues(frozenset({int}), bits=64)
_DECIMALS: Final = TakenValues(frozenset({Decimal, int}))

_TAKEN: Final[dict[str, tuple[TakenValues, str]]] = {
    "text": (_TEXT, "text"),
    "character varying": (_TEXT, "text"),
    "bpchar": (_TEXT, "text"),
    "name": (_TEXT, "text"),
    '"char"': (_TEXT, "text"),
    '"bit"': (_TEXT, "text"),
    "bit varying": (_TEXT, "text"),
    "smallint": (_INTEGERS._replace(bits=16), "bigint"),
    "integer": (_INTEGERS._replace(bits=32), "bigint"),
    "bigint": (_INTEGERS, "bigint"),
    "oid": (_INTEGERS, "bigint"),
    "numeric": (_DECIMALS, "numeric"),
    "money": (_DECIMALS, "numeric"),
    "real": (TakenValues(FLOATS), "double precision"),
    "double precision": (TakenValues(FLOATS), "double precision"),
    "boolean": (TakenValues(frozenset({bool})), "boolean"),
    "bytea": (TakenValues(frozenset({bytes})), "bytea"),
    "uuid": (TakenValues(frozenset({UUID, str}), nul=False), "uuid"),
    "date": (TakenValues(frozenset({datetime.date})), "date"),
    "timestamp with time zone": (TakenValues(frozenset({datetime.datetime}), aware=True), "timestamp with time zone"),
    "timestamp without time zone": (
        TakenValues(frozenset({datetime.datetime}), aware=False),
        "timestamp without time zone",
    ),
    "time with time zone": (TakenValues(frozenset({datetime.time}), aware=True), "time with time zone"),
    "time without time zone": (TakenValues(frozenset({datetime.time}), aware=False), "time without time zone"),
    "interval": (TakenValues(frozenset({datetime.timedelta})), "interval"),
}
"""The values that a column of a type takes, and the type that holds each of them exactly.

For other types, PostgreSQL decides.
"""


@dataclass(frozen=True, init=False)
class PostgreSQL:
    """A table in PostgreSQL. Needs psycopg: `pip install 'kstreams_py[postgresql]'`.

    A missing table is created if the columns have types: str, int, float, bool, bytes, Decimal, date, and datetime with
    a time zone. If the table exists, columns with a default or a generated value may be left out. A value that a column
    would round or cut is refused. `write` returns after a synchronous commit.

    - `url`: `postgresql://user:password@host:port/database`, with any parameter of libpq. It must not be the URL of
      a pooler in transaction mode.
    - `table`: its name, with its schema if that is not on the search path: `"schema.table"`.
    - `columns`: names, or a mapping of name to Python type. None for a pipeline, whose rows have their own columns.
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
    spark_needs: ClassVar = SparkNeeds()

    def __init__(
        self, url: str, *, table: str, columns: Columns | None = None, evidence: Evidence | str = Evidence.HASH
    ) -> None:
        name = name_database(url)
        names, types = ((), ()) if columns is None else split_columns(columns, _TYPES)
        kept = read_evidence(evidence, tuple(Evidence))
        check_table_name(table)
        check_names("the name of a column", names)
        vars(self).update(url=url, name=name, table=table, columns=names, types=types, evidence=kept)

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """All modes."""
        return tuple(Mode)

    def __str__(self) -> str:
        return f"{self.name}: table {self.table}"

    def check(self, rows: Sequence[Row]) -> None:
        """See RowRules. For columns without types, only text with NUL is refused."""
        check_rows(rows, self.columns, [_TAKEN[_TYPES[kind]][0] if kind else UNKNOWN for kind in self.types])

    def check_software(self) -> None:
        """See NeedsSoftware."""
        Database(self.url, _WHAT)

    def open(self, consumer: str) -> PostgreSQLConnection:
        """Connects, and creates the table if it is missing. `consumer`: the owner of the stored offsets.

        Raises SinkUnavailable, SettingsError if the table exists with other columns, or is missing and the columns have
        no types, and MissingSoftware without psycopg.
        """
        return PostgreSQLConnection(self, consumer)

    def inspect(self) -> None:
        """See Inspectable."""
        PostgreSQLConnection(self, "", is_read_only=True).close()


class PostgreSQLConnection:
    """One thread's connection to a table in PostgreSQL: see SinkConnection."""

    def __init__(self, sink: PostgreSQL, consumer: str, *, is_read_only: bool = False) -> None:
        """Opens the table. `is_read_only`: see Inspectable.inspect."""
        self._is_read_only = is_read_only
        self._database = Database(sink.url, _WHAT)
        self._psycopg = self._database.psycopg
        self._sink = sink
        self._consumer = consumer
        self._names = (HASH_COLUMN, *sink.columns) if sink.evidence is Evidence.HASH else sink.columns
        schema, dot, self._table_name = sink.table.rpartition(".")
        self._table, self._offsets = quote_table(sink.table), quote_table(f"{schema}{dot}kstreams_offsets")
        self._columns: list[Column] = []
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

        With `HASH` the transaction is one statement, so that a frozen writer cannot keep rows locked.
        """
        with self._usable() as connection:
            check_rows(rows, self._sink.columns, [column.taken for column in self._stored])
            for number, column in enumerate(self._stored):
                if column.taken.types is None:
                    check_values(column, [row.values[number] for row in rows])
            try:
                if self._sink.evidence is Evidence.HASH:
                    return self._execute(connection, rows)
                with connection.transaction():
                    self._advance(connection, positions, expected)
                    return self._execute(connection, rows)
            except (KStreamsError, MemoryError):
                raise
            except Exception as error:
                if self._database.is_of_server(error):
                    raise
                self._refuse(connection, rows, error)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _usable(self) -> Iterator[psycopg.Connection[Any]]:
        """Yields the connection, and opens it if necessary. Raises SinkUnavailable for errors that no row causes."""
        try:
            if self._connection is None:
                self._connection = self._open()
            with limited(self._connection):
                yield self._connection
        except self._psycopg.Error as error:
            with contextlib.suppress(self._psycopg.Error):
                self.close()
            raise self._unavailable(error) from error

    def _unavailable(self, error: psycopg.Error) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._sink}: {self._database.describe(error)}", may_return=self._database.may_return(error)
        )

    def _open(self) -> psycopg.Connection[Any]:
        connection = self._database.connect()
        try:
            with limited(connection):
                commit_to_disk(connection)  # offsets are committed next: rows must be on the disk by then
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the missing tables, and checks the existing one. Raises SettingsError."""
        needed = {self._table} if self._sink.evidence is Evidence.HASH else {self._table, self._offsets}
        if self._is_read_only and not find_table(connection, self._table):
            self._check_creatable()
            return
        if not self._is_read_only and not all(find_table(connection, table) for table in needed):
            with connection.transaction():
                # CREATE TABLE IF NOT EXISTS fails if two writers run it concurrently
                connection.execute("SELECT pg_advisory_xact_lock(hashtext('kstreams_py.sinks'))")
                self._create(connection, {table for table in needed if not find_table(connection, table)})
        described = connection.execute(DESCRIBE, (find_table(connection, self._table),)).fetchall()
        found = {name: kind for name, *kind, _ in described}
        unfilled = [name for name, *_, is_filled in described if not is_filled]
        check_table(str(self._sink), self._names, found, unfilled)
        try:
            columns = [
                describe(name, base, kind, _TAKEN, is_limited=is_limited)
                for name, (base, kind, is_limited) in ((name, found[name]) for name in self._names)
            ]
        except SettingsError as error:
            raise SettingsError(f"{self._sink}: {error}") from None
        self._check_types(columns)
        self._columns = columns
        self._insert = make_insert(self._table, columns, by_hash=self._sink.evidence is Evidence.HASH)
        try:
            connection.execute(f"EXPLAIN {self._insert}", [[] for _ in self._names])
        except self._psycopg.errors.InsufficientPrivilege:
            raise
        except self._psycopg.ProgrammingError as error:
            raise SettingsError(
                f"{self._sink} cannot store the sink's rows: {first_line(error)}: name another table"
            ) from error

    @property
    def _stored(self) -> Sequence[Column]:
        """The columns of a row's values."""
        return self._columns[-len(self._sink.columns) :]

    def _check_types(self, columns: Sequence[Column]) -> None:
        """Raises SettingsError if a declared type differs from the table's, or if hashes do not fit."""
        kinds = dict(zip(self._sink.columns, self._sink.types, strict=True))
        for column in columns:
            if column.name == HASH_COLUMN:
                if column.base not in ("bytea", "text", "character varying") or not column.is_exact:
                    raise SettingsError(
                        f"{self._sink}: column {HASH_COLUMN!r} is {column.type}, which does not hold hashes: make it "
                        "bytea, or name another table"
                    )
                continue
            kind, types = kinds[column.name], column.taken.types
            # a column of type real stores few of Python's floats exactly
            if kind is not None and (types is None or kind not in types or column.base == "real"):
                raise SettingsError(
                    f"{self._sink}: column {column.name!r} is {column.type}, and the sink declares {name_type(kind)}: "
                    "declare a type that fits, or name another table"
                )

    def _check_creatable(self) -> None:
        """Raises SettingsError if the missing table cannot be created because its columns have no types."""
        untyped = [name for name, kind in zip(self._sink.columns, self._sink.types, strict=True) if kind is None]
        if untyped:
            raise SettingsError(
                f"{self._sink} does not exist: create it, or declare the types of its columns: "
                f"columns={{{untyped[0]!r}: str, ...}}"
            )

    def _create(self, connection: psycopg.Connection[Any], missing: set[str]) -> None:
        if self._offsets in missing:
            connection.execute(
                f"CREATE TABLE {self._offsets} (table_name text, consumer text, topic text, partition integer,"
                " next_offset bigint NOT NULL, PRIMARY KEY (table_name, consumer, topic, partition))",
                (),
            )
        if self._table not in missing:
            return
        self._check_creatable()
        columns = [
            f"{quote(name)} {_TYPES[kind]}"
            for name, kind in zip(self._sink.columns, self._sink.types, strict=True)
            if kind is not None
        ]
        if self._sink.evidence is Evidence.HASH:
            columns.insert(0, f"{HASH_COLUMN} bytea PRIMARY KEY")
        connection.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})", ())
        if self._sink.evidence is Evidence.OFFSETS:
            # a dropped table has lost its rows: its old offsets would keep them out of the new table
            connection.execute(f"DELETE FROM {self._offsets} WHERE table_name = %s", (self._table_name,))

    def _execute(self, connection: psycopg.Connection[Any], rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        values: list[list[Any]] = [list(column) for column in zip(*(row.values for row in rows), strict=True)]
        for value, column in zip(values, self._stored, strict=True):
            _convert(value, column)
        if self._sink.evidence is Evidence.HASH:
            values.insert(0, [row.delivery_hash for row in rows])
        cursor = connection.execute(self._insert, values)
        if cursor.description is None:  # each column is exact
            return cursor.rowcount
        [(stored, place, number)] = cursor.fetchall()
        if place is not None:
            column = self._columns[number - 1]
            raise RowRefused(
                f"{self._sink}: column {column.name!r} is {column.type}, which does not hold the whole value: return "
                "one that it holds (rounded, or shortened, by the function), or give the column a type that does",
                place - 1,
            )
        return int(stored)

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
        """Stores positions, if the stored ones are as expected; otherwise raises StaleWriter."""
        name = str(self._sink)
        check_expected(name, self._read(connection, {*positions, *expected}, "FOR UPDATE"), expected)
        arrays = "unnest(%(topics)s::text[], %(numbers)s::integer[], %(offsets)s::bigint[])"
        values = f"{arrays} AS new(topic, partition, next_offset)"
        insert = (  # if two writers saw no offsets, the second waits here for the first, and is then stale
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
        """Finds the row that PostgreSQL refused, and raises RowRefused; nothing is stored.

        If PostgreSQL refuses even an insert of no rows, the set-up is wrong: raises the error of that insert.
        """
        with connection.transaction(force_rollback=True):
            connection.execute(self._insert, [[] for _ in self._names])
        reasons: dict[int, Exception] = {len(rows): error}

        def accepts(first: Sequence[Row]) -> bool:
            try:
                with connection.transaction(force_rollback=True):
                    self._execute(connection, first)
                    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            except (KStreamsError, MemoryError):  # the first row that would be changed comes before any refused row
                raise
            except Exception as refusal:
                if self._database.is_of_server(refusal):
                    raise
                reasons[len(first)] = refusal
                return False
            return True

        index = first_refused(rows, accepts)
        if index is None:  # the data that a constraint checks has changed meanwhile
            raise SinkUnavailable(f"{self._sink}: {first_line(error)}", may_return=True) from error
        reason = reasons.get(index + 1, error)
        remedy = "" if getattr(reason, "sqlstate", None) else ": return values that psycopg takes, such as their texts"
        raise RowRefused(f"{self._sink} does not take the row: {first_line(reason)}{remedy}", index) from error


def _convert(values: list[Any], column: Column) -> None:
    """Converts the values of a column that takes several types to one type: psycopg sends lists of one type."""
    types = column.taken.types or frozenset()
    if len(types) < 2:
        return
    kind: type = float if types == FLOATS else Decimal if Decimal in types else str
    if len(set(map(type, values)) - {type(None), kind}) > 0:
        values[:] = [value if value is None or type(value) is kind else kind(value) for value in values]
