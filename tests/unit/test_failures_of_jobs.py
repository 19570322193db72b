"""Whatever users' code raises, and whatever a record holds, fails one input of a job: it never ends its worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable
from kstreams_py.formats.serdes import Json
from kstreams_py.sources.suspects import REASON
from kstreams_py.testing import MemorySource, TestDriver
from kstreams_py.testing.contents import MemoryRegistry
from kstreams_py.testing.request_faults import Crash

TABLE: Final = ks.sinks.SQLite("unused.db", table="t", columns=["a"])

RETRY: Final = ks.Retry(on=ConnectionError)


class Panic(BaseException):
    """As of libraries in Rust."""


class Uncopyable:
    def __deepcopy__(self, _: object) -> Any:
        raise Panic("no copy")


class Key(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, _: object) -> bool:
        raise Panic("no key")


def panic(*_: object) -> Any:
    raise Panic("no")


def throw(error: BaseException) -> Any:
    raise error


def yield_and_panic(_: int) -> Iterator[Any]:
    yield (1,)
    raise Panic("no more")


RAISES: dict[str, tuple[Callable[[int], Any], str]] = {
    "a panic": (panic, "Panic: no"),
    "a cancelled call": (lambda _: throw(asyncio.CancelledError()), "CancelledError: "),
    "the end of a generator": (lambda _: throw(GeneratorExit()), "GeneratorExit: "),
    "a result that cannot be copied": (lambda _: (Uncopyable(),), "Panic: no copy"),
    "a row whose key raises": (lambda _: {Key("b"): 1}, "Panic: no key"),
    "a serde that raises": (lambda _: None, "Panic: no"),
    "a group that raises": (lambda _: None, "Panic: no"),
}


@pytest.mark.parametrize(
    "options",
    [{}, {"retry": RETRY}, {"concurrency": 2}, {"retry": RETRY, "concurrency": 2}],
    ids=lambda options: " and ".join(options) or "plain",
)
@pytest.mark.parametrize("case", RAISES)
def test_whatever_a_function_or_a_row_raises_fails_its_input_and_no_other(case: str, options: Any) -> None:
    function, error = RAISES[case]
    graph = ks.Graph("shop")
    rows = graph.source("rows", MemorySource())
    if "group" in case:
        grouped = graph.channel("grouped", group_by=lambda value: panic() if value == 2 else value)
        graph.map(rows, to=grouped, id="first")(lambda value: value)
        rows, options = grouped, {"concurrency": 2, **options}
    if "serde" in case:
        topic = graph.topic("out", value=Raising())
        graph.map(rows, to=topic, id="task", **options)(lambda value: value)
    else:
        graph.sink(rows, to=TABLE, id="task", **options)(lambda value: function(value) if value == 2 else (value,))
    with TestDriver(graph) as driver:
        driver.source("rows").add(1, 2, 3)
        driver.run()
        assert (driver.source("rows").refused, driver.source("rows").left) == ([(2, f"task: {error}")], [])
        if "serde" not in case:
            assert driver.rows("task") == [(1,), (3,)]


class Raising(ks.Serde[int]):
    def serialize(self, value: int, /) -> bytes:
        return panic() if value == 2 else b"%d" % value

    def deserialize(self, data: bytes, /) -> int:
        return panic() if data == b"2" else int(data)


def test_generator_that_panics_fails_its_input_and_stores_none_of_its_rows() -> None:
    graph = ks.Graph("shop")
    graph.sink(graph.source("rows", MemorySource()), to=TABLE, id="task")(yield_and_panic)
    with TestDriver(graph) as driver:
        driver.source("rows").add(2)
        driver.run()
        assert (driver.source("rows").refused, driver.rows("task")) == ([(2, "task: Panic: no more")], [])


def job_on_topic(serde: ks.Serde[Any], function: Callable[[Any], Any], **options: Any) -> ks.Graph:
    """Returns a graph whose task calls a function with the records of a topic, and stores the results."""
    graph = ks.Graph("shop", errors="dead")
    results = graph.channel("results")
    graph.map(graph.topic("in", value=serde), to=results, id="task", **options)(function)
    graph.sink(results, to=TABLE, id="store")(lambda value: (value,))
    return graph


def offsets_of_letters(driver: TestDriver) -> list[tuple[int, str]]:
    return [(each.value["inputs"][0]["offset"], each.value["exception_message"]) for each in driver.dead_letters()]


def test_serde_that_panics_makes_a_dead_letter_of_its_record() -> None:
    with TestDriver(job_on_topic(Raising(), lambda value: value)) as driver:
        for value in (b"1", b"2", b"3"):
            driver.cluster.append("in", value)
        driver.run()
        assert (driver.rows("store"), offsets_of_letters(driver)) == ([(1,), (3,)], [(1, "no")])


DEEP: Final = b"[" * 600 + b"]" * 600


@pytest.mark.parametrize("options", [{}, {"retry": RETRY}, {"retry": RETRY, "concurrency": 2}])
def test_value_nested_too_deeply_to_be_copied_is_a_dead_letter(options: dict[str, Any]) -> None:
    graph = job_on_topic(Json(), lambda _: 1, **options)
    if not options:  # a second reader gets copies
        other = graph.channel("other")
        graph.map(graph.topic("in", value=Json()), to=other, id="reader")(lambda _: 1)
        graph.sink(other, id="end")(lambda _: None)
    with TestDriver(graph) as driver:
        for value in (b"1", DEEP, b"2"):
            driver.cluster.append("in", value)
        driver.run()
        assert [offset for offset, _ in offsets_of_letters(driver)] == [1]
        assert len(driver.rows("store")) in (2, 3), "only the reader that gets a copy fails"


def test_dead_letter_that_could_not_be_made_is_written_by_the_next_process() -> None:
    class Flaky(MemoryRegistry):
        left = 1

        def register(self, subject: str, schema: str, /) -> int:
            self.left -= 1
            if self.left >= 0:
                raise BrokerUnavailable("the schema registry does not answer")
            return super().register(subject, schema)

    graph = job_on_topic(Json(), lambda value: panic() if value == 2 else value)
    with TestDriver(graph, registry=Flaky()) as driver:
        for value in (1, 2, 3):
            driver.send("in", value)
        with pytest.raises(BrokerUnavailable):
            driver.run()
        driver.restart()
        driver.run()
        assert offsets_of_letters(driver) == [(1, "no")]
        assert {value for (value,) in driver.rows("store")} == {1, 3}


def test_suspects_of_two_sources_are_never_under_way_together() -> None:
    graph, deadly = ks.Graph("shop"), {3, 105}
    merged = graph.channel("merged")
    for name in ("left", "right"):
        graph.map(graph.source(name, MemorySource()), to=merged, id=f"of_{name}")(lambda value: value)

    @graph.sink(merged, to=TABLE)
    def store(value: int) -> tuple[int]:
        if value in deadly:
            raise Crash
        return (value,)

    with TestDriver(graph) as driver:
        driver.source("left").add(*range(10))
        driver.source("right").add(*range(100, 110))
        driver.run()
        while driver.down:
            driver.restart()
            driver.run()
        assert [driver.source(name).refused for name in ("left", "right")] == [[(3, REASON)], [(105, REASON)]]
        assert sorted(value for (value,) in driver.rows("store")) == sorted({*range(10), *range(100, 110)} - deadly)
