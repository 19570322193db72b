"""A table in PostgreSQL as a source reads it: its columns, and the key that identifies a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kstreams_py.errors import SettingsError, did_you_mean
from kstreams_py.sinks.postgresql_columns import DESCRIBE, quote
from kstreams_py.sinks.postgresql_connections import first_line, quote_table

if TYPE_CHECKING:
    import psycopg

_TABLE: Final = """
SELECT c.oid, nspname, relname, relkind::text, EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid),
    format('%%I.%%I', nspname, relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE c.oid = to_regclass(%s)
"""

_KEY: Final = """
SELECT attnotnull AND EXISTS (
    SELECT FROM pg_index WHERE indrelid = attrelid AND indkey[0] = attnum AND indnkeyatts = 1 AND indisunique
    AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
  ), n.nspname, collname, format('%%I', attname)
FROM pg_attribute LEFT JOIN pg_collation AS o ON o.oid = attcollation
  LEFT JOIN pg_namespace AS n ON n.oid = collnamespace
WHERE attrelid = %s AND attname = %s
"""
"""Whether a column identifies a row, and its collation."""

_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
"""Relations that have rows but are not tables, by `relkind`."""

_NUMBERS: Final = {"smallint", "integer", "bigint", "oid"}


class ReadTable(NamedTuple):
    """A table that a source reads.

    - `name`, `schema`, `key`, `columns`: quoted for a statement that psycopg formats.
    - `names`: the names of the columns that are read.
    - `kind`: the type of the key, with its collation.
    - `label`: schema, table and key, as a name that is unique in the database.
    """

    oid: int
    name: str
    schema: str
    key: str
    columns: Sequence[str]
    names: Sequence[str]
    kind: str
    label: str
    is_number: bool

    def key_of(self, text: str) -> int | bytes:
        """Returns the key of a claim from the text of the row's key."""
        return int(text) if self.is_number else text.encode()


def describe_table(
    connection: psycopg.Connection[Any], source: str, table: str, key: str, columns: Sequence[str] | None
) -> ReadTable:
    """Finds a table. Raises SettingsError if it cannot be read as it is declared.

    - `source`: its name in messages.
    - `columns`: the columns to read; None for all.
    """
    role = show(quote(connection.info.user))
    with needing(source, f"GRANT USAGE ON SCHEMA {show(quote(table.partition('.')[0]))} TO {role}"):
        found = connection.execute(_TABLE, (show(quote_table(table)),)).fetchone()
    if found is None:
        raise SettingsError(f"{source} does not exist: correct the table of the source, or name its schema as well")
    oid, nspname, relname, relkind, has_children, shown = found
    if relkind in _KINDS:
        raise SettingsError(f"{source} is {_KINDS[relkind]}, whose rows no key identifies: name a table")
    if has_children and relkind == "r":
        raise SettingsError(f"{source} has the rows of its child tables, too, whose keys may be the same: name a child")
    bases = {name: base for name, base, *_ in connection.execute(DESCRIBE, (oid,))}
    for each in (key, *(columns or ())):
        if each not in bases:
            close = did_you_mean(each, bases) or f"it has {', '.join(bases)}"
            raise SettingsError(f"{source} has no column {each!r}: {close}")
    [(is_key, of, collation, label)] = connection.execute(_KEY, (oid, key)).fetchall()
    if not is_key:
        raise SettingsError(
            f"{source}: column {key!r} does not identify a row: name a column that is the primary key, or NOT NULL and "
            "UNIQUE"
        )
    names = tuple(columns or bases)
    name, quoted = f"{quote(nspname)}.{quote(relname)}", [*map(quote, names)]
    with needing(source, f"GRANT SELECT ON {shown} TO {role}"):
        connection.execute(f"SELECT {', '.join([quote(key), *quoted])} FROM {name} LIMIT 0", ())
    kind = bases[key] if collation is None else f"{bases[key]} COLLATE {quote(of)}.{quote(collation)}"
    return ReadTable(
        oid, name, quote(nspname), quote(key), quoted, names, kind, f"{shown}.{label}", bases[key] in _NUMBERS
    )


def show(text: str) -> str:
    """Returns a quoted name for a message or a parameter, in which % is not doubled as it is in a statement."""
    return text.replace("%%", "%")


@contextmanager
def needing(source: str, remedy: str) -> Iterator[None]:
    """Raises SettingsError with the remedy if the block fails because a privilege is missing."""
    try:
        yield
    except Exception as error:
        if getattr(error, "sqlstate", None) != "42501":  # insufficient_privilege
            raise
        raise SettingsError(f"{source}: {first_line(error)}: run {remedy}") from None
