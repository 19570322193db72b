"""A peer as a process: its membership in a thread, its task in another; and a supervisor of several."""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kstreams_py.errors import KStreamsError, Retriable, SettingsError
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.loading import load, show_target
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import AcceptJoin, Found, Leave, LeaveReason, PeerId, Scheduler
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.heartbeats import Heartbeats
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command, read_replica
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.environment import JobEnvironment, job_environment
from kstreams_py.jobs.messengers.contract import MessengerSettings
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.messengers.registry import open_messenger
from kstreams_py.jobs.peers.fingerprints import fingerprint_of
from kstreams_py.jobs.peers.function_task import FunctionTask
from kstreams_py.jobs.peers.input_task import InputTask
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.jobs.peers.routes import READ, check_graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import Counters
from kstreams_py.running.pipe import report_drained, report_writer
from kstreams_py.running.places import PLACE_AFTER, place_of
from kstreams_py.running.reports import Report
from kstreams_py.running.slot import REPORT_INTERVAL
from kstreams_py.running.status import RunStatus
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.terminal import logs
from kstreams_py.running.watch import Stillness
from kstreams_py.running.wiring import DRAIN_EXTRA, GARBAGE_THRESHOLD, SIGNALS
from kstreams_py.settings import Settings
from kstreams_py.steps import calls
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 0.02
"""Seconds between two looks at the log of the cluster."""

IDLE_SECONDS: Final = 0.05
"""The longest wait of a task without anything to do: its source is asked after it."""

IDLE: Final = "idle"
"""Stands for the task of a peer that has none."""

LEAVE_SECONDS: Final = 5.0
"""Seconds that a peer waits for its own leave: after that, the others find it silent."""


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """What a peer is started with.

    - `cluster`: the name of the cluster.
    - `targets`: the modules or files with the graphs that it may run.
    - `messenger`: the name of the messenger; `host`, `port`, `advertised`: see MessengerSettings.
    - `peer`: its id; "" for a new one.
    - `slot`: its number among the peers of its supervisor.
    """

    cluster: str
    targets: Sequence[str]
    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    messenger: str = "zmq"
    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    peer: str = ""
    slot: int = 0


def new_peer_id() -> PeerId:
    """Returns an id that no peer ever had."""
    return PeerId(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


class PeerRun:
    """A peer in this process, from `run` to `stop`. A peer that was found silent joins again under another id."""

    def __init__(self, options: PeerOptions, settings: Settings) -> None:
        """Loads the graphs. Raises GraphError, and SettingsError if two graphs have one name."""
        self._options, self._settings = options, settings
        self._graphs: dict[str, Graph] = {}
        for graph in map(load, options.targets):
            graph.validate()
            if self._graphs.setdefault(graph.name, graph) is not graph:
                raise SettingsError(f"two graphs are called {graph.name!r}: rename one")
            check_graph(graph)
        self._fingerprints = {name: fingerprint_of(graph) for name, graph in self._graphs.items()}
        self._stopping = threading.Event()
        self._write = report_writer()
        self._stillness = Stillness()

    def stop(self) -> None:
        """Lets the peer leave, then end. Any thread may call this."""
        self._stopping.set()

    def own_process(self) -> None:
        """Leaves on SIGTERM and Ctrl-C; a Ctrl-C after that ends the process. Collects garbage less often."""
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)

        def ask(signum: int, _: object) -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            logger.info("%s: leaving the cluster", signal.Signals(signum).name)
            self.stop()

        for signum in SIGNALS:
            signal.signal(signum, ask)

    def run(self, on_start: Callable[[], None], /) -> None:
        """Runs until `stop`. Calls `on_start` once the peer has begun to join. Raises KStreamsError."""
        cluster = KafkaCluster(self._settings)
        try:
            while not self._stopping.is_set():
                self._run_once(cluster, on_start)
        finally:
            cluster.close()
        if self._write is not None:
            report_drained()

    def _run_once(self, cluster: KafkaCluster, on_start: Callable[[], None]) -> None:
        """Runs one incarnation of the peer: until `stop`, or until it has left."""
        options = self._options
        me = PeerId(options.peer) if options.peer else new_peer_id()
        logs.set_context(graph=options.cluster, processor=me)
        messenger = open_messenger(
            options.messenger,
            MessengerSettings(
                peer=me,
                cluster=options.cluster,
                host=options.host,
                port=options.port,
                advertised=options.advertised,
            ),
        )
        messenger.start()
        host = f"{socket.gethostname()}, process {os.getpid()}"
        join = AcceptJoin(me, messenger.address, messenger.public_key, self._fingerprints, host)
        found = Found(VERSION, options.cluster, options.scheduler, messenger=options.messenger)
        membership = ClusterMembership(KafkaLog(cluster, options.cluster, me), found, join, Heartbeats(me))
        links = Links(options.cluster, me, random.random)
        peer = Peer(membership, messenger, links, self._graphs, self._open(cluster), time.monotonic)
        keeper = _Keeper(membership, messenger.wake, lambda: self._report(peer))
        try:
            membership.start()
            on_start()
            keeper.start()
            while not self._stopping.is_set() and not membership.has_left and keeper.failure is None:
                if not peer.turn():
                    due = links.next_due()
                    left = IDLE_SECONDS if due is None else min(IDLE_SECONDS, due - time.monotonic())
                    messenger.wait(max(0.0, left))
            if membership.has_left:
                why = "the others found this peer silent: it drops what it had, and joins again"
                if options.peer:  # its supervisor gives it another id
                    raise Retriable(why)
                logger.warning("%s", why)
            elif keeper.failure is None:
                self._leave(peer, membership)
        finally:
            keeper.end()
            peer.close()
            membership.close()
        if keeper.failure is not None:
            raise keeper.failure

    def _report(self, peer: Peer) -> None:
        """Writes a report to the supervisor. Any thread may call it."""
        if self._write is None:
            return
        try:
            ended = peer.task.runner.ended if isinstance(peer.task, FunctionTask) else 0
            seconds = round(self._stillness.look((peer.turns, ended), time.monotonic()), 1)
            thread = threading.main_thread().ident
            place = place_of(partial(calls.frame_of, thread)) if seconds >= PLACE_AFTER else ""
            self._write([replace(report_of(peer, self._options.slot), still_seconds=seconds, place=place)])
        except BrokenPipeError:
            self._write = None
            logger.warning("the supervisor has ended: leaving the cluster")
            self.stop()

    def _open(self, cluster: KafkaCluster) -> Callable[[Graph, int], JobEnvironment]:
        settings = self._settings
        registry = open_registry(settings.schema_registry_url, settings.schema_directory, settings.schema_registry)

        def open_for(graph: Graph, number: int) -> JobEnvironment:
            environment = Environment(cluster, registry, settings, target=show_target(graph))
            return job_environment(graph, number, environment)

        return open_for

    def _leave(self, peer: Peer, membership: ClusterMembership) -> None:
        """Leaves the cluster: the others replay what this peer had at once."""
        if not membership.is_member:
            return
        membership.append(Leave(membership.me, LeaveReason.ENDED))
        deadline = time.monotonic() + LEAVE_SECONDS
        while not membership.has_left and time.monotonic() < deadline:
            peer.turn()
            time.sleep(READ_SECONDS)


def report_of(peer: Peer, slot: int) -> Report:
    """Returns the report on the task of a peer. Any thread may call it."""
    task = peer.task
    if isinstance(task, FunctionTask):
        runner = task.runner
        return Report(
            task.id,
            slot,
            runner.counters.as_dict(),
            task.waiting,
            measures=runner.measures(),
            failure=runner.newest_failure,
            is_task=True,
        )
    counts = Counters().as_dict()
    if isinstance(task, InputTask):
        name, why = task.channel.name, task.outages.away.get(task.inputs.name, "")
        figures = task.inputs.show_pending(time.monotonic(), lambda _: (), why)
        measures = task.inputs.counts.measures(name)
        return Report(READ + name, slot, counts, 0, measures=measures, is_task=True, sources={name: figures})
    return Report(IDLE, slot, counts, 0, is_task=True)


class _Keeper:
    """The thread that gives a membership its turns: a function may take longer than the others wait for heartbeats."""

    def __init__(self, membership: ClusterMembership, wake: Callable[[], None], report: Callable[[], None]) -> None:
        self._membership, self._wake, self._report = membership, wake, report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        reported_at = 0.0
        try:
            while not self._ended.wait(READ_SECONDS):
                before, now = self._membership.replica, time.monotonic()
                if now > reported_at + REPORT_INTERVAL:
                    reported_at = now
                    self._report()
                try:
                    self._membership.turn(now)
                except Retriable as error:
                    logger.info("the log of the cluster is away: %s", error, extra=repeated("the log of the cluster"))
                if self._membership.replica is not before:
                    self._wake()
        except BaseException as error:
            self.failure = error
            self._wake()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()


class SupervisedPeers:
    """Several peers of this machine, each in a process; says at once that one has died."""

    def __init__(self, options: PeerOptions, count: int, settings: Settings) -> None:
        """Starts nothing yet."""
        self._options, self._settings = options, settings
        self._ids: dict[int, PeerId] = {}
        """The id of the peer in each slot that has a process."""
        self._running: dict[int, tuple[int, PeerId]] = {}
        """The process in each slot, and its peer."""
        self._cluster = KafkaCluster(settings)
        drain = settings.drain_timeout_ms / 1000 + DRAIN_EXTRA
        environment = settings.as_environment()
        self._supervisor = Supervisor(
            self._command,
            range(count),
            drain_seconds=drain,
            environment=environment,
            stuck_timeout_ms=settings.stuck_timeout_ms,
        )

    def _command(self, slot: int) -> Sequence[str]:
        self._ids[slot] = me = PeerId(f"{socket.gethostname()}-{os.getpid()}-{slot}-{secrets.token_hex(4)}")
        options = self._options
        allowed = [word for target in options.targets for word in ("--allow", target)]
        port = options.port + slot if options.port else 0
        return (
            *(sys.executable, "-P", "-m", "kstreams_py", "peer", "--cluster", options.cluster, *allowed),
            *("--scheduler", options.scheduler, "--messenger", options.messenger, "--host", options.host),
            *("--port", str(port), "--advertised", options.advertised, "--id", me, "--slot", str(slot)),
        )

    def stop(self) -> None:
        """Lets all peers leave, then end."""
        self._supervisor.stop()

    def own_process(self) -> None:
        """Stops on SIGTERM and Ctrl-C."""

        def ask(signum: int, _: object) -> None:
            signal.signal(signal.SIGINT, lambda *_: self._supervisor.kill())
            logger.info("%s: the peers leave the cluster", signal.Signals(signum).name)
            self.stop()

        for signum in SIGNALS:
            signal.signal(signum, ask)

    def run(self, on_start: Callable[[], None], /) -> None:
        """Runs the peers until `stop`. Raises WorkersFailed."""
        on_start()
        try:
            self._supervisor.run(lambda _: None, self._observe)
        finally:
            self._cluster.close()

    def _observe(self, status: RunStatus) -> None:
        """Appends a leave for each peer whose process has ended, so that the others need not wait for heartbeats."""
        running = {slot.number: slot.pid for slot in status.slots}
        for slot, (pid, dead) in self._running.items():
            if running.get(slot) != pid:
                name = self._options.cluster
                try:
                    if dead in read_replica(self._cluster, name).peers:
                        append_command(self._cluster, name, Leave(dead, LeaveReason.DIED))
                except KStreamsError as error:
                    logger.warning("cannot say that peer %s has died: the others will find it silent: %s", dead, error)
        self._running = {slot: (pid, self._ids[slot]) for slot, pid in running.items() if pid is not None}
