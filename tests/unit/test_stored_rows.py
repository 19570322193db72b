"""Sinks with a target: what is declared and refused, the rows of a step, and how each is stored once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from kstreams_py.errors import GraphError, Retriable, RowRefused, SettingsError, SinkUnavailable
from kstreams_py.formats.serdes import Json
from kstreams_py.graph import picture
from kstreams_py.graph.sink import Evidence, Row, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.metrics import WorkerState
from kstreams_py.records import Step, TopicPartition
from kstreams_py.running.http.endpoints import overview
from kstreams_py.running.http.page import draw_live
from kstreams_py.settings import Settings
from kstreams_py.sinks import SQLite
from kstreams_py.steps.rows import ROWS, Rows, Stored, row_hash, split
from kstreams_py.steps.target import ROWS_FIRST, ROWS_MAX, Target
from kstreams_py.testing import ManualClock, TestDriver
from tests.tables import each_case

A0 = TopicPartition("a", 0)
DIGEST = bytes(range(16))


@dataclass(frozen=True)
class Table:
    """The declaration of a target that TestDriver replaces by one in memory."""

    evidence: Evidence = Evidence.HASH
    columns: tuple[str, ...] = ("word", "length")

    def __repr__(self) -> str:
        return "Table()"

    def open(self, consumer: str) -> SinkConnection:
        raise AssertionError(consumer)


OFFSETS = Table(Evidence.OFFSETS)
TABLES = [Table(), OFFSETS]


def measure(word: str) -> tuple[str, int]:
    if not word.isalpha():
        raise ValueError(word)
    return word, len(word)


def declared(table: Table = OFFSETS, function: Callable[..., Any] = measure, **options: Any) -> Graph:
    """A graph with one sink, which stores words of topic a."""
    graph = Graph("g", errors="dead")
    graph.sink(graph.topic("a", value=Json()), to=table, id="p", **options)(function)
    return graph


# Declarations.


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (
            lambda graph: graph.sink("a", to="b"),
            (
                "processor 'measure': to='b' is not a target of a sink: give one of kstreams_py.sinks, or declare it "
                "with graph.map to write to a topic"
            ),
        ),
        (
            lambda graph: graph.sink("a", to=Table),
            (
                "processor 'measure': to=<class 'tests.unit.test_stored_rows.Table'> is not a target of a sink: give "
                "one of kstreams_py.sinks, or declare it with graph.map to write to a topic"
            ),
        ),
        (
            lambda graph: graph.map("a", to=Table()),
            "processor 'measure' writes to topics and to Table(): store its rows with graph.sink(to=...)",
        ),
        (
            lambda graph: graph.map("a", to=["b", Table()]),
            "processor 'measure' writes to topics and to Table(): store its rows with graph.sink(to=...)",
        ),
        (
            lambda graph: graph.sink("a", to=Table(cast(Evidence, "ofsets"))),
            "processor 'measure' stores rows in Table(): evidence 'ofsets' is not known: did you mean offsets?",
        ),
        (
            lambda graph: graph.sink("a", to=Table(columns=())),
            "processor 'measure' stores rows in Table(), which has no columns: name at least one",
        ),
        (
            lambda graph: graph.sink("a", to=Table(columns=("n", "m", "n"))),
            "processor 'measure' stores rows in Table(), which has column 'n' twice: name it once",
        ),
        (
            lambda graph: graph.sink("a", to=Table(), guarantee="at_most_once"),
            (
                "processor 'measure' is at_most_once and stores rows in Table(): a crash would lose some of them: "
                "choose exactly_once"
            ),
        ),
        (
            lambda graph: graph.sink("a", to=OFFSETS, guarantee="at_least_once"),
            (
                "processor 'measure' is at_least_once, and the offsets in Table() make it exactly_once: choose that, "
                "or evidence 'hash'"
            ),
        ),
    ],
)
def test_target_that_cannot_keep_what_is_promised_is_refused(declare: Callable[[Graph], Any], message: str) -> None:
    graph = Graph("g")
    graph.topic("a")
    graph.topic("b")
    with pytest.raises(GraphError) as caught:
        declare(graph)(measure)
    assert (str(caught.value), graph.processors) == (message, ())


def test_text_pictures_and_status_name_the_target() -> None:
    graph = declared()
    assert "    stores        Table(), by offsets" in graph.describe().splitlines()
    assert '    n3(["Table()"]):::target' in picture.mermaid(graph).splitlines()
    assert "<title>p \N{RIGHTWARDS ARROW} Table()</title>" in picture.svg(graph)
    box = '<g class="target" data-target="Table()"><title>Table(): word, length</title>'
    assert box in draw_live(graph, upright=False).svg
    (shown,) = overview(graph, None, 0.0, still=(), unready=())["graph"]["processors"]
    assert (shown["target"], shown["outputs"]) == ("Table()", [])


# The rows of a step.


def rows_of(*results: Any) -> list[Row]:
    rows, others = split(Rows("p", ("word", "length")).of(results, DIGEST))
    assert others == []
    return rows


@pytest.mark.parametrize(
    ("results", "values"),
    [
        ([("a", 1)], [("a", 1)]),
        ([{"length": 1, "word": "a"}], [("a", 1)]),
        ([[("a", 1), None, {"word": "b", "length": 2}]], [("a", 1), ("b", 2)]),
        ([("a", 1), None, [("b", 2)]], [("a", 1), ("b", 2)]),
        ([None], []),
        ([[]], []),
    ],
)
def test_result_is_a_row_or_a_list_of_rows(results: list[Any], values: list[tuple[Any, ...]]) -> None:
    assert [row.values for row in rows_of(*results)] == values


def test_first_row_has_the_hash_of_its_step_and_each_other_one_of_its_own() -> None:
    hashes = [row.delivery_hash for row in rows_of([("a", 1)] * 1000)]
    assert hashes[0] == DIGEST
    assert len({*hashes, row_hash(bytes(16), 1)}) == 1001
    assert {len(each) for each in hashes} == {16}
    assert hashes == [row.delivery_hash for row in rows_of(*[("b", 2)] * 1000)]  # by number, whatever is in them


RETURN = "return a row, as a tuple or a dict of column to value, a list of rows, or None for no rows"


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (("a",), "processor 'p' returned a row of 1 values for columns word, length: give one for each"),
        ({"word": "a", "lenght": 1}, "processor 'p' returned a value for column 'lenght': did you mean length?"),
        ({"word": "a"}, "processor 'p' returned no value for column 'length': give one, or None"),
        ("ab", f"processor 'p' returned a str: {RETURN}"),
        (["ab", 1], f"processor 'p' returned a str in a list, which is one of rows: {RETURN}"),
        ([["a", 1]], f"processor 'p' returned a list in a list, which is one of rows: {RETURN}"),
    ],
)
def test_result_that_is_no_row_names_the_processor_and_the_remedy(result: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        rows_of(result)
    assert str(caught.value) == message


def test_rows_are_split_from_dead_letters_in_order() -> None:
    row, letter = Row(DIGEST, ("a", 1)), ("dead", b"1", None, -1, None, None, 0, None)
    outputs: list[Any] = [(ROWS, Stored(row), None, -1, None, None, 0, None), letter]
    assert split(outputs) == ([row], [letter])


# Each row once.


def generated(word: str) -> Iterator[dict[str, Any]]:
    for number in range(len(word)):
        yield {"word": word, "length": number}


async def awaited(word: str) -> tuple[str, int]:
    return word, 0


async def awaited_rows(word: str) -> AsyncIterator[tuple[str, int]]:
    for number in range(len(word)):
        yield word, number


def batched(words: list[str]) -> list[Any]:
    return [[(word, 0), (word, 1)] if len(word) > 1 else None for word in words]


def with_step(word: str, step: Step) -> tuple[str, int]:
    return word, step.offsets_read[0][2]


EACH = [("bb", 0), ("bb", 1), ("ccc", 0), ("ccc", 1), ("ccc", 2)]


@each_case("table", TABLES)
@each_case(
    ("function", "options", "rows"),
    [
        (measure, {}, [("bb", 2), ("ccc", 3)]),
        (measure, {"hash_header": False}, [("bb", 2), ("ccc", 3)]),
        (measure, {"concurrency": 4}, [("bb", 2), ("ccc", 3)]),
        (lambda word: None, {}, []),
        (with_step, {}, [("bb", 0), ("ccc", 1)]),
        (generated, {}, EACH),
        (awaited, {}, [("bb", 0), ("ccc", 0)]),
        (awaited_rows, {}, EACH),
        (batched, {"batch": True}, [("bb", 0), ("bb", 1), ("ccc", 0), ("ccc", 1)]),
    ],
)
def test_rows_of_every_kind_of_function_are_stored(
    table: Table, function: Callable[..., Any], options: dict[str, Any], rows: list[tuple[str, int]]
) -> None:
    with TestDriver(declared(table, function, **options)) as driver:
        for word in ("bb", "ccc"):
            driver.send("a", word)
        driver.run()
        assert (driver.rows("p"), driver.committed("p"), driver.dead_letters()) == (rows, {A0: 2}, [])


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("alts", [False, True])
def test_rows_of_joins_and_alts_are_stored(table: Table, alts: bool) -> None:
    graph = Graph("g")
    inputs = [graph.topic(name, value=Json()) for name in "ab"]
    graph.sink(*inputs, to=table, alts=alts, id="p")((lambda word: (word, 1)) if alts else lambda *both: both)
    with TestDriver(graph) as driver:
        driver.send("a", "x")
        driver.send("b", "y")
        driver.run()
        assert sorted(driver.rows("p")) == ([("x", 1), ("y", 1)] if alts else [("x", "y")])


@pytest.mark.parametrize(("table", "guarantee"), [*((t, "exactly_once") for t in TABLES), (Table(), "at_least_once")])
def test_crash_at_every_crash_point_stores_each_row_once(table: Table, guarantee: str) -> None:
    def driver() -> TestDriver:
        driver = TestDriver(declared(table, guarantee=guarantee))
        for word in ("bb", "1", "ccc"):
            driver.send("a", word)
        return driver

    with driver() as undisturbed:
        undisturbed.run()
        points = undisturbed.crash_points()
    assert {"store", "connect_sink"} <= {point.request for point in points}
    for point in points:
        with driver() as crashed:
            crashed.crash(point)
            crashed.restart()
            crashed.advance(60.0)
            crashed.run()
            assert (crashed.rows("p"), crashed.committed("p")[A0] >= 3) == ([("bb", 2), ("ccc", 3)], True), point
            letters = [letter.delivery_hash for letter in crashed.dead_letters()]
            assert len(set(letters)) == 1, point
            assert len(letters) == 1 or table is OFFSETS or guarantee == "at_least_once", point


def test_function_that_returns_no_row_stops_its_worker_and_stores_nothing() -> None:
    with TestDriver(declared(function=len)) as driver:
        driver.send("a", "bb")
        with pytest.raises(GraphError, match=r"processor 'p' returned an int: .*; len read a"):
            driver.run()
        assert (driver.rows("p"), driver.committed("p")) == ([], {A0: 0})


def test_rows_of_a_processor_without_a_target_are_refused() -> None:
    graph = Graph("g")
    graph.sink(graph.topic("a"), id="p")(len)
    with TestDriver(graph) as driver, pytest.raises(GraphError, match="processor 'p' stores no rows: declare a target"):
        driver.rows("p")


# A target that fails.


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("applied", [False, True])
def test_rows_wait_while_their_target_is_away_and_no_function_is_called_again(table: Table, applied: bool) -> None:
    calls: list[str] = []

    def count(word: str) -> tuple[str, int]:
        calls.append(word)
        return word, len(word)

    with TestDriver(declared(table, count)) as driver:
        driver.send("a", "bb")
        driver.step()
        (worker,) = driver._workers[0]
        driver.cluster.faults.inject("store", error=Retriable("no answer"), applied=applied)
        for nth in range(1, 6):
            driver.cluster.faults.inject("store", nth=nth, error=Retriable("no answer"), applied=False)
        seen = set[tuple[WorkerState, str]]()
        while driver.rows("p") == [] or worker.committer.busy:
            driver.step()
            seen.add((worker.state, worker.why))
        assert (WorkerState.SINK_AWAY, "Table() is away: store: no answer") in seen
        driver.run()
        assert (driver.rows("p"), driver.committed("p")) == ([("bb", 2)], {A0: 1})
        assert (worker.state, calls) == (WorkerState.RUNNING, ["bb"])


@pytest.mark.parametrize("table", TABLES)
def test_target_that_is_away_at_the_start_is_waited_for(table: Table) -> None:
    with TestDriver(declared(table)) as driver:
        for nth in range(1, 6):
            driver.cluster.faults.inject(
                "connect_sink", nth=nth, error=SinkUnavailable("locked", may_return=True), applied=False
            )
        driver.send("a", "bb")
        for _ in range(10):
            driver.step()
        driver.run()
        assert driver.rows("p") == [("bb", 2)]


@pytest.mark.parametrize("request_name", ["connect_sink", "store"])
def test_target_that_does_not_come_back_ends_the_worker_with_status_3(request_name: str) -> None:
    with TestDriver(declared()) as driver:
        driver.cluster.faults.inject(request_name, error=SinkUnavailable("t: disk full: free space"), applied=False)
        driver.send("a", "bb")
        with pytest.raises(SinkUnavailable, match="disk full: free space") as caught:
            driver.run()
        assert (caught.value.exit_status, driver.rows("p")) == (3, [])
        driver.restart()
        driver.run()
        assert driver.rows("p") == [("bb", 2)]


def test_table_with_other_columns_is_refused_before_a_function_is_called() -> None:
    calls: list[str] = []
    with TestDriver(declared(Table(), calls.append)) as driver:
        driver.cluster.faults.inject("connect_sink", error=SettingsError("it has other columns"), applied=False)
        driver.send("a", "bb")
        with pytest.raises(SettingsError, match="it has other columns"):
            driver.run()
    assert calls == []


@pytest.mark.parametrize("table", TABLES)
def test_row_that_its_target_refuses_has_a_dead_letter_and_its_neighbours_are_stored(table: Table) -> None:
    with TestDriver(declared(table), settings=Settings(commit_records=1)) as driver:
        driver.cluster.faults.inject("store", nth=2, error=RowRefused("row 'ccc': too long", 0), applied=False)
        for word in ("bb", "ccc", "d"):
            driver.send("a", word)
            driver.run()
        (letter,) = driver.dead_letters()
        assert (driver.rows("p"), letter.value["exception_class"]) == (
            [("bb", 2), ("d", 1)],
            "kstreams_py.errors.RowRefused",
        )
        assert letter.value["exception_message"] == "row 'ccc': too long"


def test_row_that_is_refused_without_a_topic_for_dead_letters_ends_the_worker() -> None:
    """The message names the record, and what is before it is stored."""
    to = SQLite("never.sqlite", table="rows", columns={"word": str, "length": int})
    graph = Graph("g")
    graph.sink(graph.topic("a", value=Json()), to=to, id="p")(lambda word: (word, word if word == "bb" else len(word)))
    with TestDriver(graph) as driver:
        for word in ("d", "bb", "e"):
            driver.send("a", word)
        with pytest.raises(RowRefused) as caught:
            driver.run()
        assert (caught.value.exit_status, driver.rows("p")) == (2, [("d", 1)])
    assert str(caught.value) == (
        "p: reading a[0]@1: column 'length' takes int, but the value is of type str: return a value that it takes; or "
        "declare a topic for dead letters (`errors=`), and the record becomes one: without it, its worker ends"
    )


# Offsets in the target.


@pytest.mark.parametrize(
    ("change", "level", "found"),
    [(lambda group: group.clear(), "INFO", "any"), (lambda group: group.update({A0: 3}), "WARNING", "3")],
)
def test_target_wins_over_the_offsets_of_the_group_and_the_log_tells(
    change: Callable[[Any], None], level: str, found: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with TestDriver(declared()) as driver:
        driver.send("a", "bb")
        driver.run()
        driver.crash()
        change(driver.cluster._broker.group("g.p").positions)
        for word in ("ccc", "d"):
            driver.send("a", word)
        driver.restart()
        driver.run()
        assert (driver.rows("p"), driver.committed("p")) == ([("bb", 2), ("ccc", 3), ("d", 1)], {A0: 3})
    text = f"p: continues at the offsets that its target has, not at those of its group: a[0]@1, not {found}"
    assert [(each.levelname, each.message) for each in caplog.records if "continues at" in each.message] == [
        (level, text)
    ]


def test_worker_whose_target_was_written_by_another_continues_from_there() -> None:
    with TestDriver(declared()) as driver:
        driver.send("a", "bb")
        driver.run()
        target = driver._targets["g.p"]
        ((partition, at),) = target.positions["g.p"].items()
        target.write("g.p", [Row(DIGEST, ("of", "another"))], {partition: at + 1}, {partition: at})
        for word in ("ccc", "d"):
            driver.send("a", word)
        driver.run()
        assert driver.rows("p") == [("bb", 2), ("of", "another"), ("d", 1)]


def test_offsets_are_stored_by_the_id_of_the_topic() -> None:
    with TestDriver(declared()) as driver:
        driver.send("a", "bb")
        driver.run()
        topic_id = driver.cluster.topics(["a"])["a"].topic_id
        assert driver._targets["g.p"].positions == {"g.p": {TopicPartition(f"a@{topic_id}", 0): 1}}


def test_offsets_of_a_topic_that_is_created_again_are_not_those_of_the_one_before() -> None:
    with TestDriver(declared()) as driver:
        for word in ("bb", "ccc"):
            driver.send("a", word)
        driver.run()
        driver.crash()
        driver.cluster.faults.delete_topic("a")
        driver.cluster.create_topics([("a", 1, -1, {})])
        for word in ("d", "ee", "f"):
            driver.send("a", word)
        driver.restart()
        driver.run()
        assert driver.rows("p") == [("bb", 2), ("ccc", 3), ("d", 1), ("ee", 2), ("f", 1)]


# How much is written at once.


class Slow:
    """A connection that takes a while for each row."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds

    def write(self, rows: list[Row], *_: object) -> int:
        self.clock.advance(self.seconds * len(rows))
        return len(rows)


@pytest.mark.parametrize(
    ("seconds", "rows_max"),
    [(0.0, 4 * ROWS_FIRST), (0.0001, 4 * ROWS_FIRST), (0.0005, 2 * ROWS_FIRST), (0.1, 10), (10.0, 1)],
)
def test_writes_are_as_large_as_the_target_is_fast(seconds: float, rows_max: int) -> None:
    clock = ManualClock()
    connection: Any = Slow(clock, seconds)
    target = Target(Table(), "g.p", {}, lambda *_: connection, clock)
    target.hold([Row(DIGEST, ("a", 1))] * 500, 0)
    target.store({}, {})
    assert target.rows_max == rows_max
    for _ in range(10):
        target.hold([Row(DIGEST, ("a", 1))] * 500, 0)
        target.store({}, {})
    assert target.rows_max == (ROWS_MAX if seconds == 0.0 else min(ROWS_MAX, max(1, round(1 / (seconds or 1)))))


def test_many_rows_are_committed_before_the_interval_is_over() -> None:
    settings = Settings(commit_interval_ms=9_000)
    with TestDriver(declared(function=lambda word: [(word, 1)] * ROWS_FIRST), settings=settings) as driver:
        driver.send("a", "bb")
        driver.step()
        driver.step()  # the first joins
        assert len(driver.rows("p")) == ROWS_FIRST


def test_rows_are_counted_as_written() -> None:
    with TestDriver(declared()) as driver:
        for word in ("bb", "1", "ccc"):
            driver.send("a", word)
        driver.run()
        counters = driver._workers[0][0].counters
        assert (counters.records_in, counters.records_out, counters.dead_letters) == (3, 2, 1)
        (letter,) = driver.cluster.records("dead")
        assert counters.bytes_out == len("bb") + len("ccc") + 2 * 8 + len(letter.value() or b"")
