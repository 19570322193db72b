"""A store of queued events in an SQLite file, which several processes of one machine share."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SettingsError, StoreUnavailable
from kstreams_py.ordering.events import Change, Event, Work
from kstreams_py.ordering.steps import Answer, Begin, Complete, Drop, Find, Own, Pop, Resume, Return, Step, Take, begin
from kstreams_py.ordering.storage import (
    REMEMBERED_SECONDS,
    Incarnation,
    ObjectStatus,
    WorkerStatus,
    refused,
)
from kstreams_py.sinks.sqlite import MAY_RETURN, code_of, describe_error, open_file, transaction

_VERSION: Final = 2

_APPLICATION: Final = 0x6B734F31
"""Marks the file as a store of this program (PRAGMA application_id)."""

_POLL_SECONDS: Final = 0.005
"""Seconds between two checks for others' commits; each check takes a few microseconds."""

_TABLES: Final = """
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, object TEXT NOT NULL, data BLOB NOT NULL, lane TEXT);
CREATE INDEX waiting ON events (object, number) WHERE lane IS NULL;
CREATE INDEX taken ON events (lane, number) WHERE lane IS NOT NULL;
CREATE TABLE objects (name TEXT PRIMARY KEY, data BLOB, last_id INTEGER, owner TEXT) WITHOUT ROWID;
CREATE INDEX owned ON objects (owner) WHERE owner IS NOT NULL;
CREATE TABLE tokens (number INTEGER PRIMARY KEY AUTOINCREMENT, object TEXT NOT NULL);
CREATE TABLE lanes (name TEXT PRIMARY KEY, worker TEXT NOT NULL, object TEXT, first_id INTEGER) WITHOUT ROWID;
CREATE TABLE workers (
    name TEXT PRIMARY KEY, number INTEGER NOT NULL, lanes INTEGER NOT NULL, heard REAL NOT NULL, process TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE topics (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE ids (newest INTEGER NOT NULL);
INSERT INTO ids VALUES (0);
CREATE TABLE changes (uuid BLOB PRIMARY KEY, stored REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX changes_by_time ON changes (stored);
"""


class SQLiteStorage:
    """A Storage in an SQLite file, which is created if it is missing; its directory must exist.

    Each change is one transaction, and so are all steps of one `run`. Raises StoreUnavailable if the file cannot be
    used, and SettingsError if it is a database of another program.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        with self._usable():
            self._connection = open_file(self.path)
        try:
            with self._usable():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise
        self._seen = -1
        """The data_version at which the store had no token; -1 if the tokens have to be read."""

    def __str__(self) -> str:
        return f"the store {self.path}"

    def close(self) -> None:
        self._connection.close()

    # For front ends.

    def enqueue(self, changes: Sequence[Change]) -> list[bool]:
        with self._transaction() as connection:
            now = time.time()
            connection.execute("DELETE FROM changes WHERE stored < ?", (now - REMEMBERED_SECONDS,))
            return [self._store(connection, change, now) for change in changes]

    def _store(self, connection: sqlite3.Connection, change: Change, now: float) -> bool:
        noted = "INSERT INTO changes VALUES (?, ?) ON CONFLICT DO NOTHING"
        if not connection.execute(noted, (change.uuid, now)).rowcount:
            return False
        connection.execute(
            "INSERT INTO objects (name, data) VALUES (?1, ?2)"
            " ON CONFLICT (name) DO UPDATE SET data = coalesce(excluded.data, data)",
            (change.object, change.data),
        )
        connection.executemany(
            "INSERT INTO events (object, data) VALUES (?, ?)",
            [(change.object, event.encode()) for event in change.events],
        )
        connection.execute("INSERT INTO tokens (object) VALUES (?)", (change.object,))
        return True

    def data(self, name: str) -> bytes | None:
        with self._usable():
            found = self._connection.execute("SELECT data FROM objects WHERE name = ?", (name,)).fetchone()
        return None if found is None else found[0]

    # For workers.

    def register(self, worker: str, lanes: int, process: str, *, again: bool = False) -> Incarnation:
        with self._transaction() as connection:
            if again and (known := self._process(connection, worker)) != process:
                raise refused(str(self), worker, process, known)
            (number, used) = connection.execute(
                "INSERT INTO workers VALUES (?, 1, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET number = number + 1,"
                " lanes = max(lanes, excluded.lanes), heard = excluded.heard, process = excluded.process"
                " RETURNING number, lanes",
                (worker, lanes, time.time(), process),
            ).fetchone()
        return Incarnation(worker, number, used, process)

    def retire(self, incarnation: Incarnation, lanes: int) -> None:
        with self._transaction() as connection:
            self._check(connection, incarnation)
            connection.execute("UPDATE workers SET lanes = ? WHERE name = ?", (lanes, incarnation.worker))

    def run(self, incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
        with self._transaction() as connection:
            self._check(connection, incarnation)
            return [_run(connection, incarnation.worker, step) for step in steps]

    def _check(self, connection: sqlite3.Connection, incarnation: Incarnation) -> None:
        noted = "UPDATE workers SET heard = ? WHERE name = ? AND number = ?"
        if not connection.execute(noted, (time.time(), incarnation.worker, incarnation.number)).rowcount:
            known = self._process(connection, incarnation.worker)
            raise refused(str(self), incarnation.worker, incarnation.process, known)

    def _process(self, connection: sqlite3.Connection, worker: str) -> str | None:
        found = connection.execute("SELECT process FROM workers WHERE name = ?", (worker,)).fetchone()
        return None if found is None else str(found[0])

    def note_topic(self, topic: str, partitions: int, *, change: bool) -> tuple[str, int]:
        with self._usable():
            if not change and (known := self._known_topic()) is not None:
                return known
        with self._transaction() as connection:
            if not change and (known := self._known_topic()) is not None:  # another process has noted it since
                return known
            connection.execute("DELETE FROM topics")
            connection.execute("INSERT INTO topics VALUES (?, ?)", (topic, partitions))
            return topic, partitions

    def _known_topic(self) -> tuple[str, int] | None:
        found = self._connection.execute("SELECT name, partitions FROM topics").fetchone()
        return None if found is None else (str(found[0]), int(found[1]))

    def await_token(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            with self._usable():
                # data_version changes with each commit of another connection
                seen = self._connection.execute("PRAGMA data_version").fetchone()[0]
                if seen != self._seen:
                    self._seen = seen
                    if self._connection.execute("SELECT 1 FROM tokens LIMIT 1").fetchone():
                        self._seen = -1
                        return
            if time.monotonic() >= deadline:
                return
            time.sleep(min(_POLL_SECONDS, seconds))

    # For operators.

    def workers(self) -> list[WorkerStatus]:
        with self._usable():
            held: dict[str, dict[str, str]] = {}
            for lane, worker, name in self._connection.execute(
                "SELECT name, worker, object FROM lanes WHERE object IS NOT NULL ORDER BY name"
            ):
                held.setdefault(worker, {})[lane] = name
            found = self._connection.execute("SELECT name, number, heard FROM workers ORDER BY name").fetchall()
        now = time.time()
        return [WorkerStatus(name, number, max(0.0, now - heard), held.get(name, {})) for name, number, heard in found]

    def objects(self, names: Collection[str] = ()) -> list[ObjectStatus]:
        counts: dict[str, list[Any]] = {}
        with self._usable():
            for at, question in enumerate(
                (
                    "SELECT object, count(*) FROM events WHERE lane IS NULL GROUP BY object",
                    "SELECT object, count(*) FROM events WHERE lane IS NOT NULL GROUP BY object",
                    "SELECT object, count(*) FROM tokens GROUP BY object",
                    "SELECT name, owner FROM objects WHERE owner IS NOT NULL",
                )
            ):
                for name, answer in self._connection.execute(question):
                    counts.setdefault(name, [0, 0, 0, None])[at] = answer
        return [ObjectStatus(name, *counts[name]) for name in sorted(counts) if not names or name in names]

    # The file.

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._usable(), transaction(self._connection):
            yield self._connection
        self._seen = -1

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = describe_error(self.path, error)
            raise StoreUnavailable(text, may_return=code_of(error) in MAY_RETURN) from error

    def _prepare(self) -> None:
        """Creates the tables if there are none; otherwise does not wait for a writer."""
        connection = self._connection
        if self._has_tables():
            return
        with transaction(connection):
            if self._has_tables():  # another process has created them since
                return
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)

    def _has_tables(self) -> bool:
        """Returns whether the file has the tables. Raises SettingsError if another program or version wrote it."""
        execute = self._connection.execute
        # read the tables first: the next two values were written in one transaction with them
        (tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            return False
        if execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            raise SettingsError(f"{self.path} is a database of another program: name another file for the store")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            raise SettingsError(
                f"{self.path} was written by another version of kstreams_py (format {version}, here {_VERSION}): "
                "use that version, or name another file for the store"
            )
        return True


def _run(connection: sqlite3.Connection, worker: str, step: Step) -> Answer:
    if isinstance(step, Begin):
        return begin(step, lambda each: _run(connection, worker, each))
    if isinstance(step, Find | Take | Drop | Return):
        return _run_on_slot(connection, worker, step)
    return _run_on_object(connection, step)


def _run_on_slot(connection: sqlite3.Connection, worker: str, step: Find | Take | Drop | Return) -> Answer:
    """Runs a step that reads or changes which object a lane holds."""
    execute, lane = connection.execute, step.lane
    match step:
        case Find():
            found = execute("SELECT object FROM lanes WHERE name = ? AND object IS NOT NULL", (lane,)).fetchone()
            return None if found is None else str(found[0])
        case Take():
            oldest = "SELECT min(number) FROM tokens"
            token = execute(f"DELETE FROM tokens WHERE number = ({oldest}) RETURNING object").fetchone()
            if token is None:
                return None
            execute(
                "INSERT INTO lanes (name, worker, object) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET object = excluded.object",
                (lane, worker, token[0]),
            )
            return str(token[0])
        case Return(object=name):
            execute("UPDATE objects SET owner = NULL WHERE name = ? AND owner = ?", (name, lane))
            first = "SELECT coalesce(min(number), 1) - 1, ? FROM tokens"
            execute(f"INSERT INTO tokens (number, object) {first}", (name,))
    execute("UPDATE lanes SET object = NULL WHERE name = ?", (lane,))
    return None


def _run_on_object(connection: sqlite3.Connection, step: Own | Resume | Pop | Complete) -> Answer:
    """Runs a step on the owner or the events of an object."""
    execute, lane, name = connection.execute, step.lane, step.object
    match step:
        case Own():
            execute("UPDATE objects SET owner = ? WHERE name = ? AND owner IS NULL", (lane, name))
            return bool(execute("SELECT owner = ? FROM objects WHERE name = ?", (lane, name)).fetchone()[0])
        case Pop(limit=limit):
            oldest = "SELECT number FROM events WHERE object = ? AND lane IS NULL ORDER BY number LIMIT ?"
            moved = execute(f"UPDATE events SET lane = ? WHERE number IN ({oldest})", (lane, name, limit)).rowcount
            if not moved:
                execute("UPDATE objects SET owner = NULL WHERE name = ?", (name,))
                return Work()
            (newest,) = execute("UPDATE ids SET newest = newest + ? RETURNING newest", (moved,)).fetchone()
            execute("UPDATE lanes SET first_id = ? WHERE name = ?", (newest - moved + 1, lane))
        case Complete(newest_id=newest_id):
            execute("DELETE FROM events WHERE lane = ?", (lane,))
            execute("UPDATE lanes SET first_id = NULL WHERE name = ?", (lane,))
            execute("UPDATE objects SET last_id = ? WHERE name = ?", (newest_id, name))
            return None
    return _read(connection, lane, name)


def _read(connection: sqlite3.Connection, lane: str, name: str) -> Work:
    """Reads the events in the slot of a lane, with their ids."""
    found = connection.execute("SELECT data FROM events WHERE lane = ? ORDER BY number", (lane,)).fetchall()
    if not found:
        return Work()
    first_id, last_id = connection.execute(
        "SELECT first_id, last_id FROM lanes, objects WHERE lanes.name = ? AND objects.name = ?", (lane, name)
    ).fetchone()
    return Work(tuple(Event.decode(data) for (data,) in found), first_id, last_id)
