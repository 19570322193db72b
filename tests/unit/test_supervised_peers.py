"""running/peers.py: the supervisor of several peers, and what a peer says of the log of its cluster."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kstreams_py.cli.main import app
from kstreams_py.errors import Retriable, SettingsError
from kstreams_py.jobs.cluster.commands import AcceptJoin, Command, Found, Leave, LeaveReason, PeerId, Scheduler
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.log import LogInMemory
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.cluster.state import PeerState, Replica
from kstreams_py.jobs.messengers.contract import MessengerSettings
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.running import peers as module
from kstreams_py.running.peers import LogOutage, PeerOptions, SupervisedPeers
from kstreams_py.running.terminal.logs import Folding
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


TLS: dict[str, Any] = {"certificate": "web1.pem", "key": "web1.key", "authority": "ca.pem"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (TLS | {"key": "", "authority": ""}, "TLS needs --certificate and --authority, and --key unless the file"),
        (TLS | {"certificate": ""}, "TLS needs --certificate and --authority.*: add what is missing, or leave all of"),
        (TLS, "--certificate is for --messenger http: add that, or leave the certificate out"),
        (TLS | {"messenger": "http"}, "cannot use web1.pem, web1.key, ca.pem: No such file.*: give files in PEM"),
        ({"messenger": "inproc"}, "--messenger inproc reaches no other process: choose zmq or http"),
        ({"messenger": "zmk"}, "no messenger is called 'zmk': did you mean zmq"),
    ],
)
def test_options_that_no_peer_can_use_are_one_message_at_the_start(changed: dict[str, Any], message: str) -> None:
    target = str(Path(__file__).parents[2] / "kstreams_py" / "demo" / "channels_graph.py")
    with pytest.raises(SettingsError, match=message):
        SupervisedPeers(PeerOptions(cluster="shop", targets=[target], **changed), 2, Settings()).run(lambda: None)


def test_command_gives_each_option_to_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()
    monkeypatch.setattr(module, "PeerRun", lambda options, _: found.append(options))
    monkeypatch.setattr("kstreams_py.cli.peers.run_in_foreground", lambda _: None)
    flags: dict[str, Any] = {"drops_last": True, "joins_running": True}
    limits: dict[str, Any] = {"host": "web1", "port": 4_000, "advertised": "web1.example", "frame_max": 2 << 20}
    options = PeerOptions(cluster="shop", targets=["a", "b"], scheduler=Scheduler.PERCENTAGE, messenger="http")
    options = replace(options, **flags, **limits, **TLS)
    command = SupervisedPeers(options, 3, Settings())._command(2)
    CliRunner().invoke(app, command[command.index("peer") :], catch_exceptions=False)
    assert found == [replace(options, port=4_002, slot=2, peer=found[0].peer)]
    assert found[0].settings_of_cluster() == Found(VERSION, "shop", Scheduler.PERCENTAGE, True, "http", 2 << 20, True)
    settings = found[0].messenger_settings(PeerId("p0"))
    assert settings == MessengerSettings(peer="p0", cluster="shop", **(limits | {"port": 4_002} | TLS))


class Alone:
    """A peer that has joined, and what it says of the log of its cluster."""

    def __init__(self) -> None:
        me, self.now = PeerId("p0"), 100.0
        self.log = LogInMemory()
        found = Found(VERSION, "shop", Scheduler.ROUND_ROBIN)
        self.membership = ClusterMembership(self.log.open(), found, AcceptJoin(me, "", "", {}), Heartbeats(me))
        self.membership.start()
        self.outage = LogOutage(self.membership, "shop")
        self.why = self.run(5.0)

    def run(self, seconds: float, error: str = "") -> str:
        """Has turns for some seconds; returns why the log is away after them."""
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.membership.turn(self.now)
            self.why = self.outage.look(self.now, error)
        return self.why


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What the log shows of the outages, as the command folds it."""
    target = logging.StreamHandler(stream := StringIO())
    target.setLevel("INFO")
    handler = Folding(target)
    module.logger.addHandler(handler)
    caplog.set_level("INFO", module.logger.name)
    yield lambda: re.sub(r"\d+(?= attempts)", "N", stream.getvalue()).splitlines()
    module.logger.removeHandler(handler)
    handler.close()


MEANS = (
    ": until one does, the peer takes no inputs, calls no functions, stores nothing and acknowledges nothing, because "
    "it cannot know whether the others have removed it"
)


def test_log_that_is_away_is_one_warning_with_what_that_means(lines: Callable[[], list[str]]) -> None:
    alone = Alone()
    assert (alone.why, lines()) == ("", [])
    alone.log.is_away = True
    assert (alone.run(4.0), lines()) == ("", [])
    assert alone.run(30.0).startswith("the log of cluster shop is away: for 3")
    away = "the log of cluster shop is away: for 8 s no heartbeat of this peer came back"
    assert lines() == [away + MEANS]
    alone.log.is_away = False
    assert alone.run(8.0) == ""
    assert lines()[1:] == ["answers again: a broker was away for 0 s, N attempts"]
    alone.run(60.0)
    assert len(lines()) == 2


def test_warning_of_a_log_that_is_away_has_the_error(lines: Callable[[], list[str]]) -> None:
    alone = Alone()
    alone.log.is_away = True
    assert alone.run(10.0, "no queue") == "no queue"
    assert lines() == [
        f"the log of cluster shop is away: for 8 s no heartbeat of this peer came back (no queue){MEANS}"
    ]


def test_freeze_of_a_peer_is_no_outage_of_the_log(lines: Callable[[], list[str]]) -> None:
    alone = Alone()
    alone.now += 600.0
    assert (alone.run(10.0), lines()) == ("", [])


def test_foreign_heartbeats_are_left_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    alone = Alone()
    alone.log.add_beat(b"junk")
    alone.run(1.0)
    what = "the heartbeats of cluster shop have a record that is not a heartbeat of a cluster"
    assert caplog.messages == [f"{what}: somebody else writes to their topic; it is left out"]
