"""Events that are held, as a store has them, and the states of objects beside them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.errors import DecodeError
from kstreams_py.ordering.chain import Held, State, decode_state, encode_state
from kstreams_py.records import Message
from kstreams_py.state.keyed import RESERVED, KeyedStore

_STATE: Final = RESERVED + b"object."
"""Prefix of the key of an object's state."""

_HELD: Final = RESERVED + b"held."
"""Prefix of the key of a held event; its predecessor, in 8 bytes, and its object follow."""

_HELD_END: Final = RESERVED + b"held/"
"""The first key after them."""


class States:
    """The states of the objects of one task, in its store."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store

    def get(self, name: bytes, default: Any = None) -> Any:
        """The state of an object; `default` if it has none. Raises DecodeError."""
        found = self._store.read(_STATE + name)
        return default if found is None else decode_state(found)

    def __setitem__(self, name: bytes, state: State) -> None:
        self._store.write(_STATE + name, encode_state(state))


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """The record of an event that was held: a Message."""

    place: tuple[str, int, int]
    stamp: tuple[int, int]
    content: tuple[bytes | None, bytes | None]
    header_list: tuple[tuple[str, bytes | None], ...]

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return self.place[1]

    def offset(self) -> int:
        return self.place[2]

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def key(self) -> bytes | None:
        return self.content[0]

    def value(self) -> bytes | None:
        return self.content[1]

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self.header_list)


def hold(store: KeyedStore, event: Held) -> None:
    """Stores an event that is held."""
    m: Message = event.record
    kept = {
        "id": event.id,
        "at": event.held_at,
        "place": (m.topic(), m.partition(), m.offset()),
        "stamp": m.timestamp(),
        "content": (_text(m.key()), _text(m.value())),
        "headers": [(name, _text(value)) for name, value in m.headers() or []],
    }
    store.write(_key(event), json.dumps(kept).encode())


def release(store: KeyedStore, event: Held) -> None:
    """Removes an event that is held no more."""
    store.write(_key(event), None)


def load(store: KeyedStore) -> Iterator[Held]:
    """The events that are held. Raises DecodeError."""
    for key, value in store.entries(_HELD, _HELD_END):
        place = key.removeprefix(_HELD)
        try:
            kept = json.loads(value)
            record = HeldRecord(
                tuple(kept["place"]),
                tuple(kept["stamp"]),
                (_bytes(kept["content"][0]), _bytes(kept["content"][1])),
                tuple((name, _bytes(data)) for name, data in kept["headers"]),
            )
            prev = int.from_bytes(place[:8])
            yield Held(place[8:], kept["id"], prev, record.value(), record, record.offset(), kept["at"])
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"{value[:40]!r} is no held event: {error}") from None


def _key(event: Held) -> bytes:
    return _HELD + event.prev.to_bytes(8) + event.object


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
