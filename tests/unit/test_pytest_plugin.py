"""The fixtures of the pytest plugin, in a project of its own; the one of the broker is in tests/system."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

DRIVER = """
import pytest

import kstreams_py as ks

graph = ks.Graph("g")
graph.topic("in", value=ks.Json(), partitions=4)
graph.topic("out", value=ks.Json())
graph.map("in", to="out", id="double")(lambda value: 2 * value)
made = []


def test_driver_runs_the_graph(kstreams_driver):
    driver = kstreams_driver(graph, slots=2)
    made.extend([driver, kstreams_driver(graph)])
    driver.send("in", 4)
    driver.run()
    assert driver.values("out") == [8]


def test_driver_of_the_test_before_is_closed():
    assert len(made) == 2
    for driver in made:
        assert driver._workers == {}
"""

UNUSED = """
import sys


def test_nothing_is_imported():
    assert "kstreams_pytest" in sys.modules
    assert {"kstreams_py", "confluent_kafka", "pydantic"} & set(sys.modules) == set()
"""


def run_pytest(directory: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_it.py").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options, "test_it.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_project_that_does_not_use_the_plugin_imports_nothing_of_the_package(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, UNUSED, "-p", "kstreams_pytest")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_driver_fixture_makes_and_closes_drivers_and_the_plugin_is_loaded_once(tmp_path: Path) -> None:
    """pytest takes a plugin of -p and one of an entry point for the same if they have the same name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["pytest11"] == {"kstreams_pytest": "kstreams_pytest"}
    assert "kstreams_pytest" in project["tool"]["setuptools"]["py-modules"]
    done = run_pytest(tmp_path, DRIVER, "-p", "kstreams_pytest", "--trace-config")
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
    assert done.stdout.count("PLUGIN registered: <module 'kstreams_pytest'") == 1, done.stdout
