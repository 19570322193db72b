"""The types of the step: that of its key is the key's type of the (first) input."""

from __future__ import annotations

from typing import Any, assert_type

import kstreams_py as ks

graph = ks.Graph("steps")
orders = graph.topic("orders", key=ks.String(), value=ks.Json())
raw = graph.topic("raw")
to = graph.topic("to", key=ks.String(), value=ks.String())


@graph.map(orders, to=to)
def key(order: dict[str, Any], step: ks.Step[str]) -> str:
    assert_type(step.key, str)
    return step.key


@graph.map(orders, to=to)
def key_or_none(order: dict[str, Any], step: ks.Step[str | None]) -> str:
    assert_type(step.key, str | None)
    return step.key or "no key"


@graph.map(orders, to=to)
def any_key(order: dict[str, Any], step: ks.Step) -> str:
    assert_type(step.key, Any)
    return f"{step.key} {step.delivery_hash.hex()}"


@graph.map("orders", to=to)
def topic_by_name(order: dict[str, Any], step: ks.Step[int]) -> str:
    return "a" * step.key


@graph.sink(raw)
def print_key(value: bytes, step: ks.Step[bytes]) -> None:
    print(step.key.decode())


@graph.map(orders, to=to)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[dict[str, Any], Step[int]], str]"  [call-overload]
def another_key(order: dict[str, Any], step: ks.Step[int]) -> str:
    return str(step.key)


@graph.map(orders, to=to)
def wrong_use_of_the_key(order: dict[str, Any], step: ks.Step[str]) -> str:
    return step.key.decode()
    # E: Returning Any from function declared to return "str"  [no-any-return]
    # E: "str" has no attribute "decode"; maybe "encode"?  [attr-defined]


@graph.map(orders, to=to)
def wrong_use_of_the_hash(order: dict[str, Any], step: ks.Step) -> str:
    return step.delivery_hash
    # E: Incompatible return value type (got "bytes", expected "str")  [return-value]


@graph.sink(raw)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes, Step[str]], None]"  [call-overload]
def another_key_in_a_sink(value: bytes, step: ks.Step[str]) -> None: ...
