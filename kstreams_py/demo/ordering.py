"""`kstreams demo ordering`: four front ends change aircraft, three workers send the events, three groups apply them.

Workers and the processes of the groups are killed at random. The result of each group is compared with the file of
flights. So is the result of the rule in ordering/chain.py alone, which this process applies to the events of the topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final
from uuid import uuid4

from kstreams_py.demo import children, data_files
from kstreams_py.demo.aircraft import FRONT_ENDS, AircraftChange, State, changes, expected_states
from kstreams_py.demo.checks import exit_status
from kstreams_py.demo.front_end import FrontEndTask
from kstreams_py.demo.order_checks import Killed, OrderResults, consume, consume_plainly, describe, judge
from kstreams_py.demo.order_consumers import OrderConsumers, read_groups, read_topic
from kstreams_py.demo.order_workers import WORKERS, OrderWorkers, failed
from kstreams_py.demo.ordering_graph import EVENTS, PARTITIONS, PAUSES, graph, topic_of
from kstreams_py.demo.recoveries import Kill
from kstreams_py.demo.screen import LOG, Screen, open_cluster, prepare
from kstreams_py.demo.traffic import TICK, GroupProgress, Kills, TopicWatch
from kstreams_py.errors import SettingsError
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.front_end import open_storage
from kstreams_py.ordering.storage import Storage
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.records import TopicPartition
from kstreams_py.running.terminal.progress import LockedConsole
from kstreams_py.settings import Settings
from kstreams_py.sinks.redis import open_client

PLAIN: Final = "aircraft.plain"

FILE: Final = "events.db"
REPORT: Final = "report.md"

RATE: Final = 500
"""Changes per second, or fewer if the kills need more time."""

SECONDS_PER_KILL: Final = 2.5

START_SECONDS: Final = 1.0
"""Seconds between the start of the front ends and the first change."""

STALLED: Final = 60.0
"""Seconds without a new record before the run ends early, and its results are checked as they are."""

DIRECT: Final = "by the rule"


@dataclass(frozen=True, slots=True)
class Demo:
    """The parameters of the demo.

    - `flights`: how many departures to process, from the beginning of the year.
    - `kills`: how many workers, and how many processes of the consumer groups, to kill, spread evenly over the run.
    - `seed`: the seed of the kills, and of the delays of the front ends.
    - `store`: the path of a file, or the URL of a Redis. Keys in Redis begin with `prefix`, and are deleted at the end.
    """

    flights: int
    kills: int
    seed: int
    store: str
    prefix: str = ""


def run(flights: int, kills: int, seed: int, store: str | None, output: Path) -> int:
    """Runs the demo, and returns the exit status: 0 if every check holds, otherwise 1.

    - `store`: see open_storage(); None for a file in `output`.
    - `output`: the directory of the report and its data; files of an earlier run are replaced.

    For the other parameters see Demo. Raises SettingsError, StoreUnavailable, and MissingSoftware if the library of the
    store is missing.
    """
    screen = Screen(LockedConsole(stderr=False), "events")
    output = prepare(output, [LOG, REPORT, FILE, f"{FILE}-wal", f"{FILE}-shm"])
    prefix = f"kstreams-demo-{uuid4().hex[:8]}:" if store is not None and "://" in store else ""
    demo = Demo(flights, kills, seed, store or str(output / FILE), prefix)
    _check(demo.store, prefix)
    with _forgetting(demo, screen):
        screen.say("reading the first departures of 2013")
        rows = data_files.read_first(flights)
        made = changes(rows)
        screen.say("starting a Kafka broker on this machine")
        with open_cluster(output) as (settings, cluster):
            cluster.create_topics([(PLAIN, PARTITIONS, 1, {})])
            create_topics(graph, cluster)
            check_topics(graph, cluster)
            killed, not_stopped = OrderingStage(demo, settings, cluster, output, screen).run(made)
            screen.say("reading everything back")
            groups = {DIRECT: consume(read_topic(cluster, EVENTS)), **read_groups(settings, cluster)}
            plain = consume_plainly(read_topic(cluster, PLAIN))
        results = OrderResults(made, expected_states(rows), _stored(demo, made), groups, plain, killed, not_stopped)
    checks = judge(results)
    screen.table(checks)
    screen.report(output / REPORT, "Event ordering", describe(results))
    return exit_status(checks)


@dataclass(frozen=True, slots=True)
class OrderingStage:
    """Runs front ends, workers, kills and the screen together."""

    demo: Demo
    settings: Settings
    cluster: KafkaCluster
    output: Path
    screen: Screen

    def run(self, made: Sequence[AircraftChange]) -> tuple[Killed, int]:
        """Runs until every group has applied every event, or no new record comes for STALLED seconds.

        Returns the number of kills of each kind, and how many workers did not exit with status 0 when stopped. Raises
        WorkersFailed if a front end fails, or a worker or a process of the groups ends by itself.
        """
        topics = (EVENTS, PLAIN, *map(topic_of, PAUSES))
        watch = TopicWatch(self.cluster, [TopicPartition(name, p) for name in topics for p in range(PARTITIONS)])
        stopping = Event()
        events = sum(len(change.events) for change in made)
        kills, kills_of_groups = (Kills(self.demo.kills, events, self.demo.seed + each) for each in (0, 1))
        self.screen.say(
            f"{len(WORKERS)} workers and the processes of {len(PAUSES)} consumer groups, {kills.left} kills of each to "
            f"come; the log is {self._log}"
        )
        with ExitStack() as stack:
            stack.enter_context(self.screen)
            pool = stack.enter_context(ThreadPoolExecutor())
            stack.callback(stopping.set)
            watching = pool.submit(watch.run, stopping)
            storage = stack.enter_context(closing(open_storage(self.demo.store, self.demo.prefix)))
            progress = stack.enter_context(closing(GroupProgress(self.cluster, graph, watch.partitions, watch)))
            consumers = stack.enter_context(closing(OrderConsumers(self.settings, self._log)))
            consumers.start(pool)
            workers = stack.enter_context(closing(self._start_workers(storage)))
            while not (workers.have_registered and consumers.have_joined):
                workers.look()
                time.sleep(TICK)
            began = self.screen.begin()
            seconds = max(len(made) / RATE, SECONDS_PER_KILL * kills.left)
            front_ends = self._start_front_ends(stack, seconds)
            while (
                self._is_at_work(front_ends)
                or kills.left
                or kills_of_groups.left
                or storage.objects()
                or not (workers.have_registered and consumers.have_joined and progress.complete())
            ):
                if watching.done():
                    watching.result()  # raises its exception
                if time.monotonic() - watch.last_arrival > STALLED:
                    self.screen.say("[red]no new records[/]: checking the results as they are")
                    break
                self._turn(watch, (kills, kills_of_groups), workers, consumers, (began, events))
            not_stopped = workers.stop()
        return Killed(len(kills.done), len(kills_of_groups.done)), not_stopped

    def _turn(
        self,
        watch: TopicWatch,
        kills: tuple[Kills, Kills],
        workers: OrderWorkers,
        consumers: OrderConsumers,
        run: tuple[float, int],
    ) -> None:
        """Kills a worker or a consumer process if a kill is due, restarts killed workers, and shows the counts.

        - `run`: when the run began, and how many events it has.
        """
        began, events = run
        counts = dict(watch.counts)
        slowest = min(counts.get(topic_of(group), 0) for group in PAUSES)
        if kill := kills[0].look(counts.get(EVENTS, 0), workers.pids):
            self._tell(kill, kills[0], began, f"worker {WORKERS[kill.slot]}")
        if kill := kills[1].look(slowest, consumers.pids):
            self._tell(kill, kills[1], began, f"consumers in slot {kill.slot}")
        workers.look({each.pid for each in kills[0].done})
        shown = {name: counts.get(name, 0) for name in (EVENTS, PLAIN, *map(topic_of, PAUSES))}
        self.screen.counts(shown, min(slowest, events), events)
        time.sleep(TICK)

    def _tell(self, kill: Kill, kills: Kills, began: float, what: str) -> None:
        number = len(kills.done)
        self.screen.say(
            f"  {kill.at - began:5.1f} s  [red]SIGKILL[/] {number} of {number + kills.left}: {what} "
            f"(process {kill.pid})"
        )

    def _start_workers(self, storage: Storage) -> OrderWorkers:
        prefix = ["--prefix", self.demo.prefix] if self.demo.prefix else []
        where = ["--store", self.demo.store, "--topic", EVENTS, *prefix]
        environment = self.settings.as_environment()
        return OrderWorkers(
            where, environment, self._log, lambda: {each.name: each.number for each in storage.workers()}
        )

    def _start_front_ends(self, stack: ExitStack, seconds: float) -> dict[str, children.Child]:
        """Starts a process for each front end. `seconds`: the time in which they make their changes."""
        found = {}
        began = time.time() + START_SECONDS
        for seed, name in enumerate(FRONT_ENDS, self.demo.seed):
            task = FrontEndTask(name, self.demo.flights, self.demo.store, self.demo.prefix, PLAIN, began, seconds, seed)
            found[name] = children.start(task.arguments(), self.settings.as_environment(), self._log)
            stack.callback(children.end, found[name])
        return found

    def _is_at_work(self, front_ends: Mapping[str, children.Child]) -> bool:
        """Returns whether a front end still makes changes. Raises WorkersFailed for one that has failed."""
        for name, process in front_ends.items():
            if process.poll():
                raise failed(f"front end {name}", process.returncode, self._log)
        return any(process.poll() is None for process in front_ends.values())

    @property
    def _log(self) -> Path:
        return self.output / LOG


def _stored(demo: Demo, made: Sequence[AircraftChange]) -> dict[str, State]:
    """Reads the states of the aircraft in the store."""
    with closing(Ordering(demo.store, prefix=demo.prefix)) as ordering:
        states = {name: ordering.data(name) for name in {change.aircraft for change in made}}
    return {name: state for name, state in states.items() if state is not None}


def _check(store: str, prefix: str) -> None:
    """Raises SettingsError for a store file that exists, and the errors of open_storage() for an unusable store."""
    if not prefix and Path(store).exists():
        raise SettingsError(f"{store} exists, and may have events: name another file with --store")
    open_storage(store, prefix).close()


@contextmanager
def _forgetting(demo: Demo, screen: Screen) -> Iterator[None]:
    """Deletes the keys of this run in Redis at the end."""
    try:
        yield
    finally:
        if demo.prefix:
            from redis import RedisError  # noqa: PLC0415 an extra

            try:
                with closing(open_client(demo.store)) as client:
                    for key in client.scan_iter(f"{demo.prefix}*", count=1_000):
                        client.delete(key)
            except RedisError as error:
                screen.say(
                    f"keys of this run are left in the store ({error}): delete those that begin with {demo.prefix}"
                )
