"""Declarations of sinks that are refused, with their remedies; and the rules of the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest

from kstreams_py.errors import RowRefused, SettingsError, SinkUnavailable
from kstreams_py.graph.sink import Row
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import Parquet, PostgreSQL, Redis, SQLite
from kstreams_py.sinks.columns import FLOATS, TakenValues, check_rows, first_refused
from kstreams_py.sinks.manifest import DataFile, Manifest, choose_merged, decode_manifest, encode_manifest

URL = "postgresql://loader:s3cret@db.example:5433,other:5432/flights?password=s3cret"


ESCAPED = "in the user and password, write / ? # , @ as %2F %3F %23 %2C %40; elsewhere, write @ as %40"


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: SQLite("f", table="t", columns=()), "a sink needs columns: columns=(...)"),
        (lambda: SQLite("f", table="t", columns="carrier"), "columns='carrier' is a string: write ('carrier',)"),
        (lambda: SQLite("f", table="t", columns=("a", "a")), "column 'a' is declared twice: leave one out"),
        (
            lambda: SQLite("f", table="t", columns=("delivery_hash",)),
            "column 'delivery_hash' is the sink's own: choose another name",
        ),
        (
            lambda: Redis("redis://cache", key="k", columns={"a": bytes}),
            "column 'a' has the type bytes, which the target does not have: choose bool or float or int or str",
        ),
        (
            lambda: Redis("redis://cache", key="k", columns={"a": cast(type, "text")}),
            (
                "column 'a' has the type 'text', not a Python type, which the target does not have: choose bool or "
                "float or int or str"
            ),
        ),
        (
            lambda: SQLite("f", table="t", columns=("a",), evidence="key"),
            "the target does not keep evidence='key': choose 'hash' or 'offsets'",
        ),
        (
            lambda: SQLite("f", table="t", columns=("a", "b", "A")),
            (
                "two of the columns (delivery_hash, a, b, A) have the same name in SQLite, which ignores "
                "case: rename one"
            ),
        ),
        (
            lambda: PostgreSQL("postgresql://db", table="é" * 32, columns=("a",)),
            (
                f"the name of a table or schema {'é' * 32!r} has 64 bytes, of which PostgreSQL keeps 63: choose a "
                "shorter name"
            ),
        ),
        (
            lambda: PostgreSQL("postgresql://db", table=f"{'x' * 64}.t"),
            (
                f"the name of a table or schema {'x' * 64!r} has 64 bytes, of which PostgreSQL keeps 63: choose a "
                "shorter name"
            ),
        ),
        (
            lambda: PostgreSQL("postgresql://db", table="s.t", columns=("a" * 64,)),
            f"the name of a column {'a' * 64!r} has 64 bytes, of which PostgreSQL keeps 63: choose a shorter name",
        ),
        (
            lambda: PostgreSQL("postgresql://db", table="s."),
            "the name of a table or schema '' is not a valid name in PostgreSQL: choose another one",
        ),
        (
            lambda: PostgreSQL("db.example/flights", table="t", columns=("a",)),
            f"PostgreSQL needs a URL such as postgresql://user:password@host:port/database: {ESCAPED}",
        ),
        (
            lambda: Redis("cache", key="k", columns=("a",)),
            f"Redis needs a URL such as redis://user:password@host:port/0: {ESCAPED}",
        ),
        (
            lambda: Parquet("d", columns=("a",)),  # type: ignore[arg-type]
            "a Parquet sink needs the types of its columns: columns={'a': str, ...}",
        ),
    ],
)
def test_declaration_that_is_not_possible_is_refused_with_the_remedy(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        declare()
    assert str(raised.value) == message


def test_names_of_63_bytes_are_those_of_postgresql() -> None:
    name = "é" * 31 + "x"
    assert PostgreSQL("postgresql://db", table=f"{name}.{name}", columns=(name,)).columns == (name,)


def test_names_of_targets_have_no_credentials() -> None:
    sinks = (
        PostgreSQL(URL, table="departed", columns=("a",)),
        Redis("redis://u:s3cret@cache", key="k", columns=("a",)),
    )
    assert [str(sink) for sink in sinks] == [
        "postgresql://db.example:5433,other:5432/flights: table departed",
        "redis://cache: keys k:*",
    ]
    assert "s3cret" not in repr(sinks)


def test_of_several_refused_rows_the_first_is_named_with_its_column() -> None:
    rows = [Row(b"", values) for values in (("a", 1.5), ("b", 2**53 + 1), (3, 1.5), ("d", "x"))]
    with pytest.raises(RowRefused) as raised:
        check_rows(rows, ("name", "share"), (TakenValues(frozenset({str})), TakenValues(FLOATS)))
    assert raised.value.index == 1
    assert str(raised.value) == (
        "column 'share' takes float, which does not hold an integer beyond 2**53: return a value that it takes"
    )


@pytest.mark.parametrize("refused", [0, 1, 6, 7, None])
def test_first_refused_row_is_found_by_halving(refused: int | None) -> None:
    rows = [Row(bytes([number]), ()) for number in range(8)]
    asked = []

    def accepts(first: Any) -> bool:
        asked.append(len(first))
        return refused is None or len(first) <= refused

    assert first_refused(rows, accepts) == refused
    assert len(asked) <= 4


def test_manifest_comes_back_as_it_was_written() -> None:
    manifest = Manifest({"carrier": "str"}).with_write("g.p", {TopicPartition("in", 1): 7}, [DataFile("a", 3)])
    manifest = manifest.with_write("g.p", {TopicPartition("in", 0): 9}, [DataFile("b", 4, "d1")])
    manifest = manifest.with_write("g.other", {TopicPartition("in", 0): 1}, [])
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.positions == {
        "g.p": {TopicPartition("in", 0): 9, TopicPartition("in", 1): 7},
        "g.other": {TopicPartition("in", 0): 1},
    }
    assert manifest.with_merge([DataFile("a", 3)], DataFile("c", 7)).files == (DataFile("b", 4, "d1"), DataFile("c", 7))


def test_manifest_of_an_earlier_release_has_no_digests_and_it_reads_this_one() -> None:
    content = json.loads(encode_manifest(Manifest({"a": "str"}, {}, (DataFile("a", 3, "d1"), DataFile("b", 4)))))
    assert (content["version"], content["files"], content["digests"]) == (1, [["a", 3], ["b", 4]], {"a": "d1"})
    del content["digests"]
    assert decode_manifest(json.dumps(content).encode()).files == (DataFile("a", 3), DataFile("b", 4))


def test_files_are_merged_once_there_are_enough_of_one_size_the_smallest_first() -> None:
    small = [DataFile(f"s{number}", 5) for number in range(16)]
    middle = [DataFile(f"m{number}", 20) for number in range(16)]
    large = [DataFile(f"l{number}", 1_000_000) for number in range(20)]
    assert choose_merged([*large, *small[:15], *middle[:15]]) == ()
    assert choose_merged([*middle, *small]) == tuple(small)
    assert choose_merged([*large, *middle, *small[:15]]) == tuple(middle)


@pytest.mark.parametrize(
    ("target", "thing"),
    [
        (PostgreSQL("postgresql://me@127.0.0.1:1/crm", table="t", columns={"a": int}), "database"),
        (Redis("redis://127.0.0.1:1", key="k", columns={"a": int}), "server"),
    ],
    ids=str,
)
def test_target_that_cannot_be_connected_to_says_what_to_do(target: PostgreSQL | Redis, thing: str) -> None:
    remedy = rf" refused\.?: start the {thing}, or correct the URL$"
    with pytest.raises(SinkUnavailable, match=remedy) as away, closing(target.open("p")) as connection:
        connection.write([], {}, {})
    assert away.value.may_return
