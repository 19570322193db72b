"""Sink: rows in a database, each once. A step that is run again has the same delivery hash, the primary key."""

import kstreams_py as ks
from kstreams_py.sinks import SqliteTable

graph = ks.Graph("ledger", errors="ledger.errors", stop_on=ks.SinkUnavailable)

entries = graph.topic("entries", key=ks.String(), value=ks.Json())
table = SqliteTable("ledger.db", "entries", ["account", "cents"])


@graph.sink(entries)
def store(entry, step):
    table.insert([(step.delivery_hash, step.key, entry["cents"])])
