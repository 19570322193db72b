"""The rows of the live table: its processors over all slots, and its slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kstreams_py.metrics import WorkerState
from kstreams_py.running.reports import Report, totals
from kstreams_py.running.status import RunStatus, SlotStatus

Rows = dict[str, tuple[str, ...]]
"""Cells by the name of their row."""

PROCESSORS: Final = ("state", "partitions", "in", "out", "dead letters", "lag", "records/s", "commits/s")
"""The columns of the processors."""

SLOTS: Final = ("state", "partitions", "up", "restarts")
"""The columns of the slots."""

DROPPED: Final = ("commits/s", "out", "records/s", "in", "partitions", "restarts", "up", "dead letters", "lag")
"""The columns that a narrow terminal leaves out, in this order."""

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
            f"{held:,}",
            *(f"{total.counters[name]:,}" for name in ("records_in", "records_out", "dead_letters")),
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
    kept = list(columns)
    for dropped in DROPPED:
        if _width(columns, kept, rows, name) <= width:
            break
        if dropped in kept:
            kept.remove(dropped)
    return kept


def _width(columns: Sequence[str], kept: Sequence[str], rows: Rows, name: str) -> int:
    widths = [max(map(len, (name, *rows)))]
    for column in kept:
        at = columns.index(column)
        widths.append(max(len(column), *(len(cells[at]) for cells in rows.values())) if rows else len(column))
    return sum(widths) + GAP * len(kept)
