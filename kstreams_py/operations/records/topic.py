"""Finds the topic that a command names."""

from __future__ import annotations

import logging
from typing import Final

from kstreams_py.errors import TopicError, UserMistake
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.2
"""Seconds between two looks for a topic that is about to be created."""


def find_topic(environment: Environment, name: str, seconds: float = 0.0) -> TopicInfo:
    """Describes a topic; waits up to `seconds` for its creation. Raises TopicError if it does not exist."""
    deadline, is_waiting = environment.clock() + seconds, False
    # no topic has such a name, and a name that is not UTF-8 ends the process (SIGSEGV; confluent-kafka 2.16)
    is_possible = name.isascii()
    while (found := environment.cluster.topics([name]).get(name) if is_possible else None) is None:
        if not is_possible or environment.clock() >= deadline:
            raise TopicError(
                f"topic {name!r} does not exist: create it, for a graph with `kstreams topics create`, or correct the "
                "name or --bootstrap-servers"
            )
        if not is_waiting:
            logger.info("topic %r does not exist yet; waiting up to %g s for its creation", name, seconds)
        is_waiting = True
        environment.sleep(LOOK_SECONDS)
    return found


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises UserMistake for a partition that the topic does not have."""
    if partition >= topic.partitions:
        raise UserMistake(
            f"topic {topic.name!r} has no partition {partition}: it has {topic.partitions}, numbered from 0"
        )
