"""Consumer groups as an operator sees them: their static members by slot, and how they are listed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kstreams_py.errors import SettingsError
from kstreams_py.record import TopicPartition


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a consumer group; `instance` is its group.instance.id, "" for one that has none."""

    instance: str
    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group: Kafka's name of its state ("Dead": there is no such group), and its members by instance."""

    state: str
    members: tuple[Member, ...]


def slot_of(group: str, instance: str) -> int | None:
    """The slot whose static member has this group.instance.id; None if it is no slot's."""
    name, _, number = instance.rpartition(".")
    return int(number) if name == group and number.isdecimal() else None


def describe_slots(groups: Mapping[str, GroupInfo]) -> str:
    """What `kstreams slots list` prints: each group with its state, each member with its slot, host and partitions."""
    return "\n".join(line for group, info in groups.items() for line in _describe(group, info))


def _describe(group: str, info: GroupInfo) -> Iterator[str]:
    yield f"{group}: " + ("there is no such group yet" if info.state == "Dead" else info.state)
    by_slot = sorted(((slot_of(group, member.instance), member) for member in info.members), key=_order)
    for slot, member in by_slot:
        who = f"not a slot ({member.instance or member.client_id})" if slot is None else f"slot {slot}"
        held = ", ".join(map(str, member.partitions)) or "no partition"
        yield f"  {who} on {member.host}: {held}; member {member.member_id}"


def _order(row: tuple[int | None, Member]) -> tuple[bool, int, str]:
    slot, member = row
    return slot is None, slot or 0, member.member_id


def members_of(graph: str, groups: Mapping[str, GroupInfo], slots: Collection[int]) -> dict[str, list[Member]]:
    """The static members of these slots, by group. Raises SettingsError if one of them is a member of no group."""
    found: dict[str, list[Member]] = {}
    known: set[int] = set()
    for group, info in groups.items():
        for member in info.members:
            if (slot := slot_of(group, member.instance)) is not None:
                known.add(slot)
                if slot in slots:
                    found.setdefault(group, []).append(member)
    if missing := sorted(set(slots) - known):
        held = ", ".join(map(str, sorted(known))) or "none"
        raise SettingsError(
            f"slot {', '.join(map(str, missing))} has no member in any group of graph {graph!r} (slots that have: "
            f"{held}): nothing was released; see `kstreams slots list`"
        )
    return found
