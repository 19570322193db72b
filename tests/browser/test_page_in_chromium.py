"""The page / in Chromium: drawn without an error, in light and dark, no wider than a phone, legible, by keyboard too.

Chromium is Debian's package `chromium`, or the program that CHROMIUM names; scripts/test-browser runs these.
"""

from __future__ import annotations

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

pytestmark = pytest.mark.browser

GRAPH = Graph("flights", errors="flights.errors")
GRAPH.alts(*(GRAPH.topic(f"flights.{code}") for code in ("ewr", "jfk", "lga")), to=GRAPH.topic("flights"), id="merge")(
    max
)
GRAPH.map("flights", to=[GRAPH.topic("departed"), GRAPH.topic("cancelled")], id="split")(max)

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
def run(*, is_well: bool) -> Iterator[str]:
    """The URL of a run, looked at again and again."""
    observed, ended = ObservedRun(), threading.Event()
    found = slots(is_well=is_well)

    def look() -> None:
        while not ended.wait(LOOK):
            observed.note(RunStatus(found, observed._clock()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        with serving("127.0.0.1:0", Endpoints(GRAPH, observed, 30.0).answer) as url:
            yield url
    finally:
        ended.set()
        thread.join()


@contextmanager
def opened(chromium: Browser, url: str, *, scheme: str = "light", width: int = 1280) -> Iterator[Page]:
    """The page, drawn; fails for an error of the script, or for what the policy refuses."""
    context = chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light", viewport={"width": width, "height": 800}
    )
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(url)
    page.wait_for_selector(".slot")
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
        assert "slot 0: merge has not turned, it is in f (a.py:3) (45 s)" in findings
        assert "Its function does not return" in findings
        for kind in ("retrying", "hidden", "broker_away", "replaced", "killed", "restarting", "dead_letters", "spare"):
            assert REMEDIES[kind] in findings, kind
        assert "<script>document.title = 'taken'</script>" in page.locator("#letters").inner_text()
        assert page.title() == "flights"


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
