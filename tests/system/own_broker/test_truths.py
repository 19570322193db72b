"""The truths about Kafka transactions (ARCHITECTURE.md, non-obvious), each on a real broker.

Those that need an exact moment are tested in memory: tests/unit/test_guarantees.py and test_worker.py.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.errors import Abortable, Fenced, Refused, Replaced
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.consumer import KafkaConsumer
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from tests.clusters import open_cluster
from tests.system.app import MakeSettings
from tests.system.harness import Cluster, RunningSlot, list_transactional_ids, running, wait_until

EXACTLY_ONCE = producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED)


def copying(name: str) -> ks.Graph:
    graph = ks.Graph(name)

    @graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"))
    def copy(value: bytes) -> bytes:
        return value

    return graph


def numbered(first: int, last: int) -> list[bytes]:
    return [str(i).encode() for i in range(first, last)]


@pytest.mark.long  # in the quick tier, test_late_requests.py: what is late is of an old epoch
def test_requests_that_timed_out_make_a_new_producer_before_the_next_transaction(
    own_broker: EmbeddedKafka, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Truth 2: a late EndTxn of the old epoch cannot end a transaction of the new epoch."""
    cluster = Cluster(own_broker.bootstrap_servers)
    cluster.create(f"{name}.in", f"{name}.out")
    settings = Settings.load(
        bootstrap_servers=own_broker.bootstrap_servers, schema_directory=tmp_path, kafka={"socket.timeout.ms": 1_500}
    )
    caplog.set_level(logging.INFO)
    graph = ks.Graph(name)
    frozen: list[bool] = []

    @graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"))
    def copy(value: bytes) -> bytes:
        if value == b"150" and not frozen:  # the requests of this transaction outlast socket.timeout.ms
            frozen.append(True)
            own_broker.pause(0)
            threading.Timer(3.0, own_broker.resume, [0]).start()
        return value

    with running(graph, settings):
        for first in (0, 100, 200):
            cluster.write(f"{name}.in", numbered(first, first + 100))
            cluster.await_committed(f"{name}.copy", f"{name}.in", {0: first + 100})
    assert cluster.values(f"{name}.out") == numbered(0, 300)
    assert "a new producer is needed" in caplog.text or "going back to the committed offsets" in caplog.text


def test_worker_idle_past_the_expiration_of_its_transactional_id_delivers_once(
    own_broker: EmbeddedKafka, name: str, tmp_path: Path
) -> None:
    """Truth 8: the broker has expired the transactional id; a new producer goes on, nothing is lost or doubled."""
    cluster = Cluster(own_broker.bootstrap_servers)
    cluster.create(f"{name}.in", f"{name}.out")
    settings = Settings.load(
        bootstrap_servers=own_broker.bootstrap_servers, schema_directory=tmp_path, request_timeout_ms=45_000
    )  # a machine with a share of a core: the broker has just begun
    with running(copying(name), settings):
        cluster.write(f"{name}.in", numbered(0, 50))
        cluster.await_committed(f"{name}.copy", f"{name}.in", {0: 50})
        known = partial(list_transactional_ids, own_broker.bootstrap_servers)
        wait_until(lambda: not any(f"{name}.copy.0" in found for found in known()), "the id has expired")
        cluster.write(f"{name}.in", numbered(50, 100))
        cluster.await_committed(f"{name}.copy", f"{name}.in", {0: 100})
    assert cluster.values(f"{name}.out") == numbered(0, 100)


def test_transaction_timed_out_by_the_broker_is_repeated_and_is_no_replacement(
    cluster: Cluster, settings: MakeSettings, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Truth 7: the client reports fencing, but the group shows that the membership is still the worker's own."""
    cluster.create(f"{name}.in", f"{name}.out")
    cluster.write(f"{name}.in", numbered(0, 120))
    graph = ks.Graph(name)
    slow = [True]

    @graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"))
    def copy(value: bytes) -> bytes:
        if value == b"110" and slow:
            slow.clear()
            time.sleep(4)  # longer than the transaction time-out, and until the broker has checked it
        return value

    caplog.set_level(logging.INFO)
    with running(graph, settings(transaction_timeout_ms=2_000, commit_interval_ms=1_500), outputs_held=0):
        cluster.await_committed(f"{name}.copy", f"{name}.in", {0: 120})
    assert cluster.values(f"{name}.out") == numbered(0, 120)
    assert "the broker timed the transaction out after" in caplog.text


@pytest.mark.long  # in the quick tier, test_diagnosis.py has a slot that another process takes
def test_second_worker_in_a_slot_replaces_the_first_which_ends(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """Truth 7, the opposite case: the membership is lost, so the first worker must not take the id back."""
    cluster.create(f"{name}.in", f"{name}.out")
    first = RunningSlot(copying(name), settings())
    cluster.write(f"{name}.in", numbered(0, 50))
    cluster.await_committed(f"{name}.copy", f"{name}.in", {0: 50})
    with running(copying(name), settings()):
        first.join()
        assert isinstance(first.failure, Replaced)
        cluster.write(f"{name}.in", numbered(50, 100))
        cluster.await_committed(f"{name}.copy", f"{name}.in", {0: 100})
    assert cluster.values(f"{name}.out") == numbered(0, 100)


def test_failed_delivery_of_one_record_aborts_the_whole_transaction(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """Truth 6: the client checks all deliveries at the commit; a callback per record is not needed."""
    cluster.create(f"{name}.in", f"{name}.out")
    cluster.create(f"{name}.small", config={"max.message.bytes": "200"})
    producer = open_cluster(settings()).producer(EXACTLY_ONCE, f"{name}.tx")
    producer.init_transactions()
    producer.begin_transaction()
    for topic in (f"{name}.out", f"{name}.small"):
        producer.write([(topic, b"fits", None, 0, None, None, 0, None)])
    producer.write([(f"{name}.small", b"x" * 1_000, None, 0, None, None, 0, None)])
    with pytest.raises(Refused, match="is larger than topic"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.drop()
    assert [cluster.values(f"{name}.{topic}") for topic in ("out", "small")] == [[], []]


def test_stale_member_cannot_commit_offsets_in_its_transaction(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """Truth 4: every commit carries the group metadata, so that the coordinator refuses a stale member."""
    cluster.create(f"{name}.in", f"{name}.out", partitions=2)
    kafka = open_cluster(settings())
    assigned: dict[str, set[TopicPartition]] = {}

    def subscribe(which: str, consumer: KafkaConsumer) -> None:
        def assign(partitions: set[TopicPartition]) -> None:
            consumer.assign(consumer.committed(partitions))
            assigned[which] = partitions

        consumer.subscribe([f"{name}.in"], assign, lambda: None, lambda: None)

    old = kafka.consumer(f"{name}.g", f"{name}.member")
    subscribe("old", old)
    wait_until(lambda: old.consume(1, 0.1) or "old" in assigned, "the first member has its partition")
    producer = kafka.producer(EXACTLY_ONCE, f"{name}.tx")
    producer.init_transactions()
    producer.begin_transaction()
    producer.write([(f"{name}.out", b"stale", None, 0, None, None, 0, None)])
    new = kafka.consumer(f"{name}.g", f"{name}.member")
    subscribe("new", new)
    wait_until(lambda: new.consume(1, 0.1) or "new" in assigned, "the second member has taken the membership")
    with pytest.raises((Abortable, Fenced)):
        producer.send_offsets({TopicPartition(f"{name}.in", 0): 1}, old)
    producer.abort_transaction()
    producer.drop()
    new.close()
    old.close()
    assert cluster.values(f"{name}.out") == []


def test_committed_offset_passes_markers_and_aborted_records_to_the_stable_end(
    cluster: Cluster, settings: MakeSettings, name: str
) -> None:
    """Truth 10: gaps at the start, in the middle and at the end; the committed offset is the end, and the lag is 0."""
    source = f"{name}.in"
    cluster.create(source, f"{name}.out")
    cluster.transaction(f"{name}.u", [(source, b"no-0"), (source, b"no-1")], commit=False)
    cluster.transaction(f"{name}.u", [(source, b"0"), (source, b"1")])
    cluster.transaction(f"{name}.u", [(source, b"no-2")], commit=False)
    cluster.transaction(f"{name}.u", [(source, b"2")])
    cluster.transaction(f"{name}.u", [(source, b"no-3")], commit=False)
    cluster.await_markers(source)
    end = open_cluster(settings()).ends([TopicPartition(source, 0)])[TopicPartition(source, 0)]
    assert end == 7 + 5  # seven records and the markers of five transactions
    with running(copying(name), settings()):
        cluster.await_committed(f"{name}.copy", source, {0: end})
    found = cluster.read(f"{name}.out")
    assert [m.value() for m in found] == numbered(0, 3)
    assert [int.from_bytes(dict(m.headers())["ks-hash"][8:], "big") for m in found] == [3, 4, 8]
