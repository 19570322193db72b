"""Who the members of a group are, asked so that no coordinator that has moved or is down keeps the answer back."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py.errors import Retriable
from kstreams_py.ports.kafka.clients import end, made
from kstreams_py.ports.kafka.errors import ClientLog, log_error

COORDINATOR_SECONDS: Final = 300.0
"""Longer than a coordinator is ever away: librdkafka ends the process if it answers such a request after its limit."""

ASK_SECONDS: Final = 2.0
"""How long one client is waited for, until another one asks as well."""

PAUSE_SECONDS: Final = 0.1
"""Between an answer that the coordinator has moved or is loading, and the next question."""


class GroupReader:
    """Describes groups, each question with a client of its own.

    An admin client keeps to the coordinator that it has found for as long as it is used (librdkafka 2.16 renews the
    entry with each use and never evicts it): one that has moved answers NOT_COORDINATOR for ever (measured). And it
    waits for one that is down until the state of some broker changes.
    """

    def __init__(self, configuration: Mapping[str, Any], log: ClientLog) -> None:
        self._configuration = {
            **configuration,
            # measured: with both, a new client has its answer after 20 ms, and after 95 without
            "enable.metrics.push": False,
            "retry.backoff.ms": 2,
            "error_cb": log.on_error,
        }
        self._log = log
        self._asked: list[tuple[Any, Future[Any]]] = []
        """Clients with their questions, until these are answered."""
        self._lock = threading.Lock()

    def describe(self, group: str, limit: float) -> Any:
        """The group as confluent-kafka describes it.

        Raises KafkaException for what time does not mend, or once `limit` seconds are over; TimeoutError if there was
        no answer at all.
        """
        deadline = time.monotonic() + limit
        waiting: set[Future[Any]] = set()
        try:
            while True:
                waiting.add(self._ask(group))
                answered, waiting = wait(
                    waiting, max(0.0, min(ASK_SECONDS, deadline - time.monotonic())), FIRST_COMPLETED
                )
                over = time.monotonic() + PAUSE_SECONDS >= deadline
                for future in answered:
                    try:
                        return future.result()
                    except ck.KafkaException as error:
                        if over or not isinstance(log_error(error.args[0], ""), Retriable):
                            raise
                if over:
                    raise TimeoutError
                if answered:
                    time.sleep(PAUSE_SECONDS)
        finally:
            with self._lock:
                done = [each for each in self._asked if each[1].done()]
                # `done()` is not asked again: a client that is by now would be in neither list, and end in here
                self._asked = [each for each in self._asked if each not in done]
            end(done)

    def _ask(self, group: str) -> Future[Any]:
        client = made(ck_admin.AdminClient, self._configuration, self._log)
        future: Future[Any] = client.describe_consumer_groups([group], request_timeout=COORDINATOR_SECONDS)[group]
        with self._lock:
            self._asked.append((client, future))
        return future
