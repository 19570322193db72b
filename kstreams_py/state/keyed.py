"""The store of one task: the committed part is a base; uncommitted changes lie above it and can be dropped."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from typing_extensions import TypeVar

from kstreams_py.errors import DecodeError, EncodeError
from kstreams_py.formats.serdes import Bytes, Serde, String, show
from kstreams_py.graph.declarations import KeyedStore

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

Changes = Mapping[bytes, bytes | None]
"""The new value of each key; None if it was deleted."""

_MISSING: Final[Any] = object()

_OTHERS: Final = "another serde or another program has written it: give the state that serde, or put the key again"


RESERVED: Final = b"\x00__ks."
"""Prefix of the keys in a changelog that do not belong to the function."""

POSITIONS_KEY: Final = RESERVED + b"positions"
"""The key of the record of positions."""


CHECKPOINT_SECONDS: Final = 43_200
"""Seconds after which a store that was read from a changelog is too old to continue from: half of the time for which
Kafka keeps tombstones (changelog.CHANGELOG_SETTINGS). An older store would miss a deletion that compaction removed."""

CHANGES_BYTES: Final = 4 << 20
"""Bytes of changes that may wait for their commit; one step may have more."""


class Base(Protocol):
    """The committed part of a store, as bytes, with the record of its positions under POSITIONS_KEY.

    - `noted`: the offset that was noted last, by this process or an earlier one; 0 if there is none.
    - `foreign`: describes the state that it has from another changelog, until `clear`, and where it lies; "" if none.
    """

    noted: int
    foreign: str

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key; None if it has none."""

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Returns the keys from `first` up to but not including `last`, in the order of bytes, with their values."""

    def apply(self, changes: Changes) -> None:
        """Makes these changes, all or none."""

    def note(self, offset: int) -> None:
        """Notes that the base has all changes of the changelog before an offset."""

    def clear(self) -> None:
        """Removes all contents, and the note."""

    def close(self) -> None:
        """Frees its resources."""


class TaskStore(KeyedStore[K, V]):
    """The state of one task, for its function, and for the worker that commits its changes."""

    __slots__ = (
        *("_before", "_changes", "_deserialize", "_key", "_to_bytes", "_value", "_varies"),
        *("base", "rollbacks", "size"),
    )

    def __init__(self, base: Base, key: Serde[K], value: Serde[V]) -> None:
        self.base = base
        """The committed part, for the worker."""
        self._key = key
        self._value = value
        self._to_bytes, self._deserialize = key.serialize, value.deserialize
        self._varies = not isinstance(key, Bytes | String)
        self._changes: dict[bytes, bytes | None] = {}
        """The uncommitted changes."""
        self._before: list[tuple[bytes, Any]] = []
        """The entries of `_changes` that the current step has replaced, oldest first."""
        self.size = 0
        """The bytes of all uncommitted writes, including writes that were replaced or undone."""
        self.rollbacks = 0
        """How often changes were dropped, which makes anything derived from them invalid."""

    # For functions.

    def get(self, key: K, default: Any = None) -> Any:
        data = self._serialize(key)
        found = self._changes.get(data, _MISSING)  # as `read` does: a call more costs 5 % of a step
        if found is _MISSING:
            found = self.base.get(data)
        if found is None and (not self._varies or (found := self._read_earlier(key)) is None):
            return default
        try:
            return self._deserialize(found)
        except DecodeError as error:
            raise DecodeError(f"the state has another value for key {show(key)}: {error}: {_OTHERS}") from None

    def __contains__(self, key: K) -> bool:
        return self.read(self._serialize(key)) is not None or (self._varies and self._read_earlier(key) is not None)

    def put(self, key: K, value: V) -> None:
        try:
            data = self._value.serialize(value)
        except EncodeError as error:
            raise TypeError(f"the value of key {show(key)} of a state: {error} (ks.State(..., value=))") from None
        if data is None:
            raise ValueError(
                f"the value {show(value)} is None in bytes: delete the key, or give the state another serde"
            )
        if self._varies:
            self._write_once(key, data)
        else:
            self.write(self._serialize(key), data)

    def delete(self, key: K) -> None:
        self._write_once(key, None)

    def range(self, first: K | None = None, last: K | None = None) -> Iterator[tuple[K, V]]:
        start = b"" if first is None else self._serialize(first)
        end = None if last is None else self._serialize(last)
        above = sorted((k, v) for k, v in self._changes.items() if k >= start and (end is None or k < end))
        changed = {key for key, _ in above}
        below = ((k, v) for k, v in self.base.range(start, end) if k not in changed)
        for key, value in heapq.merge(below, ((k, v) for k, v in above if v is not None)):
            if not key.startswith(RESERVED):
                yield self._key.deserialize(key), self._value.deserialize(value)

    def _write_once(self, key: K, value: bytes | None) -> None:
        """Sets the value of a key, and deletes that under the bytes that earlier versions wrote."""
        self.write(self._serialize(key), value)
        if self._varies and self._read_earlier(key) is not None:
            self.write(self._serialize(key, as_it_is=True), None)

    def _read_earlier(self, key: K) -> bytes | None:
        """Returns the value of a key under the bytes that earlier versions wrote, with names in their own order."""
        earlier = self._serialize(key, as_it_is=True)
        return None if earlier == self._serialize(key) else self.read(earlier)

    def _serialize(self, key: K, *, as_it_is: bool = False) -> bytes:
        if self._varies and not as_it_is:
            key = _normal(key)
        try:
            data = self._to_bytes(key)
        except EncodeError as error:
            raise TypeError(f"the key of a state: {error} (ks.State(..., key=))") from None
        if data is None or data.startswith(RESERVED):
            raise ValueError(f"{show(key)} cannot be a key: its bytes are {data!r}")
        return data

    # For the worker.

    @property
    def changes(self) -> Changes:
        """The uncommitted changes."""
        return self._changes

    def read(self, key: bytes) -> bytes | None:
        """Returns the value of a key in bytes, which may be a reserved key; None if it has none."""
        found = self._changes.get(key, _MISSING)
        return self.base.get(key) if found is _MISSING else found

    def write(self, key: bytes, value: bytes | None) -> None:
        """Sets the value of a key in bytes, which may be a reserved key; None deletes it."""
        changes = self._changes
        self._before.append((key, changes.get(key, _MISSING)))
        changes[key] = value
        self.size += len(key) + (0 if value is None else len(value))

    def entries(self, first: bytes, last: bytes) -> list[tuple[bytes, bytes]]:
        """Returns the keys in bytes from `first` up to but not including `last`, with their values."""
        found: dict[bytes, bytes | None] = dict(self.base.range(first, last))
        found |= {key: value for key, value in self._changes.items() if first <= key < last}
        return [(key, value) for key, value in sorted(found.items()) if value is not None]

    @property
    def is_full(self) -> bool:
        """Whether the changes have to be committed before another step is run."""
        return self.size >= CHANGES_BYTES

    def mark(self) -> int:
        """Returns a place in the changes of the current step, for `undo`."""
        return len(self._before)

    def keep(self) -> None:
        """Keeps the changes of a step that is done."""
        self._before.clear()

    def undo(self, mark: int = 0) -> None:
        """Undoes the changes of a step that raised, or those after a mark."""
        while len(self._before) > mark:
            key, value = self._before.pop()
            if value is _MISSING:
                del self._changes[key]
            else:
                self._changes[key] = value

    def roll_back(self) -> None:
        """Drops all uncommitted changes."""
        self._drop()
        self.rollbacks += 1

    def commit(self, positions: bytes) -> None:
        """Moves the changes to the base, with their positions: they are in the changelog now."""
        self._changes[POSITIONS_KEY] = positions
        self.base.apply(self._changes)
        self._drop()

    def _drop(self) -> None:
        self._changes = {}
        self._before.clear()
        self.size = 0


def _normal(key: Any) -> Any:
    """Returns the same value for all equal keys, which serdes may write as different bytes.

    Names are sorted, and -0.0 becomes 0.0. 1, 1.0 and True are equal in Python, but not in JSON: they stay as they are.
    """
    kind = type(key)
    if kind is dict:
        return {name: _normal(value) for name, value in sorted(key.items(), key=_name)}
    if kind is list or kind is tuple:
        return kind(map(_normal, key))
    return key + 0.0 if kind is float else key


def _name(item: tuple[Any, Any]) -> str:
    return str(item[0])


class MemoryBase:
    """A dict; its keys are sorted when a range is read, and only if some of them are new."""

    __slots__ = ("_new", "_sorted", "_values", "foreign", "noted")

    def __init__(self) -> None:
        self.noted = 0
        self.foreign = ""
        self._values: dict[bytes, bytes] = {}
        self._sorted: list[bytes] = []
        """Keys in order; some may have been deleted."""
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
