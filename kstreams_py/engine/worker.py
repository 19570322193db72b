"""The loop: one processor in one slot, from fetch to commit."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable
from threading import Event
from typing import Final

from kstreams_py.config import Settings
from kstreams_py.delivery import PROMISES, Output, TopicInfo
from kstreams_py.engine.beginning import Beginning
from kstreams_py.engine.topics import check_growth
from kstreams_py.engine.transaction import Session, Surroundings
from kstreams_py.errors import DrainTimeout, LogError, RecordRefused, Refused, Retriable, Stop
from kstreams_py.metrics import Counters
from kstreams_py.record import HASH_HEADER, Positions, TopicPartition
from kstreams_py.task import Intake, Plan, Tasks
from kstreams_py.topology import Graph, Processor

logger = logging.getLogger(__name__)

BATCH_OVERHEAD: Final = 200

CLIENT_BYTES: Final = 1_000_000
"""What the client takes as one record, where message.max.bytes does not say otherwise."""

DRAIN_SHARE: Final = 0.5
"""Of drain_timeout_ms that the last commit may take; letting go takes time as well."""

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
        journal = graph.journal(processor)
        names = [topic.name for topic in (*processor.inputs, *written)]
        topics = around.log.topics([*names, journal] if journal else names)
        self.processor = processor
        self.counters = Counters()
        self.turned_at = around.clock()
        self.consumer = around.log.consumer(
            name,
            f"{name}.{slot}",
            commits=not PROMISES[processor.guarantee].transactional,
            joins=processor.joins,
        )
        self.tasks = Tasks(
            processor,
            name=name,
            registry=around.registry,
            topic_ids={topic: info.topic_id for topic, info in topics.items()},
            dead_letters=letters,
            dead_letter_bytes=_dead_letter_bytes(topics.get(letters.name), around.settings) if letters else None,
        )
        self.session = Session(
            processor,
            self.consumer,
            around,
            transactional_id=f"{name}.{slot}",
            journal=journal,
            batch_bytes=_batch_bytes(topics[topic.name] for topic in written if topic.name in topics),
            counters=self.counters,
        )
        self.pace = Pace(whole_fetches=self.session.promise.saves_first or self.session.journal is not None)
        self.search = Search()
        self._graph = graph
        self._log = around.log
        inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
        self._beginning = Beginning(around, processor, graph.beginnings, inputs)
        counts = {name: info.partitions for name, info in inputs.items()}
        graph.check_partitions(counts)  # one may have grown since the process has looked
        journaled = topics[journal].partitions if journal in topics else sys.maxsize
        self._counts = {name: min(count, journaled) for name, count in counts.items()}
        """What inputs and journal are known to have; with a partition beyond, they are looked at again."""
        self._assigned: set[TopicPartition] = set()
        self._astray = False
        """The committed positions have to be read before the next record is."""
        self._prepared: Intake | None = None
        """What was taken and is about to be saved; without an answer it is saved again, for it may have been."""
        self._last: Intake | None = None
        """What was run last."""
        self._unacknowledged: list[tuple[Intake, Plan]] = []
        """At most once: what was written since the last commit, to find the step of an output that is refused."""
        self._apart: deque[Output] = deque()
        """At most once: outputs to be written one by one, because one of them is refused."""
        self._mistake: RecordRefused | None = None
        """At most once: what is raised once all other outputs are delivered, for their positions are saved."""
        self._replaced: set[bytes | None] = set()
        """At most once: delivery hashes of the steps that have a dead letter in place of an output since the commit."""
        self._unrun: tuple[Intake, Positions] | None = None
        """At most once: what was saved and not run when the function stopped the worker, and where it stopped."""
        self._interrupt: Exception | None = None
        self._failure: Exception | None = None
        """What a callback met; raised by the turn."""
        self._clock = around.clock
        self._stopping = stopping
        self._drain_seconds = around.settings.drain_timeout_ms / 1000

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
        """Joins the group, and fences what held this slot before.

        In this order: whoever is fenced asks the group, and finds that it was replaced.
        """
        self.consumer.subscribe(
            [t.name for t in self.processor.inputs], self._on_assigned, self._on_revoked, self._on_lost
        )
        self.session.start()

    def step(self) -> None:
        """One turn, or the way back of one that failed: what the error's name says, then the committed positions."""
        self.turned_at = self._clock()
        try:
            self.turn()
            if self._astray:
                # after consume: where positions can be neither read nor committed, the group must be heard all the same
                self.rewind()
        except LogError as error:
            self._recover(error)

    def _recover(self, error: LogError) -> None:
        steps = self.session.steps
        written = self._unacknowledged if self.session.promise.saves_first else steps
        if isinstance(error, Refused) and not written:
            raise error.mistake  # it is of no step
        if isinstance(error, Refused) and self.session.promise.saves_first:
            self._apart += self._written_apart(error)
            return
        if isinstance(error, Refused) and self.processor.errors is None:
            raise error.mistake
        self._astray |= self.session.recover(error)
        if isinstance(error, Refused) and self.search.failed(steps):
            assert self._last is not None
            self.tasks.refuse(self._last, error.mistake)
        elif self.session.timed_out:
            self.search.failed(steps)

    def finish(self) -> None:
        """Commits what is done; raises what stopped the worker, unless that was Stop.

        Raises DrainTimeout if something could not be finished that nobody will do again.
        """
        deadline = self._clock() + self._drain_seconds * DRAIN_SHARE
        while True:
            try:
                self._run_saved()
                self._commit()
                if self._unrun is not None:
                    self.session.give_back(*self._unrun)
            except LogError as error:
                unfinished = isinstance(error, Refused) or self.session.pending or self.tasks.rest
                if self.session.promise.saves_first and unfinished:
                    if self._clock() >= deadline:
                        raise DrainTimeout(f"{self.processor.id}: at most once: outputs are lost: {error}") from None
                    self._recover(error)
                    continue
                logger.warning(
                    "%s: what was open is not committed and will be done again: %s", self.processor.id, error
                )
            break
        if self._mistake is not None:
            raise self._mistake
        if isinstance(self._interrupt, Stop):
            logger.info("%s: stopped by its function: %s", self.processor.id, self._interrupt)
        elif self._interrupt is not None:
            raise self._interrupt

    def close(self) -> None:
        """Lets producer and seat go; nothing more is committed, but at most once all that was written is delivered."""
        while True:
            try:
                self.session.end(self._apart)
                break
            except Refused as refused:
                logger.warning("%s: %s; writing its step's dead letter before the end", self.processor.id, refused)
                self._apart += self._written_apart(refused)
        self.consumer.close()

    def turn(self) -> None:
        """Fetch, then take, prepare, run, write; commit when it is due, or at once when the input is dry."""
        if self._mistake is not None:
            self._commit()
            raise self._mistake
        if self.session.pending:
            self.consumer.pause(self._assigned)
        started = self._clock()
        hurried = self._astray or self.session.busy or self.tasks.ready
        records = self.consumer.consume(min(self.pace.fetch, self.tasks.room), 0.0 if hurried else IDLE_WAIT)
        idle = self._clock() - started >= IDLE_WAIT
        if self._failure is not None:
            raise self._failure
        self.session.check()  # partitions of what is open may have been taken away inside consume
        if self._astray:
            return
        self.tasks.add(records)
        if self.session.pending or self.consumer.tainted:
            self._run_saved()
            self._commit()
            if self.consumer.tainted and not self._stopping.is_set():
                self._rejoin()
                return
        while not self._stopping.is_set() and self._take():
            self._run_prepared()
        if not records and self._interrupt is None:  # else a step that raised would count as read out
            self.session.reached(self.tasks.advance(self.consumer.ends))
            if self.session.busy or idle:
                self._commit()
        self.consumer.pause(self.tasks.waiting)

    def _take(self) -> bool:
        """Whether there is something to run. What is taken stays here until it has been saved."""
        if self._prepared is None:
            self._prepared = self.tasks.take(min(self.pace.take, self.search.limit))
        return self._prepared is not None

    def _run_prepared(self) -> None:
        """Saves what must be saved first, runs the functions, writes what they return, and commits when it is due."""
        intake = self._prepared
        assert intake is not None
        if not intake.prepared:
            self.session.prepare(intake)
        self._prepared = None
        started = self._clock()
        plan = self.tasks.run(intake)
        self.pace.ran(max(1, plan.records), self._clock() - started)
        if plan.records:
            self._last = intake
        if self.session.promise.saves_first:
            self._unacknowledged.append((intake, plan))
            if plan.interrupt is not None:
                self._unrun = intake, self.tasks.positions | plan.tried
                self._stop(plan.interrupt)
        if plan.interrupt is not None and self._unrun is None:
            self._finish_and_stop(plan, plan.interrupt)
        else:
            self.session.write(plan)
        if self.session.due or self.search.searching:
            self._commit()

    def _run_saved(self) -> None:
        """At most once: what was saved as done, or may have been, and was not run yet. Nobody else would run it."""
        if self._prepared is not None and self.session.pending:
            self._run_prepared()
        self._run_rest()

    def _run_rest(self) -> None:
        """At most once: what was saved as done and was not run yet, because a call failed. Nobody else would run it."""
        while self.session.promise.saves_first and self.tasks.rest and self._take():
            self._run_prepared()

    def _finish_and_stop(self, plan: Plan, interrupt: Exception) -> None:
        """Writes and commits what was done before the step that raised what stops the worker."""
        try:
            self.session.write(plan)
            self._commit()
        except Retriable:
            if self.session.pending:  # what was done stays, and its commit goes on; else all is run again, and raises
                self._stop(interrupt)
            raise
        self._stop(interrupt)

    def _stop(self, interrupt: Exception) -> None:
        self._interrupt = interrupt
        self._stopping.set()

    def _commit(self) -> None:
        steps = self.session.steps
        self._deliver_apart()
        self.session.commit()
        self._unacknowledged.clear()
        self._replaced.clear()
        self.search.committed(steps)
        self.tasks.committed()
        if steps and self.tasks.positions:
            self._beginning.keep(self.tasks.positions.keys(), self.session)

    def _deliver_apart(self) -> None:
        while self._apart:
            self.session.deliver(self._apart)

    def _written_apart(self, refused: Refused) -> list[Output]:
        """At most once: what to write in place of outputs of which at least one is refused, each by itself.

        Their functions are not called again. Where a single one was refused, it is replaced by a dead letter.
        """
        if len(refused.outputs) != 1:
            return list(refused.outputs)
        (output,) = refused.outputs
        for intake, plan in self._unacknowledged:
            if (dead := self.tasks.replacement(output, intake, plan, refused.mistake)) is not None:
                step = dict(dead[7] or ()).get(HASH_HEADER)
                if step in self._replaced:
                    return []  # several outputs of one step are refused, and it has its dead letter
                self._replaced.add(step)
                return [dead]
        self._mistake = self._mistake or refused.mistake  # no dead letters, or one is refused itself
        return []

    def rewind(self) -> None:
        """Back to the committed positions, and for alts to the choices that were saved but not delivered."""
        partitions = {tp for tp in self._assigned if tp.topic in self._counts}
        if stale := self._assigned - partitions:
            # a static member is given its old assignment first, with topics that this deployment does not read
            logger.info("%s: not read any more: %s", self.processor.id, ", ".join(sorted(map(str, stale))))
        self._run_rest()
        self._check_growth(partitions)
        positions = self.session.committed(partitions)
        self._prepared = self._saved(positions)
        if missing := partitions - positions.keys():
            positions |= self._beginning.begin(missing, self.session)
        choices = {tp.partition: self.session.journaled(tp.partition) for tp in positions}
        for reason in self.tasks.assign(positions, choices):
            logger.warning("%s: %s", self.processor.id, reason)
        if positions:  # else nothing is fetched, and a client that was fenced takes no call
            self.consumer.assign(positions)
        self._astray = False

    def _saved(self, positions: Positions) -> Intake | None:
        """At most once: what was taken, if its positions were saved before an error: nobody else would run it."""
        taken = self._prepared
        if taken is None or not self.session.promise.saves_first:
            return None
        return taken if taken.positions().items() <= positions.items() else None

    def _check_growth(self, partitions: set[TopicPartition]) -> None:
        """Raises GraphError if inputs that are read in step differ in partitions since one of them grew."""
        if any(tp.partition >= self._counts[tp.topic] for tp in partitions):
            found = check_growth(self._graph, self.processor, self._log)
            self._counts = {name: info.partitions for name, info in found.items()}

    def _rejoin(self) -> None:
        """Takes the membership with a new member id; nothing is open."""
        logger.warning("%s: a commit of positions may come late: taking the seat anew", self.processor.id)
        self._let_go()
        self.consumer.rejoin()

    # What the consumer calls back; what it means is for the next turn.

    def _on_assigned(self, partitions: set[TopicPartition]) -> None:
        logger.info("%s: holds %s", self.processor.id, ", ".join(sorted(map(str, partitions))) or "no partition")
        self._assigned = partitions
        self._astray = True

    def _on_revoked(self) -> None:
        try:
            self._run_saved()
            self._deliver_apart()
            self.session.settle()
        except LogError as error:
            logger.warning("%s: partitions are taken away while a commit waits: %s", self.processor.id, error)
            self.session.revoke()
            if self.session.promise.saves_first and isinstance(error, Refused):
                self._keep_refused(error)
        except Exception as error:
            self._failure = error
        self._let_go()

    def _keep_refused(self, refused: Refused) -> None:
        """At most once: the outputs that came back are written by the next commit, whoever has the partitions then."""
        try:
            self._recover(refused)
        except Exception as error:
            self._failure = error

    def _on_lost(self) -> None:
        self.session.revoke()
        try:
            self._run_rest()
        except LogError as error:
            logger.error("%s: at most once: records are lost: %s", self.processor.id, error)
        self._let_go()

    def _let_go(self) -> None:
        self._assigned = set()
        self._prepared = None
        self.tasks.clear()


def _batch_bytes(topics: Iterable[TopicInfo]) -> int | None:
    """What a batch may have so that each topic takes it, less Kafka's own bytes in it; None if none has a limit."""
    limits = [int(limit) for info in topics if (limit := info.settings.get("max.message.bytes"))]
    return max(1, min(limits) - BATCH_OVERHEAD) if limits else None


def _dead_letter_bytes(topic: TopicInfo | None, settings: Settings) -> int:
    """What a dead letter may have so that its topic and the client take it."""
    of_client = int(settings.kafka.get("message.max.bytes", CLIENT_BYTES))
    of_topic = int(topic.settings.get("max.message.bytes", of_client)) if topic else of_client
    return max(1, min(of_client, of_topic) - BATCH_OVERHEAD)


class Search:
    """Finds the step for which a transaction fails, by halving: how many steps the next one may have."""

    def __init__(self) -> None:
        self.limit = sys.maxsize
        self._whole = 0

    @property
    def searching(self) -> bool:
        """Every intake is committed by itself."""
        return self.limit < sys.maxsize

    def failed(self, steps: int) -> bool:
        """Whether it was a single step that failed; else the next transaction has half as many."""
        self._whole = max(self._whole, steps)
        self.limit = max(1, steps // 2)
        return steps == 1

    def committed(self, steps: int) -> None:
        """A transaction of so many steps got through: the next one may have twice as many."""
        if self.searching and steps:
            self.limit *= 2
            if self.limit > self._whole:
                self.limit, self._whole = sys.maxsize, 0


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
