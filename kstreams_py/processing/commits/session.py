"""The producer of one worker, as a state machine (states.py)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from kstreams_py.errors import (
    Abortable,
    ClientError,
    Fatal,
    Fenced,
    KStreamsError,
    OutcomeUnknown,
    Retriable,
)
from kstreams_py.kafka.contracts import Consumer, Producer, ProducerMode
from kstreams_py.kafka.membership import Owner, replaced
from kstreams_py.log_fields import repeated
from kstreams_py.metrics import Counters
from kstreams_py.processing.commits.attempts import Attempts
from kstreams_py.processing.commits.states import FAILURES, STATE_OF, TRANSITIONS, SessionState
from kstreams_py.steps.environment import Environment

logger = logging.getLogger(__name__)

TAKEOVER_SECONDS: Final = 1.0
"""Seconds for which a fenced worker asks its group who holds the membership.

A replacement fences the transactional id and joins at about the same time: the first answer may be too early.
"""

MEMBERSHIP_ASKED_MAX: Final = 30
"""How many times, a second apart, the worker asks the group who holds the slot before it ends."""


_REASONS: Final = {SessionState.UNKNOWN: "unknown_outcome", SessionState.FENCED: "fenced"}
"""The reason for replacing the producer, by the state of its session."""


class Session:
    """One producer at a time, and its state; all moves but `force_ready` are checked against the table in states.py.

    Between two transactions the session replaces a producer that may have a request in flight. These steps follow an
    error, beginning with Worker._recover:

    1. `Committer.recover` looks at the class of the error; a refused output may need no new producer.
    2. `fail` moves to the state of the error, and Attempts.failed() waits, or ends the worker.
    3. `abort_or_renew` aborts if the state allows it, and keeps the producer.
    4. Otherwise it asks the group who holds the membership: if another member does, this worker ends.
    5. `renew` makes a producer with the same id, which fences the old one and ends its transaction.
    6. The worker rewinds to the committed offsets: they show whether the last transaction was committed.
    """

    def __init__(
        self,
        mode: ProducerMode,
        consumer: Consumer,
        environment: Environment,
        attempts: Attempts,
        *,
        transactional_id: str,
        batch_bytes: int | None = None,
        counters: Counters,
    ) -> None:
        self.state = SessionState.READY
        self._attempts = attempts
        self.timed_out = False
        """Whether the broker aborted the last transaction because it took longer than transaction_timeout_ms."""
        self._mode = mode
        self._consumer = consumer
        self._cluster = environment.cluster
        self._clock = environment.clock
        self._sleep = environment.sleep
        self._timeout = environment.settings.transaction_timeout_ms / 1000
        self._id = transactional_id
        self._batch_bytes = batch_bytes
        self._counters = counters
        self._producer: Producer | None = None
        self._opened_at: float | None = None
        self.lost = Counter[str]()
        """The records that earlier producers of this session have lost; see Producer.lost."""

    # Without errors.

    def start(self) -> None:
        """Makes the first producer, which fences the previous one: no committed offset may be read before that.

        Raises Fatal after PRODUCERS_MAX attempts.
        """
        while True:
            try:
                self.renew()
                return
            except Retriable as error:
                self._attempts.producer_failed(error)

    def open(self) -> None:
        """Begins a transaction, unless one is open; without transactions, records that outputs are on their way."""
        if self.state is SessionState.OPEN:
            return
        if self._mode.transactional:
            self.renew_if_tainted()
            try:
                self.call(lambda producer: producer.begin_transaction())
            except ClientError as error:
                self.fail(error)
                raise
        self._opened_at = self._clock()
        self._move(SessionState.OPEN)

    def renew_if_tainted(self) -> None:
        """Replaces a producer that may have a request in flight; no transaction is open.

        A request that timed out may reach the broker late and end a later transaction of the same epoch.
        """
        if self.producer.tainted:
            logger.warning(
                "%s: a request timed out or lost its connection: a new producer is needed", self._id,
                extra=repeated(f"requests of {self._id} that timed out or lost their connection"),
            )  # fmt: skip
            self._require_membership(0.0)
            self.renew("late_request")

    def call(self, call: Callable[[Producer], object]) -> None:
        """Calls the producer; in a transaction, repeats a call that raises Retriable."""
        if self._mode.transactional:
            self._attempts.call(lambda: call(self.producer))
        else:
            call(self.producer)

    def mark_ready(self) -> None:
        """Records that nothing is open any more."""
        self._opened_at = None
        if self.state is not SessionState.READY:
            self._move(SessionState.READY)

    @property
    def producer(self) -> Producer:
        """The producer; the session must have been started."""
        assert self._producer is not None, "the session was not started"
        return self._producer

    @property
    def has_producer(self) -> bool:
        """Whether there is a producer: there is none before the start, or after a failure to replace one."""
        return self._producer is not None

    @property
    def age(self) -> float:
        """Seconds since the transaction began; 0 if none is open. Another thread may read it."""
        opened_at = self._opened_at
        return 0.0 if opened_at is None else self._clock() - opened_at

    @property
    def open_seconds(self) -> float | None:
        """The age of the transaction; None if none is open. Another thread may read it."""
        return self.age if self._mode.transactional and self._opened_at is not None else None

    # After errors.

    def fail(self, error: ClientError) -> None:
        """Moves to the state of the error, unless the session is in that state or a more severe one."""
        state = STATE_OF[type(error)]
        if self.state not in FAILURES or FAILURES.index(state) > FAILURES.index(self.state):
            self._move(state)

    def must_abort(self) -> None:
        """Records that the open transaction can only be aborted."""
        if self.state in (SessionState.READY, SessionState.OPEN):
            self._move(SessionState.ABORTABLE)

    def abort_or_renew(self, age: float) -> None:
        """Aborts the transaction if that is possible, and otherwise replaces the producer.

        `age` is the age of the transaction when it failed, in seconds. The session is ready afterwards. Raises Replaced
        if another worker holds the membership, Fatal if the group does not say who does, Retriable if no broker
        answers: call it again after the client has heard from the group.
        """
        self.timed_out = False
        reason = _REASONS.get(self.state, "abort_failed")
        if self.state in (SessionState.ABORTABLE, SessionState.RETRIABLE):
            if self._abort():
                return
            self.fail(OutcomeUnknown("the abort has failed"))
        if self.state is SessionState.FENCED and age >= self._timeout:
            self.timed_out, reason = True, "timed_out"
        self._opened_at = None
        self._require_membership(age)
        self.renew(reason)

    def force_ready(self) -> None:
        """Makes the session ready without an abort (at_most_once): the producer keeps the outputs in flight."""
        self._opened_at = None
        self.state = SessionState.READY

    def renew(self, reason: str = "") -> None:
        """Replaces the producer by one with the same id. `reason`: one of RENEWALS; "" for the first producer.

        With transactions, the new producer fences the old one and ends its transaction; without, the queue of the old
        one is dropped. Raises Retriable if no broker answers: there is no producer then, and the state is UNKNOWN or
        worse.
        """
        while True:
            self._drop()
            try:
                self._attempts.next_producer()
            except Fatal:
                self._move(SessionState.FATAL)
                raise
            try:
                self._producer = producer = self._cluster.producer(self._mode, self._id, self._batch_bytes)
                if self._mode.transactional:
                    producer.init_transactions()
            except Retriable as error:
                self._drop()
                self.fail(OutcomeUnknown(str(error)))
                raise
            except (Abortable, OutcomeUnknown, Fenced) as error:
                self._attempts.producer_failed(error)
                continue
            if reason:
                self._counters.renewed(reason)
            self._attempts.producer_started()
            self.mark_ready()
            return

    def end(self) -> None:
        """Aborts the transaction if its state allows that, and drops the producer."""
        if self._producer is None:
            return
        if self._mode.transactional and self.state in (
            SessionState.OPEN,
            SessionState.RETRIABLE,
            SessionState.ABORTABLE,
        ):
            try:
                self._abort()
            except KStreamsError as error:  # the error that ends the worker is already raised
                logger.warning("%s: its transaction is left to its time-out: %s", self._id, error)
        self._drop()

    def _drop(self) -> None:
        """Drops the producer immediately."""
        if self._producer is not None:
            self._producer.drop()
            self.lost.update(self._producer.lost)
            self._producer = None

    def _abort(self) -> bool:
        """Aborts the transaction; returns False if the producer must be replaced."""
        if self._producer is None:
            return False
        if self._opened_at is not None:
            try:
                self._producer.abort_transaction()
            except ClientError as error:
                logger.info(
                    "%s: %s; a new producer will do", self._id, error,
                    extra=repeated(f"aborts of {self._id} that failed", str(error)),
                )  # fmt: skip
                if isinstance(error, Fenced):
                    self.fail(error)
                return False
        self.mark_ready()
        return True

    def _require_membership(self, age: float) -> None:
        """Asks the group whether this worker still holds its slot, before the transactional id is taken back.

        A replacement and a broker's time-out both look like fencing; only a replacement has taken the membership.
        Raises Replaced if another worker has taken it, Retriable if no broker answers, Fatal if the group does not say:
        in these cases no worker is fenced.
        """
        fenced, timed_out = self.state is SessionState.FENCED, age >= self._timeout
        asked_until = self._clock() + (TAKEOVER_SECONDS if fenced and not timed_out else 0.0)
        while True:
            owner = self._owner()
            if self._clock() >= asked_until:
                break
            self._sleep(0.1)
        if owner is Owner.NOBODYS:
            logger.warning(
                "%s: this worker is not a member of its group, and no other worker is in its place", self._id,
                extra=repeated(f"times that {self._id} is not a member of its group"),
            )  # fmt: skip
        elif fenced and timed_out:
            logger.warning(
                "%s: the broker timed the transaction out after %.1f s: its steps or the broker's answers took "
                "longer than transaction_timeout_ms", self._id, age,
                extra=repeated(f"transactions of {self._id} that the broker timed out"),
            )  # fmt: skip
        elif fenced:
            logger.warning(
                "%s: fenced, but the membership is still ours: taking the transactional id back", self._id,
                extra=repeated(f"times that {self._id} is fenced and still holds its membership"),
            )  # fmt: skip

    def _owner(self) -> Owner:
        """Returns who holds the membership: this worker, or nobody.

        Raises Replaced if another worker holds it, Retriable if one may, Fatal if the group does not say.
        """
        for _ in range(MEMBERSHIP_ASKED_MAX):
            try:
                owner, holder = self._attempts.ask(self._consumer.membership)
            except Retriable:
                raise
            except ClientError as error:
                logger.warning(
                    "%s: its group does not say who holds the slot: %s", self._id, error,
                    extra=repeated(f"unanswered questions who holds the slot of {self._id}", str(error)),
                )  # fmt: skip
                self._sleep(1.0)
                continue
            if owner is Owner.UNSURE:
                raise Retriable(f"{self._id}: its group does not tell whether it still holds the slot ({holder})")
            if owner is Owner.ANOTHERS:
                self._move(SessionState.FATAL)
                raise replaced(self._id, holder)
            return owner
        self._move(SessionState.FATAL)
        raise Fatal(f"{self._id}: its group does not say whether it still holds the slot: start it again")

    def _move(self, state: SessionState) -> None:
        assert state in TRANSITIONS[self.state], f"{self._id}: {self.state} -> {state} is not in the table"
        self.state = state
