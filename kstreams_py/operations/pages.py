"""Reads the records between two offsets page by page, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kstreams_py.records import Message

PAGE: Final = 200
"""Records of the first page; a record may have a megabyte."""

PAGE_BYTES: Final = 1_000_000
"""The next page is larger if this one has fewer bytes."""

PAGE_MAX: Final = 6_400
"""Records of a page at most."""


def between(page: Callable[[int, int], Sequence[Message]], start: int, end: int) -> Iterator[Message]:
    """Yields the records from offset `start` on and before `end`; `page` reads from an offset a number of records."""
    limit = PAGE
    while start < end:
        found: Sequence[Any] = page(start, limit)
        for m in found:
            if m.offset() >= end:
                return
            yield m
        if len(found) < limit:
            return
        start = found[-1].offset() + 1
        if limit < PAGE_MAX and sum(map(len, found)) < PAGE_BYTES:
            limit *= 2
