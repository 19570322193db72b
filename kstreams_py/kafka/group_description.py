"""Describes groups, even if the coordinator that a client knows has moved or is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Final, NamedTuple

import confluent_kafka as ck
from confluent_kafka import admin as ck_admin

from kstreams_py.errors import Retriable
from kstreams_py.kafka.clients import end, new_client
from kstreams_py.kafka.errors import ClientLog, classify

COORDINATOR_SECONDS: Final = 300.0
"""Timeout of a request, longer than a coordinator's outage: a later answer makes librdkafka end the process."""

ASK_SECONDS: Final = 2.0
"""Seconds without an answer until another client asks, too; doubled with each client that waits."""

ASK_SECONDS_MOST: Final = 60.0
"""The most that ASK_SECONDS grows to: in an outage, about 10 clients wait for a group, each with 4 threads."""

PAUSE_SECONDS: Final = 0.1
"""Seconds to wait after an answer that the coordinator has moved or is loading, before the next request."""


class _Asked(NamedTuple):
    """A request: its group, the monotonic time at which it was sent, its client, and its answer."""

    group: str
    at: float
    client: Any
    future: Future[Any]


class GroupReader:
    """Describes groups, with a new client for each request.

    An admin client in use keeps the coordinator that it has found: librdkafka 2.16 renews the entry with each use and
    never evicts it. If the coordinator has moved, the client gets NOT_COORDINATOR forever (measured). If the
    coordinator is down, the client waits until the state of some broker changes.
    """

    def __init__(self, configuration: Mapping[str, Any], log: ClientLog) -> None:
        self._configuration = {
            **configuration,
            # measured: a new client gets its answer after 20 ms with both, and after 95 ms without
            "enable.metrics.push": False,
            "retry.backoff.ms": 2,
            "error_cb": log.on_error,
        }
        self._log = log
        self._asked: list[_Asked] = []
        """The unanswered requests of all callers."""
        self._lock = threading.Lock()

    def describe(self, group: str, limit: float) -> Any:
        """Returns the group as confluent-kafka describes it.

        Raises KafkaException for an error that is not retriable, or for any error once `limit` seconds have passed, and
        TimeoutError if the last request has no answer by then.
        """
        deadline = time.monotonic() + limit
        mine: set[Future[Any]] = set()
        try:
            while True:
                if self._may_ask(group):
                    mine.add(self._ask(group))
                # an answer to an earlier call may be old: it only shows that another request is worthwhile
                seconds = max(0.0, min(ASK_SECONDS, deadline - time.monotonic()))
                wait([future for _, future in self._requests(group)], seconds, FIRST_COMPLETED)
                over = time.monotonic() + PAUSE_SECONDS >= deadline
                answered = {future for future in mine if future.done()}
                mine -= answered
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
                self._end_answered()
        finally:
            self._end_answered()

    def close(self) -> None:
        """Ends each client once it has its answer: one that comes later makes librdkafka end the process (measured)."""
        with self._lock:
            left, self._asked = self._asked, []
        if left:
            threading.Thread(target=_end_once_answered, args=[left], name="ending clients", daemon=True).start()

    def _may_ask(self, group: str) -> bool:
        """Returns whether to send another request for a group: none was sent, or those sent have waited long enough."""
        sent = [at for at, _ in self._requests(group)]
        return not sent or time.monotonic() - sent[-1] >= min(ASK_SECONDS * 2 ** (len(sent) - 1), ASK_SECONDS_MOST)

    def _requests(self, group: str) -> list[tuple[float, Future[Any]]]:
        """Returns the requests of a group whose clients have not been ended: when each was sent, and its answer."""
        with self._lock:
            return [(each.at, each.future) for each in self._asked if each.group == group]

    def _ask(self, group: str) -> Future[Any]:
        client = new_client(ck_admin.AdminClient, self._configuration, self._log)
        future: Future[Any] = client.describe_consumer_groups([group], request_timeout=COORDINATOR_SECONDS)[group]
        with self._lock:
            self._asked.append(_Asked(group, time.monotonic(), client, future))
        return future

    def _end_answered(self) -> None:
        with self._lock:
            done = [each for each in self._asked if each.future.done()]
            # call `done()` once: a client answered between two calls would be in neither list, and would end here
            self._asked = [each for each in self._asked if each not in done]
        end(done)


def _end_once_answered(asked: list[_Asked]) -> None:
    wait([each.future for each in asked])
    end(asked)
