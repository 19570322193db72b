"""The consumers of `kstreams demo ordering`: three groups, each of which keeps the state of every aircraft.

Each group pauses at random, for longer than the group before it, so that no two groups are at the same event. Pauses do
not change the result: a slow group reaches the same states.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

import kstreams_py as ks
from kstreams_py.demo.aircraft import Event, apply
from kstreams_py.graph.declarations import Processor

NAME: Final = "aircraft"
EVENTS: Final = "aircraft.events"
PARTITIONS: Final = 3

PAUSES: Final = {"airline": 0.02, "tower": 0.06, "workshop": 0.2}
"""The longest pause of each group, in seconds."""

_EVENTS_PER_PAUSE: Final = 100

graph = ks.Graph(NAME, errors=f"{NAME}.errors")
events = graph.topic(EVENTS, key=ks.String(), value=ks.Json(), partitions=PARTITIONS)


def _declare(group: str, pause: float) -> None:
    """Declares a consumer group, which writes each event that it applies."""
    applied = graph.topic(topic_of(group), key=ks.String(), value=ks.Json(), partitions=PARTITIONS)
    chance = random.Random()

    @graph.ordered(events, to=applied, id=group, state=ks.State(group))
    def _apply(event: Event, step: ks.Step, state: Any) -> Event:
        if not chance.randrange(_EVENTS_PER_PAUSE):
            time.sleep(chance.uniform(0.0, pause))
        state.put(step.key, apply(state.get(step.key), event))
        return event


def topic_of(group: str) -> str:
    """Returns the topic of the events that a group has applied, in their order."""
    return f"{NAME}.{group}"


def processor_of(group: str) -> Processor:
    """Returns the processor of a group."""
    return next(each for each in graph.processors if each.id == group)


for _group, _pause in PAUSES.items():
    _declare(_group, _pause)
