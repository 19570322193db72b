"""Decides where a group begins to read, and records it, so that the group does not start over once its offsets expire.

Kafka deletes the committed offsets of a group that is stopped for longer than `offsets.retention.minutes`. The topic
`__ks.<graph>.beginnings` (compacted) has one record for each partition that a processor has begun to read, committed
together with the offset at which it began. A partition that has a record and no committed offset has lost its offset.

Without transactions the offset and the record cannot be committed together. So the offset is first written to a record
of its own, then it is committed, then the partition is recorded as begun, and only then are its steps run. If a start
dies in between and its offsets expire, the next start begins at that offset again, unless `auto_offset_reset`
has changed.

A processor with a state also records that the state is begun, with the id of the changelog: a state that was begun and
is missing counts as lost, and does not silently begin again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, InputLost, KStreamsError
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.names import group_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, Output, TopicInfo
from kstreams_py.kafka.foreign_records import foreign, is_deletion, is_offset, parse_json
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.state.stores import Stores
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

START: Final = "start"
"""The field of a record that names an offset."""

POLICY: Final = "policy"
"""The field with the `auto_offset_reset` under which that offset was chosen."""

SPLIT_KEYS: Final = "a key that has records in two gets a state in each"
"""What added partitions of an input mean for a state."""

_AS_NAMED: Final = " as an earlier start had named"

_NAMES_START: Final = " start"
"""Follows the processor's id in the key of a record that names an offset; no processor's id contains it.

So the record never replaces the record of a beginning. It has the same form as the other records: a release that does
not know this kind of record takes it for a record of a processor that it does not run.
"""

_HAS_STATE: Final = " state"
"""Follows the processor's id in the key of a record which says that its state is begun.

The key names the changelog, not an input. The record is committed with the first record of positions in the changelog.
`kstreams recover reset` deletes it.
"""


class BegunPartition(NamedTuple):
    """A partition of a topic that a processor has begun to read; a topic that is created again gets another id."""

    processor: str
    topic: str
    topic_id: str
    partition: int


class Beginning:
    """Decides where one processor of a graph begins to read partitions, and records it.

    - `inputs`: the processor's input topics when the worker started. A partition that they lack was added later, and
      is read from its start, whatever `auto_offset_reset` is.
    """

    def __init__(
        self, environment: Environment, graph: Graph, processor: Processor, inputs: Mapping[str, TopicInfo]
    ) -> None:
        self._cluster = environment.cluster
        self._policy = environment.settings.auto_offset_reset
        self._from_start = self._policy == "earliest"
        self._processor = processor.id
        self._has_state = processor.state is not None
        self._graph = graph.name
        self._show = partial(show_command, graph)
        self._declared = {each.id for each in graph.processors}
        self._topic = graph.beginnings
        self._inputs = inputs
        self._begun: dict[BegunPartition, int] | None = None
        """How many partitions the topic of each begun partition had at that time; None until the records are read."""
        self._starts: dict[BegunPartition, int] = {}
        """The offsets at which partitions were about to begin, recorded under the current `auto_offset_reset`."""
        self._recorded: set[TopicPartition] = set()
        """Partitions whose beginning is known to be recorded."""

    def start(self, partitions: Collection[TopicPartition], committer: Committer) -> Positions:
        """Returns the start offsets of partitions without a committed offset, and commits them before they are used.

        Raises InputLost if one of the partitions was begun before.
        """
        starts, named = self.plan(partitions), self._named_starts(partitions)
        shown = (f"{tp}@{at}{_AS_NAMED if tp in named else ''}" for tp, at in sorted(starts.items()))
        logger.info("%s: begins at %s", self._processor, ", ".join(shown))
        self._warn_of_another_name()
        self._record_starts(starts, [*map(self._named, starts), *self._states(starts, committer)], committer)
        return starts

    def check_state(self, stores: Stores | None) -> None:
        """Raises InputLost if the state of a partition was begun and is lost; call it once the state is restored."""
        if stores is not None:
            stores.check_begun(self.states_begun(stores.changelog.topic))
            stores.warn_of_empty()

    def states_begun(self, changelog: str) -> dict[int, str]:
        """Returns the partitions whose state was begun, each with the id of the changelog in which it was begun."""
        return {each.partition: each.topic_id for each in states_begun(self.read(), self._processor, changelog)}

    def _states(self, partitions: Collection[TopicPartition], committer: Committer) -> list[BegunPartition]:
        """Returns the keys of the records which say that the state of these partitions is begun."""
        if (stores := committer.stores) is None:
            return []
        name, numbers = self._processor + _HAS_STATE, sorted({tp.partition for tp in partitions})
        return [BegunPartition(name, *stores.changelog, number) for number in numbers]

    def _warn_of_another_name(self) -> None:
        for other in self.other_names():
            logger.warning(
                "%s: begins to read %s, which the undeclared processor %r has read: if this is its "
                "new name, stop it, and give it the id %r back, or the positions of group %s.%s (`%s`)",
                self._processor, ", ".join(sorted(self._inputs)), other, other, self._graph, other,
                self._show("recover reset", self._processor, *self._positions_of(other)),
            )  # fmt: skip

    def _positions_of(self, other: str) -> list[str]:
        """Returns the options of `kstreams recover reset` that set the positions of an undeclared processor."""
        partitions = undeclared(self.read(), self._declared).get(other, [])
        try:
            found = self._cluster.group_offsets(group_of(self._graph, other), partitions).committed
        except KStreamsError:  # a client with rights to the graph's groups may have none to this one
            found = {}
        return options_of(found)

    def other_names(self) -> list[str]:
        """Returns the processors that may have been renamed to this one.

        They are no longer declared, had the same inputs, and had a state if and only if this one has; this one is new.
        """
        read = topics_read(self.read())
        mine = {(topic, info.topic_id) for topic, info in self._inputs.items()}
        return [
            other
            for other in sorted(read.keys() - self._declared)
            if self._processor not in read and read[other] == mine and (other + _HAS_STATE in read) == self._has_state
        ]

    @property
    def growth(self) -> str:
        """Which inputs have gained partitions since the processor began, and what that means for its state; or ""."""
        had: dict[str, int] = {}
        for each, count in self.read().items():
            info = self._inputs.get(each.topic)
            if (each.processor, info and info.topic_id) == (self._processor, each.topic_id):
                had[each.topic] = min(count, had.get(each.topic, count))
        grown = [
            f"{topic} had {count} partitions at first, and has {self._inputs[topic].partitions}"
            for topic, count in sorted(had.items())
            if self._has_state and count < self._inputs[topic].partitions
        ]
        return f"{', '.join(grown)}: {SPLIT_KEYS}" if grown else ""

    def plan(self, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the start offsets of partitions without a committed one, as `start` does, but records nothing.

        Raises InputLost if one of the partitions was begun before.
        """
        begun = self.read()
        if lost := [tp for tp in sorted(partitions) if self._named(tp) in begun]:
            minutes = self._cluster.offsets_retention_minutes()
            raise InputLost(
                f"{self._processor}: {', '.join(map(str, lost))} was read before, and its committed offset no longer "
                f"exists: Kafka keeps the offsets of a stopped group for offsets.retention.minutes "
                f"({'not known' if minutes is None else minutes}): decide where it goes on, and set it once the group "
                f"has no members (`{self._show('recover reset', self._processor, '--to-beginning')}`, or --to-end, or "
                "--to-offset for some partitions), then start again"
            )
        return self.first(partitions)

    def first(self, partitions: Collection[TopicPartition]) -> Positions:
        """Returns the start offsets of partitions that were never begun, according to the records read so far."""
        named = self._named_starts(partitions)
        new = set(partitions) - named.keys()
        first = new if self._from_start else {tp for tp in new if self._was_added(tp)}
        starts = self._cluster.starts(first | named.keys()) | self._cluster.ends(new - first)
        return starts | {tp: max(at, starts[tp]) for tp, at in named.items()}  # records may have been deleted since

    def _named_starts(self, partitions: Collection[TopicPartition]) -> Positions:
        return {tp: at for tp in partitions if (at := self._starts.get(self._named(tp))) is not None}

    def record_missing(self, partitions: Collection[TopicPartition], committer: Committer) -> None:
        """Records the beginning of partitions that have a committed offset and no record, once in a process.

        Call it before a step of these partitions is run: otherwise the step would run again once the offsets expire.
        """
        if not self._recorded.issuperset(partitions):
            begun = self.read()
            all_begun = [*map(self._named, sorted(partitions)), *self._states(partitions, committer)]
            if new := [each for each in all_begun if each not in begun]:
                self._record_starts({}, new, committer)
            self._recorded.update(partitions)

    def _record_starts(self, starts: Positions, new: Collection[BegunPartition], committer: Committer) -> None:
        assert self._begun is not None
        most = max(each.partitions for each in self._inputs.values())
        counts = {each: self._inputs[each.topic].partitions if each.topic in self._inputs else most for each in new}
        named = [
            _record(
                self._topic,
                [self._processor + _NAMES_START, *self._named(tp)[1:]],
                {"partitions": 0, START: at, POLICY: self._policy},
            )
            for tp, at in starts.items()
        ]
        # before the commit: if it fails after the records were written, it is repeated with the same offsets
        self._starts |= {self._named(tp): at for tp, at in starts.items()}
        begun = [begun_record(self._topic, each, count) for each, count in counts.items()]
        committer.commit_start(starts, named, begun)
        self._begun |= counts

    def read(self) -> dict[BegunPartition, int]:
        """Returns the recorded beginnings; reads them once in a process. Call it before the committed offsets are read.

        Offsets are committed before a beginning is recorded. If they were read first, a beginning that another worker
        makes between the two reads would look like one whose offset has expired.
        """
        if self._begun is None:
            self._begun, starts = read_begun(self._cluster, self._topic)
            # leave out starts under another policy: the user now wants another start
            self._starts |= {each: at for each, (at, policy) in starts.items() if policy == self._policy}
        return self._begun

    def _was_added(self, tp: TopicPartition) -> bool:
        """Returns whether the partition was added after the group began to read its topic, or this worker started."""
        mine = self._named(tp)
        return tp.partition >= self._inputs[tp.topic].partitions or any(
            count <= tp.partition for each, count in (self._begun or {}).items() if each[:3] == mine[:3]
        )

    def _named(self, tp: TopicPartition) -> BegunPartition:
        return BegunPartition(self._processor, tp.topic, self._inputs[tp.topic].topic_id, tp.partition)


def options_of(positions: Positions) -> list[str]:
    """Returns the options of `kstreams recover reset` that set these positions."""
    options = (("--to-offset", f"{tp.topic}:{tp.partition}:{at}") for tp, at in sorted(positions.items()))
    return [*chain.from_iterable(options)]


def begun_record(topic: str, begun: BegunPartition, partitions: int) -> Output:
    """Returns the record which says that a partition is begun; `partitions` is how many its topic has."""
    return _record(topic, begun, {"partitions": partitions})


def states_begun(begun: Collection[BegunPartition], processor: str, changelog: str) -> list[BegunPartition]:
    """Returns what is recorded about the state of a processor; a partition may have several changelogs."""
    return [each for each in begun if each[:2] == (processor + _HAS_STATE, changelog)]


def topics_read(begun: Collection[BegunPartition]) -> dict[str, set[tuple[str, str]]]:
    """Returns the topics that each processor has begun to read, with their ids."""
    read: dict[str, set[tuple[str, str]]] = {}
    for each in begun:
        read.setdefault(each.processor, set()).add((each.topic, each.topic_id))
    return read


def undeclared(begun: Collection[BegunPartition], declared: Collection[str]) -> dict[str, list[TopicPartition]]:
    """Returns the partitions that undeclared processors have begun to read, by the ids of these processors."""
    found: dict[str, list[TopicPartition]] = {}
    for each in sorted(begun):
        if each.processor not in declared and not each.processor.endswith(_HAS_STATE):
            found.setdefault(each.processor, []).append(TopicPartition(each.topic, each.partition))
    return found


def changelogs_begun(begun: Collection[BegunPartition]) -> dict[str, set[str]]:
    """Returns the processors that have begun to read, each with the changelogs of the states that it has begun."""
    found: dict[str, set[str]] = {}
    for each in begun:
        processor = each.processor.removesuffix(_HAS_STATE)
        found.setdefault(processor, set()).update({each.topic} if processor != each.processor else ())
    return found


def forgotten_state(topic: str, begun: BegunPartition) -> Output:
    """Returns the tombstone of the record which says that a state is begun."""
    return (topic, None, json.dumps(begun).encode(), 0, None, None, 0, None)


def forgotten_processor(cluster: Cluster, topic: str, processor: str) -> list[Output]:
    """Returns the tombstones of all records that a topic of beginnings has about a processor.

    The tombstones for its inputs come last: if not all are written, the processor is still found by its inputs.
    """
    begun, starts = read_begun(cluster, topic)
    keys: list[Sequence[object]] = [
        (processor + _NAMES_START, *each[1:]) for each in starts if each.processor == processor
    ]
    keys += [each for each in begun if each.processor == processor + _HAS_STATE]
    keys += [each for each in begun if each.processor == processor]
    return [(topic, None, json.dumps(key).encode(), 0, None, None, 0, None) for key in keys]


def read_begun(cluster: Cluster, topic: str) -> tuple[dict[BegunPartition, int], dict[BegunPartition, tuple[int, str]]]:
    """Reads a topic of beginnings.

    Returns how many partitions the topic had when each partition was begun, and the offset at which each was about to
    begin, with the `auto_offset_reset` at that time. Skips foreign records, and logs the first of them.
    """
    begun: dict[BegunPartition, int] = {}
    starts: dict[BegunPartition, tuple[int, str]] = {}
    others: dict[bytes | None, list[str]] = {}
    for m in cluster.read(TopicPartition(topic, 0)):
        try:
            name, key, found = _decode(m)
        except (DecodeError, ValueError) as error:
            if is_deletion(m):
                others.pop(m.key(), None)
            else:
                others.setdefault(m.key(), []).append(foreign(m, "a record of a beginning", error))
            continue
        others.pop(m.key(), None)
        if found is None:
            (begun if name == key.processor else starts).pop(key, None)
        elif isinstance(found, int):
            begun[key] = found
        else:
            starts[key] = found
    if named := [each for of_key in others.values() for each in of_key]:
        logger.warning("%s: it is passed over, with %d others of this topic", named[0], len(named) - 1)
    return begun, starts


def _record(topic: str, key: Sequence[object], value: Mapping[str, object]) -> Output:
    return (topic, json.dumps(value).encode(), json.dumps(key).encode(), 0, None, None, 0, None)


def _decode(m: Message) -> tuple[str, BegunPartition, int | tuple[int, str] | None]:
    """Returns the name in a record's key, the partition in the key, and the value; None deletes the record.

    Raises ValueError or DecodeError for a foreign record.
    """
    value, key = m.value(), m.key()
    if key is None:
        raise ValueError("it has no key")
    match parse_json(key):
        case [str(name), str(of), str(topic_id), number] if is_offset(number):
            begun = BegunPartition(name.removesuffix(_NAMES_START), of, topic_id, number)
        case _:
            raise ValueError("its key names no partition")
    if value is None:
        return name, begun, None
    match parse_json(value):
        case {"start": at, "policy": str(policy)} if name != begun.processor and is_offset(at):
            return name, begun, (at, policy)
        case {"partitions": count} if name == begun.processor and is_offset(count):
            return name, begun, count
        case _:
            raise ValueError("its value names neither an offset nor a number of partitions")
