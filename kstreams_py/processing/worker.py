"""The loop: one processor in one slot, from fetch to commit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from functools import partial
from threading import Event
from typing import Final

from kstreams_py.errors import (
    ClientError,
    DrainTimeout,
    Fatal,
    InputLost,
    KStreamsError,
    Refused,
    Stop,
    Unavailable,
    UserMistake,
)
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.names import group_of, member_of
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.sizes import batch_bytes, fetched_bytes
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import Counters, WorkerState, estimate
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.commits.committer import Context
from kstreams_py.processing.commits.opening import committer_of, open_journal, partitions_written
from kstreams_py.processing.commits.owed import Debts, Owed
from kstreams_py.processing.intakes import Intakes
from kstreams_py.processing.runners.opening import open_runner
from kstreams_py.processing.tasks.committed import CommittedOffsets
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.processing.topics import Growth, find_topics_of
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

DRAIN_SHARE: Final = 0.5
"""The share of drain_timeout_ms that the last commit may take; the rest is for closing the clients."""

IDLE_WAIT: Final = 0.25
"""Seconds that an idle worker waits for a record before it checks whether to stop."""


def open_worker(graph: Graph, processor: Processor, slot: int, environment: Environment, stopping: Event) -> Worker:
    """Asks the cluster for the processor's topics, then makes a worker."""
    return Worker(graph, processor, slot, environment, stopping, find_topics_of(graph, processor, environment.cluster))


class Worker:
    """One processor in one slot: its membership in the group, its producer, its tasks.

    `run` returns when `stopping` is set or the function raised Stop. It raises the error that ends the worker: an
    exception of the function, of a class in `stop_on`, or UserMistake, Unavailable, Replaced, InputLost, DrainTimeout
    or Fatal.
    """

    def __init__(
        self,
        graph: Graph,
        processor: Processor,
        slot: int,
        environment: Environment,
        stopping: Event,
        topics: Mapping[str, TopicInfo],
    ) -> None:
        """Makes no request. `topics`: the existing topics of the processor, see open_worker().

        Raises GraphError if inputs that are read in step differ in their number of partitions.
        """
        name, guarantee = group_of(graph.name, processor.id), committer_of(processor)
        instance_id = member_of(name, slot)
        self.processor = processor
        self.counters = Counters()
        self.turned_at = environment.clock()
        pauses = processor.overlaps or processor.retry is not None
        self.consumer = environment.cluster.consumer(
            name, instance_id, commits=not guarantee.transactional, joins=processor.joins, pauses=pauses
        )
        self._journal = open_journal(graph, processor, environment, topics, instance_id)
        topic_ids = {topic: info.topic_id for topic, info in topics.items()}
        refills = processor.overlaps and not guarantee.commits_each_intake and self._journal is None
        self.tasks = Tasks(processor, Ledger(), name=name, topic_ids=topic_ids, refills=refills)
        tracing = environment.tracing(graph.name, processor, slot) if environment.tracing else None
        self.runner, stores = open_runner(graph, processor, slot, self.tasks, environment, topics, tracing)
        written, journaled = partitions_written(graph, processor, topics)
        context = Context(
            processor, self.ledger, self.consumer, environment, instance_id, self.counters, self.runner.replacement,
            name=name, topic_ids=topic_ids, journal=self._journal, tracing=tracing, stores=stores,
            batch_bytes=batch_bytes(topics[topic] for topic in processor.written if topic in topics),
            written=written, journaled=journaled,
        )  # fmt: skip
        self.committer = guarantee(context)
        self._committed = CommittedOffsets(name, instance_id, self.consumer, environment)
        self._owed = Owed(processor, self.tasks, self.committer, self.consumer, self._committed)
        self.intakes = Intakes(context, self.tasks, self.runner, self.committer, self._owed, stopping)
        inputs = {topic.name: topics[topic.name] for topic in processor.inputs}
        self._beginning = Beginning(environment, graph, processor, inputs)
        self._growth = Growth(graph, processor, environment.cluster, topics)
        self._environment = environment
        self._stopping = stopping
        self._assigned: set[TopicPartition] | None = None
        """The partitions of the newest assignment; None if the group has made none since this worker joined."""
        self._rebalances = deque[set[TopicPartition] | None]()
        """Rebalances that the loop has not acted on: a new assignment, or None for a lost membership."""
        self._must_rewind = False
        """Whether the committed offsets must be read before the next record is taken."""
        self._failure: Exception | None = None
        """The exception of a callback; the turn raises it."""

    @property
    def ledger(self) -> Ledger:
        """The offsets of the partitions that this worker holds. Another thread may read it."""
        return self.tasks.ledger

    @property
    def state(self) -> WorkerState:
        """The current state of the worker, as far as its loop knows. Another thread may read it."""
        if (away := self.committer.attempts.away) is not None:
            return away
        if self._assigned is None or (self._must_rewind and not self.ledger.cursors):
            return WorkerState.JOINING
        if self.is_retrying:
            return WorkerState.RETRYING
        return WorkerState.RUNNING if self.ledger.cursors else WorkerState.SPARE

    @property
    def why(self) -> str:
        """The reason for the state, as text, if a broker or sink is away or a step is run again; "" otherwise."""
        state = self.state
        if state is WorkerState.RETRYING:
            return self.intakes.why
        return self.committer.attempts.cause if state is self.committer.attempts.away else ""

    @property
    def is_retrying(self) -> bool:
        """Whether a partition waits before a step is run again. Any thread may read it."""
        return bool(self.tasks.held or self._owed.over_rejoin)

    def run(self) -> None:
        """Starts, runs turns until `stopping` is set, and then commits what is processed."""
        try:
            self.start()
            self._run_turns()
        finally:
            self.close()

    def _run_turns(self) -> None:
        """Runs turns until `stopping` is set, then finishes; on an error, gives back the steps that were not run."""
        try:
            while not self._stopping.is_set():
                self.run_turn()
            self.finish()
        except (UserMistake, Unavailable, InputLost, DrainTimeout, Fatal):
            try:
                self._finish_calls(self._last_moment)
                self.committer.give_back()
            except KStreamsError as error:
                logger.error("%s: at most once: steps that were not run are lost: %s", self.processor.id, error)
            raise

    def start(self) -> None:
        """Joins the group, then fences the previous worker of this slot.

        The group comes first: a worker that is fenced asks its group who holds the membership.
        """
        self.consumer.subscribe(
            [t.name for t in self.processor.inputs], self._on_assigned, self._on_revoked, self._on_lost
        )
        self.committer.start()

    def run_turn(self) -> None:
        """Runs one turn; after a client error, recovers and rewinds before the next turn."""
        self.turned_at = self._environment.clock()
        if (failure := self._try_turn()) is not None:
            # not in the handler: see kafka/clients.py
            try:
                self._recover(failure)
            finally:
                del failure  # its traceback refers to this frame

    def _try_turn(self) -> ClientError | None:
        """Runs one turn; returns the error that ended it."""
        try:
            self.turn()
            if self._must_rewind and self._assigned is not None:
                # after `consume`: the client must hear from the group even if offsets can be neither read nor committed
                self.committer.attempts.ask(self.rewind)
        except ClientError as error:
            return error
        return None

    def _recover(self, error: ClientError) -> None:
        """Lets the guarantee recover, notes whether to rewind, and narrows the search for a step that fails."""
        self._follow_group()
        steps = self.committer.uncommitted_steps
        rewinds = self.committer.recover(error)
        self._must_rewind |= rewinds
        self.intakes.failed(error, steps, rewinds=rewinds)

    def finish(self) -> None:
        """Commits what is processed; raises the exception that stopped the worker, unless that was Stop.

        1. Under at_most_once, join again if a commit of offsets may reach the broker late; wait for the assignment.
        2. Finish the steps that no other worker would run, commit, and give back the steps that were not run.
        3. On an error, at_most_once tries again until the deadline; otherwise, leave the steps to the next worker.
        4. Raise a refusal that no dead letter replaces, then the exception of the function.

        Raises DrainTimeout if steps or outputs that no other worker would repeat could not be finished in time.
        """
        deadline = self._last_moment
        self._rejoin_to_give_back(deadline)
        while True:
            try:
                self._finish_steps(deadline)
                self.intakes.commit()
                self.committer.give_back()
            except ClientError as error:
                if self.committer.must_finish and (isinstance(error, Refused) or self._is_unfinished):
                    if self._environment.clock() >= deadline:
                        raise DrainTimeout(
                            f"{self.processor.id}: at most once: steps or outputs are lost: {error}: "
                            "raise drain_timeout_ms above the time that brokers may be away"
                        ) from None
                    self._recover(error)
                    continue
                logger.warning(
                    "%s: the last steps are not committed and will be run again: %s", self.processor.id, error
                )
            break
        if self.committer.mistake is not None:
            raise self.committer.mistake
        if isinstance(self.intakes.interrupt, Stop):
            logger.info("%s: stopped by its function: %s", self.processor.id, self.intakes.interrupt)
        elif self.intakes.interrupt is not None:
            raise self.intakes.interrupt

    def _finish_steps(self, deadline: float) -> None:
        """Runs the saved steps; if calls overlap, finishes the calls under way."""
        if self.runner.overlaps:
            self._finish_calls(deadline)
        else:
            self.intakes.run_saved()

    def _finish_calls(self, deadline: float) -> None:
        """Finishes the calls under way, unless their steps will be run again anyway."""
        if self.runner.overlaps and (self.committer.must_finish or not self._must_rewind):
            self.intakes.finish_calls(deadline)

    @property
    def _last_moment(self) -> float:
        """The clock time until which a drain that begins now may wait."""
        return self._environment.clock() + self._environment.settings.drain_timeout_ms / 1000 * DRAIN_SHARE

    def _rejoin_to_give_back(self, deadline: float) -> None:
        """Under at_most_once, joins again if a late commit could undo a give-back, and waits for the assignment."""
        if self.consumer.tainted and self.ledger.unprocessed:
            try:
                self._finish_steps(deadline)
                self.intakes.commit()
            except ClientError as error:
                self._recover(error)
            else:
                self._rejoin(self._owed.unprocessed())
        while self._owed.over_rejoin:
            if self._environment.clock() >= deadline:
                raise DrainTimeout(
                    f"{self.processor.id}: at most once: steps that wait are lost: the group gave no assignment in "
                    "time: raise drain_timeout_ms above the time that brokers may be away"
                )
            self.run_turn()

    @property
    def _is_unfinished(self) -> bool:
        """Whether offsets that are or may be committed cover steps not run, or outputs not acknowledged."""
        committer = self.committer
        return committer.must_repeat_commit or committer.busy or self.tasks.owes or bool(self.ledger.unprocessed)

    def close(self) -> None:
        """Ends runner, producer and consumer without a commit. Under at_most_once, waits for outputs in flight."""
        self.runner.close()
        self.committer.end()
        self.consumer.close()

    def turn(self) -> None:
        """Runs one turn, in this order.

        1. Raise a refusal that no dead letter replaces, once all other outputs are written.
        2. Fetch records. The client hears from the group here, so partitions may have been revoked.
        3. Check the commit: an open transaction is aborted if its partitions were revoked.
        4. Repeat a commit that got no answer. If it may reach the broker late, join again: the broker then refuses it.
        5. Run the steps that are ready, and write their outputs. Commit between intakes when a commit is due.
        6. If no record came, advance past markers and commit: nothing else would end the open transaction soon.
        7. Pause the partitions whose tasks are full or wait.
        """
        if self.committer.mistake is not None:
            self.intakes.run_saved()
            self.intakes.commit()
            raise self.committer.mistake
        if self.committer.must_repeat_commit:  # no record is taken until the commit is answered
            self.consumer.pause(self._assigned or ())
        started = self._environment.clock()
        hurried = self._assigned is not None and (self._must_rewind or self.committer.busy or self.tasks.ready)
        records = self.consumer.consume(
            self.tasks.limit_fetch(self.intakes.pace.fetch), 0.0 if hurried else self.intakes.patience(IDLE_WAIT)
        )
        idle = self._environment.clock() - started >= IDLE_WAIT
        self._follow_group()
        if self._failure is not None:
            raise self._failure
        self.committer.check()  # `consume` may have revoked partitions: abort if so
        if self._must_rewind:
            return
        self.counters.bytes_in += estimate(fetched_bytes, records)
        self.tasks.add(records)
        if self.committer.must_repeat_commit or self.consumer.tainted:
            self.intakes.run_saved()
            self.intakes.commit()
            if self.consumer.tainted and not self._stopping.is_set():
                self._rejoin(self._owed.undone())
                return
        self._owed.heard()
        self.intakes.run_ready()
        # do not pass steps that raised or were not run; no commit may overtake one that may reach the broker late
        if not records and not self.intakes.is_blocked and not self.consumer.tainted:
            self.tasks.advance(self.consumer.ends)
            if (self.committer.busy and self.tasks.rest is None) or idle:
                self.intakes.commit()
        self.consumer.pause(self.tasks.paused)

    def _start_at(self, positions: Positions, owed: Debts) -> Positions:
        """Returns the committed offsets, or earlier ones for steps that no other worker would run."""
        back = self._owed.starts(positions, owed)
        self.intakes.read_again(back)
        return positions | back

    def rewind(self) -> None:
        """Goes back to the committed offsets; an alts also goes back to the saved choices that it has not delivered.

        1. Leave out partitions of topics that are no longer read: a static member gets its old assignment first.
        2. Require that no transaction under this worker's ids hangs: the next commit would make its records visible.
        3. Run the rest of an intake whose offsets are committed: no other worker would run it. If a function
           stops the worker meanwhile, return here.
        4. Check inputs that have grown, and read the committed offsets. A target that stores offsets decides instead.
        5. Find where partitions without a committed offset begin, and record that.
        6. Recover the deliveries that a journal records, and the choices.
        7. Start the tasks at these offsets, or before the steps that at_most_once owes, and seek.
        """
        assigned, inputs = self._assigned or set(), {topic.name for topic in self.processor.inputs}
        partitions = {tp for tp in assigned if tp.topic in inputs}
        if stale := assigned - partitions:
            # a static member gets its old assignment first, which may include topics that this deployment does not read
            logger.info("%s: not read any more: %s", self.processor.id, ", ".join(sorted(map(str, stale))))
        for left in self.committer.leftovers:  # first, before `run_rest` calls a function
            left.require_none()
        self.intakes.run_rest()
        if (
            self.intakes.interrupt is not None and not self._owed.over_rejoin
        ):  # the worker ends: the ledger still has the steps to give back
            return
        owed = self._owed.over_rejoin or self._owed.waiting()
        self._growth.check(partitions)
        self._beginning.read()
        positions = self.committer.resume(self._committed.read(partitions), partitions)
        self._beginning.check_state(self.committer.stores)
        self.intakes.keep_saved(positions)
        if missing := partitions - positions.keys():
            positions |= self._beginning.start(missing, self.committer)
        self._beginning.record_missing(positions.keys(), self.committer)
        self.runner.abandon()
        delivered, choices = self._journal.recover(positions) if self._journal else (positions, {})
        self.committer.tally.decide(delivered)
        starts = self._start_at(positions, owed) if owed else delivered
        for reason in self.tasks.assign(starts, choices):
            logger.warning("%s: %s", self.processor.id, reason)
        self.runner.assigned()
        self.ledger.commit(positions)  # the next commit moves them: deliveries to another cluster may be ahead
        self.intakes.assigned()
        if positions:  # without positions nothing is fetched, and a fenced client refuses the call
            self.consumer.assign(dict(sorted(starts.items())))  # the same order in every process
        self._must_rewind, self._owed.over_rejoin = False, {}
        self.committer.attempts.answered()

    def _rejoin(self, owed: Debts) -> None:
        """Joins with a new member id: the broker then refuses late requests of the old id. No transaction is open."""
        logger.warning(
            "%s: a commit of offsets may reach the broker late: joining again", self.processor.id,
            extra=repeated(f"commits of offsets of processor {self.processor.id} that may come late"),
        )  # fmt: skip
        self._let_go()
        self._owed.over_rejoin = owed
        self.consumer.rejoin()

    # The consumer's callbacks only note what happened, except for work that must precede the revocation of partitions.

    def _on_assigned(self, partitions: set[TopicPartition]) -> None:
        self._rebalances.append(partitions)

    def _on_lost(self) -> None:
        self._rebalances.append(None)

    def _on_revoked(self) -> None:
        # once this returns, another member may start at the committed offsets (librdkafka joins again by itself)
        try:
            self._follow_group()
            if self._owed.over_rejoin:
                self._owed.give_back_unstarted(self._assigned or ())
            finish = (
                partial(self._finish_steps, self._last_moment) if self.committer.must_finish else self.intakes.run_saved
            )
            self.committer.revoked(finish)
        except Exception as error:
            self._failure = error
        self._let_go()

    def _follow_group(self) -> None:
        """Acts on the rebalances since the last call."""
        while self._rebalances:
            assigned = self._rebalances.popleft()
            self.counters.rebalanced()
            if assigned is None:
                self._lose()
            else:
                held = ", ".join(sorted(map(str, assigned))) or "no partition"
                logger.info(
                    "%s: holds %s", self.processor.id, held,
                    extra=repeated(f"assignments of processor {self.processor.id}", held),
                )  # fmt: skip
                self._assigned = assigned
                self._must_rewind = True

    def _lose(self) -> None:
        """Acts on a lost membership: another worker may already run later steps.

        Under at_most_once, committed steps that were not run are run if the partitions come back before another worker
        has run later ones. Calls that are under way count as done.
        """
        if self.committer.must_finish:
            self.runner.finish()
            if under_way := self.runner.under_way():
                logger.error("%s: at most once: calls under way are given up: outputs are lost", self.processor.id)
                self.ledger.advance(under_way)
        owed = self._owed.over_rejoin | self._owed.unprocessed()
        self.committer.lost()
        self.committer.tally.give_up()
        self._let_go()
        self._owed.over_rejoin = owed

    def _let_go(self) -> None:
        self._assigned = None
        self._owed.clear()
        self.intakes.forget()
