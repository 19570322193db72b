"""Where a group begins to read; it records its beginnings, so that it does not start over once its offsets expired.

Kafka deletes the committed offsets of a group that is stopped for longer than `offsets.retention.minutes`. The topic
`__ks.<graph>.beginnings` (compacted) has one record for each partition that a processor has begun to read, committed
together with the offset at which it began. A partition that has a record and no committed offset has lost it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kstreams_py.errors import InputLost
from kstreams_py.graph.declarations import Processor
from kstreams_py.kafka.contracts import Output, TopicInfo
from kstreams_py.processing.committer import Committer
from kstreams_py.processing.environment import Environment
from kstreams_py.records import Positions, TopicPartition

logger = logging.getLogger(__name__)


class Begun(NamedTuple):
    """A partition of a topic that a processor has begun to read; a topic that is created again has another id."""

    processor: str
    topic: str
    topic_id: str
    partition: int


class Beginning:
    """Decides where one processor begins to read partitions, and records it.

    - `topic`: the graph's topic of beginnings.
    - `inputs`: the processor's input topics when the worker started. A partition that they do not have was added since,
      and is read from its start whatever `auto_offset_reset` is.
    """

    def __init__(
        self, environment: Environment, processor: Processor, topic: str, inputs: Mapping[str, TopicInfo]
    ) -> None:
        self._cluster = environment.cluster
        self._from_start = environment.settings.auto_offset_reset == "earliest"
        self._processor = processor.id
        self._topic = topic
        self._inputs = inputs
        self._begun: dict[Begun, int] | None = None
        """How many partitions the topic had when each was begun; None until the records are read."""
        self._recorded: set[TopicPartition] = set()
        """Partitions whose beginning is known to be recorded."""

    def start(self, partitions: Collection[TopicPartition], committer: Committer) -> Positions:
        """Returns the start offsets of partitions without a committed offset, and commits them before they are used.

        Raises InputLost if one of the partitions was begun before.
        """
        begun = self._read()
        if lost := [tp for tp in sorted(partitions) if self._named(tp) in begun]:
            minutes = self._cluster.offsets_retention_minutes()
            raise InputLost(
                f"{self._processor}: {', '.join(map(str, lost))} was read before, and its committed offset no longer "
                f"exists: Kafka keeps the offsets of a stopped group for offsets.retention.minutes "
                f"({'not known' if minutes is None else minutes}): set them on purpose (kafka-consumer-groups "
                "--reset-offsets, once the group has no members: `kstreams slots release`), then start again"
            )
        first = set(partitions) if self._from_start else {tp for tp in partitions if self._was_added(tp)}
        starts = self._cluster.starts(first) | self._cluster.ends(set(partitions) - first)
        logger.info("%s: begins at %s", self._processor, ", ".join(f"{tp}@{at}" for tp, at in sorted(starts.items())))
        self._record_starts(starts, starts, committer)
        return starts

    def record_missing(self, partitions: Collection[TopicPartition], committer: Committer) -> None:
        """Records the beginning of partitions that have a committed offset and no record, once in a process."""
        if not self._recorded.issuperset(partitions):
            # a static member may still hold its old assignment, with topics that this deployment does not read
            begun, inputs = self._read(), [tp for tp in sorted(partitions) if tp.topic in self._inputs]
            if new := [tp for tp in inputs if self._named(tp) not in begun]:
                self._record_starts({}, new, committer)
            self._recorded.update(partitions)

    def _record_starts(self, starts: Positions, partitions: Collection[TopicPartition], committer: Committer) -> None:
        assert self._begun is not None
        named = {self._named(tp): self._inputs[tp.topic].partitions for tp in partitions}
        committer.commit_start(starts, [self._record(each, count) for each, count in named.items()])
        self._begun |= named

    def _record(self, begun: Begun, count: int) -> Output:
        return (
            self._topic,
            json.dumps({"partitions": count}).encode(),
            json.dumps(begun).encode(),
            0,
            None,
            None,
            0,
            None,
        )

    def _read(self) -> dict[Begun, int]:
        if self._begun is None:
            self._begun = {
                Begun(*json.loads(m.key() or b"")): json.loads(m.value() or b"")["partitions"]
                for m in self._cluster.read(TopicPartition(self._topic, 0))
            }
        return self._begun

    def _was_added(self, tp: TopicPartition) -> bool:
        """Whether the partition was added since the group began to read its topic, or since this worker started."""
        mine = self._named(tp)
        return tp.partition >= self._inputs[tp.topic].partitions or any(
            count <= tp.partition for each, count in (self._begun or {}).items() if each[:3] == mine[:3]
        )

    def _named(self, tp: TopicPartition) -> Begun:
        return Begun(self._processor, tp.topic, self._inputs[tp.topic].topic_id, tp.partition)
