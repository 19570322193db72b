"""A worker under watch: what it was given, saved and delivered, and what it may therefore repeat or lose.

The bounds of the weaker guarantees are kept by the place (topic and its life, partition, offset) of a record:

- `in_flight`: at most once, positions are saved of what is not delivered yet. A crash may lose just these.
- `unsaved`: of what a worker was given, positions are not saved. What happens to it now may repeat just these, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from kstreams_py.engine.worker import Worker
from kstreams_py.errors import LogError, Refused
from kstreams_py.record import Message, Positions, TopicPartition
from kstreams_py.testing import MemoryLog
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer
from tests.simulation.plan import AMO, EO, Stage

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[str, int, int, int]
"""Topic, how often it was deleted and created again, partition, offset."""


class WatchedLog:
    """The log of one worker, whose clients are watched."""

    def __init__(self, life: Life, log: MemoryLog) -> None:
        self._log = log
        self._life = life

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, *arguments: Any, **options: Any) -> MemoryConsumer:
        return self._life.watch_consumer(self._log.consumer(*arguments, **options))

    def producer(self, *arguments: Any) -> MemoryProducer:
        return self._life.watch_producer(self._log.producer(*arguments))


class Life:
    """One worker of a process."""

    def __init__(self, world: World, stage: Stage, slot: int) -> None:
        self.stage = stage
        self.slot = slot
        self.worker: Worker | None = None
        self.producer: MemoryProducer | None = None
        self.number = 0
        """That of its process."""
        self.attempt = 0
        """Goes up whenever the worker starts at committed positions."""
        self.in_flight: set[Place] = set()
        self._consumer: MemoryConsumer | None = None
        self.troubles = 0
        """Exactly once: things that happened to it, each of which may make it give up a transaction."""
        self._undone = False
        """A transaction was given up, and none committed since."""
        self._called: set[Place] = set()
        """Of those in flight: the function has run."""
        self._in_doubt: set[Place] = set()
        """Of those in flight: whether their positions are saved is not known."""
        self.is_zombie = False
        """It was frozen while another worker may have taken its place."""
        self._fetched: Positions = {}
        """By partition, the end of what was handed out."""
        self._world = world

    @property
    def joins(self) -> bool:
        """It waits for the group's answer."""
        return self._consumer is not None and self._consumer._joins

    @property
    def member(self) -> int:
        return 0 if self._consumer is None else self._consumer._member

    @property
    def busy(self) -> bool:
        return self.worker is None or self.worker.session.busy or self.worker.session.pending

    @property
    def _is_member(self) -> bool:
        """It holds its static membership, and knows of the newest generation."""
        group, consumer = self._world.log._broker.group(self.stage.group), self._consumer
        assert consumer is not None
        held = group.seats.get(consumer._seat)
        return held is not None and held.member == consumer._member and group.generation == consumer._generation

    def called(self, places: Collection[Place]) -> None:
        """The function has run on these."""
        self._called.update(places)

    def not_done(self, places: Collection[Place]) -> None:
        """The function has stopped the worker, and nothing will come of these."""
        self._called.difference_update(places)

    def unsaved(self) -> set[Place]:
        """What was handed out, and has no position in the group yet."""
        saved = self._saved()
        return self._places({tp: (saved.get(tp, 0), end) for tp, end in self._fetched.items()})

    def heartbeat(self) -> None:
        if self._consumer is not None:
            self._consumer.heartbeat()

    def kill(self) -> None:
        """Nothing of it will be sent any more."""
        if self.producer is not None:
            self.producer.drop()

    def has(self, client: object) -> bool:
        return client is self._consumer or client is self.producer

    # Its producers.

    def watch_producer(self, producer: MemoryProducer) -> MemoryProducer:
        self.producer = producer
        producer.flush = self._acknowledged(producer.flush)  # type: ignore[method-assign]
        producer.commit_transaction = self._acknowledged(producer.commit_transaction)  # type: ignore[method-assign]
        producer.abort_transaction = self._undone_by(producer.abort_transaction)  # type: ignore[method-assign]
        producer.drop = self._undone_by(producer.drop)  # type: ignore[method-assign]
        return producer

    def _acknowledged(self, call: Callable[[], None]) -> Callable[[], None]:
        def watch() -> None:
            done = set(self._called)
            try:
                call()
            except Refused:
                self._world.bounds.may_repeat(self)
                raise
            if self.worker is not None and not (self.worker.session._outputs or self.worker._apart):
                self.in_flight -= done
                self._called -= done
            self._undone = False

        return watch

    def _undone_by(self, call: Callable[[], None]) -> Callable[[], None]:
        def watch() -> None:
            if self.stage.guarantee is EO:
                self._undo()
            call()

        return watch

    def _undo(self) -> None:
        """Exactly once: the transaction is given up, for which there must be a reason."""
        bounds = self._world.bounds
        if self._world.hindered:
            bounds.may_repeat(self)
        elif self._undone:
            return
        elif self.troubles or bounds.fencings[self.slot]:
            self._undone = True
            if self.troubles:
                self.troubles -= 1
            else:
                bounds.fencings[self.slot] -= 1
            bounds.may_repeat(self)

    # Its consumer.

    def watch_consumer(self, consumer: MemoryConsumer) -> MemoryConsumer:
        self._consumer = consumer
        consumer.consume = self._consuming(consumer.consume)  # type: ignore[method-assign]
        consumer.assign = self._starting(consumer.assign)  # type: ignore[method-assign]
        consumer.commit = self._committing(consumer.commit)  # type: ignore[method-assign]
        consumer.subscribe = self._subscribing(consumer.subscribe)  # type: ignore[method-assign]
        consumer._join = self._joining(consumer._join)  # type: ignore[method-assign]
        return consumer

    def _joining(self, join: Callable[[], None]) -> Callable[[], None]:
        def watch() -> None:
            try:
                join()
            finally:
                newest = self._world.log._broker.group(self.stage.group)._members
                self._world.starts[self.stage.group, newest] = self.number

        return watch

    def _consuming(self, consume: Callable[[int, float], Sequence[Message]]) -> Callable[[int, float], Any]:
        def watch(limit: int, timeout: float) -> Sequence[Message]:
            records = consume(limit, timeout)
            for m in records:
                self._fetched[TopicPartition(m.topic(), m.partition())] = m.offset() + 1
            if records and not self._is_member and self.stage.guarantee is not AMO:
                # it has not heard yet that its partitions are read by another member
                read = [(m.topic(), self._life_of(m.topic()), m.partition(), m.offset()) for m in records]
                self._world.bounds.repeatable[self.stage.id].update(read)
            if not records:
                self._world.pass_time(timeout)
            return records

        return watch

    def _starting(self, assign: Callable[[Positions], None]) -> Callable[[Positions], None]:
        def watch(positions: Positions) -> None:
            self.attempt += 1
            self._fetched = dict(positions)
            assign(positions)

        return watch

    def _committing(self, commit: Callable[[Positions], None]) -> Callable[[Positions], None]:
        def watch(positions: Positions) -> None:
            saved = self._saved()
            new = self._places({tp: (saved.get(tp, end), end) for tp, end in positions.items()})
            given_back = {
                (topic, life, number, offset)
                for topic, life, number, offset in self.in_flight
                if offset >= positions.get(TopicPartition(topic, number), offset + 1)
            }
            if self.stage.guarantee is AMO:
                self.in_flight |= new
            self._in_doubt |= new
            try:
                commit(positions)
            except LogError:
                if self.is_zombie and given_back:  # nobody takes back what a stranger did not run
                    self._world.bounds.may_lose(self, self.in_flight)
                raise
            self._in_doubt = set()
            self.in_flight -= given_back

        return watch

    def _subscribing(self, subscribe: Callable[..., None]) -> Callable[..., None]:
        def watch(
            topics: Collection[str],
            assigned: Callable[[set[TopicPartition]], None],
            revoked: Callable[[], None],
            lost: Callable[[], None],
        ) -> None:
            subscribe(topics, assigned, lambda: self._revoked(revoked), lambda: self._lost(lost))

        return watch

    def _revoked(self, callback: Callable[[], None]) -> None:
        """Partitions go. What is open then is finished first, unless a transaction holds it, or nobody answers."""
        callback()
        if self._world.hindered or self.stage.guarantee is EO:
            self._world.bounds.may_repeat(self)
        self._fetched = {}

    def _lost(self, callback: Callable[[], None]) -> None:
        """The membership is over, and whether what is in doubt was saved cannot be told any more."""
        self._world.bounds.may_lose(self, self._in_doubt)
        self._revoked(callback)

    def _saved(self) -> Positions:
        return self._world.log._broker.group(self.stage.group).positions

    def _places(self, ranges: dict[TopicPartition, tuple[int, int]]) -> set[Place]:
        """All places in these ranges of offsets."""
        return {
            (tp.topic, self._life_of(tp.topic), tp.partition, offset)
            for tp, (first, end) in ranges.items()
            for offset in range(first, end)
        }

    def _life_of(self, topic: str) -> int:
        return self._world.life_of(topic)
