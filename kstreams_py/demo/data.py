"""The departures of 2013 from New York, and their expected results.

The expected results are computed from the departures alone, without the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")

Row = tuple[Any, ...]
"""One departure: a value for each of FIELDS, None where the file has NA."""

FIELDS: Final = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip

MONTH, DAY, DEP_TIME, DEP_DELAY, ARR_TIME, ARR_DELAY, CARRIER, FLIGHT, TAILNUM = map(
    FIELDS.index, ("month", "day", "dep_time", "dep_delay", "arr_time", "arr_delay", "carrier", "flight", "tailnum")
)
ORIGIN, DEST, AIR_TIME, DISTANCE, HOUR, MINUTE, TIME_HOUR = map(
    FIELDS.index, ("origin", "dest", "air_time", "distance", "hour", "minute", "time_hour")
)

OUTCOMES: Final = ("departed", "cancelled", "errors")
"""The outcomes of a departure. Each has a topic, named `flights.` and the outcome."""

Delays = Mapping[tuple[str, int], tuple[int, float, int]]
"""Per carrier and month: departed flights, their mean arrival delay in minutes, and cancelled flights."""


def spread(items: Sequence[T], number: int | None) -> list[T]:
    """Returns `number` items, spread evenly over all of them, in their order; all if `number` is None or too large."""
    if number is None or number >= len(items):
        return list(items)
    return [items[i * len(items) // number] for i in range(number)]


@dataclass(frozen=True, slots=True)
class ExpectedResults:
    """The expected results of a run."""

    rows: Mapping[str, Counter[Row]]
    """The number of copies of each row in the file, by outcome."""
    delays: Delays

    @property
    def records(self) -> int:
        """The number of departures."""
        return sum(rows.total() for rows in self.rows.values())

    @property
    def without_tail_number(self) -> int:
        """The number of departures whose record has no key."""
        return sum(n for rows in self.rows.values() for row, n in rows.items() if row[TAILNUM] is None)


def expect(rows: Iterable[Row]) -> ExpectedResults:
    """Computes the expected results of these departures."""
    found: dict[str, Counter[Row]] = {outcome: Counter() for outcome in OUTCOMES}
    for row in rows:
        outcome = "cancelled" if row[DEP_TIME] is None else "errors" if row[ARR_DELAY] is None else "departed"
        found[outcome][row] += 1
    return ExpectedResults(found, delays(found["departed"], found["cancelled"]))


def delays(departed: Counter[Row], cancelled: Counter[Row]) -> Delays:
    """Computes the delays of carriers and months with departed flights."""
    flights: Counter[tuple[str, int]] = Counter()
    minutes: Counter[tuple[str, int]] = Counter()
    others: Counter[tuple[str, int]] = Counter()
    for row, n in cancelled.items():
        others[row[CARRIER], row[MONTH]] += n
    for row, n in departed.items():
        flights[row[CARRIER], row[MONTH]] += n
        minutes[row[CARRIER], row[MONTH]] += n * row[ARR_DELAY]
    return {group: (flights[group], minutes[group] / flights[group], others[group]) for group in flights}
