"""The names that a graph gives to what it owns: groups, members, transactional ids, topics."""

from __future__ import annotations

from typing import Final

RESERVED: Final = "__"
"""Names of topics that start with it are the system's own."""


def group_of(graph: str, processor: str) -> str:
    """The consumer group of a processor, by its id: also the name under which it is hashed and counted."""
    return f"{graph}.{processor}"


def member_of(group: str, slot: int) -> str:
    """The group.instance.id of the worker of a slot, and the transactional.id of its producer."""
    return f"{group}.{slot}"


def replay_id(graph: str) -> str:
    """The transactional.id of what replays dead letters: one replay of a graph at a time."""
    return f"{graph}.dead-letters"


def recover_id(graph: str) -> str:
    """The transactional.id of what moves the groups of a graph: one reset at a time."""
    return f"{graph}.recover"


def beginnings_topic(graph: str) -> str:
    """The topic that records where the groups of a graph began to read."""
    return f"{RESERVED}ks.{graph}.beginnings"


def replayed_topic(graph: str) -> str:
    """The topic that marks dead letters as replayed."""
    return f"{RESERVED}ks.{graph}.replayed"


def journal_topic(graph: str, processor: str) -> str:
    """The topic where a processor records its deliveries, or an alts its choices."""
    return f"{RESERVED}ks.{graph}.{processor}.journal"


def delivered_topic(graph: str, processor: str) -> str:
    """The topic, beside outputs on another cluster, that records which attempt was committed."""
    return f"{RESERVED}ks.{graph}.{processor}.delivered"


def changelog_topic(graph: str, store: str) -> str:
    """The topic of the changes of a keyed store, by its name."""
    return f"{RESERVED}ks.{graph}.{store}.changelog"


def runs_topic(target: str) -> str:
    """The topic of the runs of a pipeline that writes to a topic."""
    return f"{RESERVED}ks.{target}.runs"
