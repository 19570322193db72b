"""The guarantees, side by side: what each commits and when, and how it reacts to errors and rebalances.

The worker calls `prepare` before the functions of an intake run, `write` after them, and `commit` once it is `due`.
After a ClientError it calls `recover`. It calls `revoked` before another member gets partitions, and `lost` if another
member may have them already.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kstreams_py.errors import (
    Abortable,
    ClientError,
    Fatal,
    Fenced,
    KStreamsError,
    NotRestored,
    OutcomeUnknown,
    RecordRefused,
    Refused,
    Retriable,
)
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.contracts import TOPIC, Output, Producer, ProducerMode
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.kafka.transactions import place_options
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import StepCounts
from kstreams_py.processing.commits.committer import HELD_BYTES, Committer, Context, mode_of
from kstreams_py.processing.commits.refused_outputs import RefusedOutputs
from kstreams_py.processing.commits.session import Session
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.commits.tally import NOTHING
from kstreams_py.processing.journal.choices_journal import ChoicesJournal
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.state.keyed import CHANGES_BYTES
from kstreams_py.steps.outputs import value_bytes
from kstreams_py.steps.plan import Plan

logger = logging.getLogger(__name__)

TRANSACTION_SECONDS: Final = 0.05
"""Seconds between two checks of whether a transaction in a changelog has ended."""

HEARD_SHARE: Final = 0.5
"""The share of the session timeout for which an answer from the group proves that this worker holds its partitions."""

LAST_DELIVERY_SECONDS: Final = 5.0
"""Seconds that an ending worker waits for the acknowledgement of outputs that no other worker would write."""


class ExactlyOnce(Committer):
    """Outputs and offsets in one transaction: both are committed, or neither is."""

    transactional = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._journal = context.journal if isinstance(context.journal, ChoicesJournal) else None
        self._recorder = self.session
        """The producer for transactions without outputs of steps."""
        cluster, name, group = context.environment.cluster, context.processor.cluster, context.name
        options = place_options(context.environment.settings.bootstrap_servers, name)
        self.leftovers.append(
            Leftovers(cluster.named(name), options, context.transactional_id, context.written, "" if name else group)
        )

    def prepare(self, intake: Taken) -> None:
        if self._journal is not None and intake.choices:
            # a store is at the offsets of the last commit: first commit the markers passed since then
            if self.busy or (self.stores is not None and self._ledger.uncommitted):
                self.commit()
            # these offsets are already committed; sending them asks the group whether this worker holds the partitions
            self._transact(intake.starts(), self._journal.records(intake.choices))
            self._journal.saved(intake.choices)

    def commit_start(self, starts: Positions, named: list[Output], begun: list[Output]) -> None:  # noqa: ARG002
        if (stores := self.stores) is None:
            self._transact(starts, begun)
            return
        # send all offsets that a first record of positions names: the group then checks that this worker holds the
        # partitions; without the check, a late record would set back the positions of another worker
        positions = stores.unplaced | starts
        self._transact(positions, [*begun, *stores.records(positions)])
        stores.committed(positions)

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:
        if self.stores is not None:
            self.stores.restore(positions, partitions)
        return super().resume(positions, partitions)

    @property
    def due(self) -> bool:
        return super().due or (self.stores is not None and self.stores.size >= CHANGES_BYTES)

    def write(self, plan: Plan) -> None:
        super().write(plan)
        if self.target is not None:
            return
        if plan.apart:
            self._send_apart()
        elif self.session.state is SessionState.OPEN or self._holds_much:
            self._send()

    def _send_apart(self) -> None:
        self.session.open()
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            try:
                self._write_through([output])
            except Refused as error:
                raise Refused(error.mistake, [output]) from None

    @property
    def _holds_much(self) -> bool:
        outputs = self._outputs
        return len(outputs) > self._outputs_held or value_bytes(outputs) > HELD_BYTES

    def _commit(self) -> None:
        self._store_rows({}, {})
        positions = self._ledger.uncommitted
        if (stores := self.stores) is not None:
            stores.look()
        self.session.open()
        # `send_offsets` reads the group's metadata again: a partition that was lost meanwhile leads to an abort
        self._call(lambda producer: producer.send_offsets(positions, self._consumer))
        self._send()
        if stores is not None:
            records = stores.records(positions)
            self._call(lambda producer: producer.write(records))
        self._ask(positions, self._commit_transaction)
        self._ledger.commit(positions)
        if stores is not None:
            stores.committed(positions)

    def _recover(self, error: ClientError) -> bool:
        if isinstance(error, NotRestored):
            logger.info("%s: %s", self._processor.id, error, extra=repeated(f"restores of {self._processor.id}"))
            self._sleep(TRANSACTION_SECONDS)
            return True
        self._raise_unless_replaceable(error)
        age = self.session.age
        self._note_failure(error)
        self._forget()
        self._ledger.reset()
        self.session.abort_or_renew(age)
        return True

    def give_back(self, partitions: Collection[int] | None = None) -> None:
        """Does nothing: nothing was committed before the functions ran."""

    def _settle(self, run_saved: Callable[[], None]) -> None:
        """Does nothing; the transaction is aborted later, because its commit would take too long for a callback."""

    def lost(self) -> None:
        super().lost()
        if self._journal is not None:
            self._journal.forget()
        if self.stores is not None:
            self.stores.suspect()

    def end(self) -> None:
        super().end()
        if self.stores is not None:
            self.stores.close()

    def _forget(self) -> None:
        super()._forget()
        if self.stores is not None:
            self.stores.roll_back()

    def _commit_transaction(self) -> None:
        self._call(lambda producer: producer.commit_transaction())

    def _transact(self, positions: Positions, records: list[Output]) -> None:
        """Commits offsets and records in a transaction of their own."""
        recorder = self._recorder
        recorder.open()
        _call(recorder, lambda producer: producer.write(records))  # sent while the offsets are added
        if positions:
            _call(recorder, lambda producer: producer.send_offsets(positions, self._consumer))
        _call(recorder, lambda producer: producer.commit_transaction())
        recorder.mark_ready()

    def _call(self, call: Callable[[Producer], object]) -> None:
        _call(self.session, call)


def _call(session: Session, call: Callable[[Producer], object]) -> None:
    """Calls the producer in a transaction; moves the session to the state of an error before raising it."""
    try:
        session.call(call)
    except ClientError as error:
        session.fail(error)
        raise


class _WithoutTransactions(Committer):
    """Offsets are committed apart from the outputs: before them, or after."""

    transactional = False

    def commit_start(self, starts: Positions, named: list[Output], begun: list[Output]) -> None:
        if starts:
            self._write_through(named)
            self.attempts.call(lambda: self._consumer.commit(starts))
        self._write_through(begun)

    def write(self, plan: Plan) -> None:
        super().write(plan)
        if self.target is None:
            self._send()

    def _commit(self) -> None:
        self._store_rows({}, {})
        self._send()
        self._flush()
        if positions := self._ledger.uncommitted:
            self._ask(positions, lambda: self._save(positions))

    def _flush(self) -> None:
        self._call(lambda producer: producer.flush())

    def _save(self, positions: Positions, unanswered: Callable[[], None] = lambda: None) -> None:
        """Commits offsets; if no answer comes, the caller commits them again.

        `unanswered` is called for each attempt that gets no answer: the broker may still carry it out.
        """

        def commit() -> None:
            try:
                self._consumer.commit(positions)
            except Retriable:
                unanswered()
                raise

        try:
            self.attempts.call(commit)
        except Retriable:
            self.must_repeat_commit = True
            raise
        self._ledger.commit(positions)

    def _repeats_commit(self, error: ClientError) -> bool:
        """Returns whether nothing is lost and the same commit must be tried again; if so, waits first."""
        if asks := self.must_repeat_commit and isinstance(error, Retriable):
            self.attempts.failed(error, "asking again")
        return asks

    def _settle(self, run_saved: Callable[[], None]) -> None:
        run_saved()
        self.commit()


class AtLeastOnce(_WithoutTransactions):
    """Offsets are committed after the outputs are acknowledged: a crash between the two repeats steps."""

    def prepare(self, intake: Taken) -> None:
        """Does nothing: nothing is committed before the functions run."""

    def give_back(self, partitions: Collection[int] | None = None) -> None:
        """Does nothing: nothing was committed before the functions ran."""

    def _recover(self, error: ClientError) -> bool:
        self._raise_unless_replaceable(error)
        if self._repeats_commit(error):
            return False
        nothing_open = not self.busy
        self._note_failure(error)
        self._forget()
        self._ledger.reset()
        if nothing_open:
            self.session.mark_ready()
        else:
            self.session.renew("failure")  # the old producer must not send its queue late
        return True

    def _call(self, call: Callable[[Producer], object]) -> None:
        try:
            self.session.call(call)
        except Retriable:
            self.must_repeat_commit = True  # nothing is lost; the client must hear from the group first
            raise
        except ClientError as error:
            self.session.fail(error)
            raise


class AtMostOnce(_WithoutTransactions):
    """Offsets are committed before the functions run: a crash after that loses steps.

    A worker that lost its partitions does not write their outputs while another worker may be further on: an output
    may be lost, but must not come after later ones.
    """

    may_repeat = False
    commits_each_intake = True
    traces_outputs = True
    must_finish = True
    _ends_by_fatal = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._refused = RefusedOutputs(context.replacement, self._replaced)
        self._lost_at: Positions | None = None
        """The committed offsets of partitions that were lost while outputs were in flight; None if there are none."""
        self._lost_outputs = Counter[str]()
        """The outputs that the producers had lost when they were last counted."""
        self._heard = self._clock()
        """Clock time of the last request that the group answered: this worker was a member then."""
        self._heard_for = context.environment.settings.session_timeout_ms / 1000 * HEARD_SHARE

    @property
    def mistake(self) -> RecordRefused | None:
        return self._refused.mistake

    def prepare(self, intake: Taken) -> None:
        positions = intake.positions()

        def may_be_saved() -> None:
            intake.saved = True  # no other worker would run it
            self._ledger.commit(positions)

        self._save(positions, may_be_saved)
        intake.saved = True

    def write(self, plan: Plan) -> None:
        self._refused.wrote(plan)
        self._ledger.advance(plan.tried)
        super().write(plan)

    def commit(self) -> None:
        if self._lost_at is not None:
            self.check()
            return
        while self._refused.apart:
            self._deliver_one_apart()
        super().commit()
        self._refused.committed()

    def _commit(self) -> None:
        super()._commit()
        self._count_lost()

    def _save(self, positions: Positions, unanswered: Callable[[], None] = lambda: None) -> None:
        asked = self._clock()
        super()._save(positions, unanswered)
        self._heard = asked

    def _send(self) -> None:
        if self._outputs:
            self._require_partitions()
        super()._send()

    def _require_partitions(self) -> None:
        """Commits the offsets again if the group's last answer is old: the group refuses a worker that was stalled."""
        if self._clock() - self._heard >= self._heard_for and (positions := self._ledger.committed):
            self._save(positions)

    def _settle(self, run_saved: Callable[[], None]) -> None:
        """Runs saved steps and commits, even if an output is refused: after the revocation it is too late."""
        for settle in (run_saved, self.commit):
            while True:
                try:
                    settle()
                    break
                except Refused as error:
                    self.recover(error)

    def give_back(self, partitions: Collection[int] | None = None) -> None:
        unprocessed = self._ledger.unprocessed
        if back := {tp: at for tp, at in unprocessed.items() if partitions is None or tp.partition in partitions}:
            self._save(back)

    def _recover(self, error: ClientError) -> bool:
        if isinstance(error, Refused):
            self._refused.set_apart(error)
            return False
        if self._repeats_commit(error):
            return False
        self._note_failure(error)
        self.session.force_ready()
        if not isinstance(error, Retriable | Abortable):
            self._replace_producer(error)
        return True

    def _replace_producer(self, error: ClientError) -> None:
        """Replaces the producer, and keeps the outputs that the old one has not taken."""
        if self.busy:
            logger.error("%s: at most once: outputs may be lost: %s", self._processor.id, error)
        untouched, self._outputs = self._outputs, []
        waiting = self._count(untouched)
        self.tally.ran(NOTHING - waiting)
        try:
            self.session.renew("failure")
        finally:
            self._forget()
        self._outputs, self._since = untouched, self._clock() if untouched else None
        self.tally.ran(waiting)

    def lost(self) -> None:
        """Drops the client's queue; other outputs wait until `resume` knows whether another worker is past them.

        The client would write its queue after the outputs of the next owner, which begins at the committed offsets.
        """
        self.must_repeat_commit = False
        if self._lost_at is None and (self.busy or self._refused.apart):
            logger.error("%s: at most once: the partitions are lost: outputs may be lost", self._processor.id)
            self._lost_at = self._ledger.committed
            self.session.end()
            self._count_lost()  # now: outputs written later are not among the lost ones
        self._ledger.reset()

    def resume(self, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:  # noqa: ARG002
        """Releases the outputs that wait, unless the group is past the offsets at which this worker left it."""
        left = self._ledger.committed if self._lost_at is None else self._lost_at
        if (self._outputs or self._refused.apart) and not left.items() <= positions.items():
            self._give_up("another worker has their partitions, or had them meanwhile")
        if not self.session.has_producer:
            self.session.renew("failure")
        self._lost_at = None
        return positions

    def _give_up(self, why: str) -> None:
        """Drops the outputs that no client has taken."""
        logger.error("%s: at most once: outputs are lost: %s", self._processor.id, why)
        self._drop_outputs()

    def _drop_outputs(self) -> None:
        self.tally.ran(NOTHING - self._count([*self._outputs, *self._refused.apart]))
        self._outputs = []
        self._refused.apart.clear()
        self._refused.committed()
        self._forget()

    def end(self) -> None:
        """Delivers outputs that are queued or set apart, within LAST_DELIVERY_SECONDS."""
        if self._lost_at is not None and (self._outputs or self._refused.apart):
            self._give_up("the worker ends, and another one may have their partitions")
        while self.session.has_producer and (self.busy or self._refused.apart):
            try:
                self._deliver_at_end()
                break
            except Refused as refused:
                logger.warning(
                    "%s: %s; writing the dead letter of its step before the end", self._processor.id, refused
                )
                try:
                    self._refused.set_apart(refused)
                except KStreamsError as error:
                    logger.error("%s: at most once: outputs are lost: %s", self._processor.id, error)
                    break
        self.session.end()  # shows how many outputs have no acknowledgement
        self._drop_outputs()
        super().end()

    def _deliver_at_end(self) -> None:
        deadline = self._clock() + LAST_DELIVERY_SECONDS
        while True:
            try:
                self.session.producer.write(self._outputs)
                self.session.producer.flush()
                if not self._refused.apart:
                    return
                self._outputs.append(self._refused.apart.popleft())
            except Refused:
                raise
            except KStreamsError as error:
                if isinstance(error, Abortable):
                    self._take_back(error)
                if not isinstance(error, Retriable | Abortable) or self._clock() >= deadline:
                    logger.error("%s: at most once: outputs are lost: %s", self._processor.id, error)
                    return
                self._sleep(0.1)

    # Counts: steps are not run again, so they count as committed; their outputs count once acknowledged.

    def _forget(self) -> None:
        self._count_lost()
        self.tally.committed(self.tally.open - self._count(self._refused.apart))
        self._clear()

    def _count_lost(self) -> None:
        """Leaves out the outputs that the producers have lost since the last count; waiting outputs are not lost."""
        session, before = self.session, self._lost_outputs
        self._lost_outputs = session.lost + Counter(session.producer.lost if session.has_producer else {})
        if lost := self._lost_outputs - before:
            waiting = self._count([*self._outputs, *self._refused.apart])
            letters = sum(number for topic, number in lost.items() if topic == self._processor.errors)
            outputs = sum(lost[topic.name] for topic in self._processor.outputs)
            self.tally.open = (self.tally.open - waiting).without(outputs, letters, lost[""]) + waiting

    def _replaced(self, output: Output, letter: Output | None) -> None:
        """Counts the dead letter that replaces an output; with None, only leaves the output out."""
        self.tally.ran(self._count([] if letter is None else [letter]) - self._count([output]))

    def _count(self, outputs: Collection[Output]) -> StepCounts:
        letters = sum(output[TOPIC] == self._processor.errors for output in outputs)
        return StepCounts(0, len(outputs) - letters, letters, 0, value_bytes([*outputs]))

    # Outputs that a topic refuses.

    def _deliver_one_apart(self) -> None:
        """Writes the first output that is set apart, after the acknowledgement of all before it."""
        self.session.open()
        self._flush()
        first = [self._refused.apart.popleft()]
        try:
            self._call(lambda producer: producer.write(first))
        finally:
            self._refused.apart.extendleft(first)  # `first` is empty if the producer took it

    def _flush(self) -> None:
        while True:  # records behind the lost ones may still wait
            try:
                super()._flush()
                return
            except Abortable as error:
                if error.outputs:
                    raise

    def _call(self, call: Callable[[Producer], object]) -> None:
        try:
            self.session.call(call)
        except Refused:
            raise
        except Retriable:
            self.must_repeat_commit = True
            raise
        except Abortable as error:
            self._take_back(error)
            raise
        except (OutcomeUnknown, Fenced, Fatal) as error:
            self.session.fail(error)
            raise

    def _take_back(self, error: Abortable) -> None:
        """Keeps the outputs that the broker did not take, to write them again; the broker may have the others."""
        self._outputs[:0] = error.outputs
        if error.outputs:
            self._since = self._since or self._clock()
        else:
            logger.error("%s: at most once: an output is lost: %s", self._processor.id, error)


COMMITTERS: Final[Mapping[Guarantee, type[Committer]]] = {
    Guarantee.EXACTLY_ONCE: ExactlyOnce,
    Guarantee.AT_LEAST_ONCE: AtLeastOnce,
    Guarantee.AT_MOST_ONCE: AtMostOnce,
}


def producer_mode(guarantee: Guarantee, durability: Durability) -> ProducerMode:
    """Returns how a producer writes under this guarantee, with this durability."""
    return mode_of(COMMITTERS[guarantee], durability)
