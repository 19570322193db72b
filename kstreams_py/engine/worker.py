"""The loop: one processor in one slot, from fetch to commit."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Event
from typing import Final

from kstreams_py.delivery import TopicInfo
from kstreams_py.engine.transaction import Session, Surroundings
from kstreams_py.errors import LogError, Stop
from kstreams_py.metrics import Counters
from kstreams_py.record import TopicPartition
from kstreams_py.task import Tasks
from kstreams_py.topology import Graph, Processor

logger = logging.getLogger(__name__)

BATCH_OVERHEAD: Final = 200

IDLE_WAIT: Final = 0.25
"""Seconds that an idle worker waits for a record before it looks whether it should stop."""


class Worker:
    """One processor in one slot: its seat in the group, its producer, its tasks.

    `run` returns when `stopping` is set or the function raised Stop, and raises what stops a worker: the user's
    unhandled exceptions, UserMistake, Unavailable, Replaced, InputLost, Fatal.
    """

    def __init__(self, graph: Graph, processor: Processor, slot: int, around: Surroundings, stopping: Event) -> None:
        name = f"{graph.name}.{processor.id}"
        letters = graph.topics[processor.errors] if processor.errors else None
        written = [*processor.outputs, letters] if letters else processor.outputs
        topics = around.log.topics([topic.name for topic in (*processor.inputs, *written)])
        self.processor = processor
        self.counters = Counters()
        self.turned_at = around.clock()
        self.consumer = around.log.consumer(name, f"{name}.{slot}")
        self.tasks = Tasks(
            processor,
            name=name,
            registry=around.registry,
            topic_ids={topic: info.topic_id for topic, info in topics.items()},
            dead_letters=letters,
        )
        self.session = Session(
            processor,
            self.consumer,
            around,
            transactional_id=f"{name}.{slot}",
            journal=graph.journal(processor),
            batch_bytes=_batch_bytes(topics[topic.name] for topic in written if topic.name in topics),
            counters=self.counters,
        )
        self.pace = Pace(whole_fetches=self.session.promise.saves_first or self.session.journal is not None)
        self._assigned: set[TopicPartition] = set()
        self._astray = False
        self._interrupt: Exception | None = None
        self._clock = around.clock
        self._stopping = stopping

    def run(self) -> None:
        """Starts, then steps until it is told to stop; what is done by then is committed."""
        try:
            self.start()
            while not self._stopping.is_set():
                self.step()
            self.finish()
        finally:
            self.close()

    def start(self) -> None:
        """Fences what held this slot before, then joins the group."""
        self.session.start()
        self.consumer.subscribe([t.name for t in self.processor.inputs], self._on_assigned, self._on_revoked)

    def step(self) -> None:
        """One turn, or the way back of one that failed: what the error's name says, then the committed positions."""
        self.turned_at = self._clock()
        try:
            if self._astray:
                self.rewind()
            self.turn()
        except LogError as error:
            self._astray = True
            self.session.recover(error)

    def finish(self) -> None:
        """Commits what is done; raises what stopped the worker, unless that was Stop."""
        try:
            self.session.commit()
        except LogError as error:
            logger.warning("%s: what was open is not committed and will be done again: %s", self.processor.id, error)
        if isinstance(self._interrupt, Stop):
            logger.info("%s: stopped by its function: %s", self.processor.id, self._interrupt)
        elif self._interrupt is not None:
            raise self._interrupt

    def close(self) -> None:
        """Lets producer and seat go; nothing more is committed."""
        self.session.end()
        self.consumer.close()

    def turn(self) -> None:
        """Fetch, then take, prepare, run, write; commit when it is due, or at once when the input is dry."""
        started = self._clock()
        records = self.consumer.consume(self.pace.fetch, 0.0 if self.session.busy or self.tasks.ready else IDLE_WAIT)
        idle = self._clock() - started >= IDLE_WAIT
        self.session.check()  # a rebalance inside consume dooms what is open
        self.tasks.add(records)
        while not self._stopping.is_set() and (intake := self.tasks.take(self.pace.take)):
            self.session.prepare(intake)
            started = self._clock()
            plan = self.tasks.run(intake)
            self.pace.ran(len(intake.steps), self._clock() - started)
            self.session.write(plan)
            if plan.interrupt is not None:
                self.session.commit()
                self.session.give_back(intake, self.tasks.positions | plan.tried)
                self._interrupt = plan.interrupt
                self._stopping.set()
            if self.session.due:
                self.session.commit()
        if not records:
            self.session.reached(self.tasks.advance(self.consumer.ends))
            if self.session.busy or idle:
                self.session.commit()
        self.consumer.pause(self.tasks.waiting)

    def rewind(self) -> None:
        """Back to the committed positions, and for alts to the choices that were saved but not delivered."""
        positions = self.session.committed(self._assigned)
        choices = {tp.partition: self.session.journaled(tp.partition) for tp in positions}
        self.tasks.assign(positions, choices)
        self.consumer.assign(positions)
        self._astray = False

    def _on_assigned(self, partitions: set[TopicPartition]) -> None:
        logger.info("%s: holds %s", self.processor.id, ", ".join(sorted(map(str, partitions))) or "no partition")
        self._assigned = partitions
        self.rewind()

    def _on_revoked(self) -> None:
        self._assigned = set()
        self.tasks.clear()
        self.session.doom()


def _batch_bytes(topics: Iterable[TopicInfo]) -> int | None:
    """What a batch may have so that each topic takes it, less Kafka's own bytes in it; None if none has a limit."""
    limits = [int(limit) for info in topics if (limit := info.settings.get("max.message.bytes"))]
    return max(1, min(limits) - BATCH_OVERHEAD) if limits else None


class Pace:
    """How many records to fetch and to take at once.

    A slow function must neither outlive its transaction nor keep its worker from the group, and a fast one must not
    pay per call. With `whole_fetches` each intake costs a commit of its own, so that all that was fetched is taken.
    """

    FETCH_MAX: Final = 10_000
    TAKE_MAX: Final = 500
    FETCH_SECONDS: Final = 0.2

    def __init__(self, *, whole_fetches: bool) -> None:
        self.fetch = 100
        self._whole_fetches = whole_fetches

    @property
    def take(self) -> int:
        """Steps to run before looking at the clock."""
        return self.fetch if self._whole_fetches else min(self.fetch, self.TAKE_MAX)

    def ran(self, steps: int, seconds: float) -> None:
        """Aims at fetches of FETCH_SECONDS of work: grows fourfold at most, shrinks at once."""
        wanted = int(self.FETCH_SECONDS * steps / seconds) if seconds > 0 else self.FETCH_MAX
        self.fetch = max(1, min(wanted, self.fetch * 4, self.FETCH_MAX))
