"""examples/ordering as a user runs it: front ends, a worker and a consumer, each a process of its own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kstreams_py.ordering import Ordering
from tests.system.command import clean_environment
from tests.system.harness import Cluster
from tests.unit.users_tests import run_tests
from tests.waiting import WAIT, wait_until

ROOT = Path(__file__).parents[2]
FLIGHTS = [["UA1545", "B6725"], ["DL461", "AA1141"]]
"""Of each front end."""


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(
            ROOT / "examples" / "ordering", tmp_path / "example", ignore=shutil.ignore_patterns("__pycache__")
        )
    )


@pytest.fixture
def running(example: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that are killed with the test."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        if process.poll() is None:
            process.kill()
        process.wait()
    print(*(path.read_text(encoding="utf-8") for path in example.glob("*.log")))  # noqa: T201 shown if the test fails


@pytest.mark.long  # in the quick tier, test_ordering.py
def test_tests_of_the_example_pass(example: Path) -> None:
    assert run_tests(example, "tests") == 1


@pytest.mark.long  # a page of the documentation as printed; that of the quick tier is README
def test_commands_of_the_document_lead_each_flight_to_the_state_of_its_front_end(
    example: Path, running: list[subprocess.Popen[bytes]], cluster: Cluster
) -> None:
    text = (ROOT / "docs" / "ordering.md").read_text(encoding="utf-8").split("## An example that runs")[1]
    commands = [line.split() for line in re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)[0].splitlines()]
    assert [command[:2] for command in commands] == [
        ["kstreams", "run"],
        ["kstreams", "order"],
        ["python", "front_end.py"],
        ["python", "front_end.py"],
    ]
    assert [command[3:] for command in commands[2:]] == FLIGHTS
    environment = clean_environment({"KSTREAMS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers})

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        program = [sys.executable] if command[0] == "python" else [sys.executable, "-m", "kstreams_py"]
        with (example / f"{len(running)}.log").open("wb") as log:
            running.append(
                subprocess.Popen(
                    [*program, *command[1:]], cwd=example, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            )
        return running[-1]

    consumer = start(commands[0])
    wait_until(
        lambda: "apply: holds" in (example / "0.log").read_text(encoding="utf-8"), "the consumer has its partitions"
    )
    worker = start(commands[1])
    ends = [start(command) for command in commands[2:]]
    assert [process.wait(WAIT) for process in ends] == [0, 0]
    with closing(Ordering(example / "events.db")) as ordering:
        expected = {name: ordering.data(name) for names in FLIGHTS for name in names}
    assert set(map(json.dumps, expected.values())) == {'{"gate": null, "bags": 81}'}

    def newest() -> dict[str, object]:
        return {m.key().decode(): json.loads(m.value()) for m in cluster.read("gates.flights")}

    wait_until(lambda: newest() == expected, "the consumer has the states of the front ends")
    for process in (worker, consumer):
        process.send_signal(signal.SIGTERM)
    assert [process.wait(WAIT) for process in (worker, consumer)] == [0, 0]
    assert cluster.read("gates.errors") == []
