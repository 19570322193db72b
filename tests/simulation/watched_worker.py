"""A worker whose clients are watched: the records that it has fetched, committed and delivered.

From these follow the records that the weaker guarantees may repeat or lose, by place (topic and how often it was
recreated, partition, offset):

- `in_flight`: at most once, offsets are committed and outputs are not delivered. A crash may lose these records only.
- `unsaved`: fetched, and the offsets are not committed. A fault may repeat these records only, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from kstreams_py.errors import ClientError, Refused
from kstreams_py.graph.sink import Evidence
from kstreams_py.processing.commits.guarantees import AtMostOnce
from kstreams_py.processing.commits.tally import Tally
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Message, Positions, TopicPartition
from kstreams_py.testing import MemoryCluster
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer
from tests.simulation.plan import AMO, EO, Stage

if TYPE_CHECKING:
    from tests.simulation.world import World

Place = tuple[str, int, int, int]
"""Topic, how often it was deleted and created again, partition, offset."""


class WatchedCluster:
    """The cluster of one worker, which watches its clients."""

    def __init__(self, watched: WatchedWorker, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def named(self, name: str) -> WatchedCluster:
        return WatchedCluster(self._watched, self._cluster.named(name)) if name else self

    def consumer(self, *arguments: Any, **options: Any) -> MemoryConsumer:
        return self._watched.watch_consumer(self._cluster.consumer(*arguments, **options))

    def producer(self, *arguments: Any) -> MemoryProducer:
        producer = self._cluster.producer(*arguments)
        if arguments[1].endswith(".journal"):
            return self._watched.watch_recorder(producer)
        return self._watched.watch_producer(producer)


class WatchedWorker:
    """One worker of a process, with the records that a fault may repeat or lose."""

    def __init__(self, world: World, stage: Stage, slot: int) -> None:
        self.stage = stage
        self.slot = slot
        self.worker: Worker | None = None
        self.producer: MemoryProducer | None = None
        self.recorder: MemoryProducer | None = None
        """The producer of its journal."""
        self.number = 0
        """The number of its process."""
        self.attempt = 0
        """Counts how often the worker has started at committed offsets."""
        self.in_flight: set[Place] = set()
        self._consumer: MemoryConsumer | None = None
        self.troubles = 0
        """Exactly once: the faults that it met, each of which may make it give up one transaction."""
        self._undone = False
        """A transaction was given up, and none was committed since."""
        self._called: set[Place] = set()
        """Records in flight for which the function has run."""
        self._in_doubt: set[Place] = set()
        """Records in flight of which it is not known whether their offsets are committed."""
        self.is_zombie = False
        """It was frozen, and another worker may have replaced it meanwhile."""
        self._fetched: Positions = {}
        """The next offset of each partition after the records that `consume` has returned."""
        self._world = world

    @property
    def is_joining(self) -> bool:
        """It has no assignment yet. A client that wakes up then joins again without asking (see MemoryConsumer)."""
        consumer = self._consumer
        return consumer is not None and (consumer._joins or (consumer._generation < 0 and not consumer._lost))

    @property
    def member(self) -> int:
        return 0 if self._consumer is None else self._consumer._member

    @property
    def busy(self) -> bool:
        worker = self.worker
        return worker is None or worker.is_retrying or worker._is_unfinished

    @property
    def is_member(self) -> bool:
        """It holds its static membership in the current generation of the group."""
        group, consumer = self._world.cluster._broker.group(self.stage.group), self._consumer
        assert consumer is not None
        held = group.static_members.get(consumer._instance_id)
        return held is not None and held.member == consumer._member and group.generation == consumer._generation

    def note_called(self, places: Collection[Place]) -> None:
        """Notes that the function was called with these records."""
        self._called.update(places)

    def note_not_done(self, places: Collection[Place]) -> None:
        """Notes that the function has stopped the worker: these records get no outputs."""
        self._called.difference_update(places)

    def unsaved(self) -> set[Place]:
        """The records that were fetched and are not committed."""
        saved = self._saved()
        return self._places({tp: (saved.get(tp, 0), end) for tp, end in self._fetched.items()})

    def watch_tally(self, tally: Tally) -> None:
        """Watches what becomes of steps whose commit got no answer."""
        give_up, decide, bounds = tally.give_up, tally.decide, self._world.bounds

        def watch_giving_up() -> None:
            bounds.uncounted[self.stage.id] += sum(counts.records_in for counts, _ in tally._undecided)
            give_up()

        def watch_decision(positions: Positions) -> None:
            if self.is_zombie and tally._undecided:
                bounds.counted_twice.add(self.stage.id)
            # a partition that has moved meanwhile: only its next worker sees its offsets
            moved = (counts.records_in for counts, after in tally._undecided if not after.keys() <= positions.keys())
            bounds.uncounted[self.stage.id] += sum(moved)
            decide(positions)

        tally.give_up = watch_giving_up  # type: ignore[method-assign]
        tally.decide = watch_decision  # type: ignore[method-assign]

    def heartbeat(self) -> None:
        if self._consumer is not None:
            self._consumer.heartbeat()

    def kill(self) -> None:
        """Drops the producer: none of its queued records is sent."""
        for producer in self.producers:
            producer.drop()

    def has(self, client: object) -> bool:
        return client is self._consumer or self.sends_as(client)

    def sends_as(self, client: object) -> bool:
        """Whether this is a producer of the worker, and not one that it has dropped."""
        return client is self.producer or client is self.recorder

    @property
    def producers(self) -> list[MemoryProducer]:
        return [producer for producer in (self.producer, self.recorder) if producer is not None]

    # Its producers.

    def watch_producer(self, producer: MemoryProducer) -> MemoryProducer:
        self.producer = producer
        producer.flush = self._acknowledged(producer.flush)  # type: ignore[method-assign]
        producer.commit_transaction = self._acknowledged(producer.commit_transaction)  # type: ignore[method-assign]
        return self._watch_undoing(producer)

    def watch_recorder(self, recorder: MemoryProducer) -> MemoryProducer:
        self.recorder = recorder
        commit = recorder.commit_transaction

        def commit_transaction() -> None:
            commit()
            self._undone = False

        recorder.commit_transaction = commit_transaction  # type: ignore[method-assign]
        return self._watch_undoing(recorder)

    def _watch_undoing(self, producer: MemoryProducer) -> MemoryProducer:
        producer.abort_transaction = self._undone_by(producer.abort_transaction)  # type: ignore[method-assign]
        producer.drop = self._undone_by(producer.drop)  # type: ignore[method-assign]
        return producer

    def _acknowledged(self, call: Callable[[], None]) -> Callable[[], None]:
        """Wraps a call after which the outputs written before it are acknowledged."""

        def watch() -> None:
            done = set(self._called)
            try:
                call()
            except Refused:
                self._world.bounds.may_repeat(self)
                self._world.bounds.may_come_late(self)
                raise
            guarantee = self.worker.committer if self.worker is not None else None
            apart = guarantee._refused.apart if isinstance(guarantee, AtMostOnce) else None
            if guarantee is not None and not (guarantee._outputs or apart):
                self.in_flight -= done
                self._called -= done
            self._undone = False

        return watch

    def _undone_by(self, call: Callable[[], None]) -> Callable[[], None]:
        """Wraps a call that gives the transaction up."""

        def watch() -> None:
            if self.stage.guarantee is EO:
                self._undo()
            call()

        return watch

    def _undo(self) -> None:
        """Exactly once: allows repetition if there is a fault because of which the transaction is given up."""
        bounds = self._world.bounds
        if self._world.has_outage:
            bounds.may_repeat(self)
        elif self._undone:
            return
        elif self.troubles or (bounds.fencings[self.slot] and self.unsaved()):
            self._undone = True
            if self.troubles:
                self.troubles -= 1
            else:
                bounds.fencings[self.slot] -= 1
            bounds.may_repeat(self)

    # Its consumer.

    def watch_consumer(self, consumer: MemoryConsumer) -> MemoryConsumer:
        self._consumer = consumer
        consumer.consume = self._consuming(consumer.consume)  # type: ignore[method-assign,assignment]
        consumer.assign = self._starting(consumer.assign)  # type: ignore[method-assign,assignment]
        consumer.commit = self._committing(consumer.commit)  # type: ignore[method-assign,assignment]
        consumer.subscribe = self._subscribing(consumer.subscribe)  # type: ignore[method-assign]
        consumer._join = self._joining(consumer._join)  # type: ignore[method-assign]
        return consumer

    def _joining(self, join: Callable[[], None]) -> Callable[[], None]:
        def watch() -> None:
            try:
                join()
            finally:
                newest = self._world.cluster._broker.group(self.stage.group)._members
                self._world.starts[self.stage.group, newest] = self.number

        return watch

    def _consuming(self, consume: Callable[[int, float], Sequence[Message]]) -> Callable[[int, float], Any]:
        def watch(limit: int, timeout: float) -> Sequence[Message]:
            records = consume(limit, timeout)
            for m in records:
                self._fetched[TopicPartition(m.topic(), m.partition())] = m.offset() + 1
            if records and not self.is_member and self.stage.guarantee is not AMO:
                # it does not know yet that another member has its partitions
                read = [(m.topic(), self._recreations_of(m.topic()), m.partition(), m.offset()) for m in records]
                self._world.bounds.repeatable[self.stage.id].update(read)
            if not records:
                self._world.pass_time(timeout)
            return records

        return watch

    def _starting(self, assign: Callable[[Positions], None]) -> Callable[[Positions], None]:
        def watch(positions: Positions) -> None:
            self.attempt += 1
            self._undone = False  # what fails from now on fails by another fault
            # dead letters may be committed of steps that are read again, if their offsets are stored in a target
            kept = self._fetched if self.stage.stores is Evidence.OFFSETS else {}
            self._fetched = {tp: max(at, kept.get(tp, at)) for tp, at in positions.items()}
            assign(positions)

        return watch

    def _committing(self, commit: Callable[[Positions], None]) -> Callable[[Positions], None]:
        def watch(positions: Positions) -> None:
            saved = self._saved()
            new = self._places({tp: (saved.get(tp, end), end) for tp, end in positions.items()})
            given_back = {
                (topic, times, number, offset)
                for topic, times, number, offset in self.in_flight
                if offset >= positions.get(TopicPartition(topic, number), offset + 1)
            }
            if self.stage.guarantee is AMO:
                self.in_flight |= new
            self._in_doubt |= new
            try:
                commit(positions)
            except ClientError:
                self._in_doubt |= given_back
                if self.is_zombie and given_back:  # no other worker runs the steps of a fenced one
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
        """Partitions are revoked: outputs are delivered first, except in a transaction or without an answer."""
        was_outage = self._world.has_outage  # it may end while the callback waits
        callback()
        if was_outage or self._world.has_outage or self.stage.guarantee is EO or self.stage.runs_ahead:
            self._world.bounds.may_repeat(self)
            self._world.bounds.may_lose(self, self.in_flight)
        self._fetched = {}

    def _lost(self, callback: Callable[[], None]) -> None:
        """The membership is lost: another worker may be past the records in flight, so their outputs are dropped."""
        self._world.bounds.may_lose(self, self.in_flight | self._in_doubt)
        self._revoked(callback)

    def _saved(self) -> Positions:
        return self._world.cluster._broker.group(self.stage.group).positions

    def _places(self, ranges: dict[TopicPartition, tuple[int, int]]) -> set[Place]:
        """All places in these ranges of offsets."""
        return {
            (tp.topic, self._recreations_of(tp.topic), tp.partition, offset)
            for tp, (first, end) in ranges.items()
            for offset in range(first, end)
        }

    def _recreations_of(self, topic: str) -> int:
        return self._world.recreations_of(topic)
