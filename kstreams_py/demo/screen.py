"""The demo in the terminal: phases, counts and kills while it runs, the checks at the end; plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kstreams_py.demo.checks import Check
from kstreams_py.demo.traffic import Kill

LINES_EVERY: Final = 5.0
"""Seconds between two plain lines of counts."""


class Screen:
    """What the demo says. `counts` is live in a terminal, and needs the context to be open."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._started = 0.0
        self._said_at = 0.0
        self._before: tuple[float, Mapping[str, int]] = (0.0, {})
        self._rates: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._started = self._said_at = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def killed(self, kill: Kill, number: int, of: int) -> None:
        """One line per kill."""
        after = kill.at - self._started
        self.say(f"  {after:5.1f} s  [red]SIGKILL[/] {number} of {of}: slot {kill.slot} (process {kill.pid})")

    def counts(self, counts: Mapping[str, int], written: int, records: int) -> None:
        """Per topic, how many committed records a reader has seen; and how far the departures are."""
        now = time.monotonic()
        if self._live is not None:
            then, before = self._before
            if now - then >= 1.0:
                self._rates = {topic: (n - before.get(topic, 0)) / (now - then) for topic, n in counts.items()}
                self._before = (now, counts)
            self._live.update(_drawn(counts, self._rates, written, records))
        elif now - self._said_at >= LINES_EVERY:
            self._said_at = now
            seen = ", ".join(f"{n:,} {topic}" for topic, n in counts.items())
            self.say(f"  {now - self._started:5.1f} s  {written:,} of {records:,} departures; {seen}")

    def table(self, checks: Sequence[Check]) -> None:
        """The checks, one a line."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("")
        table.add_column("what")
        table.add_column("expected", justify="right")
        table.add_column("found", justify="right")
        for check in checks:
            mark = Text("ok", "green") if check.ok else Text("WRONG", "bold red")
            found = Text(f"{check.found:,}", "" if check.ok else "bold red")
            table.add_row(mark, check.what, f"{check.expected:,}", found)
        self._console.print()
        self._console.print(table)
        self._console.print()


def _drawn(counts: Mapping[str, int], rates: Mapping[str, float], written: int, records: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("committed, as a reader sees it")
    table.add_column("records", justify="right", min_width=10)
    table.add_column("records/s", justify="right", min_width=10)
    for topic, n in counts.items():
        table.add_row(topic, f"{n:,}", f"{rates.get(topic, 0.0):,.0f}")
    bar = Table.grid(padding=(0, 1))
    bar.add_row("departures", ProgressBar(total=records, completed=written, width=40), f"{written:,} of {records:,}")
    return Group(Text(), bar, Text(), table)
