"""graph/loading.py: graphs by module and by file, imports that fail, and the target of a graph."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

from kstreams_py.errors import GraphError, SchemaError
from kstreams_py.graph.loading import EXTRAS, load, show_command, show_reset, show_target, target_of
from kstreams_py.graph.topology import Graph
from kstreams_py.sinks import Parquet
from tests.waiting import WAIT

RESERVED = "topic name '__a' is reserved: names that start with __ are the system's own: choose another one"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; modules imported from it are removed from sys.modules after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


SOURCE = 'from kstreams_py.graph.topology import Graph\ngraph = Graph("found")\nother = 3\n'


def test_load_finds_a_graph_in_a_module_or_a_file(directory: Path) -> None:
    (directory / "module_a.py").write_text(SOURCE)
    (directory / "package").mkdir()
    (directory / "package" / "module_b.py").write_text(SOURCE)
    for target in ("module_a:graph", "module_a.py:graph", "package.module_b:graph", "package/module_b.py:graph"):
        assert load(target).name == "found"
        for name in [name for name in sys.modules if "module_" in name]:
            del sys.modules[name]


def test_graph_that_is_installed_imports_nothing_of_the_current_directory_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = directory / "site"
    installed.mkdir()
    for name in ("module_f", "module_g", "module_h"):
        (installed / f"{name}.py").write_text(SOURCE.replace("found", f"installed_{name}"))
    (installed / "module_f.py").write_text("import module_g, module_i\nfrom module_g import graph\n")
    for name in ("module_g", "module_h", "module_i"):
        (directory / f"{name}.py").write_text(SOURCE.replace("found", f"here_{name}"))
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    assert load("module_f").name == "installed_module_g"
    assert load("module_h").name == "here_module_h", "one that is here goes first"


def test_load_without_a_name_finds_the_only_graph(directory: Path) -> None:
    (directory / "module_e.py").write_text(SOURCE + "same = graph\n")
    assert [load(target).name for target in ("module_e.py", "module_e")] == ["found", "found"]


def test_load_of_a_file_ignores_a_module_of_the_same_name(directory: Path) -> None:
    (directory / "queue.py").write_text(SOURCE)
    assert load(str(directory / "queue.py") + ":graph").name == "found"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (SOURCE, "", "'' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, ":graph", "':graph' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, "place_c:", "'place_c:' names no graph: write module:graph or path/to/file.py:graph"),
        (SOURCE, "place_c:no", "'place_c' has no Graph named 'no': correct the name after the colon: it has graph"),
        (
            SOURCE,
            "place_c:other",
            "'place_c' has no Graph named 'other': correct the name after the colon: it has graph",
        ),
        (
            SOURCE,
            "place_c:grpah",
            "'place_c' has no Graph named 'grpah': correct the name after the colon: did you mean graph?",
        ),
        (
            "graph = 3\n",
            "place_c.py",
            "'place_c.py' holds no Graph: make one at its top level, such as graph = ks.Graph('shop')",
        ),
        (
            SOURCE + "second = Graph('b')\n",
            "place_c",
            "'place_c' holds several graphs: write one of place_c:graph, place_c:second",
        ),
        (
            SOURCE,
            "absent",
            "'absent' does not import: there is no module 'absent': install it, or start from the directory it is in",
        ),
        (
            SOURCE,
            "absent:graph",
            "'absent' does not import: there is no module 'absent': install it, or start from the directory it is in",
        ),
        (
            "import os\n\n1 / 0\n",
            "place_c:graph",
            "'place_c' does not import: ZeroDivisionError: division by zero ({here}/place_c.py, line 3): {remedy}",
        ),
        (
            "from kstreams_py.graph.topology import Graph\nGraph('g').topic('__a')\n",
            "place_c:g",
            f"place_c ({{here}}/place_c.py, line 2): {RESERVED}",
        ),
    ],
)
def test_load_failure_names_the_target_and_the_cause(source: str, target: str, message: str, directory: Path) -> None:
    (directory / "place_c.py").write_text(source)
    with pytest.raises(GraphError) as caught:
        load(target)
    assert str(caught.value) == message.format(
        here=directory, remedy="correct it, or start from the directory it is in"
    )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            {"place_d.py": "graph = 1\nif graph:\n    retrun graph\n"},
            "SyntaxError: invalid syntax ({here}/place_d.py, line 3): correct it\n    retrun graph\n           ^^^^^",
        ),
        (
            {"place_d.py": "import beside\n", "beside.py": "x = 1\n  y = 2\n"},
            "IndentationError: unexpected indent ({here}/beside.py, line 2): correct it\n    y = 2",
        ),
        (
            {"place_d.py": "import json\n\nexec('1 +')\n"},
            "SyntaxError: invalid syntax (<string>, line 1) ({here}/place_d.py, line 3): {remedy}",
        ),
    ],
    ids=["of the file", "of a module that it imports", "of no file"],
)
def test_syntax_error_is_shown_with_its_file_its_line_and_the_source(
    sources: dict[str, str], message: str, directory: Path
) -> None:
    for name, source in sources.items():
        (directory / name).write_text(source)
    with pytest.raises(GraphError) as caught:
        load("place_d.py")
    remedy = "correct it, or start from the directory it is in"
    assert str(caught.value) == f"'place_d.py' does not import: {message.format(here=directory, remedy=remedy)}"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shpo.py", "there is no file 'shpo.py': did you mean shop.py?"),
        ("shpo.py:graph", "there is no file 'shpo.py': did you mean shop.py?"),
        ("x/y.py", "there is no file 'x/y.py': correct the path, or start from the directory it is in"),
        ("dir.py", "'dir.py' is a directory: name a Python file in it"),
        (".", "'.' is a directory: {remedy}"),
        ("dir.py/..", "'dir.py/..' is a directory: {remedy}"),
        ("notes.txt", "'notes.txt' is neither a Python file, whose name ends in .py, nor a module: {remedy}"),
        ("my-shop", "'my-shop' is neither a Python file, whose name ends in .py, nor a module: {remedy}"),
    ],
)
def test_target_that_is_no_python_file_is_refused_by_what_it_is(target: str, message: str, directory: Path) -> None:
    (directory / "shop.py").write_text(SOURCE)
    (directory / "notes.txt").write_text("")
    (directory / "dir.py").mkdir()
    with pytest.raises(GraphError) as caught:
        load(target)
    assert str(caught.value) == message.format(
        remedy="write path/to/file.py or module, and :name if it has several graphs"
    )


def test_load_keeps_the_class_of_a_user_mistake(directory: Path) -> None:
    (directory / "place_d.py").write_text(
        "from kstreams_py.errors import SchemaError\nraise SchemaError('no such file')\n"
    )
    with pytest.raises(SchemaError, match=r"\Aplace_d.py, line 2: no such file\Z"):
        load("place_d.py:graph")


def test_target_names_the_module_global_that_holds_the_graph(directory: Path) -> None:
    graph = Graph("sought")
    with pytest.raises(GraphError) as caught:
        target_of(graph)
    assert str(caught.value) == (
        "graph 'sought' is not a global of any module: several workers could not find it: "
        "assign it at the top level of its module, or run one slot"
    )
    sys.modules["nothing_imported"] = None  # type: ignore[assignment]
    held, main = ModuleType("held.by"), ModuleType("__main__")
    main.__dict__["graph"] = graph
    sys.modules["__main__"] = main
    for file in (None, "<stdin>"):  # python -c, an interactive session and a notebook have none
        main.__file__ = file
        with pytest.raises(GraphError) as caught:
            target_of(graph)
        assert str(caught.value) == (
            "graph 'sought' is in a program without a file (standard input, python -c, an interactive session, a "
            "notebook), which the processes of several workers cannot import: write it to a file, such as sought.py, "
            "and run `kstreams run sought.py --workers 2`, or run one slot, which needs no other process"
        )
        assert show_target(graph) == "GRAPH"
    main.__file__ = "/somewhere/app.py"
    assert target_of(graph) == "/somewhere/app.py:graph"
    del main.__dict__["graph"]
    held.__dict__["it"] = graph
    sys.modules["held.by"] = held
    assert target_of(graph) == "held.by:it"


def test_graph_is_shown_as_a_command_names_it(directory: Path) -> None:
    (directory / "shown one.py").write_text(SOURCE)
    (directory / "shown_two.py").write_text(f'{SOURCE}more = Graph("more")\n')
    assert show_target(load("shown one.py")) == "'shown one.py'"
    assert show_target(load("shown_two.py:more")) == "shown_two.py:more"
    assert show_target(load("shown_two:graph")) == "shown_two:graph"
    assert show_target(Graph("nowhere")) == "GRAPH"


def test_extra_that_is_named_for_a_module_installs_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    installed = {
        extra: {re.split(r"[^\w.-]", each)[0].lower().replace("_", "-") for each in extras[extra]}
        for extra in EXTRAS.values()
    }
    brought_by = packages_distributions()
    left_out = {
        module: extra
        for module, extra in EXTRAS.items()
        if installed[extra].isdisjoint(name.lower().replace("_", "-") for name in brought_by[module])
    }
    assert left_out == {}


PROGRAM = """
import kstreams_py as ks

graph = ks.Graph("shop", errors="dead")
graph.map(graph.topic("orders"), to=graph.topic("prices"), id="price")(lambda value: value)
if __name__ == "__main__":
    ks.{function}(graph, workers={workers}, settings=ks.Settings(bootstrap_servers="nowhere.invalid:1", {limit}=500))
"""


@pytest.mark.parametrize(
    ("options", "function"),
    [(("-",), "run"), (("-",), "start"), (("-i", "-"), "run"), (("-c",), "run")],
    ids=["standard input", "started", "interactive", "-c"],
)
def test_program_without_a_file_runs_one_slot_and_says_where_several_need_a_file(
    options: tuple[str, ...], function: str
) -> None:
    said = []
    for workers in (1, 2):
        program = PROGRAM.format(function=function, workers=workers, limit="request_timeout_ms")
        words, typed = ([*options, program], "") if options == ("-c",) else (options, f"{program}\n")
        done = subprocess.run(
            [sys.executable, *words], input=typed, capture_output=True, text=True, timeout=WAIT, check=False
        )
        (line,) = (each for each in done.stderr.splitlines() if each.startswith("kstreams_py.errors."))
        said.append(line.partition(": ")[::2])
    (one, _), (several, why) = said
    assert (one, several) == ("kstreams_py.errors.BrokerUnavailable", "kstreams_py.errors.GraphError")
    assert why.startswith("graph 'shop' is in a program without a file (standard input, python -c, an interactive ")


def test_command_names_a_graph_as_a_person_types_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its directory, elsewhere, a directory that was deleted, as `python -m`, and if nobody can load it."""
    file = tmp_path / "my shop.py"
    file.write_text("import kstreams_py as ks\ngraph = ks.Graph('shop')\n", encoding="utf-8")
    graph = load(str(file))
    monkeypatch.chdir(tmp_path)
    assert show_command(graph, "recover reset", "price") == "kstreams recover reset 'my shop.py' price"
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert show_command(graph, "topics create") == "kstreams topics create '../../my shop.py'"
    elsewhere.rmdir()
    assert show_command(graph, "topics create") == f"kstreams topics create '{file}'"
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__main__")
    module.__spec__ = ModuleSpec("shop.app", None)
    vars(module)["graph"] = mine = Graph("mine")
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert show_command(mine, "topics create") == "kstreams topics create shop.app"
    assert show_command(Graph("nobody"), "recover reset", "price") == "kstreams recover reset"
    for each, shown in ((mine, "kstreams pipeline reset shop.app totals"), (Graph("no"), "kstreams pipeline reset")):
        each.pipeline(each.topic("orders"), to=Parquet("tables"), id="totals")(lambda df: df)
        assert show_reset(each.pipelines[0]) == shown
