"""The log of a cluster: what peers append to and read, and an implementation in memory."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol


class LogRecord(NamedTuple):
    """A record of the log: its offset, and the bytes of an entry."""

    offset: int
    value: bytes | None


class ClusterLog(Protocol):
    """One client of a cluster's log. One thread calls its methods; only `start` and `close` block.

    It has three kinds of records: entries, which all peers read in the same order; heartbeats, which are not kept; and
    the newest replica, so that the entries before it can be deleted.
    """

    def start(self) -> bytes | None:
        """Returns the newest kept replica; None if none was kept. `read` begins after it. Blocks until it is known.

        Raises BrokerUnavailable, and InputLost if entries after it were deleted.
        """

    def append(self, value: bytes) -> None:
        """Appends an entry. Only `read` shows that this succeeded: until then the entry may be appended again."""

    def read(self) -> list[LogRecord]:
        """Returns the next entries; none while the log is away. Raises InputLost if they were deleted."""

    def beat(self, value: bytes) -> None:
        """Sends a heartbeat. It may be lost."""

    def read_beats(self) -> list[bytes]:
        """Returns the next heartbeats, in the order of the log."""

    def keep(self, value: bytes, offset: int) -> None:
        """Keeps a replica, and deletes the entries up to its offset once it is kept."""

    def close(self) -> None:
        """Closes the client."""


class LogInMemory:
    """The log of a cluster whose peers are threads of one process, or are simulated."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = 0
        """The offset of the first entry that is not deleted."""
        self._entries: list[bytes] = []
        self._beats: list[bytes] = []
        self._kept: tuple[bytes, int] | None = None
        self.is_away = False
        """Whether nothing can be appended or read."""

    def open(self) -> ClientInMemory:
        """Returns a client for one peer."""
        return ClientInMemory(self)

    def append(self, value: bytes) -> None:
        """Appends an entry."""
        with self._lock:
            self._entries.append(value)

    def add_beat(self, value: bytes) -> None:
        """Adds a heartbeat."""
        with self._lock:
            self._beats.append(value)

    def entries(self, offset: int) -> list[LogRecord]:
        """Returns the entries from an offset on."""
        with self._lock:
            found = self._entries[max(0, offset - self._first) :]
            return [LogRecord(number, value) for number, value in enumerate(found, max(offset, self._first))]

    def beats(self, number: int) -> list[bytes]:
        """Returns the heartbeats from a number on."""
        with self._lock:
            return self._beats[number:]

    def keep(self, value: bytes, offset: int) -> None:
        """Keeps a replica, and deletes the entries up to its offset."""
        with self._lock:
            if self._kept is None or self._kept[1] < offset:
                self._kept = value, offset
                del self._entries[: offset + 1 - self._first]
                self._first = offset + 1

    def kept(self) -> tuple[bytes, int] | None:
        """Returns the newest kept replica and its offset."""
        with self._lock:
            return self._kept


class ClientInMemory:
    """A client of a log in memory: see ClusterLog."""

    def __init__(self, log: LogInMemory) -> None:
        self._log = log
        self._offset, self._heard = 0, 0

    def start(self) -> bytes | None:
        """See ClusterLog."""
        kept = self._log.kept()
        self._heard = len(self._log.beats(0))
        if kept is None:
            return None
        self._offset = kept[1] + 1
        return kept[0]

    def append(self, value: bytes) -> None:
        """See ClusterLog."""
        if not self._log.is_away:
            self._log.append(value)

    def read(self) -> list[LogRecord]:
        """See ClusterLog."""
        if self._log.is_away:
            return []
        found = self._log.entries(self._offset)
        self._offset += len(found)
        return found

    def beat(self, value: bytes) -> None:
        """See ClusterLog."""
        if not self._log.is_away:
            self._log.add_beat(value)

    def read_beats(self) -> list[bytes]:
        """See ClusterLog."""
        if self._log.is_away:
            return []
        found = self._log.beats(self._heard)
        self._heard += len(found)
        return found

    def keep(self, value: bytes, offset: int) -> None:
        """See ClusterLog."""
        if not self._log.is_away:
            self._log.keep(value, offset)

    def close(self) -> None:
        """See ClusterLog."""
