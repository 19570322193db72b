"""How clients end (ports/kafka/clients.py), whoever holds them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from kstreams_py.config import Settings
from kstreams_py.delivery import PROMISES, Durability, Guarantee
from kstreams_py.ports import kafka
from kstreams_py.ports.kafka import KafkaLog, clients, consumer, members, producer

CONNECTION = Settings(bootstrap_servers="127.0.0.1:1")


class Client:
    """A client that ends with its last reference, once it may."""

    def __init__(self, ended: list[str], may_end: threading.Event) -> None:
        self._ended = ended
        self._may_end = may_end

    def __del__(self) -> None:
        self._may_end.wait()
        self._ended.append(threading.current_thread().name)

    def purge(self, *, blocking: bool) -> None:
        assert not blocking

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[str]]:
        answer = Future[str]()
        answer.set_result("described")
        return dict.fromkeys(groups, answer)


def drop_producer(log: KafkaLog) -> None:
    log.producer(PROMISES[Guarantee.EXACTLY_ONCE], Durability.COMMITTED, "g.p.0").drop()


def close_consumer(log: KafkaLog) -> None:
    log.consumer("g", "g.0").close()


def rejoin(log: KafkaLog) -> None:
    member = log.consumer("g", "g.0")
    STILL_HELD.append(member)
    member.rejoin()


def close_log(log: KafkaLog) -> None:
    assert log._reader is log._reader
    assert log._admin is log._admin
    log.close()


def describe(log: KafkaLog) -> None:
    assert log._describe("g", 1.0) == "described"


STILL_HELD: list[Any] = []
"""Owners that have another client by then."""


@pytest.mark.parametrize(
    ("let_go", "count"), [(drop_producer, 1), (close_consumer, 1), (rejoin, 1), (close_log, 2), (describe, 1)]
)
@pytest.mark.parametrize("hangs", [False, True])
def test_client_that_is_let_go_ends_or_is_left_behind_with_a_word(
    let_go: Callable[[KafkaLog], None],
    count: int,
    hangs: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []
    may_end = threading.Event()
    for module in (kafka, consumer, producer, members):
        monkeypatch.setattr(module, "made", lambda *_: Client(ended, may_end))
    if hangs:
        monkeypatch.setattr(clients, "END_SECONDS", 0.01)
    else:
        may_end.set()
    try:
        let_go(KafkaLog(CONNECTION))
        assert ended == ([] if hangs else ["ending clients"] * count)
        left = "a client did not end within 0.01 s: it is left behind, with its threads"
        assert caplog.messages == ([left] * count if hangs else [])
    finally:
        may_end.set()
        STILL_HELD.clear()
