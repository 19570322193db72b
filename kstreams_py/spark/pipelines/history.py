"""The runs of pipelines as an HTML page: a plot of their lag and their duration, a table, their cuts and plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import pairwise
from typing import Final

from matplotlib import dates
from matplotlib.figure import Figure

from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.reports.charts import INKS, Shape, draw_columns, draw_shapes, inline
from kstreams_py.reports.page import build_page
from kstreams_py.spark.pipelines.places import describe_cut
from kstreams_py.spark.pipelines.runs import PipelineRun, Published

_COLUMNS: Final = ("run", "ended", "offsets", "records", "rows", "seconds", "lag, s", "malformed")

MARGIN: Final = timedelta(seconds=30)
"""The smallest margin before the first and after the last run in a plot."""


def history_page(graph: str, histories: Iterable[tuple[Pipeline, Published | None]], now: float) -> str:
    """Returns the page as HTML, which needs no other file and no network.

    - `graph`: the name of the graph.
    - `histories`: each pipeline with its published state; None without any run.
    - `now`: seconds since 1970.
    """
    sections = (_section(number, *each) for number, each in enumerate(histories))
    return build_page(
        title=f"{escape(graph)}: pipelines",
        eyebrow="kstreams_py, the runs of pipelines",
        headline=escape(graph),
        lead=f'<p class="lead">The last runs that each table has, {_time(now)} UTC. Lag is the longest that a new '
        "record can have waited for its run: from the cut before to the publication.</p>",
        sections="\n".join(sections),
        footer="<p>Written by <code>kstreams pipeline status --html</code>. Times are in UTC.</p>",
    )


def _section(number: int, pipeline: Pipeline, published: Published | None) -> str:
    topics = ", ".join(f"<code>{escape(topic.name)}</code>" for topic in pipeline.inputs)
    head = (
        f"<section>\n<h2>{escape(pipeline.id)}</h2>\n<p>{pipeline.mode} of {topics} to "
        f"<code>{escape(str(pipeline.target))}</code>, every {pipeline.every} s.</p>\n"
    )
    if published is None:
        return f"{head}<p>No run yet.</p>\n</section>"
    runs = published.runs
    chart = draw_shapes(lambda shape: _draw(runs, f"runs{number}-{shape.name}", shape))
    rows = "\n".join(map(_row, reversed(runs)))
    names = "".join(f'<th class="n">{name}</th>' for name in _COLUMNS)
    plans = "\n".join(map(_plan, reversed(runs)))
    return (
        f'{head}<figure class="chart" tabindex="0">\n{chart}\n</figure>\n'
        f'<div class="scroll"><table class="runs">\n<thead><tr>{names}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        f"</table></div>\n{_cuts(runs)}\n{plans}\n</section>"
    )


def _plan(run: PipelineRun) -> str:
    if not run.plan:
        return ""
    return f"<details><summary>the plan of run {run.number}</summary><pre>{escape(run.plan)}</pre></details>"


def _cuts(runs: Sequence[PipelineRun]) -> str:
    """Returns the offsets at which each run ended."""
    lines = (f"run {run.number}\n" + "".join(f"  {line}\n" for line in describe_cut(run.cut)) for run in reversed(runs))
    return f"<details><summary>the cut of each run</summary><pre>{escape(''.join(lines))}</pre></details>"


def _row(run: PipelineRun) -> str:
    cells = (
        f"{run.number:,}", _time(run.ended), f"{run.offsets:,}", "-" if run.records is None else f"{run.records:,}",
        f"{run.rows:,}", f"{run.seconds:,.1f}", "-" if run.lag is None else f"{run.lag:,.1f}", f"{run.malformed:,}",
    )  # fmt: skip
    drawn = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f"<tr>{drawn}</tr>"


def _draw(runs: Sequence[PipelineRun], name: str, shape: Shape) -> str:
    """Returns a plot of the lag above a plot of the duration, over the time at which runs ended."""
    height = 3.6
    figure = Figure(figsize=(shape.inches, height))
    plots = list(figure.subplots(2, sharex=True))
    figure.subplots_adjust(
        left=shape.left(0.57), right=1 - shape.left(0.2), top=1 - 0.3 / height, bottom=0.42 / height, hspace=0.4
    )
    times = [datetime.fromtimestamp(run.ended, UTC) for run in runs]
    lags = [float("nan") if run.lag is None else run.lag for run in runs]
    margin = max((times[-1] - times[0]) * 0.03, MARGIN)
    for plot, title, colour, values in (
        (plots[0], "lag, seconds", "c3", lags),
        (plots[1], "duration, seconds", "c1", [run.seconds for run in runs]),
    ):
        plot.plot(times, values, color=INKS[colour], linewidth=1.4, marker="o", markersize=3)
        plot.set_title(title, loc="left", fontsize=9, pad=4)
        plot.set(ylim=(0, max([value for value in values if value == value], default=0) * 1.08 or 1))
        plot.yaxis.set_major_formatter("{x:,g}")
    plots[-1].set_xlim(min(times) - margin, max(times) + margin)
    locator = dates.AutoDateLocator(tz=UTC, minticks=2, maxticks=4 if shape.is_narrow else 9)
    plots[-1].xaxis.set_major_locator(locator)
    plots[-1].xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    at = [float(dates.date2num(time)) for time in times]
    low, high = plots[-1].get_xlim()
    edges = [low, *((a + b) / 2 for a, b in pairwise(at)), high]
    columns = [(left, right, _lines(run)) for run, (left, right) in zip(runs, pairwise(edges), strict=True)]
    label = "Lag and duration of each run in seconds, which the table below lists"
    return inline(figure, name, shape, label, draw_columns(figure, plots, columns))


def _lines(run: PipelineRun) -> Sequence[str]:
    """Returns the lines that are shown for a run on hover."""
    lag = [] if run.lag is None else [f"lag: {run.lag:,.1f} s"]
    facts = [f"duration: {run.seconds:,.1f} s", f"rows: {run.rows:,}", f"offsets: {run.offsets:,}"]
    return [f"run {run.number:,}, {_time(run.ended)}", *lag, *facts]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
