"""Joins the output of worker processes into whole lines, each with its slot."""

from __future__ import annotations

from typing import Final

from kstreams_py.printable import clean_line

LINE_MAX: Final = 1 << 20
"""Bytes after which a line without an end is passed on in pieces, so that memory is bounded."""


class LineJoiner:
    """Joins bytes that arrive in pieces of any size into whole lines. The bytes need not be text."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete now, without their ends."""
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = self.rest() + lines[0]
        self._pieces.append(last)
        self._size += len(last)
        if self._size > LINE_MAX:
            lines.append(self.rest())
        return lines

    @property
    def has_rest(self) -> bool:
        """Whether there is a line whose end has not arrived."""
        return self._size > 0

    def rest(self) -> bytes:
        """Returns and forgets a line whose end has not arrived; b"" if there is none."""
        rest = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return rest


def prefixed(slot: str, line: bytes) -> bytes:
    """Returns a line with its slot in front, without characters that could hide the slot or begin another line."""
    return f"[{slot}] ".encode() + clean_line(line)


def is_json(line: bytes) -> bool:
    """Returns whether a line looks like a JSON object, which has its slot as a field."""
    return line.startswith(b"{") and line.rstrip().endswith(b"}")
