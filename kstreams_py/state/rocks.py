"""The committed part of a store in RocksDB, from which a restart on the same machine continues.

Changes are collected in memory, so that a key that changes often is written once: the database takes 2 us for
each read and each write. Changes that were not written when the process ended are in the changelog, after the note.

A directory belongs to one slot. A frozen process of the slot holds the lock; the next process takes another directory
beside it. The contents of a directory are committed up to the offset in its note. The changelog after that offset is
read again, and has the newest value of each key. A directory whose note is older than CHECKPOINT_SECONDS is emptied.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.forks import leave_to_this_process
from kstreams_py.state.keyed import CHECKPOINT_SECONDS, Changes

if TYPE_CHECKING:
    import rocksdict

logger = logging.getLogger(__name__)

DIRECTORIES_MAX: Final = 20
"""The maximum number of directories of one task: each frozen process of the slot keeps one."""

MEMORY_BYTES: Final = 16 << 20
"""Bytes of a task's changes that are kept in memory before they are written; also the size of the read cache."""

ENTRY_BYTES: Final = 150
"""Bytes that an entry takes in memory besides its key and value."""

_MISSING: Final[Any] = object()

_LOCKED: Final = re.compile(r"LOCK: Resource temporarily unavailable|lock hold by current process")
"""RocksDB's error if another process, or this one, holds the lock."""

_ENTRY: Final = b"k"
"""Prefix of the keys of the store."""

_END: Final = b"l"
"""The first key after the keys of the store."""

_NOTE: Final = b"note"
"""The key of the note: the changelog's id, the offset, the time."""


class RocksBase:
    """A database in a directory of its own."""

    def __init__(self, directory: Path, changelog_id: str) -> None:
        """Opens or creates the database. If another process uses it, opens one beside it, with a number in its name.

        - `changelog_id`: the id of the changelog; the state of another changelog is kept until `clear`, see `foreign`.

        Raises MissingSoftware without rocksdict, and SettingsError if the directory cannot be used.
        """
        self._changelog_id = changelog_id
        self._directory, self._database = _open_free(directory)
        leave_to_this_process(self)
        self._unwritten: dict[bytes, bytes | None] = {}
        """What the database lacks: the newest value of each key since the last write."""
        self._read: dict[bytes, bytes | None] = {}
        """A cache: the values of the last write, and the values read since then."""
        self._unwritten_bytes = self._read_bytes = 0
        self.noted, self.foreign = 0, ""
        note = self._read_note()
        if note is None or time.time() - note["time"] > CHECKPOINT_SECONDS:
            self.clear()
        elif note["changelog"] != changelog_id:
            self.foreign = f"the state of the one with id {note['changelog']} in {self._directory}"
        else:
            self.noted = note["offset"]

    def get(self, key: bytes) -> bytes | None:
        found = self._unwritten.get(key, _MISSING)
        if found is _MISSING:
            found = self._read.get(key, _MISSING)
            if found is _MISSING:
                found = self._read[key] = self._database.get(_ENTRY + key)
                self._read_bytes += ENTRY_BYTES + len(key) + len(found or b"")
                if self._read_bytes > MEMORY_BYTES:
                    self._read, self._read_bytes = {}, 0
        return cast(bytes | None, found)

    def range(self, first: bytes, last: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        self._write()
        cursor = self._database.iter()
        cursor.seek(_ENTRY + first)
        end = _END if last is None else _ENTRY + last
        while cursor.valid() and (key := cursor.key()) < end:
            yield key[1:], cursor.value()
            cursor.next()

    def apply(self, changes: Changes) -> None:
        self._unwritten |= changes
        self._unwritten_bytes += sum(ENTRY_BYTES + len(key) + len(value or b"") for key, value in changes.items())
        if self._unwritten_bytes > MEMORY_BYTES:
            self._write()

    def note(self, offset: int) -> None:
        # together with the changes: a crash of the process or the machine cannot leave the note without them
        note = {"changelog": self._changelog_id, "offset": offset, "time": time.time()}
        self._write(json.dumps(note).encode())
        self.noted = offset

    def _write(self, note: bytes | None = None) -> None:
        """Writes the changes that the database lacks, all or none, together with the note if there is one."""
        import rocksdict  # noqa: PLC0415 an extra

        if not self._unwritten and note is None:
            return
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in self._unwritten.items():
            if value is None:
                batch.delete(_ENTRY + key)
            else:
                batch.put(_ENTRY + key, value)
        if note is not None:
            batch.put(_NOTE, note)
        self._database.write(batch)
        self._read, self._read_bytes = self._unwritten, self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = {}, 0

    def clear(self) -> None:
        self._database.close()
        try:
            shutil.rmtree(self._directory)
        except OSError as error:
            raise SettingsError(f"the state in {self._directory} cannot be removed ({error}): delete it") from None
        self._database = _open(self._directory)
        self.noted, self.foreign = 0, ""
        self._unwritten, self._unwritten_bytes, self._read, self._read_bytes = {}, 0, {}, 0

    def close(self) -> None:
        self._write()
        self._database.close()

    def _read_note(self) -> dict[str, Any] | None:
        data = self._database.get(_NOTE)
        try:
            found = json.loads(data or b"null")
        except ValueError:
            return None
        return found if isinstance(found, dict) and found.keys() >= {"changelog", "offset", "time"} else None


def _open_free(directory: Path) -> tuple[Path, rocksdict.Rdict]:
    """Opens the first of the directories that no other process uses."""
    for number in range(1, DIRECTORIES_MAX + 1):
        free = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
        try:
            return free, _open(free)
        except BlockingIOError:
            logger.warning("%s is in use by another process of this slot, which should have ended", free)
    raise SettingsError(f"the state in {directory}, and those beside it, are in use: end the processes that use them")


def _open(directory: Path) -> rocksdict.Rdict:
    try:
        import rocksdict  # noqa: PLC0415 an extra
    except ImportError:
        raise MissingSoftware("a state on disk needs rocksdict: pip install 'kstreams_py[rocksdb]'") from None
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_keep_log_file_num(2)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        return rocksdict.Rdict(str(directory), options)
    except Exception as error:  # rocksdict raises Exception itself
        if _LOCKED.search(str(error)):
            raise BlockingIOError(str(directory)) from None
        raise SettingsError(
            f"the state in {directory} cannot be opened ({error}): delete it (it is restored from its changelog), or "
            "name another state_directory"
        ) from None
