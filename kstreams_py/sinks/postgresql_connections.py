"""Connections to PostgreSQL: how they are opened and limited in time, and which errors are the server's."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.secrets import split_user
from kstreams_py.sinks.postgresql_columns import check_names, quote

if TYPE_CHECKING:
    import psycopg

LIMIT_SECONDS: Final = 20.0
"""The longest time of a call, in seconds. A server that does not answer for longer counts as unavailable."""

SETTINGS: Final = {
    "lock_timeout": "5s",  # for a row that another writer has locked
    "statement_timeout": "15s",
    # a writer that is frozen in its transaction keeps rows locked: the server ends the transaction
    "idle_in_transaction_session_timeout": "10s",
}
"""The settings of each session."""

_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": "5",
    "application_name": "kstreams_py",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
}
"""Parameters of libpq, unless the URL sets them."""

_OF_SERVER: Final = ("08", "25", "28", "40", "53", "55P03", "57", "58", "F0", "XX001", "XX002")
"""Beginnings of the SQLSTATEs that no row causes: the server cannot serve the request now, or is broken."""

_MAY_RETURN: Final = ("08", "40", "53200", "53300", "55P03", "57P", "57014", "25")
"""Beginnings of transient SQLSTATEs: connections, serialization, memory, locks, a server that stops or is a standby."""

_LASTING: Final = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")
"""Texts in errors of connections that another attempt would not open either: libpq does not pass on the SQLSTATE."""

_NOT_CONNECTED: Final = ("connection failed", "connection timeout", "failed to resolve host")
"""Beginnings of errors of connections that cannot be opened."""


class Database:
    """A database in PostgreSQL, by its URL."""

    def __init__(self, url: str, what: str) -> None:
        """Imports psycopg. Raises MissingSoftware without it.

        - `what`: what needs it, for the message.
        """
        try:
            import psycopg  # noqa: PLC0415 an extra
        except ImportError:
            raise MissingSoftware(f"{what} needs psycopg: pip install 'kstreams_py[postgresql]'") from None
        self.psycopg = psycopg
        self._url = url

    def connect(self, settings: Mapping[str, str] = SETTINGS, **options: Any) -> psycopg.Connection[Any]:
        """Opens a session that commits each statement. Raises psycopg.Error, and SettingsError for a wrong URL.

        - `settings`: the settings of the session.
        - `options`: the options of psycopg.
        """
        try:
            parameters = _CONNECTION | self.psycopg.conninfo.conninfo_to_dict(self._url)
        except self.psycopg.ProgrammingError:  # its text may have the password
            raise SettingsError(f"{name_database(self._url)} is not a PostgreSQL URL: correct it") from None
        conninfo = self.psycopg.conninfo.make_conninfo("", **parameters)
        connection = self.psycopg.connect(conninfo, autocommit=True, **options)
        try:
            set_all = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS given(name, value)"
            with limited(connection):
                connection.execute(set_all, ([*settings], [*settings.values()]))
        except BaseException:
            connection.close()
            raise
        return connection

    def is_of_server(self, error: Exception) -> bool:
        """Returns whether an error comes from the server (unable to serve, or broken) or the connection, not a row."""
        state: str | None = getattr(error, "sqlstate", None)
        if state is not None:
            return state.startswith(_OF_SERVER)
        return isinstance(error, (self.psycopg.OperationalError, self.psycopg.InterfaceError))

    def describe(self, error: psycopg.Error) -> str:
        """Returns the message of an error, with the remedy if the database cannot be connected to."""
        text = first_line(error)
        if error.sqlstate is not None or not text.startswith(_NOT_CONNECTED):
            return text
        return f"{text}: {'start the database, or ' if self.may_return(error) else ''}correct the URL"

    def may_return(self, error: psycopg.Error) -> bool:
        """Returns whether another attempt may succeed without intervention."""
        if error.sqlstate is not None:
            return error.sqlstate.startswith(_MAY_RETURN)
        return self.is_of_server(error) and not any(part in first_line(error) for part in _LASTING)


def name_database(url: str) -> str:
    """Returns a URL without user, password and parameters. Raises SettingsError if it is not a PostgreSQL URL."""
    form = "postgresql://user:password@host:port/database"
    _, bare = split_user(url, "PostgreSQL", form, ("postgresql", "postgres"))
    return re.sub(r"[?#].*", "", bare.replace("postgres:", "postgresql:", 1), flags=re.DOTALL)


def check_table_name(table: str) -> None:
    """Raises SettingsError for the name of a table, with or without its schema, that PostgreSQL does not allow."""
    check_names("the name of a table or schema", table.split(".", 1))


def quote_table(name: str) -> str:
    """Returns the quoted name of a table, with its schema if it has one: see `quote`."""
    return ".".join(map(quote, name.split(".", 1)))


def find_table(connection: psycopg.Connection[Any], table: str) -> int | None:
    """Returns the oid of a table, by its quoted name; None if it does not exist."""
    [(oid,)] = connection.execute("SELECT to_regclass(%s)::oid", (table.replace("%%", "%"),)).fetchall()
    return oid  # type: ignore[no-any-return]


def commit_to_disk(connection: psycopg.Connection[Any]) -> None:
    """Makes each commit of the session wait at least until it is on the disk, whatever the server's setting."""
    [(level,)] = connection.execute("SHOW synchronous_commit").fetchall()
    if level == "off":
        connection.execute("SET synchronous_commit = on")


def first_line(error: Exception) -> str:
    """Returns the message of an error without its details, which contain values of the row."""
    return str(error).strip().partition("\n")[0]


@contextlib.contextmanager
def limited(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Ends the connection if the block exceeds LIMIT_SECONDS: libpq itself waits forever for an answer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        timer = threading.Timer(LIMIT_SECONDS, line.shutdown, (socket.SHUT_RDWR,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
