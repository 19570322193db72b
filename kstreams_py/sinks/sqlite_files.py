"""SQLite files that several processes write: durable commits, and what to do about an error."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

BUSY_SECONDS: Final = 5.0
"""Seconds that a writer waits for other writers: well within a transaction's time-out."""

_HELD: Final = f"end the program that has locked it for more than {BUSY_SECONDS:g} s"
_RIGHTS: Final = "give this user the right to write it and its directory"

_REMEDIES: Final = {
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_CANTOPEN: "make its directory, with the right to write there",
    sqlite3.SQLITE_CORRUPT: "restore it, or move it away",
    sqlite3.SQLITE_NOTADB: "move away what is there, or name another file",
}

_OF_ROWS: Final = {
    sqlite3.SQLITE_ERROR,  # raised by a function in a constraint or a trigger, such as "malformed JSON"
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_MISUSE,
}

MAY_RETURN: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def open_file(path: Path) -> sqlite3.Connection:
    """Opens a file, and creates it if it is missing; a commit is on the disk when it returns. Raises sqlite3.Error.

    The connection begins no transaction by itself, and any thread may use it, one at a time.
    """
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _write_ahead(connection)
        # NORMAL survives a crash of the process, but not of the machine
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Sets the file's journal mode to WAL, so that readers and one writer do not wait for each other.

    SQLite's busy time-out does not cover the lock for this change, which several writers of a new file may need at
    once.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if code_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commits the changes made in the block, or rolls them back if the block raises."""
    connection.execute("BEGIN IMMEDIATE")  # waits for other writers here, instead of failing at the first row
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def describe_error(path: Path, error: sqlite3.Error) -> str:
    """Returns a message with the file and the remedy."""
    return f"{path}: {error}: {_REMEDIES.get(code_of(error), 'check its disk')}, then start again"


def is_of_file(error: sqlite3.Error) -> bool:
    """Whether the file or its disk cannot be used, so that no row causes the error."""
    return code_of(error) not in _OF_ROWS


def code_of(error: sqlite3.Error) -> int:
    """Returns SQLite's primary error code; SQLITE_ERROR if there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
