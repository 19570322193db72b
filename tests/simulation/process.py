"""A simulated worker process: its workers, its turns, its end."""

from __future__ import annotations

from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from kstreams_py.errors import DrainTimeout, KStreamsError
from kstreams_py.graph.sink import Evidence
from kstreams_py.processing.topics import check_topics
from kstreams_py.processing.worker import open_worker
from kstreams_py.steps.environment import Environment
from kstreams_py.testing.memory_clients import MemoryProducer
from tests.simulation.plan import EO, Halt
from tests.simulation.simulated_calls import SimulatedCalls
from tests.simulation.watched_worker import WatchedCluster, WatchedWorker

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """A worker process: it runs one slot, with a worker for each processor."""

    def __init__(self, world: World, slot: int) -> None:
        self.slot = slot
        self.is_acting = False
        """It is within a turn, perhaps frozen there while others run theirs."""
        self.is_frozen = False
        self.was_frozen = False
        self.failed: WatchedWorker | None = None
        """The worker that has raised the exception which ends the process."""
        self.is_starting = True
        self.name = f"{slot}.{next(world.ordinals)}"
        self.number = 0
        """Of several processes in one slot, the one with the highest number joined last."""
        self.workers = [WatchedWorker(world, stage, slot) for stage in world.stages]
        world.workers += self.workers
        self._world = world
        self._stopping = Event()

    def __str__(self) -> str:
        return self.name

    def start(self) -> None:
        world = self._world
        world.run_unwatched(lambda: check_topics(world.graph, world.cluster))
        processors = {processor.id: processor for processor in world.graph.processors}
        for watched in self.workers:
            environment = Environment(
                WatchedCluster(watched, world.cluster),
                world.registry,
                world.settings,
                world.clock,
                world.pass_time,
                outputs_held=world.outputs_held,
                chance=world.random.random,
                open_calls=partial(SimulatedCalls, world.random),
                open_sink=lambda _, consumer: world.targets[consumer].connect(consumer),
            )
            watched.worker = open_worker(
                world.graph, processors[watched.stage.id], self.slot, environment, self._stopping
            )
            watched.watch_tally(watched.worker.committer.tally)
        self.number = next(world.numbers)
        for watched in self.workers:
            watched.number = self.number
            assert watched.worker is not None
            watched.worker.start()
        self.is_starting = False

    def turn(self) -> None:
        """Runs one turn of a worker; then stops, if the process was asked to."""
        watched = self.failed = self._world.random.choice(self.workers)
        assert watched.worker is not None
        watched.worker.run_turn()
        self.failed = None
        if self._stopping.is_set():
            self.stop()

    def stop(self) -> None:
        """Drains and ends, as the workers of a slot do. Raises the first failure."""
        failures: list[Exception] = []
        self._excuse_losses_in_outage()
        for watched in self.workers:
            # of steps whose rows are not stored yet, dead letters may be committed
            if watched.stage.runs_ahead or watched.stage.stores is Evidence.OFFSETS:
                self._world.bounds.may_repeat(watched)
            try:
                if watched.worker is not None and watched is not self.failed:
                    watched.worker.finish()
            except (KStreamsError, Halt) as error:
                failures.append(error)
                if isinstance(error, DrainTimeout):
                    self._world.bounds.may_lose(watched, watched.in_flight)
        self.close()
        self._world.remove(self)
        if failures:
            raise failures[0]

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """Closes the workers without a commit."""
        self._excuse_losses_in_outage()
        for watched in self.workers:
            if watched.worker is not None:
                watched.worker.close()

    def _excuse_losses_in_outage(self) -> None:
        """In an outage, a process that ends may lose or repeat records: it waits for answers only some seconds."""
        if self._world.has_outage:
            for watched in self.workers:
                self._world.bounds.may_lose(watched, watched.in_flight)
                self._world.bounds.may_repeat(watched)

    def kill(self) -> None:
        for watched in self.workers:
            watched.kill()

    @property
    def busy(self) -> bool:
        return any(watched.busy for watched in self.workers)

    def stage_of(self, client: object) -> str:
        """The id of the processor that has this client; "" for none."""
        if client is None:
            return ""
        return next((watched.stage.id for watched in self.workers if watched.has(client)), "")

    def sends_as(self, client: object) -> bool:
        """Whether this client belongs to the process, and is not a producer that it has dropped."""
        if not isinstance(client, MemoryProducer):
            return True
        if len(self.workers) == 1:  # as mostly: this is asked at each point of a run
            return self.workers[0].sends_as(client)
        return any(watched.sends_as(client) for watched in self.workers)

    def is_transactional(self, client: object) -> bool:
        """Whether this client is a transactional producer."""
        return any(watched.stage.guarantee is EO and client in watched.producers for watched in self.workers)
