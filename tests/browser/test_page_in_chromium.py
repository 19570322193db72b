"""The page / in Chromium: drawn without an error, in light and dark, no wider than a phone, legible, by keyboard too.

Chromium is Debian's package `chromium`, or the program that CHROMIUM names; scripts/test-browser runs these.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from kstreams_py import Graph
from kstreams_py.metrics import WorkerState
from kstreams_py.records import TopicPartition
from kstreams_py.running.http.endpoints import Endpoints
from kstreams_py.running.http.observed import ObservedRun
from kstreams_py.running.http.remedies import REMEDIES
from kstreams_py.running.http.server import serving
from kstreams_py.running.reports import Report
from kstreams_py.running.status import End, RunStatus, SlotStatus
from kstreams_py.sinks import Parquet

pytestmark = pytest.mark.browser

GRAPH = Graph("flights", errors="flights.errors")
GRAPH.alts(*(GRAPH.topic(f"flights.{code}") for code in ("ewr", "jfk", "lga")), to=GRAPH.topic("flights"), id="merge")(
    bytes.upper
)
GRAPH.map("flights", to=[GRAPH.topic("departed"), GRAPH.topic("cancelled")], id="split")(lambda value: value)

SHOP = Graph("shop", errors="shop.errors")
"""A chain of four processors, the last of which applies events, with a pipeline beside it."""

for number, name in enumerate(("validate_orders", "price", "count_by_customer", "ship")):
    declare = SHOP.ordered if name == "ship" else SHOP.map
    source, target = (SHOP.topic(f"eu.shop.orders.step-{i}") for i in (number, number + 1))
    declare(source, to=target, id=name)(lambda value: value)
SHOP.pipeline("eu.shop.orders.step-1", to=Parquet("tables/valid"), id="valid")(lambda df: df)

LOOK = 0.2
"""Seconds between two looks at the workers."""

CONTRAST = """() => {
  const light = text => {
    const parts = text.match(/[\\d.]+/g).map(Number).slice(0, 3).map(each => each / 255)
      .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const back = element => {
    for (let each = element; each; each = each.parentElement) {
      const rect = each.tagName === "g" && each.querySelector("rect");
      if (rect) return getComputedStyle(rect).fill;
      const colour = getComputedStyle(each).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const poor = [];
  for (const element of document.querySelectorAll("h1, h2, h3, p, b, small, span, li, th, td, code, a, svg text")) {
    if (!element.textContent.trim() || !element.getClientRects().length) continue;
    const style = getComputedStyle(element), colour = element instanceof SVGElement ? style.fill : style.color;
    const [low, high] = [light(colour), light(back(element))].sort((a, b) => a - b);
    if ((high + 0.05) / (low + 0.05) < 4.5) poor.push([element.textContent, colour, back(element)]);
  }
  return poor;
}"""
"""The texts whose contrast is below 4.5, which WCAG asks for (AA)."""

HEIGHTS = """() => [...document.querySelectorAll("svg text")]
  .filter(each => each.getClientRects().length && each.textContent)
  .map(each => parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a)"""
"""The heights in pixels of the texts of the picture."""

OUTSIDE = """() => [...document.querySelectorAll("svg g")].filter(each => each.getClientRects().length)
  .flatMap(each => { const rect = each.querySelector("rect"); return rect ? [...each.querySelectorAll("text")]
    .map(text => [text.textContent, text.getBBox(), rect.getBBox()]) : []; })
  .filter(([, text, box]) => text.width && (text.x < box.x || text.x + text.width > box.x + box.width ||
    text.y < box.y || text.y + text.height > box.y + box.height)).map(([text]) => text)"""
"""The texts of the picture that reach out of their boxes."""


def worker(processor: str, *, is_well: bool) -> Report:
    topic = "flights" if processor == "split" else "flights.ewr"
    lag = 0 if is_well else 50_000
    failed = 0 if is_well else 7
    counts = {"records_in": 1_000, "records_out": 900, "dead_letters": failed, "dropped": 0, "rolled_back": 5 * failed}
    counts |= {"commits": 9, "aborts": 0, "retries": 0, "bytes_in": 0, "bytes_out": 0, "rebalances": 1}
    report = Report(processor, 0, counts, lag, lags={TopicPartition(topic, 0): lag}, open_seconds=0.1)
    if is_well:
        return report
    why = "partition 0 is paused after 40 attempts: ConnectionError: no route to the service of today's weather"
    changed: dict[str, Any] = (
        {"state": WorkerState.RETRYING, "why": why}
        if processor == "split"
        else {"still_seconds": 45.0, "place": "f (a.py:3)"}
    )
    failure = "ValueError: <script>document.title = 'taken'</script>" + "x" * 200
    values = {name: getattr(report, name) for name in report.__slots__}
    return Report(**{**values, **changed, "failure": failure})


def shop_slots() -> tuple[SlotStatus, ...]:
    """Two slots whose workers wait for the same broker, but for one that holds events, and whose object is stopped."""
    why = "h:9092/2: Connect to ipv4#10.0.0.7:9092 failed: Connection refused"
    away = [
        replace(worker(each.id, is_well=True), lags={}, state=WorkerState.BROKER_AWAY, why=why)
        for each in SHOP.processors[:3]
    ]
    events = {"held": 12, "stopped": 1, "held_seconds": 61.0, "held_limit": 60.0}
    ship = replace(worker("ship", is_well=True), lags={}, events=events)
    return tuple(SlotStatus(number, 4711 + number, (*away, ship), silent=0.2) for number in (0, 1))


def slots(*, is_well: bool) -> tuple[SlotStatus, ...]:
    """One slot that runs; or five, each of which lacks something else."""
    reports = tuple(worker(each.id, is_well=is_well) for each in GRAPH.processors)
    if is_well:
        return (SlotStatus(0, 4711, reports, silent=0.2),)
    hidden = "flights.jfk[0] is hidden by producer 7 epoch 0 (billing) from offset 1204, 95 s old: "
    merge = replace(
        worker("merge", is_well=True), hidden_seconds=95.0, hidden=f"{hidden}its coordinator will end it",
        lags={TopicPartition("flights.jfk", 0): 0},
    )  # fmt: skip
    spare = replace(worker("split", is_well=True), state=WorkerState.SPARE, lags={}, open_seconds=None)
    away = [
        replace(worker(each.id, is_well=True), state=WorkerState.BROKER_AWAY, why="ends: no answer (_TIMED_OUT)")
        for each in GRAPH.processors
    ]
    ends = tuple(End(time.time() - age, "SIGKILL") for age in (40.0, 20.0, 5.0))
    taken = "Replaced: another worker has taken the slot of flights.merge.2 over (member m7 on 10.0.0.7)"
    return (
        SlotStatus(0, 4711, reports, silent=0.2),
        SlotStatus(1, 4712, (merge, spare), silent=0.4),
        SlotStatus(2, None, (merge, spare), taken=taken, ends=(End(time.time() - 600, taken),)),
        SlotStatus(3, None, (merge, spare), restarts=5, ends=ends),
        SlotStatus(4, 4715, tuple(away), silent=0.1),
    )


@contextmanager
def run(*, is_well: bool, graph: Graph = GRAPH) -> Iterator[str]:
    """The URL of a run, looked at again and again."""
    observed, ended = ObservedRun(), threading.Event()
    found = slots(is_well=is_well) if graph is GRAPH else shop_slots()

    def look() -> None:
        while not ended.wait(LOOK):
            observed.note(RunStatus(found, observed._clock()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with serving("127.0.0.1:0", Endpoints(graph, observed, 30.0).answer) as url:
            yield url
    finally:
        ended.set()
        thread.join()


@contextmanager
def opened(
    chromium: Browser, url: str, *, scheme: str = "light", width: int = 1280, awaited: str = ".slot"
) -> Iterator[Page]:
    """The page, drawn; fails for an error of the script, or for what the policy refuses."""
    context = chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 800}
    )
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(url)
    page.wait_for_selector(awaited)
    assert errors == []
    yield page
    context.close()


@pytest.mark.parametrize("width", [375, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("is_well", [True, False], ids=["healthy", "not well"])
def test_page_is_legible_and_scrolls_only_down(chromium: Browser, is_well: bool, scheme: str, width: int) -> None:
    with run(is_well=is_well) as url, opened(chromium, url, scheme=scheme, width=width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CONTRAST) == []
        shown = page.evaluate("[...document.querySelectorAll('svg')].filter(e => e.getClientRects().length).length")
        assert shown == 1


def test_page_of_a_run_that_is_not_well_names_what_and_the_remedy_and_runs_no_text(chromium: Browser) -> None:
    with run(is_well=False) as url, opened(chromium, url) as page:
        findings = page.locator("#findings").inner_text()
        assert "slot 0: merge has made no progress: it is in f (a.py:3) (45 s)" in findings
        assert "Its function does not return" in findings
        for kind in ("retrying", "hidden", "broker_away", "replaced", "killed", "restarting", "dead_letters", "spare"):
            # the commands name the graph, so that they can be typed
            assert REMEDIES[kind].replace("`", "") in re.sub(rf" {__name__}\S*\b", "", findings), kind
        assert "<script>document.title = 'taken'</script>" in page.locator("#letters").inner_text()
        assert page.title() == "flights"


@pytest.mark.parametrize("width", [390, 900, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chain_of_four_processors_is_whole_and_legible(chromium: Browser, scheme: str, width: int) -> None:
    with run(is_well=False, graph=SHOP) as url, opened(chromium, url, scheme=scheme, width=width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate("[...document.querySelectorAll('figure')].map(e => e.scrollWidth - e.clientWidth)") == [0]
        assert page.evaluate(CONTRAST) == []
        shown = page.evaluate(
            "[...document.querySelectorAll('svg')].filter(e => e.getClientRects().length).map(e => e.classList[0])"
        )
        assert shown == ["wide" if width == 1280 else "upright"]
        assert min(page.evaluate(HEIGHTS)) >= (8.7 if width == 390 else 9)
        assert page.evaluate(OUTSIDE) == []


def test_outage_is_one_line_whose_link_leads_to_its_section_of_the_runbook(chromium: Browser) -> None:
    with run(is_well=False, graph=SHOP) as url, opened(chromium, url) as page:
        broker = page.locator("#findings li[data-kind=broker_away]")
        what = "broker 2 at h:9092 does not answer: it affects validate_orders, price, count_by_customer"
        assert broker.locator("p").all_inner_texts() == [
            f"Repair:{what}", f"→ {REMEDIES['broker_away']} Runbook: KstreamsBrokerAway"
        ]  # fmt: skip
        assert page.get_by_role("status").inner_text() == "1 thing to repair"
        commands = page.locator("#findings li[data-kind=held] code").all_inner_texts()
        assert commands == [f"kstreams order {word} {__name__}:SHOP" for word in ("stopped", "accept")]
        broker.get_by_role("link").click()
        page.wait_for_url("**/runbook#kstreamsbrokeraway")
        section = page.get_by_role("heading", name="KstreamsBrokerAway")
        assert section.evaluate("each => each.getBoundingClientRect().top") < 100
        assert page.evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runbook_is_legible_and_scrolls_only_down(chromium: Browser, scheme: str, width: int) -> None:
    with run(is_well=True) as url, opened(chromium, f"{url}/runbook", scheme=scheme, width=width, awaited="h3") as page:
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CONTRAST) == []


def test_ordered_events_and_pipelines_have_tables_of_their_own(chromium: Browser) -> None:
    with run(is_well=False, graph=SHOP) as url, opened(chromium, url) as page:
        cells = {name: page.locator(f"#{name} td").all_inner_texts() for name in ("ordered", "pipelines")}
        assert cells == {
            "ordered": ["24", "61 s", "2"],
            "pipelines": ["complete", "60 s", "eu.shop.orders.step-1", "tables/valid"],
        }
        assert page.get_by_role("heading", level=2).all_inner_texts()[3:5] == ["Events in order", "Pipelines"]
        assert page.locator("svg.wide [data-processor=ship] [data-value=held]").inner_html() == "24 held"
        assert page.locator("svg.wide [data-pipeline=valid] .name").inner_html() == "valid"


def test_page_says_since_when_there_is_no_answer_and_goes_on_when_one_comes(chromium: Browser) -> None:
    with run(is_well=True) as url, opened(chromium, url) as page:
        page.route("**/status", lambda route: route.abort())
        page.wait_for_selector("#silent:not([hidden])")
        assert "No answer from /status since" in page.get_by_role("alert").inner_text()
        page.unroute("**/status")
        page.wait_for_selector("#silent", state="hidden")


def test_page_has_names_for_who_does_not_see_it(chromium: Browser) -> None:
    with run(is_well=True) as url, opened(chromium, url) as page:
        assert page.get_by_role("img", name="The graph flights: the tables below have the same values").count() == 1
        assert [each.inner_text() for each in page.get_by_role("heading", level=2).all()] == [
            "Problems, causes and remedies",
            "The graph",
            "Processors",
            "Slots",
            "Newest failures and dead letters",
        ]
        assert page.get_by_role("columnheader", name="lag", exact=True).count() == 1
        assert page.get_by_role("status").inner_text() == "all is well"
