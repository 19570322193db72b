"""A row that its target refuses becomes a dead letter, and all others are stored: the engine, with real targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import RowRefused, SinkUnavailable
from kstreams_py.graph.sink import Evidence, Sink
from kstreams_py.processing.intakes import Search
from kstreams_py.records import TopicPartition
from kstreams_py.sinks import postgresql_connections
from kstreams_py.testing import TestDriver
from tests.contract.targets import ParquetTarget, PostgreSQLTarget, RedisTarget, SQLiteTarget

HALF: Final = "\ud800"
"""Half of a surrogate, which no target takes."""

BAD: Final = "bad"
"""The word of which the function makes such a row."""

WORDS: Final = 32

TARGETS: Final = ("sqlite-hash", "sqlite-offsets", "postgresql-hash", "postgresql-offsets", "redis-hash", "parquet-")


@pytest.fixture(autouse=True)
def real_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """TestDriver keeps rows in memory otherwise."""
    monkeypatch.setattr(TestDriver, "_open_sink", lambda _, sink, consumer: sink.open(consumer))


def target_of(name: str, request: pytest.FixtureRequest) -> Any:
    kind, _, evidence = name.partition("-")
    if kind == "sqlite":
        return SQLiteTarget(request.getfixturevalue("tmp_path"), Evidence(evidence))
    if kind == "postgresql":
        return PostgreSQLTarget(request.getfixturevalue("postgresql"), Evidence(evidence))
    if kind == "redis":
        return RedisTarget(request.getfixturevalue("redis_server"))
    directory: Path = request.getfixturevalue("tmp_path")
    return ParquetTarget(directory)


def store(sink: Sink, words: list[str]) -> list[str]:
    """Stores each word as a row, all of them in one write at first; returns the classes of the dead letters."""
    graph = ks.Graph("g", errors="dead")
    graph.sink(graph.topic("a", value=ks.Json()), to=sink, id="p")(lambda word: (HALF if word == BAD else word,))
    with TestDriver(graph) as driver:
        for word in words:
            driver.send("a", word)
        driver.run()
        assert driver.committed("p") == {TopicPartition("a", 0): len(words)}
        return [letter.value["exception_class"] for letter in driver.dead_letters()]


def with_bad(*at: int) -> list[str]:
    return [BAD if number in at else f"w{number}" for number in range(WORDS)]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "at",
    [
        (5, 6, WORDS - 1),
        *(pytest.param((at,), marks=pytest.mark.long) for at in (0, 1, WORDS // 2, WORDS - 1)),
        pytest.param(tuple(range(WORDS)), marks=pytest.mark.long),
        pytest.param(tuple(range(0, WORDS, 2)), marks=pytest.mark.long),
    ],
    ids=["some", "first", "second", "middle", "last", "all", "each second"],
)
def test_row_that_its_target_refuses_is_a_dead_letter_and_all_others_are_stored(
    name: str, at: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    target = target_of(name, request)
    letters = store(target.declare({"word": str}), with_bad(*at))
    assert letters == ["kstreams_py.errors.RowRefused"] * len(at)
    assert sorted(target.rows()) == sorted((word,) for word in with_bad(*at) if word != BAD)


def test_mutation_that_does_not_search_for_the_refused_row_loses_its_neighbours(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "failed", lambda self, steps: True)
    with pytest.raises((AssertionError, RowRefused)):
        test_row_that_its_target_refuses_is_a_dead_letter_and_all_others_are_stored("sqlite-hash", (5, 6), request)


@pytest.mark.parametrize("evidence", list(Evidence))
def test_row_that_a_trigger_refuses_by_its_own_sqlstate_is_no_outage(
    evidence: Evidence, request: pytest.FixtureRequest
) -> None:
    target = PostgreSQLTarget(request.getfixturevalue("postgresql"), evidence)
    key = "delivery_hash bytea PRIMARY KEY, " if evidence is Evidence.HASH else ""
    target.execute(f"CREATE TABLE stored ({key}word text)")
    target.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.word = 'w7' THEN RAISE EXCEPTION 'no sevens' USING ERRCODE = 'KS001'; END IF; RETURN NEW; END $$"
    )
    target.execute("CREATE TRIGGER refuse BEFORE INSERT ON stored FOR EACH ROW EXECUTE FUNCTION refuse()")
    assert store(target.declare(("word",)), with_bad()) == ["kstreams_py.errors.RowRefused"]
    assert sorted(target.rows()) == sorted((word,) for word in with_bad() if word != "w7")


def test_mutation_that_takes_unknown_errors_for_an_outage_stores_no_row(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = vars(postgresql_connections)["_OF_SERVER"]
    monkeypatch.setattr(postgresql_connections, "_OF_SERVER", (*known, "KS"))
    with pytest.raises(SinkUnavailable, match="no sevens"):
        test_row_that_a_trigger_refuses_by_its_own_sqlstate_is_no_outage(Evidence.HASH, request)
