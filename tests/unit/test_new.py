"""`kstreams new`: the project that it writes is tested, linted and run; what exists is not overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kstreams_py.cli.main import app
from kstreams_py.development import project
from kstreams_py.errors import SettingsError
from kstreams_py.graph.loading import load

ROOT = Path(__file__).parents[2]


def new(name: str) -> Result:
    return CliRunner().invoke(app, ["new", name])


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # `load` adds the project's directory


def test_project_is_written_whole_and_its_own_tests_and_linters_pass(tmp_path: Path) -> None:
    done = new("billing")
    assert done.exit_code == 0, done.exception
    directory = tmp_path / "billing"
    files = sorted(path.relative_to(tmp_path).as_posix() for path in directory.rglob("*") if path.is_file())
    names = (".gitignore", "README.md", "billing.py", "pyproject.toml", "tests/test_billing.py")
    assert files == [f"billing/{name}" for name in names]
    assert sorted(done.stdout.splitlines()[:-2]) == files
    assert done.stdout.splitlines()[-1] == "next: cd billing, then the commands of README.md"
    assert [path for path in files if "shop" in (tmp_path / path).read_text(encoding="utf-8")] == []
    assert "3 passed" in run("pytest", "-W", "error", "-p", "no:cacheprovider", "-p", "kstreams_pytest", cwd=directory)
    run("ruff", "check", "--no-cache", ".", cwd=directory)
    run("ruff", "format", "--no-cache", "--check", ".", cwd=directory)
    graph = load(f"{directory / 'billing.py'}")
    graph.validate()
    assert (graph.name, sorted(graph.topics)) == (
        "billing",
        ["billing.errors", "billing.orders", "billing.priced", "billing.refused"],
    )


def test_pyproject_installs_the_module_with_extras_that_exist(tmp_path: Path) -> None:
    new("billing")
    written = tomllib.loads((tmp_path / "billing" / "pyproject.toml").read_text(encoding="utf-8"))
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (written["project"]["name"], written["tool"]["setuptools"]["py-modules"]) == ("billing", ["billing"])
    assert written["project"]["requires-python"] == ours["requires-python"]
    required = [*written["project"]["dependencies"], *written["project"]["optional-dependencies"]["dev"]]
    named = [each.partition("[")[2].rstrip("]") for each in required if each.startswith(ours["name"])]
    assert (named, set(named) <= set(ours["optional-dependencies"])) == (["metrics", "broker"], True)


def test_graph_of_a_project_is_the_example_of_readme() -> None:
    body = [
        (path.read_text(encoding="utf-8").split('"""\n\n', 1)[1])
        for path in (project.FILES / "shop.py.in", ROOT / "examples" / "shop.py")
    ]
    assert body[0] == body[1]


@pytest.mark.parametrize("name", ["Shop", "../shop", "2shop", "a-b", ""])
def test_name_that_no_module_can_have_is_refused(name: str, tmp_path: Path) -> None:
    error = new(name).exception
    assert isinstance(error, SettingsError)
    assert str(error) == f"{name!r} cannot be the name of a module: write a-z, 0-9 and _, a letter first"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "kafka", "pytest", "tests"])
def test_name_that_would_hide_a_module_is_refused(name: str, tmp_path: Path) -> None:
    error = new(name).exception
    assert str(error) == f"{name!r} is the name of a module that is there already: choose another name"
    assert list(tmp_path.iterdir()) == []


def test_directory_or_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").write_text("kept")
    for name in ("one", "two"):
        error = new(name).exception
        assert str(error) == f"{name} exists, and nothing is overwritten: choose another name, or remove it"
    assert (list((tmp_path / "one").iterdir()), (tmp_path / "two").read_text()) == ([], "kept")


def test_project_that_cannot_be_written_whole_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Path.write_text

    def full(path: Path, *arguments: str, **options: str) -> int:
        if path.name == "billing.py":
            raise OSError(28, os.strerror(28))
        return written(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    error = new("billing").exception
    assert str(error) == "billing cannot be written: No space left on device: choose another directory"
    assert list(tmp_path.iterdir()) == []
