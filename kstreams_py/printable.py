"""Makes text from outside safe to print: nothing in it moves a cursor, reverses characters, or begins a line.

Others write the keys, values and headers of records, and the messages of exceptions. Everything that is printed passes
through here: the output of commands, the log, and the lines of worker processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_ODD: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
"""Control characters (C0, C1), line separators, marks that reverse the order of characters, and invisible characters.

These are Unicode's format characters, except those that scripts and emoji need.
"""

_ODD_BYTES: Final = re.compile(rb"[^\t\x20-\x7e]")

_DIGITS: Final = re.compile(r"Exceeds the limit \((\d+) digits\) for integer string conversion.*", re.DOTALL)

_NAMED: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
"""Terminal sequences that colour text, and change nothing else."""

_PLAIN: Final = "\x1b[0m"


def escape(text: str, keep: str = "") -> str:
    r"""Returns a text as one line: characters that are not printable are written as \n, \t or \uXXXX.

    A line of JSON keeps its meaning. `keep`: characters that stay as they are.
    """
    return _ODD.sub(lambda found: found[0] if found[0] in keep else _name(found[0]), text)


def _name(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return _NAMED.get(char) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def show_error(error: BaseException) -> str:
    """Returns the text of an error; leaves out Python's advice to programmers on integers with too many digits."""
    return _DIGITS.sub(lambda found: f"it has an integer of more than {int(found[1]):,} digits", str(error))


def join_lines(lines: Iterable[str]) -> str:
    """Joins lines to a text. Each is escaped, so that none contains a line break."""
    return "\n".join(map(escape, lines))


def indent_rest(text: str) -> str:
    """Returns a text of several lines, such as a traceback, with each line but the first indented."""
    return "\n    ".join(escape(line, "\t") for line in text.removesuffix("\n").split("\n"))


def clean_line(line: bytes) -> bytes:
    """Returns a line that a process has printed, with its colours; bytes that are not UTF-8 are written as \\xXX."""
    if not _ODD_BYTES.search(line):
        return line
    pieces = _COLOUR.split(line.removesuffix(b"\r").decode(errors="backslashreplace"))
    pieces[::2] = [escape(piece, "\t") for piece in pieces[::2]]
    if len(pieces) > 1 and pieces[-2] != _PLAIN:
        pieces.append(_PLAIN)  # otherwise the line would colour, or hide, what others print
    return "".join(pieces).encode()


def count_of(count: int, thing: str) -> str:
    """Returns a number with what it counts: "1 input", "2,000 inputs"."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def count_are(count: int, thing: str) -> str:
    """Returns a number with what it counts and a verb: "1 input is", "2,000 inputs are"."""
    return f"{count_of(count, thing)} {'is' if count == 1 else 'are'}"
