"""A front end of `kstreams demo ordering`: a process that changes aircraft, and sends the events in two ways.

For each change, it stores the new state and queues the events in one atomic step. For comparison, it also sends the
same events itself, as a program without event ordering does: after the change is stored, through its own producer,
which collects records for a moment. The front ends collect for different lengths of time, so events overtake each
other.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final
from uuid import uuid4

from kstreams_py.demo import data_files
from kstreams_py.demo.aircraft import AircraftChange, State, apply_all, changes, of_front_end
from kstreams_py.errors import StoreUnavailable
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import Output, Producer
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.sending import IDEMPOTENT
from kstreams_py.settings import Settings

COLLECT_SECONDS: Final = 1.0
"""The longest that a producer without event ordering collects records; each actual duration is random."""

ATTEMPTS: Final = 5
"""How many times a front end tries to store a change while the store does not answer."""

_LOOK_SECONDS: Final = 0.002


@dataclass(frozen=True, slots=True)
class FrontEndTask:
    """The task of one front-end process.

    - `name`: one of aircraft.FRONT_ENDS.
    - `flights`: how many departures of the file it reads.
    - `topic`: the topic of the events that it sends itself.
    - `began`: when the changes begin, in seconds since 1970; they are spread evenly over `seconds`.
    - `seed`: the seed of the times for which the producer collects.
    """

    name: str
    flights: int
    store: str
    prefix: str
    topic: str
    began: float
    seconds: float
    seed: int

    def arguments(self) -> list[str]:
        """Returns the part of its process's command line that follows `python -m`."""
        return ["kstreams_py.demo.front_end", json.dumps(asdict(self))]


class Plain:
    """Sends events as a program without event ordering does."""

    def __init__(self, producer: Producer, topic: str, seed: int) -> None:
        self._producer = producer
        self._topic = topic
        self._random = random.Random(seed)
        self._collected: list[Output] = []
        self._due = 0.0

    def tell(self, change: AircraftChange) -> None:
        """Collects the events of a stored change."""
        for event in change.events:
            value, key = json.dumps(event).encode(), change.aircraft.encode()
            self._collected.append((self._topic, value, key, -1, None, None, 0, None))

    def look(self, now: float) -> None:
        """Sends the collected events if they are due. `now`: seconds."""
        if now >= self._due:
            self._producer.write(self._collected)
            self._due = now + self._random.uniform(0.0, COLLECT_SECONDS)

    def flush(self) -> None:
        """Sends all events, and waits until they are acknowledged."""
        self._producer.write(self._collected)
        self._producer.flush()


class FrontEnd:
    """Makes the changes of one front end, in their order."""

    def __init__(self, ordering: Ordering, plain: Plain, task: FrontEndTask) -> None:
        self._ordering = ordering
        self._plain = plain
        self._task = task

    def run(self) -> None:
        """Makes all changes. Raises StoreUnavailable, and the exceptions of the producer."""
        everything = changes(data_files.read_first(self._task.flights))
        places = {(change.aircraft, change.number): place for place, change in enumerate(everything)}
        for change in of_front_end(everything, self._task.name):
            share = places[change.aircraft, change.number] / len(everything)
            self._wait_until(self._task.began + self._task.seconds * share)
            self._make(change)
            self._plain.tell(change)
        self._plain.flush()

    def _wait_until(self, due: float) -> None:
        self._plain.look(time.time())
        while (left := due - time.time()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            self._plain.look(time.time())

    def _make(self, change: AircraftChange) -> None:
        """Stores a change once the previous one is stored."""
        while (state := self._state(change))["changes"] < change.number - 1:
            self._wait_until(time.time() + _LOOK_SECONDS)
        uuid = uuid4()
        for attempt in range(ATTEMPTS):
            try:
                self._ordering.enqueue(
                    change.aircraft,
                    apply_all(state, change.events),
                    change.event,
                    sub_events=change.sub_events,
                    uuid=uuid,  # another attempt at a stored change stores nothing
                )
            except StoreUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return

    def _state(self, change: AircraftChange) -> State:
        return apply_all(self._ordering.data(change.aircraft), ())


def main(text: str) -> None:
    """Runs a front end. `text`: its FrontEndTask as JSON."""
    task = FrontEndTask(**json.loads(text))
    producer = KafkaCluster(Settings.load()).producer(IDEMPOTENT, f"front end {task.name}")
    with closing(Ordering(task.store, prefix=task.prefix)) as ordering:
        FrontEnd(ordering, Plain(producer, task.topic, task.seed), task).run()
    producer.drop()


if __name__ == "__main__":
    main(sys.argv[1])
