"""The names that a graph gives to what it owns: groups, members, transactional ids, topics, readers of sources."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Final

RESERVED: Final = "__"
"""Topics whose names start with this belong to the system."""


def group_of(graph: str, processor: str) -> str:
    """Returns the consumer group of a processor, by its id. Hashes and metrics use the same name."""
    return f"{graph}.{processor}"


def reader_of(graph: str, source: str) -> str:
    """Returns the name under which a graph claims the inputs of a source. Both names may have dots."""
    return f"{graph}:{source}"


def show_retry(target: str, source: str) -> str:
    """Returns the command that lets the refused inputs of a source be read again. `target`: "" if it is not known."""
    return " ".join(filter(None, ("kstreams sources retry", target, "--source", shlex.quote(source), "--all")))


def id_of(graph: str, name: str, known: Collection[str]) -> str:
    """Returns the id of a processor that a person has named by its id or, as commands print it, by its group.

    - `known`: the ids of processors.
    """
    return name if name in known else name.removeprefix(f"{graph}.")


def member_of(group: str, slot: int) -> str:
    """Returns the group.instance.id of a slot's worker, which is also its producer's transactional.id."""
    return f"{group}.{slot}"


def recorder_id(member: str) -> str:
    """Returns the transactional.id with which the worker of a member writes to its journal of deliveries."""
    return f"{member}.journal"


def replay_id(graph: str) -> str:
    """Returns the transactional.id of a replay of dead letters: a graph has one replay at a time."""
    return f"{graph}.dead-letters"


def recover_id(graph: str) -> str:
    """Returns the transactional.id of a reset of the graph's groups: a graph has one reset at a time."""
    return f"{graph}.recover"


def beginnings_topic(graph: str) -> str:
    """Returns the topic that records where the groups of a graph began to read."""
    return f"{RESERVED}ks.{graph}.beginnings"


def replayed_topic(graph: str) -> str:
    """Returns the topic that marks dead letters as replayed or discarded."""
    return f"{RESERVED}ks.{graph}.replayed"


def journal_topic(graph: str, processor: str) -> str:
    """Returns the topic where a processor records its deliveries, or an alts its choices."""
    return f"{RESERVED}ks.{graph}.{processor}.journal"


def delivered_topic(graph: str, processor: str) -> str:
    """Returns the topic that records, beside outputs on another cluster, which attempt was committed."""
    return f"{RESERVED}ks.{graph}.{processor}.delivered"


def changelog_topic(graph: str, store: str) -> str:
    """Returns the changelog topic of a keyed store, by the store's name."""
    return f"{RESERVED}ks.{graph}.{store}.changelog"


def cluster_topics(cluster: str) -> tuple[str, str, str]:
    """Returns the topics of a cluster of peers: its log of commands, its heartbeats, and its replica."""
    return (
        f"{RESERVED}ks.cluster.{cluster}.log",
        f"{RESERVED}ks.cluster.{cluster}.heartbeats",
        f"{RESERVED}ks.cluster.{cluster}.replica",
    )


_PLAIN: Final = re.compile(r"[a-zA-Z0-9._-]+")

CLUSTER_MAX: Final = 249 - len(max(cluster_topics(""), key=len))
"""The most characters of a cluster's name: the names of its topics contain it, and Kafka limits these to 249."""


def is_plain_name(name: str, most: int) -> bool:
    """Returns whether a name has only characters that a topic's name may have, and at most `most` of them."""
    return len(name) <= most and _PLAIN.fullmatch(name) is not None


def is_own_topic(graph: str, topic: str) -> bool:
    """Returns whether a processor or a state of this graph gives this name to a topic.

    Processor ids and state names have no dot, so a graph whose name begins with this graph's name gives no such name.
    """
    own = rf"{re.escape(f'{RESERVED}ks.{graph}')}\.[a-zA-Z0-9_-]+\.(?:journal|delivered|changelog)"
    return re.fullmatch(own, topic) is not None


def runs_topic(target: str) -> str:
    """Returns the topic that records the runs of a pipeline into the topic `target`."""
    return f"{RESERVED}ks.{target}.runs"
