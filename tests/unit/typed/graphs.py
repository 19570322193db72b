"""`Graph(key=..., value=...)`: the serdes of its topics that declare none."""

from __future__ import annotations

from typing import Any, assert_type

import kstreams_py as ks

plain = ks.Graph("plain")
assert_type(plain, ks.Graph[bytes, bytes])
assert_type(plain.topic("a"), ks.Topic[bytes, bytes])
assert_type(plain.topic("b", value=ks.String()), ks.Topic[bytes, str])

keyed = ks.Graph("keyed", key=ks.String(), errors="keyed.errors")
assert_type(keyed, ks.Graph[str, bytes])
assert_type(keyed.topic("a"), ks.Topic[str, bytes])

texts = ks.Graph("texts", value=ks.String(), guarantee="at_least_once")
assert_type(texts, ks.Graph[bytes, str])
assert_type(texts.topic("a"), ks.Topic[bytes, str])

graph = ks.Graph("graph", key=ks.String(), value=ks.Json())
orders = graph.topic("orders", partitions=4)
names = graph.topic("names", value=ks.String())
raw = graph.topic("raw", key=ks.Bytes(), value=ks.Bytes())
assert_type(graph, ks.Graph[str, Any])
assert_type(orders, ks.Topic[str, Any])
assert_type(names, ks.Topic[str, str])
assert_type(graph.topic("other", key=ks.Bytes()), ks.Topic[bytes, Any])
assert_type(raw, ks.Topic[bytes, bytes])


@graph.map(orders, to=names)
def name(order: dict[str, str], step: ks.Step[str]) -> str:
    return order.get("name", step.key)


def of_any_graph(graph: ks.Graph) -> ks.Topic:
    return graph.topic("any")


of_any_graph(plain)
of_any_graph(keyed)


@texts.map("a", to=texts.topic("b"))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], bytes]"  [call-overload]
def another_result(value: str) -> bytes:
    return value.encode()


@keyed.map(keyed.topic("b", value=ks.String()), to=keyed.topic("c"))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, Step[bytes]], bytes]"  [call-overload]
def another_key(value: str, step: ks.Step[bytes]) -> bytes:
    return step.key


def wrong_calls() -> None:
    ks.Graph("a", value=5)
    # E: No overload variant of "Graph" matches argument types "str", "int"  [call-overload]
    ks.Graph("a", key=ks.String)
    # E: No overload variant of "Graph" matches argument types "str", "type[String]"  [call-overload]
    ks.Graph("a", error="a.errors")
    # E: Unexpected keyword argument "error" for overloaded function "Graph"; did you mean "errors"?  [call-overload]
    # E: No overload variant of "Graph" matches argument types "str", "str"  [call-overload]
    graph.topic("a", value=5)
    # E: No overload variant of "topic" of "Graph" matches argument types "str", "int"  [call-overload]
    graph.map(orders, to=5)
    # E: No overload variant of "map" of "Decorators" matches argument types "Topic[str, Any]", "int"  [call-overload]
    graph.map(orders, to=names, stop_on=5)
    # E: No overload variant of "map" of "Decorators" matches argument types "Topic[str, Any]", "Topic[str, str]", "int"  [call-overload]
    graph.ordered(orders, to=names, concurrency=2)
    # E: No overload variant of "ordered" of "Decorators" matches argument types "Topic[str, Any]", "Topic[str, str]", "int"  [call-overload]
    # E: Unexpected keyword argument "concurrency" for overloaded function "ordered" of "Decorators"  [call-overload]
