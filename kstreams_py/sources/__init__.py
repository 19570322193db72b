"""Sources of jobs: inputs that Kafka does not keep, which a worker claims, and acknowledges once they are done.

In reading order:

suspects               rule     which inputs are read again together after deaths of their workers
sizes                  rule     how many bytes of inputs are read together
passes                 rule     where a worker looks for rows that no worker has claimed
claims                 adapter  claims in a SQLite file: which inputs are under way, by whom, and which are done
inspection             adapter  shows these claims to operators, and lets refused inputs be read again
sqlite                 adapter  the rows of a table in SQLite
postgresql_tables      adapter  a table in PostgreSQL: its columns, and the key that identifies a row
postgresql_claims      adapter  claims in tables of PostgreSQL
postgresql_inspection  adapter  shows these claims to operators, and lets refused rows be read again
postgresql             adapter  the rows of a table in PostgreSQL
records                adapter  the records of one file, from any position: lines of JSON, rows of CSV and of Parquet
files                  adapter  the lines and rows of files
http_requests          rule     which requests over HTTP are inputs, which share one input, and the answers to them
http_server            adapter  the HTTP server: its thread, ports, connections and their limits
http                   acts     requests over HTTP, each answered when all that was made from it is done
"""

from kstreams_py.graph.source import (
    BadInput,
    Claim,
    InspectedSource,
    RefusedInput,
    Source,
    SourceConnection,
    SourceStatus,
)
from kstreams_py.sources.files import Files
from kstreams_py.sources.http import HTTP
from kstreams_py.sources.http_requests import HTTPRequest
from kstreams_py.sources.postgresql import PostgreSQL
from kstreams_py.sources.sqlite import SQLite

__all__ = [
    "HTTP",
    "BadInput",
    "Claim",
    "Files",
    "HTTPRequest",
    "InspectedSource",
    "PostgreSQL",
    "RefusedInput",
    "SQLite",
    "Source",
    "SourceConnection",
    "SourceStatus",
]
