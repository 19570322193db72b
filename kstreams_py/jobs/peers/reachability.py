"""Which members of a cluster reach each other over the network, though all of them reach Kafka.

Heartbeats go through the log of the cluster, frames go from peer to peer. So the network between two members may be
broken while nobody is silent. A peer that is in a long call does not answer either: its main loop does not turn
meanwhile, as its heartbeats say. Heartbeats also say whom a peer cannot reach: both ends of a broken connection know of
it, and the others use neither of them where there is a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kstreams_py.jobs.cluster.commands import PeerId

TURNS: Final = 3
"""A silent peer is unreachable after so many heartbeats, each with more turns than the one before.

While the log was away, the one before may have become old, and calls begin within the lease: the first two may be
from before a call.
"""

REPORT_SECONDS: Final = 8.0
"""Seconds in which a silent peer sends these heartbeats, unless it is in a call."""

HEARD_SECONDS: Final = 5.0
"""Seconds in which all have heard that two peers do or do not reach each other. Until then, items may still be lost."""


class ReachChange(NamedTuple):
    """What a look has found.

    - `lost`: the peers that cannot be reached any more.
    - `found`: those that can be reached again.
    - `busy`: those that do not answer, and whose main loop does not turn.
    """

    lost: list[PeerId]
    found: list[PeerId]
    busy: list[PeerId]


class Reachability:
    """What one peer knows of the network between the members.

    Attributes:

    - `silent`: the peers that this one has found unreachable.
    - `unreachable`: these, and those that cannot reach this one.
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.silent: tuple[PeerId, ...] = ()
        self.unreachable: frozenset[PeerId] = frozenset()
        self._pairs: frozenset[frozenset[PeerId]] = frozenset()
        """The pairs of members that do not reach each other."""
        self._known: tuple[object, object, object] = None, None, None
        """By what the pairs were found."""
        self._turned: dict[PeerId, tuple[int, int, float]] = {}
        """By silent peer, its turns, at how many looks they were more, and when it was first found silent."""

    def look(
        self,
        now: float,
        silent: Collection[str] | None,
        answers: Callable[[PeerId], bool],
        turns_of: Callable[[PeerId], int],
    ) -> ReachChange:
        """Takes what the links have found.

        - `silent`: as `Links.find_silent` returns it; None between two of its looks.
        - `answers`: whether a peer has answered since it became unreachable.
        - `turns_of`: how many turns a peer has had, by its newest heartbeat; 0 if it does not say.
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
        """Takes who cannot reach whom; returns whether that has changed.

        - `members`: the peers of the cluster.
        - `reports`: as `Observations.unreachable`. Neither is changed: another object replaces it.
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
        """Returns the peers to use of several that can do the same; none if this peer reaches none of them.

        Of those that it reaches, those that reach the most others: what goes to another one may get stuck there.

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
