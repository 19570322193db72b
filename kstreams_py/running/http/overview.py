"""The contents of /status: everything known about a run, as JSON values. The page is drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kstreams_py.graph.topology import Graph
from kstreams_py.running.http.observed import View
from kstreams_py.running.http.remedies import Problem
from kstreams_py.running.reports import Report, totals
from kstreams_py.running.status import SlotStatus


def timestamp(at: float) -> str:
    """Returns seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def overview(
    graph: Graph,
    view: View | None,
    at: float,
    *,
    still: Sequence[str],
    unready: Sequence[str],
    findings: Sequence[Problem] = (),
) -> dict[str, Any]:
    """Returns the whole answer.

    - `view`: None before the workers start.
    - `at`: the time, in seconds since 1970.
    - `still`, `unready`: what /livez and /readyz report.
    - `findings`: the problems, the worst first.
    """
    slots = () if view is None else view.status.slots
    reports = [report for slot in slots for report in slot.reports]
    sums = totals(reports)
    return {
        "time": timestamp(at),
        "live": not still,
        "ready": not unready,
        "problems": [*still, *(each for each in unready if each not in still)],
        "findings": [{**each._asdict(), "remedy": each.remedy, "runbook": each.runbook} for each in findings],
        "draining": view is not None and view.status.stopping,
        "graph": {
            "name": graph.name,
            "topics": list(graph.topics),
            "processors": [
                {
                    "processor": each.id,
                    "kind": each.kind,
                    "guarantee": each.guarantee,
                    "inputs": [topic.name for topic in each.inputs],
                    "outputs": [topic.name for topic in each.outputs],
                    "target": None if each.target is None else str(each.target),
                    "dead_letters": each.errors,
                    "totals": _totals(sums.get(each.id), view),
                }
                for each in graph.processors
            ],
        },
        "slots": [] if view is None else [_slot(slot, view) for slot in slots],
        "dead_letters": []
        if view is None
        else [
            {"time": timestamp(each.at), "slot": each.slot, "processor": each.processor, "text": each.text}
            for each in view.failures
        ],
    }


def _round(name: str, rate: float) -> float:
    return round(rate, 3 if name == "step_seconds" else 1)


def _totals(total: Report | None, view: View | None) -> dict[str, Any] | None:
    """Returns the sums of a processor over all slots; None before its first report."""
    if total is None or view is None:
        return None
    rates = [rates for (_, processor), rates in view.rates.items() if processor == total.processor]
    return {
        "counts": dict(total.counters),
        "per_second": {name: _round(name, sum(each[name] for each in rates)) for name in rates[0]} if rates else {},
        "lag": total.lag,
    }


def _slot(slot: SlotStatus, view: View) -> dict[str, Any]:
    return {
        "slot": slot.number,
        "process": slot.pid,
        "report_age_seconds": round(slot.silent, 1),
        "replaced": slot.taken or None,
        "restarts": slot.restarts,
        "ends": [{"time": timestamp(end.at), "why": end.why} for end in slot.ends],
        "workers": [_worker(slot, report, view) for report in slot.reports],
    }


def _worker(slot: SlotStatus, report: Report, view: View) -> dict[str, Any]:
    prefix = "renewals:"
    if slot.taken or slot.pid is None:  # these values are from before the end of the process
        report = replace(report, open_seconds=None, why="", hidden_seconds=0.0, hidden="")
    rates = view.rates.get((slot.number, report.processor), {})
    return {
        "processor": report.processor,
        "state": slot.state_of(report.processor),
        "counts": dict(report.counters),
        "per_second": {name: _round(name, rate) for name, rate in rates.items()},
        "renewals": {
            name.removeprefix(prefix): int(count) for name, count in report.measures.items() if name.startswith(prefix)
        },
        "lag": report.lag,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition, "lag": lag}
            for tp, lag in (() if slot.taken else sorted(report.lags.items()))
        ],
        "still_seconds": report.still_seconds,
        "place": report.place or None,
        "open_transaction_seconds": None if report.open_seconds is None else round(report.open_seconds, 3),
        "why": report.why or None,
        "hidden_seconds": report.hidden_seconds,
        "hidden": report.hidden or None,
        "events": None if report.events is None else dict(report.events),
    }
