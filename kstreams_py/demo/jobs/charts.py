"""Draws who ran what when: a row for each job and for each place of a peer."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from matplotlib.figure import Figure

from kstreams_py.demo.jobs.checks import JobsRun
from kstreams_py.demo.jobs.faults import FaultKind
from kstreams_py.jobs.cluster.state import JobPhase
from kstreams_py.reports.charts import INKS, Shape, draw_columns, draw_shapes, inline

LETTERS: Final = 13
"""How many letters of a task's name fit into an inch."""

ROW: Final = 0.24
"""The height of a row, in inches."""


def draw_timeline(run: JobsRun) -> str:
    """Draws the chart."""
    return draw_shapes(lambda shape: _draw_timeline(run, shape))


def colours_of(run: JobsRun) -> dict[str, str]:
    """Returns the name of each graph's colour, in the order in which the graphs were submitted."""
    graphs = dict.fromkeys(job.graph for job in run.replica.jobs.values())
    return {graph: f"c{number}" for number, graph in enumerate(graphs, 1)}


def _draw_timeline(run: JobsRun, shape: Shape) -> str:
    jobs, places = [*run.replica.jobs], sorted({*run.places.values()})
    rows = [*jobs, *places]
    height = ROW * len(rows) + 0.75
    figure = Figure(figsize=(shape.inches, height))
    figure.subplots_adjust(left=shape.left(0.85), right=1 - shape.left(0.1), top=1 - 0.1 / height, bottom=0.42 / height)
    plot, seconds = figure.subplots(), max(1.0, run.seconds_at(run.ended))
    y_of = {row: -number - (number >= len(jobs)) * 0.6 for number, row in enumerate(rows)}
    _draw_bars(plot, run, y_of, (shape.inches - 0.95) / seconds)
    _draw_faults(plot, run, y_of)
    plot.set(xlim=(0, seconds), ylim=(min(y_of.values()) - 0.6, 0.6))
    plot.set_yticks([*y_of.values()], [row if isinstance(row, str) else f"peer {row}" for row in rows], fontsize=8)
    plot.grid(visible=False)
    plot.set_xlabel("seconds")
    label = "Which peer ran which task of which job when, and the faults, which the tables below list"
    return inline(figure, f"timeline-{shape.name}", shape, label, draw_columns(figure, [plot], _columns(run, shape)))


def _draw_bars(plot: Any, run: JobsRun, y_of: dict[Any, float], inches: float) -> None:
    """Draws the phases of the jobs, and the tasks of the peers. `inches`: the width of a second."""
    colours = colours_of(run)
    of_job = {job: INKS[colours[state.graph]] for job, state in run.replica.jobs.items()}
    for phase in run.timeline.phases:
        runs = phase.phase is JobPhase.RUNNING
        began, ended = run.seconds_at(phase.began), run.seconds_at(phase.ended)
        colour = of_job[phase.job] if runs else INKS["soft"]
        plot.barh(y_of[phase.job], ended - began, 0.7 if runs else 0.2, began, color=colour, linewidth=0)
    for stay in run.timeline.stays:
        if (place := run.places.get(stay.peer)) is not None:
            busy = [(work.began, work.ended) for work in run.timeline.works if work.peer == stay.peer]
            edges = [stay.joined, *(edge for work in busy for edge in work), stay.left]
            for idle in zip(edges[::2], edges[1::2], strict=True):
                began, ended = map(run.seconds_at, idle)
                plot.plot([max(0.0, began), max(0.0, ended)], [y_of[place]] * 2, color=INKS["soft"], linewidth=0.8)
    for work in run.timeline.works:
        if (place := run.places.get(work.peer)) is None:
            continue
        began, ended = run.seconds_at(work.began), run.seconds_at(work.ended)
        colour = of_job[work.job]
        plot.barh(y_of[place], ended - began, 0.74, began, color=colour, alpha=0.26, linewidth=0)
        plot.plot([began, began], [y_of[place] - 0.37, y_of[place] + 0.37], color=colour, linewidth=1.0)
        if (ended - began) * inches * LETTERS > len(work.task) + 1:
            plot.annotate(
                work.task, (began, y_of[place]), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7,
                annotation_clip=False,
            )  # fmt: skip


def _draw_faults(plot: Any, run: JobsRun, y_of: dict[Any, float]) -> None:
    for fault in run.faults:
        at, y = run.seconds_at(fault.at), y_of[fault.place if fault.job is None else fault.job]
        if fault.kind is FaultKind.FREEZE:
            plot.barh(y, fault.seconds, 0.74, at, color=INKS["kill"], alpha=0.3, linewidth=0)
        else:
            marker, colour = (">", INKS["soft"]) if fault.kind is FaultKind.JOIN else ("x", INKS["kill"])
            plot.plot([at], [y], marker=marker, color=colour, markersize=6, markeredgewidth=1.8, linestyle="none")


def _columns(run: JobsRun, shape: Shape) -> list[tuple[float, float, list[str]]]:
    """Returns who runs what in each part of the run: its start and end in seconds, and lines of text."""
    seconds = max(1.0, run.seconds_at(run.ended))
    width = ceil(seconds / shape.bins)
    found = []
    for start in range(0, ceil(seconds), width):
        end = min(start + width, seconds)
        at = run.began + int(500 * (start + end))
        lines = [f"{start} to {end:.0f} s"]
        for place, peer in sorted((place, peer) for peer, place in run.places.items()):
            if (work := run.timeline.work_of(peer, at)) is not None:
                lines.append(f"peer {place}: {work.task} of {work.job}")
        lines += [f"{each.title}, {each.what}" for each in run.faults if start <= run.seconds_at(each.at) < end]
        found.append((float(start), float(end), lines))
    return found
