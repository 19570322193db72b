"""Follows the code of a graph: at a change it checks the new version, drains the old one, and runs the new one."""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kstreams_py.development.changes import Changes
from kstreams_py.development.versions import OutputsShown, Version, VersionEnded, VersionReady

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 3
"""The maximum number of changed files that a log line names."""

LOADING_SECONDS: Final = 10.0
"""Seconds after which a warning says that new code is still being loaded: its import may never return."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a run. When a terminal is closed, SIGHUP comes twice: from the kernel and from the shell."""


@dataclass(frozen=True)
class Changed:
    """Files were saved, made or removed."""

    names: Sequence[str]


@dataclass(frozen=True)
class Asked:
    """A signal has asked the session to end. A repeated signal that `insists` kills the workers."""

    insists: bool = True


Report = Callable[[VersionReady | OutputsShown | VersionEnded], None]


class DevSession:
    """The versions of one graph, one after the other. `run` takes events one by one from a queue."""

    def __init__(
        self,
        start: Callable[[Report], Version],
        changes: Changes,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a session, which starts nothing yet.

        - `start`: starts the process of a version of the current code; its argument takes the reports of the process.
        - `what`: what runs, for the log.
        - `clock`: monotonic seconds.
        """
        self._clock = clock
        self._slow_at = 0.0
        """When to warn that the code of the coming version is still being loaded."""
        self._start = start
        self._changes = changes
        self._what = what
        self._events: queue.SimpleQueue[Changed | Asked | VersionReady | OutputsShown | VersionEnded] = (
            queue.SimpleQueue()
        )
        self._running: Version | None = None
        """The version whose workers run."""
        self._coming: Version | None = None
        """The version that is being checked, or waits for the workers of the running one to drain."""
        self._is_ready = False
        """Whether the coming version has been checked."""
        self._is_draining = False
        """Whether the running version was asked to drain."""
        self._is_ending = False
        self._positions: dict[tuple[str, int], int] = {}
        """The next offset to show of each partition."""

    def run(self) -> None:
        """Runs versions until a signal of SIGNALS comes and the workers have drained. Main thread only."""
        stopped = threading.Event()
        watching = threading.Thread(
            target=self._changes.watch, args=(lambda names: self._events.put(Changed(names)), stopped), name="changes"
        )
        before = {each: signal.getsignal(each) for each in SIGNALS}
        for each, handler in before.items():
            if (each, handler) != (signal.SIGHUP, signal.SIG_IGN):  # nohup ignores it
                signal.signal(each, lambda number, _: self._events.put(Asked(insists=number != signal.SIGHUP)))
        watching.start()
        try:
            self._load()
            while self._running or self._coming or not self._is_ending:
                with suppress(queue.Empty):
                    self._take(self._events.get(timeout=1.0))
                self._look()
        finally:
            stopped.set()
            watching.join()
            for each, handler in before.items():
                signal.signal(each, handler)

    def _look(self) -> None:
        """Warns once if the code of the coming version takes long to load."""
        if self._coming is not None and not self._is_ready and self._clock() >= self._slow_at:
            self._slow_at = float("inf")
            logger.warning("the code is still being loaded, after %g s: the next save begins again", LOADING_SECONDS)

    def _take(self, event: Changed | Asked | VersionReady | OutputsShown | VersionEnded) -> None:
        match event:
            case Asked(insists) if insists or not self._is_ending:
                self._end()
            case Changed(names) if not self._is_ending:
                logger.info("changed: %s", _listed(names))
                self._drop_coming()
                self._load()
            case VersionReady(version) if version is self._coming:
                self._follow_ready(event)
            case OutputsShown(version, positions) if version is self._running:
                self._positions |= {(topic, number): at for topic, number, at in positions}
            case VersionEnded(version, _, error) if version is self._coming:
                self._coming = None
                if not self._is_ending:
                    goes_on = self._running is not None and not self._is_draining
                    rest = "the workers before it go on" if goes_on else "nothing runs"
                    what, *source = (error or "the new code ended").split("\n")  # the line of a syntax error follows it
                    logger.error("%s", "\n".join([f"{what}; {rest}, and the next save tries again", *source]))
            case VersionEnded(version) if version is self._running:
                self._follow_end(event)

    def _load(self) -> None:
        self._is_ready, self._slow_at = False, self._clock() + LOADING_SECONDS
        self._coming = self._start(self._events.put)

    def _drop_coming(self) -> None:
        if self._coming is not None:
            self._coming.kill()
            self._coming = None

    def _follow_ready(self, event: VersionReady) -> None:
        self._is_ready = True
        if event.created:
            logger.info("created %s", ", ".join(event.created))
        if event.warning:
            logger.warning("%s", event.warning)
        if self._running is None:
            self._go()
        elif not self._is_draining:
            self._is_draining = True
            self._running.stop()

    def _go(self) -> None:
        assert self._coming is not None
        self._running, self._coming, self._is_draining = self._coming, None, False
        self._running.go((*tp, at) for tp, at in self._positions.items())
        logger.info("%s runs", self._what)

    def _follow_end(self, event: VersionEnded) -> None:
        """Continues after the running version has ended, after a drain or by itself."""
        self._running = None
        if event.error and self._is_draining:
            logger.warning("%s", event.error)
        elif not self._is_draining:
            if event.status == 0:
                logger.info("the graph has stopped by itself: the next save starts it again")
            else:
                hint = ", see its lines above" if event.status == 1 else ""
                why = event.error or f"its process ended with status {event.status}"
                logger.error("%s%s: nothing runs, the next save starts it again", why, hint)
        if self._coming is not None and self._is_ready:
            self._go()

    def _end(self) -> None:
        """Drains the running version; ends it immediately if called a second time."""
        if not self._is_ending:
            logger.info("draining")
        was_asked = self._is_draining and not self._is_ending  # by a reload: asking again would end it immediately
        self._is_ending = self._is_draining = True
        self._drop_coming()
        if self._running is not None and not was_asked:
            self._running.stop()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
