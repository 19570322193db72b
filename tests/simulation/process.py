"""A worker process: its workers, its turns, and the ways in which it ends."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from kstreams_py.engine.topics import check_topics
from kstreams_py.engine.transaction import Surroundings
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import DrainTimeout, KStreamsError
from kstreams_py.testing.memory_clients import MemoryProducer
from tests.simulation.life import Life, WatchedLog
from tests.simulation.plan import EO, Halt

if TYPE_CHECKING:
    from tests.simulation.world import World


class Process:
    """A worker process: one life of one slot, with a worker for each processor."""

    def __init__(self, world: World, slot: int) -> None:
        self.slot = slot
        self.acting = False
        """In the middle of something: of its turn, or frozen there while others take theirs."""
        self.is_frozen = False
        self.was_frozen = False
        self.failed: Life | None = None
        """Whose worker has raised what ends the process."""
        self.starting = True
        self.birth = next(world.births)
        self.number = 0
        """Of several in one slot, the one with the highest joined last."""
        self.lives = [Life(world, stage, slot) for stage in world.stages]
        self._world = world
        self._stopping = Event()

    def __str__(self) -> str:
        return f"{self.slot}.{self.birth}"

    def start(self) -> None:
        world = self._world
        world.unwatched(lambda: check_topics(world.graph, world.log))
        processors = {processor.id: processor for processor in world.graph.processors}
        for life in self.lives:
            around = Surroundings(
                WatchedLog(life, world.log),  # type: ignore[arg-type]
                world.registry,
                world.settings,
                world.clock,
                world.pass_time,
                outputs_held=world.outputs_held,
            )
            life.worker = Worker(world.graph, processors[life.stage.id], self.slot, around, self._stopping)
        self.number = next(world.numbers)
        for life in self.lives:
            life.number = self.number
            life.worker.start()
        self.starting = False

    def turn(self) -> None:
        """One turn of a worker; and the end, if the process was told to stop."""
        life = self.failed = self._world.random.choice(self.lives)
        life.worker.step()
        self.failed = None
        if self._stopping.is_set():
            self.stop()

    def stop(self) -> None:
        """Drains and ends, as the workers of a slot do; raises the first failure."""
        failures: list[Exception] = []
        self._give_up_if_hindered()
        for life in self.lives:
            try:
                if life.worker is not None and life is not self.failed:
                    life.worker.finish()
            except (KStreamsError, Halt) as error:
                failures.append(error)
                if isinstance(error, DrainTimeout):
                    self._world.bounds.may_lose(life, life.in_flight)
        self.close()
        self._world.gone(self)
        if failures:
            raise failures[0]

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """What a process does on its way out of an exception."""
        self._give_up_if_hindered()
        for life in self.lives:
            if life.worker is not None:
                life.worker.close()

    def _give_up_if_hindered(self) -> None:
        """A process that ends waits for answers for some seconds, or not at all."""
        if self._world.hindered:
            for life in self.lives:
                self._world.bounds.may_lose(life, life.in_flight)
                self._world.bounds.may_repeat(life)

    def kill(self) -> None:
        for life in self.lives:
            life.kill()

    @property
    def busy(self) -> bool:
        return any(life.busy for life in self.lives)

    def stage_of(self, client: object) -> str:
        """The processor whose client it is; "" if there is one processor only."""
        if client is None or len(self.lives) == 1:
            return ""
        return next((life.stage.id for life in self.lives if life.has(client)), "")

    def sends_as(self, client: object) -> bool:
        """Whether a request of this client is of this process, and not of one that lingers in the background."""
        return not isinstance(client, MemoryProducer) or any(client is life.producer for life in self.lives)

    def is_transactional(self, client: object) -> bool:
        """Whether it is a producer of exactly once."""
        return any(life.stage.guarantee is EO and life.producer is client for life in self.lives)
