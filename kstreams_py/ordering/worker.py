"""A worker: takes queued events from a store, and sends each object's events in one order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from kstreams_py.ordering.events import Ordered
from kstreams_py.ordering.steps import Lane, Step, Take
from kstreams_py.ordering.storage import Incarnation, Storage

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""Longest wait for a token, after which a worker looks whether it has to stop."""


class Sender(Protocol):
    """Sends events to where consumers read them."""

    def send(self, events: Sequence[tuple[str, Ordered]]) -> None:
        """Sends events, each with its object, in this order; they are durable when this returns.

        An event may have been sent before, with the same id and predecessor. Raises KStreamsError where it gives up.
        """

    def close(self) -> None:
        """Ends the client."""


class OrderingWorker:
    """One process under the name of a worker. It begins with what a process before it has left unfinished.

    - `name`: the worker's. It is the identity by which what it holds is found after a crash: no two processes may have
      the same one at a time, and the older one of two ends with Replaced.
    - `lanes`: objects that are in work at once.
    - `batch`: events of an object that are taken, sent and completed in one step each; 1 is the algorithm's letter.
    """

    def __init__(self, storage: Storage, sender: Sender, name: str, *, lanes: int, batch: int) -> None:
        self._storage = storage
        self._sender = sender
        self._name = name
        self._count = lanes
        self._batch = batch
        self._stopping = threading.Event()
        self._incarnation: Incarnation | None = None
        self._lanes: list[Lane] = []
        self._found = 0
        """Tokens that were found in the last turn."""

    def start(self) -> None:
        """Registers, and takes up what the process before it held. Steps of that process are refused from now on."""
        incarnation = self._storage.register(self._name, self._count)
        self._incarnation = incarnation
        self._lanes = [Lane.start(incarnation.lane(index), self._batch) for index in range(incarnation.lanes)]
        logger.info("ordering worker %s: process %d of this name", self._name, incarnation.number)

    def run(self) -> None:
        """Runs until `stop`, then gives its objects back.

        Raises Replaced, StoreUnavailable, and what sending raises.
        """
        self.start()
        while not (self._stopping.is_set() and self.is_idle):
            self.turn(WAIT_SECONDS)

    def stop(self) -> None:
        """Lets `run` end once the events in work are sent. Any thread may call this."""
        self._stopping.set()

    @property
    def is_idle(self) -> bool:
        """No lane holds an object."""
        return all(lane.is_idle for lane in self._lanes)

    def turn(self, seconds: float) -> None:
        """Runs the next steps of each lane, then sends what was taken; without work, waits for a token.

        `seconds`: the longest wait.
        """
        assert self._incarnation is not None, "the worker was not started"
        self._run(self._incarnation)
        self._send()
        if self.is_idle and not self._stopping.is_set():
            if len(self._lanes) > self._count:
                self._storage.retire(self._incarnation, self._count)
                del self._lanes[self._count :]
            if not self._found:
                self._storage.await_token(seconds)

    def _run(self, incarnation: Incarnation) -> None:
        """Runs the steps of the lanes, of each up to the first one whose answer decides what follows."""
        stops = self._stopping.is_set()
        steps: list[Step] = []
        answered: dict[int, int] = {}
        for index, chosen in self._choose():
            unanswered, lane = chosen.chain(stops=stops)
            steps += unanswered
            if lane.step is not None and (not lane.is_idle or self._may_take(index)):
                answered[index] = len(steps)
                steps.append(lane.step)
            self._lanes[index] = lane
        answers = self._storage.run(incarnation, steps) if steps else []
        self._found = sum(
            isinstance(step, Take) and found is not None for step, found in zip(steps, answers, strict=True)
        )
        for index, at in answered.items():
            self._lanes[index] = self._lanes[index].after(answers[at])

    def _choose(self) -> Iterator[tuple[int, Lane]]:
        """The lanes that hold an object, and some of the idle ones: twice as many as have found a token last time."""
        idle = max(1, 2 * self._found)
        for index, lane in enumerate(self._lanes):
            if not lane.is_idle:
                yield index, lane
            elif idle and self._may_take(index):
                idle -= 1
                yield index, lane

    def _may_take(self, index: int) -> bool:
        return index < self._count and not self._stopping.is_set()

    def _send(self) -> None:
        taken = [(index, lane) for index, lane in enumerate(self._lanes) if lane.step is None]
        if taken:
            self._sender.send([(lane.object, each) for _, lane in taken for each in lane.work])
            for index, lane in taken:
                self._lanes[index] = lane.sent()
