"""What a type checker sees: `typed/` has small programs, right ones and wrong ones, and docs/types.md a right one.

A wrong program has the errors of `mypy --strict` in comments below the line to which they belong: `# E: message`.
Pyright, in its strict mode, finds the same lines wrong, with messages of its own.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstreams_py as ks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "types.md").read_text(encoding="utf-8")

# other packages are not followed: it takes seconds, and no type of a graph is theirs
CONFIG = """
[mypy]
strict = true
follow_imports = skip
[mypy-kstreams_py.*]
follow_imports = silent
"""

MISMATCHES = {
    f"report{rule}" for rule in ("ArgumentType", "AttributeAccessIssue", "CallIssue", "OptionalOperand", "ReturnType")
}
"""Pyright's rules for a value of another type; its other rules tell what it does not know because of one."""


@pytest.fixture
def programs(tmp_path: Path) -> list[Path]:
    directory = tmp_path / "typed"
    shutil.copytree(Path(__file__).parent / "typed", directory, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL):
        (directory / name).write_text(text, encoding="utf-8")
    found = sorted(directory.iterdir())
    assert len(found) == 10
    return found


def expected_errors(program: Path) -> list[tuple[str, int, str]]:
    """The errors in the comments of a program: its name, the number of the line, the message."""
    found, line = [], 0
    for number, text in enumerate(program.read_text(encoding="utf-8").splitlines(), 1):
        if comment := re.fullmatch(r" *# E: (.+)", text):
            found.append((program.name, line, comment[1]))
        else:
            line = number
    return found


def test_mypy_takes_right_programs_and_refuses_wrong_ones_with_their_errors(
    programs: list[Path], tmp_path: Path
) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG, encoding="utf-8")
    options = ("--config-file", config, "--cache-dir", tmp_path / "cache", "--no-error-summary")
    command = [sys.executable, "-m", "mypy", *map(str, (*options, *programs))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    errors = re.findall(r"^(.+):(\d+): error: (.+)$", done.stdout, flags=re.MULTILINE)
    found = [(Path(path).name, int(line), message) for path, line, message in errors]
    expected = [error for program in programs for error in expected_errors(program)]
    assert sorted(found) == sorted(expected)
    assert len(expected) == 69


@pytest.mark.long
@pytest.mark.timeout(120)  # it follows the imports of other packages
def test_pyright_takes_right_programs_and_finds_the_lines_wrong_that_mypy_does(
    programs: list[Path], tmp_path: Path
) -> None:
    config: dict[str, Any] = {"include": ["typed"], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    # `# pyright: ignore` stands where docs/types.md says that pyright asks for more than mypy
    config["reportUnnecessaryTypeIgnoreComment"] = "error"
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--project", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["rule"]) for each in found}
    assert {rule for _, _, rule in lines if not rule.startswith("reportUn")} == MISMATCHES
    expected = {(name, line) for program in programs for name, line, _ in expected_errors(program)}
    assert {(name, line) for name, line, rule in lines if rule in MISMATCHES} == expected, done.stdout
    assert {(name, line) for name, line, _ in lines} == expected, done.stdout


def test_programs_are_graphs_that_declare_their_processors(programs: list[Path]) -> None:
    for program in programs:
        names = runpy.run_path(str(program))
        graph = names["graph"]
        assert isinstance(graph, ks.Graph)
        graph.validate()
        assert len(graph.processors) >= len(re.findall(r"^@graph\.", program.read_text(), re.MULTILINE)) > 0
