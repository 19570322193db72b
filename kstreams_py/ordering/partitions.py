"""Keeps a store's events in one topic, and each object in one partition, until an operator accepts a change."""

from __future__ import annotations

import logging

from kstreams_py.errors import TopicError
from kstreams_py.ordering.storage import Storage

logger = logging.getLogger(__name__)


def check_topic(
    storage: Storage, topic: str, partitions: int, *, accepts_topic: bool = False, accepts_partitions: bool = False
) -> None:
    """Notes in a store which topic its events are sent to.

    - `accepts_topic`: accept another topic than before.
    - `accepts_partitions`: accept another number of partitions.

    Raises TopicError for a change that is not accepted. Consumers of one topic would wait for events that are in the
    other one. With another number of partitions, a group may read a later event of an object before an earlier one.
    """
    known, before = storage.note_topic(topic, partitions, change=False)
    if (known, before) == (topic, partitions):
        return
    if known != topic:
        text = f"events of {storage} are sent to topic {known!r}, and not to {topic!r}"
        if not accepts_topic:
            raise TopicError(
                f"{text}: an object's events would be in two topics, and its consumers would wait for those in the "
                f"other one: name --topic {known}; or stop all workers, let the consumers read what was sent, then "
                "start with --accept-topic (a new consumer begins there with start='accept_first')"
            )
        what = "the next ones are sent to the other topic"
    else:
        text = f"topic {topic!r} has {partitions} partitions, and had {before} when events of {storage} were sent to it"
        if not accepts_partitions:
            raise TopicError(
                f"{text}: objects move to other partitions, where a consumer may read a later event before an earlier "
                "one: stop all workers, let the consumers read what was sent, then start with --accept-partitions"
            )
        what = "objects move to other partitions"
    storage.note_topic(topic, partitions, change=True)
    logger.warning("%s: %s, as was asked for", text, what)
