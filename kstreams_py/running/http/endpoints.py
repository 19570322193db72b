"""The answers of the HTTP endpoints: the page /, /metrics, /livez, /readyz, /status."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

from kstreams_py.graph.topology import Graph
from kstreams_py.printable import join_lines
from kstreams_py.running.health import still, unready
from kstreams_py.running.http.exposition import CONTENT_TYPE, exposition
from kstreams_py.running.http.observed import ObservedRun, View
from kstreams_py.running.http.overview import overview, timestamp
from kstreams_py.running.http.page import Page, build_page
from kstreams_py.running.http.remedies import Problem, Seen, find
from kstreams_py.running.status import RunStatus

logger = logging.getLogger(__name__)

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"


class Answer(NamedTuple):
    """Status, content type and body of an HTTP response, and its Content-Security-Policy."""

    status: int
    content_type: str
    body: bytes
    policy: str = "default-src 'none'"


class Endpoints:
    """The endpoints of one run. Several threads may use them.

    - `still_limit`: seconds without a turn after which a worker counts as not alive.
    - `clock`, `wall`: monotonic seconds, and seconds since 1970.
    """

    def __init__(
        self,
        graph: Graph,
        observed: ObservedRun,
        still_limit: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._graph = graph
        self._observed = observed
        self._still_limit = still_limit
        self._clock = clock
        self._wall = wall
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(200, HTML, *self._page),  # built at the first request
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/status": self._status,
        }

    def answer(self, path: str) -> Answer:
        """Returns the response to a GET of this path; its query is ignored."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return Answer(404, TEXT, f"no such page: use {', '.join(self._pages)}\n".encode())
        try:
            return page()
        except Exception:  # a bug here must not end the run
            logger.exception("%s failed", path)
            return Answer(500, TEXT, b"this page failed: the log has the reason\n")

    @cached_property
    def _page(self) -> Page:
        return build_page(self._graph)

    def _metrics(self) -> Answer:
        view = self._observed.read()
        status = RunStatus((), self._clock()) if view is None else view.status
        return Answer(200, CONTENT_TYPE, exposition(self._graph.name, status))

    def _livez(self) -> Answer:
        return _health(self._still(self._observed.read()))

    def _readyz(self) -> Answer:
        return _health(self._unready(self._observed.read()))

    def _status(self) -> Answer:
        view = self._observed.read()  # only once, because it may wait
        found = overview(
            self._graph,
            view,
            self._wall(),
            still=self._still(view),
            unready=self._unready(view),
            findings=self._findings(view),
        )
        return Answer(200, JSON, json.dumps(found).encode())

    def _findings(self, view: View | None) -> list[Problem]:
        if view is None:
            return []
        now, wall = self._clock(), self._wall()
        seen = Seen(view.status, view.rates, view.lagging, view.failing, now, wall, self._still_limit)
        return find(self._graph.processors, seen)

    def _still(self, view: View | None) -> list[str]:
        """Returns what stands still, each with the time since when."""
        if view is None:  # a start that fails ends by itself
            return []
        return [
            f"{each.what} since {timestamp(self._wall() - each.seconds)} ({each.seconds:.0f} s)"
            for each in still(view.status, self._clock(), self._still_limit)
        ]

    def _unready(self, view: View | None) -> list[str]:
        if view is None:
            return ["the run is starting"]
        return self._still(view) + unready(view.status, [each.id for each in self._graph.processors])


def _health(problems: list[str]) -> Answer:
    return Answer(503 if problems else 200, TEXT, f"{join_lines(problems or ['ok'])}\n".encode())
