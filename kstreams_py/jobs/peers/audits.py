"""Audits: find the inputs that have lost a segment, once a peer has left or an input is overdue.

The entry of an input is the XOR of the patterns of all its segments that are under way. If the peers of the job have
segments with exactly these patterns, nothing is lost, however long a function takes. If segments are missing, and
nothing changes for several rounds, they were at the peer that left. So only the inputs of these segments are read
again, and only for these inputs does the death count as an attempt: inputs that kill their peers are found, and inputs
that were at other peers are not suspected.

While a segment is being sent, a round may count it twice, or not at all: a single difference proves no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from kstreams_py.jobs.identity import SegmentId
from kstreams_py.jobs.messengers.frames import SEGMENTS_MAX

ROUNDS: Final = 3
"""The number of rounds with the same difference after which a segment counts as lost."""

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
        """The peers that have not answered in this round, each with the number of missing answers."""
        self._asked: tuple[SegmentId, ...] = ()
        """The inputs of this round; empty between two rounds."""
        self.number = 0
        """The number of the round."""
        self._due = float("-inf")

    def __len__(self) -> int:
        return len(self._ids)

    def doubt(self, segments: Iterable[SegmentId]) -> None:
        """Adds inputs, and counts their rounds from the start again."""
        self._ids.update(dict.fromkeys(segments))

    def begin(self, now: float, peers: Collection[int]) -> list[list[SegmentId]]:
        """Begins a round if it is due; returns the inputs in parts: the caller asks each peer about each part.

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
        """Records a peer's answer: the inputs whose segments it has, each with the XOR of the patterns."""
        if number != self.number or not self._waiting.get(peer):
            return
        for segment, pattern in held:
            self._held[segment] = self._held.get(segment, 0) ^ pattern
        self._waiting[peer] -= 1

    def finish(self, now: float, peers: Collection[int], left: Callable[[SegmentId], int]) -> list[SegmentId]:
        """Returns the inputs with lost segments, once all remaining peers have answered.

        - `left`: returns the XOR of the patterns that the entry of an input waits for; 0 without an entry.
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
