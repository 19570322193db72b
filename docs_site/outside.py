"""What leads out of the site: links to files of the repository, and what a browser would fetch from another host."""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from typing import Final

LINK: Final = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s]+)\)")
"""A relative link of Markdown."""

OTHER_HOST: Final = re.compile(r"(https?:)?//")

FETCHED: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
"""The attributes that a browser fetches from, by the tag; of `link` only for RELATIONS."""

RELATIONS: Final = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}


def link_to_repository(markdown: str, page: str, source: str) -> str:
    """A page with links to the repository where they lead out of docs/, for files that only the repository has.

    - `page`: the path of the page below docs/.
    - `source`: the URL of the repository.
    """

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), found[1]))
        return f"]({source}/blob/main/{target.removeprefix('../')})" if target.startswith("../") else found[0]

    return LINK.sub(link, markdown)


def fetched_by_page(html: str) -> list[str]:
    """The addresses on other hosts that a browser fetches for a page, as it is written."""
    reader = _Fetches()
    reader.feed(html)
    return reader.outside


def fetched_by_style(css: str) -> list[str]:
    """The addresses on other hosts that a style sheet fetches."""
    found = re.findall(r"""(?:url\(\s*|@import\s+(?:url\(\s*)?)["']?([^"')\s]+)""", css)
    return [address for address in found if OTHER_HOST.match(address)]


class _Fetches(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        address = values.get(FETCHED.get(tag, ""))
        if tag == "link" and RELATIONS & set((values.get("rel") or "").split()):
            address = values.get("href")
        if address and OTHER_HOST.match(address):
            self.outside.append(address)
