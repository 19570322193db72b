"""A worker: takes queued events from a store, and sends each object's events in one order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol
from uuid import uuid4

from kstreams_py.errors import StoreUnavailable
from kstreams_py.log_fields import repeated
from kstreams_py.ordering.events import Ordered
from kstreams_py.ordering.steps import Begin, Lane, Step, Take
from kstreams_py.ordering.storage import Incarnation, Storage

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""Longest wait for a token, after which a worker looks whether it has to stop."""

STORE_WAIT_MAX: Final = 2.0
"""Seconds between two attempts at a store that is away, at most."""

STOP_ATTEMPTS: Final = 5
"""Attempts in a row at a store that is away, after which a worker that is being stopped waits for it no longer."""


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

    So it does again after a step without an answer, which was done or not: it waits for the store, registers, and asks.

    - `name`: the worker's. It is the identity by which what it holds is found after a crash: no two processes may have
      the same one at a time, and the older one of two ends with Replaced.
    - `lanes`: objects that are in work at once.
    - `batch`: events of an object that are taken, sent and completed in one step each; 1 is the algorithm's letter.
    - `sleep`: waits for a number of seconds.
    """

    def __init__(
        self,
        storage: Storage,
        sender: Sender,
        name: str,
        *,
        lanes: int,
        batch: int,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._storage = storage
        self._sender = sender
        self._name = name
        self._count = lanes
        self._batch = batch
        self._sleep = sleep
        self._process = uuid4().hex
        self._stopping = threading.Event()
        self._incarnation: Incarnation | None = None
        self._lanes: list[Lane] = []
        self._found = 0
        """Tokens that were found in the last turn."""

    def start(self) -> None:
        """Registers, and takes up what is held under the name. What was asked for before is refused from now on."""
        is_known = self._incarnation is not None
        incarnation = self._storage.register(self._name, self._count, self._process, again=is_known)
        self._incarnation = incarnation
        self._lanes = [Lane.start(incarnation.lane(index), self._batch) for index in range(incarnation.lanes)]
        self._found = 0
        logger.info("ordering worker %s: start %d under this name", self._name, incarnation.number)

    def run(self) -> None:
        """Runs until `stop`, then gives its objects back. Waits for a store that is away.

        Raises Replaced; InputLost if the store has forgotten the worker; StoreUnavailable if the store will not return
        by itself, or is away while the worker is being stopped; and what sending raises.
        """
        registered, failures = False, 0
        while not (registered and self._stopping.is_set() and self.is_idle):
            try:
                if not registered:
                    self.start()
                    registered = True
                self.turn(WAIT_SECONDS)
            except StoreUnavailable as error:
                registered, failures = False, failures + 1
                self._await_store(error, failures)
            else:
                if failures:
                    logger.info("ordering worker %s: %s answers again", self._name, self._storage)
                failures = 0

    def _await_store(self, error: StoreUnavailable, failures: int) -> None:
        """Waits until the next attempt at a store that is away. Raises StoreUnavailable if there is none."""
        if not error.may_return:
            raise error
        if self._stopping.is_set() and failures >= STOP_ATTEMPTS:
            text = f"{error}; what worker {self._name} holds waits for its next start, or a takeover"
            raise StoreUnavailable(text) from error
        extra = repeated(f"failures of the store of ordering worker {self._name}", str(error))
        logger.warning("ordering worker %s waits for its store: %s", self._name, error, extra=extra)
        self._sleep(min(0.1 * 2**failures, STORE_WAIT_MAX))

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
            isinstance(step, Take | Begin) and found is not None for step, found in zip(steps, answers, strict=True)
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
