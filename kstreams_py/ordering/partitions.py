"""Keeps each object in one partition: refuses a topic that has another number of partitions, until that is accepted."""

from __future__ import annotations

import logging

from kstreams_py.errors import TopicError
from kstreams_py.ordering.storage import Storage

logger = logging.getLogger(__name__)


def check_partitions(storage: Storage, topic: str, partitions: int, *, accepts: bool) -> None:
    """Notes in a store how many partitions the topic of its events has.

    `accepts`: another number than before is noted. Otherwise raises TopicError for it: most objects have another
    partition then, so that a consumer group may read a later event of an object before an earlier one.
    """
    before = storage.note_partitions(topic, partitions, change=False)
    if before == partitions:
        return
    text = f"topic {topic!r} has {partitions} partitions, and had {before} when events of {storage} were sent to it"
    if not accepts:
        raise TopicError(
            f"{text}: objects move to other partitions, where a consumer may read a later event before an earlier one: "
            "stop all workers, let the consumers read what was sent, then start with --accept-partitions"
        )
    storage.note_partitions(topic, partitions, change=True)
    logger.warning("%s: objects move to other partitions, as was asked for", text)
