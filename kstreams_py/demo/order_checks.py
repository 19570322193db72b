"""Reads the topics of `kstreams demo ordering` as consumers do, and compares the results with the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from kstreams_py.demo.aircraft import AircraftChange, Event, State, apply, differing
from kstreams_py.demo.checks import Check
from kstreams_py.ordering.chain import EventChains, OfferKind
from kstreams_py.ordering.events import place_of
from kstreams_py.records import Message
from kstreams_py.testing.verdicts import overtaken


@dataclass(slots=True)
class Consumed:
    """The result of one consumer group.

    - `states`: the states of the aircraft.
    - `events`: the events of each aircraft, in the order in which they were applied.
    - `copies`, `faults`, `held`: how many events were dropped as copies, were refused, or still wait at the end.
    """

    states: dict[str, State] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    copies: int = 0
    faults: int = 0
    held: int = 0

    def apply(self, name: str, event: Event) -> None:
        """Applies one event."""
        self.states[name] = apply(self.states.get(name), event)
        self.events.setdefault(name, []).append(event)


def consume(records: Iterable[Message]) -> Consumed:
    """Applies each event once, after its predecessor, by the rule of event ordering. The topic may have copies."""
    found = Consumed()
    chains = EventChains({}, lambda: 0.0)
    for record in records:
        name, event = _read(record)
        outcome = chains.offer(name.encode(), *place_of(record.headers() or ()), record.value(), event, 0)
        found.faults += (outcome.fault is not None) + len(outcome.refused)
        if outcome.kind is OfferKind.APPLY:
            found.apply(name, event)
        for held in outcome.released:
            found.apply(name, held.record)
    found.copies, found.held = chains.duplicates, chains.held_events
    return found


def consume_plainly(records: Iterable[Message]) -> Consumed:
    """Applies events in the order of the topic, as a consumer without event ordering does."""
    found = Consumed()
    for record in records:
        found.apply(*_read(record))
    return found


def _read(record: Message) -> tuple[str, Event]:
    event: Event = json.loads(record.value() or b"")
    return (record.key() or b"").decode(), event


def inversions(found: Consumed) -> dict[str, int]:
    """Counts the events that came after a later event of their aircraft, for each aircraft that has such events."""
    counts = {
        name: sum(1 for _ in overtaken(events, line=lambda _: None, rank=lambda event: event["change"]))
        for name, events in found.events.items()
    }
    return {name: count for name, count in counts.items() if count}


class Killed(NamedTuple):
    """How many workers, and how many processes of the consumer groups, were killed."""

    workers: int
    consumers: int


@dataclass(frozen=True, slots=True)
class OrderResults:
    """The results of a run.

    - `changes`: all changes that the front ends had to make.
    - `expected`: the states of the aircraft, computed from the file alone.
    - `stored`: the states of the aircraft in the store of the front ends.
    - `groups`: the result of each consumer group, by its name.
    - `plain`: the result of a consumer without event ordering.
    - `killed`: how many processes were killed.
    - `not_stopped`: how many workers did not exit with status 0 when they were stopped.
    """

    changes: Sequence[AircraftChange]
    expected: Mapping[str, State]
    stored: Mapping[str, State]
    groups: Mapping[str, Consumed]
    plain: Consumed
    killed: Killed
    not_stopped: int = 0


def judge(results: OrderResults) -> list[Check]:
    """Returns the table of checks."""
    events: dict[str, list[Event]] = {}
    for change in results.changes:
        events.setdefault(change.aircraft, []).extend(change.events)
    all_events = sum(map(len, events.values()))
    checks = [
        Check("aircraft", len(results.expected), len(results.stored)),
        Check("changes stored", len(results.changes), sum(state["changes"] for state in results.stored.values())),
        Check("aircraft with another state in the store", 0, _differing(results.stored, results)),
    ]
    for name, group in results.groups.items():
        names = events.keys() | group.events.keys()
        misplaced = sum(group.events.get(each) != events.get(each) for each in names)
        checks += [
            Check(f"{name}: events applied", all_events, sum(map(len, group.events.values()))),
            Check(f"{name}: aircraft with another order of events", 0, misplaced),
            Check(f"{name}: aircraft with another state", 0, _differing(group.states, results)),
            Check(f"{name}: events refused, or waiting at the end", 0, group.faults + group.held),
        ]
    sent = sum(map(len, results.plain.events.values()))
    states = [group.states for group in results.groups.values()]
    disagreeing = {name for one, other in combinations(states, 2) for name in differing(one, other)}
    return [
        *checks,
        Check("aircraft on whose state two groups disagree", 0, len(disagreeing)),
        Check("events sent without ordering", all_events, sent),
        Check("workers that did not stop", 0, results.not_stopped),
    ]


def _differing(states: Mapping[str, State], results: OrderResults) -> int:
    return len(differing(states, results.expected))


def describe(results: OrderResults) -> Iterator[str]:
    """Yields the results in plain words."""
    events = sum(len(change.events) for change in results.changes)
    yield (
        f"{len(results.expected):,} aircraft had {len(results.changes):,} changes with {events:,} events. Four "
        "processes made them, and stored each change with its events in one atomic step. A departure and the arrival "
        "after it are made by different processes."
    )
    copies = max((group.copies for group in results.groups.values()), default=0)
    yield (
        f"Three workers sent the events; {results.killed.workers} times one of them was killed, and started again. "
        f"{copies:,} events are in the topic more than once, because a killed worker sends again what it had sent "
        f"without noting it. {results.killed.consumers} times a process of the consumer groups was killed."
    )
    late = inversions(results.plain)
    contradictions = sum(state["contradictions"] for state in results.plain.states.values())
    misplaced = sum(each["place"] != results.expected[name]["place"] for name, each in results.plain.states.items())
    yield (
        f"Without event ordering the same processes sent the same events: {sum(late.values()):,} of them came after a "
        f"later one, of {len(late):,} aircraft. A consumer that applies them as they come meets {contradictions:,} "
        "contradictions, such as an arrival before its departure, and has a wrong place for "
        f"{misplaced:,} aircraft at the end."
    )
    for name, group in results.groups.items():
        right = len(results.expected) - len(differing(group.states, results.expected))
        yield (
            f"With event ordering, {name}: {right:,} of {len(results.expected):,} aircraft have the state of the file, "
            f"after {sum(map(len, group.events.values())):,} events, each applied once and after the one before it."
        )
