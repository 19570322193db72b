"""spark/pipelines/history.py: the page of the runs of pipelines."""

from __future__ import annotations

import re
from typing import Any

import kstreams_py as ks
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.spark.cuts import Cut, CutTopic, Span
from kstreams_py.spark.pipelines.places import BatchPlace
from kstreams_py.spark.pipelines.runs import PipelineRun, Published

MAY: float = 1_777_636_800  # 2026-05-01 12:00:00


def history_page(*arguments: Any) -> str:
    from kstreams_py.spark.pipelines.history import history_page as draw  # noqa: PLC0415 it imports Matplotlib

    return draw(*arguments)


def pipelines(*ids: str) -> list[Pipeline]:
    graph = ks.Graph("shop")
    orders, returns = graph.topic("orders"), graph.topic("returns")
    for each in ids:
        graph.pipeline(orders, returns, to=ks.Parquet(f"tables/{each}"), id=each)(lambda orders, returns: orders)
    return list(graph.pipelines)


def published(*runs: PipelineRun) -> Published:
    return Published("shop.totals", {"item": "string"}, runs)


CUT = Cut("shop", {"orders": CutTopic("id", (Span(0, 2, 3), Span(0, 7, 7))), "paid": CutTopic("id", ())}, ()).encode()
ENTRY = 'v1\n{"batchTimestampMs":1}\n{"orders":{"0":2,"1":5}}\n'
STREAMED = BatchPlace("stream", 1, ENTRY, {"orders": "id"}).encode()
RUNS = (
    PipelineRun(1, "{}", 12_000, 3, MAY, 4.25),
    PipelineRun(2, STREAMED, 12_010, 4, MAY + 60, 1.0, 61.5, "Scan <b>"),
    PipelineRun(3, CUT, 12_020, 4, MAY + 3660, 1.5, 3601.25, "Scan <a>", 5, 11_000),
)


def titles(page: str, chart: str) -> list[str]:
    """What is shown of each run on hover."""
    (drawn,) = [svg for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL) if f'id="{chart}-' in svg]
    return re.findall(r"<title>(.*?)</title>", drawn[drawn.index('<g class="values">') :], flags=re.DOTALL)


def test_page_has_a_table_and_plots_of_the_runs_of_each_pipeline_and_the_newest_plan() -> None:
    totals, new = pipelines("totals", "new")
    page = history_page("shop", [(totals, published(*RUNS)), (new, None)], MAY + 3700)
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    assert [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows] == [
        ["run", "ended", "offsets", "records", "rows", "seconds", "lag, s", "malformed"],
        ["3", "2026-05-01 13:01:00", "12,020", "11,000", "4", "1.5", "3,601.2", "5"],
        ["2", "2026-05-01 12:01:00", "12,010", "-", "4", "1.0", "61.5", "0"],
        ["1", "2026-05-01 12:00:00", "12,000", "-", "3", "4.2", "-", "0"],
    ]
    assert re.findall(r"<summary>(.*?)</summary><pre>(.*?)</pre>", page, flags=re.DOTALL) == [
        ("the cut of each run", "run 3\n  orders: 3, 7\n  paid: \nrun 2\n  orders: 2, 5\nrun 1\n"),
        ("the plan of run 3", "Scan &lt;a&gt;"),
        ("the plan of run 2", "Scan &lt;b&gt;"),
    ]
    for shape in ("wide", "narrow"):
        assert titles(page, f"runs0-{shape}") == [
            "run 1, 2026-05-01 12:00:00\nduration: 4.2 s\nrows: 3\noffsets: 12,000",
            "run 2, 2026-05-01 12:01:00\nlag: 61.5 s\nduration: 1.0 s\nrows: 4\noffsets: 12,010",
            "run 3, 2026-05-01 13:01:00\nlag: 3,601.2 s\nduration: 1.5 s\nrows: 4\noffsets: 12,020",
        ]
    assert "<h2>new</h2>" in page
    assert page.count("<p>No run yet.</p>") == 1
    assert page.count("<svg") == 2


def test_page_is_self_contained_and_its_ids_are_unique() -> None:
    first, second = pipelines("a", "b")
    page = history_page("shop", [(first, published(*RUNS)), (second, published(*RUNS))], MAY)
    assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)|@import|<link|<script[^>]|fetch\(|XMLHttp|import\(', page)
    assert not re.findall(r"#0000[a-f0-9]{2}\b", page), "every placeholder is replaced by a colour of the style sheet"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_page_of_a_single_run_without_a_plan_is_drawn() -> None:
    (totals,) = pipelines("totals")
    page = history_page("shop", [(totals, published(RUNS[0]))], MAY)
    assert page.count("<svg") == 2
    assert "the plan of run" not in page
