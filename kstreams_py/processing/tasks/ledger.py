"""The positions of one worker's inputs: how far they are processed, and how far committed."""

from __future__ import annotations

from collections.abc import Mapping

from kstreams_py.records import Positions, TopicPartition


class Cursor:
    """One input partition: the next offset to process, and the next offset that its group has committed."""

    __slots__ = ("committed", "next")

    def __init__(self, committed: int) -> None:
        self.next = self.committed = committed


class Ledger:
    """The cursor of each input partition that one worker holds.

    Another thread may read it: the mapping of cursors is replaced, never changed.
    """

    def __init__(self) -> None:
        self.cursors: Mapping[TopicPartition, Cursor] = {}

    def assign(self, committed: Positions) -> None:
        """Starts at these offsets, which the group has committed."""
        self.cursors = {tp: Cursor(offset) for tp, offset in committed.items()}

    def clear(self) -> None:
        """Forgets everything: other workers hold the partitions."""
        self.cursors = {}

    def advance(self, positions: Positions) -> None:
        """Moves to these next offsets: everything before them is processed."""
        for tp, offset in positions.items():
            self.cursors[tp].next = offset

    def commit(self, positions: Positions) -> None:
        """Notes that these next offsets are committed."""
        for tp, offset in positions.items():
            self.cursors[tp].committed = offset

    def reset(self) -> None:
        """Sets each next offset to the committed one: steps processed since then must not be committed."""
        for cursor in self.cursors.values():
            cursor.next = cursor.committed

    @property
    def positions(self) -> Positions:
        """For each partition, the next offset to process."""
        return {tp: cursor.next for tp, cursor in self.cursors.items()}

    @property
    def committed(self) -> Positions:
        """The committed offset of each partition."""
        return {tp: cursor.committed for tp, cursor in self.cursors.items()}

    @property
    def uncommitted(self) -> Positions:
        """The next offset of each partition that is processed further than committed."""
        return {tp: cursor.next for tp, cursor in self.cursors.items() if cursor.next > cursor.committed}

    @property
    def unprocessed(self) -> Positions:
        """The next offset of each partition that is committed further than processed (at_most_once)."""
        return {tp: cursor.next for tp, cursor in self.cursors.items() if cursor.next < cursor.committed}
