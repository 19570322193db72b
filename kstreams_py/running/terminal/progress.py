"""Shows progress: a live table in a terminal, with the workers' output above it; plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import TracebackType
from typing import Final, Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kstreams_py.metrics import REPLAYS, PendingFigures, Rate, WorkerState
from kstreams_py.printable import clean_line
from kstreams_py.running.output import STDERR, STDOUT, write_lines
from kstreams_py.running.reports import Report, inputs_of, source_key, totals
from kstreams_py.running.status import RunStatus, SlotStatus
from kstreams_py.running.terminal.lines import prefixed

Rows = dict[str, tuple[str, ...]]
"""Cells by the name of their row."""

PROCESSORS: Final = (
    "state", "partitions", "in", "out", "dead letters", "dropped", "rolled back", "lag", "records/s", "commits/s",
)  # fmt: skip
"""The columns of the processors. Counts are of committed steps, except for "rolled back"."""

RARE: Final = ("dropped", "rolled back", "read again")
"""The columns that are shown only if a row has a number there."""

SLOTS: Final = ("state", "partitions", "up", "restarts")
"""The columns of the slots."""

SOURCES: Final = ("under way", "oldest", "its key", "in", "done", "refused", "read again")
"""The columns of the sources. The second to fourth are the oldest input's age, key, and tasks."""

DROPPED: Final = (
    "its key", "read again", "done", "commits/s", "rolled back", "out", "records/s", "in", "partitions", "restarts",
    "up", "dropped", "dead letters", "lag",
)  # fmt: skip
"""The columns that a narrow terminal leaves out, in this order."""

COUNTED: Final = ("records_in", "records_out", "dead_letters", "dropped", "rolled_back")
"""The counters behind the columns of PROCESSORS from "in" to "rolled back", in their order."""

GAP: Final = 2
"""Characters between two columns."""

_WITHOUT_PROCESS: Final = (WorkerState.RESTARTING, WorkerState.REPLACED)


def processor_rows(status: RunStatus, rates: Mapping[str, tuple[float, float]]) -> Rows:
    """Returns a row of PROCESSORS for each processor; `rates` has records and commits per second."""
    found = {}
    for processor, total in processor_totals(status).items():
        states = [slot.state_of(processor) for slot in status.slots]
        records, commits = rates.get(processor, (0.0, 0.0))
        held = sum(_held(slot, report) for slot, report in _reports(status) if report.processor == processor)
        found[processor] = (
            summary(states),
            "" if total.is_task and not held else f"{held:,}",
            *(f"{total.counters.get(name, 0):,}" for name in COUNTED),
            "?" if total.lag is None else f"{total.lag:,}",
            f"{records:,.0f}",
            f"{commits:,.1f}",
        )
    return found


def processor_totals(status: RunStatus) -> dict[str, Report]:
    """Returns the sums of each processor over all slots.

    The lag of a slot without a process is unknown. The lag of a slot that is taken elsewhere is reported there.
    """
    reports = []
    for slot, report in _reports(status):
        known = {WorkerState.RESTARTING: None, WorkerState.REPLACED: 0}
        reports.append(replace(report, lag=known.get(slot.state_of(report.processor), report.lag)))
    return totals(reports)


def slot_rows(status: RunStatus) -> Rows:
    """Returns a row of SLOTS for each slot."""
    return {
        str(slot.number): (
            summary(_states(slot)),
            f"{sum(_held(slot, report) for report in slot.reports):,}",
            duration(status.looked_at - slot.began_at) if slot.pid is not None else "",
            str(slot.restarts),
        )
        for slot in status.slots
    }


def source_rows(status: RunStatus) -> Rows:
    """Returns a row of SOURCES for each source: the sums over all slots, and the oldest input of all."""
    found: Rows = {}
    reports = [*_reports(status)]
    for name in dict.fromkeys(name for _, report in reports for name in report.sources):
        oldest, counts = PendingFigures(), inputs_of((report for _, report in reports), name)
        for slot, report in reports:
            pending = report.sources.get(name, PendingFigures()) if slot.pid is not None else PendingFigures()
            count = oldest.pending + pending.pending
            oldest = max(oldest, pending, key=lambda each: (each.pending > 0, each.seconds))._replace(pending=count)
        found[name] = (
            f"{oldest.pending:,}",
            duration(oldest.seconds) if oldest.pending else "",
            oldest.key,
            ", ".join(oldest.tasks),
            f"{counts['done']:,}",
            f"{counts['refused']:,}",
            ", ".join(f"{counts[cause]:,} {cause}" for cause in REPLAYS if counts[cause]) or "0",
        )
    return found


def _states(slot: SlotStatus) -> list[WorkerState]:
    return [slot.state_of(report.processor) for report in slot.reports] or [slot.state_of("")]


def _reports(status: RunStatus) -> Iterable[tuple[SlotStatus, Report]]:
    return ((slot, report) for slot in status.slots for report in slot.reports)


def _held(slot: SlotStatus, report: Report) -> int:
    return 0 if slot.state_of(report.processor) in _WITHOUT_PROCESS else len(report.lags)


def summary(states: Sequence[WorkerState]) -> str:
    """Returns states as text: the state if all are the same, otherwise each state with its count."""
    counts = Counter(states)
    if len(counts) == 1:
        return str(states[0])
    return ", ".join(f"{counts[state]} {state}" for state in WorkerState if state in counts)


def duration(seconds: float) -> str:
    """Returns seconds as text in the two largest units, such as 3h07m."""
    whole = max(0, int(seconds))
    for unit, below, size in (("d", "h", 86_400), ("h", "m", 3_600), ("m", "s", 60)):
        if whole >= size:
            part = {"h": 3_600, "m": 60, "s": 1}[below]
            return f"{whole // size}{unit}{whole % size // part:02d}{below}"
    return f"{whole}s"


def shown(columns: Sequence[str], rows: Rows, name: str, width: int) -> list[str]:
    """Returns the columns that fit into `width` characters. `name`: the head of the first column, always shown."""
    kept = [
        column for column in columns if _is_shown(column, [cells[columns.index(column)] for cells in rows.values()])
    ]
    for dropped in DROPPED:
        if _width(columns, kept, rows, name) <= width:
            break
        if dropped in kept:
            kept.remove(dropped)
    return kept


def _is_shown(column: str, cells: Sequence[str]) -> bool:
    """Returns whether a column has anything to show. Without rows, all columns but the rare ones do."""
    return any(cell != "0" for cell in cells) if column in RARE else not cells or any(cells)


def _width(columns: Sequence[str], kept: Sequence[str], rows: Rows, name: str) -> int:
    widths = [max(map(len, (name, *rows)))]
    for column in kept:
        at = columns.index(column)
        widths.append(max(len(column), *(len(cells[at]) for cells in rows.values())) if rows else len(column))
    return sum(widths) + GAP * len(kept)


logger = logging.getLogger(__name__)

LINES_EVERY: Final = 5.0
"""Seconds between two plain lines."""

IDLE_LINES_EVERY: Final = 60.0
"""Seconds between two plain lines about a processor whose counts have not changed."""

DRAWN_EVERY: Final = 0.25
"""Seconds between two drawings."""

Dress = Callable[[int, str, bytes], bytes]
"""Turns the output, the slot and a line of a worker into the line that is written."""


class LockedConsole(Console):
    """A console on which the writes of several threads do not mix.

    Otherwise Rich moves the cursor up by the height of a drawing that another thread may have changed since.
    """

    def __init__(self, *, stderr: bool = True) -> None:
        """Writes to standard error; to standard output if `stderr` is False."""
        self.whole = threading.RLock()
        super().__init__(stderr=stderr)

    def __enter__(self) -> Self:
        self.whole.acquire()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__(*error)
        finally:
            self.whole.release()


@cache
def terminal() -> LockedConsole:
    """Returns the console of this process's table and log: another console would write into the table."""
    return LockedConsole()


class Display:
    """A context manager that redraws in place in a terminal, and elsewhere writes plain lines at intervals."""

    def __init__(
        self,
        console: Console,
        *,
        live: bool = True,
        transient: bool = False,
        clock: Callable[[], float] = time.monotonic,
        dress: Dress = lambda _, slot, line: prefixed(slot, line),
    ) -> None:
        """Starts nothing yet.

        - `live`: False for plain lines in a terminal too.
        - `transient`: erase the drawing at the end.
        - `clock`: monotonic seconds.
        - `dress`: adds the slot to the lines of workers.
        """
        self._clock = clock
        self._dress = dress
        self._entered_at = self._written_at = clock()
        self._whole = console.whole if isinstance(console, LockedConsole) else threading.RLock()
        is_drawn = live and console.is_terminal
        self._above = {STDERR, STDOUT} if sys.stdout.isatty() else {STDERR}
        """The outputs that go to the same terminal as the drawing."""
        self._live = (
            Live(
                console=console,
                auto_refresh=False,  # the refresh thread would take Rich's locks in another order
                transient=transient,
                redirect_stdout=STDOUT in self._above,
            )
            if is_drawn
            else None
        )

    def __enter__(self) -> Self:
        self._entered_at = self._written_at = self._clock()
        if self._live is not None:
            with self._whole:
                self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with self._whole:
                self._live.stop()

    def refresh(self, draw: Callable[[], RenderableType], write: Callable[[], None]) -> None:
        """Draws in a terminal; elsewhere writes if the last lines are LINES_EVERY seconds old."""
        if self._live is not None:
            with self._whole:
                self._live.update(draw(), refresh=True)
        elif self._clock() - self._written_at >= LINES_EVERY:
            self._written_at = self._clock()
            write()

    def write(self, output: int, slot: str, lines: Sequence[bytes]) -> None:
        """Writes lines of a worker: above the drawing if there is one, otherwise unchanged. Any thread may call it."""
        dressed = [self._dress(output, slot, line) for line in lines]
        with self._whole:
            if self._live is not None and self._live.is_started and output in self._above:
                self._live.console.print(Text("\n").join(map(_text, dressed)), soft_wrap=True, highlight=False)
            else:
                write_lines(output, dressed)


def _text(line: bytes) -> Text:
    """Returns a line with its colours."""
    plain = clean_line(line).decode()
    return Text.from_ansi(plain) if "\x1b" in plain else Text(plain)


class Progress(Display):
    """Shows the newest status of a run. A context manager: call `show` inside."""

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        live: bool = True,
        dress: Dress = lambda _, slot, line: prefixed(slot, line),
    ) -> None:
        """`console` is standard error by default."""
        super().__init__(console or terminal(), live=live, clock=clock, dress=dress)
        self._rates: defaultdict[tuple[str, str], Rate] = defaultdict(Rate)
        self._shown_at = -DRAWN_EVERY
        self._newest: RunStatus | None = None
        self._logged: dict[str, tuple[float, object]] = {}
        """By processor and source: the time and the counts of the last line."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._newest is not None and self._live is not None:
            self._show(self._newest)
        super().__exit__(kind, error, trace)

    def show(self, status: RunStatus) -> None:
        """Draws the newest status in a terminal; elsewhere logs it every LINES_EVERY seconds."""
        self._newest = status
        now = self._clock()
        if now - self._shown_at >= DRAWN_EVERY:
            self._shown_at = now
            self._show(status)

    def _show(self, status: RunStatus) -> None:
        rows = self.rows(status)
        sources = source_rows(status)
        self.refresh(lambda: tables(rows, slot_rows(status), sources), lambda: self._log(status, rows, sources))

    def rows(self, status: RunStatus) -> Rows:
        """Returns the cells of the table by processor, one for each of PROCESSORS."""
        now, rates = self._clock(), {}
        for processor, total in processor_totals(status).items():
            records, commits = (
                self._rates[processor, name].of(total.counters[name], now) for name in ("records_in", "commits")
            )
            rates[processor] = (records, commits)
        return processor_rows(status, rates)

    def _log(self, status: RunStatus, rows: Rows, sources: Rows) -> None:
        """Writes a line for each processor and source; if no count has changed, only every IDLE_LINES_EVERY seconds."""
        now = self._clock()
        for processor, total in processor_totals(status).items():
            at, counts = self._logged.get(processor, (0.0, None))
            if counts == total.counters and now - at < IDLE_LINES_EVERY:
                continue
            self._logged[processor] = (now, total.counters)
            state, held, *values = rows[processor]
            columns = zip(PROCESSORS[2:], values, strict=True)
            counted = [_counted(value, column) for column, value in columns if column not in RARE or value != "0"]
            counted += [_counted(held, "partitions")] if held else []
            logger.info("%s: %s, %s", processor, ", ".join(counted), state, extra={"processor": processor})
        for name, cells in sources.items():
            at, known = self._logged.get(source_key(name), (0.0, None))
            if known == cells[2:] and now - at < IDLE_LINES_EVERY:
                continue
            self._logged[source_key(name)] = (now, cells[2:])
            pending, oldest, key, where, done, refused, again = cells
            since = f", the oldest for {oldest} (key {key}, in {where or 'no task'})" if oldest else ""
            replayed = "" if again == "0" else f", read again: {again}"
            logger.info(
                "source %s: %s under way%s, %s done, %s refused%s", name, pending, since, done, refused, replayed
            )


def _counted(value: str, column: str) -> str:
    return f"{value} {column.removesuffix('s') if value == '1' and not column.endswith('/s') else column}"


class _Fitting:
    """A table with the columns that fit into the terminal."""

    def __init__(self, name: str, columns: Sequence[str], rows: Rows) -> None:
        self._name, self._columns, self._rows = name, columns, rows

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        kept = shown(self._columns, self._rows, self._name, options.max_width)
        drawn = Table(box=None, pad_edge=False, header_style="bold")
        drawn.add_column(self._name, no_wrap=True)
        for column in kept:
            drawn.add_column(column, justify="left" if column == "state" else "right", no_wrap=True)
        for name, cells in self._rows.items():
            drawn.add_row(Text(name), *(cells[self._columns.index(column)] for column in kept))
        yield drawn


def tables(processors: Rows, slots: Rows, sources: Rows | None = None) -> RenderableType:
    """Lays out the rows of the processors, of the sources if there are any, and of the slots."""
    of_sources = [_Fitting("source", SOURCES, sources)] if sources else []
    return Group(_Fitting("processor", PROCESSORS, processors), *of_sources, _Fitting("slot", SLOTS, slots))
