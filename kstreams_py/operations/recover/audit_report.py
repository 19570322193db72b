"""The report of an audit of one processor, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kstreams_py.graph.anomalies import TOLERATED, Kind
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.operations.recover.comparison import FoundAnomaly
from kstreams_py.printable import count_of, join_lines


@dataclass(slots=True)
class AuditReport:
    """The findings of an audit of one processor.

    - `skipped`: why it was not audited; "" if it was.
    - `inputs`: the number of inputs before the committed positions.
    - `unanswered`: how many of these have no output and no dead letter; 0 if no outputs are judged.
    - `unjudged`: the number of outputs and dead letters whose inputs are deleted, not committed yet, or out of range.
    - `counts`: anomalies by kind; `shown`: the first of them.
    - `notes`: what was not judged, and why.
    """

    processor: str
    guarantee: Guarantee
    skipped: str = ""
    inputs: int = 0
    unanswered: int = 0
    outputs: int = 0
    letters: int = 0
    unjudged: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    shown: list[FoundAnomaly] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether the guarantee tolerates all anomalies that were found."""
        return self.counts.keys() <= TOLERATED[self.guarantee]


def describe(report: AuditReport) -> str:
    """Returns the report as lines of text."""
    if report.skipped:
        return f"{report.processor}: not audited: {report.skipped}"
    found = ", ".join(f"{number:,} {kind}" for kind, number in sorted(report.counts.items())) or "clean"
    counts = {"input": report.inputs, "output": report.outputs, "dead letter": report.letters}
    read = ", ".join(count_of(count, thing) for thing, count in counts.items())
    lines = [f"{report.processor}: {read}: {found}{_allowed(report)}"]
    has = "has" if report.unanswered == 1 else "have"
    whose = "its input is" if report.unjudged == 1 else "their inputs are"
    if report.unanswered and Kind.LOST not in report.counts:
        no = f"{has} no output and no dead letter: dropped, skipped, or with the result None"
        lines.append(f"  {count_of(report.unanswered, 'input')} {no}")
    if report.unjudged:
        lines.append(f"  {count_of(report.unjudged, 'record')} not judged: {whose} not in the range that was read")
    lines += [f"  {note}" for note in report.notes]
    lines += [f"  {each}" for each in report.shown]
    if more := report.counts.total() - len(report.shown):
        lines.append(f"  and {more:,} more")
    return join_lines(lines)


def _allowed(report: AuditReport) -> str:
    return f", which {report.guarantee} allows" if report.counts and report.is_clean else ""


def as_fields(report: AuditReport) -> dict[str, Any]:
    """Returns the report as fields for JSON."""
    return {
        "processor": report.processor,
        "guarantee": report.guarantee,
        "skipped": report.skipped,
        "inputs": report.inputs,
        "unanswered": report.unanswered,
        "outputs": report.outputs,
        "dead_letters": report.letters,
        "not_judged": report.unjudged,
        "clean": report.is_clean,
        "counts": dict(sorted(report.counts.items())),
        "notes": report.notes,
        "anomalies": [
            {
                "kind": each.kind,
                "topic": each.place.topic,
                "partition": each.place.partition,
                "offset": each.place.offset,
                "sentence": each.sentence,
            }
            for each in report.shown
        ],
    }
