"""Writes departures of 2013 from New York to the topics of their airports: what the flights graph reads.

The argument is how many; without it, all 336,776.
"""

from __future__ import annotations

import sys
from threading import Event

from kstreams_py import Settings
from kstreams_py.demo import data
from kstreams_py.demo.flights_graph import graph
from kstreams_py.demo.traffic import Loader
from kstreams_py.engine.topics import create_topics
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.registry import open_registry

RATE = 5_000
"""Departures a second."""

settings = Settings.load()
registry = open_registry(settings.schema_registry_url, settings.schema_directory)
rows = data.read(int(sys.argv[1]) if sys.argv[1:] else None)
log = KafkaLog(settings)
create_topics(graph, log)
Loader(log, registry, graph, rows, len(rows) / RATE).run(Event())
print(f"{len(rows):,} departures written")
