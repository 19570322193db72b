"""The records of a changelog: a change each, and after them the positions of the inputs that they belong to.

The partition of a task has, for each key, the newest value (or a tombstone), and under POSITIONS_KEY the next offset of
each input. Both are committed in the transaction that commits these offsets to the group, so that a store which is
restored is at the group's offsets, or was changed, or left out, by something else. The record names the changelog's id,
too: one that was deleted and created again under live workers has only what they changed since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from kstreams_py.kafka.contracts import Output
from kstreams_py.kafka.foreign_records import is_offset, parse_json, who_wrote
from kstreams_py.records import TopicPartition
from kstreams_py.state.keyed import POSITIONS_KEY, Changes

CHANGELOG_SETTINGS: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}
"""Of each key only the newest record counts, and has to be kept; a deletion for a day, see keyed.CHECKPOINT_SECONDS."""

READ_AT_ONCE: Final = 10_000
"""Records of a changelog that are read in one request: more of them may not arrive within request_timeout_ms."""


MAKE_AGAIN: Final = "set the group to the start (`kstreams recover reset`), so that the state is made again"


def start_over(topic: str) -> str:
    """How to get past a changelog that has not, or not only, what its workers wrote."""
    return f"stop all workers, delete {topic!r}, and {MAKE_AGAIN}"


def unreadable_value(changelog: TopicPartition, why: object) -> str:
    """What to do about the newest value of a key of the framework's own; `why` names the key."""
    return f"{changelog}: {why}: {who_wrote(changelog.topic)}: {start_over(changelog.topic)}"


class Changelog(NamedTuple):
    """A changelog; `topic_id` is the broker's, "" while it is not known."""

    topic: str
    topic_id: str


class Position(NamedTuple):
    """The next offset of an input; a topic that is created again has another id."""

    topic_id: str
    next: int


def change_records(topic: str, partition: int, changes: Changes) -> list[Output]:
    """A record for each change; a tombstone for a key that was deleted."""
    return [(topic, value, key, partition, None, None, 0, None) for key, value in changes.items()]


def positions_record(changelog: Changelog, partition: int, positions: Mapping[str, Position]) -> Output:
    """The record that names the next offset of each input topic, and the id of the changelog."""
    value = write_positions(changelog.topic_id, positions)
    return (changelog.topic, value, POSITIONS_KEY, partition, None, None, 0, None)


def write_positions(changelog_id: str, positions: Mapping[str, Position]) -> bytes:
    """The value of such a record."""
    return json.dumps({"changelog": changelog_id, "inputs": positions}, separators=(",", ":")).encode()


def read_positions(value: bytes) -> tuple[str, dict[str, Position]]:
    """What `write_positions` wrote: the changelog's id, and the positions. Raises ValueError for other bytes."""
    match parse_json(value):
        case {"changelog": str(topic_id), "inputs": dict(inputs)}:
            return topic_id, {str(topic): _position(each) for topic, each in inputs.items()}
        case _:
            raise ValueError("it names no changelog, or no inputs")


def _position(value: object) -> Position:
    match value:
        case [str(topic_id), at] if is_offset(at):
            return Position(topic_id, at)
        case _:
            raise ValueError("an input has no topic id, or no offset")
