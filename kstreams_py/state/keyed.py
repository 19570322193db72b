"""The store of one task: what is committed is in a base, what is not lies above it and can be dropped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, Protocol

from typing_extensions import TypeVar

from kstreams_py.errors import DecodeError
from kstreams_py.formats.serdes import Bytes, Serde, String, show

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

Changes = Mapping[bytes, bytes | None]
"""The new value of each key; None if it was deleted."""

_MISSING: Final[Any] = object()

_OTHERS: Final = "another serde or another program has written it: give the state that serde, or put the key again"


RESERVED: Final = b"\x00__ks."
"""Prefix of keys in a changelog that are none of the function's."""

POSITIONS_KEY: Final = RESERVED + b"positions"
"""The key of the record that names positions."""


CHECKPOINT_SECONDS: Final = 43_200
"""Seconds after which what was read of a changelog is too old to go on from: half of the time that Kafka keeps
tombstones (changelog.CHANGELOG_SETTINGS). A deletion that compaction has removed would not be seen."""

CHANGES_BYTES: Final = 4 << 20
"""Bytes of changes that may wait for their commit; those of one step can be more."""


class Base(Protocol):
    """The committed part of a store, as bytes, with the record of its positions under POSITIONS_KEY.

    - `noted`: the offset that was noted last, by this process or one before it; 0 for none.
    - `foreign`: the state of another changelog that it has until `clear`, and where that is, as text; "" for none.
    """

    noted: int
    foreign: str

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it has none."""

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The keys from `first` on and before `last`, in the order of bytes, with their values."""

    def apply(self, changes: Changes) -> None:
        """Makes these changes, all or none."""

    def note(self, offset: int) -> None:
        """Notes that it has all of the changelog before an offset."""

    def clear(self) -> None:
        """Removes all that it has."""

    def close(self) -> None:
        """Frees what it holds."""


class KeyedStore(Generic[K, V]):
    """A mapping of keys to values, for the function of a processor: it has the keys of one task.

    Values are kept as bytes: to change one that `get` returned, `put` it again.
    """

    __slots__ = (
        *("_before", "_changes", "_deserialize", "_key", "_to_bytes", "_value", "_varies"),
        *("base", "rollbacks", "size"),
    )

    def __init__(self, base: Base, key: Serde[K], value: Serde[V]) -> None:
        self.base = base
        """What is committed; for the worker."""
        self._key = key
        self._value = value
        self._to_bytes, self._deserialize = key.serialize, value.deserialize
        self._varies = not isinstance(key, Bytes | String)
        self._changes: dict[bytes, bytes | None] = {}
        """What is not committed."""
        self._before: list[tuple[bytes, Any]] = []
        """What the step that runs has replaced in `_changes`, oldest first."""
        self.size = 0
        """Bytes that are not committed, those of keys that were put again included."""
        self.rollbacks = 0
        """How often changes were dropped: what was derived from them is no longer valid."""

    # For functions.

    def get(self, key: K, default: Any = None) -> V | Any:
        """The value of a key; `default` if it has none. Raises as the serdes do."""
        found = self.read(self._serialize(key))
        if found is None and self._varies:
            found = self._read_earlier(key)
        try:
            return default if found is None else self._deserialize(found)
        except DecodeError as error:
            raise DecodeError(f"the state has another value for key {show(key)}: {error}: {_OTHERS}") from None

    def __contains__(self, key: K) -> bool:
        return self.read(self._serialize(key)) is not None or (self._varies and self._read_earlier(key) is not None)

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key. Raises as the serdes do, and ValueError for a value or key that is None in bytes."""
        data = self._value.serialize(value)
        if data is None:
            raise ValueError(
                f"the value {show(value)} is None in bytes: delete the key, or give the state another serde"
            )
        self._write(key, data)

    def delete(self, key: K) -> None:
        """Deletes a key, if it is there."""
        self._write(key, None)

    def range(self, first: K | None = None, last: K | None = None) -> Iterator[tuple[K, V]]:
        """The keys from `first` on and before `last`, with their values, in the order of the keys' bytes.

        Without `first` from the least key on, without `last` to the greatest. What is put meanwhile may be missing.
        """
        start = b"" if first is None else self._serialize(first)
        end = None if last is None else self._serialize(last)
        above = sorted((k, v) for k, v in self._changes.items() if k >= start and (end is None or k < end))
        changed = {key for key, _ in above}
        below = ((k, v) for k, v in self.base.range(start, end) if k not in changed)
        for key, value in heapq.merge(below, ((k, v) for k, v in above if v is not None)):
            if not key.startswith(RESERVED):
                yield self._key.deserialize(key), self._value.deserialize(value)

    def _write(self, key: K, value: bytes | None) -> None:
        self.write(self._serialize(key), value)
        if self._varies and self._read_earlier(key) is not None:
            self.write(self._serialize(key, as_it_is=True), None)

    def _read_earlier(self, key: K) -> bytes | None:
        """The value of a key under the bytes that earlier versions wrote: with its names in their own order."""
        earlier = self._serialize(key, as_it_is=True)
        return None if earlier == self._serialize(key) else self.read(earlier)

    def _serialize(self, key: K, *, as_it_is: bool = False) -> bytes:
        data = self._to_bytes(key if as_it_is or not self._varies else _normal(key))
        if data is None or data.startswith(RESERVED):
            raise ValueError(f"{show(key)} cannot be a key: its bytes are {data!r}")
        return data

    # For the worker.

    @property
    def changes(self) -> Changes:
        """What is not committed."""
        return self._changes

    def read(self, key: bytes) -> bytes | None:
        """The value of a key in bytes, a reserved one among them; None if it has none."""
        found = self._changes.get(key, _MISSING)
        return self.base.get(key) if found is _MISSING else found

    def write(self, key: bytes, value: bytes | None) -> None:
        """Sets the value of such a key; None deletes it."""
        changes = self._changes
        self._before.append((key, changes.get(key, _MISSING)))
        changes[key] = value
        self.size += len(key) + (0 if value is None else len(value))

    def entries(self, first: bytes, last: bytes) -> list[tuple[bytes, bytes]]:
        """Keys in bytes from `first` on and before `last`, with their values."""
        found: dict[bytes, bytes | None] = dict(self.base.range(first, last))
        found |= {key: value for key, value in self._changes.items() if first <= key < last}
        return [(key, value) for key, value in sorted(found.items()) if value is not None]

    @property
    def is_full(self) -> bool:
        """What is not committed is to be committed before another step is run."""
        return self.size >= CHANGES_BYTES

    def mark(self) -> int:
        """A place in the changes of the step that runs, for `undo`."""
        return len(self._before)

    def keep(self) -> None:
        """Keeps what a step has changed: it is done."""
        self._before.clear()

    def undo(self, mark: int = 0) -> None:
        """Undoes what a step has changed, or has changed after a mark: it raised."""
        while len(self._before) > mark:
            key, value = self._before.pop()
            if value is _MISSING:
                del self._changes[key]
            else:
                self._changes[key] = value

    def roll_back(self) -> None:
        """Drops all that is not committed."""
        self._drop()
        self.rollbacks += 1

    def commit(self, positions: bytes) -> None:
        """Adds what was not committed to the base, and its positions: it is in the changelog now."""
        self._changes[POSITIONS_KEY] = positions
        self.base.apply(self._changes)
        self._drop()

    def _drop(self) -> None:
        self._changes = {}
        self._before.clear()
        self.size = 0


def _normal(key: Any) -> Any:
    """The same value for all keys that are equal, though serdes write them as other bytes: in order, and 0.0 for -0.0.

    1, 1.0 and True are equal in Python, and none of them in JSON: they stay as they are.
    """
    kind = type(key)
    if kind is dict:
        return {name: _normal(value) for name, value in sorted(key.items(), key=_name)}
    if kind is list or kind is tuple:
        return kind(map(_normal, key))
    return key + 0.0 if kind is float else key


def _name(item: tuple[Any, Any]) -> str:
    return str(item[0])
