"""A cluster as its brokers describe it: brokers, topics, settings, and the ends of logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kstreams_py.records import Positions, TopicPartition

Settings = Mapping[str, str]
"""The settings by Kafka's names; empty if this user may not see them."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: the number of its leader, or -1 if none; how many replicas it has; how many of them are in sync."""

    leader: int
    replicas: int
    in_sync: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic with its settings."""

    name: str
    partitions: tuple[PartitionInfo, ...]
    settings: Settings


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers with their settings, by number, and the requested topics that exist.

    - `hidden`: topics on which this user lacks DESCRIBE.
    - `silent`: brokers that accept no connection, with their addresses. They count neither as leaders nor as in-sync
      replicas: without a quorum of controllers, other brokers still describe them as they were.
    - `release`: Kafka's release, such as "4.1", as far as the requests that a broker supports reveal it.
    - `servers`: the bootstrap servers that were asked.
    """

    brokers: Mapping[int, Settings]
    topics: Mapping[str, TopicDescription]
    hidden: tuple[str, ...] = ()
    release: str = ""
    silent: Mapping[int, str] = field(default_factory=dict)
    servers: str = ""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """The log of a partition.

    - `start`, `stable`: its first offset and its last stable offset.
    - `since`: for each requested time, the offset of the first record at or after it; `stable` if there is none.
    - `size`: bytes of one replica; None if this user may not see it.
    """

    start: int
    stable: int
    since: Mapping[int, int] = field(default_factory=dict)
    size: int | None = None


Logs = Mapping[TopicPartition, LogInfo]
GroupPositions = Mapping[str, Positions]
"""The committed offsets, by group."""
