"""The workers of `kstreams demo ordering`: three processes of `kstreams order`, started again after each kill."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from kstreams_py.demo import children
from kstreams_py.errors import WorkersFailed

WORKERS: Final = ("one", "two", "three")

STOP_SECONDS: Final = 30.0


class OrderWorkers:
    """Runs the workers. `pids` has their process ids, by the index of their name in WORKERS.

    - `where`: options of `kstreams order` for the store and the topic.
    - `environment`: their environment variables.
    - `log`: the file of their logs.
    - `count_processes`: returns how many processes have registered under each name.
    """

    def __init__(
        self,
        where: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        count_processes: Callable[[], Mapping[str, int]],
    ) -> None:
        self._where = where
        self._environment = environment
        self._log = log
        self._count_processes = count_processes
        self._before: dict[str, int] = {}
        """How many processes had registered under each name before the running one."""
        self._running: list[children.Child] = []
        for name in WORKERS:
            self._running.append(self._start(name))

    @property
    def pids(self) -> dict[int, int]:
        return {place: process.pid for place, process in enumerate(self._running)}

    @property
    def have_registered(self) -> bool:
        """Whether all workers have registered; a worker that is stopped before it has registered does not drain."""
        found = self._count_processes()
        return all(found.get(name, 0) > before for name, before in self._before.items())

    def look(self, killed: Collection[int] = ()) -> None:
        """Restarts the workers that have ended. Raises WorkersFailed for one whose process id is not in `killed`."""
        for place, process in enumerate(self._running):
            if process.poll() is None:
                continue
            if process.pid not in killed:
                raise failed(f"worker {WORKERS[place]}", process.returncode, self._log)
            children.end(process)
            self._running[place] = self._start(WORKERS[place])

    def stop(self) -> int:
        """Stops the workers with SIGTERM. Returns how many did not exit with status 0 within STOP_SECONDS."""
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        return sum(self._await_end(process) != 0 for process in self._running)

    def close(self) -> None:
        """Kills the workers that are still running."""
        for process in self._running:
            children.end(process)

    def _start(self, name: str) -> children.Child:
        self._before[name] = self._count_processes().get(name, 0)
        return children.start(["kstreams_py", "order", "--name", name, *self._where], self._environment, self._log)

    def _await_end(self, process: children.Child) -> int | None:
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return None


def failed(what: str, status: int, log: Path) -> WorkersFailed:
    """Returns the error for a process that has ended by itself."""
    return WorkersFailed(f"{what} ended with status {status}: {log} has the reason", max(1, status))
