"""Sizes: what topics take, of one record and of one batch; what was fetched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kstreams_py.kafka.contracts import TopicInfo

BATCH_OVERHEAD: Final = 200
"""Bytes of a batch that are Kafka's own, at most."""

CLIENT_BYTES: Final = 1_000_000
"""What the client takes as one record, where message.max.bytes does not say otherwise."""


def batch_bytes(topics: Iterable[TopicInfo]) -> int | None:
    """Bytes that a batch may have so that each of the topics takes it; None if none has a limit."""
    limits = [int(limit) for info in topics if (limit := info.settings.get("max.message.bytes"))]
    return max(1, min(limits) - BATCH_OVERHEAD) if limits else None


def record_bytes(topic: TopicInfo | None, client_settings: Mapping[str, Any]) -> int:
    """Bytes that a record may have so that the client and its topic, if that is known, take it."""
    limit = int(client_settings.get("message.max.bytes", CLIENT_BYTES))
    if topic is not None:
        limit = min(limit, int(topic.settings.get("max.message.bytes", limit)))
    return max(1, limit - BATCH_OVERHEAD)


def fetched_bytes(records: Sequence[Any]) -> int:
    """Bytes of the values of records: the length of a client's record is that of its value."""
    return sum(map(len, records))
