"""Segments: values on their way through the channels of a job, in batches with one list for each field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kstreams_py.jobs.identity import Given, Path, Pattern, SegmentId


class Segments:
    """Segments of one channel for one of its readers, as lists of equal length.

    A list for each field costs a fifth of what an object for each segment would cost.

    - `ids`: the ids of their inputs.
    - `patterns`: the patterns of the copies for this reader.
    - `given`: the identities of their inputs, which are the same each time the inputs are read.
    - `paths`: how the segments were made from their inputs.
    """

    __slots__ = ("given", "ids", "paths", "patterns", "values")

    def __init__(
        self,
        ids: list[SegmentId] | None = None,
        patterns: list[Pattern] | None = None,
        given: list[Given] | None = None,
        paths: list[Path] | None = None,
        values: list[Any] | None = None,
    ) -> None:
        """Keeps these lists and makes no copies: if `add` or `take` is called, no other object may use them."""
        self.ids = [] if ids is None else ids
        self.patterns = [] if patterns is None else patterns
        self.given = [] if given is None else given
        self.paths = [] if paths is None else paths
        self.values = [] if values is None else values

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[SegmentId, Pattern, Given, Path, Any]]:
        return zip(self.ids, self.patterns, self.given, self.paths, self.values, strict=True)

    def add(self, other: Segments) -> None:
        """Appends other segments."""
        self.ids += other.ids
        self.patterns += other.patterns
        self.given += other.given
        self.paths += other.paths
        self.values += other.values

    def take(self, count: int) -> Segments:
        """Removes the first `count` segments, and returns them."""
        if count >= len(self.ids):
            taken = Segments()
            for name in Segments.__slots__:
                setattr(taken, name, getattr(self, name))
                setattr(self, name, [])
            return taken
        taken = Segments(*(field[:count] for field in self._fields()))
        for field in self._fields():
            del field[:count]
        return taken

    def choose(self, indexes: Iterable[int]) -> Segments:
        """Returns the segments at these indexes."""
        if isinstance(indexes, range):  # a slice takes a tenth of the time
            return Segments(*(field[indexes.start : indexes.stop : indexes.step] for field in self._fields()))
        at = [*indexes]
        # inputs have no patterns yet
        return Segments(*([field[i] for i in at] if field else [] for field in self._fields()))

    def without(self, dropped: Collection[SegmentId]) -> Segments:
        """Returns the segments of all inputs except these."""
        return self.choose(i for i, segment in enumerate(self.ids) if segment not in dropped)

    def _fields(self) -> tuple[list[Any], ...]:
        return self.ids, self.patterns, self.given, self.paths, self.values
