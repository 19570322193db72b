"""The page /: one HTML file with its script and style, which draws /status while it is open."""

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
