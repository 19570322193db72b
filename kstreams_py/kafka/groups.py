"""Consumer groups as an operator sees them: static members by slot, and offsets that are pending in a transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kstreams_py.kafka.transactions import OpenTransaction
from kstreams_py.printable import join_lines
from kstreams_py.records import Positions, TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group; `instance` is its group.instance.id, "" if it has none."""

    instance: str
    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]

    @property
    def name(self) -> str:
        """The instance; the client id if it has none."""
        return self.instance or self.client_id

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group: Kafka's name for its state ("Dead" if there is no such group), and its members by instance."""

    state: str
    members: tuple[Member, ...]


def slot_of(group: str, instance: str) -> int | None:
    """Returns the slot whose static member has this group.instance.id; None if it belongs to no slot."""
    name, _, number = instance.rpartition(".")
    return int(number) if name == group and number.isdecimal() else None


def describe_slots(groups: Mapping[str, GroupInfo]) -> str:
    """Returns the output of `kstreams slots list`: groups with states; members with slots, hosts and partitions."""
    return join_lines(line for group, info in groups.items() for line in _describe(group, info))


def _describe(group: str, info: GroupInfo) -> Iterator[str]:
    yield f"{group}: " + ("there is no such group yet" if info.state == "Dead" else info.state)
    by_slot = sorted(((slot_of(group, member.instance), member) for member in info.members), key=_order)
    for slot, member in by_slot:
        who = f"not a slot ({member.name})" if slot is None else f"slot {slot}"
        held = ", ".join(map(str, member.partitions)) or "no partition"
        yield f"  {who} on {member.host}: {held}; member {member.member_id}"


def _order(row: tuple[int | None, Member]) -> tuple[bool, int, str]:
    slot, member = row
    return slot is None, slot or 0, member.member_id


def members_of(groups: Mapping[str, GroupInfo], slots: Collection[int]) -> dict[str, list[Member]]:
    """Returns the static members of these slots, by group."""
    found: dict[str, list[Member]] = {}
    for group, info in groups.items():
        for member in info.members:
            if slot_of(group, member.instance) in slots:
                found.setdefault(group, []).append(member)
    return found


# Offsets that are pending in a transaction: they cannot be read until it ends, and some transactions never end.

POSITIONS_TOPIC: Final = "__consumer_offsets"
"""The topic in which brokers keep the committed offsets of groups."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of a group at one moment: all offsets of a transaction, or none of them.

    - `committed`: without partitions that have no offset; pending offsets do not count.
    - `pending`: the partitions whose offset was pending in a transaction just before that moment.
    """

    committed: Positions
    pending: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Pending:
    """The partitions whose offsets are pending in a transaction.

    - `kept_in`: the partition of POSITIONS_TOPIC that keeps the offsets of this group and of others.
    - `transactions`: the open transactions on `kept_in`; some of them may belong to other groups.
    - `unknown`: why the transactions could not be listed; "" if they could.
    """

    group: str
    partitions: tuple[TopicPartition, ...]
    kept_in: TopicPartition | None = None
    transactions: tuple[OpenTransaction, ...] = ()
    unknown: str = ""

    def describe(self, now: float, find: str) -> str:
        """Returns the message of a worker that waits for these offsets, with the remedy.

        - `now`: the time in seconds since 1970.
        - `find`: the command that finds hanging transactions; see find_command().
        """
        if not self.partitions:
            return f"group {self.group!r}: no offset is pending in a transaction"
        partitions = ", ".join(map(str, self.partitions))
        pinned = f"group {self.group!r}: the offsets of {partitions} are pending in a transaction"
        if self.unknown:
            return f"{pinned}, and the transactions cannot be listed: {self.unknown}; {_remedy(find)}"
        if not self.transactions:
            return f"{pinned}, which has ended on {self.kept_in} just now"
        found = "; ".join(transaction.describe(now) for transaction in self.transactions)
        states = {transaction.hangs for transaction in self.transactions}
        remedy = _remedy(find) if True in states else _unsure(find) if None in states else "wait for it"
        return f"{pinned}; open on {self.kept_in}: {found}; {remedy}"


def _remedy(find: str) -> str:
    return (
        f"stop the workers of this graph, then run `{find}`: it prints the commands that end each that hangs, outputs "
        f"first and {POSITIONS_TOPIC} last"
    )


def _unsure(find: str) -> str:
    return f"grant this user DESCRIBE on transactional ids to see which of them hang (`{find}`), and end none before"


def positions_partition(group: str, partitions: int) -> int:
    """Returns the partition of POSITIONS_TOPIC that keeps a group: |Java's String.hashCode| modulo `partitions`.

    As in Kafka's Utils.abs, the smallest integer counts as 0.
    """
    units = group.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[i : i + 2], "big")) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
