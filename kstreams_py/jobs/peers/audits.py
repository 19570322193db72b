"""An audit: finds the inputs of which a segment is lost, once a peer has left or an input is overdue.

The entry of an input is the XOR of the patterns of all its segments that are under way. If the peers of the job have
segments with exactly these patterns, nothing is lost, however long a function takes. If some are missing, and nothing
changes for several rounds, the peer that left had them. So only the inputs that it had are read again, and only they
count as an attempt: an input that ends its peers is found, and one that was elsewhere is not suspected.

Segments on their way are counted twice or not at all. Such an entry changes with the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.messengers.frames import SEGMENTS_MAX

ROUNDS: Final = 3
"""Rounds with the same difference until a segment counts as lost."""

ROUND_SECONDS: Final = 0.2
"""Seconds between two rounds."""


class _Difference(NamedTuple):
    """What an entry waits for, what the peers have, and for how many rounds both have been the same."""

    left: int
    held: int
    rounds: int


class SegmentAudit:
    """The audit of one job at one acker."""

    def __init__(self) -> None:
        self._ids: dict[SegmentId, _Difference | None] = {}
        """The inputs in doubt, each with the difference that the last round found."""
        self._held: dict[SegmentId, int] = {}
        self._waiting: dict[int, int] = {}
        """The peers that have not answered in this round, each with the answers that are missing."""
        self._asked: tuple[SegmentId, ...] = ()
        """The inputs of this round; none between two rounds."""
        self.number = 0
        """The number of the round."""
        self._due = float("-inf")

    def __len__(self) -> int:
        return len(self._ids)

    def doubt(self, segments: Iterable[SegmentId]) -> None:
        """Adds inputs: their rounds begin again."""
        self._ids.update(dict.fromkeys(segments))

    def begin(self, now: float, peers: Collection[int]) -> list[list[SegmentId]]:
        """Begins a round if one is due; returns the parts of the inputs: each peer is asked for each part.

        - `peers`: the numbers of the peers.
        """
        if self._asked or not self._ids or now < self._due:
            return []
        asked = [*self._ids]
        parts = [asked[start : start + SEGMENTS_MAX] for start in range(0, len(asked), SEGMENTS_MAX)]
        self.number, self._asked, self._held = self.number + 1, tuple(asked), {}
        self._waiting = dict.fromkeys(peers, len(parts))
        return parts

    def hear(self, peer: int, number: int, held: Iterable[tuple[SegmentId, int]]) -> None:
        """Takes an answer of a peer: the inputs of which it has segments, with the XOR of their patterns."""
        if number != self.number or not self._waiting.get(peer):
            return
        for segment, pattern in held:
            self._held[segment] = self._held.get(segment, 0) ^ pattern
        self._waiting[peer] -= 1

    def finish(self, now: float, peers: Collection[int], left: Callable[[SegmentId], int]) -> list[SegmentId]:
        """Returns the inputs that are lost, once all peers that are still there have answered.

        - `left`: returns the XOR of the patterns that an entry waits for; 0 if there is no entry.
        """
        if not self._asked or any(self._waiting.get(peer) for peer in peers):
            return []
        lost, asked = list[SegmentId](), self._asked
        self._asked, self._due = (), now + ROUND_SECONDS
        for segment in asked:
            now_left, held, before = left(segment), self._held.get(segment, 0), self._ids.get(segment)
            if now_left == held:
                self._ids.pop(segment, None)
                continue
            is_same = before is not None and (before.left, before.held) == (now_left, held)
            rounds = before.rounds + 1 if before is not None and is_same else 1
            self._ids[segment] = _Difference(now_left, held, rounds)
            if rounds >= ROUNDS:
                lost.append(segment)
                del self._ids[segment]
        return lost
