"""Compares the rows that `kstreams demo channels` has stored with the rows that follow from the file of departures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kstreams_py.demo.channels_graph import classify, combine, parse, score, store, with_weather
from kstreams_py.demo.checks import Check
from kstreams_py.demo.data import FIELDS, Row
from kstreams_py.graph.anomalies import Kind
from kstreams_py.testing.verdicts import compare

StoredRow = tuple[object, ...]
"""A row of the target: a value for each of its columns."""


@dataclass(frozen=True, slots=True)
class RatedFlights:
    """The results that follow from the file alone.

    - `rows`: the rows to be stored.
    - `refused`: the reason why a flight is refused, by the number of the flight.
    """

    rows: Counter[StoredRow]
    refused: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TablesFound:
    """The tables after a run.

    - `rows`: the rows that are stored.
    - `refused`: the reason why an input was refused, by its key.
    - `done`: how many inputs are acknowledged as done.
    - `claimed`: how many inputs were ever claimed.
    - `deaths`: how often an input was under way when its worker died or was frozen past its lease, by its key.
    - `written`: how often a row was written.
    """

    rows: Counter[StoredRow]
    refused: Mapping[int, str]
    done: int
    claimed: int
    deaths: Counter[int]
    written: int


@dataclass(frozen=True, slots=True)
class RunFaults:
    """The faults of a run: how many workers were killed, and how many were frozen."""

    killed: int
    frozen: int


def rate(rows: Iterable[Row]) -> RatedFlights:
    """Computes the expected rows: calls the functions of the graph one after the other, without channels."""
    stored, refused = Counter[StoredRow](), dict[int, str]()
    for number, row in enumerate(rows, 1):
        try:
            flight = with_weather(parse({"id": number, **dict(zip(FIELDS, row, strict=True))}))
        except ValueError as error:
            refused[number] = f"parse: ValueError: {error}"
        else:
            stored[(*store(combine(flight, classify(flight), score(flight))).values(),)] += 1
    return RatedFlights(stored, refused)


def judge_tables(expected: RatedFlights, found: TablesFound) -> list[Check]:
    """Returns the checks of the tables."""
    rows = compare(found.rows, expected.rows).totals
    differing = dict(expected.refused.items() ^ found.refused.items())
    return [
        Check("inputs claimed", expected.rows.total() + len(expected.refused), found.claimed),
        Check("inputs done", expected.rows.total(), found.done),
        Check("inputs refused", len(expected.refused), len(found.refused)),
        Check("inputs refused for another reason", 0, len(differing)),
        Check("rows stored", expected.rows.total(), found.rows.total()),
        Check("rows lost", 0, rows[Kind.LOST]),
        Check("rows doubled", 0, rows[Kind.DUPLICATE]),
        Check("rows altered", 0, rows[Kind.FOREIGN]),
    ]


def judge(expected: RatedFlights, found: TablesFound, planned: RunFaults, faults: RunFaults) -> list[Check]:
    """Returns the table of checks. `planned`: the faults that the run was to have."""
    return [
        *judge_tables(expected, found),
        Check("workers killed", planned.killed, faults.killed),
        Check("workers frozen past their lease", planned.frozen, faults.frozen),
    ]


def describe(found: TablesFound, faults: RunFaults) -> Iterator[str]:
    """Yields the results in plain words."""
    stored = found.rows.total()
    yield (
        f"{found.claimed:,} flights were claimed from a table, and {stored:,} rows stored in another. Workers were "
        f"killed {faults.killed} times meanwhile, and {faults.frozen or 'none'} was frozen for longer than its lease."
    )
    if again := len(found.deaths):
        yield (
            f"{again:,} flights were under way when that happened, and were read again; the unluckiest of them "
            f"{max(found.deaths.values())} times."
        )
    yield (
        f"{found.written:,} rows were written for the {stored:,} that are stored: {found.written - stored:,} of them "
        "were there already, and were recognized by their hash."
    )
    yield f"{len(found.refused):,} flights were refused, and stay in their table with the reason."
