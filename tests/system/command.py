"""Runs the command `kstreams` as a process of its own, with its whole output and its worker processes."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.harness import Cluster, await_stopped, wait_until
from tests.system.launcher import Launched
from tests.waiting import WAIT


@dataclass(frozen=True)
class Finished:
    """Exit status and output of a command that has ended."""

    status: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        """The lines that report an error to the user."""
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its kstreams settings, and with the given ones."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("KSTREAMS_")}
    return {**ours, **environment}


def kstreams(
    *arguments: object, environment: Mapping[str, str], cwd: Path | None = None, typed: str = "", limit: float = WAIT
) -> Finished:
    """Runs the command to its end; `typed` is its standard input, `limit` is in seconds."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(typed.encode())
        given.seek(0)
        streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
        process = Launched(arguments, clean_environment(environment), cwd=cwd, **streams)
        try:
            status = process.wait(limit)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return Finished(status, out.read().decode(), err.read().decode())


class RunningCommand:
    """A command that runs, with stdout and stderr in one file."""

    def __init__(self, log: Path, arguments: tuple[object, ...], environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = Launched(arguments, clean_environment(environment), stdout=out.fileno(), stderr=out.fileno())

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def await_text(self, pattern: str) -> None:
        """Waits until the output has a match of the regular expression; fails with the output if there is none."""
        deadline = time.monotonic() + WAIT
        while not re.search(pattern, self.text):
            assert self.process.poll() is None or re.search(pattern, self.text), f"the command ended:\n{self.text}"
            assert time.monotonic() < deadline, f"no {pattern!r} in:\n{self.text}"
            time.sleep(0.02)

    def send(self, signum: signal.Signals) -> None:
        """Sends a signal; returns after SIGSTOP once all threads are stopped: they run on until each has seen it."""
        self.process.send_signal(signum)
        if signum is signal.SIGSTOP:
            await_stopped(self.process.pid)

    def wait(self) -> int:
        return self.process.wait(WAIT)


@contextmanager
def command(directory: Path, *arguments: object, environment: Mapping[str, str]) -> Iterator[RunningCommand]:
    """Runs the command inside the block, and kills it afterwards if it has not ended."""
    running = RunningCommand(directory / f"command-{time.monotonic_ns()}.log", arguments, environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait(WAIT)


def is_alive(pid: int) -> bool:
    """Whether a process still runs; a zombie, which has ended and was not collected, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start_time(pid: int) -> str:
    """When a process has started, in the clock of the system; "" if it has ended. Process ids are given again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def list_children(pid: int) -> list[int]:
    """The process ids of the children that a process has not collected yet."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def await_end(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), f"the end of process {pid}")


def read_contents(cluster: Cluster, topics: Mapping[str, str]) -> dict[str, Any]:
    """All committed values of topics and, for inputs (topic to group), the group's committed offsets above 0."""
    return {
        topic: (
            cluster.values(topic),
            {p: offset for p, offset in cluster.committed(group, topic).items() if offset} if group else None,
        )
        for topic, group in topics.items()
    }


def read_checks(output: str) -> list[tuple[str, ...]]:
    """The rows of the table of `kstreams demo`: ok or WRONG, what is checked, what is expected, what is found."""
    rows = [line.split() for line in output.splitlines() if line.startswith(("ok ", "WRONG "))]
    return [(mark, " ".join(what), expected, found) for mark, *what, expected, found in rows]


def run_demo(*arguments: object, output: Path, limit: float = WAIT) -> tuple[Finished, str]:
    """Runs `kstreams demo` to its end, which must be a good one; returns it, and the log of the run."""
    done = kstreams("demo", *arguments, "--seed", 3, "--output", output, environment={}, limit=limit)
    log = (output / "run.log").read_text(encoding="utf-8", errors="replace")
    assert done.status == 0, f"{done.out}\n{done.err}\n{log[-5000:]}"
    return done, log
