"""Moves of committed positions, as text and as JSON, and the file that stores positions."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.errors import UserMistake, did_you_mean
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import id_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.groups import GroupInfo, slot_of
from kstreams_py.printable import count_are
from kstreams_py.records import Positions, TopicPartition

FORMAT: Final = "kstreams_py positions 1"
"""The version of the file's format."""

_TARGET: Final = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d+):(?P<offset>\d+)")


@dataclass(frozen=True, slots=True)
class Move:
    """A change of a processor's position.

    - `old`: the committed offset; None if there is none.
    - `new`: the offset to read next.
    - `with_state`: the processor keeps a state, which begins empty after a reset even if the position stays.
    """

    processor: str
    partition: TopicPartition
    old: int | None
    new: int
    with_state: bool = False

    @property
    def again(self) -> int:
        """The number of offsets that are read again."""
        return 0 if self.old is None else max(0, self.old - self.new)

    @property
    def skipped(self) -> int:
        """The number of offsets that are skipped."""
        return 0 if self.old is None else max(0, self.new - self.old)


def select(graph: Graph, processor: str) -> Processor:
    """Returns the processor with this id or group name. Raises UserMistake."""
    known = {each.id: each for each in graph.processors}
    processor = id_of(graph.name, processor, known)
    if processor not in known:
        hint = did_you_mean(processor, known) or f"it has {', '.join(known)}"
        raise UserMistake(f"graph {graph.name!r} has no processor {processor!r}: {hint}")
    return known[processor]


def parse_targets(texts: Sequence[str]) -> Positions:
    """Parses texts of the form `TOPIC:PARTITION:OFFSET`. Raises UserMistake."""
    targets: Positions = {}
    for text in texts:
        if (found := _TARGET.fullmatch(text)) is None:
            raise UserMistake(f"--to-offset {text!r}: write TOPIC:PARTITION:OFFSET, such as orders:0:120")
        tp = TopicPartition(found["topic"], int(found["partition"]))
        if targets.setdefault(tp, int(found["offset"])) != int(found["offset"]):
            raise UserMistake(f"--to-offset names {tp} twice, with different offsets: write one of them")
    return targets


def partitions_of(processor: Processor, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
    """Returns the input partitions of a processor."""
    return [TopicPartition(t.name, n) for t in processor.inputs for n in range(topics[t.name].partitions)]


def check_targets(
    processor: Processor, targets: Positions, topics: Mapping[str, TopicInfo], starts: Positions, ends: Positions
) -> None:
    """Checks that offsets are in the log. Raises UserMistake.

    - `starts`, `ends`: the first offset and the last stable offset of each partition of the inputs.
    """
    inputs = {topic.name for topic in processor.inputs}
    for tp, offset in sorted(targets.items()):
        if tp.topic not in inputs:
            hint = did_you_mean(tp.topic, inputs) or f"it reads {', '.join(sorted(inputs))}"
            raise UserMistake(f"processor {processor.id!r} does not read topic {tp.topic!r}: {hint}")
        if tp not in starts:
            raise UserMistake(
                f"topic {tp.topic!r} has no partition {tp.partition}: it has {topics[tp.topic].partitions}, numbered "
                "from 0"
            )
        if not starts[tp] <= offset <= ends[tp]:
            raise UserMistake(
                f"offset {offset} is not in {tp}: choose one from {starts[tp]} to {ends[tp]}; {ends[tp]} waits for new "
                "records"
            )


def check_no_members(groups: Mapping[str, GroupInfo], target: str, declared: Collection[str]) -> None:
    """Raises UserMistake if one of the groups has members.

    - `target`: the graph's name on the command line.
    - `declared`: the groups of processors that the graph declares: a command can release their slots.
    """
    names = [str(member) for info in groups.values() for member in info.members]
    if not names:
        return
    slots = {
        slot_of(group, member.instance)
        for group, info in groups.items()
        if group in declared
        for member in info.members
    }
    numbers = " ".join(map(str, sorted(slot for slot in slots if slot is not None)))
    release = f"; for workers that have ended, run `kstreams slots release {target} {numbers}`" if numbers else ""
    if groups.keys() - declared:
        release += "; a member of a processor that is no longer declared leaves after session_timeout_ms"
    raise UserMistake(f"the group has members: {', '.join(names)}: stop these workers{release}: nothing was changed")


def moves_of(processor: Processor, old: Positions, new: Positions) -> list[Move]:
    """Returns the moves that change something, sorted by partition.

    For a processor with a journal or a state it returns all moves: the journal or state begins at each new position.
    """
    with_state = processor.state is not None
    return [
        Move(processor.id, tp, old.get(tp), at, with_state)
        for tp, at in sorted(new.items())
        if old.get(tp) != at or processor.journal is not None or with_state
    ]


# As text and as JSON.


def describe(moves: Collection[Move]) -> Iterator[str]:
    """Yields a line for each move.

    The numbers count offsets; markers and aborted records take some of them.
    """
    for move in moves:
        old = "no position" if move.old is None else str(move.old)
        change = ", begins there"
        if move.old == move.new:
            change = ", stays there" if move.with_state else ", its journal begins there"
        elif move.old is not None:
            change = f", at most {count_are(move.again, 'record')} read again"
            if move.skipped:
                change = f", at most {count_are(move.skipped, 'record')} skipped"
        yield f"{move.processor}: {move.partition}: {old} -> {move.new}{change}"


def as_fields(move: Move) -> dict[str, Any]:
    """Returns a move as fields for JSON."""
    return {
        "processor": move.processor,
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "old": move.old,
        "new": move.new,
        "again": move.again,
        "skipped": move.skipped,
    }


# The file.


def encode(graph: str, positions: Mapping[str, Positions], topics: Mapping[str, TopicInfo]) -> str:
    """Returns the content of the file for a graph's positions by processor."""
    content = {
        "format": FORMAT,
        "graph": graph,
        "topics": {tp.topic: topics[tp.topic].topic_id for each in positions.values() for tp in sorted(each)},
        "positions": {
            processor: [
                {"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in sorted(each.items())
            ]
            for processor, each in positions.items()
        },
    }
    return json.dumps(content, indent=1)


def decode(text: str, name: str, graph: Graph, topics: Mapping[str, TopicInfo]) -> dict[str, Positions]:
    """Returns the positions in a file, by processor. Raises UserMistake if they are not of this graph and these topics.

    - `name`: the name of the file, for messages.
    - `topics`: the inputs of the graph as they are now.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"it has no {FORMAT!r} as its format")
        positions = {processor: _decode_positions(rows) for processor, rows in content["positions"].items()}
        topic_ids, of_graph = dict(content["topics"]), content["graph"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserMistake(f"{name}: not a file of `kstreams recover export`: {why}") from None
    if of_graph != graph.name:
        raise UserMistake(f"{name}: it has positions of graph {of_graph!r}: name that graph, not {graph.name!r}")
    for processor, each in positions.items():
        inputs = {topic.name for topic in select(graph, processor).inputs}
        if others := sorted({tp.topic for tp in each} - inputs):
            raise UserMistake(
                f"{name}: processor {processor!r} does not read topic {others[0]!r}: delete its positions from the file"
            )
        for topic in sorted({tp.topic for tp in each}):
            known, now = topic_ids.get(topic), topics[topic].topic_id
            if known != now:
                raise UserMistake(
                    f"{name}: topic {topic!r} was deleted and created again since (its id was {known}, and is {now}): "
                    "its offsets name other records: use `kstreams recover reset`, or delete these positions from the "
                    "file"
                )
    return positions


def _decode_positions(rows: Any) -> Positions:
    found: Positions = {}
    for row in rows:
        topic, number, offset = row["topic"], row["partition"], row["offset"]
        if not isinstance(topic, str) or not all(type(each) is int and each >= 0 for each in (number, offset)):
            raise ValueError(f"{row} is not a position")
        if (tp := TopicPartition(topic, number)) in found:
            raise ValueError(f"{tp} is listed twice")
        found[tp] = offset
    return found
