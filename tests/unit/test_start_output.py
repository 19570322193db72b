"""spark/start_output.py: what a process prints while it starts is hidden, and shown if it does not start."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstreams_py.spark import start_output
from kstreams_py.spark.start_output import LINES, hidden_start
from tests import waiting
from tests.descriptors import OpenedDescriptors


class Started:
    """A shell that runs lines which the test sends, as Spark's Java process does."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, line: str) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{line}\necho done\n")
        self._shell.stdin.flush()
        assert self._shell.stdout.readline() == "done\n"

    def end(self) -> None:
        self._shell.communicate()


def fail_to_start(line: str, error: BaseException, started: list[Started] | None = None) -> None:
    """Raises the error while a shell starts that has run the line; `started` gets the shell, which lives on."""
    with hidden_start():
        shell = Started()
        shell.do(f"{{ {line}; }} >&2")
        if started is None:
            shell.end()
        else:
            started.append(shell)
        raise error


@pytest.fixture
def started() -> Iterator[list[Started]]:
    found: list[Started] = []
    yield found
    for each in found:
        each.end()


def test_output_of_a_start_is_hidden_and_what_follows_is_passed_on(tmp_path: Path, started: list[Started]) -> None:
    """Standard error is a file here: capfd would truncate its own while the thread writes to it."""
    shown, kept = tmp_path / "stderr", os.dup(2)
    with shown.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        with hidden_start():
            started.append(Started())
            started[0].do("echo :: loading settings :: >&2")
        os.write(2, b"ours\n")
        started[0].do("echo ERROR Executor: lost >&2; echo at once >&2")
        waiting.wait_until(lambda: "at once\n" in shown.read_text(), "it is passed on")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert shown.read_text().splitlines() == ["ours", "ERROR Executor: lost", "at once"]


def test_last_lines_of_a_start_that_fails_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no gateway"):
        fail_to_start("for i in $(seq 100); do echo line $i; done", RuntimeError("no gateway"))
    assert capfd.readouterr().err.splitlines() == [f"line {number}" for number in range(101 - LINES, 101)]


def test_start_that_fails_beside_a_process_that_lives_shows_what_it_has_printed(
    capfd: pytest.CaptureFixture[str], started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_output, "LAST_SECONDS", 0.5)
    with pytest.raises(RuntimeError):
        fail_to_start("echo Failed to find data source", RuntimeError(), started)
    assert capfd.readouterr().err == "Failed to find data source\n"


def test_interrupted_start_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail_to_start("echo line", KeyboardInterrupt())
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"


def test_start_leaves_standard_error_as_it_was_and_no_descriptor_open(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OpenedDescriptors(monkeypatch)
    for _ in range(3):
        with hidden_start():
            pass
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"
    waiting.wait_until(lambda: "output of Spark" not in {each.name for each in threading.enumerate()}, "all have ended")
    assert opened.still_open() == []


def test_nobody_who_reads_does_not_stop_the_process(started: list[Started]) -> None:
    """As with `kstreams pipeline run 2>&1 | head -1`."""
    kept = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    try:
        with hidden_start():
            started.append(Started())
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    os.close(read)
    started[0].do("seq 100000 >&2")
