"""Whether a topic is there, as a client knows it: its own errors do not say."""

from __future__ import annotations

from typing import Any, Final

import confluent_kafka as ck

from kstreams_py.errors import TopicError
from kstreams_py.ports.kafka.errors import E

MISSING: Final = {E.UNKNOWN_TOPIC_OR_PART, E._UNKNOWN_TOPIC, E._UNKNOWN_PARTITION}


def described(client: ck.Producer | ck.Consumer, topic: str, limit: float) -> Any:
    """What the cluster says of a topic, which the client knows then; None if it does not answer."""
    try:
        return client.list_topics(topic, limit).topics[topic]
    except ck.KafkaException:
        return None


def is_missing(found: Any) -> bool:
    """Whether the cluster says that it has no such topic: a client may go on for long with one that was deleted."""
    return found is not None and found.error is not None and found.error.code() == E.UNKNOWN_TOPIC_OR_PART


def no_such_topic(topic: str) -> TopicError:
    return TopicError(f"topic {topic!r} does not exist: run `kstreams topics create`")
