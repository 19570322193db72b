"""The acker: finds out when everything that was made from an input is done, with one number for each input.

Each copy of a segment has a random pattern. A task that is done with a copy acknowledges it with the XOR of the copy's
pattern and the patterns of the copies made from it. So each pattern occurs twice, once when it is made and once when
it is done, and the XOR of all acknowledgements of an input is zero when no copy is under way. (Apache Storm,
"Guaranteeing message processing"; a false zero has a probability of 2**-64.)

Acknowledgements may come in any order, and before the opening. Two rules make that safe:

- An entry is complete only when it is opened and zero: acknowledgements alone may cancel each other early.
- The opening sets the patterns of the first copies, once: a second opening would cancel the first, and the input would
  be complete while its copies are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kstreams_py.jobs.identity import SegmentId


class Acker:
    """The entries of inputs that are under way. An entry that is neither completed nor forgotten is dropped eventually.

    Entries have no timestamps, which would cost more than the rest. They are kept in a young and an old generation
    instead: `drop` drops the old one, and the young one becomes old.
    """

    def __init__(self) -> None:
        self._young: dict[SegmentId, int] = {}
        """For each open input, the XOR of the patterns that were seen once; never 0."""
        self._old: dict[SegmentId, int] = {}
        self._early: dict[SegmentId, int] = {}
        """The XOR of the acknowledgements that came for inputs that are not open."""
        self._early_old: dict[SegmentId, int] = {}
        self.dropped = 0
        """How many entries were dropped."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old) + len(self._early) + len(self._early_old)

    def open(self, inputs: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        """Opens entries; returns the inputs that are complete. An input that is already open stays as it is.

        - `patterns`: for each input, the XOR of the patterns of its first copies; 0 if it has none.
        """
        young, old, complete = self._young, self._old, list[SegmentId]()
        for segment, pattern in zip(inputs, patterns, strict=True):
            if segment in young or segment in old:
                continue
            left = pattern
            if self._early or self._early_old:
                left ^= self._early.pop(segment, 0) ^ self._early_old.pop(segment, 0)
            if left:
                young[segment] = left
            else:
                complete.append(segment)
        return complete

    def ack(self, inputs: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        """Adds acknowledgements, each with the XOR of a pattern that is done and the patterns made from it.

        Returns the inputs that are complete.
        """
        young, old, complete = self._young, self._old, list[SegmentId]()
        for segment, pattern in zip(inputs, patterns, strict=True):
            of = young
            if (value := young.get(segment)) is None and (value := old.get(segment)) is not None:
                of = old
            if value is None:
                self._early[segment] = self._early.get(segment, 0) ^ pattern
            elif value == pattern:
                del of[segment]
                complete.append(segment)
            else:
                of[segment] = value ^ pattern
        return complete

    @property
    def inputs(self) -> list[SegmentId]:
        """The open inputs."""
        return [*self._young, *self._old]

    def left(self, segment: SegmentId) -> int:
        """Returns the XOR of the patterns of an open input that are under way; 0 if the input is not open."""
        return self._young.get(segment) or self._old.get(segment, 0)

    def forget(self, inputs: Iterable[SegmentId]) -> None:
        """Drops the entries of inputs whose end no longer matters."""
        for segment in inputs:
            for entries in (self._young, self._old, self._early, self._early_old):
                entries.pop(segment, None)

    def drop(self, is_kept: Callable[[SegmentId], bool]) -> None:
        """Drops the entries that were made before the last call, except those that are kept.

        A dropped entry lost an acknowledgement, or got one after the end of its input. Call this at intervals that are
        longer than an acknowledgement may take.

        - `is_kept`: returns whether an input is still under way.
        """
        opened = {segment: left for segment, left in self._old.items() if is_kept(segment)}
        early = {segment: left for segment, left in self._early_old.items() if is_kept(segment)}
        self.dropped += len(self._old) - len(opened) + len(self._early_old) - len(early)
        self._old, self._young = self._young | opened, {}
        self._early_old, self._early = self._early | early, {}
