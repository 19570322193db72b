"""Rows elsewhere, each once by its delivery hash.

In reading order:

sqlite  adapter  a table in SQLite
"""

from kstreams_py.sinks.sqlite import SqliteTable

__all__ = ["SqliteTable"]
