"""A table in PostgreSQL as the table of a pipeline: rows and runs in one transaction of the database.

Spark makes the text of each row, in the format of COPY, and the driver only passes it on. So no additional jar is
needed, and rows and runs are in one transaction, which the connections of several executors could not share.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import MissingSoftware, RowRefused, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.sinks import PostgreSQL
from kstreams_py.sinks.postgresql_columns import check_names
from kstreams_py.spark.pipelines.frames import column, columns_of, compute, schema_of
from kstreams_py.spark.pipelines.runs import Published, check_owner, decode_published

with suppress(ImportError):  # whoever has a DataFrame has PySpark
    from pyspark.sql import functions as sf

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import Column, DataFrame, SparkSession

_TYPES: Final = {
    "string": "text",
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
"""PostgreSQL's types, by Spark's; the types of decimals are derived."""

_RUNS: Final = "kstreams_pipelines"
"""The table with the published runs, in the schema of the pipeline's table."""


_COLUMNS: Final = """
SELECT attname, format_type(atttypid, atttypmod),
    NOT attnotnull OR atthasdef OR attidentity <> '' FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
"""Each column of a table: its name, its type, and whether a row may be inserted without it."""

_KEYS: Final = """
SELECT array_agg(attname::text) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
GROUP BY indexrelid
"""
"""The columns of each unique index of a table."""

LOCK_SECONDS: Final = 60
"""Seconds that a run waits for another run that publishes."""

_LINES: Final = 2_000
"""The number of rows that are passed on at a time."""

CONNECT_SECONDS: Final = 30
"""The longest time in seconds until the server accepts a connection; no Kafka transaction of the run is open then."""


class PostgreSQLTable:
    """A table in PostgreSQL: see PipelineTarget. Readers see the previous run's table until the commit."""

    def __init__(self, pipeline: Pipeline, target: PostgreSQL) -> None:
        try:
            import psycopg  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware(
                "a table in PostgreSQL needs psycopg: pip install 'kstreams_py[postgresql]'"
            ) from None
        try:
            psycopg.conninfo.conninfo_to_dict(target.url)
        except psycopg.ProgrammingError:  # its text may have the password
            raise SettingsError(f"{pipeline}: {target.name} is not a PostgreSQL URL: correct it") from None
        self._psycopg = psycopg
        self._pipeline, self._target = pipeline, target
        schema, dot, self._name = target.table.rpartition(".")
        self._table, self._runs = _quoted(target.table), _quoted(f"{schema}{dot}{_RUNS}")

    def read(self) -> Published | None:
        """Reads the published state. Raises SettingsError for a table that no pipeline made, or that was dropped."""
        with self._connected() as connection:
            return self._read(connection)

    def publish(self, rows: DataFrame, previous: Published | None, finish: Callable[[int], Published]) -> Published:
        """Copies the rows into a temporary table, then moves them and stores the run, all in one transaction."""
        types = self._sql_types(columns_of(rows))
        rows = compute(rows)  # before the transaction: it may take long
        names = ", ".join(map(_quote, types))
        with self._connected() as connection:
            columns = ", ".join(f"{_quote(name)} {kind}" for name, kind in types.items())
            connection.execute(f"CREATE TEMPORARY TABLE staged ({columns}) ON COMMIT DROP")
            count = self._copy(connection, rows, f"COPY staged ({names}) FROM STDIN")
            published = finish(count)
            self._lock(connection)
            if self._read(connection) != previous:
                raise StaleWriter(f"{self._pipeline}: another run was published meanwhile: run it again")
            if previous is not None and dict(previous.columns) != dict(published.columns):
                raise SettingsError(
                    f"{self._pipeline}: its rows do not have the columns of {self._target}: return the columns of the "
                    f"table, or begin again with `{show_reset(self._pipeline)}`"
                )
            if previous is None:
                key = ", ".join(map(_quote, self._pipeline.key))
                primary = f", PRIMARY KEY ({key})" if key and self._pipeline.mode is not Mode.APPEND else ""
                connection.execute(f"CREATE TABLE {self._table} ({columns}{primary})")
            self._move(connection, names, list(types))
            connection.execute(
                f"INSERT INTO {self._runs} (table_name, content) VALUES (%s, %s) ON CONFLICT (table_name) DO UPDATE SET"
                " content = excluded.content",
                (self._name, json.dumps(published.as_content())),
            )
        return published

    def table(self, spark: SparkSession) -> DataFrame:
        """Returns the published rows, which pass through the driver."""
        published = self.read()
        if published is None:
            raise SettingsError(f"{self._pipeline} has not run yet: run it first")
        with self._connected() as connection:
            rows = connection.execute(
                f"SELECT {', '.join(map(_quote, published.columns))} FROM {self._table}"
            ).fetchall()
        return spark.createDataFrame(rows, schema_of(published.columns))

    def reset(self) -> None:
        """Drops the table, and deletes its published state."""
        with self._connected() as connection:
            self._lock(connection)
            published = self._stored(connection)
            if published is None:
                self._check_new(connection)
                return
            check_owner(self._pipeline, published)
            connection.execute(f"DROP TABLE IF EXISTS {self._table}")
            connection.execute(f"DELETE FROM {self._runs} WHERE table_name = %s", (self._name,))

    def close(self) -> None:
        """Does nothing: each method opens its own connection."""

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Yields a connection in a transaction, which ends with the block. Raises SinkUnavailable and RowRefused."""
        try:
            with self._psycopg.connect(
                self._target.url, connect_timeout=CONNECT_SECONDS, application_name="kstreams_py"
            ) as found:
                # statements after the lock must see the commits of its last holder; the run must be on the disk
                found.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                found.execute("SET LOCAL synchronous_commit = on")
                found.execute("SET LOCAL TimeZone = 'UTC'")
                found.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")  # a frozen run keeps its locks
                yield found
        except self._psycopg.errors.IntegrityError as error:
            raise RowRefused(f"{self._pipeline}: {self._target} does not take its rows: {_line(error)}", 0) from error
        except self._psycopg.errors.CardinalityViolation as error:
            raise RowRefused(f"{self._pipeline}: two of its rows have the same key: {_line(error)}", 0) from error
        except (self._psycopg.errors.DataError, self._psycopg.errors.InsufficientPrivilege) as error:
            raise SettingsError(f"{self._pipeline}: {self._target}: {_line(error)}") from error
        except self._psycopg.ProgrammingError as error:  # such as for a column that was dropped since the check
            raise SettingsError(f"{self._pipeline}: {self._target}: {_line(error)}: {self._remedy}") from error
        except self._psycopg.Error as error:
            raise SinkUnavailable(f"{self._target}: {_line(error)}") from error

    def _lock(self, connection: psycopg.Connection[Any]) -> None:
        """Creates the table of published runs, and blocks other runs until the transaction ends."""
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"kstreams_py {self._runs}",))
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._runs} (table_name text PRIMARY KEY, content text NOT NULL)"
        )

    def _read(self, connection: psycopg.Connection[Any]) -> Published | None:
        published = self._stored(connection)
        if published is None:
            self._check_new(connection)
        elif not self._has(connection, self._table):
            raise SettingsError(f"{self._target} was dropped by hand: {self._remedy}")
        if published is not None and published.owner == self._pipeline.owner:
            self._check_columns(connection, published)
        return published

    @property
    def _remedy(self) -> str:
        return f"restore it, or begin again with `{show_reset(self._pipeline)}`"

    def _check_new(self, connection: psycopg.Connection[Any]) -> None:
        if self._has(connection, self._table):
            raise SettingsError(
                f"{self._target} exists, and no pipeline has made it, or its line in {_RUNS} was deleted: name another "
                "table, restore the line, or drop the table"
            )

    def _check_columns(self, connection: psycopg.Connection[Any], published: Published) -> None:
        """Raises SettingsError if others have changed the table so that it does not take the rows of a run."""
        found = {name: (kind, takes_none) for name, kind, takes_none in connection.execute(_COLUMNS, (self._table,))}
        known = self._sql_types(published.columns)
        where, remedy = f"{self._pipeline}: {self._target}: others have changed the table", self._remedy
        for name, kind in known.items():
            if name not in found:
                raise SettingsError(f"{where}: it has no column {name!r} any more: {remedy}")
            if found[name][0] != kind:
                raise SettingsError(f"{where}: its column {name!r} is {found[name][0]}, and was {kind}: {remedy}")
        if name := next((name for name, (_, takes_none) in found.items() if name not in known and not takes_none), ""):
            raise SettingsError(
                f"{where}: its column {name!r} takes no nulls and has no default, and no run has a value for it: drop "
                f"it, or begin again with `{show_reset(self._pipeline)}`"
            )
        key = self._pipeline.key
        if not key or self._pipeline.mode is Mode.APPEND:
            return
        if sorted(key) not in [sorted(names) for (names,) in connection.execute(_KEYS, (self._table,))]:
            raise SettingsError(f"{where}: it has no unique index of its key ({', '.join(key)}) any more: {remedy}")

    def _stored(self, connection: psycopg.Connection[Any]) -> Published | None:
        if not self._has(connection, self._runs):
            return None
        found = connection.execute(f"SELECT content FROM {self._runs} WHERE table_name = %s", (self._name,)).fetchone()
        try:
            return None if found is None else decode_published(json.loads(found[0]))
        except ValueError as error:
            raise SinkUnavailable(f"{self._target}: table {_RUNS}: {error}: restore it") from error

    def _has(self, connection: psycopg.Connection[Any], table: str) -> bool:
        found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return found is not None and bool(found[0])

    def _copy(self, connection: psycopg.Connection[Any], rows: DataFrame, statement: str) -> int:
        count, lines = 0, rows.select(sf.concat(_line_of(rows), sf.lit("\n")).alias("line")).toLocalIterator()
        with connection.cursor().copy(statement) as copy:
            waiting: list[str] = []
            for (line,) in lines:
                waiting.append(line)
                count += 1
                if len(waiting) == _LINES:
                    copy.write("".join(waiting))
                    waiting.clear()
            copy.write("".join(waiting))
        return count

    def _move(self, connection: psycopg.Connection[Any], names: str, columns: Sequence[str]) -> None:
        """Moves the rows to the table, according to the mode."""
        insert = f"INSERT INTO {self._table} ({names}) SELECT {names} FROM staged"
        if self._pipeline.mode is Mode.COMPLETE:
            connection.execute(f"DELETE FROM {self._table}")  # unlike with TRUNCATE, readers do not wait
        elif self._pipeline.mode is Mode.UPSERT:
            key = ", ".join(map(_quote, self._pipeline.key))
            others = [_quote(name) for name in columns if name not in self._pipeline.key]
            changes = ", ".join(f"{name} = excluded.{name}" for name in others)
            insert += f" ON CONFLICT ({key}) DO {f'UPDATE SET {changes}' if others else 'NOTHING'}"
        connection.execute(insert)

    def _sql_types(self, columns: Mapping[str, str]) -> dict[str, str]:
        """Returns the PostgreSQL type of each column. Raises SettingsError for a type that PostgreSQL lacks."""
        check_names("the name of a column", tuple(columns))
        found = {}
        for name, kind in columns.items():
            sql = kind.replace("decimal", "numeric") if kind.startswith("decimal") else _TYPES.get(kind)
            if sql is None:
                raise SettingsError(
                    f"{self._pipeline}: column {name!r} is {kind}, which {self._target} does not take: return it as "
                    f"one of {', '.join(_TYPES)}, such as by to_json()"
                )
            found[name] = sql
        return found


def _line_of(rows: DataFrame) -> Column:
    """Returns the row as a line of COPY."""
    return sf.concat_ws("\t", *(_field(column(name), kind) for name, kind in rows.dtypes))


def _field(column: Column, kind: str) -> Column:
    if kind == "binary":
        text = sf.concat(sf.lit("\\\\x"), sf.hex(column))
    elif kind == "string":
        text = sf.validate_utf8(column)  # otherwise Python would get U+FFFD in place of invalid bytes
        for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
            text = sf.replace(text, sf.lit(plain), sf.lit(escaped))
    elif kind == "timestamp":
        text = sf.concat(sf.to_utc_timestamp(column, sf.current_timezone()).cast("string"), sf.lit("+00"))
    else:
        text = column.cast("string")
    return sf.coalesce(text, sf.lit("\\N"))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(name: str) -> str:
    return ".".join(map(_quote, name.split(".", 1)))


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
