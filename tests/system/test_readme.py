"""README's first five minutes and examples, run as printed, except that the broker listens on a port that is free."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from kstreams_py.cli.main import app
from kstreams_py.embedded.nodes import free_ports
from tests.system.command import clean_environment, command, kstreams
from tests.system.harness import Cluster, wait_until
from tests.waiting import WAIT

README = Path(__file__).parents[2] / "README.md"

COMMAND = re.compile(r"^.*<<END\n(?:.*\n)*?END\n|^.+\n", flags=re.MULTILINE)
"""A line of a shell, with the lines that it reads."""


def read_blocks() -> dict[str, str]:
    """README's Python blocks by their file names."""
    text = README.read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", text, flags=re.DOTALL))


def read_commands() -> list[str]:
    """The commands of README's first five minutes, in order."""
    section = README.read_text(encoding="utf-8").split("## The first five minutes\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return [each for block in blocks for each in COMMAND.findall(block)]


class Done(NamedTuple):
    """A command of a shell that has ended."""

    status: int
    out: str
    err: str


class Shell:
    """One bash, which is given a command at a time, in an empty directory."""

    def __init__(self, directory: Path, log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        self._count = 0
        self._bash = subprocess.Popen(["bash"], stdin=subprocess.PIPE, cwd=directory, env=environment, text=True)

    def run(self, text: str) -> Done:
        """Runs a command to its end, or until it is in the background."""
        self._count += 1
        out, err, status = (self._log / f"{self._count}.{what}" for what in ("out", "err", "status"))
        self.write(f"exec >{out} 2>{err}\n{text}\necho $? >{status}.new; mv {status}.new {status}\n")
        wait_until(lambda: status.exists() or self._bash.poll() is not None, f"the end of {text!r}")
        return Done(int(status.read_text()), out.read_text(), err.read_text())

    def write(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text)
        self._bash.stdin.flush()

    def end(self) -> None:
        """Ends the job in the background, if it still runs, and the shell."""
        self.write('[ -z "$!" ] || kill $! 2>/dev/null; wait; exit\n')
        self._bash.communicate(timeout=WAIT)


@contextmanager
def shell(directory: Path, port: int) -> Iterator[Shell]:
    """A shell that finds `kstreams`, in whose environment nothing of this user's or this test's brokers is."""
    log, empty = directory / "log", directory / "empty"
    log.mkdir()
    empty.mkdir()
    environment = {
        **clean_environment({"KSTREAMS_BOOTSTRAP_SERVERS": f"127.0.0.1:{port}"}),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(directory / "state"),
        "XDG_DATA_HOME": str(directory / "data"),
        "PYTHONUNBUFFERED": "1",
    }
    found = Shell(empty, log, environment)
    try:
        yield found
    finally:
        found.end()
        if (directory / "state" / "kstreams_py" / "broker.json").exists():
            kstreams("broker", "stop", environment=environment)


def test_first_five_minutes_of_readme_work_to_the_letter_in_one_shell(tmp_path: Path) -> None:
    (port,) = free_ports([None])
    commands = [each.replace("--port 9092", f"--port {port}") for each in read_commands()]
    assert sum(f"--port {port}" in each for each in commands) == 1
    cluster = Cluster(f"127.0.0.1:{port}")
    done: dict[str, Done] = {}
    with shell(tmp_path, port) as bash:
        # the package is installed already, beside the python that runs this test, and pip in the venv costs 6 s of CPU
        bash.run('pip() { echo "$*"; }; python3() { command python3 "$@" --without-pip; }')
        for line in commands:
            if line == "kstreams run shop.py --workers 2 --create-topics > run.log 2>&1 &\n":
                (tmp_path / "empty" / "shop.py").write_text(read_blocks()["shop.py"], encoding="utf-8")
            if line == "kstreams dead-letters show shop.py\n":
                wait_until(lambda: len(cluster.values("shop.errors")) == 1, "the dead letter is there")
            if line == "kill $!\n":
                wait_until(lambda: "order-1 10" in (tmp_path / "empty" / "run.log").read_text(), "the sink has run")
            done[line] = bash.run(line)
            assert done[line].status == 0, (line, done[line])
    by_start = {" ".join(line.split()[:3]): each for line, each in done.items()}
    assert by_start["pip install 'kstreams_py[broker]'"].out == "install kstreams_py[broker]\n"
    assert by_start["kstreams broker start"].out == f"127.0.0.1:{port}\n"
    assert by_start["kstreams send shop.orders"].err.splitlines()[-1] == "3 sent to shop.orders"
    (priced,) = map(json.loads, by_start["kstreams tail shop.priced"].out.splitlines())
    assert (priced["key"], priced["value"]) == ("order-1", {"quantity": 2, "unit_price": 5, "total": 10})
    (refused,) = map(json.loads, by_start["kstreams tail shop.refused"].out.splitlines())
    assert (refused["key"], refused["value"]) == ("order-2", {"quantity": 0, "unit_price": 5})
    letter = by_start["kstreams dead-letters show"].out
    assert "  error      KeyError: 'unit_price'\n" in letter
    assert '    key      order-3\n    value    {"quantity": 1}\n' in letter
    assert by_start["kstreams broker stop"].out == f"stopped 127.0.0.1:{port}\n"


def test_first_record_is_the_sixth_command_of_readme_at_most() -> None:
    commands = read_commands()
    (sends,) = [number for number, line in enumerate(commands, 1) if line.startswith("kstreams send ")]
    assert (commands[0].startswith("python3 -m venv"), sends) == (True, 6)


@pytest.mark.long  # a session of Spark as users have it, in a process of its own
def test_readme_example_is_read_by_spark(cluster: Cluster, tmp_path: Path) -> None:
    for name, text in read_blocks().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    environment = {
        "KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
        "KSTREAMS_SCHEMA_DIRECTORY": str(tmp_path / "schemas"),
    }
    file = tmp_path / "shop.py"
    with command(tmp_path, "run", file, "--create-topics", environment=environment) as running:
        value = '{"quantity": 2, "unit_price": 5}'
        options = ("--graph", file, "--key", "order-1", "--value", value)
        assert kstreams("send", "shop.orders", *options, environment=environment).status == 0
        wait_until(lambda: len(cluster.values("shop.priced")) == 1, "the order is priced")
        running.process.terminate()
        assert running.wait() == 0, running.text
    spark = subprocess.run(
        [sys.executable, "totals.py"],
        cwd=tmp_path,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert spark.returncode == 0, spark.stderr
    assert re.findall(r"key='(order-\d)'", spark.stdout) == ["order-1"]


def test_readme_names_only_commands_that_exist() -> None:
    text = README.read_text(encoding="utf-8")
    names = "run|send|tail|topics|graph|broker start|broker stop|broker|dead-letters show|demo flights|spark-options"
    for line in sorted(set(re.findall(rf"kstreams ({names})", text))):
        assert CliRunner().invoke(app, [*line.split(), "--help"]).exit_code == 0, line


def test_example_files_equal_the_code_blocks_of_readme() -> None:
    examples = {
        path.name: path.read_text(encoding="utf-8").split('"""\n\n', 1)[1]
        for path in (README.parent / "examples").glob("*.py")
    }
    assert examples == read_blocks()
