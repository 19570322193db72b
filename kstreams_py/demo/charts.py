"""Draws the charts of the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from kstreams_py.demo.data import Delays
from kstreams_py.demo.traffic import Traffic
from kstreams_py.reports.charts import INKS, Shape, draw_columns, draw_shapes, inline

MAIN_CARRIERS: Final = 6

MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def show_seconds(seconds: float | None) -> str:
    """Formats the time from a kill to the next commit of its slot."""
    return "not known" if seconds is None else f"{seconds:.1f} s"


def main_carriers(delays: Delays) -> list[str]:
    """Returns the airlines with the most flights."""
    flights = Counter[str]()
    for (carrier, _), (n, *_) in delays.items():
        flights[carrier] += n
    return [carrier for carrier, _ in flights.most_common(MAIN_CARRIERS)]


def draw_throughput(topics: Sequence[str], errors: Iterable[str], traffic: Traffic) -> str:
    """Draws a chart for each topic on one time axis, with the kills. `errors`: the dead-letter topics."""
    dead = set(errors)
    return draw_shapes(lambda shape: _draw_throughput(topics, dead, traffic, shape))


def draw_delays(delays: Delays, carriers: Mapping[str, str]) -> str:
    """Draws a line over the months for each main carrier, with its name. `carriers`: names by code."""
    return draw_shapes(lambda shape: _draw_delays(delays, carriers, shape))


def _draw_throughput(topics: Sequence[str], errors: set[str], traffic: Traffic, shape: Shape) -> str:
    seconds = max(traffic.seconds, 1.0)
    width = max(0.5, ceil(2 * seconds / shape.bins) / 2)
    number = ceil(seconds / width)
    kills = [
        (kill.at - traffic.started, kill.slot, after)
        for kill, after in zip(traffic.kills, traffic.recoveries, strict=True)
    ]
    rates = _rates(traffic, width)
    height = 1.02 * len(topics) + 0.8
    figure = Figure(figsize=(shape.inches, height))
    plots = list(figure.subplots(len(topics), sharex=True, squeeze=False)[:, 0])
    figure.subplots_adjust(
        left=shape.left(0.57), right=1 - shape.left(0.06), top=1 - 0.44 / height, bottom=0.42 / height, hspace=0.5
    )
    for topic, plot in zip(topics, plots, strict=True):
        colour = INKS["c3" if topic in errors else "c1"]
        edges = [width * bin_ for bin_ in range(number + 1)]
        values = [rates[topic, bin_] for bin_ in range(number)]
        plot.stairs(values, edges, fill=True, color=colour, alpha=0.16, linewidth=0)
        plot.stairs(values, edges, color=colour, linewidth=1.1, baseline=None)
        for at, _, after in kills:
            plot.axvspan(at, at + (after or 0), color=INKS["kill"], alpha=0.13, linewidth=0)
            plot.axvline(at, color=INKS["kill"], linewidth=0.8, alpha=0.8)
        plot.set(ylim=(0, max(values) * 1.08 or 1), xlim=(0, max(seconds, edges[-1])))
        plot.yaxis.set_major_locator(mpl.ticker.MaxNLocator(3, integer=True))
        plot.yaxis.set_major_formatter("{x:,.0f}")
        records = sum(n for _, name, n in traffic.arrivals if name == topic)
        plot.set_title(f"{topic}, {records:,} records", loc="left", fontsize=9, pad=4)
    for at, slot, _ in kills:
        plots[0].annotate(
            f"{slot}", (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 16), textcoords="offset points",
            ha="center", fontsize=8, color=INKS["kill"],
        )  # fmt: skip
    plots[-1].set_xlabel("seconds")
    columns = []
    for bin_ in range(number):
        low, high = width * bin_, width * (bin_ + 1)
        lines = [f"{low:g} to {high:g} s", *(f"{topic}: {rates[topic, bin_]:,.0f}/s" for topic in topics)]
        lines += [
            f"slot {slot} killed at {at:.1f} s, next commit after: {show_seconds(after)}"
            for at, slot, after in kills
            if low <= at < high
        ]
        columns.append((low, high, lines))
    label = "Committed records per second of each topic, and the kills, which the table below lists"
    return inline(figure, f"throughput-{shape.name}", shape, label, draw_columns(figure, plots, columns))


def _rates(traffic: Traffic, width: float) -> defaultdict[tuple[str, int], float]:
    """Returns records per second, by topic and number of the bin. `width`: seconds of a bin."""
    rates = defaultdict[tuple[str, int], float](float)
    for at, name, n in traffic.arrivals:
        rates[name, int((at - traffic.started) / width)] += n / width
    return rates


def _draw_delays(delays: Delays, carriers: Mapping[str, str], shape: Shape) -> str:
    months = sorted({month for _, month in delays})
    main = main_carriers(delays)
    height = 4.2
    figure = Figure(figsize=(shape.inches, height))
    figure.subplots_adjust(
        left=shape.left(0.47),
        right=0.98 if shape.is_narrow else 0.84,
        top=0.97,
        bottom=0.26 if shape.is_narrow else 0.075,
    )
    plot = figure.subplots()
    ends = []
    for number, carrier in enumerate(main, start=1):
        points = [(m, delays[carrier, m][1]) for m in months if (carrier, m) in delays]
        colour, name = INKS[f"c{number}"], carriers.get(carrier, carrier)
        plot.plot(*zip(*points, strict=True), color=colour, linewidth=1.7, marker="o", markersize=3, label=name)
        ends.append((points[-1][1], name, colour))
    plot.axhline(0, color=INKS["soft"], linewidth=0.7)
    plot.set_xticks(months, [MONTHS[month - 1][: 1 if shape.is_narrow else 3] for month in months])
    plot.margins(x=0.02)
    plot.yaxis.set_major_formatter("{x:.0f}")
    if not shape.is_narrow:
        _name_lines(plot, ends, months[-1] if months else 1)
    elif main:
        figure.legend(loc="lower center", ncols=2, columnspacing=1.2, handlelength=1.2, fontsize=8)
    low, high = plot.get_xlim()
    edges = [low, *((a + b) / 2 for a, b in pairwise(months)), high]
    columns = []
    for month, (left, right) in zip(months, pairwise(edges), strict=False):
        lines = [MONTHS[month - 1]]
        for carrier in main:
            if (carrier, month) in delays:
                flights, minutes, cancelled = delays[carrier, month]
                figures = f"{minutes:.1f} min, {flights:,} flights, {cancelled:,} cancelled"
                lines.append(f"{carriers.get(carrier, carrier)}: {figures}")
        columns.append((left, right, lines))
    label = "Mean arrival delay in minutes by month and airline, which the table below lists"
    return inline(figure, f"delays-{shape.name}", shape, label, draw_columns(figure, [plot], columns))


def _name_lines(plot: Any, ends: Sequence[tuple[float, str, str]], last: int) -> None:
    """Writes names beside the ends of their lines, and moves them apart if they would overlap."""
    low, high = plot.get_ylim()
    apart = (high - low) * 0.05
    at = float("-inf")
    for end, name, colour in sorted(ends):
        at = max(end, at + apart)
        plot.annotate(
            name, (last, at), xytext=(9, 0), textcoords="offset points", va="center", color=colour,
            annotation_clip=False,
        )  # fmt: skip
