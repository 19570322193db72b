"""The tasks of one processor that one worker holds: routes records to them, and takes their ready steps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.hashes import hash_prefix, joined_hash, pack_offset
from kstreams_py.processing.tasks.choices import Choices, InputStart
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.processing.tasks.ready import Ready, ReadyByPartition
from kstreams_py.processing.tasks.task import Task
from kstreams_py.records import Inputs, Message, Positions, TopicPartition
from kstreams_py.steps.plan import partition_of, partitions_of

BUFFER_LIMIT: Final = 10_000
"""How many records of one partition may wait before the partition is paused."""

BUFFER_BYTES: Final = 48 << 20
"""Bytes that may wait in all partitions of one processor; a partition that alone has half of them is paused.

A fetch that is under way (fetch.message.max.bytes) still arrives.

While the worker is busy, the client of a join holds half as much in its own queue (queued.max.messages.kbytes), and one
more fetch is in flight. With a smaller limit, a join that catches up pauses often (measured with 12 partitions and
records of 1 kB: a quarter more CPU at 32 MiB).
"""

TAKEN_AT_LEAST: Final = 10
"""Records that may come in at a time, however full the buffers are: the awaited ones may be among them."""


class Tasks:
    """Routes records: they go in with `add`, and come out as a `Taken` with `take`."""

    def __init__(
        self,
        processor: Processor,
        ledger: Ledger,
        *,
        name: str,
        topic_ids: Mapping[str, str],
        refills: bool = False,
    ) -> None:
        """Makes the tasks of one processor.

        - `name`: the processor's full name, `graph.processor`.
        - `topic_ids`: the broker's id of each input.
        - `refills`: whether `take` adds steps to the rest of an intake, because nothing must be prepared for them.
        """
        self.by_partition: dict[int, Task] = {}
        self.rest: Taken | None = None
        """The steps of an intake that were not run with the others: `take` returns them next.

        Their offsets may already be committed: the steps must be run or given back before the worker stops.
        """
        self.ledger = ledger
        self.name = name
        self._topic_ids = topic_ids
        self._inputs = [topic.name for topic in processor.inputs]
        self._joins = processor.joins
        self._alts = processor.kind.is_alts
        self._follows = False
        """Whether a task follows saved choices."""
        self.can_refill = refills
        self._journal = processor.journal
        self._by_partition = ReadyByPartition() if processor.overlaps or processor.journal else None
        self._ready = Ready() if self._by_partition is None else self._by_partition
        self._paused = frozenset[TopicPartition]()
        self.held: dict[int, list[Any]] = {}
        """For each partition that waits to run a step again, the steps that were ready behind that step."""
        self._repeated = deque[Sequence[Any]]()
        """Steps whose wait is over, to be run again."""

    def assign(self, committed: Positions, choices: Mapping[int, Choices]) -> list[str]:
        """Starts at these offsets; alts tasks first follow the rest of their choices.

        Returns the reasons why choices are not followed, each with its partition, to be logged.
        """
        self.clear()
        self.ledger.assign(committed)
        cursors = self.ledger.cursors
        for number in sorted({tp.partition for tp in committed}):
            held = [topic for topic in self._inputs if (topic, number) in cursors]
            self.by_partition[number] = Task(
                number,
                self._inputs,
                {topic: cursors[TopicPartition(topic, number)] for topic in held},
                {topic: hash_prefix(self.name, topic, self._topic_ids[topic], number) for topic in held},
                joins=self._joins,
            )
        dropped, ids = [], {topic: self._topic_ids[topic] for topic in self._inputs if topic in self._topic_ids}
        for number, chosen in choices.items():
            task = self.by_partition[number]
            at = {topic: cursor.committed for topic, cursor in task.cursors.items()}
            left, reasons = chosen.still_valid(at, ids)
            dropped += [f"partition {number}: {reason}: choices saved for it are dropped" for reason in reasons]
            task.runs_left = deque(left.runs)
            self._follows |= bool(left.runs)
        return dropped

    def clear(self) -> None:
        """Forgets cursors and records: the partitions are revoked."""
        self.ledger.clear()
        self.by_partition = {}
        self.rest = None
        self._ready.clear()
        self._paused = frozenset()
        self.held = {}
        self._repeated.clear()
        self._follows = False

    def add(self, messages: Sequence[Message]) -> None:
        """Takes in records, which are in order within each partition."""
        if not self._joins and not self._follows and not self.held:
            self._ready.add(messages)
            return
        tasks, ready = self.by_partition, []
        for m in messages:
            task = tasks[m.partition()]
            if task.defers or m.partition() in self.held:
                task.queues[m.topic()].append(m)
            else:
                ready.append(m)
        self._ready.add(ready)
        self._take_ready()

    def _take_ready(self) -> None:
        tasks = self.by_partition.values()
        for task in tasks:
            if task.partition not in self.held:
                self._ready.add(task.take_ready())
        self._follows = any(task.runs_left for task in tasks)

    @property
    def owes(self) -> bool:
        """Whether the rest of an intake must be run although its offsets are committed."""
        return self.rest is not None and self.rest.saved

    @property
    def repeats(self) -> bool:
        """Whether steps whose wait is over must be run again."""
        return bool(self._repeated)

    @property
    def ready(self) -> bool:
        """Whether a step can be taken."""
        return self.rest is not None or self.repeats or bool(self._ready)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions with so many waiting records that no more should come in.

        Leaves out the partitions that other inputs are waiting for, because none of their records is here. The more
        records wait in all, the fewer may wait in each partition, so that one idle input leaves enough space for the
        tasks of other partitions. A task that waits to run a step again takes in no records.
        """
        if not self._joins and not self._follows and not self.held and self._by_partition is None:
            return frozenset()
        limit = BUFFER_BYTES - self._bytes
        full = {
            TopicPartition(topic, task.partition)
            for task in self.by_partition.values()
            for topic, queue in task.queues.items()
            if (queue.records and (len(queue.records) >= BUFFER_LIMIT or queue.bytes >= limit))
            or (task.partition in self.held and topic in task.cursors)
        }
        if self._by_partition is not None:
            full |= self._backed_up(self._by_partition, limit)
        self._paused = frozenset(full)
        return self._paused

    def _backed_up(self, ready: ReadyByPartition, limit: int) -> set[TopicPartition]:
        """Returns the partitions with too many ready steps; a paused one resumes below half of the limit.

        A client that pauses a partition drops its fetched records, so this must be rare.
        """
        return {
            tp
            for tp in self.ledger.cursors
            if (share := 2 if tp in self._paused else 1)
            and (ready.count(tp.partition) * share >= BUFFER_LIMIT or ready.size(tp.partition) * share >= max(1, limit))
        }

    def limit_fetch(self, wanted: int) -> int:
        """Returns how many of the wanted records to take in now, given the number and size of the records that wait.

        The client may have many records ready: taken in at once, all of them would have to wait, too.
        """
        if (ready := self._by_partition) is not None:
            wanted = max(1, wanted - min(map(ready.count, self.by_partition), default=0))
        waiting = sum(len(queue.records) for task in self.by_partition.values() for queue in task.queues.values())
        waiting += 0 if self._by_partition is None else len(self._by_partition)
        if not waiting:
            return wanted
        return min(wanted, max(TAKEN_AT_LEAST, (BUFFER_BYTES - self._bytes) * waiting // self._bytes))

    @property
    def _bytes(self) -> int:
        queued = sum(queue.bytes for task in self.by_partition.values() for queue in task.queues.values())
        return queued if self._by_partition is None else queued + self._by_partition.total

    def advance(self, ends: Positions) -> None:
        """Moves past offsets without records (transaction markers) if everything before them is processed."""
        if self.ready:
            return
        for tp, end in ends.items():
            cursor = self.ledger.cursors.get(tp)
            if cursor is None or end <= cursor.next or tp.partition in self.held:
                continue
            if not self.by_partition[tp.partition].holds(tp.topic):
                cursor.next = end
        if self._follows:
            for task in self.by_partition.values():
                task.skip(ends)
            self._take_ready()

    def delivery_hash(self, inputs: Inputs) -> bytes:
        """Returns the delivery hash of the step that reads these inputs; their partitions may be revoked by now."""
        if len(inputs) > 1:
            read = ((m.topic(), self._topic_ids[m.topic()], m.partition(), m.offset()) for m in inputs)
            return joined_hash(self.name, read)
        m = inputs[0]
        topic, number = m.topic(), m.partition()
        task = self.by_partition.get(number)
        held = task.prefixes.get(topic) if task else None
        return (held or hash_prefix(self.name, topic, self._topic_ids[topic], number)) + pack_offset(m.offset())

    def take(self, limit: int, *, fills: bool = True) -> Taken | None:
        """Takes the rest of the last intake, or steps to be run again, or up to `limit` ready steps; None without any.

        With `fills`, a rest may grow to twice the limit, so that a partition that fills the rest does not block others.
        """
        if (rest := self.rest) is not None:
            self.rest = None
            return self._refill(rest, limit, fills=fills) if self.can_refill else rest
        if self._repeated:
            again = self._repeated.popleft()
            return Taken(again, self._choices(again) if self._alts else {}, repeated=True)
        if not self._ready:
            return None
        steps = self._take_unit(limit) if self._journal else self._ready.take(limit)
        return Taken(steps, self._choices(steps) if self._alts else {})

    def _take_unit(self, limit: int) -> list[Any]:
        """Takes the steps that are delivered together: a batch of each task, within the limit."""
        ready, journal = self._by_partition, self._journal
        assert ready is not None
        assert journal is not None
        numbers = ready.partitions[:limit]
        share = min(journal.batch, max(1, limit // len(numbers)))
        return [step for number in numbers for step in ready.take_of(number, share)]

    def _refill(self, rest: Taken, limit: int, *, fills: bool) -> Taken:
        """Returns the rest of an intake, with the steps of a wait that is over and with other ready steps."""
        again = self._repeated.popleft() if self._repeated else ()
        steps: list[Any] = [*rest.steps, *again]
        steps += self._ready.take(max(0, limit - len(steps)))
        if fills and (ready := self._by_partition) is not None and ready:
            counts = Counter(map(partition_of, steps))
            share = limit // len(counts.keys() | set(ready.partitions))
            for number in ready.partitions:
                steps += ready.take_of(number, share - counts[number])
        return Taken(steps, repeated=bool(again))

    # Partitions that wait before a step is run again.

    def hold(self, partitions: Collection[int]) -> None:
        """Makes these partitions wait; their ready steps wait, too."""
        for number in partitions:
            self.held.setdefault(number, []).extend(self._ready.pull((number,)))

    def hold_back(self, failed: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        """Makes the partitions of the failed steps wait; returns the steps of `left` that need not wait.

        `left` has the steps of the intake, beginning with the first that failed.
        """
        self.held |= {number: [] for number in partitions_of(failed)}
        others: list[Any] = []
        for step in left[len(failed) :]:
            behind = self.held.get(partition_of(step))
            (others if behind is None else behind).append(step)
        self.hold(partitions_of(failed))
        return others

    def repeat(self, steps: Sequence[Any]) -> None:
        """Lets steps that failed be taken again, by themselves; the steps behind them still wait."""
        self._repeated.append(steps)

    def resume(self, partitions: Collection[int]) -> None:
        """Ends the wait of these partitions: the steps that were ready come first, then newer records."""
        behind = [step for number in partitions for step in self.held.pop(number, ())]
        self._ready.put_first(behind)
        self._take_ready()

    def _choices(self, steps: Sequence[Message]) -> dict[int, Choices]:
        """Returns, for each task in `steps`, all known choices from here on, made now or at an earlier attempt."""
        runs: dict[int, list[tuple[str, int]]] = {m.partition(): [] for m in steps}
        behind = (m for number in runs for m in self.held.get(number, ()))
        for m in (*steps, *behind, *self._ready):
            if (chosen := runs.get(m.partition())) is not None:
                if chosen and chosen[-1][0] == m.topic():
                    chosen.pop()
                chosen.append((m.topic(), m.offset()))
        return {
            number: self._as_chosen(self.by_partition[number], (*chosen, *self.by_partition[number].runs_left))
            for number, chosen in runs.items()
        }

    def _as_chosen(self, task: Task, runs: tuple[tuple[str, int], ...]) -> Choices:
        """Returns the runs with the current ids and next offsets of their inputs."""
        topics = dict.fromkeys(topic for topic, _ in runs)
        return Choices(
            runs, tuple(InputStart(topic, self._topic_ids[topic], task.cursors[topic].next) for topic in topics)
        )
