"""A task: one processor on one partition number, and the records that wait in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kstreams_py.processing.tasks.ledger import Cursor
from kstreams_py.records import Message, Positions, TopicPartition, Unreadable

RECORD_BYTES: Final = 300
"""Bytes of memory that a record takes besides its key, value and headers (measured: 240 in the client, with topic)."""


class Queue:
    """Records of one partition, and how many bytes they take."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = deque[Message]()
        self.bytes = 0

    def append(self, m: Message) -> None:
        self.records.append(m)
        self.bytes += _size(m)

    def take(self, count: int) -> list[Message]:
        """Takes the first `count` records."""
        records = self.records
        taken = [records.popleft() for _ in range(count)]
        self.bytes -= sum(map(_size, taken)) if records else self.bytes
        return taken


class Task:
    """One processor on one partition number, from its assignment until that partition is revoked.

    - `cursors`: the ledger's cursor of each input whose partition is assigned.
    - `prefixes`: for each input, the common prefix of the delivery hashes of its steps.
    - `runs_left`: the script: the saved choices that an alts has yet to follow. A run is consecutive records of one
      input, named by its topic and the offset of its last record.
    - `queues`: the records that wait: in a join for the other inputs, in an alts for their turn in the script.
    """

    __slots__ = ("_joins", "cursors", "partition", "prefixes", "queues", "runs_left")

    def __init__(
        self,
        partition: int,
        inputs: Sequence[str],
        cursors: Mapping[str, Cursor],
        prefixes: Mapping[str, bytes],
        *,
        joins: bool,
    ) -> None:
        self.partition = partition
        self.cursors = cursors
        self.prefixes = prefixes
        self.runs_left = deque[tuple[str, int]]()
        self.queues = {topic: Queue() for topic in inputs}
        self._joins = joins

    @property
    def defers(self) -> bool:
        """Whether records of this task may have to wait."""
        return self._joins or bool(self.runs_left)

    def holds(self, topic: str) -> bool:
        """Returns whether records of this input wait."""
        return bool(self.queues[topic].records)

    def take_ready(self) -> Sequence[Any]:
        """Takes the steps that need not wait any longer."""
        return self._zip() if self._joins else [*self._follow()]

    def skip(self, ends: Positions) -> None:
        """Drops runs of the script if their inputs have been read past them; `ends` are the offsets reached.

        The records of such a run were deleted after it was saved, by compaction for example.
        """
        script = self.runs_left
        while script and ends.get(TopicPartition(script[0][0], self.partition), 0) > script[0][1]:
            if self.holds(script[0][0]):
                break
            script.popleft()

    def _zip(self) -> list[tuple[Message, ...]]:
        """Takes one record from each input for each step, until an input has none left."""
        queues = self.queues.values()
        count = min(len(queue.records) for queue in queues)
        return list(zip(*(queue.take(count) for queue in queues), strict=True)) if count else []

    def _follow(self) -> Iterator[Message]:
        """Takes records in the order of the script; once it is used up, all records that had to wait for it."""
        script = self.runs_left
        while script:
            topic, through = script[0]
            queue = self.queues[topic]
            if not queue.records:
                return
            offset = queue.records[0].offset()
            if offset >= through:
                script.popleft()
            if offset <= through:
                yield from queue.take(1)
        for queue in self.queues.values():
            yield from queue.take(len(queue.records))


def step_bytes(step: Any) -> int:
    """Returns how many bytes of memory the records of a step take."""
    return sum(map(_size, step)) if isinstance(step, tuple) else _size(step)


def _size(m: Message) -> int:
    if isinstance(m, Unreadable):
        return RECORD_BYTES + len(m)
    value, key, headers = m.value(), m.key(), m.headers()
    size = RECORD_BYTES + (len(value) if value else 0) + (len(key) if key else 0)
    return size + sum(len(name) + len(data or b"") for name, data in headers) if headers else size
