"""A worker: takes queued events from a store, and sends each object's events in a fixed order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol
from uuid import uuid4

from kstreams_py.errors import StoreUnavailable
from kstreams_py.log_fields import repeated
from kstreams_py.ordering.events import OrderedEvent
from kstreams_py.ordering.steps import Begin, Lane, Step, Take
from kstreams_py.ordering.storage import Incarnation, Storage

logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
"""The longest wait for a token, after which a worker checks whether it has to stop."""

STORE_WAIT_MAX: Final = 2.0
"""The longest wait between two attempts to reach a store that does not answer, in seconds."""

STOP_ATTEMPTS: Final = 5
"""After this many failed attempts in a row, a worker that is being stopped no longer waits for its store."""


class Sender(Protocol):
    """Sends events to the consumers."""

    def send(self, events: Sequence[tuple[str, OrderedEvent]]) -> None:
        """Sends events, each with its object, in this order; they are durable when this returns.

        An event may have been sent before, with the same id and predecessor. Raises KStreamsError when it gives up.
        """

    def close(self) -> None:
        """Ends the client."""


class OrderingWorker:
    """One process under the name of a worker. It begins with the work that its predecessor has left unfinished.

    A step without an answer may or may not have been carried out. The worker then waits for the store, registers again,
    and asks what it holds.

    - `name`: the name of the worker; after a crash, the worker finds the work that it holds by this name. Two processes
      must not have the same name at the same time: the older one ends with Replaced.
    - `lanes`: how many objects are worked on concurrently.
    - `batch`: how many events of an object are taken, sent and completed in one step each. With 1, the steps are
      exactly as in the algorithm's description.
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
        """The number of tokens that were found in the last turn."""

    def start(self) -> None:
        """Registers, and takes up the work held under the name. Late steps of earlier registrations are refused."""
        is_known = self._incarnation is not None
        incarnation = self._storage.register(self._name, self._count, self._process, again=is_known)
        self._incarnation = incarnation
        self._lanes = [Lane.start(incarnation.lane(index), self._batch) for index in range(incarnation.lanes)]
        self._found = 0
        logger.info("ordering worker %s: start %d under this name", self._name, incarnation.number)

    def run(self) -> None:
        """Runs until `stop`, then gives its objects back. Waits for a store that does not answer.

        Raises:
        - Replaced
        - InputLost if the store has forgotten the worker
        - StoreUnavailable if the store will not return by itself, or does not answer while the worker is being stopped
        - the exceptions of the sender
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
        """Waits before the next attempt to reach the store. Raises StoreUnavailable if there will be none."""
        if not error.may_return:
            raise error
        if self._stopping.is_set() and failures >= STOP_ATTEMPTS:
            text = f"{error}; what worker {self._name} holds waits for its next start, or a takeover"
            raise StoreUnavailable(text) from error
        extra = repeated(f"failures of the store of ordering worker {self._name}", str(error))
        logger.warning("ordering worker %s waits for its store: %s", self._name, error, extra=extra)
        self._sleep(min(0.1 * 2**failures, STORE_WAIT_MAX))

    def stop(self) -> None:
        """Makes `run` end once the events that the worker has taken are sent. Any thread may call this."""
        self._stopping.set()

    @property
    def is_idle(self) -> bool:
        """Whether no lane holds an object."""
        return all(lane.is_idle for lane in self._lanes)

    def turn(self, seconds: float) -> None:
        """Runs the next steps of the lanes, then sends the events that were taken; without work, waits for a token.

        - `seconds`: the longest wait.
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
        """Runs the steps of the chosen lanes, each up to the first step whose answer decides what follows."""
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
        """Yields the lanes that hold an object, and idle lanes: at least one, at most twice the tokens last found."""
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
