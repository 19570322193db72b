"""kafka/group_description.py: how many clients ask a coordinator that is away, and whose answer counts."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.kafka import group_description
from kstreams_py.kafka.errors import ClientLog
from kstreams_py.kafka.group_description import GroupReader
from tests.waiting import wait_until


class Coordinators:
    """Counts the clients that ask, and answers them while it is there."""

    def __init__(self) -> None:
        self.there = False
        self.asked: list[Future[Any]] = []
        self.ended = 0

    def new_client(self, *_: object) -> Asking:
        return Asking(self)

    def come_back(self) -> None:
        """Answers all that wait, and each that asks from now on; an answer is the number of its client."""
        self.there = True
        for number, future in enumerate(self.asked):
            future.set_result(number)


class Asking:
    """An admin client with one request."""

    def __init__(self, coordinators: Coordinators) -> None:
        self.coordinators = coordinators

    def __del__(self) -> None:
        self.coordinators.ended += 1

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[Any]]:
        assert request_timeout == group_description.COORDINATOR_SECONDS
        future: Future[Any] = Future()
        if self.coordinators.there:
            future.set_result(len(self.coordinators.asked))
        self.coordinators.asked.append(future)
        return dict.fromkeys(groups, future)


@pytest.fixture
def coordinators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinators]:
    found = Coordinators()
    monkeypatch.setattr(group_description, "new_client", found.new_client)
    monkeypatch.setattr(group_description, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(group_description, "ASK_SECONDS_MOST", 0.3)
    monkeypatch.setattr(group_description, "PAUSE_SECONDS", 0.001)
    yield found
    gc.collect()


def test_few_clients_wait_for_a_coordinator_that_is_away_however_often_it_is_asked(coordinators: Coordinators) -> None:
    reader, began = GroupReader({}, ClientLog("test")), time.monotonic()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            reader.describe("g", 0.05)
    most = 6 + (time.monotonic() - began) / 0.3
    assert 2 <= len(coordinators.asked) <= most, "0.01 s apart, they would be 100 in a second"
    assert coordinators.ended == 0, "librdkafka ends the process at an answer to a client that has ended"


def test_clients_of_a_reader_that_is_closed_end_with_their_answers(coordinators: Coordinators) -> None:
    reader = GroupReader({}, ClientLog("test"))
    with pytest.raises(TimeoutError):
        reader.describe("g", 0.05)
    reader.close()
    reader.close()
    assert coordinators.ended == 0, "librdkafka ends the process at an answer to a client that has ended"
    coordinators.come_back()
    wait_until(lambda: coordinators.ended == len(coordinators.asked), "all clients end")


def test_answer_is_that_of_a_request_of_this_call_and_clients_end_with_their_answers(
    coordinators: Coordinators,
) -> None:
    reader = GroupReader({}, ClientLog("test"))
    with pytest.raises(TimeoutError):
        reader.describe("g", 0.1)
    before = len(coordinators.asked)
    coordinators.come_back()
    assert reader.describe("g", 5.0) == before, "an answer to an earlier call may be old"
    gc.collect()
    assert coordinators.ended == len(coordinators.asked) == before + 1
    assert reader.describe("g", 5.0) == before + 1


def test_requests_of_one_group_do_not_delay_those_of_another(coordinators: Coordinators) -> None:
    reader = GroupReader({}, ClientLog("test"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            reader.describe("g", 0.1)
    coordinators.there = True
    before = len(coordinators.asked)
    assert reader.describe("h", 5.0) == before


def test_request_is_sent_again_after_a_retriable_error_and_another_is_raised(
    coordinators: Coordinators, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [ck.KafkaError.NOT_COORDINATOR, ck.KafkaError.GROUP_AUTHORIZATION_FAILED]

    def refuse(self: Asking, groups: list[str], **_: object) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        future.set_exception(ck.KafkaException(ck.KafkaError(codes[len(self.coordinators.asked)])))
        self.coordinators.asked.append(future)
        return dict.fromkeys(groups, future)

    monkeypatch.setattr(Asking, "describe_consumer_groups", refuse)
    with pytest.raises(ck.KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        GroupReader({}, ClientLog("test")).describe("g", 5.0)
    assert len(coordinators.asked) == 2
