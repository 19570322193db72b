"""The demo's graph: merges three airports into one topic, splits departed from cancelled, stores departed flights.

Spark makes a table of departed and cancelled flights, which shows each transaction of `split` whole or not at all.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import kstreams_py as ks
from kstreams_py.demo.data import FIELDS
from kstreams_py.sinks import SqliteTable

Flight = dict[str, Any]

FLIGHT = ks.Avro(Path(str(files("kstreams_py") / "schemas" / "flight.avsc")))
DIRECTORY = Path(os.environ.get("KSTREAMS_DEMO_DIRECTORY", "."))
DATABASE = SqliteTable(DIRECTORY / "flights.sqlite", "departed", FIELDS)

graph = ks.Graph("flights", errors="flights.errors")


def topic(name: str) -> ks.Topic:
    """Declares a topic of flights with the tail number as key, so that the flights of a plane stay in order."""
    return graph.topic(name, key=ks.String(), value=FLIGHT, partitions=3)


airports = [topic(f"flights.{code}") for code in ("ewr", "jfk", "lga")]
flights = topic("flights")
departed = topic("flights.departed")
cancelled = topic("flights.cancelled")


@graph.alts(*airports, to=flights)  # takes from any airport that has a record
def merge(flight: Flight) -> Flight:
    return flight


@graph.map(flights, to=[departed, cancelled])  # two outputs: a fork
def split(flight: Flight) -> dict[ks.Topic, Flight]:
    if flight["dep_time"] is None:
        return {cancelled: flight}
    if flight["arr_delay"] is None:  # raising is enough: the record becomes a dead letter, in the same transaction
        raise ValueError(f"{flight['carrier']} {flight['flight']} departed, but has no arrival delay")
    return {departed: flight}


@graph.sink(departed, batch=True)
def store(flights: list[Flight], steps: list[ks.Step]) -> None:
    """Stores flights. A crash may deliver one again with the same delivery hash: the table keeps one row per hash."""
    rows = [[flight[name] for name in FIELDS] for flight in flights]
    DATABASE.insert([(step.delivery_hash, *row) for step, row in zip(steps, rows, strict=True)])


@graph.pipeline(departed, cancelled, to=ks.Parquet(DIRECTORY / "delays"), every="5 seconds", key=["carrier", "month"])
def delays(departed: Any, cancelled: Any) -> Any:
    """Returns how late the flights of each carrier arrived in each month, and how many were cancelled."""
    return departed.sparkSession.sql(
        """
        SELECT carrier, month, count(dep_time) AS flights, avg(arr_delay) AS delay,
            count(*) - count(dep_time) AS cancelled
        FROM {both} GROUP BY carrier, month HAVING flights > 0
        """,
        both=departed.union(cancelled),
    )
