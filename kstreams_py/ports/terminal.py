"""Progress as a person reads it: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kstreams_py.metrics import Report, totals

logger = logging.getLogger(__name__)

LINES_EVERY: Final = 5.0
"""Seconds between two plain lines."""

COLUMNS: Final = ("in", "out", "dead letters", "lag", "records/s", "commits/s")


class Progress:
    """A context in which `show` may be called with the newest reports of all workers."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[float, Report]] = {}
        self._rates: dict[str, tuple[float, float]] = {}
        self._said_at = clock()
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, reports: Sequence[Report]) -> None:
        """Takes in the newest reports; draws them, or logs them if the last lines are old enough."""
        rows = self.rows(reports)
        if self._live is not None:
            self._live.update(table(rows))
        elif self._clock() - self._said_at >= LINES_EVERY:
            self._said_at = self._clock()
            for processor, values in rows.items():
                logger.info("%s: %s", processor, ", ".join(f"{v} {c}" for c, v in zip(COLUMNS, values, strict=True)))

    def rows(self, reports: Sequence[Report]) -> dict[str, tuple[str, ...]]:
        """Per processor, a text for each of `COLUMNS`; rates are over the last second or more."""
        now, found = self._clock(), {}
        for processor, total in totals(reports).items():
            then, before = self._last.setdefault(processor, (now, total))
            if now - then >= 1.0:
                self._rates[processor] = (
                    max(0, total.counters["records_in"] - before.counters["records_in"]) / (now - then),
                    max(0, total.counters["commits"] - before.counters["commits"]) / (now - then),
                )
                self._last[processor] = (now, total)
            records, commits = self._rates.get(processor, (0.0, 0.0))
            found[processor] = (
                *(f"{total.counters[name]:,}" for name in ("records_in", "records_out", "dead_letters")),
                "?" if total.lag is None else f"{total.lag:,}",
                f"{records:,.0f}",
                f"{commits:,.1f}",
            )
        return found


def table(rows: dict[str, tuple[str, ...]]) -> Table:
    """The rows as a table."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("processor")
    for column in COLUMNS:
        drawn.add_column(column, justify="right")
    for processor, values in rows.items():
        drawn.add_row(processor, *values)
    return drawn
