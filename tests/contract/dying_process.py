"""Processes that kill themselves at a point of their code, and points before and after each statement of SQL."""

from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

ROOT: Final = Path(__file__).parents[2]

Run = Callable[..., bool]
"""Calls a function of a module in a process of its own; returns whether the process was killed."""


@contextmanager
def dying_processes(module: str = "tests.contract.dying_process") -> Iterator[Run]:
    """A process that forks another one for each call. `module`: imports what calls need, and calls `serve`."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    commands, answers = process.stdin, process.stdout

    def run(*call: Any) -> bool:
        content = pickle.dumps(call)
        commands.write(len(content).to_bytes(4, "big") + content)
        commands.flush()
        answer = answers.readline()
        assert answer in (b"killed\n", b"finished\n"), answer
        return answer == b"killed\n"

    try:
        yield run
    finally:
        commands.close()
        answers.close()
        process.wait(60)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Life:
    """The points of a process so far, the number of the one at which it dies, and how."""

    def __init__(self, dies_at: int | None, die: Callable[[], object] = kill_this_process) -> None:
        self.points, self.dies_at, self._die = list[str](), dies_at, die

    def step(self, point: str) -> None:
        self.points.append(point)
        if self.dies_at is not None and len(self.points) >= self.dies_at:
            self._die()

    @contextmanager
    def around(self, statement: str) -> Iterator[None]:
        self.step(f"before {statement}")
        try:
            yield
        finally:
            self.step(f"after {statement}")

    def count_statements(self) -> None:
        """Makes the time before and after each statement of this process a point, in SQLite and in PostgreSQL."""
        DyingConnection.life, wait = self, psycopg.Connection.wait
        vars(sqlite3)["connect"] = DyingConnection

        def count(connection: Any, request: Any, *given: Any, **options: Any) -> Any:
            with self.around(str(request.gi_frame.f_locals.get("query", request.__qualname__))):
                return wait(connection, request, *given, **options)

        psycopg.Connection.wait = count  # type: ignore[assignment, method-assign]


class DyingConnection(sqlite3.Connection):
    """A connection whose process may die before and after each statement, and before each row."""

    life = Life(None)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        super().execute("PRAGMA synchronous = OFF")

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        with self.life.around(statement):
            # waits for no disk, which does not die
            return super().execute(statement.replace("= FULL", "= OFF").replace("= NORMAL", "= OFF"), *parameters)

    def executemany(self, statement: str, rows: Iterable[Any]) -> sqlite3.Cursor:
        def count() -> Iterator[Any]:
            for row in rows:
                self.life.step(f"before a row of {statement}")
                yield row

        with self.life.around(statement):
            return super().executemany(statement, count())


def serve() -> None:
    """Forks a process for each call: one that starts Python takes ten times as long."""
    while content := sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big")):
        function, *arguments = pickle.loads(content)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                function(*arguments)
                status = 0
            finally:
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "finished", -signal.SIGKILL: "killed"}.get(code, f"failed with {code}"), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
