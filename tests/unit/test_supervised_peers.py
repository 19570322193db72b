"""running/peers.py: the supervisor of several peers, and the thread that keeps the membership of one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kstreams_py.errors import Retriable
from kstreams_py.jobs.cluster.commands import Command, Leave, LeaveReason, PeerId
from kstreams_py.jobs.cluster.state import PeerState, Replica
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.running import peers as module
from kstreams_py.running.peers import PeerOptions, SupervisedPeers
from kstreams_py.settings import Settings
from tests.waiting import wait_until

CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(1_000)"

GRAPH = """
import kstreams_py as ks
from kstreams_py.testing import MemorySource

graph = ks.Graph("shop")
graph.sink(graph.source("rows", MemorySource()), id="store")(print)
"""


class FakePeers(SupervisedPeers):
    """Peers whose processes only wait. `ended`: the end of their run."""

    ended: Future[None]

    def _command(self, slot: int) -> list[str]:
        super()._command(slot)
        return [sys.executable, "-c", CHILD]


class FakeLog:
    """The log of a cluster for a supervisor: each request waits until it `answers`, or fails with `error`."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.appended: list[Command] = []
        self.members: Callable[[], Iterator[PeerId]] = lambda: iter(())

    def read_replica(self, _: Cluster, name: str) -> Replica:
        self.asked.append(name)
        self.answers.wait(60.0)
        if self.error is not None:
            raise self.error
        return Replica(peers={peer: PeerState(0, "", "", {}, "") for peer in self.members()})

    def append_command(self, _: Cluster, name: str, command: Command) -> None:
        self.appended.append(command)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLog]:
    found = FakeLog()
    monkeypatch.setattr(module, "read_replica", found.read_replica)
    monkeypatch.setattr(module, "append_command", found.append_command)
    yield found
    found.answers.set()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[FakePeers]:
    """Three peers that run until the end of the test."""
    (tmp_path / "shop.py").write_text(GRAPH, encoding="utf-8")
    found = FakePeers(PeerOptions(cluster="shop", targets=[str(tmp_path / "shop.py")]), 3, Settings())
    with ThreadPoolExecutor(1) as pool:
        found.ended = pool.submit(found.run, lambda: None)
        wait_until(lambda: len(found.running) == 3 or found.ended.done(), "all peers run", 20.0)
        try:
            yield found
        finally:
            found.stop()
    found.ended.result()


def kill(supervised: FakePeers, *slots: int) -> list[PeerId]:
    """Kills the peers in these slots; returns their ids once others run there."""
    before = dict(supervised.running)
    for slot in slots:
        os.kill(before[slot][0], signal.SIGKILL)

    def are_replaced() -> bool:
        return all(supervised.running.get(slot, before[slot]) != before[slot] for slot in slots)

    wait_until(are_replaced, "dead peers are started again", 20.0)
    return [before[slot][1] for slot in slots]


def test_supervisor_waits_for_no_broker_when_peers_die(log: FakeLog, supervised: FakePeers) -> None:
    """Dead peers are started again, and a stop ends all, while the first request has no answer."""
    kill(supervised, 0, 1)
    kill(supervised, 2)
    assert log.asked == ["shop"]
    supervised.stop()
    supervised.ended.result(20.0)
    assert (log.asked, log.appended) == (["shop"], [])


def test_leaves_of_peers_that_died_are_appended_in_order(log: FakeLog, supervised: FakePeers) -> None:
    """Except of peers that have left already."""
    first, _, last = (kill(supervised, slot)[0] for slot in (2, 0, 1))
    log.members = lambda: iter((first, last))
    log.answers.set()
    wait_until(lambda: len(log.appended) == 2, "the leaves are appended", 20.0)
    assert log.appended == [Leave(peer, LeaveReason.DIED) for peer in (first, last)]


def test_leave_that_cannot_be_appended_is_named(
    log: FakeLog, supervised: FakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    log.error = Retriable("no broker answers")
    log.answers.set()
    (dead,) = kill(supervised, 1)
    text = f"cannot say that peer {dead} has died: the others will find it silent: no broker answers"
    wait_until(lambda: text in caplog.text, "the log names the peer", 20.0)
    assert log.appended == []
