"""The two tiers of the tests, and the parts of the long one.

The quick tier is what no marker leaves out. A part of the long tier is the tests marked `long` in its files.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Final

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "processing": (),
    "journal": (),
    "spark": (),
    "sinks": (),
    "state": (),
    "ordering": (),
    "operations": (),
    "running": (),
}
"""The files of each part, as patterns relative to tests/; the first part that has a file counts."""


def part_of(path: str) -> str:
    """The part of the long tier to which the long tests of a file belong; `path` is relative to the repository."""
    name = path.removeprefix("tests/")
    return next((part for part, patterns in PARTS.items() if any(fnmatch(name, each) for each in patterns)), "")
