"""Kafka clusters that all pytest workers of a run share.

They belong to a process of their own, `python -m tests.servers SOCKET`, which the first process of a run starts. It
starts a cluster when a test first asks for it, and ends all of them at the end of its input.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from kstreams_py.embedded import EmbeddedKafka

ADDRESS: Final = "TEST_CLUSTERS"
"""The environment variable with the path of the socket."""

NAMES: Final = ("cluster", "second cluster")

SETTINGS: Final = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings of brokers for tests, whose sessions and transactions are short."""


class Servers:
    """The process with the clusters, as the process has it that starts it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kstreams-tests-")
        path = str(Path(self._directory.name, "servers"))
        # of its own session: a Ctrl-C reaches the tests first, which end before their brokers
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it listens
        os.environ[ADDRESS] = path

    def close(self) -> float:
        """Ends all clusters; returns the CPU seconds that they have used."""
        del os.environ[ADDRESS]
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        _, status, used = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._directory.cleanup()
        return used.ru_utime + used.ru_stime


def find_bootstrap_servers(name: str) -> str:
    """The addresses of a shared cluster, which is started if it does not run yet."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        connection.sendall(name.encode() + b"\n")
        with connection.makefile() as lines:
            answer = json.loads(lines.readline())
    assert "error" not in answer, f"the shared {name} does not start: {answer['error']}"
    return str(answer["bootstrap_servers"])


class Running:
    """The clusters that run, each with its addresses or the reason why it did not start."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._answers = dict[str, dict[str, str]]()
        self._locks = {name: threading.Lock() for name in NAMES}

    def find(self, name: str) -> dict[str, str]:
        with self._locks[name]:
            if name not in self._answers:
                try:
                    kafka = self._stack.enter_context(EmbeddedKafka(settings=SETTINGS))
                    self._answers[name] = {"bootstrap_servers": kafka.bootstrap_servers}
                except Exception as error:
                    self._answers[name] = {"error": repr(error)}
            return self._answers[name]


class Question(socketserver.StreamRequestHandler):
    """A line with the name of a cluster; the answer is a line of JSON."""

    def __init__(self, running: Running, *arguments: Any) -> None:
        self._running = running
        super().__init__(*arguments)

    def handle(self) -> None:
        name = self.rfile.readline().decode().strip()
        self.wfile.write(json.dumps(self._running.find(name)).encode() + b"\n")


def main(path: str) -> None:
    """Answers questions until the end of the input."""
    with (
        ExitStack() as stack,
        socketserver.ThreadingUnixStreamServer(path, partial(Question, Running(stack))) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
