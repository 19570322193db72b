"""The events of aircraft in the file of departures: an aircraft is an object of event ordering.

A departure makes two changes to its aircraft, `departed` and `arrived` (or `diverted`), or one, `cancelled`. Each
change has a main event, and sub-events: minutes of delay, miles and minutes in the air. The changes of an aircraft are
in the order of the file; the changes of all aircraft are merged by New York time.

Four front ends make the changes: one for each airport of New York, and one for all arrivals. So the departure and the
arrival of an aircraft come from different processes. The state of an aircraft has the number of its changes, so that a
front end can wait until the previous change is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.demo.data import (
    AIR_TIME,
    ARR_DELAY,
    ARR_TIME,
    CARRIER,
    DAY,
    DEP_DELAY,
    DEP_TIME,
    DEST,
    DISTANCE,
    FLIGHT,
    HOUR,
    MINUTE,
    MONTH,
    ORIGIN,
    TAILNUM,
    Row,
)

Event = dict[str, Any]
"""An event: `change` (the number of its change), `event` (its kind), and the values of this kind of event."""

State = dict[str, Any]
"""The state of an aircraft after the changes so far: see NEW."""

ARRIVALS: Final = "arrivals"
FRONT_ENDS: Final = ("EWR", "JFK", "LGA", ARRIVALS)

NEW: Final[State] = {
    "changes": 0,
    "place": None,
    "flights": 0,
    "cancelled": 0,
    "delayed": 0,
    "late": 0,
    "miles": 0,
    "minutes": 0,
    "contradictions": 0,
}
"""The state before the first change.

- `place`: an airport, or two while in the air; None if it is not known.
- `delayed`, `late`: minutes at departures and at arrivals.
- `contradictions`: the number of events that contradict the state before them.
"""

IN_THE_AIR: Final = "-"
"""Separates the two airports of a flight in the air."""

_DAYS: Final = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334)
_TAXI_MINUTES: Final = 20
_MILES_PER_MINUTE: Final = 7


@dataclass(frozen=True, slots=True)
class AircraftChange:
    """A change of an aircraft, which a front end stores in one atomic step.

    - `number`: its number among the changes of the aircraft, from 1 on.
    - `minute`: minutes since the beginning of the year.
    """

    aircraft: str
    number: int
    minute: int
    front_end: str
    event: Event
    sub_events: tuple[Event, ...] = ()

    @property
    def events(self) -> tuple[Event, ...]:
        """All events of the change: the main event, then the sub-events."""
        return (self.event, *self.sub_events)


def changes(rows: Iterable[Row]) -> list[AircraftChange]:
    """Returns the changes of all aircraft, sorted by time; the changes of each aircraft keep the order of the file.

    Rows without an aircraft are left out. An aircraft that has not arrived in time for its next departure in the file
    departs a minute after its arrival.
    """
    newest: dict[str, AircraftChange] = {}
    found = []
    for row in rows:
        if (name := row[TAILNUM]) is None:
            continue
        for front_end, minute, event, sub_events in _happenings(row):
            before = newest.get(name)
            number, earliest = (1, 0) if before is None else (before.number + 1, before.minute + 1)
            numbered = [{"change": number, **each} for each in (event, *sub_events)]
            newest[name] = AircraftChange(
                name, number, max(minute, earliest), front_end, numbered[0], tuple(each for each in numbered[1:])
            )
            found.append(newest[name])
    return sorted(found, key=lambda change: change.minute)


def _happenings(row: Row) -> list[tuple[str, int, Event, list[Event]]]:
    """Returns front end, minute, main event and sub-events of each change of a departure."""
    flight, origin = f"{row[CARRIER]}{row[FLIGHT]}", row[ORIGIN]
    minute = ((_DAYS[row[MONTH] - 1] + row[DAY] - 1) * 24 + row[HOUR]) * 60 + row[MINUTE]
    if row[DEP_TIME] is None:
        return [(origin, minute, {"event": "cancelled", "flight": flight, "airport": origin}, [])]
    minute = max(0, minute + row[DEP_DELAY])
    departed = {"event": "departed", "flight": flight, "airport": origin, "to": row[DEST]}
    first = (origin, minute, departed, _minutes("delayed", row[DEP_DELAY]))
    minute += _TAXI_MINUTES + (row[AIR_TIME] or row[DISTANCE] // _MILES_PER_MINUTE)
    if row[ARR_TIME] is None:
        return [first, (ARRIVALS, minute, {"event": "diverted", "flight": flight}, [])]
    arrived = {"event": "arrived", "flight": flight, "airport": row[DEST]}
    flown = {"event": "flown", "miles": row[DISTANCE], "minutes": row[AIR_TIME] or 0}
    return [first, (ARRIVALS, minute, arrived, [flown, *_minutes("late", row[ARR_DELAY])])]


def _minutes(event: str, minutes: int | None) -> list[Event]:
    return [{"event": event, "minutes": minutes}] if minutes is not None and minutes > 0 else []


def of_front_end(found: Iterable[AircraftChange], name: str) -> list[AircraftChange]:
    """Returns the changes that a front end makes, in their order."""
    return [change for change in found if change.front_end == name]


def apply(state: State | None, event: Event) -> State:
    """Returns the state of an aircraft after an event. Events may come in any order."""
    after = dict(NEW if state is None else state)
    match event["event"]:
        case "delayed" | "late" as what:
            after[what] += event["minutes"]
        case "flown":
            after["miles"] += event["miles"]
            after["minutes"] += event["minutes"]
        case main:
            after["changes"] += 1
            after["cancelled"] += main == "cancelled"
            after["flights"] += main == "departed"
            if main != "cancelled":
                at = event.get("airport")
                after["place"] = f"{at}{IN_THE_AIR}{event['to']}" if main == "departed" else at
    if event["change"] != after["changes"]:
        after["contradictions"] += 1
    return after


def apply_all(state: State | None, events: Iterable[Event]) -> State:
    """Returns the state of an aircraft after these events."""
    for event in events:
        state = apply(state, event)
    return dict(NEW) if state is None else state


def expected_states(rows: Iterable[Row]) -> dict[str, State]:
    """Computes the final states of all aircraft from the file alone, without events."""
    by_aircraft: dict[str, list[Row]] = {}
    for row in rows:
        if row[TAILNUM] is not None:
            by_aircraft.setdefault(row[TAILNUM], []).append(row)
    return {name: _expected(each) for name, each in by_aircraft.items()}


def _expected(rows: Sequence[Row]) -> State:
    flown = [row for row in rows if row[DEP_TIME] is not None]
    arrived = [row for row in flown if row[ARR_TIME] is not None]
    return {
        "changes": len(rows) + len(flown),
        "place": flown[-1][DEST] if flown and flown[-1][ARR_TIME] is not None else None,
        "flights": len(flown),
        "cancelled": len(rows) - len(flown),
        "delayed": sum(max(0, row[DEP_DELAY]) for row in flown),
        "late": sum(max(0, row[ARR_DELAY] or 0) for row in arrived),
        "miles": sum(row[DISTANCE] for row in arrived),
        "minutes": sum(row[AIR_TIME] or 0 for row in arrived),
        "contradictions": 0,
    }


def differing(found: Mapping[str, State], expected: Mapping[str, State]) -> list[str]:
    """Returns the aircraft whose states differ."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
