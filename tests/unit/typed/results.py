"""What a function may return where `to` is one topic: the first half is right, the second wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import Any, assert_type

import kstreams_py as ks

graph = ks.Graph("results")
raw = graph.topic("raw")
text = graph.topic("text", key=ks.String(), value=ks.String())
json = graph.topic("json", value=ks.Json())


@graph.map(raw, to=text)
def value(data: bytes) -> str:
    return data.decode()


@graph.map(raw, to=text)
def value_or_none(data: bytes) -> str | None:
    return data.decode() or None


@graph.map(raw, to=text)
def nothing(data: bytes) -> None: ...


@graph.map(raw, to=text)
def output(data: bytes) -> ks.Out[str]:
    return ks.Out(data.decode(), headers=[("a", b"b")])


@graph.map(raw, to=text)
def output_with_a_key(data: bytes) -> ks.Out[str, str] | None:
    return ks.Out(data.decode(), key="a") if data else None


@graph.map(raw, to=text)
def output_of_any_type(data: bytes) -> ks.Out:
    return ks.Out(None, key=None)


@graph.map(raw, to=text)
def value_or_tombstone(data: bytes) -> str | ks.Out[str]:
    return data.decode() if data else ks.Out(None)


@graph.map(raw, to=text)
def iterator(data: bytes) -> Iterator[str | ks.Out[str]]:
    yield data.decode()


@graph.map(raw, to=text)
def generator(data: bytes) -> Generator[str, None, None]:
    yield data.decode()


@graph.map(raw, to=text, concurrency=2)
async def coroutine(data: bytes) -> str | None:
    return data.decode()


@graph.map(raw, to=text)
async def asynchronous_generator(data: bytes) -> AsyncIterator[str]:
    yield data.decode()


@graph.map(text, to=json)
def any_value(value: str) -> dict[str, Any]:
    return {"value": value}


@graph.map("json", to="text")
def topics_by_name(value: dict[str, Any]) -> int:
    return len(value)


graph.map(raw, to=text, id="method")(bytes.decode)
graph.map(text, to=json, id="anonymous")(lambda value: value)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]


def calls() -> None:
    assert_type(value(data=b"a"), str)
    assert_type(output_with_a_key(b"a"), ks.Out[str, str] | None)
    assert_type(iterator(b"a"), Iterator[str | ks.Out[str]])
    assert_type(any_value("a"), dict[str, Any])


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], int]"  [call-overload]
def other_value(data: bytes) -> int:
    return len(data)


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], int | None]"  [call-overload]
def other_value_or_none(data: bytes) -> int | None:
    return len(data) or None


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Out[bytes, Any]]"  [call-overload]
def output_of_another_type(data: bytes) -> ks.Out[bytes]:
    return ks.Out(data)


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Out[str, int]]"  [call-overload]
def output_with_another_key(data: bytes) -> ks.Out[str, int]:
    return ks.Out(data.decode(), key=5)


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], list[str]]"  [call-overload]
def several_values(data: bytes) -> list[str]:
    return [data.decode()]


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], dict[Topic[Any, Any], str]]"  [call-overload]
def as_of_several_topics(data: bytes) -> dict[ks.Topic, str]:
    return {text: data.decode()}


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Iterator[bytes]]"  [call-overload]
def iterator_of_other_values(data: bytes) -> Iterator[bytes]:
    yield data


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Iterable[str]]"  [call-overload]
def iterable(data: bytes) -> Iterable[str]:
    yield data.decode()


@graph.map(raw, to=text, concurrency=2)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Coroutine[Any, Any, bytes]]"  [call-overload]
async def coroutine_of_another_value(data: bytes) -> bytes:
    return data


@graph.map(raw, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[int], str]"  [call-overload]
def another_argument(data: int) -> str:
    return str(data)


@graph.map(json, to=text)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[dict[str, Any]], dict[str, Any]]"  [call-overload]
def another_result_for_any_value(value: dict[str, Any]) -> dict[str, Any]:
    return value


def wrong_call() -> None:
    value(5)
    # E: Argument 1 to "value" has incompatible type "int"; expected "bytes"  [arg-type]
