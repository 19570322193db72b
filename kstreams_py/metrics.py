"""What is counted and reported: per processor, records in and out, dead letters, commits, lag."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kstreams_py.record import Positions
from kstreams_py.task import Plan


@dataclass(slots=True)
class Counters:
    """Counts of one processor in one worker since it started; only that worker's thread writes them."""

    records_in: int = 0
    records_out: int = 0
    dead_letters: int = 0
    commits: int = 0
    aborts: int = 0

    def stepped(self, plan: Plan) -> None:
        """A plan was carried out (not yet committed)."""
        self.records_in += plan.records
        self.records_out += len(plan.outputs) - plan.letters
        self.dead_letters += len(plan.failures)

    def committed(self) -> None:
        """A transaction was committed."""
        self.commits += 1

    def aborted(self) -> None:
        """Work was given up and will be done again."""
        self.aborts += 1

    def as_dict(self) -> dict[str, int]:
        """Name to count."""
        return asdict(self)


def lag(positions: Positions, ends: Positions) -> int:
    """Records (and markers) between the positions and the last stable offsets."""
    return sum(max(0, ends.get(tp, position) - position) for tp, position in positions.items())


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of one processor in one slot: its counts since it started, its lag (None if not known)."""

    processor: str
    slot: int
    counters: Mapping[str, int]
    lag: int | None
    still_seconds: float = 0.0
    """Since its loop last turned, or went on to another step."""
    place: str = ""
    """Where it is if it stands still: a function, its file and line."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for a line of JSON."""
        return asdict(self)

    def after(self, past: Mapping[str, int]) -> Report:
        """This report with the counts of earlier workers of the same slot added."""
        return replace(self, counters={name: count + past.get(name, 0) for name, count in self.counters.items()})


def totals(reports: Iterable[Report]) -> dict[str, Report]:
    """Per processor, the sum over slots (slot -1); the lag is None if one slot does not know its own."""
    found: dict[str, Report] = {}
    for report in reports:
        total = found.get(report.processor)
        if total is None:
            found[report.processor] = replace(report, slot=-1)
        else:
            found[report.processor] = replace(
                total.after(report.counters),
                lag=None if total.lag is None or report.lag is None else total.lag + report.lag,
            )
    return found
