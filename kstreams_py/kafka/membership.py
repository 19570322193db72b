"""Who holds a static membership, according to its group."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from kstreams_py.errors import Replaced, Retriable


class Owner(Enum):
    """Who holds a static membership, from the point of view of the consumer that asks.

    NOBODYS is also the answer while it is not certain that another member holds it.
    """

    OURS = "ours"
    NOBODYS = "nobody's"
    ANOTHERS = "another's"


class Membership(NamedTuple):
    """The answer of a group; `holder` describes the member that holds the membership, unless it is known to be ours."""

    owner: Owner
    holder: str = ""


class Holder(NamedTuple):
    """The member that holds a static membership.

    Client id and host are as the group describes them: a member that replaced another one within its session has those
    of the replaced one (measured).
    """

    member: str
    client: str
    host: str


class StaticMembership:
    """The static membership of one consumer: its member id, and who holds the membership."""

    def __init__(
        self, group: str, instance_id: str, client_id: str, holder: Callable[[str, str], Holder | None]
    ) -> None:
        """`holder` asks a group who holds a membership (its group.instance.id); None if no member does."""
        self.group = group
        self.instance_id = instance_id
        self.member = ""
        """The member id at the last assignment."""
        self.lost = False
        """The membership is over; the group is asked who holds it before the consumer joins again."""
        self.joining = False
        """A new client joins in place of one that was a member, and the group has not answered it yet."""
        self._client_id = client_id
        self._holder = holder
        self._has_seen_other = False

    def ask(self, member: str, *, fenced: bool) -> Membership:
        """Asks who holds the membership. Raises the errors of `holder`.

        - `member`: the consumer's member id now; "" while it has none.
        - `fenced`: the client has reported that another member took the membership.

        An unknown holder may be this consumer, whose join is not answered yet, unless it ever had a member id or was
        fenced. While a new client joins, raises Retriable for one: the group names a member before it answers its join.
        """
        certain = bool(member) or fenced
        found = self._judge(self._holder(self.group, self.instance_id), member, certain=certain)
        if found.owner is Owner.ANOTHERS and self.joining and not certain:
            raise Retriable(f"the group {self.group!r} has not answered yet whether {self.instance_id} is its member")
        return found

    def ask_before_joining_again(self, member: str) -> Membership:
        """Asks who holds the lost membership; a consumer that never was a member may join once despite another holder.

        librdkafka #3437: a client whose session has timed out forgets its member id and goes on with heartbeats; a
        coordinator that still knows the member takes the empty id for another member's. And the successor of a
        coordinator that died before it stored a new member knows only the holder before.
        """
        found = self._judge(self._holder(self.group, self.instance_id), member, certain=self._has_seen_other)
        self._has_seen_other |= bool(found.holder)
        return found

    def _judge(self, holder: Holder | None, member: str, *, certain: bool) -> Membership:
        if holder is None:
            return Membership(Owner.NOBODYS)
        if holder.member in (member, self.member):
            return Membership(Owner.OURS)
        stale = holder.client == self._client_id  # see Holder
        client = "the broker still shows this worker's client id" if stale else f"{holder.client} on {holder.host}"
        owner = Owner.ANOTHERS if certain or self.member else Owner.NOBODYS
        return Membership(owner, f"member {holder.member}; {client}")


def replaced(instance_id: str, holder: str) -> Replaced:
    """The error of a worker whose membership another member holds."""
    return Replaced(f"another worker has taken the slot of {instance_id} over ({holder}); this one ends")
