"""kafka/clients.py: how clients end, with each kind of owner."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from kstreams_py.errors import Abortable
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka import clients, consumer, group_description, producer, reader, topic_admin
from kstreams_py.kafka.clients import LazyClient
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from kstreams_py.settings import Settings
from tests.waiting import WAIT, wait_until

CONNECTION = Settings(bootstrap_servers="127.0.0.1:1")


class Client:
    """A client that ends with its last reference, after `may_end` is set."""

    def __init__(self, ended: list[str], may_end: threading.Event) -> None:
        self._ended = ended
        self._may_end = may_end

    def __del__(self) -> None:
        self._may_end.wait()
        self._ended.append(threading.current_thread().name)

    def __len__(self) -> int:
        return 0

    def purge(self, *, blocking: bool) -> None:
        assert not blocking

    def describe_consumer_groups(self, groups: list[str], request_timeout: float) -> dict[str, Future[str]]:
        answer = Future[str]()
        answer.set_result("described")
        return dict.fromkeys(groups, answer)


def drop_producer(cluster: KafkaCluster) -> None:
    cluster.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), "g.p.0").drop()


def close_consumer(cluster: KafkaCluster) -> None:
    cluster.consumer("g", "g.0").close()


def rejoin(cluster: KafkaCluster) -> None:
    member = cluster.consumer("g", "g.0")
    STILL_HELD.append(member)
    member.rejoin()


def close_cluster(cluster: KafkaCluster) -> None:
    assert cluster._reader.client is cluster._reader.client
    assert cluster._topics.client is cluster._topics.client
    cluster.close()


def describe(cluster: KafkaCluster) -> None:
    assert cluster._describe("g", 1.0) == "described"


STILL_HELD: list[Any] = []
"""Owners that live on with another client."""


@pytest.mark.parametrize(
    ("drop", "count"), [(drop_producer, 1), (close_consumer, 1), (rejoin, 1), (close_cluster, 2), (describe, 1)]
)
@pytest.mark.parametrize("hangs", [False, True])
def test_dropped_client_ends_or_is_left_behind_with_a_warning(
    drop: Callable[[KafkaCluster], None],
    count: int,
    hangs: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []
    may_end = threading.Event()
    for module in (topic_admin, reader, consumer, producer, group_description):
        monkeypatch.setattr(module, "new_client", lambda *_: Client(ended, may_end))
    monkeypatch.setattr(clients, "END_SECONDS", 0.01 if hangs else 60.0)
    if not hangs:
        may_end.set()
    try:
        drop(KafkaCluster(CONNECTION))
        assert ended == ([] if hangs else ["ending clients"] * count)
        left = "a client did not end within 0.01 s: it is left behind, with its threads"
        assert caplog.messages == ([left] * count if hangs else [])
    finally:
        may_end.set()
        STILL_HELD.clear()


def test_cluster_that_is_closed_makes_no_client_for_a_thread_that_asks_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that asks for lags: its request is under way while the run ends."""
    may_end = threading.Event()
    may_end.set()
    for module in (topic_admin, reader):
        monkeypatch.setattr(module, "new_client", lambda *_: Client([], may_end))
    cluster = KafkaCluster(CONNECTION)
    asks: list[Callable[[], object]] = [
        lambda: cluster.topics(["t"]),
        lambda: cluster.ends([TopicPartition("t", 0)]),
        lambda: cluster.ends([TopicPartition("t", 0)], committed=False),
    ]
    cluster.close()
    for ask in asks:
        with pytest.raises(Abortable, match=r"^this client was closed$"):
            ask()


def test_client_that_was_not_closed_ends_in_another_thread_with_a_warning() -> None:
    ended: list[str] = []
    hangs = threading.Event()
    forgotten = LazyClient(lambda: Client(ended, hangs))
    assert isinstance(forgotten.get(), Client)
    with pytest.warns(ResourceWarning, match="^a client of Kafka was not closed$"):
        del forgotten  # returns although the client does not end
    hangs.set()
    wait_until(lambda: ended == ["ending clients"], "the client ended")


def test_client_that_is_left_at_the_exit_of_the_process_does_not_keep_it() -> None:
    script = """
from kstreams_py import Settings
from kstreams_py.kafka.cluster import KafkaCluster

cluster = KafkaCluster(Settings(bootstrap_servers="127.0.0.1:1"))
made = [type(client).__name__ for client in (cluster._reader._client.get(), cluster._topics.client)]
assert made == ["Consumer", "AdminClient"], made
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_child_that_is_forked_beside_clients_ends_and_they_go_on_in_its_parent() -> None:
    """The child has no threads of theirs: to end one there is a SIGSEGV, or waits for ever."""
    script = """
import os, sys
from kstreams_py import Settings
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.producer import KafkaProducer

cluster = KafkaCluster(Settings(bootstrap_servers="127.0.0.1:1"))
clients = [cluster._reader._client.get(), cluster._topics.client]
producer = KafkaProducer({"bootstrap.servers": "127.0.0.1:1", "enable.idempotence": False}, 1.0)
if (child := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(child, 0) == (child, 0)
producer.drop()
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
