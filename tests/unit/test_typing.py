"""What type checkers know of a graph: the values that a function gets, and the functions that they refuse.

mypy of `scripts/test` checks the types: an `assert_type` of another type is an error, and so is a `type: ignore` that
ignores nothing (`warn_unused_ignores` of strict mode).
"""

from __future__ import annotations

from typing import Any, assert_type

import kstreams_py as ks


class Celsius:
    """A serde of one's own: any object with these two methods."""

    def serialize(self, value: float, /) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes, /) -> float:
        return float(data)


def test_types_of_topics_reach_the_functions_and_others_are_refused() -> None:
    graph = ks.Graph("typed")
    names = graph.topic("names", value=ks.String())
    orders = graph.topic("orders", key=ks.String(), value=ks.Json())
    raw = graph.topic("raw")
    measured = graph.topic("measured", value=Celsius())
    assert_type(names, ks.Topic[bytes, str])
    assert_type(orders, ks.Topic[str, Any])
    assert_type(raw, ks.Topic[bytes, bytes])
    assert_type(measured, ks.Topic[bytes, float])

    @graph.map(names, to=raw)
    def encode(value: str) -> bytes:
        return value.encode()

    @graph.map(orders, to=raw)
    def price(order: dict[str, int], step: ks.Step) -> bytes:
        return step.delivery_hash

    @graph.sink(measured, batch=True)
    def store(values: list[float], steps: list[ks.Step]) -> None: ...

    @graph.alts("names", raw, to=orders)
    def either(value: str | bytes) -> dict[str, int]:
        return {}

    @graph.map(names, to=raw)  # type: ignore[arg-type]
    def takes_an_int(value: int) -> int:
        return value

    @graph.map(measured, to=raw, batch=True)  # type: ignore[arg-type]
    def takes_no_list(value: float) -> float:
        return value

    @graph.sink(raw)  # type: ignore[arg-type]
    def takes_text(value: str) -> None: ...

    def check_the_functions(step: ks.Step) -> None:
        assert_type(encode("a"), bytes)
        assert_type(price({}, step=step), bytes)
        store([1.0], steps=[step])
        assert_type(either(b"a"), dict[str, int])
        encode(5)  # type: ignore[arg-type]
        price({}, step=5)  # type: ignore[arg-type]
        store(["a"], steps=[step])  # type: ignore[list-item]
        either(5)  # type: ignore[arg-type]
        graph.topic("other", value=5)  # type: ignore[arg-type]
        graph.map(names, to=raw, stop_on=5)  # type: ignore[call-overload]

    ids = [processor.id for processor in graph.processors]
    assert ids == ["encode", "price", "store", "either", "takes_an_int", "takes_no_list", "takes_text"]
    assert check_the_functions.__annotations__  # for the type checker: it is not called
