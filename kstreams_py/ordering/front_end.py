"""The interface for front ends: it changes an object and queues the events of the change in one atomic step."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

from kstreams_py.errors import RecordTooLarge, SettingsError
from kstreams_py.formats.serdes import Json, Serde
from kstreams_py.ordering.events import Change, Event
from kstreams_py.ordering.redis import RedisStorage
from kstreams_py.ordering.sqlite import SQLiteStorage
from kstreams_py.ordering.storage import Storage

EVENT_MAX: Final = 1_000_000
"""Size in bytes of the largest event that a topic takes, unless the topic has other settings. A larger one would end
each ordering worker that sends it, and all other objects of that worker would wait.
"""

SCHEMES = ("redis", "rediss", "unix")


def open_storage(store: str | Path, prefix: str = "") -> Storage:
    """Opens a store.

    - `store`: `redis://host:port/0`, or the path of an SQLite file.
    - `prefix`: the beginning of each key in Redis.

    Raises SettingsError, StoreUnavailable, and MissingSoftware without redis-py.
    """
    scheme, separator, _ = str(store).partition("://")
    if not separator:
        if str(store).startswith(tuple(f"{each}:" for each in SCHEMES)):
            raise SettingsError("a store in Redis needs a URL such as redis://host:port/0, with ://")
        if prefix:
            raise SettingsError("a prefix is for the keys of a store in Redis: name another file instead")
        return SQLiteStorage(store)
    if scheme not in SCHEMES:
        shown = scheme if scheme.isalnum() else "a URL that does not begin with redis"  # the URL may have a password
        raise SettingsError(f"{shown}:// is not a store of events: name redis://host:port/0, or the path of a file")
    return RedisStorage(str(store), prefix)


class Ordering:
    """A store of events for front ends. Any thread may use it.

    - `store`: see open_storage().
    - `event`, `data`: the serdes of events, and of the states of objects.
    - `event_max`: the size in bytes of the largest event that the topic takes, not counting its headers.
    """

    def __init__(
        self,
        store: str | Path = "events.db",
        *,
        event: Serde | None = None,
        data: Serde | None = None,
        prefix: str = "",
        event_max: int = EVENT_MAX,
    ) -> None:
        self._event: Serde = Json() if event is None else event
        self._data: Serde = Json() if data is None else data
        self._event_max = event_max
        self._lock = threading.Lock()
        self._storage = open_storage(store, prefix)

    def enqueue(
        self, name: str, data: Any, event: Any, *, sub_events: Iterable[Any] = (), uuid: UUID | None = None
    ) -> bool:
        """Stores an object's new state and queues the events of the change, atomically.

        - `name`: the name of the object, and the key in the topic. Its events are sent in the order of the calls.
        - `data`: the new state; None leaves the state unchanged.
        - `event`: the main event.
        - `sub_events`: the events of its sub-objects, which follow the main event.
        - `uuid`: identifies the change: a call with the uuid of an earlier call within a day stores nothing.

        Returns whether the change is new. Raises SettingsError for an empty `name`, RecordTooLarge for an event above
        `event_max`, and StoreUnavailable if it is not known whether the change is stored: call again with the same
        `uuid`.
        """
        uuid = uuid4() if uuid is None else uuid
        events = [Event(uuid.bytes, self._serialize(event))]
        for number, each in enumerate(sub_events, 1):
            events.append(Event(uuid5(uuid, str(number)).bytes, self._serialize(each), is_main=False))
        state = None if data is None else self._data.serialize(data)
        with self._lock:
            return self._storage.enqueue([Change(name, state, tuple(events))])[0]

    def data(self, name: str) -> Any:
        """Returns the state of an object; None if it has none."""
        with self._lock:
            found = self._storage.data(name)
        return None if found is None else self._data.deserialize(found)

    def close(self) -> None:
        """Closes the store."""
        with self._lock:
            self._storage.close()

    def _serialize(self, event: Any) -> bytes:
        found = self._event.serialize(event)
        if found is None:
            raise SettingsError("an event needs a value: its serde returned None")
        if len(found) > self._event_max:
            raise RecordTooLarge(
                f"an event of {len(found):,} bytes: the topic takes {self._event_max:,}: send a reference to its data, "
                "or raise the topic's max.message.bytes, the ordering workers' message.max.bytes, and event_max="
            )
        return found
