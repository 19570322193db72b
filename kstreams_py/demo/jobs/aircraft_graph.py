"""The second graph of `kstreams demo jobs`: looks up the aircraft of each flight.

One peer handles all flights of an aircraft, so no two peers look up the same aircraft at once.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.demo.data_files import Plane, read_planes

Flight = dict[str, Any]

DIRECTORY = Path(os.environ.get("KSTREAMS_DEMO_DIRECTORY", "."))
LONGEST_LOOK_UP = float(os.environ.get("DEMO_LONGEST_LOOK_UP", "0.002"))
PLANES = read_planes()
UNKNOWN = Plane("unknown", 0)

graph = ks.Graph("aircraft")

SOURCE = sources.SQLite(DIRECTORY / "departures.db", table="departures", key="id", ends=True, lease=2.0)
COLUMNS = {"id": int, "flight": str, "aircraft": str, "model": str, "engines": int}
TARGET = sinks.SQLite(DIRECTORY / "flown.db", table="flown", columns=COLUMNS, evidence="hash")

departures = graph.source("departures", SOURCE)
by_aircraft = graph.channel("by-aircraft", group_by=lambda flight: flight["aircraft"])


@graph.map(departures, to=by_aircraft)
def name(row: Flight) -> Flight:
    flight = f"{row['carrier']} {row['flight']}"
    if row["tailnum"] is None:
        raise ValueError(f"{flight} has no tail number")
    return {"id": row["id"], "flight": flight, "aircraft": row["tailnum"]}


@graph.sink(by_aircraft, to=TARGET)
def look_up(flight: Flight) -> Flight:
    time.sleep(random.uniform(0.0, LONGEST_LOOK_UP))  # stands for a request to a register of aircraft
    return with_plane(flight)


def with_plane(flight: Flight) -> Flight:
    plane = PLANES.get(flight["aircraft"], UNKNOWN)
    return {**flight, "model": plane.model, "engines": plane.engines}
