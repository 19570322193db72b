"""Clusters of peers in memory that run the graphs of JobPlant: peers die, freeze and join, and the log goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.source import Claim
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import (
    AcceptJoin,
    Entry,
    Found,
    JobId,
    KillJob,
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
from kstreams_py.jobs.cluster.state import JobPhase, JobState
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.messengers.contract import MessengerSettings
from kstreams_py.jobs.messengers.inproc import InprocMessenger, InprocNetwork
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.steps.calls import open_calls
from kstreams_py.testing.memory_source import MemoryConnection
from tests.simulation.jobs import Connection, Died, JobPlant

JOB = JobId("plant-1")
TICK = 0.05

SECONDS_MAX = 600.0
"""Seconds of the clock until a job must have ended once nothing fails any more."""


class PeerConnection(Connection):
    """A connection of a peer, which gives an input back at most once for each peer that has left."""

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        if failed:
            assert isinstance(self.plant, ClusterPlant)
            self.plant.replayed.update(claim.key for claim in claims)
            assert max(self.plant.replayed.values()) <= self.plant.departed
            self.plant.orphaned += len(claims)
        else:
            self.plant.returned.update(claim.key for claim in claims)
        super().give_back(claims, failed=failed)


class ClusterPlant(JobPlant):
    """A graph that peers run, whose source and targets are those of JobPlant."""

    def __init__(self, values: Any, *, scheduler: Scheduler = Scheduler.ROUND_ROBIN, **options: Any) -> None:
        super().__init__(values, **options)
        self.log, self.network = LogInMemory(), InprocNetwork()
        self.found = Found(VERSION, "cluster", scheduler)
        self.peers: dict[PeerId, Peer] = {}
        self.frozen: dict[PeerId, float] = {}
        """Until when each of these peers stands still."""
        self.count = 0
        self.replayed = Counter[Any]()
        """By key, how often an input was given back as a segment of it was lost."""
        self.departed = 0
        """How many peers have left, as far as any peer knows."""

    def open_environment(self, _: Graph, __: int) -> JobEnvironment:
        def open_source(channel: Channel, reader: str) -> MemoryConnection:
            assert channel is self.rows
            connection = PeerConnection(self.source, self.source.kept.setdefault(reader, {}))
            connection.plant = self
            return connection

        return JobEnvironment(
            open_source,
            clock=lambda: self.now,
            sleep=self.sleep,
            entropy=self.chance.randbytes,
            chance=self.chance.random,
            open_calls=partial(open_calls, patience=None),
            **self._environment,
        )

    def add(self) -> Peer:
        """Starts a peer."""
        self.count += 1
        me = PeerId(f"p{self.count}")
        messenger = InprocMessenger(MessengerSettings(peer=me, cluster="cluster"), self.network)
        messenger.start()
        join = AcceptJoin(me, messenger.address, "", {"plant": "f1"})
        membership = ClusterMembership(self.log.open(), self.found, join, Heartbeats(me))
        membership.start()
        links = Links("cluster", me, self.chance.random)
        graphs = {"plant": self.graph}
        peer = self.peers[me] = Peer(membership, messenger, links, graphs, self.open_environment, lambda: self.now)
        return peer

    def submit(self, job: JobId = JOB, percentage: float | None = None) -> None:
        """Submits the graph."""
        self.graph.validate()
        command = SubmitJob(job, "plant", "f1", specify_tasks(self.graph.tasks), percentage)
        self.log.append(encode_entry(Entry(f"submits {job}", 1, command)))

    def kill(self, job: JobId = JOB) -> None:
        """Kills a job."""
        self.log.append(encode_entry(Entry(f"kills {job}", 1, KillJob(job))))

    def begin(self, peers: int) -> None:
        """Starts peers and the job, and runs until it has begun."""
        for _ in range(peers):
            self.add()
            self.run_for(0.3)
        self.submit()

    def run_for(self, seconds: float) -> None:
        """Runs all peers for some seconds of their clock."""
        until = self.now + seconds
        while self.now < until:
            self.tick()

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Runs all peers until something is so."""
        until = self.now + SECONDS_MAX
        while not is_done():
            assert self.now < until, f"it does not end: {self.describe()}"
            self.tick()

    def tick(self) -> None:
        """Gives each peer a turn, in random order."""
        self.now += TICK
        names = [*self.peers]
        self.chance.shuffle(names)
        for name in names:
            if self.now >= self.frozen.get(name, 0.0) and name in self.peers:
                try:
                    self.turn_peer(self.peers[name])
                except Died:
                    self.die_now(name)

    def turn_peer(self, peer: Peer) -> None:
        """Gives one peer its turn; one that was found silent begins again under another id."""
        peer.membership.turn(self.now)
        self.departed = max(self.departed, len(peer.membership.replica.departed))
        if peer.membership.has_left:
            peer.close()
            del self.peers[peer.me]
            self.add()
            return
        if isinstance(peer.task, InputTask):
            peer.task.inputs.connection.keep()
        peer.turn()

    def die_now(self, name: PeerId, *, is_seen: bool = True) -> None:
        """A peer dies. `is_seen`: its supervisor says so at once."""
        peer = self.peers.pop(name)
        peer._messenger.close()
        if isinstance(peer.task, InputTask):
            peer.task._ended.set()
        elif isinstance(peer.task, FunctionTask):
            peer.task.close()  # ends its threads
        if is_seen:
            self.log.append(encode_entry(Entry(f"supervisor of {name}", 1, Leave(name, LeaveReason.DIED))))

    def find(self, task: str) -> PeerId | None:
        """Returns the first peer of a task; None if there is none."""
        found = (name for name, peer in self.peers.items() if peer.assignment and peer.assignment.task == task)
        return next(found, None)

    @property
    def job(self) -> JobState | None:
        """The job as the first peer sees it."""
        return next(iter(self.peers.values())).membership.replica.jobs.get(JOB)

    @property
    def has_ended(self) -> bool:
        """Whether the job is completed or killed for all peers."""
        jobs = [peer.membership.replica.jobs.get(JOB) for peer in self.peers.values()]
        return all(job is not None and job.has_ended for job in jobs)

    def describe(self) -> str:
        """Returns where everything stands."""
        lines = [f"{name}: {peer.assignment} {peer.task}" for name, peer in self.peers.items()]
        return "\n".join([str(self.job), *lines, self.show()])

    def finish_job(self) -> None:
        """Runs until the job has ended, and checks that each effect is there once and nothing is left over."""
        self.run_until(lambda: self.has_ended)
        job = self.job
        assert job is not None
        assert (job.phase, job.why) == (JobPhase.COMPLETED, "")
        self.run_for(2)
        self.check()
        for peer in self.peers.values():
            assert peer.task is None
            assert len(peer._ackers) == 0
            peer.close()

    def _check_empty(self) -> None:
        """Peers are checked by `finish_job`."""
