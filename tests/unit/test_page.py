"""The page /: what it holds, and what its script draws from /status, in V8 with a small document (dom.js).

tests/browser looks at it in Chromium.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from kstreams_py import Bytes, Graph
from kstreams_py.graph.loading import show_target
from kstreams_py.metrics import InputCounts, PendingFigures, WorkerState
from kstreams_py.processing.dead_letters.waiting import WaitingCount
from kstreams_py.records import TopicPartition
from kstreams_py.running.http.endpoints import Endpoints
from kstreams_py.running.http.observed import ObservedRun
from kstreams_py.running.http.page import build_page, choose_picture, draw_live, wrap
from kstreams_py.running.http.remedies import REMEDIES, RUNBOOK, Problem
from kstreams_py.running.http.runbook import anchor, build_runbook, render
from kstreams_py.running.peer_graphs import Shown
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from kstreams_py.sinks import Parquet
from kstreams_py.testing.memory_source import MemorySource
from tests.tables import each_case

DOM = (Path(__file__).parent / "dom.js").read_text()
EMPTY_TAGS = {"meta", "link"}
SCRIPT = "<script>alert(1)</script>"

GRAPH = Graph("shop", errors="shop.errors")
GRAPH.map(GRAPH.topic("orders"), to=GRAPH.topic("prices"), id="price")(lambda value: value)


class Tree(HTMLParser):
    """The elements of a document, each as tag, attributes, contents."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root: list[Any] = ["", {}, []]
        self._open = [self.root]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made: list[Any] = [tag, {name: value or "" for name, value in attrs}, []]
        self._open[-1][2].append(made)
        if tag not in EMPTY_TAGS:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1][2].append([tag, dict(attrs), []])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self._open[-1][2].append(data)

    def find(self, tag: str) -> list[list[Any]]:
        """All elements of a tag, in order."""
        waiting, found = [self.root], []
        while waiting:
            element = waiting.pop(0)
            found += [element] if element[0] == tag else []
            waiting += [each for each in element[2] if isinstance(each, list)]
        return found


def text_of(element: list[Any]) -> str:
    return "".join(each if isinstance(each, str) else text_of(each) for each in element[2])


class Browser:
    """The page of a graph, its script run; `show` answers its next request with a status."""

    def __init__(self, graph: Shown = GRAPH) -> None:
        tree = Tree(build_page(graph).html.decode())
        (script,) = tree.find("script")
        self._engine = MiniRacer()
        self._engine.eval(f"const TREE = {json.dumps(tree.root)};\n{DOM}\n{script[2][0]}")

    def show(self, status: object) -> None:
        self._engine.eval(f"answer = {{ok: true, json: async () => ({json.dumps(status)})}}; poll(); undefined")

    def lose(self) -> None:
        self._engine.eval("answer = null; poll(); undefined")

    def ask(self, expression: str) -> Any:
        return json.loads(str(self._engine.eval(f"JSON.stringify({expression})")))

    def text(self, of: str) -> str:
        return str(self.ask(f"find({of!r}).textContent"))

    def picture(self, kind: str, name: str) -> list[str]:
        """The texts of the element of the picture whose attribute `data-kind` has this value."""
        texts = f'document.querySelectorAll("[data-{kind}]").find(each => each.dataset[{kind!r}] === {name!r})'
        found: list[str] = self.ask(f'{texts}.querySelectorAll("[data-value]").map(each => each.textContent)')
        return [each for each in found if each]


def make_status(
    graph: Graph = GRAPH, *, taken: str = "", letters: Mapping[str, WaitingCount] = {}, **changed: Any
) -> dict[str, Any]:
    """The /status of one worker of `price` that has run for a minute, reports as given."""
    observed = ObservedRun(clock=lambda: 0.0, wall=lambda: 1_000_000.0)
    for second in range(61):
        counters = {
            "records_in": 100 * second, "records_out": 90 * second, "dead_letters": 0, "dropped": 0, "rolled_back": 0,
            "commits": 10 * second, "aborts": 0, "retries": 0, "bytes_in": 0, "bytes_out": 0, "rebalances": 1,
        }  # fmt: skip
        report = Report(
            "price", 1, counters, 5, open_seconds=0.05, lags={TopicPartition("orders", 0): 5},
            measures={"step_seconds:sum": 0.25 * second},
        )  # fmt: skip
        slot = SlotStatus(1, 4711, (replace(report, **changed),), silent=0.5, restarts=1, taken=taken,
                          ends=(End(1_000_000.0, "killed by SIGKILL"),))  # fmt: skip
        observed.note(RunStatus((slot,), float(second), waiting=letters))
    endpoints = Endpoints(graph, observed, 30.0, lambda: 60.0, lambda: 1_000_000.0)
    status: dict[str, Any] = json.loads(endpoints.answer("/status").body)
    return status


def test_page_fetches_nothing_from_elsewhere_and_reads_no_text_as_html() -> None:
    html = build_page(GRAPH).html.decode()
    assert set(re.findall(r"\w+://[^\"\s]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|@import|url\(", html)
    tree = Tree(html)
    assert [each[1] for each in tree.find("link")] == [{"rel": "icon", "href": "data:,"}]
    assert not any(name in each[1] for tag in ("script", "img", "svg", "g", "text") for each in tree.find(tag)
                   for name in ("src", "style", "onload"))  # fmt: skip


def test_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    html, policy = build_page(GRAPH)
    tree = Tree(html.decode())
    digests = {}
    for tag in ("script", "style"):
        ((_, _, (text,)),) = tree.find(tag)
        digests[tag] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; script-src 'sha256-{digests['script']}'; style-src 'sha256-{digests['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class Marked(Bytes):
    """A serde whose repr, which the picture shows, is an element."""

    def __repr__(self) -> str:
        return SCRIPT


def test_text_of_users_is_shown_as_it_is_and_is_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs refuse such names today; the page does not rely on it."""
    for check in ("check_graph_name", "check_topic_name"):
        monkeypatch.setattr(f"kstreams_py.graph.topology.{check}", lambda *_: None)
    graph = Graph(SCRIPT)
    read = graph.topic(f"{SCRIPT}a", value=Marked())
    graph.map(read, to=graph.topic(f'"{SCRIPT}'), id="price")(lambda value: value)
    tree = Tree(build_page(graph).html.decode())
    assert len(tree.find("script")) == 1
    assert tree.find("h1")[0][2] == tree.find("title")[0][2] == [SCRIPT]
    assert {f"{SCRIPT}a", f'"{SCRIPT}'} <= {text_of(each) for each in tree.find("text")}
    assert {each[1].get("data-topic") for each in tree.find("g")} >= {f"{SCRIPT}a", f'"{SCRIPT}'}


def test_topic_in_the_status_is_shown_as_it_is() -> None:
    browser = Browser()
    browser.show(make_status(lags={TopicPartition(SCRIPT, 0): 5}))
    assert f"{SCRIPT}[0] 5" in browser.text("slots")
    assert browser.ask('[...root.all()].filter(each => each.tag === "script").length') == 1


def test_healthy_run_is_drawn_with_rates_and_lags_and_no_remedy() -> None:
    browser = Browser()
    browser.show(make_status())
    assert (browser.text("summary"), browser.text("findings")) == (
        "all is well",
        "Nothing: each worker runs and keeps up.",
    )
    assert browser.picture("processor", "price") == [
        "map, exactly once", "price", "● running", "1 worker", "100/s in", "90/s out", "lag 5",
    ]  # fmt: skip
    cells = 'find("processors").querySelectorAll("[data-label]").map(each => each.textContent)'
    assert browser.ask(cells) == ["● running \N{MULTIPLICATION SIGN} 1", "100", "90", "5", "25 %", *["0"] * 5, "10"]
    assert "process 4711, reported 0.5 s ago, restarted 1 time" in browser.text("slots")
    assert "killed by SIGKILL" in browser.text("slots")
    assert "orders[0] 5" in browser.text("slots")
    assert browser.text("letters") == "None since the run started."


@pytest.mark.parametrize(
    ("count", "summary"),
    [
        (WaitingCount(19, is_whole=True), "19 dead letters wait: kstreams dead-letters list tests.unit.test_page"),
        (WaitingCount(1, is_whole=True), "1 dead letter waits: kstreams dead-letters list tests.unit.test_page"),
        (WaitingCount(7), "at least 7 dead letters wait: kstreams dead-letters list tests.unit.test_page"),
        (WaitingCount(), "counting dead letters"),
        (WaitingCount(why="READ on shop.errors is missing"), "dead letters are not counted"),
        (WaitingCount(0, is_whole=True), "all is well"),
    ],
)
def test_letters_that_wait_stand_where_all_would_be_well(count: WaitingCount, summary: str) -> None:
    browser = Browser()
    browser.show(make_status(letters={"shop.errors": count}))
    assert browser.text("summary") == summary
    remedy = Problem("note", "waiting", None, None, "").remedy(show_target(GRAPH)).replace("`", "")
    assert (count.counted > 0) == (f"→ {remedy}" in browser.text("findings"))
    boxes = browser.ask('[...document.querySelectorAll(".dead_letters"), find("summary")].map(each => each.className)')
    box, pill = "bad" if count.known else "good", "good" if summary == "all is well" else "warning"
    assert boxes == [f"dead_letters {box}"] * 2 + [f"pill {pill}"]


def test_worker_that_waits_is_named_with_reason_remedy_and_section_of_the_runbook() -> None:
    browser = Browser()
    browser.show(make_status(state=WorkerState.RETRYING, why="partition 0 waits: ConnectionError: no prices today"))
    what = "slot 1: price is retrying: partition 0 waits: ConnectionError: no prices today"
    assert f"{what}→ {REMEDIES['retrying']} Runbook: KstreamsRetrying" in browser.text("findings")
    assert "partition 0 waits: ConnectionError: no prices today" in browser.text("slots")
    assert browser.picture("processor", "price")[2] == "↻ retrying"


def test_findings_of_a_kind_are_one_entry_with_one_remedy_and_a_count_of_the_rest() -> None:
    browser, status = Browser(), make_status(state=WorkerState.BROKER_AWAY, why="no answer")
    (found,) = status["findings"]
    status["findings"] = [
        {**found, "slot": slot, "what": f"slot {slot}: price waits for a broker"} for slot in range(9)
    ]
    browser.show(status)
    lines = "".join(f"Repair:slot {slot}: price waits for a broker" for slot in range(4))
    remedy = f"→ {REMEDIES['broker_away']} Runbook: KstreamsBrokerAway"
    assert browser.text("findings") == f"{lines}and 5 more of this kind{remedy}"
    assert browser.text("summary") == "9 things to repair"


def codes_of(browser: Browser, of: str) -> list[str]:
    found = f'[...find({of!r}).all()].filter(each => each.tag === "code").map(each => each.textContent)'
    codes: list[str] = browser.ask(found)
    return codes


def test_text_between_backticks_is_code_and_is_no_element() -> None:
    browser = Browser()
    browser.show(make_status(state=WorkerState.RETRYING, why=f"`{SCRIPT}` raised <b>, see `a` and `b"))
    assert f"slot 1: price is retrying: {SCRIPT} raised <b>, see a and `b→ " in browser.text("findings")
    assert codes_of(browser, "findings") == codes_of(browser, "slots") == [SCRIPT, "a"]
    assert browser.ask('[...root.all()].filter(each => ["script", "b"].includes(each.tag)).length') == 2, (
        "the page's own script, and the word before the finding"
    )
    browser.show(make_status(still_seconds=40.0, place="f (a.py:7)", lag=0))
    assert codes_of(browser, "findings") == ["stuck_timeout_ms"]


def test_each_kind_of_finding_links_to_its_section_of_the_runbook() -> None:
    browser, status = Browser(), make_status(state=WorkerState.RETRYING)
    (found,) = status["findings"]
    status["findings"] = [{**found, "kind": kind, "runbook": section} for kind, section in RUNBOOK.items()]
    browser.show(status)
    links: list[tuple[str, str]] = [
        tuple(each)
        for each in browser.ask(
            '[...find("findings").all()].filter(each => each.tag === "a").map(each => [each.textContent,'
            " each.attributes.href])"
        )
    ]
    assert links == [(f"Runbook: {section}", f"/runbook#{anchor(section)}") for section in RUNBOOK.values()]
    ids = {each[1].get("id") for each in Tree(build_runbook().html.decode()).find("h3")}
    assert {href.partition("#")[2] for _, href in links} <= ids


def test_broker_that_is_away_is_one_line_and_marks_each_processor_that_it_affects() -> None:
    graph = Graph("shop")
    graph.map(graph.topic("orders"), to=graph.topic("prices"), id="price")(lambda value: value)
    graph.map("prices", to=graph.topic("counts"), id="count")(lambda value: value)
    graph.map("counts", to=graph.topic("sums"), id="sum")(lambda value: value)
    observed, browser = ObservedRun(clock=lambda: 0.0), Browser(graph)
    why = "h:9092/2: Connect to ipv4#10.0.0.7:9092 failed: Connection refused"
    away = {"state": WorkerState.BROKER_AWAY, "why": why}
    counts = dict.fromkeys(("records_in", "records_out", "dead_letters", "commits", "aborts", "retries"), 0)
    reports = [Report("price", 0, counts, None, **away), Report("count", 0, counts, None, **away)]  # type: ignore[arg-type]
    observed.note(RunStatus((SlotStatus(0, 4711, (*reports, Report("sum", 0, counts, 0))),), 0.0))
    browser.show(json.loads(Endpoints(graph, observed, 30.0, lambda: 0.0).answer("/status").body))
    what = "broker 2 at h:9092 does not answer: it affects price, count"
    assert browser.text("findings") == f"Repair:{what}→ {REMEDIES['broker_away']} Runbook: KstreamsBrokerAway"
    assert browser.text("summary") == "1 thing to repair"
    marks = 'document.querySelectorAll("[data-processor]").map(each => [each.dataset.processor, each.className])'
    assert browser.ask(marks) == [
        ["price", "processor bad"], ["count", "processor bad"], ["sum", "processor good"],
    ] * 2  # fmt: skip


def test_worker_whose_input_is_hidden_does_not_look_well_though_without_lag() -> None:
    browser = Browser()
    hidden = "orders[0] is hidden by producer 7 epoch 0 (billing)"
    changed: dict[str, Any] = {
        "hidden_seconds": 45.0,
        "hidden": hidden,
        "lag": 0,
        "lags": {TopicPartition("orders", 0): 0},
    }
    browser.show(make_status(letters={"shop.errors": WaitingCount(2, is_whole=True)}, **changed))
    assert browser.text("summary") == "2 things to look at", "as many as the boxes"
    browser.show(make_status(**changed))
    assert f"slot 1: price sees no new records for 45 s: {hidden}" in browser.text("findings")
    assert browser.text("summary") == "1 thing to look at"
    assert browser.picture("processor", "price")[2] == "▨ input hidden"
    assert hidden in browser.text("slots")


def test_worker_that_does_not_turn_is_named_with_its_place_its_lag_and_the_remedy() -> None:
    browser = Browser()
    browser.show(make_status(
        still_seconds=40.0, place="f (a.py:7)", lag=9_000, lags={TopicPartition("orders", 0): 9_000}, open_seconds=40.0
    ))  # fmt: skip
    findings = browser.text("findings")
    remedy = REMEDIES["stuck"].replace("`", "")
    assert f"slot 1: price has made no progress: it is in f (a.py:7) (40 s)→ {remedy}" in findings
    assert "price is behind by 9,000 records" in findings
    assert browser.text("summary") == "2 things to repair"
    assert browser.picture("processor", "price")[2:] == ["■ stuck", "1 worker", "100/s in", "90/s out", "lag 9,000"]
    assert "40 s, in f (a.py:7)" in browser.text("slots")
    assert "40.0 s" in browser.text("slots")


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"state": WorkerState.RETRYING, "failure": "KeyError"}, "↻ retrying"),
        ({"state": WorkerState.BROKER_AWAY}, "⚠ broker away"),
        ({"state": WorkerState.JOINING}, "◔ joining"),
        ({"state": WorkerState.SPARE, "lags": {}}, "○ spare"),
        ({"taken": "by m7"}, "✕ replaced"),
    ],
)
def test_state_of_a_worker_is_written_with_a_sign_of_its_own(changed: dict[str, Any], state: str) -> None:
    browser = Browser()
    browser.show(make_status(**changed))
    assert browser.picture("processor", "price")[2] == state


def test_ordered_processor_has_its_held_events_and_stopped_objects() -> None:
    graph = Graph("shop")
    graph.ordered(graph.topic("orders"), to=graph.topic("prices"), id="price")(lambda value: value)
    browser = Browser(graph)
    browser.show(make_status(graph))
    cells = 'find("ordered").querySelectorAll("[data-label]").map(each => [each.textContent, each.className])'
    assert browser.ask("find('s-ordered').hidden") is False
    assert browser.ask(cells) == [["?", "n"]] * 3
    assert browser.picture("processor", "price")[:2] == ["ordered mapexactly once", "price"]
    events = {"held": 1_200, "stopped": 2, "held_seconds": 61.0, "held_limit": 60.0}
    browser.show(make_status(graph, events=events))
    assert browser.ask(cells) == [["1,200", "n"], ["61 s", "n warning"], ["2", "n warning"]]
    assert browser.picture("processor", "price")[-2:] == ["1,200 held", "✕ 2 stopped"]
    browser.show(make_status(graph, events={**events, "held": 0, "stopped": 0, "held_seconds": 0.0}))
    assert browser.ask(cells) == [["0", "n"], ["none", "n"], ["0", "n"]]
    assert browser.picture("processor", "price")[-1] == "0 held"


def test_tasks_and_sources_are_drawn_with_what_is_under_way() -> None:
    graph = Graph("shop")
    parsed = graph.channel("parsed")
    graph.map(graph.source("rows", MemorySource()), to=parsed, id="parse")(lambda row: row)
    graph.sink(parsed, id="store")(lambda row: None)
    counts = make_status()["slots"][0]["workers"][0]["counts"]
    measures = {**InputCounts(done=40, refused=2, died=5).measures("rows"), "failed": 3}
    pending = PendingFigures(1_200, 61.0, "13", ("store",), "locked")
    reports = (
        Report("parse", 0, counts, 7, is_task=True, sources={"rows": pending}, measures=measures),
        Report("store", 0, counts, 0, is_task=True, state=WorkerState.SOURCE_AWAY),
    )
    observed, browser = ObservedRun(clock=lambda: 0.0), Browser(graph)
    endpoints = Endpoints(graph, observed, 30.0, lambda: 0.0)
    browser.show(json.loads(endpoints.answer("/status").body))
    cells = 'find("sources").querySelectorAll("[data-label]").map(each => [each.textContent, each.className])'
    assert browser.ask(cells)[1:] == [["?", "n"], ["?", "free"], ["?", "n"], ["?", "n"], ["?", "free"], ["?", "free"]]
    observed.note(RunStatus((SlotStatus(0, 4711, reports),), 0.0))
    browser.show(json.loads(endpoints.answer("/status").body))
    assert endpoints.answer("/readyz").body == b"slot 0: store is source away\n"
    assert browser.ask(cells) == [
        ["memory", "free"], ["1,200", "n"], ["61 s, key 13, in store, slot 0", "free warning"], ["40", "n"],
        ["2", "n bad"], ["5 died", "free"], ["locked", "free warning"],
    ]  # fmt: skip
    assert browser.picture("channel", "rows") == ["rows", "1,200 under way", "oldest 61 s", "✕ 2 refused"]
    assert browser.picture("processor", "parse") == [
        "map, at least once", "parse", "● running", "1 worker", "0/s in", "0/s out", "7 waiting", "✕ 3 failed",
    ]  # fmt: skip
    assert browser.picture("processor", "store")[2] == "⚠ source away"
    assert "7 segments wait" in browser.text("slots")
    reports = (replace(reports[0], lags={TopicPartition("in", 0): 7}), reports[1])  # it reads a topic
    observed.note(RunStatus((SlotStatus(0, 4711, reports),), 0.0))
    browser.show(json.loads(endpoints.answer("/status").body))
    assert browser.picture("processor", "parse")[-2:] == ["lag 7", "✕ 3 failed"]
    assert "in[0] 7" in browser.text("slots")


def test_pipelines_are_drawn_and_listed_with_their_inputs_and_targets() -> None:
    graph = Graph("shop")
    graph.map(graph.topic("orders"), to=graph.topic("prices"), id="price")(lambda value: value)
    graph.pipeline("orders", "prices", to=Parquet("tables/sums"), id="sums", every="2 minutes")(lambda df_1, df_2: df_1)
    browser = Browser(graph)
    browser.show(make_status(graph))
    cells = 'find("pipelines").querySelectorAll("[data-label]").map(each => each.textContent)'
    assert browser.ask("[find('s-pipelines').hidden, find('s-ordered').hidden]") == [False, True]
    assert browser.ask(cells) == ["complete", "2 min", "orders, prices", "tables/sums"]
    assert codes_of(browser, "pipelines") == ["kstreams pipeline status"]
    assert browser.picture("pipeline", "sums") == ["Spark, completeevery 120 s", "sums"]
    assert browser.picture("target", "tables/sums") == ["tables/sums"]
    plain = Browser()
    plain.show(make_status())
    assert plain.ask("[find('s-pipelines').hidden, find('s-ordered').hidden]") == [True, True]


def test_failures_are_shown_as_text_newest_first_and_dead_letters_on_their_line() -> None:
    counters = {**make_status()["slots"][0]["workers"][0]["counts"], "dead_letters": 12}
    browser = Browser()
    browser.show(make_status(failure=f"ValueError: {SCRIPT}", counters=counters))
    assert f"slot 1, price ValueError: {SCRIPT}" in browser.text("letters")
    assert (
        browser.ask('document.querySelectorAll(".dead_letters").map(each => each.className)')
        == ["dead_letters bad"] * 2
    )
    assert browser.picture("dead", "price") == ["✕ 12"]


def test_run_that_has_not_started_is_said_to_start() -> None:
    endpoints = Endpoints(GRAPH, ObservedRun(), 30.0)
    browser = Browser()
    browser.show(json.loads(endpoints.answer("/status").body))
    assert browser.text("findings") == "Nothing is known yet: the workers have not started."
    assert (browser.text("summary"), browser.text("slots")) == ("starting", "No slot has started.")


def test_status_without_an_answer_is_said_with_the_time_since_when_until_one_comes() -> None:
    browser = Browser()
    assert re.match(
        r"No answer from /status since \d\d:\d\d:\d\d \(0 s\): it cannot be reached\. Check", browser.text("silent")
    )
    browser.show(make_status())
    assert browser.ask("find('silent').hidden") is True
    browser.lose()
    assert browser.ask("[find('silent').hidden, document.body.className]") == [False, "stale"]
    assert f"Everything below is from that time. {REMEDIES['no_answer']}" in browser.text("silent")
    browser.show(make_status())
    assert browser.ask("[find('silent').hidden, document.body.className]") == [True, ""]


def test_page_is_loaded_again_when_another_graph_answers() -> None:
    browser = Browser()
    other = Graph("other")
    other.map(other.topic("a"), to=other.topic("b"), id="another")(lambda value: value)
    browser.show(make_status(other))
    assert browser.ask("location.reloads") == 1


# The picture.


def chain(*topics: str, ids: tuple[str, ...] = ("validate", "price", "count", "ship")) -> Graph:
    """Four processors with topics between them, and a topic for their dead letters."""
    graph = Graph("shop", errors="shop.errors")
    for topic in topics:
        graph.topic(topic)
    for name, source, target in zip(ids, topics, topics[1:], strict=False):
        graph.map(source, to=target, id=name)(lambda value: value)
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        chain("shop.orders", "shop.valid", "shop.priced", "shop.counted", "shop.shipped"),
        chain(
            *(f"eu.shop.orders.{word}" for word in ("incoming-v2", "validated", "with_prices", "by_customer", "out"))
        ),
        chain(*(f"t{i}" + "x" * 240 for i in range(5)), ids=tuple(f"p{i}" + "y" * 90 for i in range(4))),
    ],
    ids=["short names", "names in parts", "names without parts"],
)
def test_chain_of_four_processors_is_legible_and_whole_at_1280_pixels_and_on_a_phone(graph: Graph) -> None:
    wide, upright = draw_live(graph, upright=False), draw_live(graph, upright=True)
    assert choose_picture(wide.width, upright.width) == "from-1240"
    assert wide.width * 0.86 <= 1240 - 90
    assert upright.width <= 352, "a phone of 390 pixels shows it in its full size"
    assert 'class="upright fits"' in upright.svg


@each_case(
    ("wide", "upright", "chosen"),
    [
        (500.0, 300.0, "from-761"),
        (900.0, 300.0, "from-1000"),
        (1_300.0, 300.0, "from-1240"),
        (1_400.0, 1_150.0, "never-wide"),
        (1_400.0, 1_151.0, "scrolls"),
    ],
)
def test_picture_runs_from_left_to_right_where_that_is_legible(wide: float, upright: float, chosen: str) -> None:
    assert choose_picture(wide, upright) == chosen
    assert f".{chosen} " in build_page(GRAPH).html.decode() or chosen == "never-wide"
    assert 'figure class="from-761"' in build_page(GRAPH).html.decode()


@each_case(
    ("name", "lines"),
    [
        ("orders", ("orders",)),
        ("shop.orders", ("shop.orders",)),
        ("shop.orders.validated", ("shop.orders.", "validated")),
        ("count_by_customer", ("count_by_", "customer")),
        ("shop.sqlite: table totals", ("shop.sqlite: ", "table totals")),
        ("abcdefghijklmnop", ("abcdefghijkl", "mnop")),
        ("a..b", ("a..b",)),
    ],
)
def test_long_name_is_broken_after_its_parts(name: str, lines: tuple[str, ...]) -> None:
    assert wrap(name) == lines
    assert "".join(lines) == name


def test_lag_of_each_input_is_shown_where_the_reader_has_several() -> None:
    graph = Graph("shop")
    prices, payments = graph.topic("prices"), graph.topic("payments")
    graph.join(prices, payments, by="order", to=graph.topic("paid"), id="match")(lambda price, payment: price)
    graph.map("paid", to=graph.topic("sent"), id="send")(lambda value: value)
    assert lags_of(graph) == {("prices", "match"): True, ("payments", "match"): True, ("paid", "send"): False}
    near = draw_live(graph, upright=False).width
    graph.map("prices", to=graph.topic("sums"), id="sum")(lambda value: value)
    assert lags_of(graph) == {
        ("prices", "match"): True, ("payments", "match"): True, ("paid", "send"): False, ("prices", "sum"): False,
    }  # fmt: skip
    assert draw_live(graph, upright=False).width > near + 100, "there is space beside the line of prices"


def lags_of(graph: Graph) -> dict[tuple[str, str], bool]:
    """Whether a line has a text for the lag, by its topic and its reader."""
    groups = Tree(draw_live(graph, upright=False).svg).find("g")
    return {
        (each[1]["data-topic"], each[1]["data-reader"]): any(part[0] == "text" for part in each[2])
        for each in groups
        if "data-reader" in each[1]
    }


# The runbook.


def test_runbook_is_served_whole_with_the_anchors_of_the_documentation() -> None:
    html, policy = build_runbook()
    markdown = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
    tree = Tree(html.decode())
    headings = [(len(level), title) for level, title in re.findall(r"^(#+) (.+)$", markdown, flags=re.MULTILINE)]
    found = [(level, text_of(each), each[1]["id"]) for level in (1, 2, 3) for each in tree.find(f"h{level}")]
    assert sorted(found) == sorted((level, title, anchor(title)) for level, title in headings)
    written = re.sub(r"\]\([^)]+\)|^[|-]+$|^\d+\. ", "", markdown, flags=re.MULTILINE)
    (main,) = tree.find("main")
    shown = re.sub(r" \(docs/[\w./-]+\)", "", text_of(main))
    assert re.sub(r"\W", "", f"The page of this run{written}") == re.sub(r"\W", "", shown)
    assert not re.search(r"\*\*|\]\(|`", text_of(main))
    assert {each[1]["href"] for each in tree.find("a")} - {"/"} <= {f"#{anchor}" for *_, anchor in found}
    assert tree.find("script") == []
    style = base64.b64encode(hashlib.sha256(tree.find("style")[0][2][0].encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{style}'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def test_markdown_of_the_runbook_is_rendered_and_escaped() -> None:
    text = """\
### Spare `x` & <workers>

`<b>` and **b `c`**, [x](#up), [y](a.md#what-holds) on
the next line

1. one
2. two
   goes on

| a | `b` |
|---|---|
| 1 | [2](#up) |
"""
    assert render(text).split("\n") == [
        '<h3 id="spare-x-workers">Spare <code>x</code> &amp; &lt;workers&gt;</h3>',
        '<p><code>&lt;b&gt;</code> and <b>b <code>c</code></b>, <a href="#up">x</a>, y (<code>docs/a.md</code>) on',
        "the next line</p>",
        "<ol><li>one",
        "</li><li>two",
        "   goes on</li></ol>",
        "<table>",
        "<thead><tr><th>a</th><th><code>b</code></th></tr></thead>",
        '<tbody><tr><td>1</td><td><a href="#up">2</a></td></tr></tbody></table>',
    ]
