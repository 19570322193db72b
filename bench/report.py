"""The results: medians, ratios and targets, as tables, as JSON and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

RATE: Final = "records/s"
OURS: Final = "kstreams_py"
PEERS: Final = ("by hand, with header", "by hand", "Kafka Streams", "quixstreams")
"""The rows that the table has ratios to."""
LIKE_PASS_THROUGH: Final = ("step", "batch")
"""Workloads that only kstreams_py has; they are compared with the pass-through of the peers."""
PLOTTED: Final = (RATE, "median ms", "p99 ms", "longest silence s")
FAMILIES: Final = (OURS, "by hand", "Kafka Streams", "quixstreams")
COLOURS: Final = ("#2f6f9f", "#9a9a9a", "#c98a2b", "#8f5fa8")

MISTAKES: Final = ("lost", "duplicated", "out of order")
"""Measures for which the worst round counts instead of the median."""


def _of_rounds(measure: str, found: Sequence[float]) -> float:
    return max(found) if measure in MISTAKES else median(found)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the figure `measure` of row `row`, or on its ratio to the same figure of row `of`."""

    name: str
    row: str
    measure: str
    at_least: float | None = None
    at_most: float | None = None
    of: str | None = None

    @property
    def asked(self) -> str:
        """The bound as text."""
        sign, bound = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        return f"{sign} {bound:g}" + (f" x {self.of}" if self.of else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and the figure reached; None if it was not measured."""

    target: Target
    reached: float | None

    @property
    def met(self) -> bool | None:
        """Whether the bound holds; None if it was not measured."""
        if self.reached is None:
            return None
        if self.target.at_least is not None:
            return self.reached >= self.target.at_least
        return self.target.at_most is not None and self.reached <= self.target.at_most


def workload_of(row: str) -> str:
    """Returns the workload of a row, whose name is `workload: contestant`."""
    return row.partition(": ")[0]


@dataclass(slots=True)
class Results:
    """All figures of all rounds, by row and measure, and the reasons for missing rows."""

    about: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, measures: Mapping[str, float]) -> None:
        """Adds the figures of one round of a row, by measure."""
        for name, figure in measures.items():
            self.figures.setdefault(row, {}).setdefault(name, []).append(figure)

    def rows(self, *measures: str) -> list[str]:
        """Returns the rows with one of these figures, grouped by workload, in the order in which they were run."""
        workloads = list(dict.fromkeys(map(workload_of, self.figures)))
        found = [row for row, figures in self.figures.items() if figures.keys() & set(measures)]
        return sorted(found, key=lambda row: workloads.index(workload_of(row)))

    def median(self, row: str, measure: str) -> float | None:
        """Returns the median over the rounds, for MISTAKES the worst; None if it was not measured."""
        found = self.figures.get(row, {}).get(measure)
        return _of_rounds(measure, found) if found else None

    def ratio(self, row: str, measure: str, of: str) -> float | None:
        """Returns the ratio of two rows' medians; None if one was not measured, or the second is 0."""
        above, below = self.median(row, measure), self.median(of, measure)
        return above / below if above is not None and below else None

    def verdicts(self, targets: Sequence[Target]) -> list[Verdict]:
        """Compares the figures with the targets."""
        return [
            Verdict(t, self.ratio(t.row, t.measure, t.of) if t.of else self.median(t.row, t.measure)) for t in targets
        ]


def as_json(results: Results, targets: Sequence[Target]) -> dict[str, Any]:
    """Returns all figures of all rounds, the medians and the targets, as values that JSON can hold."""
    return {
        "about": results.about,
        "rows": {
            row: {
                name: {"median": _of_rounds(name, found), "rounds": found} for name, found in sorted(measures.items())
            }
            for row, measures in results.figures.items()
        },
        "targets": [
            {
                "name": verdict.target.name,
                "row": verdict.target.row,
                "measure": verdict.target.measure,
                "asked": verdict.target.asked,
                "reached": verdict.reached,
                "met": verdict.met,
            }
            for verdict in results.verdicts(targets)
        ],
        "missing": results.missing,
    }


def show(results: Results, targets: Sequence[Target], console: Console) -> None:
    """Prints tables of throughput with its ratios, of the other figures and of the targets, and the missing rows."""
    rated = results.rows(RATE)
    if rated:
        console.print(_throughput(results))
    for workload in dict.fromkeys(workload_of(row) for row in results.figures if row not in rated):
        console.print(_others(results, workload))
    verdicts = [verdict for verdict in results.verdicts(targets) if verdict.reached is not None]
    if verdicts:
        console.print(_targets(verdicts))
    for row, reason in results.missing.items():
        console.print(f"[yellow]not measured:[/] {row}: ", end="")
        console.print(reason, markup=False)


def _throughput(results: Results) -> Table:
    table = Table(title=f"records/s, medians of {results.about.get('rounds', '?')}", title_justify="left")
    table.add_column("workload")
    table.add_column("contestant")
    table.add_column("records/s", justify="right")
    table.add_column("lowest to highest", justify="right")
    for peer in PEERS:
        table.add_column(f"x {peer}", justify="right")
    before = ""
    for row in results.rows(RATE):
        workload, _, name = row.partition(": ")
        found = results.figures[row][RATE]
        ratios = [results.ratio(row, RATE, peer_of(results, workload, peer)) for peer in PEERS]
        table.add_row(
            "" if workload == before else workload,
            name,
            f"{median(found):,.0f}",
            f"{min(found):,.0f} to {max(found):,.0f}",
            *["" if ratio is None else f"{ratio:.2f}" for ratio in ratios],
            style="bold" if name.startswith(OURS) else "",
        )
        before = workload
    return table


def peer_of(results: Results, workload: str, peer: str) -> str:
    """Returns the peer's row to compare with: of this workload, or of pass-through if the peer lacks the workload."""
    own = f"{workload}: {peer}"
    return own if own in results.figures or workload not in LIKE_PASS_THROUGH else f"pass-through: {peer}"


def _others(results: Results, workload: str) -> Table:
    """Returns a table of a workload without rates: a row for each contestant, a column for each measure."""
    rows = {row: found for row, found in results.figures.items() if workload_of(row) == workload}
    table = Table(title=workload, title_justify="left")
    table.add_column("contestant")
    names = list(dict.fromkeys(name for measures in rows.values() for name in measures))
    for name in names:
        table.add_column(name, justify="right")
    for row, measures in rows.items():
        table.add_row(
            row.partition(": ")[2], *[_short(_of_rounds(n, measures[n])) if n in measures else "" for n in names]
        )
    return table


def _targets(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="targets", title_justify="left")
    for column in ("what", "target"):
        table.add_column(column)
    table.add_column("reached", justify="right")
    table.add_column("met")
    for verdict in verdicts:
        table.add_row(
            verdict.target.name,
            verdict.target.asked,
            _short(verdict.reached or 0.0) + (" x" if verdict.target.of else ""),
            "[green]yes[/]" if verdict.met else "[bold red]no[/]",
        )
    return table


def _short(figure: float) -> str:
    return (
        f"{figure:,.0f}"
        if figure >= 1000 or figure == int(figure)
        else f"{figure:.2f}"
        if figure < 10
        else f"{figure:.1f}"
    )


def write(results: Results, targets: Sequence[Target], directory: Path) -> list[Path]:
    """Writes results.json and, if there are figures to plot, results.svg; returns the files."""
    directory.mkdir(parents=True, exist_ok=True)
    data, plot = directory / "results.json", directory / "results.svg"
    data.write_text(json.dumps(as_json(results, targets), indent=2) + "\n", encoding="utf-8")
    return [data, plot] if draw(results, plot) else [data]


def draw(results: Results, file: Path) -> bool:
    """Draws a panel for each measure: a bar for each row, and a thin line from the lowest to the highest round.

    Returns False if there are no figures to draw.
    """
    # imported here: matplotlib takes a second, and needs a backend for files before pyplot is imported
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text remains text
    from matplotlib import pyplot  # noqa: PLC0415

    panels = [(measure, rows) for measure in PLOTTED if (rows := results.rows(measure))]
    if not panels:
        return False
    heights = [0.28 * len(rows) + 0.8 for _, rows in panels]
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, sum(heights)), height_ratios=heights, layout="constrained", squeeze=False
    )
    for axis, (measure, rows) in zip(axes[:, 0], panels, strict=True):
        found = [results.figures[row][measure] for row in rows]
        middle = [median(each) for each in found]
        spread = [
            [m - min(f) for m, f in zip(middle, found, strict=True)],
            [max(f) - m for m, f in zip(middle, found, strict=True)],
        ]
        colours = [COLOURS[next((i for i, peer in enumerate(FAMILIES) if peer in row), 0)] for row in rows]
        axis.barh(rows, middle, xerr=spread, color=colours, error_kw={"linewidth": 0.8})
        axis.invert_yaxis()
        axis.margins(y=0.01)
        axis.set_title(measure, loc="left", fontsize=10)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for position, value in enumerate(middle):
            axis.annotate(_short(value), (value, position), (4, 0), textcoords="offset points", va="center", fontsize=7)
    figure.savefig(file, format="svg")
    pyplot.close(figure)
    return True
