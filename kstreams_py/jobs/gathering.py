"""Gathering: the branches of one segment, paired again by the segment that they have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kstreams_py.errors import GraphError
from kstreams_py.jobs.identity import Path, Pattern, SegmentId


class Held(NamedTuple):
    """A segment of one branch that waits for the segments of the others."""

    pattern: Pattern
    path: Path
    value: Any


class Gathered(NamedTuple):
    """The segments of all branches.

    - `common`: the path of the segment that they have in common.
    - `held`: one of each branch, in the order of the branches.
    """

    segment: SegmentId
    common: Path
    held: list[Held]


class Gathering:
    """The segments of one gather that wait for the segments of other branches."""

    def __init__(self, branches: int) -> None:
        self._branches = branches
        self._waiting: dict[SegmentId, dict[Path, dict[int, Held]]] = {}
        """The segments that have come, by input, by the path of the common segment, and by branch."""
        self._count = 0
        """The number of these segments; other threads read it."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, segment: SegmentId) -> bool:
        return segment in self._waiting

    def add(self, segment: SegmentId, branch: int, common: Path, held: Held) -> Gathered | None:
        """Adds a segment of a branch. If it is the last one, returns the segments of all branches: they no longer wait.

        Raises GraphError if the branch has already given one.
        """
        groups = self._waiting.setdefault(segment, {})
        group = groups.setdefault(common, {})
        if branch in group:
            raise GraphError(
                f"input {branch + 1} has two values that come from the same segment: gather before the function that "
                "yields several results"
            )
        group[branch] = held
        self._count += 1
        if len(group) < self._branches:
            return None
        del groups[common]
        self._count -= self._branches
        if not groups:
            del self._waiting[segment]
        return Gathered(segment, common, [group[each] for each in range(self._branches)])

    def patterns(self, segment: SegmentId) -> int:
        """Returns the XOR of the patterns of an input's segments that wait here."""
        value = 0
        for group in self._waiting.get(segment, {}).values():
            for held in group.values():
                value ^= held.pattern
        return value

    def forget(self, segments: Iterable[SegmentId]) -> int:
        """Drops the waiting segments of these inputs; returns how many there were."""
        dropped = (self._waiting.pop(segment, {}) for segment in segments)
        count = sum(len(group) for groups in dropped for group in groups.values())
        self._count -= count
        return count
