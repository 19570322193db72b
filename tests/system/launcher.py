"""Runs the command `kstreams` in processes that start by a fork: the imports of the package take a second of CPU.

A process that has imported the package, `python -m tests.system.launcher FD`, forks for each request. The child has the
arguments, environment, directory and standard streams of the request, and runs what `python -m kstreams_py` runs. The
workers of a supervisor are started by the supervisor, and so by Python.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import typer.main

ROOT: Final = Path(__file__).parents[2]

REQUEST_BYTES: Final = 1 << 17

NUMBER: Final = struct.Struct("=q")


class Launched:
    """A process of the command, with the methods of subprocess.Popen that tests use."""

    def __init__(
        self,
        arguments: tuple[object, ...],
        environment: Mapping[str, str],
        module: str = "kstreams_py",
        /,
        *,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int,
        stderr: int,
    ) -> None:
        """The standard streams are file descriptors; `stdin` is the null device if it is None. Runs `module`."""
        request = [[module, *map(str, arguments)], dict(environment), str(cwd or Path.cwd())]
        self._status, status = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            _launcher().send(json.dumps(request), [null if stdin is None else stdin, stdout, stderr, status])
        finally:
            os.close(null)
            os.close(status)
        self.returncode: int | None = None
        self.pid = self._read()

    def _read(self) -> int:
        (number,) = NUMBER.unpack(os.read(self._status, NUMBER.size))
        return int(number)

    def poll(self) -> int | None:
        """The exit status, or None while the process runs; a signal that ended it is a negative number."""
        return self._poll(0.0)

    def _poll(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()  # select() takes no descriptor above 1,023, and pytest workers have many clients
            poller.register(self._status, select.POLLIN)
            if poller.poll(None if seconds is None else 1000 * seconds):
                self.returncode = self._read()
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        status = self._poll(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Launcher:
    """The process that forks, as the tests have it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.launcher", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )

    def send(self, request: str, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._channel, [request.encode()], descriptors)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _launcher() -> _Launcher:
    """The launcher of this process, which ends with it."""
    launcher = _Launcher()
    atexit.register(launcher.close)
    return launcher


def serve(channel: socket.socket) -> list[str] | None:
    """Forks for each request, and reports the process id and then the exit status of each child.

    Returns the module and the arguments in a child, and None in the launcher at the end of the requests.
    """
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = dict[int, int]()
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 1 << 10)
            while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                status = running.pop(ended[0])
                _report(status, os.waitstatus_to_exitcode(ended[1]))
                os.close(status)
        if channel.fileno() in ready:
            request, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 4)
            if not request:
                return None
            *streams, status = descriptors
            if (child := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for fd in (*descriptors, *running.values(), woken, wake):
                    os.close(fd)
                channel.close()
                return _become(*json.loads(request))
            running[child] = status
            _report(status, child)
            for stream in streams:
                os.close(stream)


def _report(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for this process
        os.write(status, NUMBER.pack(number))


def _become(arguments: list[str], environment: dict[str, str], directory: str) -> list[str]:
    """Makes of this process one that Python has started with these arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[0] = directory
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115, as long as the process
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    return arguments


if __name__ == "__main__":
    import kstreams_py.cli.main
    import kstreams_py.running.http.endpoints  # imported for a run with --http

    with warnings.catch_warnings(action="ignore"):
        import kafka.admin  # noqa: F401  # imported by most commands that ask a broker

    # typer makes the commands of functions at each call of an app, which takes a tenth of a second
    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(kstreams_py.cli.main.app)
    gc.freeze()  # what is imported is not copied by the garbage collection of a child
    if (given := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        module, *sys.argv[1:] = given
        runpy.run_module(module, run_name="__main__", alter_sys=True)
