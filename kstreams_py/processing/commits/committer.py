"""The base of the guarantees: the steps that are processed and not committed, and failed attempts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from kstreams_py.errors import (
    Abortable,
    ClientError,
    Fatal,
    KStreamsError,
    RecordRefused,
    Refused,
    Retriable,
    SinkAway,
)
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.guarantees import Durability
from kstreams_py.kafka.contracts import Consumer, Output, Producer, ProducerMode
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import Counters, StepCounts, estimate
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.commits.refused_outputs import Replacement
from kstreams_py.processing.commits.session import Session
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.commits.tally import Tally
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.ledger import Ledger
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.state.stores import Stores
from kstreams_py.steps.dead_letters import format_error
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.outputs import value_bytes
from kstreams_py.steps.plan import Plan
from kstreams_py.steps.rows import split
from kstreams_py.steps.target import Target
from kstreams_py.steps.tracing import Tracing

logger = logging.getLogger(__name__)

HELD_BYTES: Final = 4 << 20
"""Bytes of outputs that may wait for their commit; their number is limited by Environment.outputs_held."""


@dataclass(frozen=True, slots=True)
class Context:
    """The parts of one worker that a guarantee works with.

    - `transactional_id`: the producer's; it also names the worker in the log.
    - `name`: the processor's full name, `graph.processor`.
    - `topic_ids`: the broker's id of each input.
    - `replacement`: makes the dead letter of a refused output.
    - `journal`: saves the choices of an alts, or records deliveries; None if neither is needed.
    - `batch_bytes`: the maximum size in bytes of a batch that every topic accepts; None for no limit.
    - `tracing`: makes the spans of commits; None without tracing.
    - `stores`: the state of the tasks; None if they have no state.
    - `written`: the partitions that the producer writes.
    - `journaled`: the partitions of the journal of deliveries.
    """

    processor: Processor
    ledger: Ledger
    consumer: Consumer
    environment: Environment
    transactional_id: str
    counters: Counters
    replacement: Replacement
    name: str = ""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    journal: ChoicesJournal | DeliveryJournal | None = None
    batch_bytes: int | None = None
    tracing: Tracing | None = None
    stores: Stores | None = None
    written: Collection[TopicPartition] = ()
    journaled: Collection[TopicPartition] = ()


class Committer(ABC):
    """Commits what one worker processes, in the order of its guarantee."""

    transactional: ClassVar[bool]
    may_repeat: ClassVar[bool] = True
    """Whether an unacknowledged output may be sent again, even if no idempotent producer prevents a copy."""
    commits_each_intake: ClassVar[bool] = False
    """Whether each intake costs a commit before its functions run."""
    traces_outputs: ClassVar[bool] = False
    """Whether a refused output is traced back to its step, because steps are not run again."""
    _ends_by_fatal: ClassVar[bool] = True
    """Whether a fatal error of the client ends the worker; otherwise a new producer is tried."""
    must_finish: ClassVar[bool] = False
    """Whether this worker finishes prepared steps before it ends: no other worker would run them."""

    def __init__(self, context: Context) -> None:
        environment, processor = context.environment, context.processor
        self.attempts = Attempts(processor.id, context.transactional_id, environment.sleep)
        self.session = Session(
            self._producer_mode(processor.durability),
            context.consumer,
            replace(environment, cluster=environment.cluster.named(processor.cluster)),
            self.attempts,
            transactional_id=context.transactional_id,
            batch_bytes=context.batch_bytes,
            counters=context.counters,
        )
        self.must_repeat_commit = False
        """Whether a flush or offset commit got no answer, or the target was away: nothing is lost; commit again."""
        self.tally = Tally(context.counters)
        """Counts the steps once it is known whether they are committed."""
        self.newest_failure = ""
        """The newest step that failed, as text."""
        self.leftovers: list[Leftovers] = []
        """The leftovers of each transactional id; check them before reading, or its next commit makes them visible."""
        self.stores = context.stores
        """The state of the tasks; None if they have no state."""
        self.target = _open_target(context)
        """Holds the rows until the commit, and stores them before the offsets are committed; None without rows."""
        self._ledger = context.ledger
        self._consumer = context.consumer
        self._processor = processor
        self._settings = environment.settings
        self._outputs_held = environment.outputs_held
        self._graph = environment.target
        self._counters = context.counters
        self._clock = environment.clock
        self._sleep = environment.sleep
        self._outputs: list[Output] = []
        self.uncommitted_steps = 0
        """How many steps are processed and not committed."""
        self._tracing = context.tracing
        self._since: float | None = None
        """Clock time of the oldest uncommitted step."""
        self._unraised: ClientError | None = None
        """The error of a callback, which must not raise; `check` raises it."""

    @classmethod
    def _producer_mode(cls, durability: Durability) -> ProducerMode:
        """Returns how a producer writes under this guarantee, with this durability."""
        return mode_of(cls, durability)

    @property
    def mistake(self) -> RecordRefused | None:
        """The refusal of an output that no dead letter replaces: at_most_once raises it after all other outputs."""
        return None

    # The steps that are processed and not committed.

    @property
    def busy(self) -> bool:
        """Whether steps are processed and not committed, or a transaction is open."""
        return self.session.state is not SessionState.READY or self._since is not None

    @property
    def due(self) -> bool:
        """Whether the uncommitted steps are old enough or many enough for a commit."""
        return self._since is not None and (
            self._clock() - self._since >= self._settings.commit_interval_ms / 1000
            or self.uncommitted_steps >= self._settings.commit_records
            or (self.target is not None and (self.target.is_full or value_bytes(self._outputs) >= HELD_BYTES))
        )

    def check(self) -> None:
        """Raises Abortable if partitions of the open transaction were revoked, or the error of a callback."""
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error
        if self.session.state is SessionState.ABORTABLE:
            raise Abortable("partitions were revoked in mid-transaction")

    # Without errors.

    def start(self) -> None:
        """Makes the first producer, which fences the previous one: no committed offset may be read before that."""
        self.session.start()

    @abstractmethod
    def prepare(self, intake: Taken) -> None:
        """Saves what must be saved before the functions run.

        Raises Retriable if no answer comes; prepare the same intake again then, because it may have been saved.
        """

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:  # noqa: ARG002
        """Returns the offsets to start at in these partitions; `positions` are the group's committed offsets.

        Connects to the target of rows, so that a mistake is found before a function is called. Raises ClientError.
        """
        if self.target is not None:
            self.target.open()
        return positions

    @abstractmethod
    def commit_start(self, starts: Positions, named: list[Output], begun: list[Output]) -> None:
        """Commits the start offsets of partitions without a committed offset, and writes the records that say so.

        `begun` are these records; `named` are records of the offsets, needed if offsets are committed by themselves.
        """

    def write(self, plan: Plan) -> None:
        """Writes the outputs of a plan; the offsets after its steps wait for the commit.

        With a target, all of them wait: the commit stores rows, then writes dead letters (StoredOffsets: the reverse).
        """
        what = "dead letter" if self._processor.errors else "dropped: no dead-letter topic is declared (errors=)"
        shown = f"; `kstreams dead-letters list {self._graph}` shows all" if self._processor.errors else ""
        for failure in plan.failures:
            logger.warning(
                "%s: %s: %s%s", self._processor.id, what, failure, shown,
                extra=repeated(
                    f"failed steps of processor {self._processor.id}",
                    f"{type(failure.error).__name__}: {format_error(failure.error)}{shown}",
                    partition=failure.inputs[0].partition(),
                ),
            )  # fmt: skip
        if self._since is None:
            self._since = self._clock()
        self.uncommitted_steps += plan.steps
        size = estimate(value_bytes, plan.outputs)
        if self.target is None:
            self._outputs += plan.outputs
        else:
            rows, others = split(plan.outputs)
            self._outputs += others
            self.target.hold(rows, size)
        letters = plan.dead_letters
        self.tally.ran(StepCounts(plan.steps, len(plan.outputs) - letters, letters, len(plan.failures) - letters, size))
        if plan.failures:
            self.newest_failure = str(plan.failures[-1])

    def commit(self) -> None:
        """Commits outputs and offsets; does nothing if there are neither. Raises ClientError: pass it to `recover`."""
        self.check()
        if self.busy or self._ledger.uncommitted:
            started = self._clock()
            steps, outputs = self.uncommitted_steps, self.tally.open.records_out + self.tally.open.dead_letters
            with nullcontext() if self._tracing is None else self._tracing.commit(steps, outputs):
                self._commit()
            self.tally.committed()
            self._counters.committed(self._clock() - started)
            self.attempts.committed()
            self._forget()
            self.session.mark_ready()
        self.must_repeat_commit = False

    @abstractmethod
    def _commit(self) -> None:
        """Commits, in the order of the guarantee."""

    @abstractmethod
    def give_back(self, partitions: Collection[int] | None = None) -> None:
        """Undoes `prepare` for steps that were not run: a function stopped the worker, or they wait for a retry.

        `partitions` are the numbers of the partitions that wait; None for all.
        """

    # After errors and rebalances.

    def recover(self, error: ClientError) -> bool:
        """Aborts or replaces the producer, according to the error class; returns whether the caller must rewind.

        If a sink is away, waits, and leaves the producer as it is.
        If no broker answers, the next `check` raises the error: the client must first hear from the group.
        Raises Replaced if another worker holds the membership, Fatal if there is no recovery, RecordRefused if an
        output is refused and no dead letter can be written in its place.
        """
        try:
            if isinstance(error, SinkAway):
                self.attempts.failed(error, "trying again")
                return not self.must_repeat_commit
            return self._recover(error)
        except Retriable as unanswered:
            self._unraised = unanswered
            return True

    @abstractmethod
    def _recover(self, error: ClientError) -> bool:
        """Aborts or replaces the producer; returns whether the caller must rewind. Also raises Retriable."""

    def revoked(self, run_saved: Callable[[], None]) -> None:
        """Finishes what can be committed without a transaction, before another member gets the partitions.

        `run_saved` runs the steps whose offsets are already committed. The next `check` raises a ClientError; other
        errors are raised here, after everything that can be finished is finished.
        """
        failure: KStreamsError | None = None
        for finish in (partial(self._settle, run_saved), self.give_back):
            try:
                finish()
            except ClientError as error:
                logger.warning("%s: partitions are revoked before a commit: %s", self._processor.id, error)
                self._keep_error(error)
            except KStreamsError as error:
                failure = failure or error
        if self._ledger.unprocessed:
            logger.error("%s: at most once: steps that were not run may be lost", self._processor.id)
        self.lost()
        if failure is not None:
            raise failure

    @abstractmethod
    def _settle(self, run_saved: Callable[[], None]) -> None:
        """Runs saved steps, and commits before partitions are revoked if there is time for it."""

    def _keep_error(self, error: ClientError) -> None:
        """Keeps an error for the next `check`, unless the next attempt resolves it."""
        self._unraised = (
            error if self.session.state in (SessionState.UNKNOWN, SessionState.FENCED, SessionState.FATAL) else None
        )

    def lost(self) -> None:
        """Gives up the uncommitted steps: the partitions are revoked, and their offsets must not be committed."""
        if self.busy:
            self.session.must_abort()
        self._forget()
        self._ledger.reset()

    def end(self) -> None:
        """Ends the producer and the connection to a target, without a commit."""
        self.session.end()
        if self.target is not None:
            self.target.close()
        self.tally.rolled_back()
        self.tally.give_up()

    # For the guarantees.

    def _ask(self, positions: Positions, commit: Callable[[], None], counts: StepCounts | None = None) -> None:
        """Requests the deciding commit, and notes it in the tally; `counts` has its steps, None for all."""
        self.tally.ask(positions, counts)
        try:
            commit()
        except (Abortable, Refused):
            self.tally.refused()
            raise

    def _store_rows(self, positions: Positions, expected: Positions) -> None:
        """Stores the rows and these next offsets; keeps the rows for the next commit while the target is away."""
        if self.target is None or not (positions or self.target.has_rows):
            return
        self.must_repeat_commit = False
        try:
            self.target.store(positions, expected)
        except SinkAway:
            self.must_repeat_commit = True
            raise

    def _send(self) -> None:
        self.session.open()
        if self._outputs:
            self._call(lambda producer: producer.write(self._outputs))

    def _write_through(self, records: list[Output]) -> None:
        self._call(lambda producer: producer.write(records))
        self._call(lambda producer: producer.flush())

    @abstractmethod
    def _call(self, call: Callable[[Producer], object]) -> None:
        """Calls the producer; acts on the class of a ClientError before raising it."""

    def _forget(self) -> None:
        """Forgets the steps that waited for a commit: they are committed now, or will be run again."""
        self.tally.rolled_back()
        self._clear()

    def _clear(self) -> None:
        """Clears everything that waits for a commit."""
        self._outputs = []
        self.uncommitted_steps = 0
        self._since = None
        if self.target is not None:
            self.target.forget()
        if self._tracing is not None:
            self._tracing.forget()

    def _note_failure(self, error: ClientError) -> None:
        """Records that an attempt failed, and waits before the next one if several failed in a row."""
        self.session.fail(error)
        self._counters.aborted()
        if self.session.state is SessionState.FATAL and self._ends_by_fatal:
            raise error
        try:
            self.attempts.failed(error, "going back to the committed offsets")
        except Fatal as fatal:
            self.session.fail(fatal)
            raise

    def _raise_unless_replaceable(self, error: ClientError) -> None:
        """Raises the reason why an output is refused, if the output belongs to no step."""
        if isinstance(error, Refused) and not self.uncommitted_steps:
            raise error.mistake


def _open_target(context: Context) -> Target | None:
    environment, sink = context.environment, context.processor.target
    if sink is None:
        return None
    return Target(sink, context.name, context.topic_ids, environment.open_sink, environment.clock)


def mode_of(committer: type[Committer], durability: Durability) -> ProducerMode:
    """Returns how a producer of outputs writes under the guarantee of a committer, with this durability."""
    return ProducerMode(committer.transactional, durability.acks, committer.may_repeat)
