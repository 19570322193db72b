"""Which dead letters of a partition still wait, that is, have no mark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCK: Final = 4_096
"""Offsets in a block."""


@dataclass(frozen=True, slots=True)
class WaitingCount:
    """How many dead letters of a topic wait.

    - `counted`: how many are counted so far.
    - `is_whole`: whether all of them are counted.
    - `why`: why they cannot be counted; "" if they can.
    """

    counted: int = 0
    is_whole: bool = False
    why: str = ""

    @property
    def known(self) -> int | None:
        """How many wait; None while that is not known."""
        return self.counted if self.is_whole else None


class PartitionLetters:
    """The offsets in one partition that have a dead letter, and the offsets that have a mark.

    A mark may come before its dead letter.
    Each offset is a bit: a million dead letters take 250 kB, where a set of numbers takes 60 MB.
    """

    def __init__(self) -> None:
        self.next = 0
        """The offset from which dead letters are still to be added."""
        self._letters: dict[int, int] = {}
        self._marked: dict[int, int] = {}

    def add(self, offset: int) -> None:
        """Adds a dead letter."""
        block, bit = divmod(offset, BLOCK)
        self._letters[block] = self._letters.get(block, 0) | 1 << bit

    def mark(self, offset: int) -> None:
        """Adds the mark of a dead letter."""
        block, bit = divmod(offset, BLOCK)
        self._marked[block] = self._marked.get(block, 0) | 1 << bit

    def unmark(self, offset: int) -> None:
        """Removes the mark of a dead letter, if there is one."""
        block, bit = divmod(offset, BLOCK)
        self._marked[block] = self._marked.get(block, 0) & ~(1 << bit)

    def delete_before(self, start: int) -> None:
        """Removes the dead letters and marks before an offset: retention has deleted them."""
        first, bit = divmod(start, BLOCK)
        for blocks in (self._letters, self._marked):
            for block in [each for each in blocks if each < first]:
                del blocks[block]
            if first in blocks:
                blocks[first] &= -1 << bit
        self.next = max(self.next, start)

    def count(self) -> int:
        """Returns how many dead letters wait."""
        return sum(self._waiting(block).bit_count() for block in self._letters)

    def find_first(self) -> int | None:
        """Returns the lowest offset of a dead letter that waits; None if none does."""
        found = ((block, bits) for block in sorted(self._letters) if (bits := self._waiting(block)))
        return next((block * BLOCK + (bits & -bits).bit_length() - 1 for block, bits in found), None)

    def _waiting(self, block: int) -> int:
        return self._letters[block] & ~self._marked.get(block, 0)
