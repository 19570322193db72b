"""Clusters of peers in memory that run the graphs of JobPlant: peers die, freeze and join, and the log goes away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.source import Claim
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import JobId, KillJob, PeerId
from kstreams_py.jobs.cluster.state import JobPhase, JobState
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.sources.suspects import SUSPECTED
from kstreams_py.steps.calls import open_calls
from kstreams_py.testing.memory_peers import Loss, PeerCluster
from kstreams_py.testing.memory_source import MemoryConnection
from tests.simulation.jobs import Connection, JobPlant

JOB = JobId("plant-1")

SECONDS_MAX = 600.0
"""Seconds of the clock until a job must have ended once nothing fails any more."""


class PeerConnection(Connection):
    """A connection of a peer, which gives a suspect back at most once for each peer that has died.

    Other inputs may be given back twice: a reader that has not seen a death yet reads what another one has given back.
    """

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:
        if failed:
            assert isinstance(self.plant, ClusterPlant)
            self.plant.replayed.update(claim.key for claim in claims)
            self.plant.suspected.update(claim.key for claim in claims if claim.attempts >= SUSPECTED)
            assert max(self.plant.suspected.values(), default=0) <= self.plant.deaths
            self.plant.orphaned += len(claims)
        else:
            self.plant.returned.update(claim.key for claim in claims)
        super().give_back(claims, failed=failed)


class WatchedCluster(PeerCluster):
    """A cluster that knows which peer has its turn."""

    acting: Peer
    called: PeerId | None = None
    """The peer that is in a call: it sends heartbeats, and its main loop does not turn."""

    def _turn(self, slot: int, *, of_task: bool) -> None:
        self.acting = self.peers[slot]
        if not (of_task and self.acting.me == self.called):
            super()._turn(slot, of_task=of_task)


class ClusterPlant(JobPlant):
    """A graph that peers run, whose source and targets are those of JobPlant."""

    def __init__(self, values: Any, **options: Any) -> None:
        super().__init__(values, **options)
        self.cluster = WatchedCluster(self.graph, self.open_environment, lambda: self.now, self.sleep, self.chance)
        self.log = self.cluster.log
        self.frozen: dict[PeerId, float] = {}
        """Until when each of these peers stands still."""
        self.replayed, self.suspected = Counter[Any](), Counter[Any]()
        """By key, how often an input was given back as a segment of it was lost, and how often as a suspect."""
        self.workers: dict[tuple[int, Any], set[PeerId]] = {}
        """The peers that worked on a key in an epoch."""

    @property
    def peers(self) -> dict[PeerId, Peer]:
        """The peers by their ids."""
        return {peer.me: peer for peer in self.cluster.peers.values()}

    @property
    def deaths(self) -> int:
        """How many peers have died, or were found silent, as far as any peer knows."""
        return self.cluster.replica.deaths

    def open_environment(self, _: Graph, __: int) -> JobEnvironment:
        def open_source(channel: Channel, reader: str) -> MemoryConnection:
            assert channel is self.rows
            connection = PeerConnection(self.source, self.source.kept.setdefault(reader, {}))
            connection.plant, connection.lease = self, float("inf")  # no thread keeps the claims
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

    def note_key(self, key: Any) -> None:
        peer = self.cluster.acting
        self.workers.setdefault((peer._epochs[JOB], key), set()).add(peer.me)

    def add(self) -> Peer:
        """Starts a peer."""
        return self.cluster.start(max(self.cluster.peers, default=-1) + 1)

    def submit(self) -> None:
        """Submits the graph."""
        self.graph.validate()
        self.cluster.submit(JOB)

    def kill(self) -> None:
        """Kills the job."""
        self.cluster.append(f"kills {JOB}", KillJob(JOB))

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
        """Gives each peer its turns."""
        self.frozen = {name: until for name, until in self.frozen.items() if self.now < until}
        self.cluster.frozen = {slot for slot, peer in self.cluster.peers.items() if peer.me in self.frozen}
        while not self.cluster.act():
            pass

    def die_now(self, name: PeerId, *, is_seen: bool = True) -> None:
        """A peer dies. `is_seen`: its supervisor says so at once."""
        (slot,) = (slot for slot, peer in self.cluster.peers.items() if peer.me == name)
        self.cluster.kill(slot, is_seen=is_seen)

    def cut(self, one: PeerId, other: PeerId, seconds: float = float("inf")) -> None:
        """Breaks the network between two peers for some seconds: both stay members."""
        ends = (one, other), (other, one)
        self.cluster.losses += [Loss(*pair, frames=float("inf"), until=self.now + seconds) for pair in ends]

    def find(self, task: str) -> PeerId | None:
        """Returns the first peer that is ready for a task; None if there is none."""
        return next(iter(self.cluster.replica.ready_peers_of(JOB, task)), None)

    @property
    def job(self) -> JobState | None:
        """The job as the peers see it."""
        return self.cluster.replica.jobs.get(JOB)

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
        self.run_until(lambda: self.has_ended and not self.frozen)
        job = self.job
        assert job is not None
        assert (job.phase, job.why) == (JobPhase.COMPLETED, "")
        self.run_for(2)
        self.check()
        assert not [each for each in self.workers.items() if len(each[1]) > 1]
        for peer in self.peers.values():
            assert peer.task is None
            assert len(peer._ackers) == 0
            peer.close()

    def _check_empty(self) -> None:
        """Peers are checked by `finish_job`."""
