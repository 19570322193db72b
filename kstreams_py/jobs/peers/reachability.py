"""Which members of a cluster reach each other over the network, though all of them reach Kafka.

Heartbeats go through the log of the cluster; frames go from peer to peer. So the network between two members may be
broken while no heartbeat is missing. A peer in a long call does not answer either: its main loop does not turn
meanwhile, as its heartbeats show. Heartbeats also name the peers that a peer cannot reach: both ends of a broken
connection know of it, and the others avoid both ends where there is a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kstreams_py.jobs.cluster.commands import PeerId

TURNS: Final = 3
"""A silent peer is unreachable after this many heartbeats, each with more turns than the one before.

While the log was away, the previous heartbeat may have become old, and calls begin within the lease: the first two
heartbeats may be from before a call.
"""

REPORT_SECONDS: Final = 8.0
"""Seconds within which a silent peer sends these heartbeats, unless it is in a call."""

HEARD_SECONDS: Final = 5.0
"""Seconds until all peers know that two of them do or do not reach each other. Until then, items may still be lost."""


class ReachChange(NamedTuple):
    """The result of a look.

    - `lost`: the peers that cannot be reached any more.
    - `found`: the peers that can be reached again.
    - `busy`: the peers that do not answer, and whose main loop does not turn.
    """

    lost: list[PeerId]
    found: list[PeerId]
    busy: list[PeerId]


class Reachability:
    """What one peer knows of the network between the members.

    Attributes:

    - `silent`: the peers that this peer has found unreachable.
    - `unreachable`: the silent peers, and the peers that cannot reach this peer.
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.silent: tuple[PeerId, ...] = ()
        self.unreachable: frozenset[PeerId] = frozenset()
        self._pairs: frozenset[frozenset[PeerId]] = frozenset()
        """The pairs of members that do not reach each other."""
        self._known: tuple[object, object, object] = None, None, None
        """The arguments that the pairs were computed from."""
        self._turned: dict[PeerId, tuple[int, int, float]] = {}
        """For each silent peer: its turns, at how many looks they had grown, and when it was first found silent."""

    def look(
        self,
        now: float,
        silent: Collection[str] | None,
        answers: Callable[[PeerId], bool],
        turns_of: Callable[[PeerId], int],
    ) -> ReachChange:
        """Takes the silent peers that the links have found, and returns what has changed.

        - `silent`: as `Links.find_silent` returns it; None between two of its looks.
        - `answers`: returns whether a peer has answered since it became unreachable.
        - `turns_of`: returns how many turns a peer has had, by its newest heartbeat; 0 if unknown.
        """
        change = ReachChange([], [peer for peer in self.silent if answers(peer)], [])
        if silent is not None:
            before, self._turned = self._turned, {}
            for peer in (PeerId(each) for each in silent if each not in self.silent):
                turns = turns_of(peer)
                last, grown, since = before.get(peer, (turns, 0, now))
                grown += turns > last
                self._turned[peer] = turns, grown, since
                if grown >= TURNS:
                    change.lost.append(peer)
                elif now >= since + REPORT_SECONDS:
                    change.busy.append(peer)
        if change.lost or change.found:
            self.silent = (*(peer for peer in self.silent if peer not in change.found), *change.lost)
        return change

    def keep(self, members: Collection[PeerId], reports: Mapping[PeerId, Iterable[PeerId]]) -> bool:
        """Takes the reports of which peers cannot reach each other, and returns whether the pairs have changed.

        - `members`: the peers of the cluster.
        - `reports`: as `Observations.unreachable`. Callers never change either object: they pass a new one.
        """
        silent, seen, heard = self._known
        if silent is self.silent and seen is members and heard is reports:
            return False
        if any(peer not in members for peer in self.silent):
            self.silent = tuple(peer for peer in self.silent if peer in members)
        self._known, before = (self.silent, members, reports), self._pairs
        self._pairs = frozenset(
            frozenset((peer, other))
            for peer, found in {**reports, self._me: self.silent}.items()
            for other in found
            if peer in members and other in members and peer != other
        )
        self.unreachable = frozenset(peer for pair in self._pairs if self._me in pair for peer in pair - {self._me})
        return self._pairs != before

    def is_broken(self, peers: Collection[PeerId]) -> bool:
        """Returns whether two of these peers do not reach each other."""
        return any(pair <= {*peers} for pair in self._pairs)

    def choose(self, peers: Sequence[PeerId], others: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Returns the peers to use among several that can do the same; none if this peer reaches none of them.

        Chooses, among the peers it reaches, those that reach the most others: segments sent elsewhere may get stuck.

        - `others`: the peers of the job.
        """
        if not self._pairs:
            return tuple(peers)
        missed = {
            peer: sum(peer in pair and pair <= {peer, *others} for pair in self._pairs)
            for peer in peers
            if peer not in self.unreachable
        }
        return tuple(peer for peer, count in missed.items() if count == min(missed.values()))
