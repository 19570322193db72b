"""Events of an object: before they are queued, and with their place in the object's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import DecodeError, SettingsError
from kstreams_py.records import Headers

UUID_BYTES: Final = 16

_MAIN, _SUB = b"\x01", b"\x00"

_NUMBER_MAX: Final = 2**63


@dataclass(frozen=True, slots=True)
class Event:
    """An event that has no place in the order yet.

    - `uuid`: 16 bytes, the same at each attempt of a front end to queue the event.
    - `is_main`: False for the event of a sub-object, which follows the main event that it was queued with.
    """

    uuid: bytes
    value: bytes
    is_main: bool = True

    def encode(self) -> bytes:
        """Encodes the event as one value of a store: uuid, kind, value."""
        return self.uuid + (_MAIN if self.is_main else _SUB) + self.value

    @classmethod
    def decode(cls, data: bytes) -> Event:
        """Decodes the bytes of `encode`. Raises DecodeError for other bytes."""
        kind = data[UUID_BYTES : UUID_BYTES + 1]
        if kind not in (_MAIN, _SUB):
            raise DecodeError(f"{data[:40]!r} is not an event of this store")
        return cls(data[:UUID_BYTES], data[UUID_BYTES + 1 :], kind == _MAIN)


@dataclass(frozen=True, slots=True)
class Change:
    """The new state of an object and the events of the change, which a front end stores in one atomic step.

    - `data`: the object's new state; None leaves the state unchanged.
    - `events`: the main event, then the events of sub-objects.

    Raises SettingsError for an empty object name, and for events that do not begin with the main event.
    """

    object: str
    data: bytes | None
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not self.object:
            raise SettingsError("an event needs the object that it belongs to: its key is empty")
        if [each.is_main for each in self.events] != [True] + [False] * (len(self.events) - 1):
            raise SettingsError(f"{self.object}: a change has one main event, then the events of sub-objects")

    @property
    def uuid(self) -> bytes:
        """The uuid of the main event, which identifies the change."""
        return self.events[0].uuid


@dataclass(frozen=True, slots=True)
class OrderedEvent:
    """An event with its place in the order of its object.

    - `id`: larger than the ids of all earlier events of the object; at least 1.
    - `prev`: the id of the object's event before this one; None for the first event.
    """

    event: Event
    id: int
    prev: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """The events that a worker has taken from an object, in their order; empty if the object had none.

    - `first_id`: the id of the first event; the ids are consecutive.
    - `last_id`: the id of the object's newest event before them; None if there is none.
    """

    events: Sequence[Event] = ()
    first_id: int = 0
    last_id: int | None = None

    def __iter__(self) -> Iterator[OrderedEvent]:
        prev = self.last_id
        for number, event in enumerate(self.events, self.first_id):
            yield OrderedEvent(event, number, prev)
            prev = number

    @property
    def newest_id(self) -> int:
        """The id of the last event."""
        return self.first_id + len(self.events) - 1


ID_HEADER: Final = "ks-event-id"
PREV_HEADER: Final = "ks-event-prev"
UUID_HEADER: Final = "ks-event-uuid"
KIND_HEADER: Final = "ks-event-kind"

KINDS: Final = {True: b"main", False: b"sub"}


def headers_of(ordered: OrderedEvent) -> list[tuple[str, bytes]]:
    """Returns the headers of an event's record. Ids are decimal; an object's first event has no predecessor header."""
    found = [
        (ID_HEADER, b"%d" % ordered.id),
        (UUID_HEADER, ordered.event.uuid.hex().encode()),
        (KIND_HEADER, KINDS[ordered.event.is_main]),
    ]
    return found if ordered.prev is None else [*found, (PREV_HEADER, b"%d" % ordered.prev)]


def place_of(headers: Headers) -> tuple[int, int | None]:
    """Reads the ids of an event and its predecessor from a record's headers. Does not compare them.

    Raises DecodeError for a record without an id, and for an id that is not a number of 63 bits.
    """
    number = prev = None
    try:
        for name, value in headers:
            if name == ID_HEADER:
                number = int(value or b"")
            elif name == PREV_HEADER:
                prev = int(value or b"")
    except ValueError:
        number = _NUMBER_MAX
    if number is None:
        raise DecodeError(
            f"a record without the header {ID_HEADER} is not an event: only `kstreams order` may write here"
        )
    if not -_NUMBER_MAX < number < _NUMBER_MAX or not -_NUMBER_MAX < (prev or 0) < _NUMBER_MAX:
        found = {name: value and value[:40] for name, value in headers if name in (ID_HEADER, PREV_HEADER)}
        raise DecodeError(f"{found} is not the place of an event: only `kstreams order` may write here")
    return number, prev
