"""The page /: one HTML file with script, style and the picture of the graph; it draws /status while it is open."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Final, NamedTuple

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.layout import ARROW, Box, Edge, Line, Point, lay_out
from kstreams_py.graph.picture import elements
from kstreams_py.graph.topology import Graph
from kstreams_py.running.peer_graphs import Shown, graphs_of, prefix_of

GAPS: Final = {False: (32.0, 76.0), True: (26.0, 46.0)}
"""Pixels between two columns, without and with lags beside the lines; the key is whether the picture is upright."""

SHRUNK: Final = 0.86
"""The smallest scale of a picture from left to right: its small text is then 9 pixels high."""

SCREENS: Final = (761, 1000, 1240)
"""The screen widths from which a picture may run from left to right. page.html has a rule for each."""

MARGINS: Final = 90.0
"""Pixels of a screen beside the picture: the page's margins, and a scroll bar."""

PHONE: Final = 469.0
"""The widest upright picture that a phone shows whole, at three quarters of its size; a wider one is scrolled."""

NAME_MAX: Final = 12
"""The maximum length of a name in one line."""

VALUES_WIDTH: Final = 106.0
"""The width of the longest live values, such as "\N{WARNING SIGN} broker away" and "12,345/s out"."""

LAG_WIDTH: Final = 60.0
"""The width of the lag in a topic's box."""

FONTS: Final = {"name": (7.6, 16.0), "state": (7.0, 16.0), "small": (6.32, 13.0)}
"""The width of a character and the height of a line, by class of text. page.html has the sizes of the fonts."""


OF_TASK: Final = ("state", "workers", "in", "out", "lag", "failed")
"""The live values in the box of a task."""

OF_SOURCE: Final = ("pending", "oldest", "refused")
"""The live values in the box of a channel that a source fills."""


class _Text(NamedTuple):
    """Lines of text in a box: their class, the name of the live value that they show ("" for none), the lines."""

    kind: str
    value: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _LiveBox(Box):
    """A box with its own texts and size: `across` the columns, and `along` a column."""

    texts: tuple[_Text, ...] = ()
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

    box: _LiveBox
    x: float
    y: float
    width: float
    height: float


class _Label(NamedTuple):
    """The live value of a line: its name, its position, and the text's anchor."""

    value: str
    x: float
    y: float
    anchor: str


class LivePicture(NamedTuple):
    """A picture of a graph as SVG, and its width in pixels."""

    svg: str
    width: float


def draw_live(graph: Graph, *, upright: bool, prefix: str = "") -> LivePicture:
    """Draws a graph from left to right; if `upright`, from top to bottom, for narrow screens.

    The page finds boxes and lines by their attributes. A box has `data-processor`, `data-pipeline`, `data-topic`,
    `data-channel` or `data-target`. A line from a topic to its reader has `data-topic` and `data-reader`; a line to the
    dead letters has `data-dead`. `data-value` names the value that a text shows.

    - `prefix`: the prefix of the names of tasks and sources in reports.

    A line has its lag only if its reader has several inputs: for a single input, the reader's box has the lag. If the
    topic has no other reader, the topic's box has it instead, so that the columns can be close to each other.
    """
    boxes, edges = elements(graph)
    readers = Counter(edge.source for edge in edges if not edge.dead)
    joins = {f"processor {each.id}" for each in graph.processors if len(each.inputs) > 1}
    labelled = {edge for edge in edges if edge.target in joins}
    inside = {edge.source for edge in labelled if readers[edge.source] == 1}
    is_spaced = any(edge.source not in inside for edge in labelled)
    values = dict.fromkeys(inside, ("lag",)) | {f"processor {each.id}": _values(each) for each in graph.processors}
    values |= {f"processor {each.id}": OF_TASK for each in graph.tasks}
    values |= {f"channel {each.name}": OF_SOURCE for each in graph.channels.values() if each.source is not None}
    live = {node: _live_box(box, values.get(node, ()), prefix, upright=upright) for node, box in boxes.items()}
    layout = lay_out(live, edges, GAPS[upright][is_spaced])
    placed = {
        node: _Drawn(live[node], *((box.y, box.x) if upright else (box.x, box.y)), *_size(live[node].texts))
        for node, box in zip(boxes, layout.boxes, strict=True)
    }
    lines = [replace(line, points=tuple((y, x) for x, y in line.points)) if upright else line for line in layout.lines]
    width, height = (layout.height, layout.width) if upright else (layout.width, layout.height)
    if upright and is_spaced:
        width += 56  # the lags of the last column are beside its lines
    labels = (_label(line, labelled, placed if line.source in inside else {}, upright=upright) for line in lines)
    name = f"The graph {graph.name}: the tables below have the same values"
    kind = "wide" if not upright else "upright fits" if width <= PHONE else "upright"
    opening = (
        f'<svg class="{kind}" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(name)}">'
    )
    drawn = [_draw_line(line, label, upright=upright) for line, label in zip(lines, labels, strict=True)]
    return LivePicture("\n".join([opening, *map(_draw_box, placed.values()), *drawn, "</svg>"]), width)


def wrap(name: str) -> tuple[str, ...]:
    """Returns a name in lines of at most NAME_MAX characters, broken after separators if it has any."""
    lines: list[str] = []
    for word in re.findall(r"[^._/: -]*[._/: -]|[^._/: -]+", name):
        if lines and len(lines[-1] + word.rstrip()) <= NAME_MAX:
            lines[-1] += word
        else:
            lines += [word[at : at + NAME_MAX] for at in range(0, len(word), NAME_MAX)]
    return tuple(lines)


def _values(processor: Processor) -> tuple[str, ...]:
    """Returns the live values in the box of a processor, a line for each."""
    events = () if processor.ordered is None else ("held", "stopped")
    return ("state", "workers", "in", "out", "lag", *events, "failed")


def _live_box(box: Box, values: Sequence[str], prefix: str, *, upright: bool) -> _LiveBox:
    texts = tuple(_texts(box, values))
    across, along = _size(texts)[::-1] if upright else _size(texts)
    name = prefix + box.name if box.role in ("processor", "channel") else box.name
    return _LiveBox(box.role, name, box.over, box.under, box.tooltip, texts=texts, across=across, along=along)


def _texts(box: Box, values: Sequence[str]) -> Iterator[_Text]:
    """Yields the texts of a box from top to bottom. `values`: the names of its live values."""
    if box.is_function:
        words = f"{box.over}, {box.under}"
        yield _Text("small", "", (words,) if len(words) <= NAME_MAX + 6 else (box.over, box.under))
    yield _Text("name", "", wrap(box.name))
    for value in values:
        yield _Text("state" if value == "state" else "small", value, ("",))


def _size(texts: Sequence[_Text]) -> Point:
    """Returns the width and height of a box with these texts."""
    widths = [FONTS[text.kind][0] * len(line) for text in texts for line in text.lines]
    live = [text.value for text in texts if text.value]
    widths += [] if not live else [LAG_WIDTH] if live == ["lag"] else [VALUES_WIDTH]
    return max(widths) + 18, sum(FONTS[text.kind][1] * len(text.lines) for text in texts) + 16


def _label(line: Line, labelled: Collection[Edge], inside: Mapping[str, _Drawn], *, upright: bool) -> _Label | None:
    """Returns the live value of a line: dead letters at its first point, a lag at its last point.

    - `labelled`: the edges with a lag.
    - `inside`: the boxes by node if the topic's box has the lag; otherwise empty.
    """
    if line.dead:
        x, y = line.points[0]
        return _Label("dead", x - 5, y + 12, "end") if upright else _Label("dead", x + 6, y - 5, "start")
    if Edge(line.source, line.target, line.dead) not in labelled:
        return None
    if line.source in inside:
        box = inside[line.source]
        return _Label("lag", box.x, box.y + box.height / 2 - 10, "middle")
    x, y = line.points[-1]
    return _Label("lag", x + 7, y - 12, "start") if upright else _Label("lag", x - 6, y - 6, "end")


def _draw_line(line: Line, label: _Label | None, *, upright: bool) -> str:
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
    text = ""
    if label is not None:
        value, x, y, anchor = label
        text = f'<text class="small" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" data-value="{value}"></text>'
    kind = "line dead" if line.dead else "line"
    return f'<g class="{kind}"{_attributes(line)}><path d="{path}"/>{arrow}{text}</g>'


def _attributes(line: Line) -> str:
    """Returns the attributes of a line with live values: from a topic to a processor, or to the dead letters."""
    (source, name), (target, reader) = _split(line.source), _split(line.target)
    if line.dead:
        return f' data-dead="{escape(name)}"'
    is_read = (source, target) == ("topic", "processor")
    return f' data-topic="{escape(name)}" data-reader="{escape(reader)}"' if is_read else ""


def _split(node: str) -> tuple[str, str]:
    kind, _, name = node.partition(" ")
    return kind, name


def _draw_box(drawn: _Drawn) -> str:
    box, x, y, width, height = drawn
    left, top = x - width / 2, y - height / 2
    attribute = f"data-{box.role}" if box.is_function or box.role in ("target", "channel") else "data-topic"
    at, words = top + 8, ""
    for text in box.texts:
        if text.value != "lag" or box.is_function:  # the label of the line to the reader is the lag of a topic
            words += _draw_text(text, x, at)
        at += FONTS[text.kind][1] * len(text.lines)
    return (
        f'<g class="{box.role}" {attribute}="{escape(box.name)}"><title>{escape(box.tooltip)}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{7 if box.is_function else min(height / 2, 16):g}"/>{words}</g>'
    )


def _draw_text(text: _Text, x: float, top: float) -> str:
    height = FONTS[text.kind][1]
    lines = [
        f'<tspan x="{x:.1f}" y="{top + height * (number + 0.75):.1f}">{escape(line)}</tspan>'
        for number, line in enumerate(text.lines)
    ]
    content = "".join(lines) if len(lines) > 1 else escape(text.lines[0])
    start = f'x="{x:.1f}" y="{top + height * 0.75:.1f}"'
    return f'<text class="{text.kind}" {start} data-value="{text.value}">{content}</text>'


class Page(NamedTuple):
    """An HTML page, and its Content-Security-Policy.

    The policy allows only the page's own script and style, and requests only to the run itself.
    """

    html: bytes
    policy: str


def build_page(shown: Shown) -> Page:
    """Returns the page of a graph, or of several; their names are escaped."""
    text = read_template()
    script, style = (digest(text, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    figures = "\n".join(_draw_figure(graph, prefix_of(shown, graph)) for graph in graphs_of(shown))
    for place, content in (("<!-- name -->", escape(shown.name)), ("<!-- pictures -->", figures)):
        text = text.replace(place, content)
    return Page(text.encode(), policy)


def _draw_figure(graph: Graph, prefix: str) -> str:
    wide, upright = (draw_live(graph, upright=each, prefix=prefix) for each in (False, True))
    name = f"The graph {escape(graph.name)}, with its live values"
    chosen = choose_picture(wide.width, upright.width)
    return f'<figure class="{chosen}" tabindex="0" aria-label="{name}">\n{wide.svg}{upright.svg}\n</figure>'


def choose_picture(wide: float, upright: float) -> str:
    """Returns the class of the figure, by which the style chooses between the pictures of these widths.

    - `from-N`: the picture from left to right on screens from N pixels on, which show it legibly and whole.
    - `never-wide`: the upright picture on every screen: only that one is shown whole.
    - `scrolls`: the picture from left to right, scrolled: no screen shows either picture whole.
    """
    fits = next((screen for screen in SCREENS if wide * SHRUNK <= screen - MARGINS), None)
    if fits is not None:
        return f"from-{fits}"
    return "never-wide" if upright <= SCREENS[-1] - MARGINS else "scrolls"


def read_template() -> str:
    """Returns the text of page.html."""
    return files(__package__).joinpath("page.html").read_text(encoding="utf-8")


def digest(text: str, tag: str) -> str:
    """Returns the policy source that allows the only inline element of this tag."""
    inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
