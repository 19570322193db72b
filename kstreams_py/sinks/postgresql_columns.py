"""Columns of a table in PostgreSQL: the values that each takes, and the statement that stores rows whole or not at all.

For a type with a limit, an explicit cast shortens or rounds values that an assignment refuses, and an assignment
rounds, too. So values are sent as the type that holds them exactly, and the statement compares each with the column's
result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kstreams_py.errors import RowRefused, SettingsError
from kstreams_py.sinks.columns import HASH_COLUMN, TakenValues

NAME_BYTES: Final = 63
"""PostgreSQL cuts longer names, so that two of them may become equal."""

DESCRIBE: Final = """
WITH RECURSIVE bases AS (
  SELECT attnum, attname, atthasdef OR attidentity <> '' AS is_filled, atttypid AS type, atttypmod AS modifier
  FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
  UNION ALL
  SELECT attnum, attname, is_filled, typbasetype, typtypmod FROM bases JOIN pg_type ON oid = type WHERE typtype = 'd'
)
SELECT attname, format_type(type, -1), format_type(type, modifier), modifier >= 0, is_filled
FROM bases JOIN pg_type ON oid = type WHERE typtype <> 'd' ORDER BY attnum
"""
"""Selects the columns of a table; for a domain, its underlying type."""

UNKNOWN: Final = TakenValues(None, nul=False)
"""The values of a column of any other type: PostgreSQL decides, and no type takes NUL in text."""

_NARROW: Final = {"name", '"char"', "money", "oid", "real"}
"""Types that change values of the type `given`, even without a limit in their declaration."""

_JSON: Final = {"json", "jsonb"}


class Column(NamedTuple):
    """A column of a table.

    - `type`: as PostgreSQL shows it; for a domain, its underlying type.
    - `base`: `type` without its limit.
    - `taken`: the values that it takes.
    - `given`: the type in which values are sent.
    - `is_exact`: whether it stores each value of `given` exactly, or refuses it.
    """

    name: str
    type: str
    base: str
    taken: TakenValues
    given: str
    is_exact: bool


def describe(
    name: str, base: str, kind: str, known: Mapping[str, tuple[TakenValues, str]], *, is_limited: bool
) -> Column:
    """Returns a column by its type. Raises SettingsError for a column of arrays.

    - `base`, `kind`: the name of the type, without its limit and with it.
    - `known`: the values that a type takes, and the type that holds each of them exactly. For other types, PostgreSQL
      decides.
    """
    if base.endswith("[]"):
        raise SettingsError(f"column {name!r} is {kind}: a sink stores no arrays: choose another column")
    taken, given = known.get(base, (UNKNOWN, base))
    return Column(name, kind, base, taken, given, is_exact=not is_limited and base not in _NARROW)


def check_names(what: str, names: Sequence[str]) -> None:
    """Raises SettingsError for a name that PostgreSQL would cut or does not allow."""
    for name in names:
        if (size := len(name.encode(errors="replace"))) > NAME_BYTES:
            raise SettingsError(
                f"{what} {name!r} has {size} bytes, of which PostgreSQL keeps {NAME_BYTES}: choose a shorter name"
            )
        if not name or "\0" in name:
            raise SettingsError(f"{what} {name!r} is not a valid name in PostgreSQL: choose another one")


def check_values(column: Column, values: Sequence[Any]) -> None:
    """Raises RowRefused for the first value that PostgreSQL would change, in a column whose types are not known."""
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {str} and column.base != "jsonb":
        return
    for index, value in enumerate(values):
        reason = ""
        if isinstance(value, list):  # unnest() makes rows of the arrays in an array
            reason = (
                f"takes no list: {'return its text, by json.dumps' if column.base in _JSON else 'return one value'}"
            )
        elif column.base == "jsonb" and isinstance(value, str):
            reason = _find_lost_keys(value)
        if reason:
            raise RowRefused(f"column {column.name!r} is {column.type}, which {reason}", index)


def _find_lost_keys(text: str) -> str:
    """Returns why jsonb would store only a part of the JSON, or "". PostgreSQL itself refuses what is not JSON."""
    twice = []

    def look(pairs: Sequence[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            twice.append(pairs)

    try:  # numbers are not converted: a number of many digits takes long, or is refused
        json.loads(text, object_pairs_hook=look, parse_int=len, parse_float=len)
    except RecursionError:
        return "keeps one of equal keys, and the value is nested too deep to look for them: return a flatter one"
    except ValueError:
        return ""
    return "keeps one of equal keys: return an object that has each key once" if twice else ""


def quote(name: str) -> str:
    """Returns a quoted name for a statement that psycopg formats: without parameters, pass (), or it does not."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def make_insert(table: str, columns: Sequence[Column], *, by_hash: bool) -> str:
    """Returns the statement that stores rows, from an array for each column.

    - `table`: its quoted name.
    - `by_hash`: rows whose delivery hash is stored already are left unchanged.

    The statement returns one row: the number of stored rows, and the row number and column number (from 1) of the first
    value that would be changed; in that case no row is stored. If each column is exact, it returns nothing.
    """
    names = ", ".join(quote(column.name) for column in columns)
    end = f" ON CONFLICT ({HASH_COLUMN}) DO NOTHING" if by_hash else ""
    if all(column.is_exact for column in columns):
        arrays = ", ".join(f"%b::{column.base}[]" for column in columns)
        return f"INSERT INTO {table} ({names}) SELECT * FROM unnest({arrays}){end}"
    arrays = ", ".join(f"%b::{column.base if column.is_exact else column.given}[]" for column in columns)
    given = ", ".join(f"c{number}" for number in range(1, len(columns) + 1))
    whole, changes = [], []
    for number, column in enumerate(columns, 1):
        kept = f"c{number}::{column.type}"
        whole.append(f"c{number}" if column.is_exact else kept)
        if not column.is_exact:
            changes.append(f"WHEN {kept}::{column.given} IS DISTINCT FROM c{number} THEN {number}")
    return (
        f"WITH given AS MATERIALIZED (SELECT * FROM unnest({arrays}) WITH ORDINALITY AS given({given}, place)),"
        f" changed AS (SELECT place, CASE {' '.join(changes)} END AS number FROM given),"
        " first AS (SELECT place, number FROM changed WHERE number IS NOT NULL ORDER BY place LIMIT 1),"
        f" stored AS (INSERT INTO {table} ({names}) SELECT {', '.join(whole)} FROM given"
        f" WHERE NOT EXISTS (SELECT FROM first) ORDER BY place{end} RETURNING 1)"
        " SELECT count(*), (SELECT place FROM first), (SELECT number FROM first) FROM stored"
    )
