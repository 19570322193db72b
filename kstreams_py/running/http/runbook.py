"""The page /runbook: docs/runbook.md, which is in the package so that each finding can link to its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Final

from kstreams_py.running.http.page import Page, digest, read_template

_INLINE: Final = re.compile(
    r"`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|\[(?P<text>[^\]]+)\]\((?P<link>[^)\s]+)\)", re.DOTALL
)


def build_runbook() -> Page:
    """Returns the runbook as a page without a script, in the style of the page /."""
    template = read_template()
    style = re.findall(r"<style>.*?</style>", template, flags=re.DOTALL)[0]
    text = files(__package__).joinpath("runbook.md").read_text(encoding="utf-8")
    html = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f'<title>Runbook</title>\n{style}\n</head>\n<body>\n<main class="runbook">\n'
        f'<p><a href="/">The page of this run</a></p>\n{render(text)}\n</main>\n</body>\n</html>\n'
    )
    policy = (
        f"default-src 'none'; style-src {digest(template, 'style')}; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.encode(), policy)


def anchor(title: str) -> str:
    """Returns the anchor of a heading, as the documentation site and Git hosts generate it."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def render(markdown: str) -> str:
    """Returns Markdown as HTML: headings, paragraphs, numbered lists, tables, code, bold text and links.

    The runbook has no other kind of Markdown; another kind would be shown as it is written.
    """
    return "\n".join(map(_block, re.split(r"\n{2,}", markdown.strip())))


def _block(block: str) -> str:
    if heading := re.fullmatch(r"(#{1,3}) (.+)", block):
        level, title = len(heading[1]), heading[2]
        return f'<h{level} id="{anchor(title)}">{_inline(title)}</h{level}>'
    if block.startswith("|"):
        head, _, *rows = (line.strip("| ").split(" | ") for line in block.split("\n"))
        body = "".join(_row("td", row) for row in rows)
        return f"<table>\n<thead>{_row('th', head)}</thead>\n<tbody>{body}</tbody></table>"
    if block.startswith("1. "):
        items = re.split(r"^\d+\. ", block, flags=re.MULTILINE)[1:]
        return f"<ol>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ol>"
    return f"<p>{_inline(block)}</p>"


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_inline(cell)}</{tag}>' for cell in cells)}</tr>"


def _inline(text: str) -> str:
    """Returns a block of text as HTML. Links to other documents, which are not served, become text and file name."""
    found, at = "", 0
    for match in _INLINE.finditer(text):
        found += escape(text[at : match.start()])
        at = match.end()
        if match["code"]:
            found += f"<code>{escape(match['code'])}</code>"
        elif match["bold"]:
            found += f"<b>{_inline(match['bold'])}</b>"
        elif match["link"].startswith("#"):
            found += f'<a href="{escape(match["link"])}">{_inline(match["text"])}</a>'
        else:
            found += f"{_inline(match['text'])} (<code>docs/{escape(match['link'].partition('#')[0])}</code>)"
    return found + escape(text[at:])
