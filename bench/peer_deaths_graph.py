"""The graph of `bench/peer_deaths.py`, which each peer loads. `BENCH_DIRECTORY`: where the tables are."""

from __future__ import annotations

import os
from pathlib import Path

import kstreams_py as ks
from kstreams_py import sinks, sources

directory = Path(os.environ.get("BENCH_DIRECTORY", ""))
graph = ks.Graph("bench")
rows = graph.source("rows", sources.SQLite(directory / "source.db", table="orders", key="id", lease=2.0))
enriched = graph.channel("enriched")
graph.map(rows, to=enriched, id="enrich")(lambda row: row)
stored = sinks.SQLite(directory / "target.db", table="stored", columns={"id": int, "item": str})
graph.sink(enriched, to=stored, id="store")(lambda row: (row["id"], row["item"]))
