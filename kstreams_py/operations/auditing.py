"""Compares the outputs of a processor with its inputs by delivery hash, for steps that read one record.

The delivery hash of such a step names the input's partition in its first 8 bytes and the offset in the last 8, so that
it can be read backwards. A byte for each offset takes the place of a set of hashes: memory depends on the range of
offsets, not on the number of findings.

What remains: where a step may write several records to one topic, a copy that directly follows the outputs of its step,
or is in another partition, counts as one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kstreams_py.records import TopicPartition

_INPUT: Final = 1
_ANSWERED: Final = 2
_REPEATED: Final = 4
"""Flags of an offset: an input is there, it has an output or dead letter, and it has one in the topic being read."""


class Finding(StrEnum):
    """What can be wrong with an output or an input."""

    DUPLICATED = "duplicated"
    """A second output of a step that could write only one there."""
    FOREIGN = "foreign"
    """An output that no step of the processor can have written, nor one of the graph's others."""
    EARLY = "early"
    """An output of an input at or above the committed position."""
    DISORDERED = "out of order"
    """An output after the output of a later input of the same partition."""
    UNANSWERED = "without output"
    """An input below the committed position without output or dead letter."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: the place of the output, and of its input; one of them is None if it is not known."""

    finding: Finding
    output: tuple[TopicPartition, int] | None
    cause: tuple[TopicPartition, int] | None


@dataclass(slots=True)
class InputRange:
    """The offsets of one input partition that are judged: from `start` on, and before `end`."""

    partition: TopicPartition
    start: int
    end: int
    flags: bytearray = field(init=False)
    highest: int = -1
    """The highest offset with an output in the output partition that is being read."""
    last: int = -1
    """The offset of the output read last there."""

    def __post_init__(self) -> None:
        self.flags = bytearray(max(0, self.end - self.start))


class Audit:
    """The audit of one processor: takes its inputs, then its output topics, then its dead letters."""

    def __init__(
        self, ranges: Mapping[bytes, InputRange], others: Collection[bytes] = frozenset(), *, many: bool
    ) -> None:
        """Creates an audit without records.

        - `ranges`: by the first 8 bytes of the delivery hashes of a task's steps (`hash_prefix`).
        - `others`: such bytes of the graph's other processors that write to the same topics: their outputs are ignored.
        - `many`: a step may write several records to one topic.
        """
        self._ranges = ranges
        self._others = frozenset(others)
        self._many = many
        self._by_partition = {each.partition: each for each in ranges.values()}
        self.counts: Counter[Finding] = Counter()
        """The number of findings of each kind."""
        self.unjudged = 0
        """Outputs of inputs outside the ranges."""

    def take_input(self, partition: TopicPartition, offset: int) -> None:
        """Takes a committed record of an input; those outside its range are ignored."""
        found = self._by_partition[partition]
        if found.start <= offset < found.end:
            found.flags[offset - found.start] |= _INPUT

    def begin_topic(self) -> None:
        """Begins an output topic: a step may write to each of its topics."""
        for each in self._ranges.values():
            each.flags = each.flags.translate(_WITHOUT_REPEATED)

    def begin_partition(self) -> None:
        """Begins a partition of the topic: order is judged within it."""
        for each in self._ranges.values():
            each.highest = each.last = -1
        if self._many:  # keys may spread the outputs of one step over partitions
            self.begin_topic()

    def take_output(self, place: tuple[TopicPartition, int], digest: bytes | None) -> Iterator[Found]:
        """Takes an output in the order of its partition, and yields what is wrong with it.

        `digest` is its delivery hash; None if it has none.
        """
        found = None if digest is None or len(digest) != 16 else self._ranges.get(digest[:8])
        if digest is None or found is None:
            if digest is None or len(digest) != 16 or digest[:8] not in self._others:
                yield self._count(Finding.FOREIGN, place, None)
            return
        offset = int.from_bytes(digest[8:], "big")
        cause = (found.partition, offset)
        at = offset - found.start
        if not 0 <= at < len(found.flags):
            self.unjudged += 1
            return
        flags = found.flags[at]
        if not flags & _INPUT:  # an offset of a marker or of an aborted record
            yield self._count(Finding.FOREIGN, place, cause)
            return
        if flags & _REPEATED and not (self._many and offset == found.last):
            yield self._count(Finding.DUPLICATED, place, cause)
        elif offset < found.highest:
            yield self._count(Finding.DISORDERED, place, cause)
        found.flags[at] = flags | _ANSWERED | _REPEATED
        found.last = offset
        found.highest = max(found.highest, offset)

    def take_dead_letter(self, digest: bytes) -> None:
        """Takes a dead letter: its input is answered."""
        found = self._ranges.get(digest[:8])
        if found is not None and len(digest) == 16:
            at = int.from_bytes(digest[8:], "big") - found.start
            if 0 <= at < len(found.flags):
                found.flags[at] |= _ANSWERED

    def compare(self, before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]) -> Iterator[Found]:
        """Yields the inputs without output, and those whose output is early.

        - `before`: the positions that were committed before the outputs were read: inputs below them are answered.
        - `after`: those after the outputs were read: inputs from there on have no output yet. A partition without a
          position has none of its inputs delivered.
        """
        for each in self._ranges.values():
            low, high = before.get(each.partition, 0), after.get(each.partition, 0)
            for at in _places(each.flags, _NOT_ANSWERED, max(0, low - each.start)):
                yield self._count(Finding.UNANSWERED, None, (each.partition, each.start + at))
            base = max(0, high - each.start)
            for at in _places(each.flags[base:], _IS_ANSWERED, len(each.flags)):
                yield self._count(Finding.EARLY, None, (each.partition, each.start + base + at))

    def _count(
        self, finding: Finding, output: tuple[TopicPartition, int] | None, cause: tuple[TopicPartition, int] | None
    ) -> Found:
        self.counts[finding] += 1
        return Found(finding, output, cause)


_WITHOUT_REPEATED: Final = bytes(flags & ~_REPEATED for flags in range(256))
_NOT_ANSWERED: Final = bytes(flags & _INPUT and not flags & _ANSWERED for flags in range(256))
_IS_ANSWERED: Final = bytes(bool(flags & _ANSWERED) for flags in range(256))


def _places(flags: bytearray, table: bytes, end: int) -> Iterator[int]:
    """Yields the places before `end` whose flags the table translates to 1."""
    hits = flags[:end].translate(table)
    at = hits.find(1)
    while at >= 0:
        yield at
        at = hits.find(1, at + 1)
