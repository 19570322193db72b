"""The inputs of dead letters, read again from their topics and compared with the copies in the dead letters.

Anyone who may write to a dead-letter topic can forge a dead letter: with another value, or with the delivery hash of
another record, which a sink would then skip as a duplicate. So a step is run with the records in the input topics, and
a dead letter that differs from them is not replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kstreams_py.errors import DecodeError
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.graph.topology import Graph
from kstreams_py.operations.committed import CommittedReader
from kstreams_py.operations.pages import open_pages
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.dead_letters.letters import Input, Letter
from kstreams_py.records import Inputs, Message, Positions, TopicPartition, too_large
from kstreams_py.steps.environment import Environment

AHEAD_MAX: Final = 128
"""The maximum number of records in one read.

Reading ahead helps, because dead letters are replayed by partition, in the order of their inputs.
"""

AHEAD_BYTES: Final = 1_000_000
"""A read of more bytes than this makes the next one smaller."""

NOT_COMPARED: Final = "nothing shows that a worker wrote it: --unverified trusts its content"


class Originals:
    """Finds the inputs of dead letters."""

    def __init__(self, graph: Graph, environment: Environment, *, unverified: bool = False) -> None:
        """Makes no request.

        - `unverified`: trusts dead letters that cannot be compared with the records in their input topics.
        """
        self._cluster = environment.cluster
        self._value_bytes_max = environment.settings.value_bytes_max
        self._unverified = unverified
        self._pages = open_pages(graph, self._cluster, Attempts(f"{graph.name}: inputs", graph.name, environment.sleep))
        self._committed = CommittedReader(graph, environment)
        self._ids: dict[str, str | None] = {}
        """Topic ids by topic; None for a topic that does not exist."""
        self._positions: dict[str, Positions] = {}
        self._read: dict[TopicPartition, dict[int, Message]] = {}
        """The records of the last read of each partition, by offset."""
        self._ahead: dict[TopicPartition, int] = {}

    def find(self, letter: Letter, processor: Processor) -> Inputs | str:
        """Returns the inputs of a dead letter of this processor, or the reason why its step must not be run.

        Raises BrokerUnavailable.
        """
        if not self._has_its_hash(letter):
            return self._believe(letter, "its delivery hash does not match its inputs' topics and offsets")
        if ahead := self._not_delivered(letter, processor):
            return ahead
        read = map(self._original, letter.inputs)
        found = tuple(m for m in read if m is not None)  # a record with an empty value is falsy
        if len(found) < len(letter.inputs):
            return self._believe(letter, "its inputs are no longer in their topics")
        for said, original in zip(letter.inputs, found, strict=True):
            if part := _difference(letter, said, original):
                topic = letter.place.topic
                return f"it differs from {said} in its {part}, so no worker wrote it: see who may write to {topic}"
        return found

    def _has_its_hash(self, letter: Letter) -> bool:
        if unknown := {each.name for each in letter.inputs} - self._ids.keys():
            infos = self._cluster.topics(unknown)
            self._ids |= {name: infos[name].topic_id if name in infos else None for name in unknown}
        return _hash(letter, self._ids) == letter.delivery_hash

    def _believe(self, letter: Letter, why: str) -> Inputs | str:
        if not letter.has_whole_inputs:
            return f"it was cut to fit its topic ({letter.cut}), and {why}: send the record again by hand"
        return letter.inputs if self._unverified else f"{why}, and {NOT_COMPARED}"

    def _not_delivered(self, letter: Letter, processor: Processor) -> str:
        """Returns why the workers will run the step themselves; "" if their group has passed the step's inputs."""
        if (left := self._left(letter, processor)) is None:
            return ""
        # the offsets that were read earlier may be outdated
        partitions = {TopicPartition(each.name, each.number) for each in letter.inputs}
        read = self._committed.read(processor, partitions)
        self._positions[processor.id] = self._positions.get(processor.id, {}) | read
        if (left := self._left(letter, processor)) is None:
            return ""
        tp = TopicPartition(left.name, left.number)
        where = f"is at {tp}@{read[tp]}" if tp in read else f"has committed no offset of {tp}"
        return f"group {self._committed.group(processor)!r} {where}, and its workers will read {left}: start them first"

    def _left(self, letter: Letter, processor: Processor) -> Input | None:
        """Returns an input that the group has not passed, by the offsets read so far; None if it has passed all."""
        known = self._positions.get(processor.id, {})
        inputs = letter.inputs
        return next((each for each in inputs if known.get(TopicPartition(each.name, each.number), 0) <= each.at), None)

    def _original(self, said: Input) -> Message | None:
        """Returns the record at the place of an input; None if there is none."""
        tp = TopicPartition(said.name, said.number)
        if said.at not in self._read.get(tp, {}):
            limit, most = self._ahead.get(tp, 1), self._value_bytes_max
            page: list[Any] = self._pages[""].read(tp, said.at, limit)
            is_large = sum(map(len, page)) > AHEAD_BYTES
            self._ahead[tp] = max(1, limit // 4) if is_large else min(AHEAD_MAX, limit * 2)
            self._read[tp] = {m.offset(): too_large(m, most) if len(m) > most else m for m in page}
        return self._read[tp].get(said.at)


def _difference(letter: Letter, said: Input, original: Message) -> str:
    """Returns the first part in which an input differs from the record, or "". Parts that were cut are not compared."""
    if said.timestamp()[1] != original.timestamp()[1]:
        return "timestamp"
    parts: dict[str, Callable[[Message], Any]] = {
        "key": lambda m: m.key(),
        "value": lambda m: m.value(),
        "headers": lambda m: m.headers() or [],
    }
    for part, read in parts.items():
        if f"{part} of {said}: " in letter.cut:
            continue
        try:
            is_same = read(said) == read(original)
        except DecodeError:  # a worker's dead letter would name this part as cut
            is_same = False
        if not is_same:
            return part
    return ""


def _hash(letter: Letter, ids: Mapping[str, str | None]) -> bytes | None:
    """Returns the delivery hash of a dead letter's step, with these topic ids; None if a topic does not exist."""
    found = [(m.name, topic_id, m.number, m.at) for m in letter.inputs if (topic_id := ids[m.name]) is not None]
    if len(found) < len(letter.inputs):
        return None
    if len(found) > 1:
        return joined_hash(letter.processor, found)
    ((name, topic_id, number, at),) = found
    return hash_prefix(letter.processor, name, topic_id, number) + pack_offset(at)
