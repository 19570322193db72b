"""The tutorial's files and commands in their order, as printed, except that they use the test's own broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.harness import Cluster, metadata, wait_until
from tests.unit.test_docs import tutorial_outputs, without_times
from tests.waiting import WAIT

pytestmark = pytest.mark.long  # a page of the documentation as printed; that of the quick tier is README

TUTORIAL = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
LINES = [line for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, flags=re.DOTALL) for line in block.splitlines()]


class Terminal:
    """Runs the tutorial's commands, each of which must be printed there."""

    def __init__(self, directory: Path, cluster: Cluster) -> None:
        self.directory = directory
        self.cluster = cluster
        self.environment = {
            **os.environ,
            "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "KSTREAMS_SCHEMA_DIRECTORY": str(directory / "schemas"),
        }

    def write(self, version: str = "") -> None:
        """Writes the tutorial's files: the first ones, or those of a later version."""
        for name, text in re.findall(rf"<!-- (\w+\.py){version} -->\n```python\n(.*?)```", TUTORIAL, flags=re.DOTALL):
            own = text.replace("127.0.0.1:9092", self.cluster.bootstrap_servers)
            (self.directory / name).write_text(own, encoding="utf-8")

    def words(self, line: str) -> list[str]:
        assert line in LINES or f"`{line}`" in TUTORIAL
        program, *arguments = line.split()
        return [sys.executable, *(["-m", "kstreams_py"] if program == "kstreams" else []), *arguments]

    def run(self, line: str) -> str:
        """The output of a command that ends with 0."""
        done = subprocess.run(
            self.words(line),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, line: str) -> Iterator[None]:
        """Runs a command until the end of the block, then stops it by SIGTERM; it must end with 0."""
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                self.words(line), cwd=self.directory, env=self.environment, stdout=log, stderr=log
            )
            try:
                yield
            finally:
                process.terminate()
                process.wait(60)
        assert process.returncode == 0, (self.directory / "log").read_text(encoding="utf-8")


@pytest.fixture
def terminal(tmp_path: Path, cluster: Cluster) -> Terminal:
    return Terminal(tmp_path, cluster)


def test_tutorial_runs_as_printed_from_the_graph_to_the_replay(terminal: Terminal, cluster: Cluster) -> None:
    terminal.write()
    with terminal.running("kstreams run weather.py --workers 2 --create-topics"):
        wait_until(lambda: "weather.readings" in metadata(cluster.admin).topics, "the topics are created")
        terminal.run("python send.py")
        wait_until(
            lambda: sum(cluster.committed("weather.convert", "weather.readings").values()) == 3, "three are committed"
        )
        cluster.await_markers("weather.celsius", "weather.errors")
        assert sorted(terminal.run("python read.py").splitlines()) == ['lima {"celsius":25.0}', 'oslo {"celsius":20.0}']
        for line in ("kstreams dead-letters list weather.py", "kstreams dead-letters show weather.py"):
            assert without_times(terminal.run(line)) == tutorial_outputs()[line]
    terminal.write(", mended")
    with terminal.running("kstreams run weather.py --workers 2"):
        assert terminal.run("kstreams dead-letters replay weather.py") == "1 replayed\n"
        cluster.await_markers("weather.celsius")
        expected = ['lima {"celsius":25.0}', 'oslo {"celsius":20.0}', 'turku {"celsius":20.0}']
        assert sorted(terminal.run("python read.py").splitlines()) == expected
        assert terminal.run("kstreams dead-letters replay weather.py") == "no dead letters to replay\n"
