"""The records of a changelog: the changes, and after them the positions of the inputs to which they belong.

The partition of a task has the newest value (or a tombstone) of each key, and under POSITIONS_KEY the next offset of
each input. Both are committed in the transaction that commits these offsets to the group. So a restored store is at the
group's offsets, unless something else has changed the changelog or the offsets. The record of positions also names the
changelog's id: a changelog that was deleted and created again under live workers has only their later changes.
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
"""Kafka has to keep only the newest record of each key, and a tombstone for a day: see keyed.CHECKPOINT_SECONDS."""

READ_AT_ONCE: Final = 10_000
"""Records of a changelog that are read in one request: more might not arrive within request_timeout_ms."""


class Commands(NamedTuple):
    """The commands in messages about a state; for a known graph, they name the graph and the processor, too.

    - `reset`: moves the positions of the processor.
    - `delete`: deletes the changelog.
    - `find`: finds transactions that hang in the changelog.
    """

    reset: str = "kstreams recover reset"
    delete: str = "kstreams topics delete --processor"
    find: str = "kstreams transactions find-hanging"

    @property
    def make_again(self) -> str:
        """How to make a state again if its changelog is empty."""
        return f"set the group to the start (`{self.reset} --to-beginning`), so that the state is made again"

    def start_over(self, topic: str) -> str:
        """Returns how to start over, without a changelog that lacks records of its workers or has records of others."""
        return f"stop all workers, delete {topic!r} (`{self.delete}`), and {self.make_again}"


def unreadable_value(changelog: TopicPartition, why: object, commands: Commands) -> str:
    """Returns the message for an unreadable newest value of one of the framework's keys; `why` names the key."""
    return f"{changelog}: {why}: {who_wrote(changelog.topic)}: {commands.start_over(changelog.topic)}"


class Changelog(NamedTuple):
    """A changelog; `topic_id`: the broker's id of the topic, "" while that is not known."""

    topic: str
    topic_id: str


class Position(NamedTuple):
    """The next offset of an input; a topic that is created again has another id."""

    topic_id: str
    next: int


def change_records(topic: str, partition: int, changes: Changes) -> list[Output]:
    """Returns a record for each change; a tombstone for a deleted key."""
    return [(topic, value, key, partition, None, None, 0, None) for key, value in changes.items()]


def positions_record(changelog: Changelog, partition: int, positions: Mapping[str, Position]) -> Output:
    """Returns the record that names the next offset of each input topic, and the id of the changelog."""
    value = write_positions(changelog.topic_id, positions)
    return (changelog.topic, value, POSITIONS_KEY, partition, None, None, 0, None)


def write_positions(changelog_id: str, positions: Mapping[str, Position]) -> bytes:
    """Returns the value of a record of positions."""
    return json.dumps({"changelog": changelog_id, "inputs": positions}, separators=(",", ":")).encode()


def read_positions(value: bytes) -> tuple[str, dict[str, Position]]:
    """Reads what `write_positions` wrote: the changelog's id, and the positions. Raises ValueError for other bytes."""
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
