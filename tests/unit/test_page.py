"""The page /: what it holds, and what its script draws from /status, in V8 with a small document (dom.js).

tests/browser looks at it in Chromium.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from py_mini_racer import MiniRacer

from kstreams_py import Bytes, Graph
from kstreams_py.metrics import WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.http.endpoints import Endpoints
from kstreams_py.running.http.observed import ObservedRun
from kstreams_py.running.http.page import build_page
from kstreams_py.running.http.remedies import REMEDIES
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus

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


class Browser:
    """The page of a graph, its script run; `show` answers its next request with a status."""

    def __init__(self, graph: Graph = GRAPH) -> None:
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


def make_status(graph: Graph = GRAPH, *, taken: str = "", **changed: Any) -> dict[str, Any]:
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
        observed.note(RunStatus((slot,), float(second)))
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
    shown = {text for each in tree.find("text") for text in each[2]}
    assert {f"{SCRIPT}a", f'"{SCRIPT}'} <= shown
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
        "map, exactly once", "price", "● running", "100/s in, 90/s out", "lag 5",
    ]  # fmt: skip
    assert browser.picture("reader", "price") == ["lag 5"]
    cells = 'find("processors").querySelectorAll("[data-label]").map(each => each.textContent)'
    assert browser.ask(cells) == ["● running \N{MULTIPLICATION SIGN} 1", "100", "90", "5", "25 %", *["0"] * 5, "10"]
    assert "process 4711, reported 0.5 s ago, restarted 1 times" in browser.text("slots")
    assert "killed by SIGKILL" in browser.text("slots")
    assert "orders[0] 5" in browser.text("slots")
    assert browser.text("letters") == "None since the run started."


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


def test_worker_whose_input_is_hidden_does_not_look_well_though_without_lag() -> None:
    browser = Browser()
    hidden = "orders[0] is hidden by producer 7 epoch 0 (billing)"
    browser.show(make_status(hidden_seconds=45.0, hidden=hidden, lag=0, lags={TopicPartition("orders", 0): 0}))
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
    assert f"slot 1: price has not turned, it is in f (a.py:7) (40 s)→ {REMEDIES['stuck']}" in findings
    assert "price is behind by 9,000 records" in findings
    assert browser.text("summary") == "2 things to repair"
    assert browser.picture("processor", "price")[2:] == ["■ stuck", "100/s in, 90/s out", "lag 9,000"]
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
