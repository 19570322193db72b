"""The demo's report in Chromium: legible in light and dark, no wider than a phone; values by mouse, finger and keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from kstreams_py.demo import report
from kstreams_py.demo.checks import Check
from tests.browser.test_page_in_chromium import CONTRAST
from tests.departures import new_letter, new_report

pytestmark = pytest.mark.browser

PHONE = 390

WIDER = """() => [...document.querySelectorAll("body *")]
  .filter(each => each.getClientRects().length && !each.closest("svg g"))
  .filter(each => each.getBoundingClientRect().right > innerWidth || each.scrollWidth > each.clientWidth + 1
    && getComputedStyle(each).display !== "inline")
  .map(each => each.outerHTML.slice(0, 80))"""
"""The elements that reach beyond the screen, or whose contents are cut, scrolled sideways or over their neighbour."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a failed check, and dead letters of long words that have no place to break."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    letters = [new_letter(), new_letter("x" * 300), new_letter("<img src=x onerror=\"document.title = 'taken'\">")]
    checks = [replace(each, expected=11_000 * each.expected, found=11_000 * each.found) for each in new_report().checks]
    checks[7] = Check("duplicated", 0, 336_776)
    found = new_report(checks, recoveries=[0.9, 1.4, None, 2.0] * 5, arrivals=200, letters=letters, is_sample=True)
    path.write_text(report.page(found), encoding="utf-8")
    return path


@contextmanager
def opened(
    chromium: Browser, file: Path, *, scheme: str = "light", width: int = 1280, script: bool = True
) -> Iterator[Page]:
    """The report; fails for an error of its script, for what its policy refuses, and for a request."""
    context = chromium.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": width, "height": 844},
        has_touch=width == PHONE,
        java_script_enabled=script,
    )
    page, errors, requests = context.new_page(), list[str](), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    yield page
    assert (errors, requests) == ([], [file.as_uri()])
    context.close()


@pytest.mark.parametrize("width", [320, PHONE, 760, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_is_legible_and_scrolls_only_down(chromium: Browser, file: Path, scheme: str, width: int) -> None:
    with opened(chromium, file, scheme=scheme, width=width) as page:
        for details in page.locator("summary").all():
            if details.locator("xpath=..").get_attribute("open") is None:
                details.click()
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(WIDER) == []
        assert page.evaluate(CONTRAST) == []
        shown = page.evaluate(
            "[...document.querySelectorAll('figure svg')].filter(e => e.getClientRects().length)"
            ".map(e => e.classList[0] || null)"
        )
        assert shown == (["narrow", "narrow"] if width <= 760 else [None, "wide", "wide"])
        assert page.locator(".steps").is_visible() == (width <= 760), (
            "the graph in words, where its picture is too small"
        )
        assert page.title() != "taken"


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_texts_of_the_charts_are_as_large_on_a_phone_as_one_can_read(chromium: Browser, file: Path, width: int) -> None:
    with opened(chromium, file, width=width) as page:
        heights = page.evaluate(
            """[...document.querySelectorAll("figure.chart svg text")].filter(e => e.getClientRects().length)
              .map(e => parseFloat(getComputedStyle(e).fontSize) * e.getScreenCTM().a)"""
        )
        assert min(heights) >= 9


def column(page: Page, chart: int, number: int) -> dict[str, float]:
    """The place of a column of a chart that is shown, brought into view."""
    shown = page.locator("figure.chart").nth(chart).locator(".values rect:visible").nth(number)
    shown.scroll_into_view_if_needed()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = shown.bounding_box()
    assert box is not None
    return {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}


FIRST = "0 to 1.5 s\nflights 10/s flights.departed 10/s flights.cancelled 0/s flights.errors 0/s"


def words(text: str) -> str:
    return " ".join(re.sub(r"\s+", " ", text).split())


def test_values_are_shown_beside_the_mouse_and_go_with_it(chromium: Browser, file: Path) -> None:
    with opened(chromium, file) as page:
        tip = page.locator("#tip")
        assert tip.is_hidden()
        at = column(page, 0, 0)
        page.mouse.move(at["x"], at["y"])
        assert words(tip.inner_text()) == words(f"{FIRST} slot 0 killed at 0.2 s, next commit after 0.9 s")
        at = column(page, 0, 1)
        page.mouse.move(at["x"], at["y"])
        assert words(tip.inner_text()).startswith("1.5 to 3 s flights ")
        at = column(page, 1, 1)
        page.mouse.move(at["x"], at["y"])
        assert words(tip.inner_text()) == (
            "Feb United Air Lines Inc. 12.0 min, 8 flights, 1 cancelled"
            " Delta Air Lines Inc. 12.0 min, 4 flights, 0 cancelled"
        )
        box = tip.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 1280, "at the right edge it stands at the other side"
        page.mouse.move(5, 5)
        assert tip.is_hidden()


def test_values_are_shown_by_a_finger_within_the_screen(chromium: Browser, file: Path) -> None:
    with opened(chromium, file, width=PHONE) as page:
        tip, last = page.locator("#tip"), page.locator("figure.chart").first.locator(".values rect:visible").count() - 1
        for number in (0, last):
            at = column(page, 0, number)
            page.touchscreen.tap(at["x"], at["y"])
            tip.wait_for(state="visible")
            box = tip.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE
        page.touchscreen.tap(4, at["y"])
        tip.wait_for(state="hidden")


def test_values_are_shown_by_the_keyboard(chromium: Browser, file: Path) -> None:
    with opened(chromium, file) as page:
        tip, chart = page.locator("#tip"), page.locator("figure.chart").nth(1)
        chart.focus()
        for key, month in (("ArrowRight", "Jan"), ("ArrowRight", "Feb"), ("ArrowRight", "Feb"), ("ArrowLeft", "Jan")):
            page.keyboard.press(key)
            assert tip.inner_text().split()[0] == month
        page.keyboard.press("Escape")
        assert tip.is_hidden()


def test_without_its_script_the_report_has_the_values_as_titles_and_all_else(chromium: Browser, file: Path) -> None:
    with opened(chromium, file, script=False) as page:
        title = page.locator("figure.chart").first.locator(".values rect:visible title").first
        assert title.text_content() == (
            "0 to 1.5 s\nflights: 10/s\nflights.departed: 10/s\nflights.cancelled: 0/s\nflights.errors: 0/s\n"
            "slot 0 killed at 0.2 s, next commit after: 0.9 s"
        )
        assert page.get_by_role("row").count() == 1 + 20 + 1 + 16, "the kills and the checks"
        page.get_by_text("the figures as a table").click()
        assert page.get_by_role("row").count() == 1 + 20 + 1 + 16 + 3
