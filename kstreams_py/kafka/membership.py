"""Who holds a static membership, according to its group."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from kstreams_py.errors import Replaced

ANSWER_SECONDS: Final = 3.0
"""Seconds between two answers of a group from which on its coordinator may have been restarted in between."""


class Owner(Enum):
    """Who holds a static membership, from the point of view of the consumer that asks.

    - NOBODYS: also if a consumer that never was a member asks for the first time, before it joins again.
    - UNSURE: another member, or this consumer by a join whose answer it never got.
    """

    OURS = "ours"
    NOBODYS = "nobody's"
    ANOTHERS = "another's"
    UNSURE = "unsure"


class Membership(NamedTuple):
    """The answer of a group; `holder` describes the member that holds the membership, unless it is known to be ours."""

    owner: Owner
    holder: str = ""


class Holder(NamedTuple):
    """The member that holds a static membership.

    - `client`, `host`: as the group describes them; a member that replaced another one within its session has those of
      the replaced one (measured).
    - `stable`: the group is in no rebalance, so that a member without heartbeats leaves it within its session.
    - `coordinator`: id of the broker that coordinates the group; another one starts all sessions again.
    """

    member: str
    client: str
    host: str
    stable: bool
    coordinator: int


class _Stay(NamedTuple):
    """How long an unknown holder is known to be there: times of the first answer that named it, and of the last."""

    holder: Holder
    since: float
    last: float


class StaticMembership:
    """The static membership of one consumer: its member id, and who holds the membership.

    An unknown holder may be this consumer itself, by a join whose answer it never got: a request that was sent again
    after its connection broke has taken the membership from the first one. So while a join has led to no assignment,
    such a holder is a replacement only once it has outlived a session, which takes heartbeats.
    """

    def __init__(
        self,
        group: str,
        instance_id: str,
        client_id: str,
        session_seconds: float,
        holder: Callable[[str, str], Holder | None],
    ) -> None:
        """`holder` asks a group who holds a membership (its group.instance.id); None if no member does.

        After `session_seconds` without a heartbeat a member leaves its group.
        """
        self.group = group
        self.instance_id = instance_id
        self.member = ""
        """The member id at the last assignment."""
        self.lost = False
        """The membership is over; the group is asked who holds it before the consumer joins again."""
        self.joining = False
        """The client joins, for the first time or again, and has no assignment yet."""
        self._session_seconds = session_seconds
        self._client_id = client_id
        self._holder = holder
        self._has_seen_other = False
        self._stay: _Stay | None = None

    def ask(self, member: str) -> Membership:
        """Asks who holds the membership. Raises the errors of `holder`.

        `member` is the consumer's member id now; "" while it has none.
        """
        return self._judge(self._holder(self.group, self.instance_id), member)

    def ask_before_joining_again(self, member: str, now: float) -> Membership:
        """Asks as `ask` does, after the membership was lost, until it is sure; `now` is in seconds.

        A consumer that never was a member may join once despite another holder: the successor of a coordinator that
        died before it stored a new member knows only the holder before. librdkafka #3437: a client whose session has
        timed out forgets its member id and goes on with heartbeats; a coordinator that still knows the member takes the
        empty id for another member's.
        """
        stay, self._stay = self._stay, None
        holder = self._holder(self.group, self.instance_id)
        found = self._judge(holder, member)
        if holder is None or found.owner is not Owner.UNSURE:
            return found
        if not (self.member or self._has_seen_other):
            self._has_seen_other = True
            return found._replace(owner=Owner.NOBODYS)
        if holder.stable:
            goes_on = stay is not None and stay.holder == holder and now - stay.last <= ANSWER_SECONDS
            self._stay = _Stay(holder, stay.since if stay and goes_on else now, now)
            if now - self._stay.since > self._session_seconds:
                return found._replace(owner=Owner.ANOTHERS)
        return found

    def _judge(self, holder: Holder | None, member: str) -> Membership:
        if holder is None:
            return Membership(Owner.NOBODYS)
        if holder.member in (member, self.member):
            return Membership(Owner.OURS)
        stale = holder.client == self._client_id  # see Holder
        client = "the broker still shows this worker's client id" if stale else f"{holder.client} on {holder.host}"
        # it cannot be this consumer while that has the member id of its last assignment
        is_sure = not self.joining or (member and member == self.member)
        return Membership(Owner.ANOTHERS if is_sure else Owner.UNSURE, f"member {holder.member}; {client}")


def replaced(instance_id: str, holder: str) -> Replaced:
    """The error of a worker whose membership another member holds."""
    return Replaced(f"another worker has taken the slot of {instance_id} over ({holder}); this one ends")
