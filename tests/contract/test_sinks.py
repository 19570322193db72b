"""Every sink, with every evidence: all or nothing, each row once, whoever dies, waits or is replaced."""

from __future__ import annotations

import math
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import FrozenInstanceError
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from bench.servers import Server, start_redis
from kstreams_py.errors import MissingSoftware, RowRefused, SettingsError, SinkUnavailable, StaleWriter
from kstreams_py.graph.sink import Evidence, Inspectable, Row, SinkConnection
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, directory, postgresql_connections, sqlite
from kstreams_py.sinks.manifest import MERGED_AT_ONCE
from tests.contract.dying_writer import CONSUMER, INPUT, Write, dying_writer, find_crash_anomalies
from tests.contract.naive_sink import NaiveSink
from tests.contract.targets import ParquetTarget, PostgreSQLTarget, RedisTarget, SQLiteTarget, Target, small_files
from tests.tables import each_case

COLUMNS: Final = {"carrier": str, "delay": int}
OTHER: Final = TopicPartition("in", 1)

SQL: Final = ("sqlite-hash", "sqlite-offsets", "postgresql-hash", "postgresql-offsets")
HASH: Final = ("sqlite-hash", "postgresql-hash", "redis-hash")
OFFSETS: Final = ("sqlite-offsets", "postgresql-offsets", "parquet-offsets")

of_sql = pytest.mark.parametrize("target", SQL, indirect=True)
of_hash = pytest.mark.parametrize("target", HASH, indirect=True)
of_offsets = pytest.mark.parametrize("target", OFFSETS, indirect=True)


@pytest.fixture(params=sorted({*HASH, *OFFSETS}))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    name, evidence = request.param.split("-")
    if name == "sqlite":
        return SQLiteTarget(tmp_path, Evidence(evidence))
    if name == "postgresql":
        return PostgreSQLTarget(request.getfixturevalue("postgresql"), Evidence(evidence))
    if name == "redis":
        return RedisTarget(request.getfixturevalue("redis_server"))
    return ParquetTarget(tmp_path)


@pytest.fixture
def open_sink(target: Target) -> Iterator[Callable[..., SinkConnection]]:
    """Opens connections to the target, which are closed with the test."""
    opened = []

    def open_sink(columns: Any = COLUMNS, consumer: str = CONSUMER) -> SinkConnection:
        opened.append(target.declare(columns).open(consumer))
        return opened[-1]

    yield open_sink
    for connection in opened:
        connection.close()


@pytest.fixture
def open_patiently(monkeypatch: pytest.MonkeyPatch, open_sink: Any) -> Any:
    """Opens connections that wait for each other as long as a busy machine may take."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 60.0)
    monkeypatch.setattr(directory, "LOCK_SECONDS", 60.0)
    monkeypatch.setattr(postgresql_connections, "LIMIT_SECONDS", 120.0)
    monkeypatch.setitem(vars(postgresql_connections)["SETTINGS"], "lock_timeout", "60s")
    monkeypatch.setitem(vars(postgresql_connections)["SETTINGS"], "statement_timeout", "100s")
    monkeypatch.setitem(vars(postgresql_connections)["SETTINGS"], "idle_in_transaction_session_timeout", "100s")
    return open_sink


def inspect(target: Target, columns: Any = COLUMNS) -> None:
    declared = target.declare(columns)
    assert isinstance(declared, Inspectable)
    declared.inspect()


def row(number: int, *values: Any) -> Row:
    return Row(number.to_bytes(16, "big"), values)


def test_rows_of_a_write_are_stored_as_they_were_passed(target: Target, open_sink: Any) -> None:
    inspect(target, {"origin": str})  # and creates nothing: the next columns would be refused
    connection = open_sink()
    assert connection.write([row(1, "UA", -3), row(2, None, None)], {INPUT: 2}, {}) == 2
    assert connection.write([], {INPUT: 2}, {INPUT: 2}) == 0
    assert sorted(target.rows(), key=repr) == [("UA", -3), (None, None)]


@of_hash
def test_row_whose_hash_is_stored_is_left_unchanged(target: Target, open_sink: Any) -> None:
    first, second = open_sink(), open_sink()
    assert first.write([row(1, "UA", 1), row(2, "UA", 2), row(1, "XX", 9)], {}, {}) == 2
    assert second.write([row(2, "XX", 9), row(3, "UA", 3)], {}, {}) == 1
    assert first.write([row(3, "XX", 9)], {}, {}) == 0
    assert sorted(target.rows()) == [("UA", 1), ("UA", 2), ("UA", 3)]
    assert first.positions([INPUT]) == {}


@of_offsets
def test_equal_rows_of_other_steps_are_rows_of_their_own(target: Target, open_sink: Any) -> None:
    connection = open_sink()
    assert connection.write([row(1, "UA", 1), row(1, "UA", 1)], {INPUT: 2}, {}) == 2
    assert connection.write([row(1, "UA", 1)], {INPUT: 3}, {INPUT: 2}) == 1
    assert target.rows() == [("UA", 1)] * 3


@of_offsets
def test_positions_are_those_of_the_last_write_for_each_consumer_and_partition(target: Target, open_sink: Any) -> None:
    connection, other = open_sink(), open_sink(consumer="graph.other")
    assert connection.positions([INPUT, OTHER]) == {}
    connection.write([row(1, "UA", 1)], {INPUT: 10}, {})
    connection.write([row(2, "UA", 2)], {INPUT: 11, OTHER: 7}, {INPUT: 10})
    other.write([row(3, "UA", 3)], {INPUT: 1}, {})
    connection.write([], {OTHER: 8}, {OTHER: 7})
    resumed = open_sink()
    assert resumed.positions([INPUT, OTHER, TopicPartition("in", 2)]) == {INPUT: 11, OTHER: 8}
    assert resumed.positions([OTHER]) == {OTHER: 8}
    assert other.positions([INPUT, OTHER]) == {INPUT: 1}
    assert len(target.rows()) == 3


@of_offsets
@pytest.mark.parametrize("expected", [{}, {INPUT: 1}, {INPUT: 3}, {INPUT: 2, OTHER: 1}])
def test_writer_that_expects_other_offsets_is_stale_and_stores_nothing(
    target: Target, open_sink: Any, expected: dict[TopicPartition, int]
) -> None:
    first, stale = open_sink(), open_sink()
    first.write([row(1, "UA", 1)], {INPUT: 2}, {})
    with pytest.raises(StaleWriter, match=r"in\["):
        stale.write([row(2, "XX", 2)], {INPUT: 4, OTHER: 4}, expected)
    assert (target.rows(), stale.positions([INPUT, OTHER])) == ([("UA", 1)], {INPUT: 2})
    stale.write([row(3, "UA", 3)], {INPUT: 4}, {INPUT: 2})
    assert sorted(target.rows()) == [("UA", 1), ("UA", 3)]


def in_parallel(*calls: Callable[[], object]) -> list[Any]:
    """What each call returned or raised, all begun together."""
    results: list[Any] = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def run(index: int) -> None:
        gate.wait()
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@of_offsets
def test_of_two_writers_at_once_that_expect_the_same_one_is_stale(target: Target, open_patiently: Any) -> None:
    connections = [open_patiently(), open_patiently()]
    for turn in range(15):
        write = ([row(turn, "UA", turn)], {INPUT: turn + 1}, {INPUT: turn} if turn else {})
        results = in_parallel(*(partial(connection.write, *write) for connection in connections))
        assert sorted(map(type, results), key=str) == [int, StaleWriter], results
    assert sorted(delay for _, delay in target.rows()) == list(range(15))


@of_offsets
def test_writers_of_different_partitions_keep_each_others_rows(target: Target, open_patiently: Any) -> None:
    partitions = [TopicPartition("in", number) for number in range(3)]
    connections = [open_patiently() for _ in partitions]

    def write_all(connection: SinkConnection, partition: TopicPartition) -> None:
        for offset in range(20):
            expected = {partition: offset} if offset else {}
            connection.write([row(offset, "UA", partition.partition * 100 + offset)], {partition: offset + 1}, expected)

    results = in_parallel(*(partial(write_all, *pair) for pair in zip(connections, partitions, strict=True)))
    assert results == [None] * 3
    assert sorted(delay for _, delay in target.rows()) == [p * 100 + offset for p in range(3) for offset in range(20)]
    assert connections[0].positions(partitions) == dict.fromkeys(partitions, 20)


@of_hash
def test_writers_of_the_same_rows_at_once_store_each_once(target: Target, open_patiently: Any) -> None:
    connections = [open_patiently(), open_patiently()]
    rows = [row(number, "UA", number) for number in range(200)]
    for start in range(0, 200, 20):
        results = in_parallel(*(partial(c.write, rows[start : start + 20], {}, {}) for c in connections))
        assert sum(results) == 20
    assert sorted(target.rows()) == [("UA", number) for number in range(200)]


def test_refused_row_is_named_by_its_index_and_nothing_of_its_write_is_stored(target: Target, open_sink: Any) -> None:
    connection = open_sink()
    connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
    stored = connection.positions([INPUT])
    good = [row(number, "UA", number) for number in range(2, 9)]
    for bad in (row(9, "UA", "late"), row(9, "UA"), row(9, "\ud800", 1), row(9, object(), 1)):
        with pytest.raises(RowRefused) as raised:
            connection.write([*good[:5], bad, *good[5:]], {INPUT: 9}, stored)
        assert raised.value.index == 5, raised.value
        assert (target.rows(), connection.positions([INPUT])) == ([("UA", 1)], stored)
    assert connection.write(good, {INPUT: 9}, stored) == 7
    assert len(target.rows()) == 8


@pytest.mark.parametrize("target", ["postgresql-hash", "postgresql-offsets"], indirect=True)
@pytest.mark.parametrize("rule", ["CHECK (value < 100)", "UNIQUE", "UNIQUE DEFERRABLE INITIALLY DEFERRED"])
def test_row_that_breaks_a_constraint_is_refused_by_its_index(
    target: PostgreSQLTarget, open_sink: Any, rule: str
) -> None:
    key = "delivery_hash bytea PRIMARY KEY, " if target.evidence is Evidence.HASH else ""
    target.execute(f"CREATE TABLE stored ({key}value bigint {rule}, at timestamptz DEFAULT now())")
    connection = open_sink(("value",))
    large = 1_234_567_890  # no part of the name of a schema, which is random
    values = [1, 2, 3, 4, large, 4, large, 5]
    with pytest.raises(RowRefused, match="violates") as raised:
        connection.write([row(n, value) for n, value in enumerate(values)], {INPUT: 8}, {})
    assert raised.value.index == (4 if rule.startswith("CHECK") else 5)
    assert (target.rows(), connection.positions([INPUT])) == ([], {})
    assert str(large) not in str(raised.value), "values do not belong into logs"


# What a crash leaves.


@pytest.fixture(scope="module")
def write_and_die() -> Iterator[Write]:
    with dying_writer() as write:
        yield write


@pytest.mark.parametrize("at_each_line", [False, pytest.param(True, marks=pytest.mark.long)])
def test_writer_killed_at_each_point_leaves_all_or_nothing_and_its_restart_all(
    at_each_line: bool, target: Target, write_and_die: Write
) -> None:
    sink = target.declare({"value": int})
    points, anomalies = find_crash_anomalies(
        write_and_die, sink, lambda: sorted(value for (value,) in target.rows()), at_each_line=at_each_line
    )
    assert anomalies == []
    assert points > (10 if at_each_line else 2)


def test_naive_sink_that_commits_its_offset_apart_is_seen_to_store_rows_twice(
    tmp_path: Path, write_and_die: Write
) -> None:
    naive = SQLiteTarget(tmp_path, Evidence.OFFSETS)
    naive.declare({"value": int})
    _, anomalies = find_crash_anomalies(
        write_and_die, NaiveSink(naive.path), lambda: sorted(v for (v,) in naive.rows()), at_each_line=False
    )
    assert any("restarted" in anomaly for anomaly in anomalies)


# Tables and values.


@of_sql
def test_table_that_exists_with_other_columns_is_refused_with_both(target: Any, open_sink: Any) -> None:
    target.execute("CREATE TABLE stored (delivery_hash INT, origin INT)")
    with pytest.raises(SettingsError) as raised:
        open_sink()
    with pytest.raises(SettingsError, match=f"^{re.escape(str(raised.value))}$"):
        inspect(target)
    stored = "(delivery_hash, carrier, delay)" if target.evidence is Evidence.HASH else "(carrier, delay)"
    assert "table" in str(raised.value)
    assert f"has the columns (delivery_hash, origin), but the sink stores {stored}: declare" in str(raised.value)


@pytest.mark.parametrize("target", ["redis-hash", "parquet-offsets"], indirect=True)
def test_target_that_was_written_with_other_columns_is_refused_with_both(target: Target, open_sink: Any) -> None:
    open_sink({"origin": str}).write([row(1, "EWR")], {INPUT: 1}, {})
    for look in (open_sink, lambda: inspect(target)):
        with pytest.raises(SettingsError, match=r"the columns \(origin.*\), but the sink stores \(carrier.*, delay"):
            look()
    inspect(target, {"origin": str})


@of_sql
def test_columns_that_fill_themselves_may_be_left_out(target: Any, open_sink: Any) -> None:
    key = "delivery_hash bytea PRIMARY KEY, " if target.evidence is Evidence.HASH else ""
    target.execute(f"CREATE TABLE stored ({key}carrier TEXT, delay INTEGER, note TEXT DEFAULT 'none')")
    open_sink(("carrier", "delay")).write([row(1, "UA", 1)], {INPUT: 1}, {})
    assert target.execute("SELECT carrier, delay, note FROM stored") == [("UA", 1, "none")]


@pytest.mark.parametrize("target", ["sqlite-offsets", "postgresql-offsets"], indirect=True)
def test_table_that_was_dropped_has_no_offsets(target: Any, open_sink: Any) -> None:
    open_sink().write([row(1, "UA", 1)], {INPUT: 5}, {})
    target.execute("DROP TABLE stored")
    assert open_sink().positions([INPUT]) == {}


@of_sql
def test_names_are_quoted(target: Any, open_sink: Any) -> None:
    columns = {'a "b" %s': str, "group": int}
    open_sink(columns).write([row(1, "UA", 1)], {INPUT: 1}, {})
    assert target.execute("SELECT * FROM stored")[0][-2:] == ("UA", 1)


NOON: Final = datetime(2026, 11, 23, 12, 0, 0, 123_456, tzinfo=timezone(timedelta(hours=2)))

VALUES: Final[dict[str, tuple[type, Any]]] = {
    "none": (str, None),
    "quotes": (str, 'it\'s "quoted" \\ %s {} \n ü €'),
    "text with NUL": (str, "a\0b"),
    "half a surrogate": (str, "\ud800"),
    "bytes": (bytes, bytes(range(256))),
    "most of 64 bits": (int, 2**63 - 1),
    "least of 64 bits": (int, -(2**63)),
    "more than 64 bits": (int, 2**63),
    "100 bits": (int, 2**100),
    "float": (float, 0.1),
    "float of an int": (float, 3),
    "float of a large int": (float, 2**53 + 1),
    "NaN": (float, math.nan),
    "infinity": (float, math.inf),
    "true": (bool, True),
    "bool as int": (int, True),
    "text as int": (int, "7"),
    "int as text": (str, 7),
    "float as int": (int, 1.5),
    "decimal": (Decimal, Decimal("1.10")),
    "long decimal": (Decimal, Decimal("1e-30")),
    **{
        f"decimal {text}": (Decimal, Decimal(text))
        for text in ("1e-999999999", "1e999999999", "1e20", "NaN", "-Infinity")
    },
    "long zero": (Decimal, Decimal("0e-999999999")),
    "float as decimal": (Decimal, 0.1),
    "time": (datetime, NOON),
    "time without zone": (datetime, NOON.replace(tzinfo=None)),
    "date": (date, date(2026, 11, 23)),
    "time as date": (date, NOON),
}

_MISFITS: Final = {
    *("half a surrogate", "more than 64 bits", "100 bits", "float of a large int", "bool as int", "text as int"),
    *("int as text", "float as int", "float as decimal", "time without zone", "time as date"),
}

_DECIMALS: Final = {name for name, (kind, value) in VALUES.items() if kind is Decimal and isinstance(value, Decimal)}

REFUSED: Final = {
    "sqlite": _MISFITS | _DECIMALS | {"NaN", "time", "date"},
    "postgresql": _MISFITS | {"text with NUL", "decimal 1e-999999999", "decimal 1e999999999", "long zero"},
    "redis": _MISFITS - {"more than 64 bits", "100 bits"} | _DECIMALS | {"bytes", "NaN", "infinity", "time", "date"},
    "parquet": _MISFITS | _DECIMALS - {"decimal", "long zero"},
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("target", ["sqlite-hash", "postgresql-hash", "redis-hash", "parquet-offsets"], indirect=True)
def test_value_comes_back_as_it_was_or_is_refused(
    request: pytest.FixtureRequest, target: Target, open_sink: Any, name: str
) -> None:
    kind, value = VALUES[name]
    kinds = request.node.callspec.params["target"].split("-")[0]
    try:
        assert open_sink({"value": kind}).write([row(1, value)], {INPUT: 1}, {}) == 1
    except (SettingsError, RowRefused):
        assert name in REFUSED[kinds]
        return
    assert name not in REFUSED[kinds]
    [(found,)] = target.rows()
    assert found == value or (math.isnan(found) and math.isnan(value))


# Targets that are away.


def test_target_that_is_away_is_unavailable_and_is_written_to_once_it_is_back(
    target: Any, open_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(directory, "LOCK_SECONDS", 0.05)
    connection = open_sink()
    connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
    stored = connection.positions([INPUT])
    with target.broken() as reason:
        for _ in range(2):
            with pytest.raises(SinkUnavailable, match=reason) as raised:
                connection.write([row(2, "UA", 2)], {INPUT: 2}, stored)
            assert raised.value.may_return
        if not isinstance(target, SQLiteTarget):  # which looks at a table that exists without a lock
            with pytest.raises(SinkUnavailable, match=reason):
                open_sink()
        if not isinstance(target, SQLiteTarget | ParquetTarget):  # which are read without a lock
            with pytest.raises(SinkUnavailable, match=reason):
                inspect(target)
    assert connection.positions([INPUT]) == stored
    assert connection.write([row(2, "UA", 2)], {INPUT: 2}, stored) == 1
    assert sorted(target.rows()) == [("UA", 1), ("UA", 2)]


def test_declaration_is_immutable_and_picklable_and_shows_no_password(target: Any) -> None:
    sink = target.declare(COLUMNS)
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert (sink.columns, sink.evidence) == (("carrier", "delay"), target.evidence)
    assert "secret" not in repr(sink) + str(sink)
    with pytest.raises(FrozenInstanceError):
        sink.columns = ()


# What one target has alone.


@pytest.fixture
def postgres(postgresql: Server) -> PostgreSQLTarget:
    return PostgreSQLTarget(postgresql, Evidence.OFFSETS)


def test_postgresql_text_that_is_too_long_is_refused_and_not_cut(
    postgres: PostgreSQLTarget, open_postgres: Any
) -> None:
    postgres.execute("CREATE TABLE stored (value varchar(3))")
    connection = open_postgres(("value",))
    whole = r"column 'value' is character varying\(3\), which does not hold the whole value: return one that"
    with pytest.raises(RowRefused, match=whole) as raised:
        connection.write([row(1, "abc"), row(2, "abcd")], {INPUT: 1}, {})
    assert (raised.value.index, postgres.rows()) == (1, [])


@pytest.fixture
def open_postgres(postgres: PostgreSQLTarget) -> Iterator[Callable[..., SinkConnection]]:
    with ExitStack() as stack:
        yield lambda columns=COLUMNS: stack.enter_context(closing(postgres.declare(columns).open(CONSUMER)))


def test_postgresql_table_without_types_must_exist(postgres: PostgreSQLTarget) -> None:
    with pytest.raises(SettingsError, match=r"stored does not exist: create it, or declare the types"):
        postgres.declare(("carrier",)).open(CONSUMER)


def test_postgresql_column_of_another_type_than_declared_is_refused(postgres: PostgreSQLTarget) -> None:
    postgres.execute("CREATE TABLE stored (carrier text, delay text)")
    with pytest.raises(SettingsError, match="column 'delay' is text, and the sink declares int"):
        postgres.declare(COLUMNS).open(CONSUMER)


@pytest.mark.parametrize("kind", ["varchar(10)", "char(40)", "uuid"])
def test_postgresql_column_that_cuts_delivery_hashes_is_refused(postgresql: Server, kind: str) -> None:
    """Rows whose hashes are cut to the same text would be taken for stored."""
    target = PostgreSQLTarget(postgresql, Evidence.HASH)
    target.execute(f"CREATE TABLE stored (delivery_hash {kind} PRIMARY KEY, value text)")
    with pytest.raises(SettingsError, match=r"column 'delivery_hash' is .*, which does not hold hashes: make it bytea"):
        target.declare(("value",)).open(CONSUMER)


RAISING: Final = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON stored FOR EACH {each} EXECUTE FUNCTION refuse()
"""


@each_case(
    "change",
    [
        "DROP TABLE stored",
        "ALTER TABLE stored RENAME delay TO late",
        "ALTER TABLE stored RENAME TO other; CREATE MATERIALIZED VIEW stored AS SELECT * FROM other",
        RAISING.format(state="KS001", each="STATEMENT"),
    ],
)
def test_postgresql_that_takes_no_rows_at_all_ends_the_write_as_a_mistake(postgresql: Server, change: str) -> None:
    target = PostgreSQLTarget(postgresql, Evidence.OFFSETS)
    with closing(target.declare(COLUMNS).open(CONSUMER)) as connection:
        target.execute(change)
        with pytest.raises(SinkUnavailable) as raised:
            connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
        assert not raised.value.may_return


@each_case(
    ("state", "may_return"),
    [
        *((state, True) for state in ("08006", "25006", "40001", "40P01", "53200", "53300", "55P03", "57014", "57P03")),
        *((state, False) for state in ("28000", "53100", "58030", "XX001")),
    ],
)
def test_postgresql_that_cannot_now_refuses_no_row(postgresql: Server, state: str, may_return: bool) -> None:
    target = PostgreSQLTarget(postgresql, Evidence.OFFSETS)
    with closing(target.declare(COLUMNS).open(CONSUMER)) as connection:
        target.execute(RAISING.format(state=state, each="ROW"))
        with pytest.raises(SinkUnavailable, match="refused") as raised:
            connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
        assert raised.value.may_return is may_return


@pytest.mark.parametrize(
    ("change", "reason"),
    [(("/postgres", "/missing"), '"missing" does not exist'), (("postgres:", "nobody:"), '"nobody"')],
)
def test_postgresql_that_refuses_the_connection_does_not_return(
    postgres: PostgreSQLTarget, change: tuple[str, str], reason: str
) -> None:
    postgres.url = postgres.url.replace(*change)
    with pytest.raises(SinkUnavailable, match=reason) as raised:
        postgres.declare(COLUMNS).open(CONSUMER)
    assert not raised.value.may_return
    assert "secret" not in str(raised.value)


def test_writer_frozen_in_a_transaction_is_ended_by_the_server(
    postgres: PostgreSQLTarget, open_postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, other = open_postgres(), open_postgres()
    frozen.write([row(1, "UA", 1)], {INPUT: 1}, {})

    def freeze(*_: Any) -> None:
        frozen._connection.execute("SET LOCAL idle_in_transaction_session_timeout = '200ms'")
        other.write([row(2, "UA", 2)], {INPUT: 2}, {INPUT: 1})

    monkeypatch.setattr(frozen, "_execute", freeze)
    with pytest.raises(SinkUnavailable) as raised:
        frozen.write([row(2, "XX", 2)], {INPUT: 2}, {INPUT: 1})
    monkeypatch.undo()
    assert raised.value.may_return
    assert sorted(postgres.rows()) == [("UA", 1), ("UA", 2)]
    with pytest.raises(StaleWriter):
        frozen.write([row(2, "XX", 2)], {INPUT: 2}, {INPUT: 1})


def test_server_that_does_not_answer_is_unavailable(
    postgres: PostgreSQLTarget, open_postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = open_postgres()
    monkeypatch.setattr(postgresql_connections, "LIMIT_SECONDS", 0.3)
    pid = connection._connection.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(SinkUnavailable) as raised:
            connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
    finally:
        os.kill(pid, signal.SIGCONT)
    assert raised.value.may_return
    monkeypatch.undo()
    assert connection.write([row(1, "UA", 1)], {INPUT: 1}, {}) == 1


@pytest.fixture
def cluster() -> Iterator[Server]:
    with closing(start_redis(in_cluster=True)) as server:
        yield server


def test_redis_cluster_is_refused_with_the_reason(cluster: Server) -> None:
    sink = RedisTarget(cluster).declare(COLUMNS)
    with pytest.raises(SettingsError, match="Redis Cluster, where no transaction covers keys of several nodes"):
        sink.open(CONSUMER)


def test_redis_that_keeps_too_little_is_warned_of_with_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    options = ("--appendonly", "no", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with closing(start_redis(*options)) as server, closing(RedisTarget(server).declare(COLUMNS).open(CONSUMER)):
        pass
    assert [("appendonly is off" in text, "maxmemory-policy allkeys-lru" in text) for text in caplog.messages] == [
        (True, False),
        (False, True),
    ]


@pytest.fixture
def small_redis() -> Iterator[Server]:
    with closing(start_redis("--maxmemory", "3mb")) as server:
        yield server


def test_redis_without_memory_stores_nothing_and_does_not_return(small_redis: Server) -> None:
    target = RedisTarget(small_redis)
    connection = target.declare({"note": str}).open(CONSUMER)

    def fill() -> None:
        for start in range(0, 100_000, 100):
            connection.write([row(number, "x" * 1_000) for number in range(start, start + 100)], {}, {})

    with pytest.raises(SinkUnavailable, match="maxmemory") as raised:
        fill()
    connection.close()
    assert not raised.value.may_return
    assert len(target.rows()) % 100 == 0


@pytest.fixture
def lake(tmp_path: Path) -> ParquetTarget:
    return ParquetTarget(tmp_path)


def test_parquet_on_a_full_disk_names_directory_and_remedy_and_keeps_its_table(lake: ParquetTarget) -> None:
    """A limit of the size of files stands for the disk."""
    connection = lake.declare(COLUMNS).open(CONSUMER)
    connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
    with small_files(100), pytest.raises(SinkUnavailable) as raised:
        connection.write([row(2, "UA", 2)], {INPUT: 2}, {INPUT: 1})
    assert str(raised.value) == f"{lake.directory}: File too large: raise the limit of file sizes, then start again"
    assert not raised.value.may_return
    assert lake.rows() == [("UA", 1)]
    assert connection.write([row(2, "UA", 2)], {INPUT: 2}, {INPUT: 1}) == 1


def test_parquet_files_stay_few_and_old_unpublished_ones_are_removed(
    lake: ParquetTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.declare(COLUMNS)
    assert isinstance(sink, Parquet)
    connection = sink.open(CONSUMER)
    staged = lake.directory / "_data" / "part-of-a-dead-writer.parquet"
    staged.touch()
    for offset in range(100):
        connection.write([row(offset, "UA", offset)], {INPUT: offset + 1}, {INPUT: offset} if offset else {})
    assert sorted(delay for _, delay in lake.rows()) == list(range(100))
    assert len(sink.files()) <= 2 * 15
    assert staged.exists()
    monkeypatch.setattr(directory, "KEPT_SECONDS", -1.0)
    sink.open(CONSUMER)
    assert sorted((lake.directory / "_data").iterdir()) == sorted(sink.files())


def test_parquet_files_that_are_merged_stay_for_readers_that_know_their_names(lake: ParquetTarget) -> None:
    """Files that are older than an hour are merged, too: their hour begins with the merge."""
    sink = lake.declare(COLUMNS)
    assert isinstance(sink, Parquet)
    connection = sink.open(CONSUMER)
    for offset in range(16):
        read = sink.files()
        for path in read:
            os.utime(path, (0, 0))
        connection.write([row(offset, "UA", offset)], {INPUT: offset + 1}, {INPUT: offset} if offset else {})
    assert len(sink.files()) == 1
    assert [path for path in read if not path.exists()] == []


def test_parquet_files_of_a_relative_directory_are_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's Java process resolves a relative path against the working directory that it was started in."""
    monkeypatch.chdir(tmp_path)
    sink = Parquet("lake", columns=COLUMNS)
    sink.open(CONSUMER).write([row(1, "UA", 1)], {INPUT: 1}, {})
    (path,) = sink.files()
    assert path.parent == tmp_path / "lake" / "_data"
    assert path.is_file()


def test_parquet_manifest_that_was_damaged_is_reported_and_not_replaced(lake: ParquetTarget) -> None:
    connection = lake.declare(COLUMNS).open(CONSUMER)
    connection.write([row(1, "UA", 1)], {INPUT: 1}, {})
    manifest = lake.directory / "_manifest.json"
    for content in (manifest.read_bytes()[:50], b"[]", b'{"version": 2}'):
        manifest.write_bytes(content)
        with pytest.raises(SinkUnavailable, match=r"_manifest.json: .*: restore it"):
            connection.write([row(2, "UA", 2)], {INPUT: 2}, {INPUT: 1})
        assert manifest.read_bytes() == content
    manifest.unlink()
    sink = lake.declare(COLUMNS)
    assert isinstance(sink, Parquet)
    for read in (sink.files, lambda: connection.positions({INPUT}), lambda: sink.open(CONSUMER)):
        with pytest.raises(
            SinkUnavailable, match=r"_manifest.json: it was removed by hand: restore it, or move the dir"
        ):
            read()


def test_parquet_file_that_was_replaced_by_another_with_as_many_rows_is_not_merged(lake: ParquetTarget) -> None:
    sink = lake.declare(COLUMNS)
    assert isinstance(sink, Parquet)
    connection = sink.open(CONSUMER)
    for number in range(MERGED_AT_ONCE - 1):
        connection.write([row(number, "UA", number)], {INPUT: number + 1}, {INPUT: number} if number else {})
    first, second = sink.files()[:2]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    last = row(MERGED_AT_ONCE, "UA", MERGED_AT_ONCE)
    expected = {INPUT: MERGED_AT_ONCE - 1}
    with pytest.raises(SinkUnavailable, match=rf"{first.name} is not the file that was published: .*: restore it"):
        connection.write([last], {INPUT: MERGED_AT_ONCE}, expected)
    first.write_bytes(content)
    connection.write([last], {INPUT: MERGED_AT_ONCE}, expected)
    numbers = [*range(MERGED_AT_ONCE - 1), MERGED_AT_ONCE]
    assert (sorted(lake.rows()), len(sink.files())) == (sorted(tuple(row(n, "UA", n).values) for n in numbers), 1)


@pytest.mark.parametrize("module", ["psycopg", "redis", "pyarrow"])
def test_target_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    sinks: dict[str, Any] = {
        "psycopg": PostgreSQL("postgresql://127.0.0.1/db", table="stored", columns=COLUMNS),
        "redis": Redis("redis://127.0.0.1", key="stored", columns=COLUMNS),
        "pyarrow": Parquet(tmp_path, columns=COLUMNS),
    }
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingSoftware, match=r"pip install 'kstreams_py\[\w+\]'"):
        sinks[module].open(CONSUMER)
