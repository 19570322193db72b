"""The frame of a report, one HTML page: its style, and the script that shows the values of its charts."""

from __future__ import annotations

from importlib.resources import files
from string import Template


def build_page(*, title: str, eyebrow: str, headline: str, lead: str, sections: str, footer: str) -> str:
    """Returns a page that needs no other file and no network; its script is optional. All arguments are HTML.

    - `eyebrow`: the line above the headline.
    - `lead`: the paragraphs and the figures below the headline.
    """
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=title, eyebrow=eyebrow, headline=headline, lead=lead, sections=sections, footer=footer
    )
