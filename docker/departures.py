"""Writes departures of 2013 from New York to the topics of their airports, which the flights graph reads.

The argument is their number, spread evenly over the year; without it, all 336,776 are written.
"""

from __future__ import annotations

import sys
from contextlib import closing
from threading import Event

from kstreams_py import Settings
from kstreams_py.demo import data_files
from kstreams_py.demo.flights_graph import graph
from kstreams_py.demo.traffic import Loader
from kstreams_py.formats.registries import open_registry
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.topics import create_topics

RATE = 5_000
"""Departures a second."""

settings = Settings.load()
registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)
rows = data_files.read(int(sys.argv[1]) if sys.argv[1:] else None)
with closing(KafkaCluster(settings)) as cluster:
    create_topics(graph, cluster)
    Loader(cluster, registry, graph, rows, len(rows) / RATE).run(Event())
print(f"{len(rows):,} departures written")
