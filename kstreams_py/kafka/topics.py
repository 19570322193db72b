"""Looks topics up through a client, whose errors do not show whether a topic exists."""

from __future__ import annotations

from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import TopicError
from kstreams_py.kafka.errors import E

MISSING: Final = {E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION}


def describe_topic(client: ck.Producer | ck.Consumer, topic: str, limit: float) -> Any:
    """Returns a topic's metadata, which the client caches; None if no answer arrives within `limit` seconds."""
    try:
        return client.list_topics(topic, limit).topics[topic]
    except ck.KafkaException:
        return None


def is_missing(found: Any) -> bool:
    """Returns whether metadata (`found`) shows that a topic does not exist; a client may still use a deleted topic."""
    return found is not None and found.error is not None and found.error.code() == E.UNKNOWN_TOPIC_OR_PART


def no_such_topic(topic: str, create: str = "kstreams topics create") -> TopicError:
    """Returns the exception for a topic that does not exist; `create` is the command that creates it."""
    return TopicError(f"topic {topic!r} does not exist: run `{create}`")
