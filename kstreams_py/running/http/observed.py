"""The newest status of a run, with rates and failures: the run's thread writes it, the server's threads read it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_py.metrics import Rate
from kstreams_py.running.health import LOOK_LATE
from kstreams_py.running.reports import source_key
from kstreams_py.running.status import RunStatus, without_errors

FAILURES_KEPT: Final = 20
"""The maximum number of failures that are kept, of all workers together: the newest ones."""

FRESH_SECONDS: Final = 1.0
"""Seconds that a reader waits for a new status if the newest is old: this process may have been stopped itself."""

RATES: Final = ("records_in", "records_out", "bytes_in", "bytes_out", "dead_letters", "dropped", "commits")
"""The counts whose growth per second is computed, besides `step_seconds` (of all steps) and `lag`."""

OF_INPUTS: Final = ("done", "refused")
"""The counts of the inputs of a source whose growth per second is computed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed step: when it was reported (seconds since 1970), where, and its text."""

    at: float
    slot: int
    processor: str
    text: str


@dataclass(frozen=True, slots=True)
class View:
    """A status, the newest failures, and by (slot, processor):

    - `rates`: the growth per second of RATES, `step_seconds` and `lag`.
    - `lagging`: seconds since the lag was last 0.
    - `failing`: seconds since a step last failed; absent for a worker without failed steps.

    By (slot, `source_key` of a source): `rates` has the growth of `refused` and `done`, `failing` the seconds since an
    input was last refused.
    """

    status: RunStatus
    rates: Mapping[tuple[int, str], Mapping[str, float]]
    failures: tuple[Failed, ...]
    lagging: Mapping[tuple[int, str], float]
    failing: Mapping[tuple[int, str], float]


class ObservedRun:
    """The newest view of a run, whose workers may not have started yet."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        shows_errors: bool = True,
    ) -> None:
        """Starts without a status.

        - `clock`, `wall`: return monotonic seconds, and seconds since 1970.
        - `shows_errors`: if False, statuses are stripped by `without_errors`.
        """
        self._shows_errors = shows_errors
        self._clock = clock
        self._wall = wall
        self._changed = threading.Condition()
        self._view: View | None = None
        self._rates: dict[tuple[int, str, str], Rate] = {}
        self._lagging: dict[tuple[int, str], float] = {}
        self._failed: dict[tuple[int, str], tuple[int, float]] = {}
        """By worker: the number of its failed steps, and when that number was reached."""
        self._failures = deque[Failed](maxlen=FAILURES_KEPT)
        self._texts: dict[tuple[int, str], str] = {}

    def note(self, status: RunStatus) -> None:
        """Takes the newest status. Only one thread may call this."""
        rates = {}
        if not self._shows_errors:
            status = without_errors(status)
        for slot in status.slots:
            for report in slot.reports:
                worker = slot.number, report.processor
                values: dict[str, float] = {name: report.counters.get(name, 0) for name in RATES}
                values |= {"step_seconds": report.measures.get("step_seconds:sum", 0.0), "lag": report.lag or 0}
                rates[worker] = self._growth(worker, values, status.looked_at)
                if report.lag:
                    self._lagging.setdefault(worker, status.looked_at)
                else:
                    self._lagging.pop(worker, None)
                failed = report.counters.get("dead_letters", 0) + report.counters.get("dropped", 0)
                self._note_failed(worker, failed, status.looked_at)
                for name in report.sources:
                    source = slot.number, source_key(name)
                    counts = {each: report.measures.get(f"inputs:{each}:{name}", 0) for each in OF_INPUTS}
                    rates[source] = self._growth(source, counts, status.looked_at)
                    self._note_failed(source, int(counts["refused"]), status.looked_at)
                if report.failure and self._texts.get(worker) != report.failure:
                    self._texts[worker] = report.failure
                    self._failures.appendleft(Failed(self._wall(), *worker, report.failure))
        with self._changed:
            lagging = {worker: status.looked_at - since for worker, since in self._lagging.items()}
            failing = {worker: status.looked_at - at for worker, (_, at) in self._failed.items()}
            self._view = View(status, rates, tuple(self._failures), lagging, failing)
            self._changed.notify_all()

    def _growth(self, worker: tuple[int, str], counts: Mapping[str, float], now: float) -> dict[str, float]:
        rates = {name: self._rates.setdefault((*worker, name), Rate(shrinks=name == "lag")) for name in counts}
        return {name: rates[name].of(count, now) for name, count in counts.items()}

    def _note_failed(self, worker: tuple[int, str], failed: int, now: float) -> None:
        if failed != self._failed.get(worker, (0,))[0]:
            self._failed[worker] = failed, now

    def read(self) -> View | None:
        """Returns the newest view; None before the workers start. If it is old, waits FRESH_SECONDS for a new one."""
        with self._changed:
            view = self._view
            if view is not None and self._clock() - view.status.looked_at > LOOK_LATE:
                self._changed.wait(FRESH_SECONDS)
            return self._view
