"""The page /: one HTML file, its script and its style inside, that draws /status as long as it is open."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files
from typing import NamedTuple

from kstreams_py.graph.topology import Graph
from kstreams_py.running.http.picture import live_svg


class Page(NamedTuple):
    """The page, and its Content-Security-Policy: nothing but its own script and style run, nothing is fetched but
    from the run itself."""

    html: bytes
    policy: str


def build_page(graph: Graph) -> Page:
    """The page of a graph; its names are escaped."""
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
    """The source of a policy that allows the one inline element of this tag."""
    inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
