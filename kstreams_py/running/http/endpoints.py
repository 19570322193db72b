"""The answers of the HTTP endpoints: /, /runbook, /metrics, /livez, /readyz, and /status with all that is known."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Channel, Processor
from kstreams_py.graph.loading import UNKNOWN
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.source import InspectedSource
from kstreams_py.metrics import INPUTS
from kstreams_py.printable import join_lines
from kstreams_py.running.health import still, unready
from kstreams_py.running.http.coverage import cover
from kstreams_py.running.http.observed import ObservedRun, View
from kstreams_py.running.http.page import Page, build_page
from kstreams_py.running.http.remedies import Problem, Seen, find
from kstreams_py.running.http.runbook import build_runbook
from kstreams_py.running.http.series import CONTENT_TYPE, exposition
from kstreams_py.running.peer_graphs import PeerGraphs, Shown, name_sources, name_tasks, target_of
from kstreams_py.running.reports import PEER, Report, source_key, totals
from kstreams_py.running.status import RunStatus, SlotStatus


def timestamp(at: float) -> str:
    """Returns seconds since 1970 as ISO 8601, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def overview(
    graph: Shown,
    view: View | None,
    at: float,
    *,
    still: Sequence[str],
    unready: Sequence[str],
    findings: Sequence[Problem] = (),
    target: str = "GRAPH",
) -> dict[str, Any]:
    """Returns the whole answer of /status.

    - `view`: None before the workers start.
    - `at`: the time, in seconds since 1970.
    - `still`, `unready`: what /livez and /readyz report.
    - `findings`: the problems, the worst first.
    - `target`: how a command names the graph.
    """
    slots = () if view is None else view.status.slots
    named = "" if target == UNKNOWN else target
    reports = [report for slot in slots for report in slot.reports]
    sums = totals(reports)
    return {
        "time": timestamp(at),
        "live": not still,
        "ready": not unready,
        "problems": [*still, *(each for each in unready if each not in still)],
        "findings": [{**each._asdict(), "remedy": each.remedy(named), "runbook": each.runbook} for each in findings],
        "draining": view is not None and view.status.stopping,
        "graph": {
            "name": graph.name,
            "target": target,
            "topics": list(graph.topics),
            "processors": [
                {**fields, "totals": _totals(sums.get(fields["processor"]), view)}
                for fields in (
                    *map(_processor, graph.processors),
                    *(_task(name, task) for name, task in name_tasks(graph).items()),
                )
            ],
            "sources": [_source(name, channel, view) for name, channel in name_sources(graph).items()],
            "pipelines": [_pipeline(each) for each in graph.pipelines],
        },
        "slots": [] if view is None else [_slot(slot, view) for slot in slots],
        "cluster": None if view is None or view.status.cluster is None else cover(view.status.cluster),
        "dead_letters_waiting": []
        if view is None
        else [
            {"topic": topic, "count": count.known, "counted": count.counted, "why": count.why or None}
            for topic, count in view.status.waiting.items()
        ],
        "dead_letters": []
        if view is None
        else [
            {"time": timestamp(each.at), "slot": each.slot, "processor": each.processor, "text": each.text}
            for each in view.failures
        ],
    }


def _processor(processor: Processor) -> dict[str, Any]:
    return {
        "processor": processor.id,
        "kind": processor.kind,
        "ordered": processor.ordered is not None,
        "guarantee": processor.guarantee,
        "inputs": [topic.name for topic in processor.inputs],
        "outputs": [topic.name for topic in processor.outputs],
        "target": None if processor.target is None else str(processor.target),
        "dead_letters": processor.errors,
        "is_task": False,
    }


def _task(name: str, task: JobTask) -> dict[str, Any]:
    return {
        "processor": name,
        "kind": task.word,
        "ordered": False,
        "guarantee": "at_least_once",
        "inputs": [channel.name for channel in task.inputs],
        "outputs": [each.name for each in task.written],
        "target": None if task.target is None else str(task.target),
        "dead_letters": next((channel.errors for channel in task.inputs if channel.errors), None),
        "is_task": True,
    }


def _source(name: str, channel: Channel, view: View | None) -> dict[str, Any]:
    """Returns a source with its figures over all slots, which are None before its first report."""
    slots = () if view is None else view.status.slots
    shown = [(slot, report) for slot in slots for report in slot.reports if name in report.sources]
    counts = {each: sum(report.measures.get(f"inputs:{each}:{name}", 0) for _, report in shown) for each in INPUTS}
    pending = [report.sources[name] for slot, report in shown if slot.pid is not None and not slot.taken]
    rates = [] if view is None else [each for (_, key), each in view.rates.items() if key == source_key(name)]
    totals = {
        "counts": {each: int(count) for each, count in counts.items()},
        "per_second": {each: round(sum(rate[each] for rate in rates), 1) for each in rates[0]} if rates else {},
        "pending": sum(each.pending for each in pending),
        "oldest_seconds": max((each.seconds for each in pending), default=0.0),
    }
    return {
        "source": name,
        "medium": f"topic {channel.name}" if channel.source is None else str(channel.source),
        "totals": totals if shown else None,
    }


def _pipeline(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "pipeline": pipeline.id,
        "mode": pipeline.mode,
        "every_seconds": pipeline.every,
        "inputs": [topic.name for topic in pipeline.inputs],
        "target": str(pipeline.target),
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
        "sources": [
            {
                "source": name,
                "pending": each.pending,
                "oldest_seconds": each.seconds,
                "oldest_key": each.key or None,
                "oldest_tasks": list(each.tasks),
                "oldest_limit": each.limit,
                "why": each.why or None,
            }
            for report in slot.reports
            for name, each in (() if slot.taken or slot.pid is None else report.sources.items())
        ],
    }


def _worker(slot: SlotStatus, report: Report, view: View) -> dict[str, Any]:
    prefix = "renewals:"
    if slot.taken or slot.pid is None:  # these values are from before the end of the process
        report = report.as_past()
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
        "failed_segments": int(report.measures.get("failed", 0)),
    }


logger = logging.getLogger(__name__)

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"


class Answer(NamedTuple):
    """Status, content type and body of an HTTP response, and its Content-Security-Policy."""

    status: int
    content_type: str
    body: bytes
    policy: str = "default-src 'none'"


class Endpoints:
    """The endpoints of one run. Several threads may use them.

    - `still_limit`: seconds without a turn after which a worker counts as not alive.
    - `clock`, `wall`: monotonic seconds, and seconds since 1970.
    """

    def __init__(
        self,
        graph: Shown,
        observed: ObservedRun,
        still_limit: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._graph = graph
        self._observed = observed
        self._still_limit = still_limit
        self._clock = clock
        self._wall = wall
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": lambda: Answer(200, HTML, *self._page),  # built at the first request
            "/runbook": lambda: Answer(200, HTML, *self._runbook),
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/status": self._status,
        }

    def answer(self, path: str) -> Answer:
        """Returns the response to a GET of this path; its query is ignored."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return Answer(404, TEXT, f"no such page: use {', '.join(self._pages)}\n".encode())
        try:
            return page()
        except Exception:  # a bug here must not end the run
            logger.exception("%s failed", path)
            return Answer(500, TEXT, b"this page failed: the log has the reason\n")

    @cached_property
    def _page(self) -> Page:
        return build_page(self._graph)

    @cached_property
    def _target(self) -> str:
        return target_of(self._graph)

    @cached_property
    def _runbook(self) -> Page:
        return build_runbook()

    def _metrics(self) -> Answer:
        view = self._observed.read()
        status = RunStatus((), self._clock()) if view is None else view.status
        return Answer(200, CONTENT_TYPE, exposition(self._graph.name, status))

    def _livez(self) -> Answer:
        return _health(self._still(self._observed.read()))

    def _readyz(self) -> Answer:
        return _health(self._unready(self._observed.read()))

    def _status(self) -> Answer:
        view = self._observed.read()  # only once, because it may wait
        found = overview(
            self._graph,
            view,
            self._wall(),
            still=self._still(view),
            unready=self._unready(view),
            findings=self._findings(view),
            target=self._target,
        )
        return Answer(200, JSON, json.dumps(found).encode())

    def _findings(self, view: View | None) -> list[Problem]:
        if view is None:
            return []
        now, wall = self._clock(), self._wall()
        forgetful = {
            name
            for name, channel in name_sources(self._graph).items()
            if channel.source is not None and not isinstance(channel.source, InspectedSource)
        }
        seen = Seen(view.status, view.rates, view.lagging, view.failing, now, wall, self._still_limit, forgetful)
        return find(self._graph.processors, seen)

    def _still(self, view: View | None) -> list[str]:
        """Returns what is stuck, and since when."""
        if view is None:  # a start that fails ends by itself
            return []
        return [
            f"{each.what} since {timestamp(self._wall() - each.seconds)} ({each.seconds:.0f} s)"
            for each in still(view.status, self._clock(), self._still_limit)
        ]

    def _unready(self, view: View | None) -> list[str]:
        if view is None:
            return ["the run is starting"]
        ids = [*(each.id for each in self._graph.processors), *name_tasks(self._graph)]
        if isinstance(self._graph, PeerGraphs):  # a peer has one task, or none
            ids = [PEER]
        return self._still(view) + unready(view.status, ids)


def _health(problems: list[str]) -> Answer:
    return Answer(503 if problems else 200, TEXT, f"{join_lines(problems or ['ok'])}\n".encode())
