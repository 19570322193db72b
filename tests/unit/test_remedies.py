"""remedies.py: what is not well in a run, why, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from kstreams_py import Graph
from kstreams_py.metrics import PendingFigures, WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.http.remedies import FAILED_SECONDS, REMEDIES, RESTARTS, RUNBOOK, Problem, Seen, find
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from tests.tables import each_case

GRAPH = Graph("shop", errors="shop.errors")
GRAPH.map(GRAPH.topic("orders"), to=GRAPH.topic("prices"), id="price")(lambda value: value)
GRAPH.join("prices", GRAPH.topic("payments"), by="order", to=GRAPH.topic("matched"), id="match")(
    lambda price, payment: price
)

RATES = {"records_in": 100.0, "dead_letters": 0.0, "step_seconds": 0.1, "lag": 0.0}
NOW, LIMIT = 500.0, 30.0


def report(processor: str = "price", lags: Mapping[int, int | None] | None = None, **changed: Any) -> Report:
    """A worker that runs and keeps up; `lags` by partition of orders."""
    known = {TopicPartition("orders", number): lag for number, lag in (lags or {0: 0, 1: 0}).items()}
    lag = None if None in known.values() else sum(each or 0 for each in known.values())
    return replace(Report(processor, 0, {"dead_letters": 0}, lag, lags=known), **changed)


def slot(*reports: Report, **changed: Any) -> SlotStatus:
    return replace(SlotStatus(0, 4711, reports or (report(),)), **changed)


def findings(
    *slots: SlotStatus,
    rates: Mapping[str, float] | None = None,
    lagging: float = 60.0,
    since: float = 0.0,
    failing: float = 7.0,
) -> Sequence[Problem]:
    """What is found where each worker has these rates, and its lag has stood for `lagging` seconds."""
    workers = [(each.number, one.processor) for each in slots for one in each.reports]
    seen = Seen(
        RunStatus(slots, NOW - since),
        {worker: {**RATES, **(rates or {})} for worker in workers},
        dict.fromkeys(workers, lagging),
        dict.fromkeys(workers, failing),
        NOW,
        1_000_000.0,
        LIMIT,
    )
    return find(GRAPH.processors, seen)


def test_run_whose_workers_run_and_keep_up_has_no_findings() -> None:
    assert findings(slot(report(lags={0: 999, 1: 0})), slot(number=1)) == []
    assert findings(slot(report(events={"held": 3, "stopped": 0, "held_seconds": 5.0, "held_limit": 5.0}))) == []


def test_spare_workers_are_a_note_of_their_processor() -> None:
    spares = [slot(report(lags={}, state=WorkerState.SPARE), number=number) for number in (1, 2)]
    what = "price has no partition: its inputs have fewer than it has workers"
    assert findings(slot(), spares[0]) == [Problem("note", "spare", 1, "price", f"slot 1: {what}")]
    assert findings(slot(), *spares) == [Problem("note", "spare", None, "price", f"slots 1, 2: {what}")]


STATES = {
    "a function that does not return": (
        slot(report(still_seconds=31.0, place="f (a.py:7)")),
        Problem("bad", "stuck", 0, "price", "slot 0: price has made no progress: it is in f (a.py:7) (31 s)"),
    ),
    "a process that does not report": (
        slot(silent=40.0),
        Problem("bad", "silent", 0, None, "slot 0: its process (4711) has not reported (40 s)"),
    ),
    "a slot that another process has taken": (
        slot(taken="by m7"),
        Problem("bad", "replaced", 0, None, "slot 0 is replaced: by m7"),
    ),
    "a function that is retried": (
        slot(report(state=WorkerState.RETRYING, failure="KeyError: before", why="ConnectionError: refused")),
        Problem("bad", "retrying", 0, "price", "slot 0: price is retrying: ConnectionError: refused"),
    ),
    "a broker without an answer": (
        slot(report(state=WorkerState.BROKER_AWAY, why="the commit found no answer")),
        Problem(
            "bad",
            "broker_away",
            None,
            None,
            "a broker does not answer (the commit found no answer): it affects price",
            ("price",),
        ),
    ),
    "a target without an answer": (
        slot(report(state=WorkerState.SINK_AWAY, why="rows.db: locked")),
        Problem("bad", "sink_away", 0, "price", "slot 0: price waits for its sink: rows.db: locked"),
    ),
    "a source without an answer": (
        slot(report(state=WorkerState.SOURCE_AWAY, why="rows.db: locked")),
        Problem("bad", "source_away", 0, "price", "slot 0: price waits for its source: rows.db: locked"),
    ),
    "an input that is under way for long": (
        slot(report(sources={"rows": PendingFigures(9, 61.0, "13", ("price", "match"))})),
        Problem(
            "warning", "pending", 0, "price", "slot 0: an input of rows (key 13) is under way for 61 s, in price, match"
        ),
    ),
    "an input that no task has": (
        slot(report(sources={"rows": PendingFigures(9, 61.0)})),
        Problem("warning", "pending", 0, None, "slot 0: an input of rows is under way for 61 s, and in no task"),
    ),
    "inputs that were refused": (
        slot(report(sources={"rows": PendingFigures(9, 60.0)}, measures={"inputs:refused:rows": 3})),
        Problem(
            "warning",
            "refused",
            None,
            None,
            "rows: 3 refused inputs since the run started, the last 0 s ago",
            source="rows",
        ),
    ),
    "an input of a task that is known to stand still": (
        slot(
            report(
                still_seconds=31.0,
                place="f (a.py:7)",
                is_task=True,
                sources={"rows": PendingFigures(1, 61.0, "13", ("price",))},
            )
        ),
        Problem("bad", "stuck", 0, "price", "slot 0: price has made no progress: it is in f (a.py:7) (31 s)"),
    ),
    "an input of a task that is retrying": (
        slot(report(state=WorkerState.RETRYING, why="no", sources={"rows": PendingFigures(1, 61.0, "13", ("price",))})),
        Problem("bad", "retrying", 0, "price", "slot 0: price is retrying: no"),
    ),
    "a process that has ended": (
        slot(pid=None, ends=(End(1.0, "SIGKILL"),)),
        Problem("warning", "restarting", 0, None, "slot 0 is restarting, after: SIGKILL"),
    ),
    "a slot that ends again and again": (
        slot(restarts=RESTARTS, ends=(End(999_930.0, "OSError: no"),)),
        Problem("warning", "restarts", 0, None, "slot 0 was restarted 3 times, the last time after: OSError: no"),
    ),
    "a slot that ends again and again now": (
        slot(restarts=RESTARTS, ends=(End(999_990.0, "OSError: no"),)),
        Problem("bad", "restarts", 0, None, "slot 0 was restarted 3 times, the last time after: OSError: no"),
    ),
    "a slot that is killed again and again": (
        slot(restarts=RESTARTS, ends=(End(999_990.0, "SIGKILL"),)),
        Problem("bad", "killed", 0, None, "slot 0 was restarted 3 times, the last time after: SIGKILL"),
    ),
    "records that a transaction hides": (
        slot(report(hidden_seconds=11.0, hidden="orders[0] is hidden by producer 7")),
        Problem(
            "warning",
            "hidden",
            0,
            "price",
            "slot 0: price sees no new records for 11 s: orders[0] is hidden by producer 7",
        ),
    ),
    "records that a transaction hides for long": (
        slot(report(hidden_seconds=61.0, hidden="orders[0] is hidden by producer 7")),
        Problem(
            "bad", "hidden", 0, "price", "slot 0: price sees no new records for 61 s: orders[0] is hidden by producer 7"
        ),
    ),
    "records of one of its partitions that a transaction hides": (
        slot(report(hidden_seconds=11.0, hidden="orders[0] is hidden by producer 7", hidden_partitions=1)),
        Problem(
            "warning",
            "hidden",
            0,
            "price",
            "slot 0: price sees no new records of 1 of its 2 partitions for 11 s: orders[0] is hidden by producer 7",
        ),
    ),
    "records of all its partitions that a transaction hides": (
        slot(report(hidden_seconds=11.0, hidden="orders[0] is hidden by producer 7", hidden_partitions=2)),
        Problem(
            "warning",
            "hidden",
            0,
            "price",
            "slot 0: price sees no new records for 11 s: orders[0] is hidden by producer 7",
        ),
    ),
    "an event that waits for long": (
        slot(report(events={"held": 3, "stopped": 0, "held_seconds": 6.0, "held_limit": 5.0})),
        Problem("warning", "held", 0, "price", "slot 0: 3 events of price held, the first for 6 s"),
    ),
    "an object that is stopped": (
        slot(report(events={"held": 0, "stopped": 1, "held_seconds": 0.0, "held_limit": 5.0})),
        Problem("warning", "stopped", 0, "price", "slot 0: 1 object of price stopped by an ordering fault"),
    ),
    "a worker without its place": (
        slot(report(state=WorkerState.JOINING)),
        Problem("note", "joining", 0, "price", "slot 0: price is joining"),
    ),
    "an old transaction": (
        slot(report(open_seconds=11.0)),
        Problem("warning", "open_transaction", 0, "price", "slot 0: a transaction of price is open for 11 s"),
    ),
    "a lag that is not known": (
        slot(report(lags={0: None})),
        Problem("note", "lag_unknown", 0, "price", "slot 0: the lag of price is not known"),
    ),
    "dead letters": (
        slot(report(counters={"dead_letters": 1200})),
        Problem(
            "warning",
            "dead_letters",
            None,
            "price",
            "price: 1,200 failed steps since the run started, the last 7 s ago",
        ),
    ),
}


@each_case("what", STATES)
def test_what_is_not_well_is_named_with_its_kind(what: str) -> None:
    found, expected = STATES[what]
    assert findings(found) == [expected]


REFUSED = "h:9092/2: Connect to ipv4#10.0.0.7:9092 failed: Connection refused (after 0ms in state CONNECT)"


def test_broker_that_is_away_is_one_finding_with_all_that_it_affects() -> None:
    """Nor is a transaction that cannot be committed meanwhile, or a lag that grows."""
    away: dict[str, Any] = {"state": WorkerState.BROKER_AWAY, "open_seconds": 99.0, "lags": {0: 3_000, 1: 3_000}}
    slots = [
        slot(report("match", why=f"no Kafka broker answers at h:9092: {REFUSED}", **away),
             report(why="committing: timed out (_TIMED_OUT)", **away)),
        slot(report("match", why=REFUSED, **away), report(), number=1),
    ]  # fmt: skip
    what = "broker 2 at h:9092 does not answer: it affects price, match"
    assert findings(*slots) == [Problem("bad", "broker_away", None, None, what, ("price", "match"))]
    some = findings(*slots, slot(number=2), slot(taken="by m7", number=3))
    assert some[0] == Problem("bad", "broker_away", None, None, f"{what} in slots 0, 1", ("price", "match"))
    assert [each.kind for each in some] == ["broker_away", "replaced"]


def test_processor_that_a_broker_does_not_affect_is_still_said_to_be_behind() -> None:
    away = report("match", lags={0: None}, state=WorkerState.BROKER_AWAY, why=REFUSED)
    retrying = report(lags={0: 3_000, 1: 3_000}, state=WorkerState.RETRYING)
    assert [(each.kind, each.processor, each.affects) for each in findings(slot(away, retrying))] == [
        ("broker_away", None, ("match",)),
        ("retrying", "price", ()),
        ("behind_state", "price", ()),
    ]


def test_process_that_no_longer_looks_at_its_workers_is_named() -> None:
    assert [each.kind for each in findings(slot(), since=31.0)] == ["unwatched"]


def test_failures_of_some_time_ago_are_a_note() -> None:
    status = RunStatus((slot(report(counters={"dead_letters": 1})), slot(number=1)), NOW)
    (found,) = find(GRAPH.processors, Seen(status, {}, {}, {(0, "price"): FAILED_SECONDS + 1}, NOW, 0.0, LIMIT))
    assert (found.level, found.what) == ("note", "price: 1 failed step since the run started, the last 5 min ago")


def test_failed_steps_without_a_topic_for_them_ask_for_one() -> None:
    graph = Graph("bare")
    graph.map(graph.topic("orders"), to=graph.topic("prices"), id="price")(lambda value: value)
    status = RunStatus((slot(report(counters={"dropped": 2})),), NOW)
    found = find(graph.processors, Seen(status, {(0, "price"): {"dropped": 1.5}}, {}, {}, NOW, 0.0, LIMIT))
    what = "price: 2 dropped steps since the run started, 1.5 more each second"
    assert found == [Problem("bad", "dropped", None, "price", what)]


BEHIND = report(lags={0: 3_000, 1: 3_000})
WHAT = "price is behind by 6,000 records, at 100 a second"


@pytest.mark.parametrize(
    ("slots", "rates", "kind", "why"),
    [
        ([slot(BEHIND)], {"step_seconds": 0.9}, "behind_function", "its function takes 90% of the time of 1 worker"),
        (
            [slot(report(lags={0: 6_000}))],
            {"step_seconds": 0.9},
            "behind_partitions",
            "its function takes 90% of the time of 1 worker",
        ),
        (
            [slot(BEHIND, report("match", lags={}, lag=0))],
            {"step_seconds": 0.4},
            "behind_process",
            "the functions of slot 0 take all of its time, most of it price",
        ),
        ([slot(report(lags={0: 10, 1: 5_990}))], {}, "behind_partition", "orders[1] has 100% of its lag"),
        ([slot(BEHIND)], {}, "behind_kafka", "fetches and commits take the time, not its function"),
    ],
)
def test_processor_that_is_behind_is_named_with_the_reason(
    slots: list[SlotStatus], rates: dict[str, float], kind: str, why: str
) -> None:
    assert findings(*slots, rates=rates) == [Problem("bad", kind, None, "price", f"{WHAT}, because {why}")]


def test_processor_that_is_behind_because_a_worker_does_not_run_names_that_worker() -> None:
    retrying = report(lags={0: 3_000, 1: 3_000}, state=WorkerState.RETRYING)
    assert findings(slot(retrying))[1] == Problem(
        "bad", "behind_state", None, "price", f"{WHAT}, because slot 0: price is retrying"
    )


def test_task_that_reads_a_topic_is_behind_or_waits_for_a_broker_as_a_processor() -> None:
    task = report("parse", lags={0: 3_000, 1: 3_000}, is_task=True)
    what = f"{WHAT.replace('price', 'parse')}, because its function takes 90% of the time of 1 worker"
    assert findings(slot(task), rates={"step_seconds": 0.9}) == [Problem("bad", "behind_function", None, "parse", what)]
    away = replace(task, lags={}, lag=None, state=WorkerState.BROKER_AWAY, why=REFUSED)
    assert [each.affects for each in findings(slot(away))] == [("parse",)]


def test_join_whose_other_input_is_empty_names_it() -> None:
    lags = {TopicPartition("prices", 0): 500, TopicPartition("payments", 0): 0}
    what = "match is behind by 500 records, at 0 a second, because it waits for records of payments"
    waiting = slot(replace(report("match"), lags=lags, lag=500))
    assert findings(waiting, rates={"records_in": 0.0}) == [Problem("bad", "behind_input", None, "match", what)]


def test_processor_that_catches_up_says_how_long_it_takes() -> None:
    what = f"{WHAT}, and catches up in about 2 min"
    assert findings(slot(BEHIND), rates={"lag": -50.0}) == [Problem("note", "catching_up", None, "price", what)]


@pytest.mark.parametrize(
    ("lags", "lagging"), [({0: 999, 1: 0}, 60.0), ({0: 3_000, 1: 3_000}, 9.0)], ids=["of seconds", "for a moment"]
)
def test_processor_with_a_small_or_a_new_lag_is_not_behind(lags: dict[int, int], lagging: float) -> None:
    assert findings(slot(report(lags=lags)), lagging=lagging) == []


def test_lag_of_one_record_is_behind_by_one_record() -> None:
    (found,) = findings(slot(report(lags={0: 1})), rates={"records_in": 0.0})
    assert found.what.startswith("price is behind by 1 record, at 0 a second")


def test_findings_are_sorted_from_the_worst() -> None:
    found = findings(
        slot(report(state=WorkerState.JOINING)), slot(report(counters={"dead_letters": 1})), slot(taken="by m7")
    )
    assert [each.level for each in found] == ["bad", "warning", "note"]


def test_each_finding_has_one_sentence_of_the_table() -> None:
    for kind, remedy in REMEDIES.items():
        found = Problem("bad", kind, None, None, "")
        assert found.remedy("") == remedy
        whole = re.sub(r"`kstreams [^`]+", r"\g<0> 'my shop.py'", remedy)
        assert found.remedy("'my shop.py'") == whole, "a command that can be typed"
        assert remedy.endswith(".")
        assert "\n" not in remedy
    of_source = Problem("note", "refused", None, None, "", source="rows").remedy("shop.py")
    assert of_source.endswith("fix the cause, then run `kstreams sources retry shop.py --source rows --all`.")


def test_source_that_keeps_no_inputs_is_given_no_command_for_them() -> None:
    refused = slot(report(sources={"rows": PendingFigures()}, measures={"inputs:refused:rows": 3}))
    for forgetful, kind in (((), "refused"), (("rows",), "refused_requests")):
        seen = Seen(RunStatus((refused,), NOW), {}, {}, {}, NOW, 0.0, LIMIT, forgetful)
        assert [each.kind for each in find((), seen)] == [kind]


def test_each_finding_has_its_section_of_the_runbook_as_its_alert_says() -> None:
    root = Path(__file__).parents[2]
    sections = re.findall(r"^### (.+)$", (root / "docs" / "runbook.md").read_text(), flags=re.MULTILINE)
    groups = yaml.safe_load((root / "docker" / "prometheus" / "alerts.yaml").read_text())["groups"]
    alerts = {rule["alert"]: rule["labels"]["finding"] for group in groups for rule in group["rules"]}
    assert RUNBOOK.keys() == REMEDIES.keys()
    assert {*RUNBOOK.values()} - {*alerts} == {"Spare workers"}, "nobody is woken for a spare worker"
    assert {*RUNBOOK.values()} <= {*sections}
    assert {alert: RUNBOOK[kind] for alert, kind in alerts.items()} == {alert: alert for alert in alerts}
