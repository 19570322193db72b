"""Where a group begins: what it has begun is kept, so that a group whose positions expired does not start over.

Kafka forgets the committed positions of a group that is stopped for longer than `offsets.retention.minutes`. The topic
`__ks.<graph>.beginnings` (compacted) has one record for each partition that a processor has begun to read, written
together with the position where it began. A partition that was begun and has no position has lost it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from kstreams_py.delivery import Output, TopicInfo
from kstreams_py.engine.transaction import Session, Surroundings
from kstreams_py.errors import InputLost
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.topology import Processor

logger = logging.getLogger(__name__)


class Begun(NamedTuple):
    """A partition of a topic that a processor has begun to read; a topic that is created again has another id."""

    processor: str
    topic: str
    topic_id: str
    partition: int


class Beginning:
    """Decides where one processor begins to read partitions, and keeps that it did.

    `counts` are the partitions of each input when the worker started: a partition beyond was added since, and is read
    from its start whatever `auto_offset_reset` says.
    """

    def __init__(self, around: Surroundings, processor: Processor, topic: str, inputs: Mapping[str, TopicInfo]) -> None:
        self._log = around.log
        self._from_start = around.settings.auto_offset_reset == "earliest"
        self._processor = processor.id
        self._topic = topic
        self._inputs = inputs
        self._begun: dict[Begun, int] | None = None
        """How many partitions the topic had as each was begun; None before it was read."""
        self._seen: set[TopicPartition] = set()
        """Partitions of which nothing is left to keep."""

    def begin(self, partitions: Collection[TopicPartition], session: Session) -> Positions:
        """Where to start in partitions without a committed position; commits it, so that a crash changes nothing.

        Raises InputLost if one of them was begun before.
        """
        begun = self._read()
        if lost := [tp for tp in sorted(partitions) if self._named(tp) in begun]:
            minutes = self._log.offsets_retention_minutes()
            raise InputLost(
                f"{self._processor}: {', '.join(map(str, lost))} was read before, and its committed position is not "
                f"there any more: Kafka keeps positions of a stopped group for offsets.retention.minutes "
                f"({'not known' if minutes is None else minutes}): set them on purpose (kafka-consumer-groups "
                "--reset-offsets, once the group has no members: `kstreams slots release`), then start again"
            )
        first = set(partitions) if self._from_start else {tp for tp in partitions if self._was_added(tp)}
        starts = self._log.starts(first) | self._log.ends(set(partitions) - first)
        logger.info("%s: begins at %s", self._processor, ", ".join(f"{tp}@{at}" for tp, at in sorted(starts.items())))
        self._keep(starts, starts, session)
        return starts

    def keep(self, partitions: Collection[TopicPartition], session: Session) -> None:
        """Keeps that partitions are read whose positions were committed by somebody else, once in a process."""
        if not self._seen.issuperset(partitions):
            # a static member may still hold its old assignment, with topics that this deployment does not read
            begun, inputs = self._read(), [tp for tp in sorted(partitions) if tp.topic in self._inputs]
            if new := [tp for tp in inputs if self._named(tp) not in begun]:
                self._keep({}, new, session)
            self._seen.update(partitions)

    def _keep(self, starts: Positions, partitions: Collection[TopicPartition], session: Session) -> None:
        assert self._begun is not None
        named = {self._named(tp): self._inputs[tp.topic].partitions for tp in partitions}
        session.begin(starts, [self._record(each, count) for each, count in named.items()])
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
                for m in self._log.read(TopicPartition(self._topic, 0))
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
