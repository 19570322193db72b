"""Attempts at requests and commits: how many, how long to wait between them, and when the worker gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from kstreams_py.errors import Abortable, BrokerUnavailable, ClientError, Fatal, Refused, Retriable, SinkAway
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.metrics import WorkerState

logger = logging.getLogger(__name__)
T = TypeVar("T")

CALLS_MAX: Final = 5
"""Attempts at one call that raises Retriable, before its transaction is given up."""

FAILURES_WARNED: Final = 3
"""From this many failures in a row on, each one is logged as a warning, and the next attempt waits."""

FAILURES_MAX: Final = 40
"""Failures in a row, not counting outages, before the worker gives up: after about three minutes."""

WAIT_MAX: Final = 5.0
"""The longest wait between two attempts, in seconds."""

PRODUCERS_MAX: Final = 10
"""New producers in a row without a commit between them, before the worker gives up."""


class Attempts:
    """Counts the failures of one worker since its last commit, and waits before the next attempt.

    - `processor`: its id, for the log.
    - `transactional_id`: names the worker in the errors that end it.
    - `sleep`: waits for a number of seconds.
    """

    def __init__(self, processor: str, transactional_id: str, sleep: Callable[[float], None]) -> None:
        self._processor = processor
        self._id = transactional_id
        self._sleep = sleep
        self._failures = 0
        self._no_outages = 0
        """How many failures were not caused by an absent broker or sink."""
        self._producers = 0
        self.away: WorkerState | None = None
        """The worker's state, if its last attempt failed because a broker or sink is away. Any thread may read it."""
        self._is_away = False
        """Whether attempts failed because a broker is away, and none has succeeded since."""
        self.cause = ""
        """The message of the last failure. Another thread may read it."""

    def committed(self) -> None:
        """Resets the counts."""
        self.answered()
        self._failures = self._no_outages = self._producers = 0

    def answered(self) -> None:
        """Notes that the broker has answered."""
        self.away = None
        if self._is_away:
            self._is_away = False
            logger.info("%s: the broker answers again", self._processor, extra=answers(self._id))

    def call(self, call: Callable[[], object]) -> None:
        """Makes the call up to CALLS_MAX times, while it raises Retriable."""
        for attempt in range(1, CALLS_MAX):
            try:
                call()
            except Retriable as error:
                self._is_away = True
                logger.info("%s: %s; again", self._id, error, extra=away(self._id))
                self._sleep(min(0.05 * 2**attempt, 1.0))
            else:
                if attempt > 1:
                    self.answered()
                return
        call()

    def ask(self, requests: Callable[[], T]) -> T:
        """Makes requests for a running worker, which waits while no broker answers.

        Raises Retriable if no broker answers, BrokerUnavailable if a broker refuses the credentials: the next start may
        have others.
        """
        try:
            return requests()
        except BrokerUnavailable as error:
            if not error.may_return:
                raise
            raise Retriable(str(error)) from None

    def failed(self, error: ClientError, then: str) -> None:
        """Logs a failure and the reaction to it (`then`), and waits if there were several in a row.

        Raises Fatal after FAILURES_MAX of them. Failures because a broker or sink is away do not count: the worker
        waits for them without limit, and the rebalance after a long outage must not end the worker.
        """
        self.cause = str(error)
        if isinstance(error, Refused):
            logger.info("%s: %s; looking for the record", self._processor, error)
            self._producers = 0  # the producer is not at fault, and the search by halving ends
            return
        self.away = _what_is_away(error)
        self._failures += 1
        self._no_outages += self.away is None
        level = logging.WARNING if self._failures >= FAILURES_WARNED else logging.INFO
        is_of_broker = self.away is WorkerState.BROKER_AWAY
        self._is_away |= is_of_broker
        extra = away(self._id) if is_of_broker else repeated(f"failures of {self._id}", str(error))
        logger.log(level, "%s: %s; %s", self._processor, error, then, extra=extra)
        if self._no_outages >= FAILURES_MAX:
            raise Fatal(
                f"{self._id}: {self._failures} attempts in a row failed, at last by: {error}: remove "
                "the cause, then start the worker again"
            )
        if self._failures >= FAILURES_WARNED:
            self._sleep(min(0.05 * 2 ** min(self._failures - FAILURES_WARNED, 10), WAIT_MAX))

    def producer_failed(self, error: ClientError) -> None:
        """Counts a new producer that could not start, and logs why."""
        self._producers += 1
        self.away = _what_is_away(error)
        is_of_broker = self.away is not None
        self._is_away |= is_of_broker
        extra = away(self._id) if is_of_broker else repeated(f"producers of {self._id} that failed", str(error))
        logger.warning("%s: %s; trying again", self._id, error, extra=extra)
        self.cause = str(error)

    def producer_started(self) -> None:
        """Counts a new producer."""
        self._producers += 1

    def next_producer(self) -> None:
        """Waits before a new producer if the last one did not commit. Raises Fatal after PRODUCERS_MAX of them."""
        if self._producers > PRODUCERS_MAX:
            raise Fatal(
                f"{self._id}: {PRODUCERS_MAX} producers in a row could not commit, at last by: {self.cause}: "
                "remove the cause, then start the worker again"
            )
        if self._producers:
            self._sleep(min(0.1 * 2**self._producers, WAIT_MAX))


def _what_is_away(error: ClientError) -> WorkerState | None:
    if isinstance(error, SinkAway):
        return WorkerState.SINK_AWAY
    unanswered = isinstance(error, Retriable) or (isinstance(error, Abortable) and error.unanswered)
    return WorkerState.BROKER_AWAY if unanswered else None
