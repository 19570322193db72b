"""The committed part of a store in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from kstreams_py.state.keyed import Changes


class MemoryBase:
    """A dict; its keys are sorted when a range is read, and then only those that are new."""

    __slots__ = ("_new", "_sorted", "_values", "foreign", "noted")

    def __init__(self) -> None:
        self.noted = 0
        self.foreign = ""
        self._values: dict[bytes, bytes] = {}
        self._sorted: list[bytes] = []
        """Keys in order; some of them are deleted."""
        self._new: list[bytes] = []
        """Keys that are not in `_sorted` yet."""

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        values = self._values
        if self._new:
            self._sorted = sorted(dict.fromkeys(key for key in (*self._sorted, *self._new) if key in values))
            self._new = []
        keys = self._sorted
        end = len(keys) if last is None else bisect_left(keys, last)
        for i in range(bisect_left(keys, first), end):
            if (value := values.get(keys[i])) is not None:
                yield keys[i], value

    def apply(self, changes: Changes) -> None:
        values, new = self._values, self._new
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                if key not in values:
                    new.append(key)
                values[key] = value
        if len(new) > 2 * len(values) + 1_000:  # keys that come and go would fill the list
            self._new = [key for key in dict.fromkeys(new) if key in values]

    def note(self, offset: int) -> None:
        self.noted = offset

    def clear(self) -> None:
        self._values = {}
        self._sorted, self._new = [], []
        self.noted = 0

    def close(self) -> None:
        self.clear()
