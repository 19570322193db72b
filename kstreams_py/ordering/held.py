"""The entries of a task's store: held events, the states of objects, and why an object is stopped."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeGuard, cast

from kstreams_py.errors import DecodeError
from kstreams_py.kafka.foreign_records import is_offset, parse_json
from kstreams_py.ordering.chain import HeldEvent, ObjectState, decode_state, encode_state
from kstreams_py.records import KeptRecord, Message
from kstreams_py.state.keyed import RESERVED, TaskStore

_STATE: Final = RESERVED + b"object."
"""Prefix of the key of an object's state."""

_HELD: Final = RESERVED + b"held."
"""Prefix of the key of a held event; its predecessor, in 8 bytes, and its object follow."""

PREV_BYTES: Final = 8

_VALUE: Final = b"\n"
"""Separates the fields of a held event, which are JSON, from the event's value."""

_HELD_END: Final = RESERVED + b"held/"
"""The first key after the keys of held events."""

_STOP: Final = RESERVED + b"stop."
"""Prefix of the key of a stop; its object follows."""

_STOP_END: Final = RESERVED + b"stop/"


class ObjectStop(NamedTuple):
    """Why an object is stopped.

    - `why`: the fault, with its Reason in front.
    - `offset`: the offset of the record that is the fault.
    - `at`: seconds since 1970.
    """

    why: str
    offset: int
    at: float


class TaskObjects(NamedTuple):
    """The states, held events and stops of the objects of one task."""

    states: dict[bytes, ObjectState]
    held: list[HeldEvent]
    stops: dict[bytes, ObjectStop]


class States:
    """The states of the objects of one task, in its store."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    def get(self, name: bytes, default: Any = None) -> Any:
        """Returns the state of an object; `default` if it has none. Raises DecodeError."""
        found = self._store.read(_STATE + name)
        return default if found is None else _state(_STATE + name, found)

    def __setitem__(self, name: bytes, state: ObjectState) -> None:
        self._store.write(_STATE + name, encode_state(state))


def hold(store: TaskStore, event: HeldEvent) -> None:
    """Stores a held event."""
    m: Message = event.record
    kept = {
        "id": event.id,
        "at": event.held_at,
        "place": (m.topic(), m.partition(), m.offset()),
        "stamp": m.timestamp(),
        "has_value": m.value() is not None,
        "headers": [(name, _text(value)) for name, value in m.headers() or []],
    }
    # the value is stored raw: the changelog must take what the topic takes, and by default has the same size limit
    store.write(_key(event), json.dumps(kept).encode() + _VALUE + (m.value() or b""))


def release(store: TaskStore, event: HeldEvent) -> None:
    """Removes an event that is no longer held."""
    store.write(_key(event), None)


def note_stop(store: TaskStore, name: bytes, stop: ObjectStop) -> None:
    """Stores why an object is stopped."""
    store.write(_STOP + name, json.dumps(stop).encode())


def remove_stop(store: TaskStore, name: bytes) -> None:
    """Removes the stop of an object, which goes on by an operator's decision."""
    store.write(_STOP + name, None)


def stop_offset(store: TaskStore, name: bytes) -> int:
    """Returns the offset of the record that has stopped an object; -1 if it is not stopped. Raises DecodeError."""
    found = store.read(_STOP + name)
    return -1 if found is None else _stop(_STOP + name, found).offset


def stopped(store: TaskStore) -> set[bytes]:
    """Returns the objects that are stopped."""
    return {key.removeprefix(_STOP) for key, _ in store.entries(_STOP, _STOP_END)}


def read_task(entries: Mapping[bytes, bytes], partition: int) -> TaskObjects:
    """Decodes all entries of a task's store. Raises DecodeError."""
    stops = {key.removeprefix(_STOP): _stop(key, value) for key, value in entries.items() if key.startswith(_STOP)}
    states = {key.removeprefix(_STATE): _state(key, value) for key, value in entries.items() if key.startswith(_STATE)}
    events = ((key, value) for key, value in entries.items() if key.startswith(_HELD))
    return TaskObjects(states, list(_load(events, partition)), stops)


def load(store: TaskStore, partition: int) -> Iterator[HeldEvent]:
    """Yields the held events of a task. Raises DecodeError."""
    return _load(store.entries(_HELD, _HELD_END), partition)


def _load(entries: Iterable[tuple[bytes, bytes]], partition: int) -> Iterator[HeldEvent]:
    for key, value in entries:
        try:
            event = _event(key.removeprefix(_HELD), value, partition)
        except ValueError as error:
            raise DecodeError(f"the value of key {key!r} is not a held event: {error}") from None
        yield event


def _event(place: bytes, value: bytes, partition: int) -> HeldEvent:
    """Decodes a held event. Raises ValueError for an entry that `hold` cannot have written."""
    fields, _, content = value.partition(_VALUE)
    prev, name = int.from_bytes(place[:PREV_BYTES]), place[PREV_BYTES:]
    match parse_json(fields):
        case {
            "id": number,
            "at": at,
            "place": [str(topic), int(of), offset],
            "stamp": [int(kind), int(milliseconds)],
            "has_value": bool(has_value),
            "headers": list(headers),
        } if (
            len(place) >= PREV_BYTES
            and abs(milliseconds) < 2**63
            and of == partition
            and all(map(is_offset, (number, offset)))
            and prev < number
            and _is_time(at)
        ):
            pairs = tuple(map(_header, headers))
            for text in (topic, *(header for header, _ in pairs)):
                text.encode()  # JSON may contain lone surrogates, which no client accepts
            kept = (topic, partition, offset), (kind, milliseconds), (name, content if has_value else None)
            record = KeptRecord(*kept, pairs)
            return HeldEvent(name, number, prev, record.value(), record, offset, at)
        case _:
            raise ValueError("it lacks fields, or has others")


def _state(key: bytes, value: bytes) -> ObjectState:
    """Decodes the state of an object. Raises DecodeError."""
    try:
        return decode_state(value)
    except DecodeError as error:
        raise DecodeError(f"the value of key {key!r}: {error}") from None


def _stop(key: bytes, value: bytes) -> ObjectStop:
    """Decodes the stop of an object. Raises DecodeError."""
    try:
        match parse_json(value):
            case [str(why), offset, at] if is_offset(offset) and _is_time(at):
                return ObjectStop(why, offset, at)
            case _:
                raise ValueError("it lacks fields, or has others")
    except ValueError as error:
        raise DecodeError(f"the value of key {key!r} is not a stop of an object: {error}") from None


def _header(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), None]:
            return name, None
        case [str(name), str(text)]:
            return name, b64decode(text, validate=True)
        case _:
            raise ValueError("a header is not a name and a value")


def _is_time(value: object) -> TypeGuard[float]:
    """Returns whether a JSON value is a number of seconds since 1970."""
    return type(value) in (int, float) and 0 <= cast(float, value) < 2**40


def _key(event: HeldEvent) -> bytes:
    return _HELD + event.prev.to_bytes(PREV_BYTES) + event.object


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
