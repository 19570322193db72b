"""The graph of `kstreams demo channels`: takes flights from a table, and stores each once in another, with its weather.

It needs no broker: `kstreams run` claims the rows of the first table, and ends when all are done.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.demo.data_files import read_weather

Flight = dict[str, Any]

DIRECTORY = Path(os.environ.get("KSTREAMS_DEMO_DIRECTORY", "."))
LONGEST_WAIT = float(os.environ.get("DEMO_LONGEST_WAIT", "0.02"))
WEATHER = read_weather()

graph = ks.Graph("weather")

SOURCE = sources.SQLite(DIRECTORY / "flights.db", table="flights", key="id", ends=True, lease=2.0)
COLUMNS = {"id": int, "flight": str, "hour": str, "delay": str, "weather": int}
TARGET = sinks.SQLite(DIRECTORY / "rated.db", table="rated", columns=COLUMNS, evidence="hash")

rows = graph.source("rows", SOURCE)
flights, known, delays, scores, rated = map(graph.channel, ("flights", "known", "delays", "scores", "rated"))


@graph.map(rows, to=flights)
def parse(row: Flight) -> Flight:
    if row["dep_time"] is not None and row["arr_delay"] is None:  # raising is enough: the row is refused
        raise ValueError(f"{row['carrier']} {row['flight']} departed, but has no arrival delay")
    name = f"{row['carrier']} {row['flight']}"
    return {
        "id": row["id"],
        "flight": name,
        "airport": row["origin"],
        "hour": row["time_hour"],
        "late": row["arr_delay"],
    }


@graph.map(flights, to=known, concurrency=16)
async def look_up(flight: Flight) -> Flight:
    await asyncio.sleep(random.uniform(0.0, LONGEST_WAIT))  # stands for a request to a service
    return with_weather(flight)


def with_weather(flight: Flight) -> Flight:
    found = WEATHER.get((flight["airport"], flight["hour"]))
    return {**flight, "weather": found and tuple(found)}  # peers send no values of classes of their own


@graph.map(known, to=delays)  # one branch ...
def classify(flight: Flight) -> str:
    late = flight["late"]
    return "cancelled" if late is None else "late" if late >= 15 else "on time"


@graph.map(known, to=scores)  # ... and another
def score(flight: Flight) -> int:
    """Returns how many things are bad about the weather; -1 if it is not known."""
    if flight["weather"] is None:
        return -1
    wind, rain, visibility = flight["weather"]
    return ((wind or 0) > 20) + ((rain or 0) > 0) + (visibility is not None and visibility < 3)


@graph.gather(known, delays, scores, to=rated)  # takes a flight, with the results of both branches for it
def combine(flight: Flight, delay: str, weather: int) -> Flight:
    return {**flight, "delay": delay, "weather": weather}


@graph.sink(rated, to=TARGET)
def store(flight: Flight) -> Flight:
    return {name: flight[name] for name in COLUMNS}
