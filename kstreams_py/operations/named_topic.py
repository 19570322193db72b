"""The topic that a command names."""

from __future__ import annotations

from kstreams_py.errors import TopicError, UserMistake
from kstreams_py.kafka.contracts import Cluster, TopicInfo


def find_topic(cluster: Cluster, name: str) -> TopicInfo:
    """Describes a topic. Raises TopicError if it does not exist."""
    found = cluster.topics([name]).get(name)
    if found is None:
        raise TopicError(
            f"topic {name!r} does not exist: create it, for a graph with `kstreams topics create`, or correct the name "
            "or --bootstrap-servers"
        )
    return found


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises UserMistake for a partition that the topic does not have."""
    if partition >= topic.partitions:
        raise UserMistake(
            f"topic {topic.name!r} has no partition {partition}: it has {topic.partitions}, numbered from 0"
        )
