"""Heartbeats: which peers are silent, and whether this peer may still act as a member.

Time is counted in this peer's own heartbeats that came back from the log. While the log is away, or while this peer
is stuck, none comes back: then no peer counts as silent. Timestamps of records, and other machines' clocks, count
for nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kstreams_py.jobs.cluster.commands import PeerId

INTERVAL: Final = 1.0
"""Seconds between two heartbeats of a peer."""

SILENT_AFTER: Final = 6
"""A peer is silent after this many heartbeats of another one without a heartbeat of its own."""

LOST_AFTER: Final = 5
"""A heartbeat counts as lost after this many intervals."""

MARGIN: Final = 0.25
"""The part of the time-out by which a lease ends earlier: clocks differ in speed, and a record may be on its way."""


class Heartbeats:
    """The heartbeats of a peer and of the others, in the order of the log.

    A peer sends its next heartbeat when the last one has come back, or counts as lost; only the newest one counts. So
    the heartbeats that were queued during an outage count as one, however many come back at once.
    """

    def __init__(self, me: PeerId, interval: float = INTERVAL, silent_after: int = SILENT_AFTER) -> None:
        """`interval`: seconds between two heartbeats. `silent_after`: see SILENT_AFTER."""
        self._me = me
        self._interval = interval
        self._silent_after = silent_after
        self._lease_seconds = interval * silent_after * (1 - MARGIN)
        self._number = 0
        self._sent_at: float | None = None
        """When the newest heartbeat was sent; None before the first."""
        self._is_back = True
        """Whether the newest heartbeat has come back."""
        self._leased_at: float | None = None
        """When the newest heartbeat that came back was sent; None before the first."""
        self._missed: dict[PeerId, int] = {}
        """For each other peer, how many heartbeats of this peer came back since the other's last heartbeat."""

    def next_number(self, now: float) -> int | None:
        """Returns the number of the heartbeat that is due; None if none is. `now`: seconds of a monotonic clock."""
        wait = self._interval if self._is_back else LOST_AFTER * self._interval
        if self._sent_at is not None and now < self._sent_at + wait:
            return None
        self._number, self._sent_at, self._is_back = self._number + 1, now, False
        return self._number

    def hear(self, peer: PeerId, number: int, members: Collection[PeerId]) -> None:
        """Takes a heartbeat from the log. `members`: the peers of the cluster now."""
        if peer != self._me:
            # a heartbeat of this peer that is on its way was sent before: it must not count against the other one
            self._missed[peer] = 0 if self._is_back else -1
            return
        if number != self._number or self._is_back:
            return
        self._is_back, self._leased_at = True, self._sent_at
        self._missed = {each: self._missed.get(each, 0) + 1 for each in members if each != self._me}

    def silent(self) -> list[PeerId]:
        """Returns the members that are silent, and must leave."""
        return [peer for peer, missed in self._missed.items() if missed >= self._silent_after]

    def has_lease(self, now: float) -> bool:
        """Returns whether no other peer can have found this one silent yet.

        Without a lease a peer takes no input, stores nothing, acknowledges nothing and gives nothing back: it reads the
        log first, and may find that it has left.
        """
        return self._leased_at is not None and now < self._leased_at + self._lease_seconds

    def age(self, now: float) -> float | None:
        """Returns the seconds since the newest heartbeat that came back was sent; None before the first."""
        return None if self._leased_at is None else max(0.0, now - self._leased_at)
