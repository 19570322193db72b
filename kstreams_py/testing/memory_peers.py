"""A cluster of peers in memory, in one thread: peers die, freeze and lose frames; the clock moves with their turns.

Peers, log, links and messengers are the real ones. In a process, a peer has two threads, one for its membership and one
for its task. Here each has a turn instead, once in TICK seconds; all turns are in random order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from kstreams_py.errors import FunctionExited
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Command,
    Entry,
    Found,
    JobId,
    Leave,
    LeaveReason,
    PeerId,
    Scheduler,
    SubmitJob,
)
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.log import LogInMemory
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.cluster.records import encode_entry
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.messengers.contract import MessengerSettings
from kstreams_py.jobs.messengers.inproc import InprocMessenger, InprocNetwork
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.testing.request_faults import Crash

TICK: Final = 0.05
"""Seconds in which each peer has its turns."""

CLUSTER: Final = "memory"
"""The name of the cluster, and the fingerprint of its graph."""


class LossyMessenger(InprocMessenger):
    """A messenger that loses frames.

    - `is_lost`: takes the id of the peer that a frame is for; returns whether the frame is lost.
    """

    def __init__(self, settings: MessengerSettings, network: InprocNetwork, is_lost: Callable[[str], bool]) -> None:
        super().__init__(settings, network)
        self._is_lost = is_lost

    def send(self, peer: str, frame: bytes) -> bool:
        """See Messenger."""
        return self._is_lost(peer) or super().send(peer, frame)


@dataclass
class Loss:
    """Frames that are lost.

    - `sender`, `receiver`: the ids of peers; None for any receiver.
    - `frames`: how many frames are still to be lost.
    - `until`: the time until which frames are lost.
    """

    sender: str
    receiver: str | None
    frames: float
    until: float


class PeerCluster:
    """The peers of a cluster that run one graph, each in a slot: its number in the cluster."""

    def __init__(
        self,
        graph: Graph,
        open_environment: Callable[[Graph, int], JobEnvironment],
        clock: Callable[[], float],
        advance: Callable[[float], object],
        chance: Random,
        scheduler: Scheduler = Scheduler.ROUND_ROBIN,
    ) -> None:
        """Starts no peer.

        - `open_environment`: see Peer.
        - `clock`, `advance`: return the time in seconds, and move it.
        - `chance`: chooses the order of the turns.
        """
        self._graph, self._open_environment, self._scheduler = graph, open_environment, scheduler
        self.clock, self._advance, self._chance = clock, advance, chance
        self.log, self._network = LogInMemory(), InprocNetwork()
        self.peers: dict[int, Peer] = {}
        """By slot."""
        self.frozen = set[int]()
        """The slots whose peers have no turns."""
        self.losses: list[Loss] = []
        self.deaths = 0
        """How many peers have died at a request."""
        self._newest = Replica()
        self._started = 0
        self._turns: list[tuple[int, bool]] = []
        """The turns left in this tick: each is a slot, and whether its task has the turn."""

    def start(self, slot: int) -> Peer:
        """Starts a peer in a slot; it joins under an id that no peer has had."""
        self._started += 1
        me = PeerId(f"peer-{slot}.{self._started}")
        settings = MessengerSettings(peer=me, cluster=CLUSTER)
        messenger = LossyMessenger(settings, self._network, partial(self._is_lost, me))
        messenger.start()
        name = self._graph.name
        join = AcceptJoin(me, messenger.address, messenger.public_key, {name: CLUSTER})
        found = Found(VERSION, CLUSTER, self._scheduler)
        membership = ClusterMembership(self.log.open(), found, join, Heartbeats(me))
        membership.start()
        links = Links(CLUSTER, me, self._chance.random)
        graphs = {name: self._graph}
        peer = self.peers[slot] = Peer(membership, messenger, links, graphs, self._open_environment, self.clock)
        return peer

    def _is_lost(self, sender: str, receiver: str) -> bool:
        for loss in self.losses:
            is_meant = loss.sender == sender and loss.receiver in (None, receiver)
            if is_meant and loss.frames > 0 and self.clock() < loss.until:
                loss.frames -= 1
                return True
        return False

    def kill(self, slot: int, *, is_seen: bool) -> PeerId:
        """Kills a peer; returns its id. `is_seen`: whether a supervisor reports it at once."""
        peer = self.peers.pop(slot)
        self.frozen.discard(slot)
        peer.abandon()
        if is_seen:
            self.append(f"supervisor of {peer.me}", Leave(peer.me, LeaveReason.DIED))
        return peer.me

    def submit(self, job: JobId, percentage: float | None = None) -> None:
        """Submits the graph as a job."""
        tasks = specify_tasks(self._graph.tasks)
        self.append(f"submits {job}", SubmitJob(job, self._graph.name, CLUSTER, tasks, percentage))

    def append(self, author: str, command: Command) -> None:
        """Appends the only command of an author to the log."""
        self.log.append(encode_entry(Entry(author, 1, command)))

    def act(self) -> bool:
        """Gives one peer one of its turns; returns whether that was the last turn of a tick.

        At the start of a tick, all peers that may keep their claims do so.
        """
        if not self._turns:
            self._advance(TICK)
            for slot, peer in self.peers.items():
                if isinstance(peer.task, InputTask) and slot not in self.frozen:
                    peer.task.keep()
            self._turns = [(slot, of_task) for slot in self.peers for of_task in (False, True)]
            self._chance.shuffle(self._turns)
        if self._turns:
            slot, of_task = self._turns.pop()
            if slot in self.peers and slot not in self.frozen:
                self._turn(slot, of_task=of_task)
        return not self._turns

    def _turn(self, slot: int, *, of_task: bool) -> None:
        """Gives a peer a turn. It starts again under another id if it dies in the turn, or was found silent."""
        peer = self.peers[slot]
        try:
            if not of_task:
                peer.membership.turn(self.clock())
            elif peer.membership.has_left:
                peer.close()
                self.start(slot)
            else:
                peer.turn()
        except (Crash, FunctionExited, MemoryError):
            self.deaths += 1
            self.kill(slot, is_seen=True)
            self.start(slot)

    @property
    def replica(self) -> Replica:
        """The newest replica that any peer has had."""
        replicas = [peer.membership.replica for peer in self.peers.values()]
        self._newest = max(self._newest, *replicas, key=lambda each: each.offset) if replicas else self._newest
        return self._newest

    def close(self) -> None:
        """Drops all peers."""
        for slot in [*self.peers]:
            self.kill(slot, is_seen=False)
