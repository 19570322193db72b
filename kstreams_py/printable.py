"""Text from outside that is shown: nothing in it moves a cursor, turns the order of characters, or begins a line.

Keys, values, headers and messages of exceptions are written by others. All that leaves as text goes through here: what
commands print, the log, and the lines of worker processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ODD: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
"""Controls (C0, C1), separators of lines, marks that turn the order of characters, and what is not seen.

Unicode's format characters without those that scripts and emoji need.
"""

_ODD_BYTES: Final = re.compile(rb"[^\t\x20-\x7e]")

_NAMED: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
"""The sequences of a terminal that colour text, and change nothing else."""

_PLAIN: Final = "\x1b[0m"


def escape(text: str, keep: str = "") -> str:
    r"""A text as one line: characters that are not printable are written as \n, \t or \uXXXX.

    A line of JSON stays one that means the same. `keep`: characters that stay as they are.
    """
    return _ODD.sub(lambda found: found[0] if found[0] in keep else _name(found[0]), text)


def _name(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return _NAMED.get(char) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def join_lines(lines: Iterable[str]) -> str:
    """Lines as a text of several: none of them has another one inside."""
    return "\n".join(map(escape, lines))


def indent_rest(text: str) -> str:
    """A text with line breaks, such as a traceback: its first line begins where lines do, the others further in."""
    return "\n    ".join(escape(line, "\t") for line in text.removesuffix("\n").split("\n"))


def clean_line(line: bytes) -> bytes:
    """A line that a process has printed, with its colours; bytes that are no UTF-8 are written as \\xXX."""
    if not _ODD_BYTES.search(line):
        return line
    pieces = _COLOUR.split(line.removesuffix(b"\r").decode(errors="backslashreplace"))
    pieces[::2] = [escape(piece, "\t") for piece in pieces[::2]]
    if len(pieces) > 1 and pieces[-2] != _PLAIN:
        pieces.append(_PLAIN)  # it must not colour, or hide, what others print
    return "".join(pieces).encode()
