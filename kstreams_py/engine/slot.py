"""One slot: the worker process that runs every processor of a graph, one loop each, and drains them together."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kstreams_py import task
from kstreams_py.delivery import PROMISES
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.watch import Stillness
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import DrainTimeout, Fatal, KStreamsError
from kstreams_py.metrics import Report, lag
from kstreams_py.topology import Graph

logger = logging.getLogger(__name__)

REPORT_INTERVAL = 1.0
"""Seconds between two reports."""

RETENTION_SHORT: Final = 24 * 60
"""Minutes of offsets.retention.minutes below which a job that is stopped overnight may lose its positions."""


_PACKAGE = str(Path(task.__file__).parent) + os.sep


class _Loop:
    """One processor: its worker, the thread that runs it, and for how long it has stood still."""

    def __init__(self, worker: Worker, run: Callable[[Worker], None]) -> None:
        self.worker = worker
        self.id = worker.processor.id
        self.thread = threading.Thread(target=run, args=(worker,), name=self.id, daemon=True)
        self._stillness = Stillness()

    def look(self) -> tuple[float, str]:
        """Seconds since the loop last turned or went on to another step, and where it is if it has not."""
        if not self.thread.is_alive():
            return 0.0, ""
        step, place = _look_into(self.thread)
        seconds = self._stillness.look((self.worker.turned_at, step), time.monotonic())
        return (round(seconds, 1), place) if seconds else (0.0, "")


def _look_into(thread: threading.Thread) -> tuple[object, str]:
    """A mark that changes with each step that the thread runs, and where it is: in the user's function, or in ours.

    One turn may run many slow steps: a thread that goes on to the next is not stuck, and counting them would cost time.
    """
    called, frame = None, sys._current_frames().get(thread.ident or 0)  # noqa: SLF001, documented, for debuggers
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        called, frame = frame, frame.f_back
    if frame is None:
        return None, "no known place"
    shown = called if called is not None and frame.f_code.co_filename == task.__file__ else frame
    place = f"{shown.f_code.co_name} ({Path(shown.f_code.co_filename).name}, line {shown.f_lineno})"
    while frame is not None and frame.f_code.co_filename != task.__file__:
        frame = frame.f_back
    return None if frame is None else [id(value) for value in frame.f_locals.values()], place


class Slot:
    """All processors of a graph in one process, each in a thread with a consumer and a producer of its own."""

    def __init__(self, graph: Graph, slot: int, around: Surroundings) -> None:
        self._graph = graph
        self._slot = slot
        self._around = around
        self._log = around.log
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._lags: dict[str, int] = {}

    def stop(self) -> None:
        """Lets every loop commit what is done and end."""
        self._stopping.set()

    def run(self, report: Callable[[Sequence[Report]], None], *, create: bool = False) -> None:
        """Checks the graph and its topics, then runs until `stop`; raises the first failure of any loop.

        Raises DrainTimeout if a loop outlasts drain_timeout_ms after it was told to stop. What `report` raises ends
        the loops too.
        """
        self._graph.validate()
        if create:
            create_topics(self._graph, self._log)
        check_topics(self._graph, self._log)
        self._warn()
        workers = [
            Worker(self._graph, processor, self._slot, self._around, self._stopping)
            for processor in self._graph.processors
        ]
        loops = [_Loop(worker, self._run) for worker in workers]
        for loop in loops:
            loop.thread.start()
        threading.Thread(target=self._keep_lags, args=(workers,), name="lag", daemon=True).start()
        try:
            report(self._reports(loops))  # at once: from then on silence counts
            while not self._stopping.wait(REPORT_INTERVAL):
                report(self._reports(loops))
        except BaseException:
            self._drain(loops, lambda _: None)
            raise
        late = self._drain(loops, report)
        if self._failures:
            raise self._failures[0]
        if late:
            limit = self._around.settings.drain_timeout_ms / 1000
            raise DrainTimeout(f"{', '.join(late)} did not end within drain_timeout_ms ({limit:g} s)")
        if self._around.settings.leave_on_stop:
            self._leave(workers)
        report(self._reports(loops))

    def _drain(self, loops: Sequence[_Loop], report: Callable[[Sequence[Report]], None]) -> list[str]:
        """Lets the loops end, within drain_timeout_ms; the processors of those that did not."""
        self._stopping.set()
        deadline = time.monotonic() + self._around.settings.drain_timeout_ms / 1000
        for loop in loops:
            while loop.thread.is_alive() and (left := deadline - time.monotonic()) > 0:
                loop.thread.join(min(left, REPORT_INTERVAL))
                if loop.thread.is_alive():
                    report(self._reports(loops))
        return [loop.id for loop in loops if loop.thread.is_alive()]

    def _run(self, worker: Worker) -> None:
        returned = False
        try:
            worker.run()
            returned = True
        except BaseException as error:
            returned = True
            if self._failures:  # the first is raised by `run`, and told by whoever called that
                logger.error("%s: %s: %s", worker.processor.id, type(error).__name__, error)
            else:
                logger.info("%s: ended by %s", worker.processor.id, type(error).__name__)
            self._failures.append(error)
        finally:
            if not returned:  # a client can raise what `except` does not take for an exception; threading prints it
                self._failures.append(Fatal(f"{worker.processor.id}: its loop was ended by its client: see the log"))
            self._stopping.set()

    def _leave(self, workers: Sequence[Worker]) -> None:
        """Gives this slot's partitions up for good; each worker has made its last commit and closed its consumer."""
        for i, worker in enumerate(workers):
            try:
                left = self._log.leave(worker.consumer)
            except KStreamsError as error:
                logger.warning(
                    "slot %d did not leave the groups of %s: its partitions wait until session_timeout_ms: %s",
                    self._slot,
                    ", ".join(each.processor.id for each in workers[i:]),
                    error,
                )
                return
            done = "left its group" if left else "had no membership of its own to leave"
            logger.info("%s: %s", worker.processor.id, done)

    def _reports(self, loops: Sequence[_Loop]) -> list[Report]:
        """Without asking anybody: a broker that does not answer must not hold up reports, signals or draining."""
        reports = []
        for loop in loops:
            still_seconds, place = loop.look()
            counters, lag_of = loop.worker.counters.as_dict(), self._lags.get(loop.id)
            reports.append(Report(loop.id, self._slot, counters, lag_of, still_seconds, place))
        return reports

    def _keep_lags(self, workers: Sequence[Worker]) -> None:
        while True:
            positions = {worker.processor.id: dict(worker.tasks.positions) for worker in workers}
            try:
                ends = self._log.ends({tp for of_worker in positions.values() for tp in of_worker})
                self._lags = {processor: lag(reached, ends) for processor, reached in positions.items()}
            except KStreamsError as error:
                logger.info("the ends of the inputs are not known now: %s", error)
                self._lags = {}
            if self._stopping.wait(REPORT_INTERVAL):
                return

    def _warn(self) -> None:
        if (minutes := self._log.offsets_retention_minutes()) is not None:
            logger.log(
                logging.WARNING if minutes < RETENTION_SHORT else logging.INFO,
                "offsets.retention.minutes is %d: a job that is stopped for longer loses its committed positions, and "
                "ends with status 5 until they are set",
                minutes,
            )
        for processor in self._graph.processors:
            if processor.errors is None:
                logger.warning(
                    "%s: no dead-letter topic: a record whose function raises is logged and counts as delivered",
                    processor.id,
                )
            if PROMISES[processor.guarantee].transactional and not processor.outputs:
                logger.info("%s: a sink's side effects may repeat after a crash: use the delivery hash", processor.id)


def drain_on_signals(slot: Slot) -> None:
    """SIGTERM and the first Ctrl-C drain; a second Ctrl-C ends at once. Only from the main thread."""

    def ask(signum: int, _: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        logger.info("%s: draining", signal.Signals(signum).name)
        slot.stop()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
