"""The limits of topics for records (size, key, timestamp) and for batches; the size of fetched records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.kafka.contracts import TopicInfo

BATCH_OVERHEAD: Final = 200
"""The maximum number of bytes that Kafka's format adds to the records of a batch."""

CLIENT_BYTES: Final = 1_000_000
"""The client's limit for a record, unless message.max.bytes sets another."""


def batch_bytes(topics: Iterable[TopicInfo]) -> int | None:
    """Returns the maximum size in bytes of a batch that all of the topics accept; None if no topic has a limit."""
    limits = [int(limit) for info in topics if (limit := info.settings.get("max.message.bytes"))]
    return max(1, min(limits) - BATCH_OVERHEAD) if limits else None


TIME_MARGIN_MS: Final = 60_000
"""Milliseconds by which a timestamp must stay within its limits: the record waits, and clocks differ."""


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """The limits of a topic for a record.

    - `size`: bytes, see record_size().
    - `needs_key`: the topic is compacted, so it refuses a record without a key.
    - `before_ms`, `after_ms`: how far a timestamp may be before and after the broker's time; None for any.
    """

    size: int
    needs_key: bool = False
    before_ms: int | None = None
    after_ms: int | None = None

    def takes_time(self, timestamp: int, now: float) -> bool:
        """Returns whether a timestamp (milliseconds since 1970) is within the limits at `now` (seconds since 1970)."""
        ahead = timestamp - int(now * 1000)
        is_early = self.before_ms is not None and -ahead > self.before_ms - TIME_MARGIN_MS
        return not is_early and (self.after_ms is None or ahead <= self.after_ms - TIME_MARGIN_MS)


def record_limits(topic: TopicInfo | None, client_settings: Mapping[str, Any]) -> RecordLimits:
    """Returns the limits for a record: the client's, and the topic's if the topic is known."""
    size = int(client_settings.get("message.max.bytes", CLIENT_BYTES))
    if topic is None:
        return RecordLimits(max(1, size - BATCH_OVERHEAD))
    settings = topic.settings
    size = min(size, int(settings.get("max.message.bytes", size)))
    # with LogAppendTime the broker sets its own time, and checks no other
    checks_time = settings.get("message.timestamp.type", "CreateTime") == "CreateTime"
    before, after = (settings.get(f"message.timestamp.{side}.max.ms") for side in ("before", "after"))
    return RecordLimits(
        max(1, size - BATCH_OVERHEAD),
        needs_key=topic.is_compacted,
        before_ms=int(before) if checks_time and before else None,
        after_ms=int(after) if checks_time and after else None,
    )


def fetched_bytes(records: Sequence[Any]) -> int:
    """Returns the bytes of the values of records: len() of a client's record is the length of its value."""
    return sum(map(len, records))
