"""TestDriver refuses the rows that a sink's own target refuses by their values, with the same message."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import RowRefused
from kstreams_py.graph.sink import Row, RowRules, Sink
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, SQLite, postgresql, redis
from kstreams_py.sinks.postgresql_columns import describe
from kstreams_py.testing import TestDriver

NOON: Final = datetime(2026, 11, 23, 12, tzinfo=UTC)
ODD: Final = NOON.replace(tzinfo=timezone(timedelta(hours=1, microseconds=5)))

SINKS: Final[dict[str, Callable[[Path, Any], Sink]]] = {
    "sqlite": lambda at, columns: SQLite(at / "rows.sqlite", table="stored", columns=columns),
    "postgresql": lambda at, columns: PostgreSQL("postgresql://u:p@nowhere/db", table="stored", columns=columns),
    "redis": lambda at, columns: Redis("redis://nowhere:6379/0", key="stored", columns=columns),
    "parquet": lambda at, columns: Parquet(at / "rows", columns=columns),
}

Values = dict[str, tuple[type, Any]]

OF_ALL: Final[Values] = {
    "half of a surrogate pair": (str, "a\ud800"),
    "an int as text": (str, 7),
    "bytes as text": (str, b"1"),
    "text as an int": (int, "7"),
    "a bool as an int": (int, True),
    "a float as an int": (int, 1.5),
    "a list": (str, ["a"]),
    "a large int as a float": (float, 2**53 + 1),
    "a Decimal as a float": (float, Decimal(1)),
    "text as a bool": (bool, "t"),
}

REFUSED: Final[Mapping[str, Values]] = {
    "sqlite": {**OF_ALL, "64 bits": (int, 2**63), "100 bits": (int, -(2**99)), "NaN": (float, math.nan)},
    "postgresql": {
        **OF_ALL,
        "NUL": (str, "a\0b"),
        "64 bits": (int, 2**63),
        "sNaN": (Decimal, Decimal("sNaN")),
        "a float as a Decimal": (Decimal, 0.1),
        "a time without a zone": (datetime, NOON.replace(tzinfo=None)),
        "a zone of microseconds": (datetime, ODD),
        "a date as a time": (datetime, NOON.date()),
        "a time as a date": (date, NOON),
    },
    "redis": {**OF_ALL, "NaN": (float, math.nan), "infinity": (float, math.inf), "many digits": (int, 10**5_000)},
    "parquet": {
        **OF_ALL,
        "64 bits": (int, 2**63),
        "digits": (Decimal, Decimal("1e-19")),
        "a large Decimal": (Decimal, Decimal("1e20")),
        "a Decimal that is not a number": (Decimal, Decimal("NaN")),
        "a time without a zone": (datetime, NOON.replace(tzinfo=None)),
        "a zone of microseconds": (datetime, ODD),
        "a time as a date": (date, NOON),
    },
}

TAKEN: Final[Mapping[str, Values]] = {
    "sqlite": {"NUL": (str, "a\0b"), "most": (int, 2**63 - 1), "least": (int, -(2**63)), "infinity": (float, math.inf)},
    "postgresql": {
        "most": (int, 2**63 - 1),
        "NaN": (float, math.nan),
        "int": (Decimal, 2**100),
        "time": (datetime, NOON),
    },
    "redis": {"100 bits": (int, 2**99), "NUL": (str, "a\0b"), "int": (float, 2**53)},
    "parquet": {"least": (int, -(2**63)), "Decimal": (Decimal, Decimal("1e-18")), "NaN": (float, math.nan)},
}

ENDS: Final = (
    "stored: reading orders[0]@0: {}; or declare a topic for dead letters (`errors=`), and the record becomes one: "
    "without it, its worker ends"
)
"""What a worker says that ends by a refused row."""

CASES: Final = [(target, name) for target, named in REFUSED.items() for name in named]


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL with the table that the sink creates, and Redis: neither gets a row that its client refuses."""

    def connect(connection: postgresql.PostgreSQLConnection) -> object:
        named = vars(postgresql)
        sink: PostgreSQL = vars(connection)["_sink"]
        types = {name: named["_TYPES"][kind] for name, kind in zip(sink.columns, sink.types, strict=True)}
        found = [describe(name, kind, kind, named["_TAKEN"], is_limited=False) for name, kind in types.items()]
        vars(connection)["_columns"] = found
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(postgresql.PostgreSQLConnection, "_open", connect)
    monkeypatch.setattr(postgresql, "limited", nullcontext)
    monkeypatch.setattr(redis.RedisConnection, "_open", lambda _: SimpleNamespace(close=lambda: None))


def declare(target: str, at: Path, kind: type) -> Sink:
    return SINKS[target](at, {"good": int, "value": kind})


def of_target(sink: Sink, value: Any) -> str:
    """Why the target itself refuses a value, in the second of two rows; with an empty table if it is a real one."""
    rows = [Row(bytes([number] * 16), (number, each)) for number, each in enumerate((None, value))]
    with closing(sink.open("shop.stored")) as connection, pytest.raises(RowRefused) as raised:
        connection.write(rows, {}, {})
    assert raised.value.index == 1
    return str(raised.value)


def of_driver(sink: Sink, value: Any, errors: str | None = None) -> TestDriver:
    graph = ks.Graph("shop", errors=errors)
    graph.sink(graph.topic("orders", value=ks.Json()), to=sink, id="stored")(lambda _: [(0, None), (1, value)])
    driver = TestDriver(graph)
    driver.send("orders", 1)
    return driver


@pytest.mark.parametrize(("target", "name"), CASES)
def test_value_that_the_target_refuses_is_refused_by_the_driver_with_its_message(
    target: str, name: str, tmp_path: Path
) -> None:
    kind, value = REFUSED[target][name]
    sink = declare(target, tmp_path, kind)
    with closing(of_driver(sink, value)) as driver:
        with pytest.raises(RowRefused) as raised:
            driver.run()
        assert (str(raised.value), driver.rows("stored")) == (ENDS.format(of_target(sink, value)), [])


@pytest.mark.parametrize("target", SINKS)
def test_refused_row_becomes_a_dead_letter_of_the_driver(target: str, tmp_path: Path) -> None:
    with closing(of_driver(sink := declare(target, tmp_path, int), "7", "shop.errors")) as driver:
        driver.run()
        why = [letter.value["exception_message"] for letter in driver.dead_letters()]
    assert (
        why
        == [of_target(sink, "7")]
        == ["column 'value' takes int, but the value is of type str: return a value that it takes"]
    )


@pytest.mark.parametrize(("target", "name"), [(target, name) for target, named in TAKEN.items() for name in named])
def test_value_at_a_limit_of_the_target_is_taken_by_the_driver(target: str, name: str, tmp_path: Path) -> None:
    kind, value = TAKEN[target][name]
    with closing(of_driver(declare(target, tmp_path, kind), value)) as driver:
        driver.run()
        ((_, first), (_, found)) = driver.rows("stored")
    assert (first, found is value) == (None, True)


@pytest.mark.parametrize(
    ("target", "value", "why"),
    [
        ("sqlite", math.nan, "no NaN"),
        ("sqlite", 2**63, "integers of 64 bits"),
        ("sqlite", Decimal(1), "bool or bytes or float or int or str, but the value is of type Decimal"),
        ("postgresql", "\0", "no text with NUL"),
        ("postgresql", "\udfff", "no text with half of a surrogate pair, which UTF-8 cannot encode"),
        ("redis", b"1", "bool or float or int or str, but the value is of type bytes"),
    ],
)
def test_columns_without_types_refuse_what_no_column_of_the_target_takes(
    target: str, value: Any, why: str, tmp_path: Path
) -> None:
    with (
        closing(of_driver(SINKS[target](tmp_path, ("good", "value")), value)) as driver,
        pytest.raises(RowRefused) as raised,
    ):
        driver.run()
    assert str(raised.value) == ENDS.format(f"column 'value' takes {why}: return a value that it takes")


def test_parquet_without_its_library_has_the_rules_of_types(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rows = [Row(b"", (None, Decimal("1e-19")))]
    sink = declare("parquet", tmp_path, Decimal)
    assert isinstance(sink, RowRules)
    sink.check(rows)
    with pytest.raises(RowRefused, match="column 'value' takes Decimal, but the value is of type float"):
        sink.check([*rows, Row(b"", (None, 0.1))])


def test_refusal_by_the_client_of_a_target_makes_no_request_to_it(tmp_path: Path) -> None:
    with closing(of_driver(declare("sqlite", tmp_path, int), "7")) as driver:
        with pytest.raises(RowRefused):
            driver.run()
        assert "store" not in driver.cluster.faults.requests
    assert list(tmp_path.iterdir()) == [], "the target itself is left alone"
