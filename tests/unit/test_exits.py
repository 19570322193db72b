"""What code of a user raises that is no Exception: an exit names its function and record, all else is a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import kstreams_py as ks
from kstreams_py.errors import FunctionExited
from kstreams_py.ordering.events import ID_HEADER, PREV_HEADER
from kstreams_py.records import TopicPartition
from kstreams_py.testing import TestDriver
from tests.tables import each_case

A0: Final = TopicPartition("a", 0)

Act = Callable[[Any], Any]
"""What the function does with a value: it raises for b"1", and returns all others."""


class PanicException(BaseException):
    """Raised by libraries in Rust for what they do not expect in a record; time-outs of functions are such, too."""


def new_graph(place: str = "") -> ks.Graph:
    """A graph with topics a, b, x of bytes, but for the one that a place declares."""
    graph = ks.Graph("g", errors="dead")
    for name in "abx":
        if (name, place[:8]) not in {("a", "decoding"), ("x", "encoding")}:
            graph.topic(name, value=ks.Bytes())
    return graph


def plain(graph: ks.Graph, act: Act, **options: Any) -> None:
    graph.map("a", to="x", id="p", **options)(act)


def coroutine(graph: ks.Graph, act: Act, **options: Any) -> None:
    @graph.map("a", to="x", id="p", **options)
    async def function(value: bytes) -> bytes:
        await asyncio.sleep(0)
        return act(value)  # type: ignore[no-any-return]


def generator(graph: ks.Graph, act: Act, **options: Any) -> None:
    @graph.map("a", to="x", id="p", **options)
    def function(value: bytes) -> Iterator[bytes]:
        yield act(value)


def stateful(graph: ks.Graph, act: Act) -> None:
    @graph.map("a", to="x", id="p", state=ks.State("s"))
    def function(value: bytes, state: ks.KeyedStore) -> bytes:
        state.put("k", value.decode())
        return act(value)  # type: ignore[no-any-return]


def batch(graph: ks.Graph, act: Act) -> None:
    graph.map("a", to="x", id="p", batch=True)(lambda values: [act(value) for value in values])


def join(graph: ks.Graph, act: Act) -> None:
    graph.join("a", "b", by="order", to="x", id="p")(lambda value, _: act(value))


def sink(graph: ks.Graph, act: Act) -> None:
    graph.sink("a", id="p")(act)


def ordered(graph: ks.Graph, act: Act) -> None:
    graph.ordered("a", to="x", id="p")(act)


class OddSerde:
    """Decodes or encodes by what the test says."""

    def __init__(self, act: Act, *, encodes: bool) -> None:
        self._act, self._encodes = act, encodes

    def deserialize(self, data: bytes) -> Any:
        return data if self._encodes else self._act(data)

    def serialize(self, value: Any) -> bytes:
        return self._act(value) if self._encodes else value  # type: ignore[no-any-return]


def decoding(graph: ks.Graph, act: Act, **options: Any) -> None:
    graph.map(graph.topic("a", value=OddSerde(act, encodes=False)), to="x", id="p", **options)(lambda value: value)


def encoding(graph: ks.Graph, act: Act, **options: Any) -> None:
    graph.map("a", to=graph.topic("x", value=OddSerde(act, encodes=True)), id="p", **options)(lambda value: value)


def overlapping(declare: Callable[..., None]) -> Callable[[ks.Graph, Act], None]:
    return lambda graph, act: declare(graph, act, concurrency=2)


PLACES: Final[dict[str, Callable[[ks.Graph, Act], None]]] = {
    "plain": plain,
    "coroutine": coroutine,
    "generator": generator,
    "state": stateful,
    "batch": batch,
    "join": join,
    "sink": sink,
    "ordered": ordered,
    "decoding": decoding,
    "encoding": encoding,
    "calls in threads": overlapping(plain),
    "calls on the loop": overlapping(coroutine),
    "generators in threads": overlapping(generator),
    "decoding for calls": overlapping(decoding),
    "encoding for calls": overlapping(encoding),
    "retries": lambda graph, act: plain(graph, act, retry=ks.Retry(on=Exception)),
    "retries of calls": lambda graph, act: plain(graph, act, retry=ks.Retry(on=Exception), concurrency=2),
    "exits that stop": lambda graph, act: plain(graph, act, stop_on=SystemExit),
}


def open_driver(place: str, error: Callable[[], BaseException]) -> TestDriver:
    """Three records, of which the second one raises `error()`."""

    def act(value: Any) -> Any:
        if value == b"1":
            raise error()
        return value

    graph = new_graph(place)
    PLACES[place](graph, act)
    driver = TestDriver(graph)
    for number in range(3):
        event: list[tuple[str, bytes | None]] = [(ID_HEADER, b"%d" % (number + 1))]
        event += [(PREV_HEADER, b"%d" % number)] if number else []
        driver.send("a", b"%d" % number, key=b"k", headers=event if place == "ordered" else ())
        if place == "join":
            driver.send("b", b"", key=b"k")
    return driver


@each_case("error", [lambda: SystemExit(0), lambda: SystemExit(None), lambda: SystemExit("no such option")])
@each_case("place", PLACES)
def test_exit_of_code_of_a_user_stops_the_worker_and_names_the_record(
    place: str, error: Callable[[], BaseException]
) -> None:
    with open_driver(place, error) as driver:
        with pytest.raises(FunctionExited, match=r"^p: .* ended by SystemExit: .*\(reading a\[0\]@") as raised:
            driver.run()
        first = 0 if place == "batch" else 1
        assert f"reading a[0]@{first}" in str(raised.value)
        assert "raise kstreams_py.Stop" in str(raised.value)
        assert raised.value.exit_status == 1
        values = [] if place in {"batch", "sink"} else [b"0"]
        assert (driver.values("x"), driver.dead_letters()) == (values, [])
        assert driver.committed("p").get(A0, 0) == first


@each_case("place", PLACES)
def test_interrupt_in_code_of_a_user_passes_through_and_names_the_record(place: str) -> None:
    with open_driver(place, KeyboardInterrupt) as driver, pytest.raises(KeyboardInterrupt) as raised:
        driver.run()
    (note,) = raised.value.__notes__
    assert " ended by KeyboardInterrupt" in note
    assert f"reading a[0]@{0 if place == 'batch' else 1}" in note


@each_case("error", [PanicException, asyncio.CancelledError, GeneratorExit])
@each_case("place", PLACES)
def test_other_exception_of_code_of_a_user_is_a_dead_letter(place: str, error: Callable[[], BaseException]) -> None:
    with open_driver(place, error) as driver:
        driver.run()
        failed = [0, 1, 2] if place == "batch" else [1]
        values = [] if place in {"batch", "sink"} else [b"0", b"2"]
        letters = [each.value["inputs"][0]["offset"] for each in driver.dead_letters()]
        assert (driver.values("x"), letters) == (values, failed)
        assert driver.committed("p")[A0] == 3


def test_exit_of_an_item_of_a_batch_is_that_of_its_record() -> None:
    graph = new_graph()
    exits: list[Any] = [b"0", SystemExit(0), b"2"]
    graph.map("a", to="x", id="p", batch=True)(lambda values: exits)
    with TestDriver(graph) as driver:
        for number in range(3):
            driver.send("a", b"%d" % number)
        with pytest.raises(FunctionExited, match=r"reading a\[0\]@1"):
            driver.run()
