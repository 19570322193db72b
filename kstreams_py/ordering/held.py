"""Events that are held, as a store has them, the states of objects beside them, and why an object is stopped."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from kstreams_py.errors import DecodeError
from kstreams_py.ordering.chain import Held, State, decode_state, encode_state
from kstreams_py.records import KeptRecord, Message
from kstreams_py.state.keyed import RESERVED, KeyedStore

_STATE: Final = RESERVED + b"object."
"""Prefix of the key of an object's state."""

_HELD: Final = RESERVED + b"held."
"""Prefix of the key of a held event; its predecessor, in 8 bytes, and its object follow."""

_VALUE: Final = b"\n"
"""Between the fields of a held event, which are JSON, and the event's value."""

_HELD_END: Final = RESERVED + b"held/"
"""The first key after them."""

_STOP: Final = RESERVED + b"stop."
"""Prefix of the key of a stop; its object follows."""

_STOP_END: Final = RESERVED + b"stop/"


class Stop(NamedTuple):
    """Why an object is stopped.

    - `why`: the fault, with its Reason in front. `offset`: of the record that is one. `at`: seconds since 1970.
    """

    why: str
    offset: int
    at: float


class Task(NamedTuple):
    """What a store has of the objects of one task: their states, held events, and stops."""

    states: dict[bytes, State]
    held: list[Held]
    stops: dict[bytes, Stop]


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


def hold(store: KeyedStore, event: Held) -> None:
    """Stores an event that is held."""
    m: Message = event.record
    kept = {
        "id": event.id,
        "at": event.held_at,
        "place": (m.topic(), m.partition(), m.offset()),
        "stamp": m.timestamp(),
        "has_value": m.value() is not None,
        "headers": [(name, _text(value)) for name, value in m.headers() or []],
    }
    # the value as it is: the changelog has to take what the topic has taken, and its limit is the same by default
    store.write(_key(event), json.dumps(kept).encode() + _VALUE + (m.value() or b""))


def release(store: KeyedStore, event: Held) -> None:
    """Removes an event that is held no more."""
    store.write(_key(event), None)


def note_stop(store: KeyedStore, name: bytes, stop: Stop) -> None:
    """Stores why an object is stopped."""
    store.write(_STOP + name, json.dumps(stop).encode())


def remove_stop(store: KeyedStore, name: bytes) -> None:
    """Removes it: an operator lets the object go on."""
    store.write(_STOP + name, None)


def stop_offset(store: KeyedStore, name: bytes) -> int:
    """The offset of the record that has stopped an object; -1 if it is not stopped. Raises DecodeError."""
    found = store.read(_STOP + name)
    try:
        return -1 if found is None else Stop(*json.loads(found)).offset
    except (ValueError, TypeError) as error:
        raise DecodeError(f"the stop of object {name!r} cannot be read: {error}") from None


def stopped(store: KeyedStore) -> set[bytes]:
    """The objects that are stopped."""
    return {key.removeprefix(_STOP) for key, _ in store.entries(_STOP, _STOP_END)}


def read_task(entries: Mapping[bytes, bytes]) -> Task:
    """What the keys and values of a store say of the objects of its task. Raises DecodeError."""
    try:
        stops = {
            key.removeprefix(_STOP): Stop(*json.loads(value)) for key, value in entries.items() if key.startswith(_STOP)
        }
    except (ValueError, TypeError) as error:
        raise DecodeError(f"a stop of an object cannot be read: {error}") from None
    states = {key.removeprefix(_STATE): decode_state(value) for key, value in entries.items() if key.startswith(_STATE)}
    return Task(states, list(_load((key, value) for key, value in entries.items() if key.startswith(_HELD))), stops)


def load(store: KeyedStore) -> Iterator[Held]:
    """The events that are held. Raises DecodeError."""
    return _load(store.entries(_HELD, _HELD_END))


def _load(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[Held]:
    for key, value in entries:
        place = key.removeprefix(_HELD)
        try:
            fields, _, content = value.partition(_VALUE)
            kept = json.loads(fields)
            record = KeptRecord(
                tuple(kept["place"]),
                tuple(kept["stamp"]),
                (place[8:], content if kept["has_value"] else None),
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
