"""Shows the claims in a SQLite file to operators, and lets refused inputs be read again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import SourceUnavailable
from kstreams_py.graph.source import RefusedInput, SourceStatus
from kstreams_py.sinks.sqlite import BUSY_SECONDS, MAY_RETURN, code_of, describe_error, transaction
from kstreams_py.sources import claims
from kstreams_py.sources.claims import (
    CLAIMED,
    CLAIMS,
    DEAD,
    FREE,
    OWNERS,
    REFUSED,
    check_file,
    check_tables,
    is_no_text,
    show_key,
)
from kstreams_py.sources.suspects import SUSPECTED, check_refused

_OPEN: Final = f"""
SELECT state, is_dead, count(*), sum(deaths + is_dead >= {SUSPECTED})
FROM (SELECT state, deaths, state = {CLAIMED} AND (lease IS NULL OR {DEAD}) AS is_dead
    FROM {CLAIMS} LEFT JOIN {OWNERS} USING (owner) WHERE reader = ? AND state <= {CLAIMED})
GROUP BY state, is_dead
"""

_OF_REFUSED: Final = f"FROM {CLAIMS} WHERE reader = ? AND state = {REFUSED}"


FindNames = Callable[[sqlite3.Connection], Callable[[Any], str]]


def find_keys(_: sqlite3.Connection) -> Callable[[Any], str]:
    """Returns the function that shows a key."""
    return show_key


def inspect_claims(path: Path, reader: str, limit: int, find_names: FindNames = find_keys) -> SourceStatus:
    """See InspectedSource.inspect.

    - `reader`: the reader's name in the claims.
    - `find_names`: returns the function that shows a key.
    """
    with _opened(path) as connection:
        if not check_tables(connection, path):
            return SourceStatus()
        now = claims.read_clock()
        counts = connection.execute(_OPEN, (now, now, reader)).fetchall()
        (refused,) = connection.execute(f"SELECT count(*) {_OF_REFUSED}", (reader,)).fetchone()
        asked, name = f"SELECT key, deaths, reason {_OF_REFUSED} ORDER BY key DESC LIMIT ?", find_names(connection)
        shown = tuple(
            RefusedInput(name(key), deaths, reason or "")
            for key, deaths, reason in connection.execute(asked, (reader, limit))
        )
    return count_claims(counts)._replace(refused=refused, shown=shown)


def count_claims(counts: Iterable[tuple[int, bool, int, int]]) -> SourceStatus:
    """Returns the status of a source without its refused inputs.

    - `counts`: the state, whether the owner is dead, the number of claims, and the number of suspects among them.
    """
    found = dict.fromkeys(((FREE, False), (CLAIMED, False), (CLAIMED, True)), (0, 0))
    found |= {(state, is_dead): (count, suspects) for state, is_dead, count, suspects in counts}
    (free, of_free), (claimed, of_claimed), (abandoned, of_abandoned) = found.values()
    return SourceStatus(free, claimed, abandoned, of_free + of_abandoned, claimed_suspects=of_claimed)


def retry_claims(
    source: object, path: Path, reader: str, keys: Collection[str] | None, find_names: FindNames = find_keys
) -> int:
    """See InspectedSource.retry. `source`: its name in errors. For other parameters see `inspect_claims`."""
    with _opened(path) as connection:
        if not check_tables(connection, path):
            check_refused(source, (), keys)
            return 0
        with transaction(connection):
            refused, name = dict[str, list[Any]](), find_names(connection)
            for (key,) in connection.execute(f"SELECT key {_OF_REFUSED}", (reader,)):
                if not is_no_text(key):  # its row cannot be read: the reason says so
                    refused.setdefault(name(key), []).append(key)  # a number and a text may look alike
            check_refused(source, refused, keys)
            wanted = [key for each in (refused if keys is None else {*keys}) for key in refused[each]]
            connection.executemany(
                f"UPDATE {CLAIMS} SET state = {FREE}, owner = NULL, deaths = 0, reason = NULL"
                " WHERE reader = ? AND key = ?",
                [(reader, key) for key in wanted],
            )
    return len(wanted)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Yields a connection to an existing file, without changing it. Raises SettingsError and SourceUnavailable."""
    check_file(path)
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
            yield connection
    except sqlite3.DatabaseError as error:
        raise SourceUnavailable(describe_error(path, error), may_return=code_of(error) in MAY_RETURN) from error
