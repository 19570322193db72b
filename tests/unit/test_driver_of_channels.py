"""testing/driver.py with a graph of channels: sources in memory, lost acknowledgements, a crash at each request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py import sinks
from kstreams_py.errors import GraphError, Retriable, UserMistake
from kstreams_py.sources.suspects import DEATHS_MAX, REASON
from kstreams_py.testing import MemorySource, TestDriver
from tests.tables import each_case

ROWS = [(value, -value, value * 10) for value in range(6)]
"""What `branching` stores of the inputs 0 to 5."""


def chain(function: Callable[..., Any] = lambda value: (value,), **options: Any) -> ks.Graph:
    graph = ks.Graph("shop")
    rows = graph.source("rows", MemorySource(["not read here"]), timeout=60.0)
    graph.sink(rows, to=sinks.SQLite("no.db", table="t", columns={"a": int}), id="store", **options)(function)
    return graph


def branching() -> ks.Graph:
    """Two branches, one of calls that overlap, and a gather at the sink."""
    graph = ks.Graph("shop")
    rows = graph.source("rows", MemorySource())
    parts, left, right = (graph.channel(name) for name in ("parts", "left", "right"))

    @graph.map(rows, to=parts)
    def split(row: list[int]) -> Any:
        while row:  # what a function does to its value is not seen by the next attempt
            yield row.pop()

    @graph.map(parts, to=right, concurrency=2)
    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        return value * 10

    graph.map(parts, to=left, id="negate")(lambda value: -value)
    target = sinks.SQLite("no.db", table="t", columns=["a", "b", "c"])
    graph.sink(parts, left, right, to=target, id="store")(lambda *values: values)
    return graph


def loaded(slots: int = 1) -> TestDriver:
    driver = TestDriver(branching(), slots=slots)
    driver.source("rows").add([0, 1, 2], [3], [4, 5])
    return driver


def check_stored_once(driver: TestDriver) -> None:
    assert (sorted(driver.rows("store")), driver.source("rows").left) == (ROWS, [])
    assert driver.source("rows").refused == []


@pytest.mark.parametrize("slots", [1, 2])
def test_crash_at_each_request_stores_each_row_of_a_graph_of_channels_once(slots: int) -> None:
    with loaded(slots) as driver:
        driver.run()
        points = driver.crash_points()
        check_stored_once(driver)
    assert Counter(point.request for point in points if point.applied) == {
        "claim": 1, "call": 3 + 6 + 6 + 6, "connect_sink": 1, "store": 2, "ack": 2,
    }  # fmt: skip
    for point in points:
        with loaded(slots) as driver:
            driver.crash(point)
            assert driver.down == {0}
            driver.restart()
            driver.run()
            check_stored_once(driver)


def test_function_that_returns_another_row_at_the_next_attempt_is_named(caplog: pytest.LogCaptureFixture) -> None:
    attempts = Counter[float]()

    def store(value: float) -> tuple[float]:
        attempts[value] += 1
        return (attempts[value] if value == 1 else value,)

    with TestDriver(chain(store)) as driver:
        driver.source("rows").add(1, float("nan"))
        driver.crash("ack", applied=False)
        driver.restart()
        driver.run()
        assert (driver.rows("store")[0], attempts[1]) == ((1,), 2)
    (named,) = (text for text in caplog.messages if "the function" in text)
    assert named == (
        "shop.store: the function returned the row (2,) for a record whose row (1,) is already stored, which stays: "
        "after a crash, either may be the one that is kept; return the same row for the same record"
    )


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("request_name", ["claim", "ack", "store", "give_back"])
def test_request_without_an_answer_is_made_again_and_reads_nothing_twice(request_name: str, *, applied: bool) -> None:
    with TestDriver(chain()) as driver:
        driver.source("rows").add(1, 2)
        driver.cluster.faults.inject(request_name, error=Retriable("no answer"), applied=applied)
        driver.lose("ack")
        driver.run()
        assert driver.source("rows").left == [1]
        driver.expire()
        driver.run()
        (kept,) = driver.source("rows").kept.values()
    assert {key: (each.state, each.deaths) for key, each in kept.items()} == {0: ("done", 1), 1: ("done", 0)}
    assert driver.rows("store") == [(1,), (2,)]


def test_input_that_waits_for_an_attempt_does_not_expire_and_later_inputs_are_read() -> None:
    calls = Counter[int]()

    def store(value: int) -> tuple[int]:
        calls[value] += 1
        if value == 1 and calls[value] < 3:
            raise ConnectionError
        return (value,)

    with TestDriver(chain(store, retry=ks.Retry(backoff="40s..400s")), slots=2) as driver:
        driver.source("rows").add(1, 2)
        driver.run()
        assert (*driver.retrying, driver.rows("store"), driver.source("rows").left) == ("store", [(2,)], [1])
        driver.expire()  # 60 s: the attempt is due after 80
        driver.source("rows").add(3)
        driver.run()
        assert (calls, driver.rows("store")) == ({1: 1, 2: 1, 3: 1}, [(2,), (3,)])
        for _ in range(2):
            driver.advance(160)
            driver.run()
        assert (calls, driver.retrying, driver.source("rows").left) == ({1: 3, 2: 1, 3: 1}, frozenset(), [])


def test_row_that_its_target_refuses_and_input_that_kills_have_the_reason() -> None:
    with TestDriver(chain()) as driver:
        driver.source("rows").add(1, "2", 3)
        driver.run()
        reason = "store: RowRefused: column 'a' takes int, but the value is of type str: return a value that it takes"
        assert (driver.source("rows").refused, driver.rows("store")) == ([("2", reason)], [(1,), (3,)])
        driver.source("rows").add(4)
        for _ in range(DEATHS_MAX):
            driver.crash("call", applied=False)
            driver.restart()
        driver.run()
        assert (driver.source("rows").refused, driver.rows("store")) == ([("2", reason), (4, REASON)], [(1,), (3,)])


@pytest.mark.parametrize(("error", "deaths"), [(ks.Stop("enough"), 0), (KeyError("listed"), 0), (GraphError("no"), 0)])
def test_function_that_stops_the_job_takes_the_process_down_until_a_restart(error: Exception, deaths: int) -> None:
    errors = [error]

    def store(value: int) -> tuple[int]:
        if errors and value == 2:
            raise errors.pop()
        return (value,)

    with TestDriver(chain(store, stop_on=KeyError)) as driver:
        driver.source("rows").add(1, 2)
        if isinstance(error, ks.Stop):
            driver.run()
        else:
            with pytest.raises(type(error)):
                driver.run()
        assert (*driver.down, driver.source("rows").left) == (0, [2])
        driver.restart()
        driver.run()
        assert {each.deaths for each in driver.source("rows").kept["shop:rows"].values()} == {deaths}
        assert (driver.rows("store"), driver.source("rows").left) == ([(1,), (2,)], [])


def test_dead_jobs_claims_pass_to_the_other_one_after_their_lease_and_not_before() -> None:
    with TestDriver(chain(), slots=2) as driver:
        driver.source("rows").add(1)
        driver.crash("claim")
        for seconds, rows in ((0, []), (9, []), (2, [(1,)])):
            driver.advance(seconds)
            driver.run()
            assert driver.rows("store") == rows


def test_graph_of_topics_and_channels_runs_both() -> None:
    graph = chain()
    graph.map(graph.topic("in"), to=graph.topic("out"), id="copy")(lambda value: value)
    with TestDriver(graph) as driver:
        driver.send("in", b"1")
        driver.source("rows").add(7)
        driver.run()
        assert (driver.values("out"), driver.rows("store"), driver.source("rows").left) == ([b"1"], [(7,)], [])


TOLD: list[tuple[Callable[[TestDriver], object], str]] = [
    (lambda driver: driver.source("row"), "graph 'shop' has no source 'row': did you mean rows?"),
    (lambda driver: driver.source("left"), "'left' is a channel that tasks write to, not a source"),
    (lambda driver: driver.send("rows", 1), "'rows' is a source, not a topic: add inputs with `source`"),
    (lambda driver: driver.values("left"), "'left' is a channel, not a topic: it keeps no values"),
    (lambda driver: driver.rows("split"), "'split' stores no rows: declare a target"),
    (lambda driver: driver.rows("stored"), "graph 'shop' has no processor 'stored': did you mean store?"),
    (lambda driver: driver.lose("row"), "no message 'row' can be lost: lose 'ack', or let a request fail"),
    (lambda driver: driver.crash("claim"), "the run ended before request claim 1 carried out: its requests were none"),
]


@each_case(("act", "told"), TOLD)
def test_mistake_with_a_graph_of_channels_is_told_with_the_remedy(
    act: Callable[[TestDriver], object], told: str
) -> None:
    with TestDriver(branching()) as driver, pytest.raises(UserMistake) as raised:
        act(driver)
    assert told in str(raised.value)


def test_graph_of_topics_has_nothing_that_expires() -> None:
    graph = ks.Graph("topics")
    graph.map(graph.topic("in"), to=graph.topic("out"), id="copy")(lambda value: value)
    with TestDriver(graph) as driver, pytest.raises(UserMistake, match=r"has no channel: advance\(seconds\) moves"):
        driver.expire()


@pytest.mark.parametrize("slots", [1, 2])
def test_tasks_that_read_and_write_topics_lose_no_record_at_any_crash_point(slots: int) -> None:
    graph = ks.Graph("shop", value=ks.Json(), errors="dead")
    parsed = graph.channel("parsed")
    graph.map(graph.topic("in"), to=parsed, id="parse")(lambda value: 10 // value)
    graph.map(parsed, to=graph.topic("out"), id="write")(lambda value: value)

    def loaded() -> TestDriver:
        driver = TestDriver(graph, slots=slots, partitions=2)
        for value in (1, 0, 5):
            driver.send("in", value, partition=value % 2)
        return driver

    with loaded() as driver:
        driver.run()
        points = driver.crash_points()
        assert (sorted(driver.values("out")), len(driver.dead_letters())) == ([2, 10], 1)
        assert {tp.partition: at for tp, at in driver.committed("in").items()} == {0: 1, 1: 2}
    assert {"consume", "commit", "produce", "call"} <= {point.request for point in points}
    for point in points:
        with loaded() as driver:
            driver.crash(point)
            driver.restart()
            driver.run()
            assert {*driver.values("out")} == {2, 10}
            assert {letter.value["processor"] for letter in driver.dead_letters()} == {"shop.parse"}
            assert {tp.partition: at for tp, at in driver.committed("in").items()} == {0: 1, 1: 2}
