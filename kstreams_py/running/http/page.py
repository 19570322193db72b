"""The page /: one HTML file with script, style and the picture of the graph; it draws /status while it is open."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Final, NamedTuple

from kstreams_py.graph.layout import ARROW, CHARACTER_WIDTH, Box, Line, Point, lay_out
from kstreams_py.graph.picture import elements
from kstreams_py.graph.topology import Graph

GAP: Final = 76.0
"""Pixels between columns: each line is labelled with its lag."""

FITS: Final = 1600.0
"""The widest picture, in pixels, that is shrunk to the page; a wider one is scrolled, to stay readable."""

PROCESSOR: Final = (178.0, 96.0)
"""The least width, and the height, of a processor's box."""

TOPIC_HEIGHT: Final = 32.0


@dataclass(frozen=True, slots=True)
class _LiveBox(Box):
    """A box with its own size; `across` is its extent along the columns' axis."""

    across: float = 0.0
    along: float = 0.0

    @property
    def width(self) -> float:
        return self.across

    @property
    def height(self) -> float:
        return self.along


class _Drawn(NamedTuple):
    """A box with its centre and size, as both directions draw it."""

    box: Box
    x: float
    y: float
    width: float
    height: float


def live_svg(graph: Graph, *, upright: bool) -> str:
    """Returns the picture of a graph, SVG, from left to right; if `upright`, from top to bottom, for narrow screens.

    The page finds its boxes and lines by their attributes. A box has `data-processor`, `data-topic` or `data-target`. A
    line from a topic to its reader has `data-topic` and `data-reader`; a line to the dead letters has `data-dead`.
    `data-value` names the value that a text shows.
    """
    boxes, edges = elements(graph)
    sizes = {node: _size(box) for node, box in boxes.items()}
    sized: dict[str, Box] = {}
    for node, box in boxes.items():
        across, along = sizes[node][::-1] if upright else sizes[node]
        sized[node] = _LiveBox(box.role, box.name, box.over, box.under, box.tooltip, across=across, along=along)
    drawn = lay_out(sized, edges, 46.0 if upright else GAP)
    placed = [_Drawn(box, *((box.y, box.x) if upright else (box.x, box.y)), *_size(box)) for box in drawn.boxes]
    lines = [replace(line, points=tuple((y, x) for x, y in line.points)) if upright else line for line in drawn.lines]
    width, height = (drawn.height, drawn.width) if upright else (drawn.width, drawn.height)
    if upright:
        width += 56  # the lags of the last column are beside its lines
    readers = Counter(line.source for line in lines if not line.dead)
    name = f"The graph {graph.name}: the tables below have the same values"
    kind = "upright fits" if upright else "wide fits" if width <= FITS else "wide"
    opening = (
        f'<svg class="{kind}" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(name)}">'
    )
    return "\n".join(
        [
            opening,
            *(_draw_line(line, upright=upright, at_source=readers[line.source] == 1) for line in lines),
            *map(_draw_box, placed),
            "</svg>",
        ]
    )


def _size(box: Box) -> Point:
    text = len(box.name) * CHARACTER_WIDTH + 26
    return (max(text, PROCESSOR[0]), PROCESSOR[1]) if box.role == "processor" else (text, TOPIC_HEIGHT)


def _label(line: Line, *, upright: bool, at_source: bool) -> tuple[float, float, str]:
    """Returns the position of a line's value, beside its first or last point, and the text's anchor."""
    x, y = line.points[0 if at_source else -1]
    if upright:
        return (x - 5, y + 12, "end") if line.dead else (x + 7, y + (16 if at_source else -12), "start")
    if at_source:
        return x + 6, y - 5, "start"
    return x - 6, y - 6, "end"


def _draw_line(line: Line, *, upright: bool, at_source: bool) -> str:
    points, arrow = list(line.points), ""
    (x, y), (before_x, before_y) = points[-1], points[-2]
    if not line.joins:
        if upright:
            foot = y - ARROW if before_y < y else y + ARROW
            points[-1] = (x, foot)
            arrow = f'<path class="arrow" d="M{x:.1f} {y:.1f}L{x - 4:.1f} {foot:.1f}H{x + 4:.1f}Z"/>'
        else:
            foot = x - ARROW if before_x < x else x + ARROW
            points[-1] = (foot, y)
            arrow = f'<path class="arrow" d="M{x:.1f} {y:.1f}L{foot:.1f} {y - 4:.1f}V{y + 4:.1f}Z"/>'
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for i, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        if not i % 2:
            bend = "L"
        elif upright:
            bend = f"C{x0:.1f} {(y0 + y1) / 2:.1f} {x1:.1f} {(y0 + y1) / 2:.1f} "
        else:
            bend = f"C{(x0 + x1) / 2:.1f} {y0:.1f} {(x0 + x1) / 2:.1f} {y1:.1f} "
        path += f"{bend}{x1:.1f} {y1:.1f}"
    what, label = _attributes(line), ""
    if what:
        x, y, anchor = _label(line, upright=upright, at_source=line.dead or at_source)
        value = "dead" if line.dead else "lag"
        label = f'<text class="small" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" data-value="{value}"></text>'
    return f'<g class="line{" dead" if line.dead else ""}"{what}><path d="{path}"/>{arrow}{label}</g>'


def _attributes(line: Line) -> str:
    """Returns the attributes of a line with live values: from a topic to its reader, or to the dead letters."""
    (source, name), target = _split(line.source), _split(line.target)[1]
    if line.dead:
        return f' data-dead="{escape(name)}"'
    return f' data-topic="{escape(name)}" data-reader="{escape(target)}"' if source == "topic" else ""


def _split(node: str) -> tuple[str, str]:
    kind, _, name = node.partition(" ")
    return kind, name


def _draw_box(drawn: _Drawn) -> str:
    box, x, y, width, height = drawn
    is_processor = box.role == "processor"
    left, top = x - width / 2, y - height / 2
    attribute = {"processor": "data-processor", "target": "data-target"}.get(box.role, "data-topic")
    texts = [(y + 4.5, "name", "", box.name)]
    if is_processor:
        texts = [
            (top + 18, "small", "", f"{box.over}, {box.under}"),
            (top + 38, "name", "", box.name),
            (top + 56, "state", "state", ""),
            (top + 72, "small", "rate", ""),
            (top + 87, "small", "lag", ""),
        ]
    words = "".join(
        f'<text class="{kind}" x="{x:.1f}" y="{at:.1f}" data-value="{value}">{escape(word)}</text>'
        for at, kind, value, word in texts
    )
    return (
        f'<g class="{box.role}" {attribute}="{escape(box.name)}"><title>{escape(box.tooltip)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{7 if is_processor else height / 2:g}"/>{words}</g>'
    )


class Page(NamedTuple):
    """The page, and its Content-Security-Policy.

    The policy allows only the page's own script and style, and requests only to the run itself.
    """

    html: bytes
    policy: str


def build_page(graph: Graph) -> Page:
    """Returns the page of a graph, whose names are escaped."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    script, style = (_digest(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    picture = live_svg(graph, upright=False) + live_svg(graph, upright=True)
    for place, content in (("<!-- name -->", escape(graph.name)), ("<!-- picture -->", picture)):
        text = text.replace(place, content)
    return Page(text.encode(), policy)


def _digest(text: str, tag: str) -> str:
    """Returns the policy source that allows the only inline element of this tag."""
    inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
