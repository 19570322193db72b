"""TestDriver: runs a graph without a broker, in one thread, and crashes it at any request.

The workers are the real ones (processing/worker.py), on a MemoryCluster and a clock that only the test moves::

    with TestDriver(graph) as driver:
        driver.send("shop.orders", {"quantity": 2, "unit_price": 5}, key="order-1")
        driver.run()
        assert driver.values("shop.priced") == [{"quantity": 2, "unit_price": 5, "total": 10}]

A *process* here is a slot: all processors of the graph, which die together in a crash and start again at `restart`.

A graph of channels runs too, with sources in memory in place of its own::

    driver.source("rows").add({"id": 1, "item": "tea"})
    driver.run()
    assert driver.rows("store") == [(1, "tea")]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from weakref import finalize

from kstreams_py.errors import MissingSoftware, UserMistake, did_you_mean
from kstreams_py.formats.registry import Registry
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.peers.routes import check_graph
from kstreams_py.processing.topics import check_topics, create_topics
from kstreams_py.processing.worker import IDLE_WAIT, Worker, open_worker
from kstreams_py.settings import Settings
from kstreams_py.steps.calls import open_calls
from kstreams_py.steps.environment import Environment, open_tracing
from kstreams_py.testing.contents import Contents, MemoryRegistry
from kstreams_py.testing.memory_cluster import ManualClock, MemoryCluster
from kstreams_py.testing.memory_jobs import MemoryJob, MemoryJobs
from kstreams_py.testing.request_faults import Crash

if TYPE_CHECKING:
    from kstreams_py.testing.peers import Peers

QUIET_TURNS: Final = 3
"""A run is complete after this many turns in a row without a change."""

TURNS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A point where a process can die: its nth request of a name, which is carried out (`applied`) or lost.

    - `cluster`: the cluster that the request is for; "" for the graph's own.
    """

    request: str
    nth: int
    applied: bool
    cluster: str = ""

    def __str__(self) -> str:
        where = f" on cluster {self.cluster}" if self.cluster else ""
        return f"{self.request} {self.nth}{where} {'carried out' if self.applied else 'lost'}"


class TestDriver(Contents):
    """Runs a graph on a cluster in memory.

    - `slots`: how many processes share the partitions.
    - `partitions`: how many a topic has that declares none; by default as many as the topics it is read with, or 1.
    - `settings`: Settings() by default. With `tracing`, spans go to the program's tracer provider. Without a
      `state_directory`, states on disk are in a temporary directory of this driver.
    - `registry`: the registry of schemas; by default one in memory.

    The call that runs a worker raises the exception that stops it. Raises GraphError and TopicError as a worker does.
    """

    __test__ = False  # the name is not meant for pytest

    def __init__(
        self,
        graph: Graph,
        *,
        slots: int = 1,
        partitions: int | None = None,
        settings: Settings | None = None,
        registry: Registry | None = None,
    ) -> None:
        settings = settings or Settings()
        self._remove_states: Callable[[], object] = lambda: None
        if "state_directory" not in settings.model_fields_set and any(
            each.state is not None and each.state.on_disk for each in graph.processors
        ):
            # the changelog is in memory, so states on disk of other drivers or workers do not belong to it
            directory = mkdtemp(prefix="kstreams-state-")
            self._remove_states = finalize(self, rmtree, directory, ignore_errors=True)
            settings = settings.model_copy(update={"state_directory": Path(directory)})
        self.clock = ManualClock()
        """The time in seconds. It moves with `advance`, and when a worker waits before it repeats a call."""
        cluster = MemoryCluster(
            self.clock,
            transaction_timeout=settings.transaction_timeout_ms / 1000,
            session_timeout=settings.session_timeout_ms / 1000,
        )
        cluster.limit_values(settings.value_bytes_max)
        super().__init__(graph, cluster, registry or MemoryRegistry())
        self._environment = Environment(
            self.cluster,
            self._registry,
            settings,
            self.clock,
            self.clock.advance,
            chance=lambda: 1.0,
            open_calls=partial(open_calls, patience=None),
            tracing=open_tracing(settings),
            open_sink=self._open_sink,
            inspect_sink=lambda _: None,
        )
        self._peers: Peers | None = None
        self._jobs = MemoryJobs(graph, self.cluster, self._sources, self._environment)
        self._down: set[int] = set()
        self._joining: set[int] = set()
        self._workers: dict[int, list[Worker]] = {}
        self._stopping: dict[int, Event] = {}
        self._slots = range(slots)
        self._waiting = False
        self._idled = dict[tuple[int, str], float]()
        """Seconds that each worker has waited for records, by slot and processor."""
        graph.validate()
        create_topics(graph, self.cluster, partitions or 1)
        check_topics(graph, self.cluster)
        places = {"", *(topic.cluster for topic in graph.topics.values())}
        self._clusters = {place: self.cluster.named(place) for place in places}
        for each in self._clusters.values():
            each.faults.watch(self._on_request)
        self._first = {place: len(each.faults.requests) for place, each in self._clusters.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops all processes without a commit."""
        for slot in list(self._workers):
            self._end(slot)
        if self._peers is not None:
            self._peers.close()
        self._remove_states()

    def peers(self, count: int, *, seed: int = 0) -> Peers:
        """Runs the graph as a job on a cluster of peers in memory, in place of processes; returns these peers.

        From then on `run`, `step`, `advance` and `crash` act on the peers, and the clock moves with their turns. The
        peers read inputs from the next call on.

        - `count`: how many peers. A job needs one for each source and each function.
        - `seed`: chooses the order of the turns, and which peer gets what.

        Raises UserMistake for a graph that peers do not run, and if the job waits for more peers, with the
        message of `kstreams job list`; MissingSoftware without the extra `peers`.
        """
        try:
            from kstreams_py.testing.peers import Peers  # noqa: PLC0415 of an extra
        except ModuleNotFoundError as error:
            raise MissingSoftware.of_extra(error, "peers") from None
        check_graph(self._graph)
        if self._peers is not None or self._workers or self._down or len(self._slots) > 1:
            raise UserMistake("peers take the place of all processes: call peers() once, before run(), without slots=")
        if count < 1:
            raise UserMistake(f"peers({count}): give at least one")
        self._peers = Peers(self._graph, count, self._sources, self._environment, self.cluster, seed)
        return self._peers

    # Turns.

    def run(self) -> None:
        """Runs all processes until every record is processed and committed, or waits for another attempt (Retry).

        Every input of a source is then acknowledged or refused, unless it waits for an attempt, or for `expire`.

        Raises the exception that stops a worker: one of a class in `stop_on`, raised by a function, or one of
        errors.py. After Stop, the process is down.
        """
        self._check_up()
        if self._peers is not None:
            self._peers.run()
        elif not self._until_quiet(crash=False):
            raise UserMistake(
                f"graph {self._graph.name!r} is not done after {TURNS_MAX} turns: use step() if its topics form a cycle"
            )

    def step(self) -> None:
        """Runs one turn of every processor in every slot: a fetch, its steps, a commit if one is due."""
        self._check_up()
        if self._peers is not None:
            self._peers.step()
        else:
            self._turn_all()

    def advance(self, seconds: float) -> None:
        """Moves the clock. Time-outs, and the ends of waits before another attempt, take effect at the next turn.

        After n failed attempts, a step waits for `2 ** n` times the shortest wait of its Retry, up to the longest: here
        no wait is shortened at random.
        """
        if self._peers is not None:
            self._peers.advance(seconds)
        else:
            self.clock.advance(seconds)

    @property
    def retrying(self) -> frozenset[str]:
        """The ids of the processors that have a step waiting for another attempt."""
        waiting = [w.processor.id for workers in self._workers.values() for w in workers if w.is_retrying]
        return frozenset([*waiting, *(self._jobs if self._peers is None else self._peers).retrying])

    def expire(self) -> None:
        """Moves the clock past the time-out of inputs: the next turn reads again the inputs that were lost.

        An input that still waits in a task, for an attempt or for its target, is not lost.
        """
        self._check_tasks()
        self.advance(self._jobs.timeout)

    def lose(self, message: str) -> None:
        """Loses the next message of a kind between the tasks of a job: its input is read again after `expire`.

        - `message`: "ack", the acknowledgement by which a task says that it is done with a value.
        """
        self._check_tasks()
        if message != "ack":
            raise UserMistake(f"no message {message!r} can be lost: lose 'ack', or let a request fail: cluster.faults")
        if self._peers is not None:
            raise UserMistake("peers send acknowledgements in frames: lose them with peers.lose(sender, receiver)")
        self._jobs.lose_acknowledgement()

    def _check_tasks(self) -> None:
        if not self._graph.tasks:
            raise UserMistake(f"graph {self._graph.name!r} has no channel: advance(seconds) moves the clock")

    # Crashes.

    def crash(
        self, at: CrashPoint | str | None = None, *, nth: int = 1, applied: bool = True, cluster: str = ""
    ) -> None:
        """Runs until a process makes the nth request of a name from now on; kills the process there, as SIGKILL does.

        - `at`: a crash point, or the name of a request, "" for any; None to kill all processes now.
        - `nth`: which of the requests with this name.
        - `applied`: whether the request is carried out or lost.
        - `cluster`: which cluster the request is for; "" for the graph's own.

        Open transactions stay open. Raises UserMistake if the run has no such request.
        """
        if at is None:
            if self._peers is not None:
                raise UserMistake("crash() needs a request: peers.kill(peer) kills a peer at once")
            for slot in list(self._workers):
                self._kill(slot)
            self._down.update(self._slots)
            return
        point = at if isinstance(at, CrashPoint) else CrashPoint(at, nth, applied, cluster)
        self._check_up()
        if point.cluster not in self._clusters:
            raise UserMistake(
                f"graph {self._graph.name!r} writes to no cluster {point.cluster!r}: "
                f"{did_you_mean(point.cluster, self._clusters) or 'leave cluster= out'}"
            )
        faults = self._clusters[point.cluster].faults
        before, down = len(faults.requests), set(self._down)
        faults.inject(point.request, nth=point.nth, error=Crash(), applied=point.applied)
        if self._peers is not None:
            has_died = self._peers.run(until_death=True)
        else:
            self._until_quiet(crash=True)
            has_died = self._down != down
        if not has_died:
            requests = Counter(faults.requests[before:])
            listed = ", ".join(f"{number} {name}" for name, number in requests.items()) or "none"
            raise UserMistake(f"the run ended before request {point}: its requests were {listed}; see crash_points()")

    def crash_points(self) -> list[CrashPoint]:
        """Returns all crash points of the run so far, for `crash` of a new driver that gets the same records."""
        points = []
        for place, cluster in sorted(self._clusters.items()):
            seen = Counter[str]()
            for request in cluster.faults.requests[self._first[place] :]:
                seen[request] += 1
                points += [CrashPoint(request, seen[request], applied, place) for applied in (True, False)]
        return points

    def restart(self) -> None:
        """Restarts the processes that are down, in their slots, at the next turn.

        The leases of killed processes end: the inputs that they had claimed from a source are read again.
        """
        self._down.clear()
        self._jobs.end_leases()

    @property
    def down(self) -> frozenset[int]:
        """The slots whose process has crashed or stopped."""
        return frozenset(self._down)

    # Turns of the processes.

    def _until_quiet(self, *, crash: bool) -> bool:
        """Runs turns until nothing changes or, with `crash`, a process has died. Returns False after TURNS_MAX."""
        quiet, down = 0, len(self._down)
        for _ in range(TURNS_MAX):
            before = self._state()
            self._waiting = quiet > 0
            self._turn_all()
            self._waiting = False
            quiet = quiet + 1 if self._state() == before else 0
            if quiet == QUIET_TURNS or (crash and len(self._down) > down):
                return True
        return False

    def _state(self) -> object:
        """Returns the state that a turn changes if it does anything."""
        of_workers = [
            (slot, worker.counters.as_dict(), worker.ledger.positions, worker.committer.busy, worker.tasks.ready)
            for slot, workers in self._workers.items()
            for worker in workers
        ]
        return of_workers, self._jobs.state()

    def _on_request(self, name: str, client: object) -> None:
        if self._waiting and name == "consume":
            # an idle worker waits; all workers wait at the same time, so the broker's clock does not move
            for slot, workers in self._workers.items():
                for worker in workers:
                    if worker.consumer is client and not worker.is_retrying:
                        self._idled[slot, worker.processor.id] += IDLE_WAIT

    def _clock_of(self, slot: int, processor: str) -> Callable[[], float]:
        """Returns the clock of a worker. While a partition waits for another attempt, only `advance` moves it."""
        self._idled[slot, processor] = 0.0
        return lambda: self.clock() + self._idled[slot, processor]

    def _check_up(self) -> None:
        if len(self._down) == len(self._slots):
            raise UserMistake("every process has crashed or stopped: call restart() first")

    def _turn_all(self) -> None:
        """Runs one turn of all slots. New workers join first, so that none has begun when partitions are assigned."""
        self._jobs.begin_turn()
        for act in (self._start, self._join, self._turn):
            for slot in self._slots:
                if slot not in self._down:
                    self._guarded(act, slot)

    def _guarded(self, act: Callable[[int], None], slot: int) -> None:
        try:
            act(slot)
        except Crash:
            self._kill(slot)
            self._down.add(slot)
        except BaseException:
            self._end(slot)
            raise

    def _turn(self, slot: int) -> None:
        """Runs one turn of each processor, and of the job."""
        self._turn_each(slot, [*self._workers[slot], *self._jobs.of(slot)])

    def _turn_each(self, slot: int, loops: Sequence[Worker | MemoryJob]) -> None:
        """Runs one turn of each loop. Once one has stopped, the others commit what is processed, as in a slot."""
        failures = dict[Worker | MemoryJob, Exception]()
        for loop in loops:
            _keep_failure(loop, loop.run_turn, failures)
            if failures or self._stopping[slot].is_set():
                break
        else:
            return
        for loop in loops:
            if loop not in failures:
                _keep_failure(loop, loop.finish, failures)
        self._end(slot)
        if failures:
            raise next(iter(failures.values()))

    def _start(self, slot: int) -> None:
        if slot in self._workers:
            return
        self._stopping[slot] = stopping = Event()
        self._workers[slot] = [
            open_worker(
                self._graph,
                processor,
                slot,
                replace(self._environment, clock=self._clock_of(slot, processor.id)),
                stopping,
            )
            for processor in self._graph.processors
        ]
        for worker in self._workers[slot]:
            worker.start()
        self._jobs.start(slot, stopping)
        self._joining.add(slot)

    def _join(self, slot: int) -> None:
        """Runs the turn in which a new worker is assigned its partitions and reads no record yet."""
        if slot in self._joining:
            self._joining.discard(slot)
            self._turn_each(slot, [*self._workers[slot], *self._jobs.joining(slot)])

    def _kill(self, slot: int) -> None:
        """Drops the workers of a process that dies, with their calls under way."""
        for worker in self._workers.pop(slot, []):
            worker.runner.close()
            if worker.committer.stores is not None:
                worker.committer.stores.close()  # the operating system frees the files of a process
        self._jobs.kill(slot)

    def _end(self, slot: int) -> None:
        self._down.add(slot)
        for worker in self._workers.pop(slot, []):
            worker.close()
        self._jobs.close(slot)


def _keep_failure(
    loop: Worker | MemoryJob, act: Callable[[], None], failures: dict[Worker | MemoryJob, Exception]
) -> None:
    try:
        act()
    except Exception as error:
        failures[loop] = error
