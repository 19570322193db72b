"""Plain clients of a mock cluster, without the framework."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from tests import waiting
from tests.mock.cluster import MockCluster

Settings = Mapping[str, Any]
NONE: Final[Settings] = {}

BOUND: Final = 60.0
"""Seconds after which a condition that does not come true fails a test."""


def settings_of(mock: MockCluster, changed: Settings = NONE) -> dict[str, Any]:
    """Settings of a quiet client."""
    return {"bootstrap.servers": mock.bootstrap_servers, "log_level": 0, **changed}


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Returns once the condition is true. The condition itself waits a little."""
    waiting.wait_until(condition, what, BOUND, pause=0.0)


def write(mock: MockCluster, topic: str, values: Sequence[bytes], changed: Settings = NONE) -> list[str]:
    """Writes in order, one request at a time; returns the error name of each delivery report, or "ok"."""
    reports: list[str] = []
    producer = ck.Producer(settings_of(mock, {"max.in.flight": 1, **changed}))
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: reports.append(e.name() if e else "ok"))
    assert producer.flush(BOUND) == 0
    return reports


def read(mock: MockCluster, topic: str, changed: Settings = NONE) -> list[bytes | None]:
    """Reads all values of partition 0."""
    return [message.value() for message in read_all(mock, topic, changed)]


def read_all(mock: MockCluster, topic: str, changed: Settings = NONE) -> list[Any]:
    """Reads all records of partition 0."""
    consumer = ck.Consumer(settings_of(mock, {"group.id": "read", "enable.partition.eof": True, **changed}))
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.1):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                return found
    raise AssertionError(f"{topic} could not be read to its end")


def member(mock: MockCluster, topic: str, changed: Settings = NONE) -> ck.Consumer:
    """Creates a consumer of the group "group" that starts at the first record."""
    settings = {"group.id": "group", "enable.auto.commit": False, "auto.offset.reset": "earliest", **changed}
    consumer = ck.Consumer(settings_of(mock, settings))
    consumer.subscribe([topic])
    return consumer


def outcome(call: Callable[[], object]) -> str:
    """The name of the error that a call raises, else "ok"."""
    try:
        call()
    except ck.KafkaException as error:
        return str(error.args[0].name())
    return "ok"
