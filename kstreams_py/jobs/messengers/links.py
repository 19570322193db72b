"""The links of a peer to all others: gives each frame to its link, and drops frames that belong to none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.frames import decode_frame
from kstreams_py.jobs.messengers.lanes import LinkCounts
from kstreams_py.jobs.messengers.link import RESENT, Link, LinkLimits, LinkRest

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks for peers that do not answer."""

LOOK_MOST: Final = 5.0
"""The most seconds of silence that one look adds: this peer asks for no answers while one of its functions runs."""


class Links:
    """The links of a peer, by the id of the other peer.

    - `looked_at`: when `find_silent` last looked.
    - `strangers`: how many frames came from peers that have no link.
    - `garbage`: how many frames could not be decoded.
    - `ended`: the counts of the links that were removed.
    """

    def __init__(
        self,
        cluster: str,
        own: str,
        chance: Callable[[], float],
        limits: LinkLimits | None = None,
        backoff: Backoff = RESENT,
    ) -> None:
        """Has no links yet. See Link for the parameters. `own`: the id of this peer."""
        self._cluster, self._own, self._chance = cluster, own, chance
        self._limits, self._backoff = limits, backoff
        self._links: dict[str, Link] = {}
        self._waits: dict[str, tuple[int, float]] = {}
        """For each peer that something waits for: the number of its answers, and the seconds without another one."""
        self.looked_at = float("-inf")
        self.strangers = 0
        self.garbage = 0
        self.ended = LinkCounts()
        self._refusals: dict[str, str] = {}
        """Why the frames of other peers were last refused, by their ids."""
        self._new_refusals = list[str]()

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def __getitem__(self, peer: str) -> Link:
        return self._links[peer]

    def __contains__(self, peer: str) -> bool:
        return peer in self._links

    def add(self, peer: str) -> Link:
        """Returns the link to a member of the cluster. An existing link reconnects: the peer has moved."""
        if (link := self._links.get(peer)) is not None:
            link.reconnect()
        else:
            link = Link((self._cluster, self._own, peer), self._chance, self._limits, self._backoff)
            self._links[peer] = link
        return link

    def remove(self, peer: str) -> LinkRest:
        """Ends the link to a peer that has left; its id must never be used again. Returns what may not have arrived."""
        link = self._links.pop(peer, None)
        self._waits.pop(peer, None)
        if link is None:
            return LinkRest([], [])
        self.ended += link.counts
        self._refusals.pop(peer, None)
        return link.close()

    def counts(self) -> LinkCounts:
        """Returns the counts of all links so far, removed ones included. Any thread may call this method."""
        return sum((link.counts for link in [*self._links.values()]), self.ended)

    def take(self, received: Iterable[tuple[str, bytes]], now: float) -> None:
        """Gives frames to their links. `received`: as `Messenger.receive` returns them."""
        for peer, data in received:
            if (link := self._links.get(peer)) is None:
                self.strangers += 1
                continue
            try:
                frame = decode_frame(data)
            except DecodeError:
                self.garbage += 1
                continue
            link.take(frame, now)
            if link.refusal and link.refusal != self._refusals.get(peer):
                self._refusals[peer] = link.refusal
                self._new_refusals.append(link.refusal)

    def take_refusals(self) -> list[str]:
        """Returns why frames of peers are refused, each reason once per peer: see Link.refusal."""
        found, self._new_refusals = self._new_refusals, []
        return found

    def flush(self, now: float, send: Callable[[str, bytes], bool]) -> None:
        """Sends what is due on each link. `send`: see `Messenger.send`."""
        for peer, link in self._links.items():
            link.flush(now, partial(send, peer))

    def find_silent(self, now: float) -> list[str]:
        """Returns the peers that have not answered for `Backoff.give_up` seconds, though something waits for them.

        Leaves out peers whose frames are refused: see `take_refusals`. Looks once a second. If this peer itself stood
        still, at most LOOK_MOST seconds of that count; after more than `Backoff.give_up` seconds, all waits restart.
        """
        passed, give_up = now - self.looked_at, self._backoff.give_up
        if passed < LOOK_SECONDS:
            return []
        if passed > give_up:
            self._waits.clear()
        self.looked_at, found = now, list[str]()
        for peer, link in self._links.items():
            if link.refusal or not link.unaccepted:
                self._waits.pop(peer, None)
                continue
            answers, seconds = self._waits.get(peer, (-1, 0.0))
            is_silent = answers == link.counts.answers
            seconds = seconds + min(passed, LOOK_MOST) if is_silent else 0.0
            self._waits[peer] = link.counts.answers, seconds
            if seconds >= give_up:
                found.append(peer)
        return found

    def next_due(self) -> float | None:
        """Returns when `flush` will have something to do even if nothing comes; None if it will not."""
        return min((due for link in self if (due := link.next_due()) is not None), default=None)
