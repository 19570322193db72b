"""The records that mark dead letters as replayed, in the compacted topic `__ks.<graph>.replayed`.

A mark is keyed by the place of its letter: topic, the topic's id, partition and offset. It is not keyed by the delivery
hash: after a group's offsets were set back, the same delivery fails with the same hash and makes a new letter, which
must be replayed on its own. Letters of one delivery that are there when a replay begins are marked together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from kstreams_py.kafka.contracts import Output, TopicInfo
from kstreams_py.kafka.foreign_records import is_offset, parse_json
from kstreams_py.operations.dead_letters.letters import Letter, Place
from kstreams_py.records import Message

MARKS_SETTINGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

BEGUN: Final = b'"begun"'
"""The key of the record with which a replay begins: once it can be read, all marks before it can be read."""


def begin_record(topic: str, token: bytes) -> Output:
    """The record with which a replay begins."""
    return (topic, token, BEGUN, 0, None, None, 0, None)


def mark_record(topic: str, place: Place, letter: Letter, letters: Mapping[str, TopicInfo]) -> Output:
    """The mark of the dead letter at a place; `letter` is of the same delivery, `letters` has the topics by name."""
    value = {"processor": letter.processor, "delivery_hash": letter.delivery_hash.hex()}
    return (topic, json.dumps(value).encode(), _key(place, letters), 0, None, None, 0, None)


def deletion_record(topic: str, place: Place, letters: Mapping[str, TopicInfo]) -> Output:
    """The tombstone of a mark."""
    return (topic, None, _key(place, letters), 0, None, None, 0, None)


def marked_place(m: Message, letters: Mapping[str, TopicInfo]) -> Place | None:
    """The place that a mark or its tombstone names; None if it is in none of these topics, by name.

    Raises ValueError for the key of another record.
    """
    if (key := m.key()) == BEGUN:
        return None
    match None if key is None else parse_json(key):
        case [str(topic), str(topic_id), partition, offset] if is_offset(partition) and is_offset(offset):
            if topic not in letters or letters[topic].topic_id != topic_id:
                return None  # of a topic that was deleted, and perhaps created again
            return Place(topic, partition, offset)
        case None if key is None:
            raise ValueError("it has no key")
        case _:
            raise ValueError("its key names no place")


def check_mark(m: Message) -> None:
    """Raises ValueError for the value of another record than a mark."""
    match parse_json(m.value() or b""):
        case {"processor": str(), "delivery_hash": str()}:
            pass
        case _:
            raise ValueError("its value names no delivery")


def _key(place: Place, letters: Mapping[str, TopicInfo]) -> bytes:
    return json.dumps([place.topic, letters[place.topic].topic_id, place.partition, place.offset]).encode()
