"""What a function takes and returns with `batch=True`: lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_type

import kstreams_py as ks

graph = ks.Graph("batches")
raw = graph.topic("raw", key=ks.String())
text = graph.topic("text", value=ks.String())
more = graph.topic("more", value=ks.String())


@graph.map(raw, to=text, batch=True)
def results(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


@graph.map(raw, to=text, batch=True)
def every_kind_of_result(values: list[bytes], steps: list[ks.Step[str]]) -> list[str | ks.Out[str] | ValueError | None]:
    assert_type(steps[0].key, str)
    return [ValueError("a"), *(ks.Out(value.decode()) for value in values)]


@graph.map(raw, to=text, batch=True)
def nothing(values: Sequence[bytes]) -> None: ...


@graph.map(raw, to=text, batch=True)
async def awaited(values: list[bytes]) -> list[str | None]:
    return [value.decode() for value in values]


@graph.map(raw, to=[text, more], batch=True)
def fork(values: list[bytes]) -> list[dict[ks.Topic, str]]:
    return [{text: value.decode()} for value in values]


@graph.sink(raw, batch=True)
def store(values: list[bytes], steps: list[ks.Step[str]]) -> None: ...


def calls() -> None:
    assert_type(results([b"a"]), list[str])


@graph.map(raw, to=text, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], list[str]]"  [call-overload]
def takes_no_list(value: bytes) -> list[str]:
    return [value.decode()]


@graph.map(raw, to=text, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[str]], list[str]]"  [call-overload]
def takes_other_values(values: list[str]) -> list[str]:
    return values


@graph.map(raw, to=text, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[bytes]], int]"  [call-overload]
def returns_no_list(values: list[bytes]) -> int:
    return len(values)


@graph.map(raw, to=text, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[bytes]], list[bytes]]"  [call-overload]
def returns_other_values(values: list[bytes]) -> list[bytes]:
    return values


@graph.map(raw, to=[text, more], batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[bytes]], list[str]]"  [call-overload]
def returns_no_dicts(values: list[bytes]) -> list[str]:
    return [value.decode() for value in values]


@graph.map(raw, to=text, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[bytes], list[Step[int]]], list[str]]"  [call-overload]
def takes_steps_of_other_keys(values: list[bytes], steps: list[ks.Step[int]]) -> list[str]:
    return [value.decode() for value in values]


def wrong_calls() -> None:
    @graph.map(raw, to=text, batch=True)
    # E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[bytes]], Iterator[str]]"  [call-overload]
    def yields(values: list[bytes]) -> Iterator[str]:
        yield "a"
