"""The wheel and the source distribution: their content, their metadata, and what runs from them elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.system.command import read_checks

pytestmark = pytest.mark.long  # two builds, and environments that packages are installed into

ROOT = Path(__file__).parents[2]
KILLS = 2

LIMIT = 540.0
"""Seconds for one command."""


def run(*command: object, cwd: Path) -> str:
    """Runs a command without this project's tree or settings, as a new user does, and returns its output."""
    ours = ("KSTREAMS_", "PYTHON", "VIRTUAL_ENV")
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if not name.startswith(ours)} | {"PIP_USE_PEP517": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def list_files() -> list[Path]:
    """The files of this tree that git tracks, or would if they were added; those that remain."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree's sources, so that builds neither use nor leave files in the tree."""
    copy = tmp_path_factory.mktemp("tree")
    for path in list_files():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, copy / path, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """The wheel, built from the source distribution of the tree."""
    run(sys.executable, "-m", "build", "--outdir", tree / "dist", cwd=tree)
    (found,) = (tree / "dist").glob("*.whl")
    return found


def test_wheel_holds_the_package_with_its_schemas_and_nothing_else(wheel: Path, tree: Path) -> None:
    package = tree / "kstreams_py"
    expected = {f"kstreams_py/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    expected |= {f"kstreams_py/schemas/{path.name}" for path in (tree / "schemas").iterdir()}
    expected |= {"kstreams_command.py", "kstreams_pytest.py"}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        commands = archive.read(points).decode()
    assert held == expected
    pages = {f"kstreams_py/{name}" for name in ("demo/report.html", "demo/jobs/report.html", "reports/page.html")}
    assert {"kstreams_py/py.typed", "kstreams_py/schemas/flight.avsc", *pages} <= held
    assert commands.split("\n\n") == [
        "[console_scripts]\nkstreams = kstreams_command:main",
        "[pytest11]\nkstreams_pytest = kstreams_pytest\n",
    ]


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """What a package index shows of the wheel; the payload is the description."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_metadata_names_the_licence_the_authors_and_the_repository(metadata: Message, wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata.get_all("Project-URL") == [f"{name}, {url}" for name, url in project["urls"].items()]
    assert (metadata["Author"], metadata["License-Expression"]) == ("The kstreams_py authors", "Apache-2.0")
    assert metadata.get_all("License-File") == ["LICENSE"]
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_description_is_the_readme_with_links_that_work_outside_of_the_repository(metadata: Message) -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    description = metadata.get_payload()
    assert isinstance(description, str)
    targets = re.findall(r"\]\(([^)]*)\)", description)
    local = [target for target in targets if target.startswith(f"{source}/")]
    assert [t for t in targets if not t.startswith("https://")] == []
    named = [target.partition("/main/")[2].partition("#")[0] for target in local]
    assert len(named) > 3
    assert [name for name in named if not (ROOT / name).exists()] == []
    plain = re.compile(rf"\]\((?:{re.escape(source)}/(?:blob|raw)/main/)?")
    assert plain.sub("](", description).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_twine_finds_no_fault(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *wheel.parent.iterdir(), cwd=tmp_path)


def test_source_distribution_holds_every_file_and_its_tests_run(wheel: Path, tmp_path: Path) -> None:
    """Here those tests that read files of the tree; all unit tests are run from it by scripts/test-pythons."""
    (archive,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in 3.11.2
        opened.extractall(tmp_path, **options)
    (unpacked,) = tmp_path.iterdir()
    files = {path.as_posix() for path in list_files() if path != Path("kstreams_py/schemas")}
    assert files - {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*")} == set()
    tests = ("tests/unit/test_docs.py", "tests/unit/test_exit_statuses.py", "tests/unit/test_deploy.py")
    assert " passed" in run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, cwd=unpacked)


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Path]:
    """An empty virtual environment, deleted afterwards: PySpark makes it as large as all other files together."""
    venv = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    yield venv
    shutil.rmtree(venv)


def test_editable_install_shows_its_types_to_a_type_checker(tree: Path, environment: Path, tmp_path: Path) -> None:
    """A type checker does not follow an import hook, as setuptools makes without the package-dir of pyproject.toml."""
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "-e", tree, cwd=tmp_path)
    file = tmp_path / "shop.py"
    file.write_text("import kstreams_py\n\nreveal_type(kstreams_py.Graph('shop'))\n")
    found = run(
        sys.executable, "-m", "mypy", "--python-executable", python, "--ignore-missing-imports", file, cwd=tmp_path
    )
    assert 'Revealed type is "kstreams_py.graph.topology.Graph[bytes, bytes]"' in found


@pytest.mark.timeout(600)  # on a new machine, PySpark is downloaded from the package registry
def test_wheel_in_an_empty_environment_runs_the_demo(
    wheel: Path, tree: Path, environment: Path, tmp_path: Path
) -> None:
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    constraints = ("-c", tree / "constraints.txt")
    run(*pip, "install", "--quiet", "--no-compile", *constraints, f"{wheel}[demo]", cwd=tmp_path)
    assert "No broken requirements found." in run(*pip, "check", cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    arguments = ("demo", "flights", "--records", 2000, "--kills", KILLS)
    output = run(environment / "bin" / "kstreams", *arguments, cwd=empty)
    assert read_checks(output) == [
        ("ok", "departures read", "2,000", "2,000"),
        ("ok", "merged from three airports", "2,000", "2,000"),
        ("ok", "departed", "1,947", "1,947"),
        ("ok", "cancelled", "51", "51"),
        ("ok", "dead letters", "2", "2"),
        ("ok", "without a tail number, so without a key", "16", "16"),
        ("ok", "lost", "0", "0"),
        ("ok", "duplicated", "0", "0"),
        ("ok", "altered", "0", "0"),
        ("ok", "out of order", "0", "0"),
        ("ok", "deliveries lost, by delivery hash", "0", "0"),
        ("ok", "deliveries repeated, by delivery hash", "0", "0"),
        ("ok", "rows in SQLite", "1,947", "1,947"),
        ("ok", "rows in SQLite that differ from the file", "0", "0"),
        ("ok", "rows of Spark's table (carrier and month)", "140", "140"),
        ("ok", "rows of Spark's table that differ from the file", "0", "0"),
    ]
    assert output.count("SIGKILL") == KILLS
    # Spark 4.0.0 leaves an empty directory where it was started (SPARK-52396).
    assert {path.name for path in empty.iterdir()} - {"artifacts"} == {"flights-demo"}
    assert (empty / "flights-demo" / "report.html").is_file()
