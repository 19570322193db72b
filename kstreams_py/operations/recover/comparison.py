"""Compares the outputs of a processor with its inputs by delivery hash.

The delivery hash of a step that reads one record can be decoded: its first 8 bytes name the input's partition, and its
last 8 bytes the offset. The hash of a join's step cannot. Such steps are listed instead: the records of all inputs are
paired one by one, forwards and backwards from the committed positions, and their hashes are looked up in sorted order.

One byte for each step replaces a set of hashes: at its peak an audit takes 3 bytes for each offset, and some 70 for
each step of a join. Memory depends on the number of inputs, not on their sizes, nor on the number of findings. Steps
are never judged in parts, because a copy may be anywhere after its original.

Limits: if a step may write several records to one topic, a copy that directly follows the outputs of its step, or is in
another partition, counts as one of them. If a reset changed the pairs of a join, or its first inputs are deleted or
compacted, outputs of other pairs are not recognized, and count as not judged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from kstreams_py.graph.anomalies import TOLERATED, Kind
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.processing.dead_letters.letters import LetterPlace
from kstreams_py.records import Positions, TopicPartition

_INPUT: Final = 1
_ANSWERED: Final = 2
_REPEATED: Final = 4
_FAILED: Final = 8
_REPLAYED: Final = 16
"""Flags of a step: its input exists; it has an output or dead letter; it has an output in the topic that is being read;
it has a dead letter; it has a dead letter that was replayed."""


@dataclass(frozen=True, slots=True)
class FoundAnomaly:
    """An anomaly: its kind, the record that shows it, and a sentence about that record."""

    kind: Kind
    place: LetterPlace
    sentence: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.place} {self.sentence}"


class JudgedSteps(ABC):
    """The judged steps of one task, numbered from 0 in the order of the task."""

    def __init__(self, count: int, flags: int = 0) -> None:
        self.flags = bytearray([flags]) * count
        self.highest = -1
        """The highest step with an output in the output partition that is being read."""
        self.last = -1
        """The step of the last output that was read."""

    @abstractmethod
    def find(self, digest: bytes) -> int | None:
        """Returns the number of the step with this delivery hash; -1 if it is not judged, None if there is none."""

    @abstractmethod
    def place(self, step: int) -> LetterPlace:
        """Returns the place of the record that a step reads; for a join, the record of the first input."""

    @abstractmethod
    def before(self, positions: Positions) -> int:
        """Returns how many steps are before the committed positions."""


class SingleSteps(JudgedSteps):
    """The steps of one partition that read one record each: by offset from `start` on, and before `end`.

    - `prefix`: the first 8 bytes of their delivery hashes.
    - `is_compacted`: compaction may delete a record after its step; steps without their record are not judged.
    """

    def __init__(
        self, prefix: bytes, partition: TopicPartition, start: int, end: int, *, is_compacted: bool = False
    ) -> None:
        super().__init__(max(0, end - start))
        self.prefix, self.partition, self._start, self._is_compacted = prefix, partition, start, is_compacted

    def take_input(self, offset: int) -> None:
        """Takes a committed record of the input; ignores one outside the range."""
        if 0 <= (step := offset - self._start) < len(self.flags):
            self.flags[step] |= _INPUT

    def find(self, digest: bytes) -> int | None:
        if digest[:8] != self.prefix:
            return None
        step = int.from_bytes(digest[8:], "big") - self._start
        if not 0 <= step < len(self.flags) or (self._is_compacted and not self.flags[step] & _INPUT):
            return -1
        return step

    def place(self, step: int) -> LetterPlace:
        return LetterPlace(*self.partition, self._start + step)

    def before(self, positions: Positions) -> int:
        return max(0, positions.get(self.partition, 0) - self._start)


class JoinedSteps(JudgedSteps):
    """The steps of a join on one partition number.

    - `partitions`: the partitions of the inputs, in the order of the inputs.
    - `offsets`: the offsets of each partition's committed records, ascending.
    - `positions`: the committed offsets of all partitions at one moment. The records before them were joined one by
      one, and the later ones will be.
    - `limits`: steps that read a record at these offsets or later are not judged.
    - `digest`: returns the delivery hash of a step that reads records at given offsets.
    """

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        offsets: Sequence[array[int]],
        positions: Positions,
        limits: Positions,
        digest: Callable[[Sequence[int]], bytes],
    ) -> None:
        at = [bisect_left(column, positions[tp]) for tp, column in zip(partitions, offsets, strict=True)]
        behind, ahead = min(at), min(len(column) - before for column, before in zip(offsets, at, strict=True))
        rows = [column[before - behind : before + ahead] for column, before in zip(offsets, at, strict=True)]
        super().__init__(min(bisect_left(row, limits[tp]) for tp, row in zip(partitions, rows, strict=True)), _INPUT)
        hashes, buckets = array("Q"), [array("Q") for _ in range(256)]
        for step, row in enumerate(zip(*rows, strict=True)):
            hashes.append(int.from_bytes(digest(row)[:8], "big"))
            buckets[hashes[-1] >> 56].append(step)
        self._partition, self._offsets = partitions[0], rows[0]
        # sort in parts: numbers take five times as much memory in lists as in arrays
        ordered = (sorted(bucket, key=hashes.__getitem__) for bucket in buckets)
        self._steps = array("Q", chain.from_iterable(ordered))
        self._hashes = array("Q", (hashes[step] for step in self._steps))
        self.is_complete = all(before == behind for before in at)
        """Whether the pairs begin with the first record of each input."""

    def find(self, digest: bytes) -> int | None:
        wanted = int.from_bytes(digest[:8], "big")
        at = bisect_left(self._hashes, wanted)
        if at == len(self._hashes) or self._hashes[at] != wanted:
            return None
        step = self._steps[at]
        return step if step < len(self.flags) else -1

    def place(self, step: int) -> LetterPlace:
        return LetterPlace(*self._partition, self._offsets[step])

    def before(self, positions: Positions) -> int:
        return bisect_left(self._offsets, positions.get(self._partition, 0))


class Audit:
    """The audit of one processor: takes its dead letters, then its output topics, then compares with the positions.

    - `recognizes_all`: an output that belongs to no step of these tasks is not an output of this processor.
    - `outputs`, `letters`: how many outputs and dead letters belong to the processor.
    - `unjudged`: how many of these have inputs outside its steps.
    - `counts`: the number of anomalies by kind.
    """

    def __init__(
        self, tasks: Sequence[JudgedSteps], guarantee: Guarantee, *, many: bool, recognizes_all: bool = True
    ) -> None:
        """Creates an audit without records.

        - `many`: a step may write several records to one topic.
        """
        self._tasks = tasks
        self._by_prefix = {each.prefix: each for each in tasks if isinstance(each, SingleSteps)}
        self._joined = [each for each in tasks if isinstance(each, JoinedSteps)]
        self._guarantee = guarantee
        self._may_repeat = Kind.DUPLICATE in TOLERATED[guarantee]
        self._many = many
        self.recognizes_all = recognizes_all
        self.outputs = self.letters = self.unjudged = 0
        self.counts: Counter[Kind] = Counter()

    def take_letter(self, place: LetterPlace, digest: bytes, *, replayed: bool) -> Iterator[FoundAnomaly]:
        """Takes a dead letter of this processor, and yields its anomalies."""
        self.letters += 1
        known = self._find(digest)
        if known is None or known[1] < 0:
            self.unjudged += 1
            return
        task, step = known
        if not task.flags[step] & _INPUT:
            yield self.count(Kind.FOREIGN, place, f"names {task.place(step)}, where no committed record is")
        elif task.flags[step] & _FAILED:
            yield self.count(Kind.DUPLICATE, place, f"is a second dead letter of {task.place(step)}")
        task.flags[step] |= _ANSWERED | _FAILED | (_REPLAYED if replayed else 0)

    def begin_topic(self) -> None:
        """Begins an output topic: a step may write to each output topic."""
        for task in self._tasks:
            task.flags = task.flags.translate(_WITHOUT_REPEATED)

    def begin_partition(self) -> None:
        """Begins a partition of the topic: order is judged within it."""
        for task in self._tasks:
            task.highest = task.last = -1
        if self._many:  # keys may spread the outputs of one step over partitions
            self.begin_topic()

    def take_output(self, place: LetterPlace, digest: bytes) -> Sequence[FoundAnomaly] | None:
        """Takes an output, in partition order; returns its anomalies, or None if it is of no step of these tasks."""
        task: JudgedSteps | None = self._by_prefix.get(digest[:8])
        step = None if task is None else task.find(digest)
        if task is None or step is None:
            if not self._joined or (joined := self._find(digest)) is None:
                return None
            task, step = joined
        self.outputs += 1
        if step < 0:
            self.unjudged += 1
            return ()
        flags = task.flags[step]
        found = () if flags == _INPUT and step > task.highest else tuple(self._judge(place, task, step, flags))
        task.flags[step] = flags | _ANSWERED | _REPEATED
        task.last = step
        task.highest = max(task.highest, step)
        return found

    def _judge(self, place: LetterPlace, task: JudgedSteps, step: int, flags: int) -> Iterator[FoundAnomaly]:
        cause = task.place(step)
        is_replayed = bool(flags & _REPLAYED)
        if not flags & _INPUT:
            yield self.count(Kind.FOREIGN, place, f"names {cause}, where no committed record is")
        elif flags & _REPEATED and not (self._many and step == task.last):
            yield self.count(Kind.DUPLICATE, place, f"is one more output of {cause}")
        elif flags & _FAILED and not is_replayed and self._guarantee.is_transactional:
            yield self.count(Kind.DUPLICATE, place, f"is an output of {cause}, which has a dead letter as well")
        elif step < task.highest and not is_replayed and not self._may_repeat:
            yield self.count(Kind.ORDER_BROKEN, place, f"is an output of {cause}, after one of a later input")

    def compare(self, before: Positions, after: Positions, *, every: bool) -> Iterator[FoundAnomaly]:
        """Yields inputs that were answered early and, with `every`, inputs that were not answered.

        An output or a dead letter answers an input.

        - `before`: the positions committed before the outputs were read. Inputs below them must be answered.
        - `after`: the positions committed after the outputs were read. Inputs from there on must not be answered yet,
          except with at_least_once. If a partition has no position, none of its inputs is delivered.
        """
        for task in self._tasks:
            if every:
                for step in _steps(task.flags, _NOT_ANSWERED, 0, task.before(before)):
                    sentence = "is before the committed position, and has no output and no dead letter"
                    yield self.count(Kind.LOST, task.place(step), sentence)
            if not self._may_repeat:
                for step in _steps(task.flags, _IS_ANSWERED, task.before(after), len(task.flags)):
                    sentence = "has an output or dead letter, and is not before the committed position"
                    yield self.count(Kind.OFFSETS_INCONSISTENT, task.place(step), sentence)

    def count_inputs(self, before: Positions) -> tuple[int, int]:
        """Returns the number of inputs below the positions, and how many of them have no output and no dead letter."""
        there = without = 0
        for task in self._tasks:
            flags = task.flags[: task.before(before)]
            there += flags.translate(_IS_INPUT).count(1)
            without += flags.translate(_NOT_ANSWERED).count(1)
        return there, without

    def _find(self, digest: bytes) -> tuple[JudgedSteps, int] | None:
        """Returns a step's task, and its number as `JudgedSteps.find` returns it; None if no task has the step."""
        single = self._by_prefix.get(digest[:8])
        for task in (single,) if single is not None else self._joined:
            step = task.find(digest)
            if step is not None:
                return task, step
        return None

    def count(self, kind: Kind, place: LetterPlace, sentence: str) -> FoundAnomaly:
        """Counts an anomaly, and returns it."""
        self.counts[kind] += 1
        return FoundAnomaly(kind, place, sentence)


def _table(holds: Callable[[int], object]) -> bytes:
    return bytes(bool(holds(flags)) for flags in range(256))


_WITHOUT_REPEATED: Final = bytes(flags & ~_REPEATED for flags in range(256))
_IS_INPUT: Final = _table(lambda flags: flags & _INPUT)
_NOT_ANSWERED: Final = _table(lambda flags: flags & _INPUT and not flags & _ANSWERED)
_IS_ANSWERED: Final = _table(lambda flags: flags & _ANSWERED)


def _steps(flags: bytearray, table: bytes, start: int, end: int) -> Iterator[int]:
    """Yields the steps from `start` on and before `end` whose flags `table` translates to 1."""
    hits = flags[:end].translate(table)
    at = hits.find(1, start)
    while at >= 0:
        yield at
        at = hits.find(1, at + 1)
