"""A table in PostgreSQL as a source: what only it has."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from bench.servers import Server
from kstreams_py import sources
from kstreams_py.errors import SettingsError, SourceUnavailable
from kstreams_py.graph.source import SourceConnection
from kstreams_py.sinks import postgresql_connections
from kstreams_py.sources import postgresql, postgresql_claims
from kstreams_py.sources.suspects import DEATHS_MAX
from tests.contract.source_media import LEASE, READER, InPostgreSQL
from tests.contract.test_sources import read, read_attempts
from tests.waiting import wait_until


@pytest.fixture
def medium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgresql: Server) -> Iterator[InPostgreSQL]:
    with closing(InPostgreSQL(tmp_path, monkeypatch, postgresql)) as found:
        yield found


def test_row_that_is_committed_late_with_a_lower_key_is_read(medium: InPostgreSQL) -> None:
    connection = medium.open()
    with psycopg.connect(medium.target.url) as late:
        late.execute(f"INSERT INTO {medium.target.schema}.orders VALUES (1, 'item 1')")
        medium.insert(2)
        assert (read(connection), read(connection)) == ([2], [])
    medium.wait(1)
    assert read(connection) == [1]


def test_workers_that_race_get_each_row_once(medium: InPostgreSQL) -> None:
    medium.insert(*range(5_000))

    def run(connection: SourceConnection) -> list[int]:
        found: list[int] = []
        while not connection.is_exhausted:
            claims = connection.read(100, alone=True)
            found += [claim.value["id"] for claim in claims]
            connection.ack(claims)
        return found

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(run, [medium.open(ends=True) for _ in range(3)])]
    assert sorted(chain(*found)) == [*range(5_000)]


@pytest.mark.parametrize("hours", [-24, 24])
def test_clock_of_the_database_that_jumps_leaves_claims_to_workers_that_live(medium: InPostgreSQL, hours: int) -> None:
    medium.insert(1, 2, 3)
    dead, living = medium.open(), medium.open()
    assert (read(dead, 1), read(living, 1)) == ([1], [2])
    medium.run(f"UPDATE kstreams_claim_owners SET lease_until = lease_until - interval '{hours} hours'")
    medium.now += LEASE / 2  # in the table it does not pass
    living.keep()
    assert read_attempts(medium.open()) == [(1, 1), (3, 0)]


def test_large_table_is_looked_through_in_parts_and_its_end_at_once(
    medium: InPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_claims, "LOOKED_AT", 10)
    monkeypatch.setattr("kstreams_py.sources.passes.LOOK_SECONDS", -1.0)
    medium.insert(*range(0, 50, 2))
    connection = medium.open()
    assert [read(connection) for _ in range(4)] == [[*range(0, 20, 2)], [*range(20, 40, 2)], [*range(40, 50, 2)], []]
    medium.insert(31, 100)
    # a pass is under way, and what is beyond the end does not wait for its end
    assert [read(connection) for _ in range(3)] == [[100], [31], []]


def test_many_claims_of_the_dead_are_taken_over_one_part_after_another(medium: InPostgreSQL) -> None:
    medium.insert(1, 2, 3)
    medium.open().read(100, alone=True)
    medium.wait(2 * LEASE)
    medium.insert(4)
    connection = medium.open()
    assert [read(connection, 2, alone=False) for _ in range(3)] == [[1, 2], [3, 4], []]


KEYS: Final[dict[str, tuple[Sequence[str], Sequence[int | bytes]]]] = {
    "bigint": (["-9223372036854775808", "7", "10"], [-9223372036854775808, 7, 10]),
    "text": (["'00123'", "'123'", "'é%s'"], [b"00123", b"123", "é%s".encode()]),
    'text COLLATE "POSIX"': (["''", "'B'", "'a'"], [b"", b"B", b"a"]),
    "character(3)": (["'a'", "'b c'"], [b"a", b"b c"]),
    "uuid": (
        [f"'{'0' * 31}1'", f"'{'f' * 32}'"],
        [b"00000000-0000-0000-0000-000000000001", b"ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ),
    "bytea": ([r"'\x00'", r"'\xff00'"], [rb"\x00", rb"\xff00"]),
    "numeric": (["1.10", "20", "'NaN'"], [b"1.10", b"20", b"NaN"]),
    "double precision": (
        ["0.30000000000000004", "1e300", "'infinity'"],
        [b"0.30000000000000004", b"1e+300", b"Infinity"],
    ),
    "timestamp with time zone": (
        ["'0044-03-15 12:00+00 BC'", "'2020-01-01 00:00:00.000001+02'", "'infinity'"],
        [b"0044-03-15 12:00:00+00 BC", b"2019-12-31 22:00:00.000001+00", b"infinity"],
    ),
    "interval": (["'1 day'", "'1 month'"], [b"1 day", b"1 mon"]),
    "mood": (["'sad'", "'happy'"], [b"sad", b"happy"]),
    "shown": (["'sad'", "'well'"], [b"sad", b"well"]),
}
"""By the type of a key, the keys of rows, and those of their claims."""


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_type_are_exact_whatever_the_session(
    medium: InPostgreSQL, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    given, expected = KEYS[kind]
    monkeypatch.setattr(postgresql_claims, "LOOKED_AT", 1)  # each look begins after a key
    medium.run("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    medium.run("CREATE DOMAIN shown AS varchar(9)")
    medium.run(f'CREATE TABLE "a %s b" ("the ""key""" {kind} PRIMARY KEY, "%" int)')
    rows = ", ".join(f"({key}, {number})" for number, key in enumerate(given))
    medium.run(f'INSERT INTO "a %s b" VALUES {rows}')
    declared: dict[str, Any] = {"table": "a %s b", "key": 'the "key"', "columns": ["%"]}
    connection = medium.open(**declared)
    claims = [*chain(*(connection.read(100, alone=True) for _ in range(3)))]
    assert [(claim.key, claim.value) for claim in claims] == [(key, {"%": n}) for n, key in enumerate(expected)]
    connection.ack(claims[1:])
    medium.wait(2 * LEASE)
    medium.target.url += (
        "&options=-c%20TimeZone%3DAsia/Tokyo%20-c%20extra_float_digits%3D-9%20-c%20bytea_output%3Descape"
    )
    assert [claim.key for claim in medium.open(**declared).read(100, alone=True)] == [expected[0]]
    assert medium.run("SELECT count(*) FROM kstreams_claims") == [(len(given),)]


def test_value_that_would_be_read_as_another_is_refused(medium: InPostgreSQL) -> None:
    medium.run("CREATE TABLE odd (id int PRIMARY KEY, t interval, ts interval[], j json, b jsonb)")
    odd = {"t": ("-1 mons +30 days", "1 year"), "ts": ("{1 mon}",), "j": ("[1e400]", "[1e-400]"), "b": ("1e-400",)}
    rows = [(name, value) for name, values in odd.items() for value in values]
    for at, (name, value) in enumerate([("t", "1 day 24:00"), ("j", '{"é": 1.5}'), *rows]):
        medium.run(f"INSERT INTO odd (id, {name}) VALUES ({at}, '{value}')")
    found = [claim.value for claim in medium.open(table="odd").read(100, alone=True)]
    assert [value["t"] or value["j"] for value in found[:2]] == [datetime.timedelta(2), {"é": 1.5}]
    assert [re.split(" has months|: change", str(value.error))[0] for value in found[2:]] == [
        "'-1 mons +30 days'", "'1 year'", "'1 mon'", *(f"no float is near to {each}" for each in ("1e400", "1e-400")),
        f"no float is near to 0.{'0' * 58}",
    ]  # fmt: skip


def test_row_with_a_value_that_python_lacks_is_bad_and_the_others_are_read(medium: InPostgreSQL) -> None:
    medium.run("CREATE TABLE spans (id int PRIMARY KEY, until date)")
    medium.run("INSERT INTO spans VALUES (1, '2020-01-01'), (2, 'infinity'), (3, NULL), (4, '0044-03-15 BC')")
    connection = medium.open(table="spans")
    claims = connection.read(100, alone=True)
    assert [(claim.key, claim.value) for claim in claims[:2]] == [
        (1, {"id": 1, "until": datetime.date(2020, 1, 1)}),
        (3, {"id": 3, "until": None}),
    ]
    remedy = "change the value, or leave its column out by columns= of the source"
    assert [(claim.key, str(claim.value.error)) for claim in claims[2:]] == [
        (2, f"date too large (after year 10K): 'infinity': {remedy}"),
        (4, f"date too small (before year 1): '0044-03-15 BC': {remedy}"),
    ]
    connection.refuse([(claim, "no \0 \ud800") for claim in claims])
    assert medium.refused() == [(each, r"no \0 \ud800") for each in range(1, 5)]


def test_row_that_the_server_cannot_send_is_bad_and_the_others_are_read(medium: InPostgreSQL) -> None:
    name = f"ascii_{medium.target.schema}"
    medium.run(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    url = medium.target.url.replace("/postgres?", f"/{name}?")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
        other.execute(
            r"INSERT INTO orders SELECT id, convert_from(CASE id WHEN 3 THEN '\xe9' ELSE 'a' END::bytea, 'SQL_ASCII')"
            " FROM generate_series(1, 6) AS id"
        )
        with closing(sources.PostgreSQL(url, table="orders", key="id").open(READER)) as connection:
            *claims, bad = connection.read(100, alone=True)
            connection.refuse([(bad, "é")])
        assert other.execute("SELECT reason FROM kstreams_claims WHERE key = '3'").fetchall() == [(rb"\xe9",)]
    assert [claim.value for claim in claims] == [{"id": each, "item": "a"} for each in (1, 2, 4, 5, 6)]
    remedy = "change the value, or leave its column out by columns= of the source"
    assert (bad.key, str(bad.value.error)) == (3, f'invalid byte sequence for encoding "UTF8": 0xe9: {remedy}')


def test_partitioned_table_is_read_in_the_order_of_its_keys(medium: InPostgreSQL) -> None:
    medium.run("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY HASH (id)")
    for number in range(2):
        medium.run(f"CREATE TABLE part{number} PARTITION OF parts FOR VALUES WITH (MODULUS 2, REMAINDER {number})")
    medium.run("INSERT INTO parts SELECT generate_series(1, 20)")
    assert read(medium.open(table="parts")) == [*range(1, 21)]


def of_table(columns: str, *more: str, name: str = "table", key: str = "id") -> Callable[[InPostgreSQL], object]:
    """Declares a table with these columns; `more`: further statements."""

    def declare(medium: InPostgreSQL) -> object:
        for statement in (f"CREATE TABLE made ({columns})", *more):
            medium.run(statement)
        return medium.open(table="made" if name == "table" else name, key=key)

    return declare


def of_role(*grants: str) -> Callable[[InPostgreSQL], object]:
    """Declares the table of orders for a role that has only these rights. {0} is the schema."""

    def declare(medium: InPostgreSQL) -> object:
        role, schema = f"r{medium.target.schema}", medium.target.schema
        medium.run(f"CREATE ROLE {role} LOGIN")
        for grant in grants:
            medium.run(f"GRANT {grant.format(schema)} TO {role}")
        medium.target.url = medium.target.url.replace("postgres:secret", role)
        return medium.open()

    return declare


NO_KEY: Final = "does not identify a row: name a column that is the primary key, or NOT NULL and UNIQUE"

REFUSED: Final[dict[str, tuple[str, Callable[[InPostgreSQL], object]]]] = {
    "no table": (
        ".order does not exist: correct the table of the source, or name its schema as well",
        lambda medium: medium.open(table="order"),
    ),
    "no column": ("has no column 'idd': did you mean id?", lambda medium: medium.open(key="idd")),
    "no such column": ("has no column 'x': it has id, item", lambda medium: medium.open(columns=["item", "x"])),
    "a key that is not unique": (f"column 'item' {NO_KEY}", lambda medium: medium.open(key="item")),
    "a key that may be null": (NO_KEY, of_table("id int UNIQUE")),
    "a key of two columns": (NO_KEY, of_table("id int, part int, PRIMARY KEY (id, part)")),
    "a partial index": (NO_KEY, of_table("id int NOT NULL", "CREATE UNIQUE INDEX ON made (id) WHERE id > 0")),
    "an expression": (NO_KEY, of_table("id int NOT NULL", "CREATE UNIQUE INDEX ON made (abs(id))")),
    "a deferred index": (NO_KEY, of_table("id int PRIMARY KEY DEFERRABLE")),
    "a view": (
        ".shown is a view, whose rows no key identifies: name a table",
        of_table("id int PRIMARY KEY", "CREATE VIEW shown AS SELECT * FROM made", name="shown"),
    ),
    "a materialized view": (
        ".shown is a materialized view, whose rows no key identifies: name a table",
        of_table("id int PRIMARY KEY", "CREATE MATERIALIZED VIEW shown AS SELECT * FROM made", name="shown"),
    ),
    "a foreign table": (
        ".shown is a foreign table, whose rows no key identifies: name a table",
        of_table(
            "id int PRIMARY KEY",
            "CREATE FOREIGN DATA WRAPPER away",
            "CREATE SERVER away FOREIGN DATA WRAPPER away",
            "CREATE FOREIGN TABLE shown (id int) SERVER away",
            "ALTER FOREIGN DATA WRAPPER away RENAME TO away_of_the_test",
            name="shown",
        ),
    ),
    "child tables": (
        ".made has the rows of its child tables, too, whose keys may be the same: name a child",
        of_table("id int PRIMARY KEY", "CREATE TABLE child () INHERITS (made)"),
    ),
    "claims of another version": (
        "table kstreams_claims is of another version of kstreams_py (its columns are reader, state, a): read it",
        lambda medium: (medium.run("CREATE TABLE kstreams_claims (reader text, state int, a int)"), medium.open()),
    ),
    "a lease": ("lease=0: give seconds above 0", lambda medium: medium.open(lease=0)),
    "no URL": (
        "PostgreSQL needs a URL such as postgresql://user:password@host:port/database",
        lambda _: sources.PostgreSQL("db.example/shop", table="orders", key="id"),
    ),
    "no right to the schema": ("permission denied for schema s", of_role()),
    "no right to read": ("permission denied for table orders: run GRANT SELECT ON s", of_role("USAGE ON SCHEMA {0}")),
    "no right to create": (": run GRANT CREATE ON SCHEMA", of_role("USAGE ON SCHEMA {0}", "SELECT ON {0}.orders")),
    "no right to claim": (
        "a right to the tables of claims is missing: run GRANT SELECT, INSERT, UPDATE, DELETE ON",
        lambda medium: (medium.open(), of_role("USAGE ON SCHEMA {0}", "SELECT ON ALL TABLES IN SCHEMA {0}")(medium)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_source_that_cannot_be_read_as_declared_is_refused_with_the_remedy(medium: InPostgreSQL, case: str) -> None:
    told, declare = REFUSED[case]
    with pytest.raises(SettingsError) as refused:
        declare(medium)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


def create_again(medium: InPostgreSQL) -> None:
    medium.run("DROP TABLE orders")
    medium.run("CREATE TABLE orders (id bigint PRIMARY KEY, item text)")
    medium.insert(1, 2)


@pytest.mark.parametrize(("remedy", "rows", "is_same"), [("DELETE", [1, 2], False), ("UPDATE", [2], True)])
def test_table_that_is_created_again_is_refused_until_its_rows_are_declared(
    medium: InPostgreSQL, remedy: str, rows: list[int], *, is_same: bool
) -> None:
    medium.insert(1)
    connection = medium.open()
    identity = connection.identity
    connection.ack(connection.read(1, alone=True))
    create_again(medium)
    medium.wait(LEASE / 2)
    with pytest.raises(SourceUnavailable, match=r"table .* was dropped, or created again") as raised:
        connection.read(1, alone=True)
    assert raised.value.may_return
    with pytest.raises(SettingsError, match="was created again, or restored, since its rows were claimed") as refused:
        connection.read(1, alone=True)
    [statement] = re.findall(rf"run ({remedy} .*?)(?:; if|$)", str(refused.value))
    medium.run(statement)
    assert sorted(read(connection) + read(connection)) == rows
    assert (connection.identity == identity) is is_same


def test_table_that_is_created_again_before_a_row_was_claimed_is_another_one(medium: InPostgreSQL) -> None:
    first, again = medium.open(), medium.open()
    create_again(medium)
    other = medium.open()
    assert first.identity == again.identity != other.identity
    assert (other.identity != medium.open("books.orders").identity, read(other)) == (True, [1, 2])


def test_server_that_is_away_may_return_and_the_claims_stay_its_own(medium: InPostgreSQL) -> None:
    medium.insert(1, 2)
    connection = medium.open()
    claims = connection.read(1, alone=True)
    medium.now += LEASE / 2
    with medium.target.broken():
        for call in (lambda: connection.read(1, alone=True), lambda: connection.ack(claims), connection.keep):
            with pytest.raises(SourceUnavailable) as raised:
                call()
            assert raised.value.may_return
    connection.keep()
    connection.ack(claims)
    assert read(connection) == [2]


def test_claims_are_kept_while_the_worker_waits_for_the_database(
    medium: InPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(vars(postgresql)["_SETTINGS"], "lock_timeout", "100s")
    monkeypatch.setitem(vars(postgresql)["_SETTINGS"], "statement_timeout", "100s")
    monkeypatch.setattr(postgresql_connections, "LIMIT_SECONDS", 120.0)
    medium.insert(1)
    connection = medium.open()
    assert read(connection) == [1]
    with psycopg.connect(medium.target.url) as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"LOCK TABLE {medium.target.schema}.orders")
        waiting = pool.submit(read, connection)
        wait_until(lambda: medium.run("SELECT 1 FROM pg_locks WHERE NOT granted") != [], "the worker waits")
        medium.wait(LEASE * 0.9)
        connection.keep()
        other.rollback()
        assert waiting.result() == []
    medium.wait(LEASE * 0.9)
    assert read(medium.open()) == []


def test_worker_whose_rows_are_on_their_way_holds_no_other_up(
    medium: InPostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium.insert(1, 2)
    slow, other = medium.open(), medium.open()
    select, found = postgresql_claims.ClaimTables.select, list[int]()

    def wait(own: postgresql_claims.ClaimTables, *given: Any) -> Any:
        monkeypatch.setattr(postgresql_claims.ClaimTables, "select", select)
        found.extend(read(other, 1))
        return select(own, *given)

    monkeypatch.setattr(postgresql_claims.ClaimTables, "select", wait)
    assert (read(slow, 1), found) == ([1], [2])


def test_rows_whose_claims_or_ends_a_crash_of_the_server_took_are_read_again(medium: InPostgreSQL) -> None:
    medium.insert(1, 2, 3, 4)
    connection = medium.open(ends=True)
    claims = connection.read(100, alone=True)
    assert read(connection) == []
    connection.ack(claims[:1])
    connection.give_back(claims[1:2], failed=False)
    medium.run("UPDATE kstreams_claims SET state = 1")
    medium.run("DELETE FROM kstreams_claims WHERE key = '3'")
    medium.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kstreams_py'")
    with pytest.raises(SourceUnavailable) as raised:
        connection.ack(claims[3:])
    assert raised.value.may_return
    connection.ack(claims[3:])
    again = connection.read(100, alone=True)
    assert ([claim.key for claim in again], read(connection), connection.is_exhausted) == ([1, 2], [3], False)
    connection.ack([*again, claims[2]])
    assert (read(connection), connection.is_exhausted) == ([], True)


@pytest.mark.parametrize("change", [("/postgres?", "/missing?"), ("postgres:", "nobody:")])
def test_server_that_refuses_the_connection_does_not_return(medium: InPostgreSQL, change: tuple[str, str]) -> None:
    medium.target.url = medium.target.url.replace(*change)
    assert "secret" not in f"{medium.source()} {medium.source()!r}"
    with pytest.raises(SourceUnavailable, match="does not exist") as raised:
        medium.open()
    assert not raised.value.may_return


@contextmanager
def dying(medium: InPostgreSQL, statement: str, *, is_committed: bool) -> Iterator[None]:
    """Ends connections at a statement, before or after its commit: nobody gets the answer."""
    execute = psycopg.Connection.execute

    def die(own: psycopg.Connection[Any], query: Any, *given: Any) -> Any:
        if statement not in query:
            return execute(own, query, *given)
        if is_committed:
            execute(own, query, *given)
        medium.run(f"SELECT pg_terminate_backend({own.info.backend_pid})")
        return execute(own, query, *given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(psycopg.Connection, "execute", die)
        yield


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "lost"])
@pytest.mark.parametrize("lost", ['".kstreams_claims (reader, key', "c.deaths, c.batch"], ids=["claim", "values"])
def test_rows_of_a_read_whose_connection_dies_are_read_next(
    medium: InPostgreSQL, lost: str, *, is_committed: bool
) -> None:
    medium.insert(1, 2, 3)
    connection = medium.open()
    first = connection.read(1, alone=True)
    with dying(medium, lost, is_committed=is_committed), pytest.raises(SourceUnavailable) as raised:
        connection.read(1, alone=True)
    assert raised.value.may_return
    connection.ack(first)
    assert connection.read(0, alone=False) == [], "who asks for none does not look at what it gets"
    assert (read(connection, 2), read(connection, 2)) in (([2], [3]), ([2, 3], []))
    claims = medium.run("SELECT key, state, deaths FROM kstreams_claims ORDER BY key")
    assert claims == [("1", 2, 0), ("2", 1, 0), ("3", 1, 0)]


def test_suspects_whose_claim_had_no_answer_are_read_again_by_themselves(medium: InPostgreSQL) -> None:
    medium.insert(1, 2, 3)
    for _ in range(DEATHS_MAX - 1):
        medium.open().read(100, alone=True)
        medium.wait(2 * LEASE)
    connection = medium.open()
    with dying(medium, "FOR UPDATE OF c SKIP LOCKED", is_committed=True), pytest.raises(SourceUnavailable):
        connection.read(100, alone=True)
    assert (read(connection), connection.waits_alone) == ([1], True)
