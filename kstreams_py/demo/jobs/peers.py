"""The peers of `kstreams demo jobs`: started together or one by one, killed, frozen; and the log of their cluster."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from kstreams_py.demo.jobs.timeline import Logged
from kstreams_py.errors import DecodeError
from kstreams_py.graph.names import cluster_topics
from kstreams_py.jobs.cluster.commands import PeerId
from kstreams_py.jobs.cluster.fold import apply
from kstreams_py.jobs.cluster.records import decode_entry
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.records import TopicPartition
from kstreams_py.running.output import Write
from kstreams_py.running.peers import PeerOptions, SupervisedPeers
from kstreams_py.settings import Settings

SUPERVISORS_MAX: Final = 20
"""The maximum number of supervisors: one for the peers that start together, and one for each peer that joins."""

READ_MAX: Final = 10_000


class DemoPeer(NamedTuple):
    """A peer that runs or has run. `place`: its number; the replacement of a dead peer has the same number."""

    place: int
    pid: int
    peer: PeerId


class DemoPeers:
    """The peers of the demo. Close them at the end."""

    def __init__(
        self, options: PeerOptions, settings: Settings, environment: Mapping[str, str], write: Write, seed: int
    ) -> None:
        """Starts nothing yet.

        - `options`: the options of all peers.
        - `environment`: variables of the peers in addition to the settings.
        - `write`: takes their output, each line with the place of its peer.
        - `seed`: decides which peers are hit.
        """
        self._options, self._settings, self._environment, self._output = options, settings, environment, write
        self._random = random.Random(seed)
        self._supervisors: list[tuple[int, SupervisedPeers, Future[None]]] = []
        """Each with the place of its first peer."""
        self._pool = ThreadPoolExecutor(SUPERVISORS_MAX)
        self.count = 0
        """How many places there are."""
        self._hit: set[int] = set()
        """The processes that were killed, frozen or both."""
        self._frozen: DemoPeer | None = None

    def start(self, count: int) -> None:
        """Starts peers under their own supervisor, as on another machine."""
        first = self.count + 1
        self.count += count
        supervisor = SupervisedPeers(self._options, count, self._settings, self._environment)
        running = self._pool.submit(supervisor.run, lambda: None, partial(self._write, first))
        self._supervisors.append((first, supervisor, running))

    def _write(self, first: int, output: int, slot: str, lines: list[bytes]) -> None:
        self._output(output, str(first + int(slot)), lines)

    def running(self) -> list[DemoPeer]:
        """Returns the peers that have a process. Raises WorkersFailed if a supervisor has given up."""
        for _, _, future in self._supervisors:
            if future.done():
                future.result()
        return [
            DemoPeer(first + slot, pid, peer)
            for first, supervisor, _ in self._supervisors
            for slot, (pid, peer) in sorted(supervisor.running.items())
        ]

    def kill(self, members: Collection[PeerId]) -> DemoPeer | None:
        """Kills one of these peers at random; returns None if none of them runs."""
        return self._send(signal.SIGKILL, members)

    def freeze(self, members: Collection[PeerId]) -> DemoPeer | None:
        """Freezes one of these peers at random, until `thaw`; returns None if none of them runs."""
        self._frozen = self._send(signal.SIGSTOP, members)
        return self._frozen

    def thaw(self) -> None:
        """Lets a frozen peer go on."""
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            with suppress(ProcessLookupError):
                os.kill(frozen.pid, signal.SIGCONT)

    def _send(self, signum: signal.Signals, members: Collection[PeerId]) -> DemoPeer | None:
        living = [each for each in self.running() if each.peer in members and each.pid not in self._hit]
        if not living:
            return None
        hit = self._random.choice(living)
        try:
            os.kill(hit.pid, signum)
        except ProcessLookupError:
            return None  # it has ended by itself
        self._hit.add(hit.pid)
        return hit

    def close(self) -> None:
        """Lets all peers leave, and waits until they have ended. Raises WorkersFailed."""
        self.thaw()
        for _, supervisor, _ in self._supervisors:
            supervisor.stop()
        self._pool.shutdown()
        for _, _, future in self._supervisors:
            future.result()


class ClusterWatch:
    """Reads the log of a cluster from its start, before peers cut it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Makes no request. `name`: the name of the cluster of peers."""
        self.entries: list[Logged] = []
        self.replica = Replica()
        self._cluster = cluster
        self._log = TopicPartition(cluster_topics(name)[0], 0)
        self._consumer = cluster.consumer(f"{name}.demo.watch", f"{name}.demo.watch")
        self._is_assigned = False

    def look(self) -> Replica:
        """Reads the new entries, and returns the state after them."""
        if not self._is_assigned:
            if not self._cluster.topics([self._log.topic]):
                return self.replica
            self._consumer.assign({self._log: 0})
            self._is_assigned = True
        for record in self._consumer.consume(READ_MAX, 0.0):
            offset = record.offset() or 0
            try:
                entry = decode_entry(record.value())
            except DecodeError:
                continue
            self.entries.append((offset, record.timestamp()[1], entry))
            self.replica = apply(self.replica, entry, offset)
        return self.replica

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()


def now_ms() -> int:
    """Returns the time by the clock that dates the entries of a log: milliseconds since 1970."""
    return int(time.time() * 1000)
