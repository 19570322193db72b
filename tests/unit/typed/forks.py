"""What a function may return where `to` is a list of topics: a dict of topic to value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, assert_type

import kstreams_py as ks

graph = ks.Graph("forks")
raw = graph.topic("raw")
good = graph.topic("good", value=ks.String())
bad = graph.topic("bad", value=ks.String())
data = graph.topic("data", value=ks.Bytes())
json = graph.topic("json", value=ks.Json())


@graph.map(raw, to=[good, bad])
def by_topic(value: bytes) -> dict[ks.Topic[bytes, str], str]:
    return {good: value.decode()}


@graph.map(raw, to=[good, bad])
def by_any_topic(value: bytes) -> dict[ks.Topic, str | ks.Out[str] | None] | None:
    return {good: value.decode(), bad: ks.Out(None)} if value else None


@graph.map(raw, to=["good", "bad"])
def by_name(value: bytes) -> Mapping[str, str]:
    return {"good": value.decode()}


@graph.map(raw, to=[good, data])
def topics_of_two_types(value: bytes) -> dict[ks.Topic, str | bytes]:
    return {good: value.decode(), data: value}


@graph.map(raw, to=[good, data])
def topics_by_their_types(value: bytes) -> dict[ks.Topic[bytes, str] | ks.Topic[bytes, bytes], str | bytes]:
    return {data: value}


@graph.map(raw, to=[good, bad])
def topics_and_names(value: bytes) -> dict[ks.Topic | str, str]:
    return {good: value.decode(), "bad": value.decode()}


@graph.map(raw, to=(good, json))
def topics_of_any_value(value: bytes) -> dict[ks.Topic, Any]:
    return {json: {"value": value.decode()}}


@graph.map(raw, to=[good, bad])
def yielded(value: bytes) -> Iterator[dict[ks.Topic, str]]:
    yield {good: value.decode()}


@graph.map(raw, to=[good, bad], concurrency=2)
async def awaited(value: bytes) -> dict[ks.Topic, str]:
    return {good: value.decode()}


def calls() -> None:
    assert_type(by_topic(b"a"), dict[ks.Topic[bytes, str], str])


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], str]"  [call-overload]
def no_dict(value: bytes) -> str:
    return value.decode()


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], tuple[Topic[bytes, str], str]]"  [call-overload]
def pair(value: bytes) -> tuple[ks.Topic[bytes, str], str]:
    return good, value.decode()


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], dict[int, str]]"  [call-overload]
def no_topics(value: bytes) -> dict[int, str]:
    return {0: value.decode()}


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], dict[Topic[Any, Any], bytes]]"  [call-overload]
def other_values(value: bytes) -> dict[ks.Topic, bytes]:
    return {good: value}


@graph.map(raw, to=(good, data))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], dict[Topic[Any, Any], int]]"  [call-overload]
def value_of_neither(value: bytes) -> dict[ks.Topic, int]:
    return {good: len(value)}


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], list[dict[Topic[Any, Any], str]]]"  [call-overload]
def several_dicts(value: bytes) -> list[dict[ks.Topic, str]]:
    return [{good: value.decode()}]


@graph.map(raw, to=[good, bad])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], Iterator[str]]"  [call-overload]
def yields_no_dict(value: bytes) -> Iterator[str]:
    yield value.decode()


@graph.map(good, to=[data, json])
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[int], dict[Topic[Any, Any], bytes]]"  [call-overload]
def another_argument(value: int) -> dict[ks.Topic, bytes]:
    return {data: bytes(value)}
