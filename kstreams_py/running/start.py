"""The Python functions run(), which blocks until a signal, and start(), which runs a graph beside the program."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kstreams_py.errors import SettingsError
from kstreams_py.graph.loading import target_of
from kstreams_py.graph.topology import Graph
from kstreams_py.running.wiring import Run, SlotRun, SupervisedRun, run_in_foreground
from kstreams_py.settings import Settings

logger = logging.getLogger(__name__)


def run(
    graph: Graph,
    *,
    workers: int = 1,
    slots: Sequence[int] | None = None,
    settings: Settings | None = None,
    create_topics: bool = False,
) -> None:
    """Runs a graph until Ctrl-C, SIGTERM or a function's Stop, then commits what it has processed. Main thread only.

    - `workers`: the number of slots, numbered from 0.
    - `slots`: instead of `workers`, the slots of this machine, if several machines share the graph.
    - `settings`: Settings() by default; metrics and health are served at its `http`.
    - `create_topics`: create missing topics first.

    One slot runs in this process; several run in a process each. For several, the graph must be a global of an
    importable module, or of the main script, which must call this under `if __name__ == "__main__":`.
    Raises KStreamsError, or a function's exception if its class is in `stop_on`.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SettingsError("ks.run takes signals, and Python lets only the main thread do that: call ks.start here")
    run_in_foreground(_open(graph, workers, slots, settings, create=create_topics, background=False))


def start(
    graph: Graph,
    *,
    workers: int = 1,
    slots: Sequence[int] | None = None,
    settings: Settings | None = None,
    create_topics: bool = False,
) -> Running:
    """Starts a graph beside the program; returns once its topics are checked and its workers are starting.

    Takes the same parameters as `run`: one slot runs in threads of this process, several in a process each. Installs no
    signal handler; any thread may call this. Raises KStreamsError if the graph cannot start.
    """
    return Running(_open(graph, workers, slots, settings, create=create_topics, background=True))


class Running:
    """A graph that `start` has started: it runs until `stop`, a function's Stop or a failure.

    As a context manager, it stops the graph at the end of the block, waits for the workers, and raises the failure that
    ended them, if any. If the block itself raises, that exception is raised, and a failure of the workers is logged.
    If the program ends without `stop`, workers in its own threads end as in a crash; worker processes drain.
    A child of `os.fork` has no workers: there, the methods only log that.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._process = os.getpid()
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kstreams", daemon=True)
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:  # a Ctrl-C: the caller has no object yet to stop the run with
            self.stop()
            raise
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_elsewhere():
            return
        self.stop()
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            logger.error("the workers were stopped by %s: %s", type(failure).__name__, failure)

    def stop(self) -> None:
        """Lets the workers commit what they have processed, then end. Returns immediately. Any thread may call this."""
        if not self._is_elsewhere():
            self._run.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the workers have ended. Returns False if they still run after `timeout` seconds (None: no limit).

        Raises the same as `run`: KStreamsError, or a function's exception if its class is in `stop_on`.
        """
        if self._is_elsewhere():
            return True
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def _is_elsewhere(self) -> bool:
        """Returns whether this process is a fork of the one with the workers, and logs that."""
        if (here := os.getpid()) == self._process:
            return False
        logger.warning("process %d is a fork of %d, where the workers run: they are left alone", here, self._process)
        return True

    def _work(self) -> None:
        try:
            self._run.run(self._started.set)
        except BaseException as failure:
            self._failure = failure
        finally:
            self._started.set()


def _open(
    graph: Graph,
    workers: int,
    slots: Sequence[int] | None,
    settings: Settings | None,
    *,
    create: bool,
    background: bool,
) -> Run:
    """Builds the run of these slots. Raises SettingsError if `graph`, `slots` or `workers` is not valid."""
    if not isinstance(graph, Graph):
        raise SettingsError(f"{graph!r} is not a Graph: import it from its module, or run `kstreams run {graph}`")
    settings = settings or Settings()
    numbers = list(range(workers)) if slots is None else list(slots)
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise SettingsError(f"slots {numbers}: give one or more numbers from 0 on, each once, or workers of 1 or more")
    if len(numbers) == 1:
        return SlotRun(graph, numbers[0], settings, create=create, background=background)
    return SupervisedRun(target_of(graph), numbers, settings, create=create, background=background)
