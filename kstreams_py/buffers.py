"""Records that wait: of a join for its other inputs, of an alts for their turn in the choices that it follows."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kstreams_py.record import Message, Positions, TopicPartition

BUFFER_LIMIT: Final = 10_000
"""Records of one partition that may wait before their partition is paused."""

BUFFER_BYTES: Final = 48 << 20
"""Bytes that may wait in all partitions of one processor; one partition alone is paused at half of it.

Of each partition what one fetch brings (fetch.message.max.bytes) comes in all the same.

While the worker is busy, the client of a join has half as much in its own queue (queued.max.messages.kbytes), and one
more fetch on its way. With less room here, a join that reads what it missed pauses often (measured: 12 partitions,
records of 1 kB: at 32 MiB a quarter more CPU).
"""

TAKEN_AT_LEAST: Final = 10
"""Records that may come in at once however full the buffers are: what is waited for may be among them."""

RECORD_BYTES: Final = 300
"""What a record takes in memory beside its key, value and headers (measured: 240 of the client's, with its topic)."""


class Queue:
    """Records of one partition, and how many bytes they take."""

    __slots__ = ("bytes", "records")

    def __init__(self) -> None:
        self.records = deque[Message]()
        self.bytes = 0


class Buffers:
    """What waits, by partition number and input; `paused` says what should not come in meanwhile.

    `scripts` has, for each alts task that follows saved choices, what is left of their runs: topic and offset of the
    last record of each, in order.
    """

    def __init__(self, inputs: Sequence[str], *, joins: bool) -> None:
        self.scripts: dict[int, deque[tuple[str, int]]] = {}
        self._inputs = inputs
        self._joins = joins
        self._tasks: dict[int, dict[str, Queue]] = {}
        self._bytes = 0

    def add(self, messages: Sequence[Message]) -> list[Any]:
        """Takes records in, each partition's in order, and returns what need not wait (any more): a step each."""
        ready: list[Any] = []
        tasks, joins, scripts = self._tasks, self._joins, self.scripts
        added = 0
        for m in messages:
            partition = m.partition()
            if not joins and partition not in scripts:
                ready.append(m)
                continue
            if (task := tasks.get(partition)) is None:
                task = tasks[partition] = {topic: Queue() for topic in self._inputs}
            queue, size = task[m.topic()], _size(m)
            queue.records.append(m)
            queue.bytes += size
            added += size
        self._bytes += added
        ready += self._zip() if joins else self._follow()
        return ready

    def skip(self, ends: Positions) -> list[Any]:
        """Leaves out runs that nothing can follow: their partitions were read out to these positions.

        The records of such a run were deleted since (compaction does that). Returns what need not wait any more.
        """
        for partition, script in self.scripts.items():
            while script and ends.get(TopicPartition(script[0][0], partition), 0) > script[0][1]:
                if self.holds(TopicPartition(script[0][0], partition)):
                    break
                script.popleft()
        return [*self._follow()]

    def _take(self, queue: Queue, count: int) -> list[Message]:
        """The first records of a queue."""
        records = queue.records
        taken = [records.popleft() for _ in range(count)]
        size = sum(map(_size, taken)) if records else queue.bytes
        queue.bytes -= size
        self._bytes -= size
        return taken

    def _zip(self) -> list[tuple[Message, ...]]:
        """One record from each input, in step, as far as all of them have one."""
        ready: list[tuple[Message, ...]] = []
        for task in self._tasks.values():
            queues = task.values()
            if count := min(len(queue.records) for queue in queues):
                ready += zip(*(self._take(queue, count) for queue in queues), strict=True)
        return ready

    def _follow(self) -> Iterator[Message]:
        """Records in the order of the saved choices; once those are used up, whatever had to wait for them."""
        for partition, script in list(self.scripts.items()):
            task = self._tasks.get(partition, {})
            while script:
                topic, through = script[0]
                queue = task.get(topic)
                if queue is None or not queue.records:
                    break
                offset = queue.records[0].offset()
                if offset >= through:
                    script.popleft()
                if offset <= through:
                    yield from self._take(queue, 1)
            if not script:
                del self.scripts[partition]
                for queue in self._tasks.pop(partition, {}).values():
                    yield from self._take(queue, len(queue.records))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Partitions of which enough records wait.

        None that is waited for is among them: nothing of it is here. The more waits in all, the less may of each, so
        that one idle input leaves room for the tasks of other partitions.
        """
        room = BUFFER_BYTES - self._bytes
        return frozenset(
            TopicPartition(topic, partition)
            for partition, task in self._tasks.items()
            for topic, queue in task.items()
            if queue.records and (len(queue.records) >= BUFFER_LIMIT or queue.bytes >= room)
        )

    @property
    def room(self) -> int:
        """How many records to take in at once, by the size of those that wait.

        What the client has ready, taken all at once, would come on top of what waits.
        """
        waiting = sum(len(queue.records) for task in self._tasks.values() for queue in task.values())
        if not waiting:
            return sys.maxsize
        return max(TAKEN_AT_LEAST, (BUFFER_BYTES - self._bytes) * waiting // self._bytes)

    def holds(self, tp: TopicPartition) -> bool:
        """Records of this partition wait."""
        task = self._tasks.get(tp.partition)
        return task is not None and bool(task[tp.topic].records)


def _size(m: Message) -> int:
    value, key, headers = m.value(), m.key(), m.headers()
    size = RECORD_BYTES + (len(value) if value else 0) + (len(key) if key else 0)
    return size + sum(len(name) + len(data or b"") for name, data in headers) if headers else size
