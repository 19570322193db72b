"""The endpoints of a run: every series as text, the contents of /status, the answers of health, the server."""

from __future__ import annotations

import builtins
import http.client
import io
import itertools
import json
import logging
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kstreams_py import Graph, Settings
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.hosts import is_own_host
from kstreams_py.metrics import RENEWALS, Counters, InputCounts, PendingFigures, StepCounts, WorkerState
from kstreams_py.processing.dead_letters.waiting import WaitingCount
from kstreams_py.records import TopicPartition
from kstreams_py.running import wiring
from kstreams_py.running.http import server as server_module
from kstreams_py.running.http.endpoints import Answer, Endpoints
from kstreams_py.running.http.observed import FAILURES_KEPT, RATES, Failed, ObservedRun
from kstreams_py.running.http.page import build_page
from kstreams_py.running.http.remedies import REMEDIES, RUNBOOK, Problem
from kstreams_py.running.http.runbook import build_runbook
from kstreams_py.running.http.series import SERIES, exposition, meanings
from kstreams_py.running.http.server import CONNECTIONS_MAX, REQUEST_MAX, _head, serving
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from kstreams_py.running.wiring import observing
from kstreams_py.sinks import Parquet
from kstreams_py.testing import ManualClock, TestDriver
from tests.tables import each_case

GRAPH = Graph("shop", errors="shop.errors")
GRAPH.map(GRAPH.topic("orders"), to=GRAPH.topic("prices"), id="price")(lambda value: value)


def make_report(**changed: Any) -> Report:
    counters = Counters()
    counters.settled(StepCounts(7, 5, 1, 0, 50))
    counters.undone(StepCounts(3))
    counters.ran(7, 0.014)
    counters.committed(0.02)
    counters.committed(7.0)
    counters.renewed("fenced")
    counters.rebalanced()
    counters.bytes_in = 70
    report = Report(
        "price",
        1,
        counters.as_dict(),
        4,
        open_seconds=0.25,
        measures=counters.measures(),
        lags={TopicPartition("orders", 0): 4, TopicPartition("orders", 1): None},
        failure="KeyError: 'x' (reading orders[0]@3)",
    )
    return replace(report, **changed)


WAITING = {
    "shop.errors": WaitingCount(19, is_whole=True),
    "shop.more": WaitingCount(7),
    "shop.secret": WaitingCount(why="READ on shop.secret is missing"),
}


def make_status(report: Report | None = None, **changed: Any) -> RunStatus:
    slot = SlotStatus(1, 4711, (report or make_report(),), silent=0.5, restarts=2, ends=(End(1_000_000.0, "SIGKILL"),))
    return RunStatus((replace(slot, **changed),), 100.0)


def parse(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each sample, by the values of its labels after `graph`."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert sample.labels.pop("graph") == "shop"
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


# Series.

WORKER = 'graph="shop",processor="price",slot="1"'

TEXT = f"""\
kstreams_records_in_total{{{WORKER}}} 7.0
kstreams_records_out_total{{{WORKER}}} 5.0
kstreams_dead_letters_total{{{WORKER}}} 1.0
kstreams_dropped_total{{{WORKER}}} 0.0
kstreams_rolled_back_total{{{WORKER}}} 3.0
kstreams_commits_total{{{WORKER}}} 2.0
kstreams_aborts_total{{{WORKER}}} 0.0
kstreams_retries_total{{{WORKER}}} 0.0
kstreams_bytes_in_total{{{WORKER}}} 70.0
kstreams_bytes_out_total{{{WORKER}}} 50.0
kstreams_rebalances_total{{{WORKER}}} 1.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="late_request",slot="1"}} 0.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="unknown_outcome",slot="1"}} 0.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="fenced",slot="1"}} 1.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="timed_out",slot="1"}} 0.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="abort_failed",slot="1"}} 0.0
kstreams_producer_renewals_total{{graph="shop",processor="price",reason="failure",slot="1"}} 0.0
kstreams_step_seconds_bucket{{graph="shop",le="1e-05",processor="price",slot="1"}} 0.0
kstreams_step_seconds_bucket{{graph="shop",le="0.0001",processor="price",slot="1"}} 0.0
kstreams_step_seconds_bucket{{graph="shop",le="0.001",processor="price",slot="1"}} 0.0
kstreams_step_seconds_bucket{{graph="shop",le="0.01",processor="price",slot="1"}} 7.0
kstreams_step_seconds_bucket{{graph="shop",le="0.1",processor="price",slot="1"}} 7.0
kstreams_step_seconds_bucket{{graph="shop",le="1.0",processor="price",slot="1"}} 7.0
kstreams_step_seconds_bucket{{graph="shop",le="10.0",processor="price",slot="1"}} 7.0
kstreams_step_seconds_bucket{{graph="shop",le="+Inf",processor="price",slot="1"}} 7.0
kstreams_step_seconds_count{{{WORKER}}} 7.0
kstreams_step_seconds_sum{{{WORKER}}} 0.014
kstreams_commit_seconds_bucket{{graph="shop",le="0.01",processor="price",slot="1"}} 0.0
kstreams_commit_seconds_bucket{{graph="shop",le="0.025",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="0.05",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="0.1",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="0.25",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="0.5",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="1.0",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="5.0",processor="price",slot="1"}} 1.0
kstreams_commit_seconds_bucket{{graph="shop",le="+Inf",processor="price",slot="1"}} 2.0
kstreams_commit_seconds_count{{{WORKER}}} 2.0
kstreams_commit_seconds_sum{{{WORKER}}} 7.02
kstreams_lag_records{{graph="shop",partition="0",processor="price",slot="1",topic="orders"}} 4.0
kstreams_partitions{{{WORKER}}} 2.0
kstreams_worker_state{{graph="shop",processor="price",slot="1",state="running"}} 1.0
kstreams_still_seconds{{{WORKER}}} 0.0
kstreams_open_transaction_seconds{{{WORKER}}} 0.25
kstreams_hidden_seconds{{{WORKER}}} 0.0
kstreams_dead_letters_waiting{{graph="shop",topic="shop.errors"}} 19.0
kstreams_restarts_total{{graph="shop",slot="1"}} 2.0
kstreams_up{{graph="shop",slot="1"}} 1.0
kstreams_report_age_seconds{{graph="shop",slot="1"}} 0.5
"""


def test_every_series_of_a_worker_is_written_as_text() -> None:
    lines = exposition("shop", replace(make_status(), waiting=WAITING)).decode().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) == TEXT


INPUTS = """\
kstreams_pending_inputs{graph="shop",slot="1",source="rows"} 3.0
kstreams_oldest_pending_seconds{graph="shop",slot="1",source="rows"} 61.5
kstreams_oldest_pending_task_seconds{graph="shop",processor="price",slot="1",source="rows"} 61.5
kstreams_done_inputs_total{graph="shop",slot="1",source="rows"} 40.0
kstreams_refused_inputs_total{graph="shop",slot="1",source="rows"} 2.0
kstreams_replayed_inputs_total{cause="died",graph="shop",slot="1",source="rows"} 5.0
kstreams_replayed_inputs_total{cause="expired",graph="shop",slot="1",source="rows"} 1.0
kstreams_replayed_inputs_total{cause="raised",graph="shop",slot="1",source="rows"} 0.0
kstreams_replayed_inputs_total{cause="given_back",graph="shop",slot="1",source="rows"} 0.0
kstreams_failed_segments_total{graph="shop",processor="price",slot="1"} 4.0
kstreams_unpaired_segments_total{graph="shop",processor="price",slot="1"} 6.0
kstreams_late_acks_total{graph="shop",kind="completed",slot="1"} 7.0
kstreams_late_acks_total{graph="shop",kind="dropped",slot="1"} 8.0
"""


def test_series_of_tasks_and_sources_are_written_only_for_those() -> None:
    counts = InputCounts(done=40, refused=2, died=5, expired=1).measures("rows")
    measures = {**make_report().measures, **counts, "failed": 4, "unpaired": 6, "acks:completed": 7, "acks:dropped": 8}
    report = make_report(measures=measures, sources={"rows": PendingFigures(3, 61.5, "13", ("price",))})
    lines = exposition("shop", replace(make_status(report), waiting=WAITING)).decode().splitlines(keepends=True)
    assert "".join(each for each in lines if not each.startswith("#") and each not in TEXT) == INPUTS
    ended = parse(exposition("shop", make_status(report, pid=None)))
    assert [ended[f"kstreams_{name}"] for name in ("pending_inputs", "done_inputs_total")] == [
        {("1", "rows"): 0.0}, {("1", "rows"): 40.0},
    ]  # fmt: skip


def test_labels_are_escaped() -> None:
    topic = 'a"b\\c\nd\\n'
    report = make_report(lags={TopicPartition(topic, 0): 4})
    lags = parse(exposition("shop", make_status(report)))["kstreams_lag_records"]
    assert {frozenset(labels) for labels in lags} == {frozenset({"price", "1", topic, "0"})}


def test_every_series_has_its_kind_and_its_meaning_from_the_table() -> None:
    lines = exposition("shop", RunStatus((), 0.0)).decode().splitlines()
    expected = []
    for series, (name, meaning) in zip(SERIES, meanings().items(), strict=True):
        expected += [f"# HELP {name} {meaning}", f"# TYPE {name} {series.kind}"]
    assert lines == expected


def test_every_count_and_measure_of_a_worker_has_a_series() -> None:
    samples = parse(exposition("shop", make_status()))
    assert {f"kstreams_{name}_total" for name in Counters().as_dict()} <= samples.keys()
    assert {key[1] for key in samples["kstreams_producer_renewals_total"]} == set(RENEWALS)


def test_slot_that_a_worker_elsewhere_holds_keeps_its_counts_and_has_no_lag() -> None:
    samples = parse(exposition("shop", make_status(taken="Replaced: by m7", pid=None)))
    assert "kstreams_lag_records" not in samples
    assert (samples["kstreams_records_in_total"], samples["kstreams_partitions"], samples["kstreams_up"]) == (
        {("price", "1"): 7.0}, {("price", "1"): 0.0}, {("1",): 0.0},
    )  # fmt: skip
    assert samples["kstreams_worker_state"] == {("price", "1", "replaced"): 1.0}


# What is observed.


def test_rates_are_the_growth_of_counts_by_worker() -> None:
    observed, rates = ObservedRun(clock=lambda: 0.0), []
    for at, records in ((10.0, 100), (10.5, 200), (12.0, 500)):
        observed.note(replace(make_status(make_report(counters={"records_in": records})), looked_at=at))
        view = observed.read()
        assert view is not None
        rates.append(view.rates[1, "price"]["records_in"])
    assert rates == [0.0, 0.0, 200.0]


def test_time_since_the_last_failed_step_begins_again_with_each() -> None:
    observed, seen = ObservedRun(clock=lambda: 0.0), []
    for at, *failed in ((10.0, 0, 0), (11.0, 2, 0), (15.0, 2, 0), (16.0, 2, 1)):
        counters = dict(zip(("dead_letters", "dropped"), map(int, failed), strict=True))
        observed.note(replace(make_status(make_report(counters=counters)), looked_at=at))
        view = observed.read()
        assert view is not None
        seen.append(view.failing)
    assert seen == [{}, {(1, "price"): 0.0}, {(1, "price"): 4.0}, {(1, "price"): 0.0}]


def test_failures_are_kept_newest_first_once_each_and_a_bounded_number() -> None:
    observed = ObservedRun(clock=lambda: 0.0, wall=lambda: 5.0)
    for text in ("", "first", "first", *(str(number) for number in range(FAILURES_KEPT)), "last"):
        observed.note(make_status(make_report(failure=text)))
    view = observed.read()
    assert view is not None
    assert len(view.failures) == FAILURES_KEPT
    assert view.failures[0] == Failed(5.0, 1, "price", "last")
    assert [each.text for each in view.failures[1:]] == [str(n) for n in range(FAILURES_KEPT - 1, 0, -1)]


# Answers.


class Site:
    """The endpoints of a run of GRAPH, with a clock of their own."""

    def __init__(self, *, shows_errors: bool = True) -> None:
        self.clock = ManualClock()
        self.clock.advance(100.0 - self.clock())
        self.observed = ObservedRun(self.clock, lambda: 1_000_000.0, shows_errors=shows_errors)
        self.endpoints = Endpoints(GRAPH, self.observed, 30.0, self.clock, lambda: 1_000_000.0)

    def note(self, **changed: Any) -> None:
        self.observed.note(make_status(**changed))

    def get(self, path: str) -> tuple[int, str]:
        found = self.endpoints.answer(path)
        return found.status, found.body.decode()


def test_run_that_starts_is_alive_and_not_ready_and_has_no_samples() -> None:
    site = Site()
    assert (site.get("/livez"), site.get("/readyz")) == ((200, "ok\n"), (503, "the run is starting\n"))
    assert parse(site.endpoints.answer("/metrics").body) == {}
    assert json.loads(site.get("/status")[1])["slots"] == []


def test_run_whose_workers_turn_is_alive_and_ready() -> None:
    site = Site()
    site.note()
    assert (site.get("/livez"), site.get("/readyz?verbose")) == ((200, "ok\n"), (200, "ok\n"))


def test_worker_that_does_not_turn_is_named_with_the_time_since_when() -> None:
    site = Site()
    site.note(silent=40.0)
    line = "slot 1: its process (4711) has not reported since 1970-01-12T13:46:00Z (40 s)\n"
    assert (site.get("/livez"), site.get("/readyz")) == ((503, line), (503, line))


def test_metrics_have_the_content_type_of_the_text_format() -> None:
    site = Site()
    site.note()
    found = site.endpoints.answer("/metrics")
    assert found == Answer(200, "text/plain; version=0.0.4; charset=utf-8", exposition("shop", make_status()))


def test_page_is_served_as_html_with_its_policy() -> None:
    html, policy = build_page(GRAPH)
    assert Site().endpoints.answer("/") == Answer(200, "text/html; charset=utf-8", html, policy)


def test_runbook_is_served_as_html_with_its_policy() -> None:
    html, policy = build_runbook()
    assert Site().endpoints.answer("/runbook") == Answer(200, "text/html; charset=utf-8", html, policy)


def test_status_names_ordered_processors_and_pipelines_with_their_inputs_and_targets() -> None:
    graph = Graph("airport")
    applied, counts = graph.topic("applied"), graph.topic("counts")
    graph.ordered(graph.topic("events"), to=applied, id="apply")(lambda event: event)
    graph.pipeline("events", applied, to=Parquet("gates"), id="gates", every="2 minutes")(lambda df_1, df_2: df_1)
    graph.pipeline(applied, to=counts, id="count", mode="append")(lambda df: df)
    found = json.loads(Endpoints(graph, ObservedRun(), 30.0).answer("/status").body)["graph"]
    assert [(each["processor"], each["kind"], each["ordered"]) for each in found["processors"]] == [
        ("apply", "map", True)
    ]
    assert found["pipelines"] == [
        {
            "pipeline": "gates",
            "mode": "complete",
            "every_seconds": 120,
            "inputs": ["events", "applied"],
            "target": "gates",
        },
        {"pipeline": "count", "mode": "append", "every_seconds": 60, "inputs": ["applied"], "target": "counts"},
    ]


def test_unknown_path_names_those_that_exist() -> None:
    assert Site().get("/metric") == (404, "no such page: use /, /runbook, /metrics, /livez, /readyz, /status\n")


def test_page_that_fails_is_logged_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    monkeypatch.setattr(site.observed, "read", lambda: 1 / 0)
    assert site.get("/livez") == (500, "this page failed: the log has the reason\n")
    assert "ZeroDivisionError" in caplog.text


def test_status_has_all_that_the_page_needs() -> None:
    site = Site()
    site.note()
    site.observed.note(replace(make_status(make_report(state=WorkerState.JOINING)), waiting=WAITING))
    letters = [
        ("warning", "waiting", "19 dead letters wait in shop.errors"),
        ("warning", "waiting", "at least 7 dead letters wait in shop.more"),
        (
            "note",
            "waiting_unknown",
            "it is not known how many dead letters wait in shop.secret: READ on shop.secret is missing",
        ),
    ]
    of_letters: list[dict[str, Any]] = [
        {
            "level": level,
            "kind": kind,
            "slot": None,
            "processor": None,
            "what": what,
            "remedy": Problem("note", kind, None, None, "").remedy("tests.unit.test_endpoints"),
            "runbook": "KstreamsDeadLettersWait",
            "affects": [],
            "source": None,
        }
        for level, kind, what in letters
    ]
    rates = dict.fromkeys((*RATES, "step_seconds", "lag"), 0.0)
    counts = {
        "records_in": 7, "records_out": 5, "dead_letters": 1, "dropped": 0, "rolled_back": 3, "commits": 2, "aborts": 0,
        "retries": 0, "bytes_in": 70, "bytes_out": 50, "rebalances": 1,
    }  # fmt: skip
    assert json.loads(site.get("/status")[1]) == {
        "time": "1970-01-12T13:46:40Z",
        "live": True,
        "ready": False,
        "problems": ["slot 1: price is joining"],
        "findings": [
            {
                "level": "warning",
                "kind": "dead_letters",
                "slot": None,
                "processor": "price",
                "what": "price: 1 failed step since the run started, the last 0 s ago; a worker that was restarted may "
                "not have reported all",
                "affects": [],
                "source": None,
                "remedy": "See `kstreams dead-letters list tests.unit.test_endpoints`, fix the cause, then run "
                "`kstreams dead-letters replay tests.unit.test_endpoints`.",
                "runbook": RUNBOOK["dead_letters"],
            },
            *of_letters[:2],
            {
                "level": "note",
                "kind": "joining",
                "slot": 1,
                "processor": "price",
                "what": "slot 1: price is joining",
                "affects": [],
                "source": None,
                "remedy": REMEDIES["joining"],
                "runbook": RUNBOOK["joining"],
            },
            of_letters[2],
        ],
        "draining": False,
        "graph": {
            "name": "shop",
            "target": "tests.unit.test_endpoints",
            "topics": ["orders", "prices", "shop.errors"],
            "processors": [
                {
                    "processor": "price",
                    "kind": "map",
                    "ordered": False,
                    "guarantee": "exactly_once",
                    "inputs": ["orders"],
                    "outputs": ["prices"],
                    "target": None,
                    "dead_letters": "shop.errors",
                    "is_task": False,
                    "totals": {"counts": counts, "per_second": rates, "lag": 4},
                }
            ],
            "sources": [],
            "pipelines": [],
        },
        "slots": [
            {
                "slot": 1,
                "process": 4711,
                "report_age_seconds": 0.5,
                "replaced": None,
                "restarts": 2,
                "ends": [{"time": "1970-01-12T13:46:40Z", "why": "SIGKILL"}],
                "workers": [
                    {
                        "processor": "price",
                        "state": "joining",
                        "counts": counts,
                        "per_second": rates,
                        "renewals": {"fenced": 1},
                        "lag": 4,
                        "partitions": [
                            {"topic": "orders", "partition": 0, "lag": 4},
                            {"topic": "orders", "partition": 1, "lag": None},
                        ],
                        "still_seconds": 0.0,
                        "place": None,
                        "open_transaction_seconds": 0.25,
                        "why": None,
                        "hidden_seconds": 0.0,
                        "hidden": None,
                        "events": None,
                        "failed_segments": 0,
                    }
                ],
                "sources": [],
            }
        ],
        "cluster": None,
        "dead_letters_waiting": [
            {"topic": "shop.errors", "count": 19, "counted": 19, "why": None},
            {"topic": "shop.more", "count": None, "counted": 7, "why": None},
            {"topic": "shop.secret", "count": None, "counted": 0, "why": "READ on shop.secret is missing"},
        ],
        "dead_letters": [
            {"time": "1970-01-12T13:46:40Z", "slot": 1, "processor": "price", "text": make_report().failure}
        ],
    }


def test_status_without_the_texts_of_exceptions_has_their_classes() -> None:
    site = Site(shows_errors=False)
    sources = {"rows": PendingFigures(1, 2.0, "4111", ("price",), "card 4111")}
    report = make_report(failure="ValueError: card 4111\nnext: 5", why="SinkAway: card 4111", sources=sources)
    found: dict[str, Any] = {}
    site.observed.note(make_status(report, ends=(End(1.0, "MemoryError: card 4111"), End(2.0, "SIGKILL")), taken=""))
    for path in ("/status", "/metrics", "/livez", "/readyz", "/"):
        text = site.get(path)[1]
        assert "4111" not in text
        found[path] = text
    (slot,) = json.loads(found["/status"])["slots"]
    assert [end["why"] for end in slot["ends"]] == ["MemoryError", "SIGKILL"]
    assert [each["text"] for each in json.loads(found["/status"])["dead_letters"]] == ["ValueError"]


@pytest.mark.parametrize("changed", [{"pid": None}, {"pid": None, "taken": "Replaced: by m7"}])
def test_status_does_not_show_what_held_up_a_process_that_has_ended(changed: dict[str, Any]) -> None:
    site = Site()
    site.note(report=make_report(why="no answer", hidden_seconds=20.0, hidden="orders[0] by billing"), **changed)
    (worker,) = json.loads(site.get("/status")[1])["slots"][0]["workers"]
    names = ("why", "hidden_seconds", "hidden", "open_transaction_seconds")
    assert [worker[name] for name in names] == [None, 0.0, None, None]
    assert len(worker["partitions"]) == (0 if "taken" in changed else 2)


# The server.


HEADERS = ("Content-Type", "Content-Length", "Content-Security-Policy", "X-Content-Type-Options")


def request(url: str, method: str = "GET", path: str = "/a?b") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, {name: response.headers[name] for name in HEADERS}, body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_server_answers_what_it_is_given_at_its_address(host: str) -> None:
    with serving(f"{host}:0", lambda path: Answer(503, "text/x", path.encode(), "none")) as url:
        headers = dict(zip(HEADERS, ("text/x", "4", "none", "nosniff"), strict=True))
        assert request(url) == (503, headers, b"/a?b")
        assert request(url, "HEAD") == (503, headers, b"")
    with pytest.raises(ConnectionRefusedError):
        request(url)


def test_connection_that_sends_nothing_keeps_no_other_from_its_answer() -> None:
    with serving("127.0.0.1:0", lambda path: Answer(200, "text/x", b"ok")) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert request(url)[2] == b"ok"


@pytest.fixture
def served() -> Iterator[tuple[str, int]]:
    """The address of a server."""
    with serving("127.0.0.1:0", lambda path: Answer(200, "text/x", b"ok")) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        yield host, int(port)


def ends(connection: socket.socket) -> bool:
    """Whether the server has ended a connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def sends(connection: socket.socket, data: bytes) -> bool:
    """Sends data; False if the server has ended the connection."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return False
    return True


def test_connections_over_the_limit_end_the_oldest_and_the_newest_is_answered(served: tuple[str, int]) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(socket.create_connection(served, timeout=60)) for _ in range(CONNECTIONS_MAX + 9)]
        assert request(f"http://{served[0]}:{served[1]}")[2] == b"ok"
        assert [ends(each) for each in many[:10]] == [True] * 10
        many[-1].sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert many[-1].recv(12) == b"HTTP/1.0 200"


def test_request_that_comes_byte_by_byte_is_ended_at_its_deadline(
    served: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTION_SECONDS", 0.2)
    with socket.create_connection(served, timeout=0.01) as slow:
        for byte in itertools.cycle(b"X-Never: ends "):
            with suppress(TimeoutError):
                if not sends(slow, bytes([byte])) or ends(slow):
                    break


def test_request_is_read_up_to_a_limit() -> None:
    endless = io.BytesIO(b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 100_000)
    assert len(_head(endless)) == REQUEST_MAX
    assert _head(io.BytesIO(b"GET / HTTP/1.0\r\nX: y\r\n\r\nmore")) == b"GET / HTTP/1.0\r\nX: y\r\n\r\n"


@each_case(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8080", True),
        ("10.1.2.3:8080", True),
        ("[::1]:8080", True),
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("own.example:8080", True),
        ("evil.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example@127.0.0.1", False),
        ("own.example, evil.example", False),
        ("127.0.0.1\n", True),
        ("", False),
    ],
)
def test_host_is_this_servers_by_an_address_or_a_name_of_its_own(host: str, is_own: bool) -> None:
    assert is_own_host(host, {"own.example", ""}) is is_own
    assert is_own_host(host, {"*"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        (["127.0.0.1"], 200),
        (["own.example"], 200),
        (["evil.example"], 421),
        (["127.0.0.1", "evil.example"], 421),
    ],
)
def test_request_for_another_host_is_answered_with_the_remedy(headers: list[str], status: int) -> None:
    with serving("127.0.0.1:0", lambda path: Answer(200, "text/x", b"ok"), "own.example, other.example") as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.putrequest("GET", "/status", skip_host=True)
        for each in headers:
            connection.putheader("Host", each)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        connection.close()
    assert (response.status, b"KSTREAMS_HTTP_HOSTS" in body) == (status, status == 421)


def test_address_that_is_taken_is_named() -> None:
    with serving("127.0.0.1:0", lambda path: Answer(200, "text/x", b"")) as url:
        address = url.removeprefix("http://")
        message = f"http: {address} cannot be served: Address already in use: choose another address with --http or "
        with pytest.raises(SettingsError, match=re.escape(message)), serving(address, lambda _: Answer(200, "", b"")):
            pass


def test_host_that_does_not_exist_is_named() -> None:
    with (
        pytest.raises(SettingsError, match=r"http: no\.such\.host\.invalid:80 cannot be served"),
        serving("no.such.host.invalid:80", lambda path: Answer(200, "", b"")),
    ):
        pass


# How a run serves.


def test_run_without_an_address_serves_nothing() -> None:
    with observing(GRAPH, Settings()) as observe:
        assert observe is None


def test_run_serves_the_status_that_it_notes_and_the_letters_that_it_counts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = TestDriver(GRAPH)
    monkeypatch.setattr(driver.cluster, "close", lambda: None, raising=False)
    monkeypatch.setattr(wiring, "KafkaCluster", lambda _: driver.cluster)
    caplog.set_level(logging.INFO)
    with observing(GRAPH, Settings(http="127.0.0.1:0")) as observe:
        assert observe is not None
        url = re.findall(r"http://\S+", caplog.text)[0]
        assert request(url, path="/readyz")[::2] == (503, b"the run is starting\n")
        found: dict[str, Any] = {}
        while "kstreams_dead_letters_waiting" not in found:
            observe(make_status())
            found = parse(request(url, path="/metrics")[2])
        assert found["kstreams_commits_total"] == {("price", "1"): 2.0}
        assert found["kstreams_dead_letters_waiting"] == {("shop.errors",): 0.0}


def test_missing_prometheus_client_is_named_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.endswith(("http.series", "http.endpoints"))]:
        monkeypatch.delitem(sys.modules, name)
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    message = r"^--http \(KSTREAMS_HTTP\) needs prometheus-client: pip install 'kstream"
    with pytest.raises(MissingSoftware, match=message), observing(GRAPH, Settings(http="127.0.0.1:0")):
        pass


def test_address_without_host_or_port_is_refused() -> None:
    for value in ("8080", ":8080", "host:", "host:http", "host:65536"):
        message = rf"^http = '{value}' \(argument\): '{value}' is not host:port, as in 127\.0\.0\.1:8080"
        with pytest.raises(SettingsError, match=message):
            Settings(http=value)


def test_worker_is_given_the_time_of_a_transaction_to_turn() -> None:
    assert Settings().livez_seconds == 30.0
    assert Settings(transaction_timeout_ms=60_000, session_timeout_ms=60_000).livez_seconds == 60.0
    assert Settings(livez_timeout_ms=5_000).livez_seconds == 5.0
