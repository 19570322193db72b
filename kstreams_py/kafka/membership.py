"""Who holds a static membership, according to its group."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from kstreams_py.errors import Replaced

SESSIONS: Final = 3
"""Sessions that an unknown holder has to outlive: a coordinator that restarts in between begins all sessions again."""


class Owner(Enum):
    """Who holds a static membership, from the point of view of the consumer that asks.

    UNSURE: another member holds it, or this consumer itself holds it through a join whose answer never arrived.
    """

    OURS = "ours"
    NOBODYS = "nobody's"
    ANOTHERS = "another's"
    UNSURE = "unsure"


class Membership(NamedTuple):
    """A group's answer; `holder` describes the member that holds the membership, unless it is known to be this one."""

    owner: Owner
    holder: str = ""


class Holder(NamedTuple):
    """The member that holds a static membership.

    - `client`, `host`: as the group describes them. A member that replaced another one within its session keeps the
      replaced member's client and host (measured).
    - `stable`: the group is not in a rebalance, so a member without heartbeats leaves within its session.
    - `coordinator`: id of the broker that coordinates the group; a new coordinator begins all sessions again.
    """

    member: str
    client: str
    host: str
    stable: bool
    coordinator: int


class StaticMembership:
    """The static membership of one consumer: its member id, and who holds the membership.

    The group names members, not processes: an unknown holder may be this consumer itself. If a join is sent again
    because its connection broke, it takes the membership from its first copy. A client whose session has timed out
    forgets its member id, but still sends heartbeats; a coordinator that still knows the member takes the empty id for
    another member's (librdkafka #3437). So while a join has not led to an assignment, an unknown holder is another
    member only if it stays in a stable group, because a member needs heartbeats to stay there.
    """

    def __init__(
        self,
        group: str,
        instance_id: str,
        client_id: str,
        session_seconds: float,
        holder: Callable[[str, str], Holder | None],
    ) -> None:
        """Makes no request.

        - `session_seconds`: a member without heartbeats leaves its group after that time.
        - `holder`: called with a group and a group.instance.id; returns the member that holds the membership, or None.
        """
        self.group = group
        self.instance_id = instance_id
        self.member = ""
        """The member id at the last assignment."""
        self.lost = False
        """Whether the membership is over; the group is asked who holds it before the consumer joins again."""
        self.joining = False
        """Whether the client joins, for the first time or again, and has no assignment yet."""
        self._session_seconds = session_seconds
        self._client_id = client_id
        self._holder = holder
        self._own: set[str] = set()
        """All member ids that this consumer is known to have had."""
        self._stays: tuple[Holder, float] | None = None
        """An unknown holder in a stable group, and when it was first named; any other answer clears both."""

    def ask(self, member: str) -> Membership:
        """Asks who holds the membership. Raises the errors of `holder`.

        `member`: the consumer's current member id; "" while it has none.
        """
        return self._judge(self._holder(self.group, self.instance_id), member)

    def ask_before_joining_again(self, member: str, now: float) -> Membership:
        """Asks like `ask`, once the membership is lost; call it until the answer is sure. `now` is in seconds."""
        stays, self._stays = self._stays, None
        holder = self._holder(self.group, self.instance_id)
        found = self._judge(holder, member)
        if holder is not None and holder.stable and found.owner is Owner.UNSURE:
            self._stays = stays if stays and stays[0] == holder else (holder, now)
            if now - self._stays[1] > SESSIONS * self._session_seconds:
                return found._replace(owner=Owner.ANOTHERS)
        return found

    def _judge(self, holder: Holder | None, member: str) -> Membership:
        self._own |= {member, self.member}
        if holder is None:
            return Membership(Owner.NOBODYS)
        if holder.member in self._own:
            return Membership(Owner.OURS)
        stale = holder.client == self._client_id  # see Holder
        client = "the broker still shows this worker's client id" if stale else f"{holder.client} on {holder.host}"
        # a client that still has the member id of its last assignment has not sent a join with an empty id since
        is_sure = not self.joining or (member and member == self.member)
        return Membership(Owner.ANOTHERS if is_sure else Owner.UNSURE, f"member {holder.member}; {client}")


def replaced(instance_id: str, holder: str) -> Replaced:
    """Returns the exception for a worker whose membership another member holds."""
    return Replaced(f"another worker has taken the slot of {instance_id} over ({holder}); this one ends")
