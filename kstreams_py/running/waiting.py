"""Counts waiting dead letters while a graph runs, in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final

from kstreams_py.graph.topology import Graph
from kstreams_py.processing.dead_letters.counting import LetterCounter
from kstreams_py.processing.dead_letters.waiting import WaitingCount
from kstreams_py.running.terminal import logs
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

COUNT_SECONDS: Final = 0.3
"""Seconds of counting between two pauses: a first count of a large topic takes no more than a quarter of a core."""

SHORT_PAUSE: Final = 1.0
"""The length of a pause, in seconds, while the first count of a topic is under way."""

LONG_PAUSE: Final = 5.0
"""The length of a pause, in seconds, once all topics are counted or cannot be counted."""

END_SECONDS: Final = 1.0


class WaitingLetters:
    """The newest count of a graph's waiting dead letters, up to LONG_PAUSE seconds old, or older if many are new."""

    def __init__(self, graph: Graph, environment: Environment) -> None:
        """Makes no request."""
        self._graph = graph
        self._counter = LetterCounter(graph, environment)
        self._newest: Mapping[str, WaitingCount] = dict.fromkeys(self._counter.topics, WaitingCount())
        self._thread = threading.Thread(target=self._keep_counting, name="dead letters", daemon=True)
        self._ending = threading.Event()

    def read(self) -> Mapping[str, WaitingCount]:
        """Returns the newest count of each topic. The first call starts the thread: only one thread may call this."""
        if self._newest and self._thread.ident is None:
            self._thread.start()
        return self._newest

    def end(self) -> None:
        """Ends the thread; leaves it behind if a request takes longer than END_SECONDS."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(END_SECONDS)

    def _keep_counting(self) -> None:
        logs.set_context(graph=self._graph.name)
        noted = ""
        while not self._ending.is_set():
            try:
                self._newest = self._counter.count(COUNT_SECONDS)
            except Exception as error:  # whatever a client or a registry raises: the page must not show an old count
                self._newest = dict.fromkeys(self._newest, WaitingCount(why=f"{type(error).__name__}: {error}"))
            why = next((each.why for each in self._newest.values() if each.why), "")
            if why and why != noted and not self._ending.is_set():
                logger.info("cannot count the dead letters that wait: %s", why)
            noted = why
            is_counting = any(not each.is_whole and not each.why for each in self._newest.values())
            self._ending.wait(SHORT_PAUSE if is_counting else LONG_PAUSE)
