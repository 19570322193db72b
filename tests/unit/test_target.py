"""engine/target.py: graphs by module and by file, what does not import, and the way back."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from kstreams_py.engine.target import load, target_of
from kstreams_py.errors import GraphError, SchemaError
from kstreams_py.topology import Graph


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to start from; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


SOURCE = 'from kstreams_py.topology import Graph\ngraph = Graph("found")\nother = 3\n'


def test_load_finds_a_graph_in_a_module_or_a_file(place: Path) -> None:
    (place / "module_a.py").write_text(SOURCE)
    (place / "package").mkdir()
    (place / "package" / "module_b.py").write_text(SOURCE)
    for target in ("module_a:graph", "module_a.py:graph", "package.module_b:graph", "package/module_b.py:graph"):
        assert load(target).name == "found"
        for name in [name for name in sys.modules if "module_" in name]:
            del sys.modules[name]


def test_load_of_a_file_is_that_file_whatever_module_has_its_name(place: Path) -> None:
    (place / "queue.py").write_text(SOURCE)
    assert load(str(place / "queue.py") + ":graph").name == "found"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (SOURCE, "place_c", "'place_c' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, ":graph", "':graph' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, "place_c:", "'place_c:' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, "place_c:missing", "'place_c' has no Graph named 'missing': correct the name after the colon"),
        (SOURCE, "place_c:other", "'place_c' has no Graph named 'other': correct the name after the colon"),
        (
            SOURCE,
            "absent:graph",
            "'absent' does not import: ModuleNotFoundError: No module named 'absent': {remedy}",
        ),
        (
            "import os\n\n1 / 0\n",
            "place_c:graph",
            "'place_c' does not import: ZeroDivisionError: division by zero ({here}/place_c.py, line 3): {remedy}",
        ),
        (
            "from kstreams_py.topology import Graph\nGraph('g').topic('__a')\n",
            "place_c:g",
            "place_c: topic name '__a' is reserved: names that start with __ are the system's own",
        ),
    ],
)
def test_load_of_what_does_not_import_names_it_and_why(source: str, target: str, message: str, place: Path) -> None:
    (place / "place_c.py").write_text(source)
    with pytest.raises(GraphError) as caught:
        load(target)
    assert str(caught.value) == message.format(here=place, remedy="correct it, or start from the directory it is in")


def test_load_keeps_the_kind_of_a_users_mistake(place: Path) -> None:
    (place / "place_d.py").write_text("from kstreams_py.errors import SchemaError\nraise SchemaError('no such file')\n")
    with pytest.raises(SchemaError, match=r"\Aplace_d.py: no such file\Z"):
        load("place_d.py:graph")


def test_target_of_a_graph_is_where_another_process_finds_it(place: Path) -> None:
    graph = Graph("sought")
    with pytest.raises(GraphError) as caught:
        target_of(graph)
    assert str(caught.value) == ("graph 'sought' is not a global of any module: several workers could not find it")
    sys.modules["nothing_imported"] = None  # type: ignore[assignment]
    held, main = ModuleType("held.by"), ModuleType("__main__")
    main.__dict__["graph"] = graph
    sys.modules["__main__"] = main
    with pytest.raises(GraphError):
        target_of(graph)  # of an interactive session, which no process can import
    main.__file__ = "/somewhere/app.py"
    assert target_of(graph) == "/somewhere/app.py:graph"
    del main.__dict__["graph"]
    held.__dict__["it"] = graph
    sys.modules["held.by"] = held
    assert target_of(graph) == "held.by:it"
