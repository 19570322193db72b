"""The reports of a worker on its processors, and their sums over slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one processor in one slot.

    - `counters`: counts since the worker started.
    - `lag`: records still to be read; None if not known.
    - `still_seconds`: since the loop last turned, or began another step.
    - `place`: the function, file and line where a loop stands still; "" otherwise.
    """

    processor: str
    slot: int
    counters: Mapping[str, int]
    lag: int | None
    still_seconds: float = 0.0
    place: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The fields as values that JSON can hold."""
        return asdict(self)

    def after(self, past: Mapping[str, int]) -> Report:
        """This report with the counts of earlier workers of the same slot added."""
        return replace(self, counters={name: count + past.get(name, 0) for name, count in self.counters.items()})


def totals(reports: Iterable[Report]) -> dict[str, Report]:
    """Sums reports over slots, by processor; a sum has slot -1, and lag None if one of its reports has no lag."""
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
