"""Draws charts as SVG, each for wide and for narrow screens, with the values to be shown on hover."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

POINTS: Final = 72
"""SVG units in an inch."""

INKS: Final = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(("ink", "soft", "faint", "kill", "c1", "c2", "c3", "c4", "c5", "c6"), start=0xA0)
}
"""The names of colours in the page's style sheet, and the colours that matplotlib draws in their place."""

_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "kstreams_py",
    "font.family": "DejaVu Sans",  # ships with matplotlib; only used to measure
    "font.size": 9,
    "text.color": INKS["ink"],
    "axes.edgecolor": INKS["faint"],
    "axes.labelcolor": INKS["soft"],
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": INKS["faint"],
    "xtick.color": INKS["faint"],
    "ytick.color": INKS["faint"],
    "xtick.labelcolor": INKS["soft"],
    "ytick.labelcolor": INKS["soft"],
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.labelcolor": "linecolor",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A screen: its name in the style sheet, the width of a chart in inches, and the maximum number of time bins."""

    name: str
    inches: float
    bins: int

    @property
    def is_narrow(self) -> bool:
        return self.name == "narrow"

    def left(self, inches: float) -> float:
        """Returns the fraction of the width that these inches take."""
        return inches / self.inches


_SHAPES: Final = (Shape("wide", 10.4, 80), Shape("narrow", 4.1, 40))


def draw_shapes(draw: Callable[[Shape], str]) -> str:
    """Returns the results of `draw` for all shapes, drawn in the style of the page."""
    with mpl.rc_context(_STYLE):
        return "\n".join(map(draw, _SHAPES))


def draw_columns(figure: Figure, plots: Sequence[Any], columns: Iterable[tuple[float, float, Sequence[str]]]) -> str:
    """Returns columns over all plots as SVG, each from one x value to another, with lines of text as its title."""
    width, height = (inches * POINTS for inches in figure.get_size_inches())
    boxes = [plot.get_position() for plot in plots]
    top, bottom = (1 - boxes[0].y1) * height, (1 - boxes[-1].y0) * height
    low, high = plots[0].get_xlim()
    scale = boxes[0].width * width / (high - low)
    drawn = []
    for start, end, lines in columns:
        x = boxes[0].x0 * width + (start - low) * scale
        title = escape("\n".join(lines))
        drawn.append(
            f'<rect x="{x:.1f}" y="{top:.1f}" width="{(end - start) * scale:.1f}" height="{bottom - top:.1f}">'
            f"<title>{title}</title></rect>"
        )
    return f'<g class="values">{"".join(drawn)}</g>'


def inline(figure: Figure, name: str, shape: Shape, label: str, over: str) -> str:
    """Returns the figure as SVG that takes colours and font from the page, with `over` on it; ids begin with `name`."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    for_files_only = r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<style.*?</defs>"
    drawn = re.sub(for_files_only, "", file.getvalue(), flags=re.DOTALL)
    attributes = f'class="{shape.name}" role="img" aria-label="{escape(label)}"'
    drawn = re.sub(r'(<svg [^>]*?)width="[^"]*" height="[^"]*"', rf"\g<1>{attributes}", drawn)
    drawn = re.sub(r"font-family: [^;]*; ", "", drawn)
    for ink, stand_in in INKS.items():
        drawn = drawn.replace(stand_in, f"var(--{ink})")
    drawn = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", drawn)
    return drawn.replace("</svg>", f"{over}</svg>")
