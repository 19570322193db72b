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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Final

from kstreams_py.errors import KStreamsError, Retriable, SettingsError
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.loading import show_target
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.cluster.commands import FRAME_MAX, AcceptJoin, Found, Leave, LeaveReason, PeerId, Scheduler
from kstreams_py.jobs.cluster.fold import VERSION
from kstreams_py.jobs.cluster.heartbeats import INTERVAL, Heartbeats
from kstreams_py.jobs.cluster.kafka_log import KafkaLog, append_command, read_replica
from kstreams_py.jobs.cluster.membership import ClusterMembership
from kstreams_py.jobs.cluster.observations import ClusterFigures
from kstreams_py.jobs.cluster.watcher import ClusterWatcher
from kstreams_py.jobs.environment import JobEnvironment, job_environment
from kstreams_py.jobs.messengers.contract import Messenger, MessengerSettings
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.messengers.registry import open_messenger
from kstreams_py.jobs.peers.fingerprints import fingerprint_of
from kstreams_py.jobs.peers.peer import Peer
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.log_fields import answers, away, repeated
from kstreams_py.running.output import Write
from kstreams_py.running.peer_graphs import PeerGraphs, load_graphs
from kstreams_py.running.peer_reports import PeerReports
from kstreams_py.running.pipe import report_drained, report_writer
from kstreams_py.running.slot import REPORT_INTERVAL
from kstreams_py.running.status import RunStatus, SlotStatus
from kstreams_py.running.supervisor import Supervisor
from kstreams_py.running.terminal import logs
from kstreams_py.running.watch import Stillness
from kstreams_py.running.wiring import DRAIN_EXTRA, GARBAGE_THRESHOLD, SIGNALS, Observe, observing
from kstreams_py.settings import Settings
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 0.02
"""Seconds between two looks at the log of the cluster."""

IDLE_SECONDS: Final = (0.0005, 0.05)
"""The shortest and the longest wait of a task that has nothing to do; while it is polled, each wait is twice as long as
the one before.
"""

LEAVE_SECONDS: Final = 5.0
"""Seconds that a peer waits until its leave has taken effect: after that, the others find it silent."""

LOOK_SECONDS: Final = 0.2
"""Seconds between two looks of a supervisor at the log of its cluster."""

START_AGAIN_SECONDS: Final = 2.0
"""Seconds until a supervisor that could not begin to read the log tries again."""

END_SECONDS: Final = 1.0
"""Seconds that a supervisor waits at its end for each of its threads."""


AWAY_SECONDS: Final = 3.0
"""Seconds without a lease after which the log of the cluster counts as away."""


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """The options that a peer is started with.

    - `cluster`: the name of the cluster.
    - `targets`: the modules or files with the graphs that it may run.
    - `scheduler`, `drops_last`, `joins_running`: see `share`; the same for all peers of a cluster.
    - `messenger`: the name of the messenger.
    - `host`, `port`, `advertised`, `certificate`, `key`, `authority`: see MessengerSettings; "" for none.
    - `peer`: its id; "" for a new one.
    - `frame_max`: the maximum size of a frame in bytes, the same for all peers of a cluster; it bounds channel values.
    - `slot`: its number among the peers of its supervisor.

    Raises SettingsError for a messenger that reaches no other process, and for TLS options that are incomplete or that
    the messenger does not use.
    """

    cluster: str
    targets: Sequence[str]
    scheduler: Scheduler = Scheduler.ROUND_ROBIN
    drops_last: bool = False
    joins_running: bool = False
    messenger: str = "zmq"
    host: str = "127.0.0.1"
    port: int = 0
    advertised: str = ""
    certificate: str = ""
    key: str = ""
    authority: str = ""
    frame_max: int = FRAME_MAX
    peer: str = ""
    slot: int = 0

    def __post_init__(self) -> None:
        if self.messenger == "inproc":
            raise SettingsError("--messenger inproc reaches no other process: choose zmq or http")
        if (self.key and not self.certificate) or bool(self.certificate) != bool(self.authority):
            raise SettingsError(
                "TLS needs --certificate and --authority, and --key unless the file of the certificate has it: add "
                "what is missing, or leave all of them out"
            )
        if self.certificate and self.messenger == "zmq":
            raise SettingsError(
                "--certificate is for --messenger http: add that, or leave the certificate out: zmq encrypts with keys "
                "that each peer generates"
            )

    def settings_of_cluster(self) -> Found:
        """Returns what all peers of the cluster must agree on."""
        return Found(
            VERSION,
            self.cluster,
            self.scheduler,
            drops_last=self.drops_last,
            messenger=self.messenger,
            frame_max=self.frame_max,
            joins_running=self.joins_running,
        )

    def new_messenger(self, peer: PeerId) -> Messenger:
        """Returns the messenger of a peer, which is not started yet. Raises the same as `open_messenger`."""
        return open_messenger(self.messenger, self.messenger_settings(peer))

    def messenger_settings(self, peer: PeerId) -> MessengerSettings:
        """Returns the settings of the messenger of a peer. Raises SettingsError."""
        return MessengerSettings(
            peer=peer,
            cluster=self.cluster,
            host=self.host,
            port=self.port,
            advertised=self.advertised,
            frame_max=self.frame_max,
            certificate=self.certificate or None,
            key=self.key or None,
            authority=self.authority or None,
        )


def new_peer_id() -> PeerId:
    """Returns an id that no peer has ever had."""
    return PeerId(f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}")


class PeerRun:
    """A peer in this process, from `run` to `stop`. A peer that was found silent joins again under another id."""

    def __init__(self, options: PeerOptions, settings: Settings) -> None:
        """Loads the graphs. Raises the same as `load_graphs`."""
        self._options, self._settings = options, settings
        self._graphs = load_graphs(options.targets)
        self._fingerprints = {name: fingerprint_of(graph) for name, graph in self._graphs.items()}
        self._stopping = threading.Event()
        self._write = report_writer()
        self._observe: Observe | None = None
        self._began_at = time.monotonic()
        self._reports = PeerReports(options.slot)

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
        graphs = PeerGraphs(self._options.cluster, tuple(self._graphs.values()))
        cluster = KafkaCluster(self._settings)
        try:
            # the supervisor of a peer, if it has one, serves the page
            with observing(graphs, self._settings) if self._write is None else nullcontext() as self._observe:
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
        logs.set_context(graph=options.cluster, processor=me, slot=options.slot)
        messenger = options.new_messenger(me)
        messenger.start()
        host = f"{socket.gethostname()}, process {os.getpid()}"
        join = AcceptJoin(me, messenger.address, messenger.public_key, self._fingerprints, host)
        found = options.settings_of_cluster()
        membership = ClusterMembership(KafkaLog(cluster, options.cluster, me), found, join, Heartbeats(me))
        links = Links(options.cluster, me, random.random)
        peer = Peer(membership, messenger, links, self._graphs, self._open(cluster), time.monotonic)
        self._reports.begin(peer, links, messenger)
        keeper = _Keeper(membership, messenger.wake, partial(self._report, membership), options)
        try:
            membership.start()
            on_start()
            keeper.start()
            idle, (shortest, longest) = 0.0, IDLE_SECONDS
            while not self._stopping.is_set() and not membership.has_left and keeper.failure is None:
                if peer.turn():
                    idle = 0.0
                    continue
                idle = min(max(2 * idle, shortest), longest) if peer.is_polled else longest
                due = links.next_due()
                messenger.wait(idle if due is None else max(0.0, min(idle, due - time.monotonic())))
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
            self._reports.end(time.monotonic())
            membership.close()
        if keeper.failure is not None:
            raise keeper.failure

    def _report(self, membership: ClusterMembership, now: float, why: str) -> None:
        """Writes a report to the supervisor, or shows it on the page. `why`: why the log is away; "" if it is not."""
        if self._write is None and self._observe is None:
            return
        reports, slot = tuple(self._reports.look(now)), self._options.slot
        if self._observe is not None:
            figures = membership.seen.figures(membership.replica, now)
            cluster = replace(figures, own={membership.me: slot}, why=why)
            slots = (SlotStatus(slot, os.getpid(), reports, began_at=self._began_at),)
            self._observe(RunStatus(slots, now, stopping=self._stopping.is_set(), cluster=cluster))
            return
        assert self._write is not None
        try:
            self._write(reports)
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
        """Leaves the cluster, so that the others immediately replay what this peer had."""
        if not membership.is_member:
            return
        membership.append(Leave(membership.me, LeaveReason.ENDED))
        deadline = time.monotonic() + LEAVE_SECONDS
        while not membership.has_left and time.monotonic() < deadline:
            peer.turn()
            time.sleep(READ_SECONDS)


class LogOutage:
    """Warns once that the log of a cluster does not answer, and what follows for a peer; logs when it answers again."""

    def __init__(self, membership: ClusterMembership, cluster: str) -> None:
        self._membership, self._what = membership, f"the log of cluster {cluster}"
        self._stillness = Stillness()
        self._is_away = False
        self._due_at = 0.0

    def look(self, now: float, error: str) -> str:
        """Returns why the log is away; "" if it is not. `error`: why the last turn failed; "" if it did not."""
        has_lease = self._membership.may_act(now)
        seconds = self._stillness.look(has_lease, now)  # a freeze does not count: the log was not asked
        if has_lease and self._is_away:
            self._is_away = False
            logger.info("%s answers again: this peer goes on", self._what, extra=answers(self._what))
        if has_lease or seconds < AWAY_SECONDS:
            return error
        age = self._membership.heartbeat_seconds(now)
        text = f"{self._what} is away: for {seconds if age is None else age:.0f} s no heartbeat of this peer came back"
        if now >= self._due_at:
            self._is_away, self._due_at = True, now + INTERVAL
            logger.warning(
                "%s%s: until one does, the peer takes no inputs, calls no functions, stores nothing and acknowledges "
                "nothing, because it cannot know whether the others have removed it",
                text, f" ({error})" if error else "", extra=away(self._what),
            )  # fmt: skip
        return error or text


class _Keeper:
    """The thread that runs a membership's turns: a function may take longer than the others wait for heartbeats."""

    def __init__(
        self,
        membership: ClusterMembership,
        wake: Callable[[], None],
        report: Callable[[float, str], None],
        options: PeerOptions,
    ) -> None:
        self._membership, self._wake, self._report, self._options = membership, wake, report, options
        self._outage = LogOutage(membership, options.cluster)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="membership", daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        reported_at, why = 0.0, ""
        logs.set_context(graph=self._options.cluster, processor=self._membership.me, slot=self._options.slot)
        try:
            while not self._ended.wait(READ_SECONDS):
                before, now = self._membership.replica, time.monotonic()
                if now > reported_at + REPORT_INTERVAL:
                    reported_at = now
                    self._report(now, why)
                try:
                    self._membership.turn(now)
                    why = self._outage.look(now, "")
                except Retriable as error:
                    why = self._outage.look(now, str(error))
                if self._membership.replica is not before:
                    self._wake()
        except BaseException as error:
            self.failure = error
            self._wake()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()


class _LogWatch:
    """The thread in which a supervisor reads the log of its cluster, for the page."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._ended = threading.Event()
        self._newest: ClusterFigures | None = None
        self._why = ""
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)
        self._thread.start()

    def figures(self, running: Mapping[int, tuple[int, PeerId]]) -> ClusterFigures | None:
        """Returns the newest figures; None until the log is read. `running`: the process and the peer of each slot."""
        newest = self._newest
        if newest is None:
            return None
        return replace(newest, own={peer: slot for slot, (_, peer) in running.items()}, why=self._why)

    def _run(self) -> None:
        logs.set_context(graph=self._name)
        while not self._ended.is_set():
            # each attempt has an id of its own: what an earlier one has seen would not fit a new beginning
            log = KafkaLog(self._cluster, self._name, f"supervisor-{secrets.token_hex(6)}")
            try:
                self._follow(ClusterWatcher(log))
            except KStreamsError as error:
                self._why = str(error)
                logger.info("cannot read the log of the cluster: %s", error, extra=repeated("reads of the log"))
                self._ended.wait(START_AGAIN_SECONDS)
            finally:
                log.close()

    def _follow(self, watcher: ClusterWatcher) -> None:
        watcher.start()
        while not self._ended.wait(LOOK_SECONDS):
            now = time.monotonic()
            try:
                watcher.turn(now)
                self._why = ""
            except Retriable as error:
                self._why = str(error)
            if watcher.replica.version:
                self._newest = watcher.seen.figures(watcher.replica, now)

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join(END_SECONDS)


class _Deaths:
    """A supervisor's thread that reports dead peers: the supervisor's loop serves signals, and waits for no broker."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._dead = SimpleQueue[PeerId | None]()
        """The peers whose processes have ended, in order; None at the end."""
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="deaths", daemon=True)
        self._thread.start()

    def say(self, peer: PeerId) -> None:
        """Queues a leave for a peer, appended unless it has left: the others then need not wait for its heartbeats."""
        self._dead.put(peer)

    def _run(self) -> None:
        logs.set_context(graph=self._name)
        while (peer := self._dead.get()) is not None and not self._is_given_up:
            try:
                if peer in read_replica(self._cluster, self._name).peers:
                    append_command(self._cluster, self._name, Leave(peer, LeaveReason.DIED))
            except KStreamsError as error:
                if not self._is_given_up:
                    logger.warning("cannot say that peer %s has died: the others will find it silent: %s", peer, error)

    def end(self) -> None:
        """Ends the thread. Deaths that it has not reported by then are dropped: the others find those peers silent."""
        self._dead.put(None)
        self._thread.join(END_SECONDS)
        self._is_given_up = True


class SupervisedPeers:
    """Several peers on this machine, each in a process of its own; reports at once that one has died."""

    def __init__(
        self, options: PeerOptions, count: int, settings: Settings, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts nothing yet. `environment`: variables of the peers in addition to the settings."""
        self._options, self._settings = options, settings
        self._ids: dict[int, PeerId] = {}
        """The id of the peer in each slot that has a process."""
        self._running: dict[int, tuple[int, PeerId]] = {}
        """The process in each slot, and its peer."""
        self._cluster = KafkaCluster(settings)
        drain = settings.drain_timeout_ms / 1000 + DRAIN_EXTRA
        self._supervisor = Supervisor(
            self._command,
            range(count),
            drain_seconds=drain,
            environment=settings.as_environment() | dict(environment or {}),
            stuck_timeout_ms=settings.stuck_timeout_ms,
        )

    def _command(self, slot: int) -> Sequence[str]:
        self._ids[slot] = me = PeerId(f"{socket.gethostname()}-{os.getpid()}-{slot}-{secrets.token_hex(4)}")
        options = self._options
        allowed = [word for target in options.targets for word in ("--allow", target)]
        port = options.port + slot if options.port else 0
        files = {"--certificate": options.certificate, "--key": options.key, "--authority": options.authority}
        flags = {"--drops-last": options.drops_last, "--joins-running": options.joins_running}
        return (
            *(sys.executable, "-P", "-m", "kstreams_py", "peer", "--cluster", options.cluster, *allowed),
            *("--scheduler", options.scheduler, "--messenger", options.messenger, "--host", options.host),
            *("--port", str(port), "--advertised", options.advertised),
            *("--frame-max", str(options.frame_max), "--id", me, "--slot", str(slot)),
            *(option for option, is_set in flags.items() if is_set),
            *(word for option, file in files.items() if file for word in (option, file)),
        )

    @property
    def running(self) -> Mapping[int, tuple[int, PeerId]]:
        """The process and the peer of each slot that has one. The mapping is replaced, never changed."""
        return self._running

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

    def run(self, on_start: Callable[[], None], /, output: Write | None = None) -> None:
        """Runs the peers until `stop`. `output`: as in Supervisor.run.

        Raises GraphError and SettingsError before they start; later, WorkersFailed.
        """
        self._options.new_messenger(PeerId("supervisor"))  # each peer would refuse the same settings
        graphs = PeerGraphs(self._options.cluster, tuple(load_graphs(self._options.targets).values()))
        deaths = _Deaths(self._cluster, self._options.cluster)
        try:
            with observing(graphs, self._settings) as observe, self._watching(observe) as watch:

                def note(status: RunStatus) -> None:
                    self._note_ends(status, deaths.say)
                    if observe is not None and watch is not None:
                        observe(replace(status, cluster=watch.figures(self._running)))

                on_start()
                self._supervisor.run(lambda _: None, note, output)
        finally:
            deaths.end()
            self._cluster.close()

    @contextmanager
    def _watching(self, observe: Observe | None) -> Iterator[_LogWatch | None]:
        if observe is None:
            yield None
            return
        watch = _LogWatch(self._cluster, self._options.cluster)
        try:
            yield watch
        finally:
            watch.end()

    def _note_ends(self, status: RunStatus, say: Callable[[PeerId], None]) -> None:
        """Notes which peers run. `say`: called with each peer whose process has ended."""
        running = {slot.number: slot.pid for slot in status.slots}
        for slot, (pid, dead) in self._running.items():
            if running.get(slot) != pid:
                say(dead)
        self._running = {slot: (pid, self._ids[slot]) for slot, pid in running.items() if pid is not None}
