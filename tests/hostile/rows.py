"""Rows that functions return, and the tables that are to store them: whole, or not at all.

Each row is the second of a write of three; the others are good ones.
"""

from __future__ import annotations

import json
import math
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pyarrow.parquet
import pytest
import redis

from bench.servers import Server
from kstreams_py.errors import RowRefused, SettingsError
from kstreams_py.graph.sink import Row, SinkConnection
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, SQLite
from tests.hostile import Outcome, Place

OUTPUT, DEAD_LETTER = Outcome.OUTPUT, Outcome.DEAD_LETTER

NOON: Final = datetime(2026, 11, 23, 12, 0, 0, 600_000, tzinfo=UTC)
ODD_ZONE: Final = timezone(timedelta(hours=1, microseconds=5))
UUID: Final = uuid.UUID(int=7)

THAT: Final = object()
"""The value itself is to be found in the table."""


class Entered(NamedTuple):
    """A value, the type of the column that it is for, and what is to be found there."""

    type: str
    value: Any
    found: Any = THAT


Table = dict[str, tuple[Any, Outcome]]


def refused(kind: str, **values: Any) -> Table:
    """Values that a column of this type does not hold whole, by their names."""
    return {
        f"{name.replace('_', ' ')} in {kind}": (Entered(kind, value), DEAD_LETTER) for name, value in values.items()
    }


def whole(kind: str, *values: Any, found: Any = THAT) -> Table:
    """Values that a column of this type holds."""
    named = {f"{str(value)[:30]!r} in {kind}": value for value in values}
    return {name: (Entered(kind, value, found), OUTPUT) for name, value in named.items()}


def outcome_of(
    connection: SinkConnection, values: Sequence[Any], good: Sequence[Any], number: int, better: Sequence[Any] = ()
) -> Outcome:
    """What becomes of a row between two good ones, which are stored without it if it is refused."""
    rows = [
        Row(f"{number:015}{place}".encode(), tuple(each)) for place, each in enumerate((good, values, better or good))
    ]
    try:
        connection.write(rows, {}, {})
    except RowRefused as error:
        if error.index != 1:
            raise
        connection.write([rows[0], rows[2]], {}, {})
        return DEAD_LETTER
    return OUTPUT


def is_same(found: Any, value: Any) -> bool:
    return bool(found == value) or (found != found and value != value)  # NaN


POSTGRESQL: Final[Table] = {
    **whole("char(5)", "hello", found="hello") | whole("char(5)", "ab", found="ab   "),
    **refused("char(5)", long_text="abcdef", space_at_the_end="ab "),
    **whole("character(1)", "a") | refused("character(1)", long_text="ab"),
    **whole("bpchar", "hello "),
    **whole("varchar(3)", "abc", "€€€") | refused("varchar(3)", long_text="abcd", space_at_the_end="abc "),
    **whole("short", "abc") | refused("short", long_text="abcd"),
    **whole("shorter", "abc") | refused("shorter", long_text="abcd"),
    **whole("checked", "good") | refused("checked", foreign_value="bad"),
    **whole("text", "", " a\n") | refused("text", NUL="a\0b", half_a_surrogate="\ud800", number=7),
    **whole("name", "x" * 63) | refused("name", long_text="x" * 64, long_bytes="é" * 32),
    **whole('"char"', "h", "") | refused('"char"', long_text="hello", not_ascii="é"),
    **whole("bit(3)", "101") | refused("bit(3)", long_bits="10101", short_bits="1", number=5, no_bits="2"),
    **whole("bit varying(3)", "10", "") | refused("bit varying(3)", long_bits="10101"),
    **whole("numeric(5,2)", Decimal("1.23"), Decimal("1.230"), 7, Decimal("NaN")),
    **refused("numeric(5,2)", digits=Decimal("1.239"), large=12345, floats=1.5, infinity=Decimal("Infinity")),
    **refused("numeric(5,-2)", digits=1239) | whole("numeric(5,-2)", 1200),
    **refused("price", digits=Decimal("1.239")) | whole("price", Decimal("1.23")),
    **whole("numeric", Decimal("1e-30"), 2**100, Decimal("Infinity"), Decimal("-0")),
    **refused("numeric", digits=Decimal("1e-20000"), large=Decimal("1e400000"), signaling_NaN=Decimal("sNaN")),
    **whole("money", Decimal("1.23"), found="$1.23") | refused("money", digits=Decimal("1.239"), text="$1.00"),
    **whole("real", 0.5, 3, math.nan, -0.0) | refused("real", digits=0.1, large=1e300, small=1e-300, int=2**24 + 1),
    **whole("double precision", 0.1, 5e-324, math.inf, 2**53) | refused("double precision", large_int=2**53 + 1),
    **whole("smallint", -(2**15)) | refused("smallint", large=2**15, float=1.0, bool=True),
    **whole("integer", 2**31 - 1) | refused("integer", large=2**31, decimal=Decimal(1)),
    **whole("bigint", 2**63 - 1) | refused("bigint", large=2**63, larger=2**70, text="7"),
    **whole("oid", 2**32 - 1) | refused("oid", negative=-1, large=2**32),
    **whole("boolean", True) | refused("boolean", int=1, text="t"),
    **whole("bytea", b"\0\xff") | refused("bytea", text="x", array=bytearray(b"x")),
    **whole("timestamptz", NOON, NOON.replace(microsecond=1))
    | refused("timestamptz", no_zone=NOON.replace(tzinfo=None)),
    **refused("timestamptz", date=NOON.date(), zone_of_microseconds=NOON.replace(tzinfo=ODD_ZONE)),
    **whole("timestamptz(0)", NOON.replace(microsecond=0)) | refused("timestamptz(0)", part_of_a_second=NOON),
    **whole("timestamp", NOON.replace(tzinfo=None)) | refused("timestamp", zone=NOON),
    **refused("timestamp(3)", microseconds=NOON.replace(tzinfo=None, microsecond=1)),
    **whole("date", date(2026, 11, 23), date.max) | refused("date", time=NOON, text="2026-11-23"),
    **whole("time", time(12, 0, 0, 1)) | refused("time", zone=time(12, tzinfo=UTC), text="12:00:00.1234567"),
    **refused("time(0)", part_of_a_second=time(12, 0, 0, 600_000)) | whole("time(0)", time(12)),
    **whole("timetz", time(12, tzinfo=UTC)) | refused("timetz", no_zone=time(12), odd=time(12, tzinfo=ODD_ZONE)),
    **whole("interval", timedelta(days=2, microseconds=1)) | refused("interval", text="0.0000001 s"),
    **refused("interval(0)", part_of_a_second=timedelta(milliseconds=600)),
    **refused("interval day", hours=timedelta(hours=30)) | whole("interval day", timedelta(days=30)),
    **whole("uuid", UUID) | whole("uuid", str(UUID), found=UUID) | refused("uuid", text="not-a-uuid"),
    **whole("inet", ip_address("10.0.0.1"), ip_address("::1")) | refused("inet", text="10.0.0.256"),
    **whole("mood", "happy") | refused("mood", foreign_label="sad"),
    **whole("json", '{"a": 1, "a": 2}', found={"a": 2}) | refused("json", no_json="{", object={"a": 1}, array=[1, 2]),
    **whole("jsonb", '{"a": [{"a": 1e2}]}', found={"a": [{"a": 100}]}),
    **refused("jsonb", equal_keys='{"a": 1, "a": 2}', escaped_equal_keys='[{"\\u0061": 1, "a": 2}]', NUL='"\\u0000"'),
    **refused("jsonb", half_a_surrogate='"\\ud800"', deep="[" * 100_000 + "]" * 100_000, infinity="Infinity"),
    **refused("jsonb", object={"a": 1}, array=[1, 2], tuple=(1, 2), bytes=b"{}", number="1e200000"),
    **refused("xml", no_xml="<", array=["<a/>", "<b/>"], object=object()) | whole("xml", "<a/>"),
    **refused("point", array=[1, 2], tuple=(1, 2)) | whole("point", "(1,2)"),
    **refused("int4range", backwards="[5,1]"),
}

_TYPES: Final = """
CREATE DOMAIN short AS varchar(3);
CREATE DOMAIN shorter AS short;
CREATE DOMAIN checked AS text CHECK (VALUE <> 'bad');
CREATE DOMAIN price AS numeric(5,2);
CREATE TYPE mood AS ENUM ('happy')
"""


@contextmanager
def schema_of(server: Server, *statements: str) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A schema of its own in which statements were run: the URL of a server with it, and a connection."""
    name = f"s{uuid.uuid4().hex}"
    url = f"postgresql://postgres:secret@127.0.0.1:{server.port}/postgres?connect_timeout=60"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
        connection.execute(f"SET search_path = {name}".encode())
        connection.execute("SET TimeZone = 'UTC'")
        for statement in statements:
            connection.execute(statement.encode())
        yield f"{url}&options=-csearch_path%3D{name}", connection


def enter_postgresql(entered: Mapping[str, Entered], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """One table with a column for each type."""
    types = list(dict.fromkeys(each.type for each in entered.values()))
    columns = [f"c{number}" for number in range(len(types))]
    made = ", ".join(f"{name} {kind}" for name, kind in zip(columns, types, strict=True))
    key, nothing = "delivery_hash bytea PRIMARY KEY", [None] * len(types)
    outcomes = {}
    statements = (*_TYPES.split(";"), f"CREATE TABLE stored ({key}, {made})")
    with (
        schema_of(request.getfixturevalue("postgresql"), *statements) as (url, reader),
        closing(PostgreSQL(url, table="stored", columns=columns).open("")) as connection,
    ):
        for number, (name, each) in enumerate(entered.items()):
            place = types.index(each.type)
            values = [*nothing[:place], each.value, *nothing[place + 1 :]]
            outcomes[name] = outcome_of(connection, values, nothing, number)
            asked = f"SELECT {columns[place]} FROM stored WHERE {columns[place]}::text IS NOT NULL"
            found = [value for (value,) in reader.execute(asked.encode()).fetchall()]
            expected = each.value if each.found is THAT else each.found
            assert outcomes[name] is DEAD_LETTER or is_same(found[0], expected), (name, found)
            assert len(found) == (outcomes[name] is OUTPUT), (name, found)
            [(stored,)] = reader.execute("SELECT count(*) FROM stored").fetchall()
            assert stored == 2 + len(found), name
            reader.execute("TRUNCATE stored")
    return outcomes


REFUSALS: Final[Table] = {
    "what all rules take": ("fine", OUTPUT),
    "what row-level security hides": ("hidden", DEAD_LETTER),
    "what a CHECK refuses": ("checked", DEAD_LETTER),
    "a key that is there": ("there", DEAD_LETTER),
    "nothing where something must be": (None, DEAD_LETTER),
    "what divides by zero in an index": ("0", DEAD_LETTER),
    **{
        f"SQLSTATE {state} of a trigger": (state, DEAD_LETTER)
        for state in (
            "P0001",
            "KS001",
            "45000",
            "HV000",
            "0A000",
            "42P01",
            "42501",
            "42883",
            "55000",
            "54001",
            "XX000",
            "2F003",
        )
    },
}
"""What rules of the table make of a text."""

_RULED: Final = """
CREATE TABLE stored (delivery_hash bytea PRIMARY KEY, value text NOT NULL UNIQUE CHECK (value <> 'checked'));
INSERT INTO stored VALUES ('there', 'there');
CREATE INDEX ON stored ((1 / length(replace(value, '0', ''))));
ALTER TABLE stored ENABLE ROW LEVEL SECURITY;
CREATE POLICY inserted ON stored FOR INSERT TO {role} WITH CHECK (value <> 'hidden');
CREATE POLICY read ON stored FOR SELECT TO {role} USING (true);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.value ~ '^[0-9A-Z]{{5}}$' THEN RAISE EXCEPTION 'no' USING ERRCODE = NEW.value | RETURN NEW
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON stored FOR EACH ROW EXECUTE FUNCTION refuse();
GRANT SELECT, INSERT ON stored TO {role};
GRANT USAGE ON SCHEMA {schema} TO {role}
"""


def enter_ruled(values: Mapping[str, Any], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A table with rules of its own, written by a role that owns nothing."""
    outcomes = {}
    with schema_of(request.getfixturevalue("postgresql")) as (url, reader):
        [(schema,)] = reader.execute("SELECT current_schema()").fetchall()
        role = f"clerk_{schema}"
        for statement in (f"CREATE ROLE {role} LOGIN", *_RULED.format(role=role, schema=schema).split(";")):
            reader.execute(statement.replace("|", "; END IF;").replace("RETURN NEW", "RETURN NEW;").encode())
        sink = PostgreSQL(url.replace("postgres:secret", role), table="stored", columns=("value",))
        with closing(sink.open("")) as connection:
            for number, (name, value) in enumerate(values.items()):
                good, better = (f"good {number}",), (f"better {number}",)
                outcomes[name] = outcome_of(connection, (value,), good, number, better)
        stored = {value for (value,) in reader.execute("SELECT value FROM stored").fetchall()}
        reader.execute(f"DROP OWNED BY {role}".encode())
        reader.execute(f"DROP ROLE {role}".encode())
    assert stored == {"there", "fine", *(f"{what} {n}" for what in ("good", "better") for n in range(len(values)))}
    return outcomes


SQLITE: Final[Table] = {
    **whole("NUMERIC", "abc", "0x1F", "1_000", "٣", "", 7, 2**63 - 1, 1.5, math.inf, b"00123", True),
    **refused("NUMERIC", number="123", zeros="00123", power="1e3", point=".5", spaces=" 7\n", plus="+7", NaN=math.nan),
    **whole("DATE", "2026-11-23") | refused("DATE", year="2026") | refused("STRING", zeros="00123"),
    **whole("DECIMAL(10,5)", 1.5) | refused("DECIMAL(10,5)", zeros="1.10", decimal=Decimal("1.1")),
    **whole("INTEGER", 2**60 + 1, 1.5, 5.0, b"7", True) | refused("INTEGER", text="7", large=2**63, NaN=math.nan),
    **whole("REAL", 0.1, 2**53) | refused("REAL", large_int=2**53 + 1, text="0.1", bytes=b"1"),
    **whole("TEXT", "00123", "a\0b", b"1") | refused("TEXT", int=7, float=0.5, bool=True, half_a_surrogate="\ud800"),
    **whole("BLOB", "00123", 7, 0.5, b"1") | refused("BLOB", NaN=math.nan, large=2**63, list=[1], time=NOON),
    **whole("VARCHAR(3)", "abcd"),  # SQLite has no limits of lengths
    **whole("", "00123", 2**63 - 1) | refused("", NaN=math.nan, decimal=Decimal(1)),
    **whole("TEXT CHECK (json_extract(c, '$.a') IS NOT 2)", '{"a": 1}'),
    **refused("TEXT CHECK (json_extract(c, '$.a') IS NOT 2)", broken_constraint='{"a": 2}', failing_constraint="{"),
    **refused("INTEGER CHECK (abs(c) > 0)", failing_constraint=-(2**63)),
}

STRICT: Final[Table] = {
    **whole("ANY", "00123", 7, 0.5, b"1") | refused("ANY", NaN=math.nan),
    **whole("INTEGER", 7) | refused("INTEGER", float=1.5, bytes=b"1", text="7"),
    **whole("BLOB", b"1") | refused("BLOB", text="1", int=1),
}


def enter_sqlite(end: str, entered: Mapping[str, Entered], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A table for each type. `end`: of its declaration."""
    directory: Path = request.getfixturevalue("tmp_path")
    outcomes = {}
    for number, (name, each) in enumerate(entered.items()):
        kind = each.type
        with closing(sqlite3.connect(directory / f"{abs(hash(kind))}.sqlite", isolation_level=None)) as reader:
            reader.execute(f"CREATE TABLE IF NOT EXISTS stored (c {kind}) {end}")
            reader.execute("DELETE FROM stored")
            path = directory / f"{abs(hash(kind))}.sqlite"
            with closing(SQLite(path, table="stored", columns=("c",), evidence="offsets").open("")) as connection:
                outcomes[name] = outcome_of(connection, [each.value], [None], number)
            found = [value for (value,) in reader.execute("SELECT c FROM stored WHERE c IS NOT NULL")]
            assert found == ([each.value] if outcomes[name] is OUTPUT else []), name
    return outcomes


REDIS: Final[Table] = {
    **whole("int", 2**70, True, -0.0, 5e-324, "a\0b", "\x1b[31m"),
    **refused("any", half_a_surrogate="\ud800", NaN=math.nan, infinity=-math.inf, bytes=b"1", list=[1], time=NOON),
    **refused("any", many_digits=10**5_000, large="x" * 1_100_000),
}


def enter_redis(entered: Mapping[str, Entered], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    """A server that takes 1 MiB in one value."""
    server: Server = request.getfixturevalue("redis_server")
    url, outcomes = f"redis://127.0.0.1:{server.port}/0", {}
    with redis.Redis.from_url(url) as reader:
        before = reader.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
        reader.config_set("proto-max-bulk-len", 1024 * 1024)
        try:
            for number, (name, each) in enumerate(entered.items()):
                key = uuid.uuid4().hex
                with closing(Redis(url, key=key, columns=("c",)).open("")) as connection:
                    outcomes[name] = outcome_of(connection, [each.value], [None], number)
                stored = [json.loads(reader.get(found)) for found in reader.scan_iter(f"{key}:3*")]
                found = [row["c"] for row in stored if row["c"] is not None]
                assert found == ([each.value] if outcomes[name] is OUTPUT else []), name
        finally:
            reader.config_set("proto-max-bulk-len", before)
    return outcomes


FOREIGN: Final = {
    "a list": (lambda client, key: client.lpush(key, "x"), Outcome.REFUSED),
    "no JSON": (lambda client, key: client.set(key, "x"), Outcome.REFUSED),
    "no UTF-8": (lambda client, key: client.set(key, b"\xff"), Outcome.REFUSED),
    "a number": (lambda client, key: client.set(key, "5"), Outcome.REFUSED),
    "lists in a list": (lambda client, key: client.set(key, '[["c"]]'), Outcome.REFUSED),
    "other columns": (lambda client, key: client.set(key, '["d"]'), Outcome.REFUSED),
    "the columns": (lambda client, key: client.set(key, '["c"]'), Outcome.OUTPUT),
}
"""What others have stored as the columns of a sink."""


def enter_foreign(entered: Mapping[str, Callable[..., Any]], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    server: Server = request.getfixturevalue("redis_server")
    url, outcomes = f"redis://127.0.0.1:{server.port}/0", {}
    with redis.Redis.from_url(url) as writer:
        for name, store in entered.items():
            key = uuid.uuid4().hex
            store(writer, f"{key}:columns")
            try:
                Redis(url, key=key, columns=("c",)).open("").close()
                outcomes[name] = OUTPUT
            except SettingsError:
                outcomes[name] = Outcome.REFUSED
    return outcomes


_KINDS: Final[dict[str, type]] = {
    each.__name__: each for each in (str, int, float, bool, bytes, Decimal, datetime, date)
}

PARQUET: Final[Table] = {
    **whole("str", "a\0b", "") | refused("str", half_a_surrogate="\ud800", bytes=b"1"),
    **whole("int", 2**63 - 1) | refused("int", large=2**63, bool=True, float=1.0),
    **whole("float", math.nan, math.inf, 0.1, 2**53) | refused("float", large_int=2**53 + 1, decimal=Decimal(1)),
    **whole("bytes", b"\0\xff") | refused("bytes", text="1"),
    **whole("Decimal", Decimal("1e-18"), Decimal("1e19"), Decimal("-0")),
    **refused("Decimal", digits=Decimal("1e-19"), large=Decimal("1e20"), NaN=Decimal("NaN"), sNaN=Decimal("sNaN")),
    **refused("Decimal", infinity=Decimal("Infinity"), float=0.1),
    **whole("datetime", NOON, datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1)))),
    **refused("datetime", no_zone=NOON.replace(tzinfo=None), odd=NOON.replace(tzinfo=ODD_ZONE), date=NOON.date()),
    **whole("date", date.min, date.max) | refused("date", time=NOON),
}


def enter_parquet(entered: Mapping[str, Entered], request: pytest.FixtureRequest) -> dict[str, Outcome]:
    directory: Path = request.getfixturevalue("tmp_path")
    outcomes = {}
    for number, (name, each) in enumerate(entered.items()):
        sink = Parquet(directory / str(number), columns={"c": _KINDS[each.type]})
        with closing(sink.open("")) as connection:
            outcomes[name] = outcome_of(connection, [each.value], [None], number)
        rows = [row["c"] for path in sink.files() for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()]
        found = [value for value in rows if value is not None]
        assert len(rows) == 2 + len(found)
        assert len(found) == (outcomes[name] is OUTPUT), name
        assert all(is_same(value, each.value) for value in found), name
    return outcomes


PLACES: Final = [
    Place("rows, stored in PostgreSQL", POSTGRESQL, enter_postgresql),
    Place("rows, stored in PostgreSQL by rules of the table", REFUSALS, enter_ruled),
    Place("rows, stored in SQLite", SQLITE, partial(enter_sqlite, "")),
    Place("rows, stored in a STRICT table of SQLite", STRICT, partial(enter_sqlite, "STRICT")),
    Place("rows, stored in Redis", REDIS, enter_redis),
    Place("keys of a sink in Redis, of others", FOREIGN, enter_foreign),
    Place("rows, stored in Parquet files", PARQUET, enter_parquet),
]
