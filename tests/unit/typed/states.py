"""The types of the state: `KeyedStore[K, V]` of `State(key=..., value=...)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import kstreams_py as ks


class Number:
    """A serde of one's own."""

    def serialize(self, value: int, /) -> bytes:
        return str(value).encode()

    def deserialize(self, data: bytes, /) -> int:
        return int(data)


graph = ks.Graph("states")
words = graph.topic("words", key=ks.String(), value=ks.String())
counts = graph.topic("counts", value=Number())
totals = ks.State("totals", value=Number())

assert_type(totals, ks.State[str, int])
assert_type(ks.State("a"), ks.State[str, Any])
assert_type(ks.State("a", key=Number(), value=ks.Bytes()), ks.State[int, bytes])


@graph.map(words, to=counts, state=totals)
def count(word: str, state: ks.KeyedStore[str, int]) -> int:
    assert_type(state.get(word), int | None)
    assert_type(state.range(), Iterator[tuple[str, int]])
    number = state.get(word, 0) + 1
    state.put(word, number)
    return number


@graph.map(words, to=counts, state=ks.State("keys", key=Number(), value=ks.String()))
def with_step(word: str, step: ks.Step[str], state: ks.KeyedStore[int, str]) -> int | None:
    state.put(len(word), step.key)
    return None if 5 in state else 5


@graph.map(words, to=counts, state=ks.State("any"))
def any_value(word: str, state: ks.KeyedStore[str, dict[str, int]]) -> int:
    return state.get(word, {}).get("a", 0)


@graph.map(words, to=counts, state=ks.State("untyped", value=Number()))
def any_state(word: str, state: ks.KeyedStore) -> int:
    return int(state.get(word, 0))


@graph.map(words, to=counts, batch=True, state=ks.State("batch", value=Number()))
def batch(values: list[str], state: ks.KeyedStore[str, int]) -> list[int | None]:
    return [state.get(value) for value in values]


@graph.ordered(words, to=counts, state=ks.State("ordered", value=Number()))
def apply(word: str, step: ks.Step[str], state: ks.KeyedStore[str, int]) -> int:
    return state.get(step.key, 0)


@graph.map(words, to=counts, state=ks.State("a", value=Number()))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, KeyedStore[str, str]], int]"  [call-overload]
def another_value(word: str, state: ks.KeyedStore[str, str]) -> int:
    return len(state.get(word, ""))


@graph.map(words, to=counts, state=ks.State("b", key=Number(), value=Number()))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, KeyedStore[str, int]], int]"  [call-overload]
def another_key(word: str, state: ks.KeyedStore[str, int]) -> int:
    return state.get(word, 0)


@graph.map(words, to=counts, state=ks.State("c", value=Number()))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, Step[int], KeyedStore[str, int]], int]"  [call-overload]
def another_step(word: str, step: ks.Step[int], state: ks.KeyedStore[str, int]) -> int:
    return step.key


@graph.map(words, to=counts, state=ks.State("d", value=Number()))
def wrong_uses(word: str, state: ks.KeyedStore[str, int]) -> int:
    state.put(word, "a")
    # E: Argument 2 to "put" of "KeyedStore" has incompatible type "str"; expected "int"  [arg-type]
    state.delete(5)
    # E: Argument 1 to "delete" of "KeyedStore" has incompatible type "int"; expected "str"  [arg-type]
    return state.get(word) + 1
    # E: Unsupported operand types for + ("None" and "int")  [operator]


@graph.ordered(words, to=counts, state=ks.State("e", value=Number()))
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str, KeyedStore[str, int]], str]"  [call-overload]
def another_result(word: str, state: ks.KeyedStore[str, int]) -> str:
    return word
