"""One slot: the worker process that runs every processor of a graph, one loop each, and drains them together."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence

from kstreams_py.delivery import PROMISES
from kstreams_py.engine.topics import check_topics, create_topics
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import DrainTimeout, KStreamsError
from kstreams_py.metrics import Report, lag
from kstreams_py.topology import Graph

logger = logging.getLogger(__name__)

REPORT_INTERVAL = 1.0
"""Seconds between two reports."""


class Slot:
    """All processors of a graph in one process, each in a thread with a consumer and a producer of its own."""

    def __init__(self, graph: Graph, slot: int, around: Surroundings) -> None:
        self._graph = graph
        self._slot = slot
        self._around = around
        self._log = around.log
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []

    def stop(self) -> None:
        """Lets every loop commit what is done and end."""
        self._stopping.set()

    def run(self, report: Callable[[Sequence[Report]], None], *, create: bool = False) -> None:
        """Checks the graph and its topics, then runs until `stop`; raises the first failure of any loop.

        Raises DrainTimeout if a loop outlasts drain_timeout_ms after it was told to stop.
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
        threads = [threading.Thread(target=self._run, args=(w,), name=w.processor.id, daemon=True) for w in workers]
        for thread in threads:
            thread.start()
        while not self._stopping.wait(REPORT_INTERVAL):
            report(self._reports(workers))
        drain = self._around.settings.drain_timeout_ms / 1000
        deadline = time.monotonic() + drain
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._failures:
            raise self._failures[0]
        if late := [thread.name for thread in threads if thread.is_alive()]:
            raise DrainTimeout(f"{', '.join(late)} did not end within drain_timeout_ms ({drain:g} s)")
        if self._around.settings.leave_on_stop:
            self._leave(workers)
        report(self._reports(workers))

    def _run(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:
            if self._failures:  # the first is raised by `run`, and told by whoever called that
                logger.error("%s: %s: %s", worker.processor.id, type(error).__name__, error)
            else:
                logger.info("%s: ended by %s", worker.processor.id, type(error).__name__)
            self._failures.append(error)
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

    def _reports(self, workers: Sequence[Worker]) -> list[Report]:
        positions = {worker.processor.id: dict(worker.tasks.positions) for worker in workers}
        try:
            ends = self._log.ends({tp for of_worker in positions.values() for tp in of_worker})
        except KStreamsError as error:
            logger.info("the ends of the inputs are not known now: %s", error)
            ends = None
        return [
            Report(
                processor=worker.processor.id,
                slot=self._slot,
                counters=worker.counters.as_dict(),
                lag=None if ends is None else lag(positions[worker.processor.id], ends),
            )
            for worker in workers
        ]

    def _warn(self) -> None:
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
