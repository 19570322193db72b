"""running/slot.py on a cluster in memory: when a slot that stops leaves its groups, and when it must not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kstreams_py as ks
from kstreams_py.errors import BrokerUnavailable, Replaced
from kstreams_py.formats.registries import FileRegistry
from kstreams_py.records import TopicPartition
from kstreams_py.running.slot import Slot
from kstreams_py.steps.environment import Environment
from kstreams_py.testing import MemoryCluster


def run(cluster: MemoryCluster, directory: Path, *, leaves: bool, last: Exception) -> None:
    """Runs a slot with one processor, whose function raises `last` at its second record."""
    cluster.create_topics([("in", 1, -1, {}), ("out", 1, -1, {})])
    cluster.append("in", b"first")
    cluster.append("in", b"last")
    graph = ks.Graph("shop")

    @graph.map(graph.topic("in"), to=graph.topic("out"))
    def price(value: bytes) -> bytes:
        if value == b"last":
            raise last
        return value

    settings = ks.Settings(leave_on_stop=leaves, schema_directory=directory)
    Slot(graph, 3, Environment(cluster, FileRegistry(directory), settings)).run(lambda _: None)


def has_left(cluster: MemoryCluster) -> bool:
    """Whether the slot has left its group: a new client of its group.instance.id then causes a rebalance."""
    consumer = cluster.consumer("shop.price", "shop.price.3")
    assigned: list[set[TopicPartition]] = []
    consumer.subscribe(["in"], assigned.append, lambda: None, lambda: None)
    consumer.consume(1, 0)
    generations = cluster._broker.group("shop.price").generation
    assert assigned == [{TopicPartition("in", 0)}]
    return generations == 2


def test_worker_that_stops_leaves_its_group_after_its_last_commit(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    run(cluster, tmp_path, leaves=True, last=ks.Stop())
    assert cluster.groups["shop.price"] == {TopicPartition("in", 0): 1}
    assert [request for request in cluster.faults.requests if request in ("commit_transaction", "leave")] == [
        "commit_transaction",  # of the start offsets
        "commit_transaction",
        "leave",
    ]
    assert has_left(cluster)


def test_worker_that_stops_keeps_its_membership_without_leave_on_stop(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    run(cluster, tmp_path, leaves=False, last=ks.Stop())
    assert not has_left(cluster)


@pytest.mark.parametrize("last", [SystemError("a crash"), Replaced("by another worker")], ids=["crash", "replaced"])
def test_worker_that_crashes_or_was_replaced_does_not_leave(tmp_path: Path, last: Exception) -> None:
    cluster = MemoryCluster()

    def end(request: str, _: object) -> None:
        if request == "send_offsets":
            raise last

    cluster.faults.watch(end)
    with pytest.raises(type(last)):
        run(cluster, tmp_path, leaves=True, last=ks.Stop())
    cluster.faults.watch(lambda *_: None)
    assert "leave" not in cluster.faults.requests
    assert not has_left(cluster)


def test_worker_that_cannot_leave_logs_the_cause_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cluster = MemoryCluster()
    cluster.faults.inject("leave", error=BrokerUnavailable("no broker"), applied=False)
    caplog.set_level(logging.WARNING)
    run(cluster, tmp_path, leaves=True, last=ks.Stop())
    assert [record.getMessage() for record in caplog.records if record.name == "kstreams_py.running.slot"][-1:] == [
        "slot 3 did not leave the groups of price: its partitions wait until session_timeout_ms: no broker"
    ]
    assert not has_left(cluster)
