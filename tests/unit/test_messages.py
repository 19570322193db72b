"""Messages for mistakes in the use of the Python API: messages.txt has them, one in a line, to be read aloud."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.graph.loading import load
from kstreams_py.testing import TestDriver

OTHER = ks.Graph("other").topic("other")


class Order:
    """No serde."""


def with_function(function: Callable[..., Any], value: Any = None, **options: Any) -> Callable[[], object]:
    """Returns what runs a function on one record, into a topic of values in this serde."""

    def run() -> object:
        graph = ks.Graph("rt")
        into = graph.topic("rt.b", value=value or ks.Json())
        errors = graph.topic("rt.errors", value=ks.dead_letters())
        graph.map(graph.topic("rt.a", value=ks.Json()), to=into, errors=errors, id="f", **options)(function)
        with TestDriver(graph) as driver:
            driver.send("rt.a", {"n": 1})
            driver.run()
            (letter,) = driver.dead_letters()
            return f"{letter.value['exception_class']}: {letter.value['exception_message']}"

    return run


def two_outputs(function: Callable[..., Any]) -> Callable[[], object]:
    def run() -> object:
        graph = ks.Graph("rt")
        graph.map(graph.topic("rt.a"), to=[graph.topic("rt.b"), graph.topic("rt.c")], id="f")(function)
        with TestDriver(graph) as driver:
            driver.send("rt.a", b"1")
            driver.run()
        return None

    return run


def in_thread() -> object:
    """Runs a graph in a thread of its own; returns the message."""
    graph, raised = ks.Graph("rt"), list[Exception]()

    def run() -> None:
        try:
            ks.run(graph)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return f"{type(raised[0]).__name__}: {raised[0]}"


def without_file() -> object:
    """Starts two workers from a program on standard input."""
    program = ModuleType("__main__")
    program.__file__, vars(program)["graph"] = "<stdin>", ks.Graph("rt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", program)
        return ks.start(vars(program)["graph"], workers=2)


def with_file(line: str) -> Callable[[], object]:
    """Returns what loads a file with this line; its directory is not in the message."""

    def run() -> object:
        with TemporaryDirectory() as directory:
            file = Path(directory, "shop.py")
            file.write_text(f"import kstreams_py as ks\n{line}\n")
            try:
                return load(str(file))
            except ks.GraphError as error:
                return f"GraphError: {error}".replace(f"{directory}/", "")

    return run


def topic(**options: Any) -> Callable[[], object]:
    return lambda: ks.Graph("rt").topic("rt.a", **options)


def misspelled_pipeline() -> object:
    graph = ks.Graph("rt")
    options: Any = {"moed": "append"}
    return graph.pipeline(graph.topic("rt.a"), to=ks.Parquet("t"), id="f", **options)(lambda df: df)


def keep(value: Any, state: ks.KeyedStore[Any, Any]) -> Any:
    state.put(5, value)


MISTAKES: list[Callable[[], object]] = [
    with_function(lambda value: {1}),
    with_function(lambda value: 5, ks.String()),
    with_function(lambda value: "\ud800", ks.String()),
    with_function(lambda value: "x", ks.Bytes()),
    with_function(keep, state=ks.State("kept")),
    with_function(lambda value, state: value),
    two_outputs(lambda value: {OTHER: value}),
    two_outputs(lambda value: value),
    lambda: ks.Graph("rt").join("rt.a", "rt.b", to="rt.c"),  # type: ignore[call-overload]
    lambda: ks.Graph("rt").join("rt.a", "rt.b", by="key", to="rt.c"),  # type: ignore[call-overload]
    topic(value="json"),
    topic(value=str),
    topic(key=ks.Json),
    topic(value=Order),
    lambda: ks.Graph("rt", value=ks.Json),  # type: ignore[call-overload]
    lambda: ks.Graph("rt", key="string"),  # type: ignore[call-overload]
    lambda: ks.Graph("rt", error="rt.errors"),  # type: ignore[call-overload]
    misspelled_pipeline,
    lambda: ks.JSON,  # type: ignore[attr-defined]
    lambda: ks.SQLite,  # type: ignore[attr-defined]
    lambda: ks.start("shop.py"),  # type: ignore[arg-type]
    in_thread,
    without_file,
    lambda: load(r"C:\shop\shop.py:graph"),
    with_file("import pyspark.missing"),
    with_file("import missing_module"),
]


def test_messages_name_the_thing_and_the_remedy() -> None:
    found = []
    for act in MISTAKES:
        try:
            found.append(str(act()))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    here = re.compile(rf"{re.escape(Path(__file__).name)}:\d+")
    expected = Path(__file__).with_name("messages.txt").read_text().splitlines()
    assert [here.sub("FILE:LINE", each) for each in found] == expected
