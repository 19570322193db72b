"""The run of `kstreams demo jobs`: peers, jobs, faults and the screen together."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kstreams_py.demo import channels_graph
from kstreams_py.demo.channel_checks import RatedFlights
from kstreams_py.demo.channel_tables import DemoTables
from kstreams_py.demo.jobs import aircraft_graph
from kstreams_py.demo.jobs.checks import DoneFault, JobsRun
from kstreams_py.demo.jobs.faults import APART_SECONDS, AWAKE_SECONDS, FROZEN_MAX, FaultKind, plan_faults, seconds_of
from kstreams_py.demo.jobs.peers import ClusterWatch, DemoPeers, now_ms
from kstreams_py.demo.jobs.timeline import build_timeline
from kstreams_py.demo.screen import LOG, Screen, log_writer
from kstreams_py.demo.traffic import TICK
from kstreams_py.errors import SettingsError, WorkersFailed
from kstreams_py.jobs.cluster.commands import JobId, KillJob, PeerId, Scheduler, SubmitJob
from kstreams_py.jobs.cluster.kafka_log import append_command
from kstreams_py.jobs.cluster.state import Replica
from kstreams_py.jobs.peers.routes import specify_tasks
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.running.peers import PeerOptions
from kstreams_py.settings import Settings
from kstreams_py.sources.suspects import DEATHS_MAX

CLUSTER: Final = "demo"
MODULES: Final = (aircraft_graph, channels_graph)
GRAPHS: Final = {each.graph.name: each.graph for each in MODULES}
"""The graphs by their names, in the order of submission."""

PERCENTAGES: Final = {"aircraft": 30, "weather": 70}

TASKS: Final = sum(len(specify_tasks(each.tasks)) for each in GRAPHS.values())
"""The number of tasks of both jobs together; each task needs a peer."""

JOINS: Final = 2
"""How many peers join later."""

ROWS_PER_FAULT: Final = 500
"""With fewer rows, some could be under way at every fault, and would be refused as the cause of the deaths."""

STEADY: Final = 0.6
"""The fraction of a run in which a job is processed; in the rest, one of its tasks waits for a peer."""

START_SECONDS: Final = 240.0
"""Seconds for which the demo waits until all peers have joined."""

STALLED: Final = 60.0
"""Seconds without a new row before the run ends early, and its results are checked as they are."""


@dataclass(frozen=True, slots=True)
class JobsOptions:
    """The options of the command.

    - `rows`: how many flights each job processes, spread evenly over the year.
    - `kills`, `freezes`: how many peers to kill, and to freeze, spread over the run.
    - `peers`: how many peers start together.
    - `seed`: the seed of all random choices.
    """

    rows: int
    kills: int
    freezes: int
    peers: int
    seed: int

    @property
    def faults(self) -> Counter[FaultKind]:
        """How many faults of each kind the run is to have."""
        counts = {FaultKind.KILL: self.kills, FaultKind.FREEZE: self.freezes}
        return Counter({**counts, FaultKind.JOIN: JOINS, FaultKind.RESUBMIT: 1})

    def check(self) -> None:
        """Raises SettingsError for too few peers or rows."""
        if self.peers < TASKS:
            raise SettingsError(
                f"the two jobs have {TASKS} tasks, and each needs a peer: give --peers {TASKS}, or better {TASKS + 2}: "
                "some are killed"
            )
        hits = self.kills + self.freezes
        if hits + 1 >= DEATHS_MAX and self.rows < hits * ROWS_PER_FAULT:
            raise SettingsError(
                f"{hits} kills and freezes in {self.rows:,} rows could hit one row {DEATHS_MAX} times, and then it is "
                f"refused: give at least {hits * ROWS_PER_FAULT:,} rows"
            )


class JobsStage:
    """Runs the peers, the jobs, the faults and the screen together."""

    def __init__(
        self,
        options: JobsOptions,
        settings: Settings,
        cluster: KafkaCluster,
        tables: Mapping[str, DemoTables],
        expected: Mapping[str, RatedFlights],
        output: Path,
        screen: Screen,
    ) -> None:
        """Starts nothing yet. `tables`, `expected`: by the name of the graph."""
        self._options, self._settings, self._cluster = options, settings, cluster
        self._tables, self._output, self._screen = tables, output, screen
        self._total = sum(flights.rows.total() for flights in expected.values())
        self._planned = deque(plan_faults(options.faults, self._total, options.seed))
        self._done: list[DoneFault] = []
        self._frozen_at: float | None = None
        """When the frozen peer was frozen, in monotonic seconds; None if no peer is frozen."""
        self._next_at = 0.0
        """When the next fault may happen, in monotonic seconds."""
        self._jobs: dict[str, JobId] = {}
        """The newest job of each graph."""
        self._places: dict[PeerId, int] = {}
        self._began = 0.0
        self._environment = {
            **settings.as_environment(),
            "KSTREAMS_DEMO_DIRECTORY": str(output),
            **find_pace(options.rows, seconds_of(options.faults)),
        }

    def run(self) -> JobsRun:
        """Runs until both jobs are completed, or no row is stored for STALLED seconds. Raises WorkersFailed."""
        options, log = self._options, self._output / LOG
        write = log_writer(log, self._screen)
        peer_options = PeerOptions(
            cluster=CLUSTER, targets=[each.__name__ for each in MODULES], scheduler=Scheduler.PERCENTAGE
        )
        faults = f"{options.kills} kills and {options.freezes} freezes"
        self._screen.say(f"{options.peers} peers, {faults} to come; the log is {log}")
        with ExitStack() as stack:
            stack.enter_context(self._screen)
            watch = stack.enter_context(closing(ClusterWatch(self._cluster, CLUSTER)))
            peers = DemoPeers(peer_options, self._settings, self._environment, write, options.seed)
            stack.enter_context(closing(peers))
            peers.start(options.peers)
            if not self._have_joined(watch, peers):
                joined = len(watch.replica.peers)
                raise WorkersFailed(f"only {joined} of the peers have joined: {self._output / LOG} may say why")
            self._began, began = time.monotonic(), now_ms()
            for graph in GRAPHS:
                self._submit(graph, 1, watch)
            self._follow(watch, peers)
            ended = now_ms()
            replica, entries = watch.look(), [*watch.entries]
        return JobsRun(began, ended, build_timeline(entries, ended), self._places, self._done, replica)

    def _have_joined(self, watch: ClusterWatch, peers: DemoPeers) -> bool:
        """Waits up to START_SECONDS until the cluster has as many members as peers; returns whether it has."""
        deadline = time.monotonic() + START_SECONDS
        while len(watch.look().peers) < peers.count and time.monotonic() < deadline:
            self._note_places(peers)
            time.sleep(TICK)
        return len(watch.replica.peers) >= peers.count

    def _note_places(self, peers: DemoPeers) -> None:
        self._places |= {each.peer: each.place for each in peers.running()}

    def _follow(self, watch: ClusterWatch, peers: DemoPeers) -> None:
        """Watches the tables and causes faults until both jobs have ended, or no row is stored for STALLED seconds."""
        newest, changed = 0, time.monotonic()
        while True:
            replica = watch.look()
            self._note_places(peers)
            stored = {graph: each.count()[1] for graph, each in self._tables.items()}
            total = sum(stored.values())
            if total > newest:
                newest, changed = total, time.monotonic()
            elif time.monotonic() > changed + STALLED:
                self._screen.say("[red]no new rows[/]: checking the results as they are")
                return
            if all(job in replica.jobs and replica.jobs[job].has_ended for job in self._jobs.values()):
                self._have_joined(watch, peers)  # a peer may have started a moment ago: it must join, too
                return
            self._screen.counts({f"{graph} rows": n for graph, n in stored.items()}, total, self._total)
            self._hit(stored, watch, peers)
            time.sleep(TICK)

    def _hit(self, stored: Mapping[str, int], watch: ClusterWatch, peers: DemoPeers) -> None:
        """Causes the next fault if it is due; lets a frozen peer go on once the others have found it silent."""
        now = time.monotonic()
        if self._frozen_at is not None:
            seconds, frozen = now - self._frozen_at, self._done[-1]
            if frozen.peer not in watch.replica.peers or seconds > FROZEN_MAX:
                peers.thaw()
                self._frozen_at, self._next_at = None, now + AWAKE_SECONDS
                self._done[-1] = replace(frozen, seconds=seconds)
                self._screen.say(f"  {now - self._began:5.1f} s  SIGCONT after {seconds:.1f} s: peer {frozen.place}")
            return
        if not self._planned or sum(stored.values()) < self._planned[0].after or now < self._next_at:
            return
        kind = self._planned[0].kind
        fault = self._resubmit(stored, watch) if kind is FaultKind.RESUBMIT else _hit_peers(kind, watch.replica, peers)
        if fault is None:
            return
        self._planned.popleft()
        self._done.append(fault)
        self._next_at = now + APART_SECONDS
        if fault.kind is FaultKind.FREEZE:
            self._frozen_at = now
        number, of = sum(each.kind is fault.kind for each in self._done), self._options.faults[fault.kind]
        self._screen.say(f"  {now - self._began:5.1f} s  [red]{fault.title}[/] {number} of {of}: {fault.what}")

    def _resubmit(self, stored: Mapping[str, int], watch: ClusterWatch) -> DoneFault:
        """Kills the job that has stored the fewest rows, and submits its graph again. `stored`: rows by graph."""
        graph, at = min(stored, key=lambda each: stored[each]), now_ms()
        job = self._jobs[graph]
        append_command(self._cluster, CLUSTER, KillJob(job))
        self._submit(graph, 2, watch)
        return DoneFault(FaultKind.RESUBMIT, at, f"{job}; its graph is submitted again", job=job)

    def _submit(self, graph: str, number: int, watch: ClusterWatch) -> None:
        """Submits a graph with the peers' fingerprint of it: in this process, its tables have other paths."""
        job, tasks = JobId(f"{graph}-{number}"), specify_tasks(GRAPHS[graph].tasks)
        fingerprint = next(iter(watch.replica.peers.values())).graphs[graph]
        append_command(self._cluster, CLUSTER, SubmitJob(job, graph, fingerprint, tasks, PERCENTAGES[graph]))
        self._jobs[graph] = job


def _hit_peers(kind: FaultKind, replica: Replica, peers: DemoPeers) -> DoneFault | None:
    """Kills, freezes or starts a peer; returns None if none can be hit now."""
    at = now_ms()
    if kind is FaultKind.JOIN:
        peers.start(1)
        return DoneFault(kind, at, f"peer {peers.count}", peers.count)
    hit = (peers.kill if kind is FaultKind.KILL else peers.freeze)(replica.peers)
    if hit is None:
        return None
    assigned = replica.assignments.get(hit.peer)
    task = "without a task" if assigned is None else f"{assigned.task} of {assigned.job}"
    return DoneFault(kind, at, f"peer {hit.place} (process {hit.pid}), {task}", hit.place, hit.peer)


def find_pace(rows: int, seconds: float) -> dict[str, str]:
    """Returns the environment variables of both graphs with which each job takes about `seconds`."""
    (calls,) = {task.concurrency for task in channels_graph.graph.tasks if task.concurrency > 1}
    longest = 2 * STEADY * seconds / rows  # seconds of a call if calls run one after another; the shortest is 0
    return {"DEMO_LONGEST_WAIT": str(calls * longest), "DEMO_LONGEST_LOOK_UP": str(longest)}
