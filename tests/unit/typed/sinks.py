"""What a function of a sink may return: rows for its target; anything without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, assert_type

import kstreams_py as ks
from kstreams_py.sinks import SQLite

graph = ks.Graph("sinks")
raw = graph.topic("raw")
names = graph.topic("names", key=ks.String(), value=ks.String())
table = SQLite(Path("a.sqlite"), table="names", columns=["name", "length"])


class Columns(TypedDict):
    name: str
    length: int


@graph.sink(names)
def without_a_target(name: str) -> int:
    return len(name)


@graph.sink(names, raw)
def of_two_inputs(name: str, data: bytes) -> None: ...


@graph.sink(names, to=table)
def row(name: str, step: ks.Step[str]) -> tuple[str, int] | None:
    return step.key, len(name)


@graph.sink(names, to=table)
def columns(name: str) -> dict[str, Any]:
    return {"name": name, "length": len(name)}


@graph.sink(names, to=table)
def typed_columns(name: str) -> Columns:
    return {"name": name, "length": len(name)}


@graph.sink(names, to=table)
def rows(name: str) -> list[tuple[str, int]]:
    return [(name, len(name))]


@graph.sink(names, to=table)
def yielded(name: str) -> Iterator[tuple[str, int]]:
    yield name, len(name)


@graph.sink(names, to=table, batch=True)
def batch(names: list[str]) -> list[tuple[str, int] | None]:
    return [(name, len(name)) for name in names]


def calls() -> None:
    assert_type(row("a", ks.Step((), b"")), tuple[str, int] | None)


@graph.sink(names)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[bytes], None]"  [call-overload]
def another_argument(name: bytes) -> None: ...


@graph.sink(names, to=table)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], str]"  [call-overload]
def no_row(name: str) -> str:
    return name


@graph.sink(names, to=table)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[str], list[str]]"  [call-overload]
def list_of_no_rows(name: str) -> list[str]:
    return [name]


@graph.sink(names, to=table, batch=True)
# E: No overload variant of "__call__" of "Declare" matches argument type "Callable[[list[str]], tuple[str, int]]"  [call-overload]
def one_row_of_a_batch(names: list[str]) -> tuple[str, int]:
    return names[0], len(names)


def wrong_calls() -> None:
    graph.sink(names, to=raw)
    # E: No overload variant of "sink" of "Decorators" matches argument types "Topic[str, str]", "Topic[bytes, bytes]"  [call-overload]
