"""engine/slot.py on a log in memory: when a worker that stops leaves its groups, and when it must not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kstreams_py as ks
from kstreams_py.engine.slot import Slot
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.errors import BrokerUnavailable, Replaced
from kstreams_py.ports.registry import FileRegistry
from kstreams_py.record import TopicPartition
from kstreams_py.testing import MemoryLog
from tests.unit.fakes import raising


def run(log: MemoryLog, directory: Path, *, leaves: bool, last: Exception) -> None:
    """A slot with one processor, whose function raises at its second record."""
    log.create_topics([("in", 1, -1, {}), ("out", 1, -1, {})])
    log.append("in", b"first")
    log.append("in", b"last")
    graph = ks.Graph("shop")

    @graph.map(graph.topic("in"), to=graph.topic("out"))
    def price(value: bytes) -> bytes:
        if value == b"last":
            raise last
        return value

    settings = ks.Settings(leave_on_stop=leaves, schema_directory=directory)
    Slot(graph, 3, Surroundings(log, FileRegistry(directory), settings)).run(lambda _: None)


def left(log: MemoryLog) -> bool:
    """Whether the slot's membership can be taken without a rebalance: it cannot, once it was given up."""
    consumer = log.consumer("shop.price", "shop.price.3")
    assigned: list[set[TopicPartition]] = []
    consumer.subscribe(["in"], assigned.append, lambda: None, lambda: None)
    consumer.consume(1, 0)
    generations = log._broker.group("shop.price").generation
    assert assigned == [{TopicPartition("in", 0)}]
    return generations == 2


def test_worker_that_stops_leaves_its_group_after_its_last_commit(tmp_path: Path) -> None:
    log = MemoryLog()
    run(log, tmp_path, leaves=True, last=ks.Stop())
    assert log.group("shop.price") == {TopicPartition("in", 0): 1}
    assert [request for request in log.requests if request in ("commit_transaction", "leave")] == [
        "commit_transaction",  # where the group begins
        "commit_transaction",
        "leave",
    ]
    assert left(log)


def test_worker_that_stops_keeps_its_membership_unless_it_is_to_leave(tmp_path: Path) -> None:
    log = MemoryLog()
    run(log, tmp_path, leaves=False, last=ks.Stop())
    assert not left(log)


@pytest.mark.parametrize("last", [SystemError("a crash"), Replaced("by another worker")], ids=["crash", "replaced"])
def test_worker_that_crashes_or_was_replaced_does_not_leave(tmp_path: Path, last: Exception) -> None:
    log = MemoryLog()
    log.watch(lambda request, _: raising(last) if request == "send_offsets" else None)
    with pytest.raises(type(last)):
        run(log, tmp_path, leaves=True, last=ks.Stop())
    log.watch(lambda *_: None)
    assert "leave" not in log.requests
    assert not left(log)


def test_worker_that_cannot_leave_says_so_and_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryLog()
    log.inject("leave", error=BrokerUnavailable("no broker"), applied=False)
    caplog.set_level(logging.WARNING)
    run(log, tmp_path, leaves=True, last=ks.Stop())
    assert [record.getMessage() for record in caplog.records if record.name == "kstreams_py.engine.slot"][-1:] == [
        "slot 3 did not leave the groups of price: its partitions wait until session_timeout_ms: no broker"
    ]
    assert not left(log)
