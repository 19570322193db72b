"""The records that mark dead letters as replayed or discarded, in the compacted topic `__ks.<graph>.replayed`.

A mark is keyed by the place of its dead letter: topic, topic id, partition and offset. It is not keyed by the delivery
hash: after a group's offsets are set back, the same delivery fails with the same hash and writes a new dead letter,
which must be replayed on its own. If one delivery has several dead letters when a replay begins, all are marked.

A mark with a reason says that the dead letter is discarded. A release that knows no reasons takes it for the mark of a
replayed dead letter, so its replays skip the dead letter, too. A replay of discarded dead letters overwrites the mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from kstreams_py.kafka.contracts import Output, TopicInfo
from kstreams_py.kafka.foreign_records import is_offset, parse_json
from kstreams_py.processing.dead_letters.letters import Letter, LetterPlace, Mark
from kstreams_py.records import Message

MARKS_SETTINGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

BEGUN: Final = b'"begun"'
"""The key of a replay's first record: once it can be read, all marks before it can be read."""


def begin_record(topic: str, token: bytes) -> Output:
    """Returns the first record of a replay."""
    return (topic, token, BEGUN, 0, None, None, 0, None)


def mark_record(
    topic: str, place: LetterPlace, letter: Letter, letters: Mapping[str, TopicInfo], reason: str | None = None
) -> Output:
    """Returns the mark of the dead letter at a place.

    - `letter`: a dead letter of the same delivery.
    - `letters`: the dead-letter topics, by name.
    - `reason`: why it is discarded; None if it is replayed.
    """
    value = {"processor": letter.processor, "delivery_hash": letter.delivery_hash.hex()}
    if reason is not None:
        value["discarded"] = reason
    return (topic, json.dumps(value).encode(), _key(place, letters), 0, None, None, 0, None)


def deletion_record(topic: str, place: LetterPlace, letters: Mapping[str, TopicInfo]) -> Output:
    """Returns the tombstone of a mark."""
    return (topic, None, _key(place, letters), 0, None, None, 0, None)


def marked_place(m: Message, letters: Mapping[str, TopicInfo]) -> LetterPlace | None:
    """Returns the place that a mark or its tombstone names; None for BEGUN, and for a topic that `letters` lacks.

    Raises ValueError for any other key.
    """
    if (key := m.key()) == BEGUN:
        return None
    match None if key is None else parse_json(key):
        case [str(topic), str(topic_id), partition, offset] if is_offset(partition) and is_offset(offset):
            if topic not in letters or letters[topic].topic_id != topic_id:
                return None  # the topic was deleted, and perhaps created again
            return LetterPlace(topic, partition, offset)
        case None if key is None:
            raise ValueError("it has no key")
        case _:
            raise ValueError("its key names no place")


def read_mark(m: Message) -> Mark:
    """Returns the mark that a record holds. Raises ValueError for any other value."""
    match parse_json(m.value() or b""):
        case {"processor": str(), "delivery_hash": str(), "discarded": str(reason)}:
            return Mark(m.timestamp()[1], reason)
        case {"processor": str(), "delivery_hash": str(), **others} if "discarded" not in others:
            return Mark(m.timestamp()[1])
        case _:
            raise ValueError("its value names no delivery")


def _key(place: LetterPlace, letters: Mapping[str, TopicInfo]) -> bytes:
    return json.dumps([place.topic, letters[place.topic].topic_id, place.partition, place.offset]).encode()
