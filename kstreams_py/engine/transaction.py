"""Carries out plans: outputs, dead letters and positions as one transaction, or as the guarantee at hand has it.

Every call of a transactional client may move the state (`engine/states.py`), and each move is checked. After anything
but a commit, the caller goes back to the committed positions (`Worker.rewind`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from kstreams_py.config import Settings
from kstreams_py.delivery import PROMISES, Choices, Consumer, Log, Output, Producer
from kstreams_py.engine.states import FAILURES, STATE_OF, TRANSITIONS, State
from kstreams_py.errors import (
    Abortable,
    Fatal,
    Fenced,
    KStreamsError,
    LogError,
    OutcomeUnknown,
    Refused,
    Replaced,
    Retriable,
    Unavailable,
)
from kstreams_py.metrics import Counters
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.serde import Registry
from kstreams_py.task import Intake, Plan
from kstreams_py.topology import Processor

logger = logging.getLogger(__name__)


ABORTS_WARNED: Final = 3
"""Transactions given up in a row from which on each is a warning, and the next one waits."""

ABORTS_MAX: Final = 40
"""Transactions given up in a row, until the worker gives up: after some three minutes."""

WAIT_MAX: Final = 5.0
"""Seconds between two attempts at most."""

TAKEOVER_SECONDS: Final = 1.0
"""A replacement fences the transactional id and joins the group at the same time: the group is asked for so long."""

PINNED_SECONDS: Final = 30.0
"""How long committed positions may be unreadable before the log says who holds them."""

SEAT_ASKED_MAX: Final = 30
"""Questions to the group who holds the slot, a second apart, until the worker ends rather than guess."""

END_SECONDS: Final = 5.0
"""How long a session that ends waits for the acknowledgement of outputs that nobody would write again."""

RENEWALS_MAX: Final = 10
"""New producers in a row without a commit between them, until the worker gives up."""

OUTPUTS_HELD: Final = 500
"""Outputs that wait for their commit, so that a small transaction sends its positions before them (ARCHITECTURE.md).

Measured at 1,000 records a second: a transaction takes 20 ms, and 37 without. A large one sends them as they come.
"""

HELD_BYTES: Final = 4 << 20
"""Bytes of the values of these outputs, which few outputs may have as well."""

CALLS_MAX: Final = 5
"""Attempts at one call that fails as retriable, until its transaction is given up."""

JOURNAL_TRUNCATED_EVERY: Final = 1_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the engine works in; a simulation has its own log, clock (seconds) and sleep, and holds fewer outputs."""

    log: Log
    registry: Registry
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    outputs_held: int = OUTPUTS_HELD


class Session:
    """What one worker writes: one producer, one transaction at a time, and the table of what may follow what."""

    def __init__(
        self,
        processor: Processor,
        consumer: Consumer,
        around: Surroundings,
        *,
        transactional_id: str,
        journal: str | None = None,
        batch_bytes: int | None = None,
        counters: Counters,
    ) -> None:
        self.promise = PROMISES[processor.guarantee]
        self.journal = journal
        self.state = State.READY
        self._log = around.log
        self._consumer = consumer
        self._processor = processor
        self._id = transactional_id
        self._batch_bytes = batch_bytes
        self._settings = around.settings
        self._counters = counters
        self._clock = around.clock
        self._sleep = around.sleep
        self._outputs_held = around.outputs_held
        self._producer: Producer | None = None
        self._positions: Positions = {}
        self._outputs: list[Output] = []
        self._records = 0
        self._since: float | None = None
        """When the first of what is not committed came."""
        self._opened_at: float | None = None
        self._renewals = 0
        self._cause = ""
        """What the last attempt failed by."""
        self._aborts = 0
        self._journaled = 0
        self._pinned_since: float | None = None
        self.timed_out = False
        """The broker has ended the last transaction, because it took too long."""
        self.pending = False
        """A plain commit found no answer: nothing is lost, and `commit` goes on before anything else is done."""
        self._unraised: LogError | None = None
        """What went wrong while partitions were taken away, in a callback, which must not raise."""
        self._chosen: dict[int, Choices] = {}
        """What the journal's newest records say, which may not be readable yet: markers follow the commit's answer."""

    # The way through: prepare, write, commit.

    def start(self) -> None:
        """Fences what held this transactional id before; to be done before any position is read."""
        self._renew()

    def prepare(self, intake: Intake) -> None:
        """Saves what the guarantee wants saved before the functions run: positions, or the choices of alts.

        Raises Retriable without an answer; the same intake must then be prepared again, for it may have been saved.
        """
        if self.promise.saves_first:
            positions = intake.positions()
            self._save(positions)
            self._positions = {tp: reached for tp, reached in self._positions.items() if tp not in positions}
        elif self.journal is not None and intake.choices:
            if self.busy:
                self.commit()
            self._journal(self.journal, intake)

    def begin(self, starts: Positions, records: list[Output]) -> None:
        """Commits where the group begins, with records of it, before it reads: a crash must not change it."""
        if self.promise.transactional:
            self._open()
            if starts:
                self._call(lambda producer: producer.send_offsets(starts, self._consumer))
            self._call(lambda producer: producer.write(records))
            self._call(lambda producer: producer.commit_transaction())
            self._close()
            return
        if starts:
            self._retrying(lambda: self._consumer.commit(starts))
        assert self._producer is not None
        self._producer.write(records)
        self._producer.flush()

    def write(self, plan: Plan) -> None:
        """Writes a plan's outputs, or holds them while they are few; its positions wait for the commit."""
        for failure in plan.failures:
            logger.warning("%s: dead letter: %s", self._processor.id, failure)
        if self._since is None:
            self._since = self._clock()
        if not self.promise.saves_first:
            self._positions.update(plan.positions)
        self._records += plan.records
        self._outputs += plan.outputs
        self._counters.stepped(plan)
        if not self.promise.transactional or self.state is State.OPEN or self._holds_much:
            self._send()

    @property
    def _holds_much(self) -> bool:
        outputs = self._outputs
        return len(outputs) > self._outputs_held or sum([len(output[1] or b"") for output in outputs]) > HELD_BYTES

    def _send(self) -> None:
        self._open()
        if self._outputs:
            self._call(lambda producer: producer.write(self._outputs))

    @property
    def due(self) -> bool:
        """What is not committed is old or large enough."""
        return self._since is not None and (
            self._clock() - self._since >= self._settings.commit_interval_ms / 1000
            or self._records >= self._settings.commit_records
        )

    def reached(self, ends: Positions) -> None:
        """Partitions were read out to these positions, past what holds no records; to go with the next commit."""
        self._positions.update(ends)

    def commit(self) -> None:
        """Commits what was written, and positions; nothing if there is neither.

        Raises LogError: hand it to `recover`.
        """
        self.check()
        if not self.busy and not self._positions:
            self.pending = False
            return
        if self.promise.transactional:
            self._open()
            # the group's metadata is fetched anew inside: a partition lost meanwhile makes this an abort
            self._call(lambda producer: producer.send_offsets(self._positions, self._consumer))
            self._send()
            self._call(lambda producer: producer.commit_transaction())
        else:
            self._send()
            self._flush()
            if self._positions:
                self._save(self._positions)
        self._counters.committed()
        self._renewals = self._aborts = 0
        self.pending = False
        self._forget()
        self._close()

    def _save(self, positions: Positions) -> None:
        """Commits positions outside of a transaction; without an answer, whoever calls asks again."""
        try:
            self._retrying(lambda: self._consumer.commit(positions))
        except Retriable:
            self.pending = True
            raise

    def _flush(self) -> None:
        try:
            self._call(lambda producer: producer.flush())
        except Abortable as error:
            if not self.promise.saves_first or error.outputs:
                raise

    def deliver(self, outputs: deque[Output]) -> None:
        """Writes the first of these outputs by itself, without a transaction, and takes it off the queue.

        All that was written before is waited for; `commit` waits for the last one.
        """
        self._open()
        self._flush()
        first = [outputs.popleft()]
        try:
            self._call(lambda producer: producer.write(first))
        finally:
            outputs.extendleft(first)  # unless the producer took it

    def give_back(self, intake: Intake, positions: Positions) -> None:
        """Undoes `prepare` for steps whose functions were not run: only a crash may lose them."""
        self._save({tp: positions[tp] for tp in intake.positions()})

    def settle(self) -> None:
        """Finishes what is open before the partitions go to another member, where that takes no transaction.

        At most once it raises Refused: the outputs that the error holds are still to be delivered.
        """
        if not self.promise.transactional:
            try:
                self.commit()
            except LogError as error:
                if self.promise.saves_first and isinstance(error, Refused):
                    raise
                logger.warning("%s: partitions are taken away before a commit: %s", self._processor.id, error)
                self._unraised = error if self.state in (State.UNKNOWN, State.FENCED, State.FATAL) else None
        self.revoke()

    def revoke(self) -> None:
        """The partitions are no longer ours: positions must not be committed any more.

        At most once, outputs whose positions were saved are still to be delivered: nobody else would.
        """
        self._positions = {}
        if self.promise.saves_first:
            return
        if self.busy and self.state in (State.READY, State.OPEN):
            self._move(State.ABORTABLE)
        self._forget()
        self._chosen = {}

    @property
    def busy(self) -> bool:
        """Something is done and not committed."""
        return self.state is not State.READY or self._since is not None

    @property
    def steps(self) -> int:
        """How many steps are done and not committed."""
        return self._records

    def check(self) -> None:
        """Raises Abortable if partitions of what is open were taken away, or what went wrong meanwhile."""
        if self._unraised is not None:
            error, self._unraised = self._unraised, None
            raise error
        if self.state is State.ABORTABLE:
            raise Abortable("partitions were taken away in mid-transaction")

    def end(self, apart: deque[Output] | None = None) -> None:
        """Lets the producer go; at most once, delivers what is queued and `apart` first. After Refused, end again."""
        if self._producer is not None:
            if self.promise.saves_first and (self.busy or apart):
                self._deliver_last(apart)
            if self.promise.transactional and self.state in (State.OPEN, State.RETRIABLE, State.ABORTABLE):
                try:
                    self._abort()
                except KStreamsError as error:  # what the worker ends by is raised already
                    logger.warning("%s: its transaction is left to its time-out: %s", self._processor.id, error)
            self._producer.drop()
            self._producer = None

    def _deliver_last(self, apart: deque[Output] | None) -> None:
        """At most once, an output that was not delivered is lost: waits for those that are queued, within a bound."""
        assert self._producer is not None
        deadline = self._clock() + END_SECONDS
        while True:
            try:
                self._producer.write(self._outputs)
                self._producer.flush()
                if apart:
                    self._outputs.append(apart.popleft())
                    continue
            except Refused:
                raise
            except KStreamsError as error:
                if isinstance(error, Retriable) and self._clock() < deadline:
                    self._sleep(0.1)
                    continue
                logger.error("%s: at most once: outputs are lost: %s", self._processor.id, error)
            return

    # The ways back.

    def recover(self, error: LogError) -> bool:
        """Does what the error's name says; afterwards the session is ready. Whether its caller has to rewind.

        Raises Replaced if another worker holds the seat, Fatal when there is no way back.
        """
        self.timed_out = False
        self._cause = str(error)
        if not self.promise.transactional and self.pending and isinstance(error, Retriable):
            self._wait_after(error, "asking again")
            return False
        age, nothing_open = self._age, not self.busy
        self._fail(error)
        self._counters.aborted()
        if self.state is State.FATAL and not self.promise.saves_first:
            raise error
        self._wait_after(error, "going back to the committed positions")
        if self.promise.saves_first:
            self._keep_outputs(error)
            return True
        self._forget()
        if self.promise.transactional:
            if self.state in (State.ABORTABLE, State.RETRIABLE) and self._abort():
                return True
            self.timed_out = self.state is State.FENCED and age * 1000 >= self._settings.transaction_timeout_ms
            self._ask_for_seat(age)
        elif nothing_open:
            self._close()
            return True
        self._renew()  # without transactions: what was queued must not be sent late
        return True

    def _wait_after(self, error: LogError, then: str) -> None:
        """Says what went wrong, and lets time pass before the next attempt where there were several in vain.

        Raises Fatal after ABORTS_MAX of them.
        """
        if isinstance(error, Refused):
            logger.info("%s: %s; looking for the record", self._processor.id, error)
            self._renewals = 0  # halving gets there: it is no fault of the producer
            return
        self._aborts += 1
        level = logging.WARNING if self._aborts >= ABORTS_WARNED else logging.INFO
        logger.log(level, "%s: %s; %s", self._processor.id, error, then)
        if self._aborts >= ABORTS_MAX and not isinstance(error, Retriable):
            fatal = Fatal(f"{self._id}: {self._aborts} attempts in a row failed, at last by: {error}")
            self._fail(fatal)
            raise fatal
        if self._aborts >= ABORTS_WARNED:
            self._sleep(min(0.05 * 2 ** min(self._aborts - ABORTS_WARNED, 10), WAIT_MAX))

    def _keep_outputs(self, error: LogError) -> None:
        """At most once: outputs are still to be delivered, but for those that a useless producer has taken."""
        self.state = State.READY
        if isinstance(error, Retriable | Abortable | Refused) and self._producer is not None:
            return
        if self.busy:
            logger.error("%s: at most once: outputs may be lost: %s", self._processor.id, error)
        untouched = self._outputs
        self._forget()
        self._renew()
        self._outputs, self._since = untouched, self._clock() if untouched else None

    def _abort(self) -> bool:
        """Whether the producer can be used again."""
        if self._producer is None:
            return False
        if self._opened_at is not None:
            try:
                self._producer.abort_transaction()
            except LogError as error:
                logger.info("%s: %s; a new producer will do", self._processor.id, error)
                if isinstance(error, Fenced):
                    self._fail(error)
                return False
        self._close()
        return True

    def _ask_for_seat(self, age: float) -> None:
        """Asks the group whether this worker still is its slot's, before the transactional id is taken back.

        A replacement and a broker's time-out both look like fencing; only the first has taken the membership. Raises
        Replaced; Fatal if the group gives no answer, for then it is not for this worker to fence anybody.
        """
        fenced, timed_out = self.state is State.FENCED, age * 1000 >= self._settings.transaction_timeout_ms
        asked_until = self._clock() + (TAKEOVER_SECONDS if fenced and not timed_out else 0.0)
        while True:
            held = self._holds_seat()
            if self._clock() >= asked_until:
                break
            self._sleep(0.1)
        if not held:
            logger.warning("%s: this worker is no member of its group, and nobody else is in its place", self._id)
        elif fenced and timed_out:
            logger.warning(
                "%s: the broker timed the transaction out after %.1f s: its steps or the broker's answers took "
                "longer than transaction_timeout_ms",
                self._id,
                age,
            )
        elif fenced:
            logger.warning("%s: fenced, but the seat is still ours: taking the transactional id back", self._id)

    def _holds_seat(self) -> bool:
        """Whether this worker holds its membership; False if nobody does."""
        for _ in range(SEAT_ASKED_MAX):
            try:
                return self._consumer.hold_seat()
            except Replaced:
                self._move(State.FATAL)
                raise
            except (LogError, Unavailable) as error:
                logger.warning("%s: its group does not say who holds the slot: %s", self._id, error)
                self._sleep(1.0)
        self._move(State.FATAL)
        raise Fatal(f"{self._id}: its group does not say whether it still holds the slot: start it again")

    def _renew(self) -> None:
        """A new producer of the same id: it fences the old one and its late requests, and settles its transaction."""
        while True:
            if self._producer is not None:
                self._producer.drop()
                self._producer = None
            if self._renewals > RENEWALS_MAX:
                self._move(State.FATAL)
                raise Fatal(
                    f"{self._id}: {RENEWALS_MAX} producers in a row could not commit, at last by: {self._cause}"
                )
            if self._renewals:
                self._sleep(min(0.1 * 2**self._renewals, 5.0))
            self._renewals += 1
            try:
                durability = self._processor.durability
                self._producer = self._log.producer(self.promise, durability, self._id, self._batch_bytes)
                if self.promise.transactional:
                    self._retrying(self._producer.init_transactions)
            except (Retriable, Abortable, OutcomeUnknown, Fenced) as error:
                logger.warning("%s: %s; trying again", self._id, error)
                self._cause = str(error)
                continue
            self._close()
            return

    def committed(self, partitions: Collection[TopicPartition]) -> Positions:
        """The group's committed positions, without partitions that have none.

        Raises Retriable while a transaction holds one of them; says which once that has taken PINNED_SECONDS.
        """
        if not partitions:
            return {}
        try:
            positions = self._consumer.committed(partitions)
        except Retriable:
            now = self._clock()
            self._pinned_since = now if self._pinned_since is None else self._pinned_since
            if now - self._pinned_since >= PINNED_SECONDS:
                self._pinned_since = now
                self._name_pinned(partitions)
            raise
        self._pinned_since = None
        return positions

    def _name_pinned(self, partitions: Collection[TopicPartition]) -> None:
        """Says which positions a transaction holds, and what to do."""
        try:
            held = self._log.pending(self._id.rpartition(".")[0], partitions).describe(time.time())
        except KStreamsError as error:
            held = f"which transaction holds them is not known: {error}"
        logger.warning("%s: committed positions have not been readable for %g s: %s", self._id, PINNED_SECONDS, held)

    def journaled(self, partition: int) -> Choices:
        """The choices that an alts task saved last; those already delivered are for the caller to leave out."""
        if self.journal is None or partition in self._chosen:
            return self._chosen.get(partition, Choices())
        m = self._log.newest(TopicPartition(self.journal, partition))
        return Choices() if m is None else Choices.decode(m.value() or b"")

    def _journal(self, topic: str, intake: Intake) -> None:
        """Commits the choices in a transaction of their own, before the functions run."""
        self._open()
        records: list[Output] = [
            (topic, choices.encode(), None, partition, None, None, 0, [("ks-type", b"alts-choices")])
            for partition, choices in intake.choices.items()
        ]
        # these positions are committed already; with them the group is asked whether the partitions are still ours
        self._call(lambda producer: producer.send_offsets(intake.starts(), self._consumer))
        self._call(lambda producer: producer.write(records))
        self._call(lambda producer: producer.commit_transaction())
        self._close()
        self._chosen |= intake.choices
        self._journaled += 1
        if self._journaled % JOURNAL_TRUNCATED_EVERY == 0:
            for partition in intake.choices:
                if (m := self._log.newest(TopicPartition(topic, partition))) is not None:
                    self._log.truncate(TopicPartition(topic, partition), m.offset())

    # The state.

    def _open(self) -> None:
        if self.state is State.OPEN:
            return
        assert self._producer is not None
        if self.promise.transactional:
            if self._producer.tainted:
                # a request that timed out may reach the broker late and end a later transaction of the same epoch
                logger.warning("%s: a request timed out or lost its connection: a new producer is needed", self._id)
                self._ask_for_seat(0.0)
                self._renew()
            self._call(lambda producer: producer.begin_transaction())
        self._opened_at = self._clock()
        self._move(State.OPEN)

    @property
    def _age(self) -> float:
        """Seconds since what is open was begun."""
        return 0.0 if self._opened_at is None else self._clock() - self._opened_at

    def _forget(self) -> None:
        """What was done is committed, or is not to be."""
        self._positions = {}
        self._outputs = []
        self._records = 0
        self._since = None

    def _close(self) -> None:
        self._opened_at = None
        if self.state is not State.READY:
            self._move(State.READY)

    def _call(self, call: Callable[[Producer], object]) -> None:
        producer = self._producer
        assert producer is not None
        try:
            if self.promise.transactional:
                self._retrying(lambda: call(producer))
            else:
                call(producer)
        except LogError as error:
            if isinstance(error, Retriable) and not self.promise.transactional:
                self.pending = True  # nothing is lost, and the group must be heard meanwhile
            elif self.promise.saves_first and isinstance(error, Abortable):
                self._outputs[:0] = error.outputs  # the broker did not take them; others it may have taken
                if not error.outputs:
                    logger.error("%s: at most once: an output is lost: %s", self._processor.id, error)
            elif not (self.promise.saves_first and isinstance(error, Refused)):
                self._fail(error)
            raise

    def _retrying(self, call: Callable[[], object]) -> None:
        for attempt in range(1, CALLS_MAX):
            try:
                call()
            except Retriable as error:
                logger.info("%s: %s; again", self._id, error)
                self._sleep(min(0.05 * 2**attempt, 1.0))
            else:
                return
        call()

    def _fail(self, error: LogError) -> None:
        """Moves to the error's state, unless something as bad or worse has happened already."""
        state = STATE_OF[type(error)]
        if self.state not in FAILURES or FAILURES.index(state) > FAILURES.index(self.state):
            self._move(state)

    def _move(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self._id}: {self.state} -> {state} is not in the table"
        self.state = state
