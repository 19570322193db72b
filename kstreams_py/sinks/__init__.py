"""Rows elsewhere, each once by its delivery hash.

In reading order:

columns       rule     columns with their types, and the rows that do not fit them
sqlite        adapter  a table in SQLite
postgresql_columns rule   columns of a table in PostgreSQL, and the statement that stores rows whole or not at all
postgresql_connections adapter  connections to PostgreSQL, and which errors are the server's
postgresql    adapter  a table in PostgreSQL
redis         adapter  keys in Redis
manifest      rule     the manifest of a directory of Parquet files: which files are published
directory     adapter  a directory of files that are published by one manifest
parquet       adapter  Parquet files
delta         adapter  a table of Delta Lake, for pipelines
"""

from typing import Final

from kstreams_py.graph.pipelines import Table
from kstreams_py.graph.sink import Evidence, Inspectable, Row, RowRules, Sink, SinkConnection
from kstreams_py.sinks.delta import Delta
from kstreams_py.sinks.parquet import Parquet
from kstreams_py.sinks.postgresql import PostgreSQL
from kstreams_py.sinks.redis import Redis
from kstreams_py.sinks.sqlite import SQLite, SqliteTable

TABLES: Final[tuple[type[Table], ...]] = (Delta, Parquet, PostgreSQL)
"""The tables that pipelines write."""

__all__ = [
    "Delta",
    "Evidence",
    "Inspectable",
    "Parquet",
    "PostgreSQL",
    "Redis",
    "Row",
    "RowRules",
    "SQLite",
    "Sink",
    "SinkConnection",
    "SqliteTable",
]
