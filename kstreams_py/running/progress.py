"""Shows progress: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from kstreams_py.running.reports import Report, totals

logger = logging.getLogger(__name__)

LINES_EVERY: Final = 5.0
"""Seconds between two plain lines."""

COLUMNS: Final = ("in", "out", "dead letters", "lag", "records/s", "commits/s")


class Display:
    """A context manager that redraws in place in a terminal, and elsewhere writes plain lines at intervals."""

    def __init__(
        self,
        console: Console,
        *,
        live: bool = True,
        transient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet.

        - `live`: False for plain lines in a terminal too.
        - `transient`: erase the drawing at the end.
        - `clock`: monotonic seconds.
        """
        self._clock = clock
        self._entered_at = self._written_at = clock()
        drawn = live and console.is_terminal
        self._live = Live(console=console, refresh_per_second=4, transient=transient) if drawn else None

    def __enter__(self) -> Self:
        self._entered_at = self._written_at = self._clock()
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def refresh(self, draw: Callable[[], RenderableType], write: Callable[[], None]) -> None:
        """Draws in a terminal; elsewhere writes, if the last lines are LINES_EVERY seconds old."""
        if self._live is not None:
            self._live.update(draw())
        elif self._clock() - self._written_at >= LINES_EVERY:
            self._written_at = self._clock()
            write()


class Rate:
    """The growth of a count per second, measured over the last second or more."""

    def __init__(self, *, shrinks: bool = False) -> None:
        """`shrinks`: what is counted may shrink, and the rate may be below 0."""
        self._before: tuple[float, float] | None = None
        self._rate = 0.0
        self._least = -float("inf") if shrinks else 0

    def of(self, count: float, now: float) -> float:
        """Returns the rate for the count at `now` (seconds); 0 in the first second, or if the count has shrunk."""
        then, before = self._before = self._before or (now, count)
        if now - then >= 1.0:
            self._rate = max(self._least, count - before) / (now - then)
            self._before = (now, count)
        return self._rate


class Progress(Display):
    """Shows the newest reports of all workers. A context manager: call `show` inside."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic, *, live: bool = True
    ) -> None:
        """`console` is standard error by default."""
        super().__init__(console or Console(stderr=True), live=live, clock=clock)
        self._rates: defaultdict[tuple[str, str], Rate] = defaultdict(Rate)

    def show(self, reports: Sequence[Report]) -> None:
        """Draws the newest reports in a terminal; elsewhere logs them, once every LINES_EVERY seconds."""
        rows = self.rows(reports)
        self.refresh(lambda: table(rows), lambda: _log(rows))

    def rows(self, reports: Sequence[Report]) -> dict[str, tuple[str, ...]]:
        """The cells of the table by processor, one for each of COLUMNS."""
        now, found = self._clock(), {}
        for processor, total in totals(reports).items():
            records, commits = (
                self._rates[processor, name].of(total.counters[name], now) for name in ("records_in", "commits")
            )
            found[processor] = (
                *(f"{total.counters[name]:,}" for name in ("records_in", "records_out", "dead_letters")),
                "?" if total.lag is None else f"{total.lag:,}",
                f"{records:,.0f}",
                f"{commits:,.1f}",
            )
        return found


def _log(rows: Mapping[str, Sequence[str]]) -> None:
    for processor, values in rows.items():
        logger.info("%s: %s", processor, ", ".join(f"{v} {c}" for c, v in zip(COLUMNS, values, strict=True)))


def table(rows: dict[str, tuple[str, ...]]) -> Table:
    """Lays out the rows of `Progress.rows`."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("processor")
    for column in COLUMNS:
        drawn.add_column(column, justify="right")
    for processor, values in rows.items():
        drawn.add_row(processor, *values)
    return drawn
