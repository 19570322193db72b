"""Steps that are ready to be run: in order of arrival, or by partition if calls overlap or a journal is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from kstreams_py.processing.tasks.task import step_bytes
from kstreams_py.steps.plan import partition_of


class Ready:
    """Steps in the order of their arrival."""

    def __init__(self) -> None:
        self._steps: list[Any] = []

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._steps)

    def add(self, steps: Sequence[Any]) -> None:
        """Adds steps behind the others."""
        self._steps = [*self._steps, *steps] if self._steps else list(steps)

    def put_first(self, steps: Sequence[Any]) -> None:
        """Adds steps before the others."""
        self._steps = [*steps, *self._steps]

    def take(self, limit: int) -> list[Any]:
        """Takes the first steps, at most `limit`."""
        taken, self._steps = self._steps[:limit], self._steps[limit:]
        return taken

    def pull(self, partitions: Collection[int]) -> list[Any]:
        """Takes all steps of these partitions."""
        taken = [step for step in self._steps if partition_of(step) in partitions]
        if taken:
            self._steps = [step for step in self._steps if partition_of(step) not in partitions]
        return taken

    def clear(self) -> None:
        """Forgets all steps."""
        self._steps = []


class ReadyByPartition(Ready):
    """Steps by partition: within a partition in order of arrival, and the partitions in turn.

    A fetch has many records of one partition in a row. Calls for one partition at a time would not overlap.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[int, deque[Any]] = {}
        self._bytes: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Any]:
        return (step for queue in self._queues.values() for step in queue)

    def add(self, steps: Sequence[Any]) -> None:
        for step in steps:
            self._grow(step).append(step)

    def put_first(self, steps: Sequence[Any]) -> None:
        for step in reversed(steps):
            self._grow(step).appendleft(step)

    def take(self, limit: int) -> list[Any]:
        taken: list[Any] = []
        while limit > 0 and self._queues:
            share = max(1, limit // len(self._queues))
            for number in list(self._queues)[:limit]:
                some = self._shrink(number, share)
                taken += some
                limit -= len(some)
        return taken

    def pull(self, partitions: Collection[int]) -> list[Any]:
        return [step for number in partitions for step in self._shrink(number, self.count(number))]

    def clear(self) -> None:
        self._queues.clear()
        self._bytes.clear()

    @property
    def partitions(self) -> list[int]:
        """The partitions that have steps."""
        return list(self._queues)

    def take_of(self, partition: int, limit: int) -> list[Any]:
        """Takes the first steps of a partition, at most `limit`."""
        return self._shrink(partition, limit) if limit > 0 else []

    @property
    def total(self) -> int:
        """How many bytes of memory all steps take."""
        return sum(self._bytes.values())

    def count(self, partition: int) -> int:
        """Returns how many steps a partition has."""
        return len(self._queues.get(partition, ()))

    def size(self, partition: int) -> int:
        """Returns how many bytes of memory the steps of a partition take."""
        return self._bytes.get(partition, 0)

    def _grow(self, step: Any) -> deque[Any]:
        number = partition_of(step)
        self._bytes[number] = self._bytes.get(number, 0) + step_bytes(step)
        return self._queues.setdefault(number, deque())

    def _shrink(self, number: int, count: int) -> list[Any]:
        """Takes the first steps of a partition, which then becomes the last in turn."""
        queue = self._queues.pop(number, None)
        if queue is None:
            return []
        taken = [queue.popleft() for _ in range(min(count, len(queue)))]
        size = self._bytes.pop(number) - sum(map(step_bytes, taken))
        if queue:
            self._queues[number], self._bytes[number] = queue, size
        return taken
