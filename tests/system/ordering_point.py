"""A worker of event ordering that kills itself, once it has come to a point of the algorithm.

`python -m tests.system.ordering_point STORE TOPIC BOOTSTRAP BATCH POINT`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from kstreams_py.cli.options import open_environment
from kstreams_py.kafka.contracts import Output
from kstreams_py.operations.records.topic import find_topic
from kstreams_py.ordering.events import OrderedEvent, Work
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.sending import IDEMPOTENT, KafkaSender
from kstreams_py.ordering.steps import Answer, Begin, BegunObject, Complete, Drop, Find, Own, Pop, Resume, Step, Take
from kstreams_py.ordering.storage import Incarnation
from kstreams_py.ordering.worker import OrderingWorker
from kstreams_py.settings import Settings
from tests.system.launcher import Launched
from tests.waiting import WAIT

NAME: Final = "dying"

STEPS: Final[Mapping[str, Callable[[Step, Answer], bool]]] = {
    "all is begun at once": lambda step, answer: isinstance(step, Begin) and isinstance(answer, BegunObject),
    "a token is taken": lambda step, answer: isinstance(step, Take) and answer is not None,
    "the object is owned": lambda step, answer: isinstance(step, Own) and answer is True,
    "another lane owns the object": lambda step, answer: isinstance(step, Own) and answer is False,
    "events are taken": lambda step, answer: isinstance(step, Pop) and isinstance(answer, Work) and bool(answer.events),
    "events are completed": lambda step, _: isinstance(step, Complete),
    "the object is released": lambda step, answer: isinstance(step, Pop) and answer == Work(),
    "the token is dropped": lambda step, _: isinstance(step, Drop),
    "a start has found an object": lambda step, answer: isinstance(step, Find) and answer is not None,
    "a start has read the events": lambda step, answer: isinstance(step, Resume),
}
"""Points after a step of the store, each with whether a step and its answer are it.

The first one is of a worker that has nothing to go on with.
"""

SENDING: Final = ("before sending", "while it is sent", "acknowledged")

BATCHES: Final = {"all is begun at once": 3}
"""The events in one step, where that is not 1."""


def die_at(point: str, store: str, topic: str, cluster: Any) -> int:
    """The exit status of a worker that was to come to a point."""
    where = (store, topic, cluster.bootstrap_servers, str(BATCHES.get(point, 1)), point)
    return Launched(where, os.environ, "tests.system.ordering_point", stdout=1, stderr=2).wait(WAIT)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingSender(KafkaSender):
    """Dies before it sends, once what it sends is on its way, or once that is acknowledged."""

    point: str

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        if self.point == "before sending":
            die()
        super().send(events)
        if self.point == "acknowledged":
            die()

    def _write(self, outputs: list[Output]) -> None:
        if self.point == "while it is sent":
            producer = self._cluster.producer(IDEMPOTENT, self._name)
            producer.write(outputs)
            die()
        super()._write(outputs)


def main(store: str, topic: str, bootstrap: str, batch: str, point: str) -> None:
    settings = Settings.load(bootstrap_servers=bootstrap)
    with open_environment(settings) as environment, closing(open_storage(store)) as storage:
        run, is_reached = storage.run, STEPS.get(point)

        def run_one_by_one(incarnation: Incarnation, steps: Sequence[Step]) -> list[Answer]:
            answers: list[Answer] = []
            for step in steps:
                answers += run(incarnation, [step])
                if is_reached is not None and is_reached(step, answers[-1]):
                    die()
            return answers

        setattr(storage, "run", run_one_by_one)  # noqa: B010 a method of an object
        sender = DyingSender(environment.cluster, find_topic(environment, topic), NAME, environment.sleep)
        sender.point = point
        OrderingWorker(storage, sender, NAME, lanes=3, batch=int(batch)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
