"""The reports of a worker on its processors, and their sums over slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from kstreams_py.metrics import INPUTS, PendingFigures, WorkerState
from kstreams_py.records import Positions, TopicPartition

PEER: Final = "the peer"
"""Stands for the processor's id in the report on the membership of a peer. No id contains a space."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one processor, or of one task, in one slot.

    - `counters`: counts since the worker started.
    - `lag`: records still to be read, and segments that wait for a task; None if unknown.
    - `still_seconds`: seconds since the loop last turned, or began another step.
    - `place`: the function, file and line where a loop is stuck; "" otherwise.
    - `state`: what the worker does.
    - `open_seconds`: the age of its transaction; None if none is open.
    - `measures`: renewals by reason, and histograms (Counters.measures), since the worker started.
    - `lags`: the records still to be read of each partition that it holds; None if unknown.
    - `failure`: the newest failed step, as text; "" if there is none.
    - `why`: the reason for the state; "" if the state has none.
    - `hidden_seconds`: seconds for which open transactions have hidden the newest records of an input; 0 if none.
    - `hidden`: the hidden inputs and the producers of these transactions, as text; "" if there is none.
    - `hidden_partitions`: the number of its partitions with hidden records.
    - `events`: None unless the processor applies events. `held`: how many events wait; `stopped`: how many objects are
      stopped; `held_seconds`: the age of the event that has waited longest; `held_limit`: the age that is reported.
    - `is_task`: whether it is a task, which reads channels.
    - `sources`: by name, the pending inputs of the sources that are shown with this task.
    - `heartbeat_seconds`: for a peer, the seconds since it sent the newest heartbeat that came back; None otherwise.
    """

    processor: str
    slot: int
    counters: Mapping[str, int]
    lag: int | None
    still_seconds: float = 0.0
    place: str = ""
    state: WorkerState = WorkerState.RUNNING
    open_seconds: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    lags: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    failure: str = ""
    why: str = ""
    hidden_seconds: float = 0.0
    hidden: str = ""
    hidden_partitions: int = 0
    events: Mapping[str, float] | None = None
    is_task: bool = False
    sources: Mapping[str, PendingFigures] = field(default_factory=dict)
    heartbeat_seconds: float | None = None

    def head(self) -> dict[str, Any]:
        """Returns the fields of bounded size, as JSON values: all but measures, lags, sources and texts."""
        return {
            "processor": self.processor,
            "slot": self.slot,
            "counters": self.counters,
            "lag": self.lag,
            "still_seconds": self.still_seconds,
            "place": self.place,
            "state": self.state,
            "open_seconds": self.open_seconds,
            "hidden_seconds": self.hidden_seconds,
            "hidden_partitions": self.hidden_partitions,
            "events": self.events,
            "is_task": self.is_task,
            "heartbeat_seconds": self.heartbeat_seconds,
        }

    def as_past(self) -> Report:
        """Returns this report as one from a process that has ended: the counts stay."""
        sources = dict.fromkeys(self.sources, PendingFigures())
        return replace(
            self,
            still_seconds=0.0,
            place="",
            open_seconds=None,
            why="",
            hidden_seconds=0.0,
            hidden="",
            sources=sources,
            heartbeat_seconds=None,
        )

    def after(self, past: Mapping[str, int], measures: Mapping[str, float] | None = None) -> Report:
        """Returns this report plus the counts and measures of earlier workers of the same slot."""
        return replace(
            self,
            counters={name: count + past.get(name, 0) for name, count in self.counters.items()},
            measures=add(self.measures, measures or {}),
        )


class Reading(NamedTuple):
    """What a processor or a task reads from topics.

    - `name`: its id.
    - `positions`: the next offset of each partition that it holds; for a task, the offset before which all is done.
    - `highs`: see Consumer.
    """

    name: str
    positions: Positions
    highs: Positions


def source_key(source: str) -> str:
    """Returns the key of a source in mappings whose other keys are the ids of processors and tasks."""
    return f"source {source}"


def in_graph(graph: str, name: str) -> str:
    """Returns the name of a task or a source in the reports of a peer: several graphs may use the same name."""
    return f"{graph}.{name}"


def add(some: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Returns the sums of two mappings, by name."""
    return {name: some.get(name, 0) + others.get(name, 0) for name in (*some, *(n for n in others if n not in some))}


def totals(reports: Iterable[Report]) -> dict[str, Report]:
    """Sums reports over slots, by processor. A sum has slot -1, and lag None if one of its reports has no lag.

    Only its fields `counters`, `lag` and `is_task` are set.
    """
    found: dict[str, Report] = {}
    for report in reports:
        total = found.get(report.processor)
        if total is None:
            found[report.processor] = Report(report.processor, -1, report.counters, report.lag, is_task=report.is_task)
        else:
            found[report.processor] = replace(
                total.after(report.counters),
                lag=None if total.lag is None or report.lag is None else total.lag + report.lag,
            )
    return found


def inputs_of(reports: Iterable[Report], source: str) -> dict[str, int]:
    """Returns the counts of the inputs of a source over all slots, by the names in INPUTS."""
    measures = [report.measures for report in reports]
    return {name: int(sum(each.get(f"inputs:{name}:{source}", 0) for each in measures)) for name in INPUTS}


def show_totals(reports: Sequence[Report]) -> str:
    """Returns what the tasks of a run have done, as text: the inputs of each source, and the values of each task."""
    parts = list[str]()
    for name in dict.fromkeys(name for report in reports for name in report.sources):
        counts = inputs_of(reports, name)
        parts.append(f"{source_key(name)}: {counts['done']:,} done, {counts['refused']:,} refused")
    for task, total in totals(reports).items():
        parts.append(
            f"{task}: {total.counters.get('records_in', 0):,} in, {total.counters.get('records_out', 0):,} out"
        )
    return "; ".join(parts)
