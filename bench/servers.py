"""PostgreSQL and Redis for the bench and the tests: on loopback, at a free port, each in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from bench.loads import GaveUp
from kstreams_py.embedded.nodes import free_ports

SECONDS: Final = 60.0
"""The longest time until a server answers, or has ended."""


def find_program(name: str) -> str:
    """Returns the path of a program of PostgreSQL or Redis. Raises FileNotFoundError with the remedy."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True), shutil.which(name)]
    program = next(filter(None, found), None)
    if program is None:
        raise FileNotFoundError(f"{name} is missing: scripts/setup installs it, or names what to install")
    return str(program)


class Server:
    """A server process and its directory, which `close` removes.

    - `command`: returns the command line for a port and a directory.
    - `is_ready`: returns whether the server answers at a port.
    """

    def __init__(self, command: Callable[[int, Path], Sequence[str]], is_ready: Callable[[int], bool]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kstreams-server-"))
        self.port = free_ports([None])[0]
        self._command = command
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._user = "nobody" if os.getuid() == 0 else None  # PostgreSQL refuses root
        if self._user is not None:
            shutil.chown(self.directory, self._user)

    def run(self, *command: str) -> None:
        """Runs a program to its end, as the user of the server."""
        subprocess.run(command, cwd=self.directory, user=self._user, check=True, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        log_path = self.directory / "log"
        with log_path.open("ab") as log:
            command = self._command(self.port, self.directory)
            self._process = subprocess.Popen(
                command, cwd=self.directory, user=self._user, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + SECONDS
        while not self._is_ready(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise GaveUp(f"{command[0]} does not answer: {' '.join(log_path.read_text().splitlines()[-3:])}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends the server at once, with all its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL would wait for its clients at SIGTERM
            self._process.wait(SECONDS)
            self._process = None

    def crash(self) -> None:
        """Kills the process, and starts it again at its port with the files that it has written."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(SECONDS)
        self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory)


def start_postgresql(*, sync: bool) -> Server:
    """Starts a PostgreSQL with the user and the database `postgres`. `sync`: whether commits reach the disk."""

    def is_ready(port: int) -> bool:
        asked = (find_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port))
        return subprocess.run(asked, check=False).returncode == 0

    def command(port: int, directory: Path) -> list[str]:
        settings = ["listen_addresses=127.0.0.1", f"fsync={'on' if sync else 'off'}"]
        options = [part for setting in settings for part in ("-c", setting)]
        return [
            find_program("postgres"),
            "-D",
            str(directory / "data"),
            "-p",
            str(port),
            "-k",
            str(directory),
            *options,
        ]

    server = Server(command, is_ready)
    data = str(server.directory / "data")
    server.run(find_program("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C")
    server.start()
    return server


def start_redis(*options: str, in_cluster: bool = False) -> Server:
    """Starts a Redis that keeps an append-only file.

    - `options`: further options of redis-server.
    - `in_cluster`: whether it is the only node of a Redis Cluster.
    """

    def is_ready(port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
                line.sendall(b"PING\r\n")
                return line.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def command(port: int, directory: Path) -> list[str]:
        program = [find_program("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory)]
        # the default, 10,000 above its port, is among the ports that the machine gives to clients
        nodes = ["--cluster-enabled", "yes", "--cluster-port", str(free_ports([None])[0])] if in_cluster else []
        return [*program, "--save", "", "--appendonly", "yes", *nodes, *options]

    server = Server(command, is_ready)
    server.start()
    return server
