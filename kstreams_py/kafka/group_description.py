"""Describes groups, even if the coordinator that a client knows has moved or is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py.errors import Retriable
from kstreams_py.kafka.clients import end, new_client
from kstreams_py.kafka.errors import ClientLog, classify

COORDINATOR_SECONDS: Final = 300.0
"""Time-out of a request, longer than a coordinator is ever away: librdkafka ends the process at a later answer."""

ASK_SECONDS: Final = 2.0
"""Seconds without an answer until another client asks as well."""

PAUSE_SECONDS: Final = 0.1
"""Seconds before the next request, after an answer that the coordinator has moved or is loading."""


class GroupReader:
    """Describes groups, with a new client for each request.

    An admin client keeps the coordinator that it has found while it is used (librdkafka 2.16 renews the entry with each
    use and never evicts it): a coordinator that has moved answers NOT_COORDINATOR for ever (measured). If it is down,
    the client waits until the state of some broker changes.
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
        """Clients, each with its unanswered request."""
        self._lock = threading.Lock()

    def describe(self, group: str, limit: float) -> Any:
        """The group as confluent-kafka describes it.

        Raises KafkaException for an error that is not retriable, or for any error once `limit` seconds have passed;
        TimeoutError if there was no answer at all.
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
                        if over or not isinstance(classify(error.args[0], ""), Retriable):
                            raise
                if over:
                    raise TimeoutError
                if answered:
                    time.sleep(PAUSE_SECONDS)
        finally:
            with self._lock:
                done = [each for each in self._asked if each[1].done()]
                # `done()` is called once: a client answered between two calls would be in neither list, and end here
                self._asked = [each for each in self._asked if each not in done]
            end(done)

    def _ask(self, group: str) -> Future[Any]:
        client = new_client(ck_admin.AdminClient, self._configuration, self._log)
        future: Future[Any] = client.describe_consumer_groups([group], request_timeout=COORDINATOR_SECONDS)[group]
        with self._lock:
            self._asked.append((client, future))
        return future
