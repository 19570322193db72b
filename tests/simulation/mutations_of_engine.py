"""Each thing that the engine does for its guarantees, left out in turn."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from kstreams_py import task
from kstreams_py.delivery import PROMISES, Durability
from kstreams_py.engine import states
from kstreams_py.engine.states import State
from kstreams_py.engine.transaction import Session
from kstreams_py.engine.worker import Worker
from kstreams_py.errors import LogError, OutcomeUnknown
from kstreams_py.record import Positions
from kstreams_py.task import Intake, Plan, Tasks
from kstreams_py.testing.memory_broker import Broker, Membership, Partition
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, Fault, Kind

MUTATIONS = Mutations()

# The transaction.


@MUTATIONS.add("torn", "duplicate", struck=[(Fault.FROZEN, "add_offsets")])
def no_group_metadata(patch: pytest.MonkeyPatch) -> None:
    """Positions go into the transaction without the member and its generation."""
    add = Broker.add_positions

    def add_unasked(self: Broker, name: str, epoch: int, positions: Positions, membership: Membership) -> None:
        add(self, name, epoch, positions, membership._replace(seat=""))

    patch.setattr(Broker, "add_positions", add_unasked)


@MUTATIONS.add("torn", "lost")
def no_rewind_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    def step(self: Worker) -> None:
        try:
            self.turn()
        except LogError as error:
            self.session.recover(error)

    patch.setattr(Worker, "step", step)


@MUTATIONS.add("torn", "duplicate", struck=[(Fault.LATE, "commit_transaction")])
def abort_on_unknown(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(states.STATE_OF, OutcomeUnknown, State.ABORTABLE)


@MUTATIONS.add("torn", "duplicate", struck=[(Fault.DOUBLED, "commit_transaction")])
def no_new_producer_after_a_timed_out_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "tainted", False)


@MUTATIONS.add("torn", "lost")
def positions_are_those_fetched(patch: pytest.MonkeyPatch) -> None:
    """As of a consumer's position(): what it has fetched, processed or not."""
    commit = Session.commit

    def commit_fetched(self: Session) -> None:
        if self._positions:
            self._positions = {tp: self._consumer._positions.get(tp, at) for tp, at in self._positions.items()}  # type: ignore[attr-defined]
        commit(self)

    patch.setattr(Session, "commit", commit_fetched)


@MUTATIONS.add("torn", "duplicate")
def dead_letters_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    write = Session.write

    def write_apart(self: Session, plan: Plan) -> None:
        letters = [output for output in plan.outputs if output[0] == "dead"]
        plan.outputs = [output for output in plan.outputs if output[0] != "dead"]
        if letters:
            producer = self._log.producer(PROMISES[ALO], Durability.COMMITTED, "letters")
            producer.write(letters)
            producer.flush()
        write(self, plan)

    patch.setattr(Session, "write", write_apart)


@MUTATIONS.add("torn", "lost")
def failed_deliveries_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "_raise_failed", lambda self: self._failed.clear())


@MUTATIONS.add("torn", "duplicate")
def positions_after_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The outputs' transaction first, then the positions by a commit of their own."""
    commit_transaction = MemoryProducer.commit_transaction

    def send_offsets(self: MemoryProducer, positions: Positions, consumer: MemoryConsumer) -> None:
        self.later = positions, consumer  # type: ignore[attr-defined]

    def commit(self: MemoryProducer) -> None:
        commit_transaction(self)
        if later := vars(self).pop("later", None):
            later[1].commit(later[0])

    patch.setattr(MemoryProducer, "send_offsets", send_offsets)
    patch.setattr(MemoryProducer, "commit_transaction", commit)


@MUTATIONS.add("torn", "lost")
def positions_before_the_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "send_offsets", lambda self, positions, consumer: consumer.commit(positions))


@MUTATIONS.add("order")
def outputs_in_another_order(patch: pytest.MonkeyPatch) -> None:
    write = Session.write

    def write_backwards(self: Session, plan: Plan) -> None:
        plan.outputs.reverse()
        write(self, plan)

    patch.setattr(Session, "write", write_backwards)


@MUTATIONS.add("aborted read", "precommitted read")
def inputs_that_are_not_committed(patch: pytest.MonkeyPatch) -> None:
    fetch, read = MemoryConsumer._fetch, Partition.read

    def fetch_all(self: MemoryConsumer, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Partition, "read", lambda self, position, _: read(self, position, "read_uncommitted"))
            return fetch(self, *arguments)

    patch.setattr(MemoryConsumer, "_fetch", fetch_all)


# Who may act.


@MUTATIONS.add("torn", "duplicate")
def no_fencing_before_recovery(patch: pytest.MonkeyPatch) -> None:
    """Positions are read first, whatever is pending, and the transactional id is taken with the first record."""
    opening = Session._open

    def fence_then_open(self: Session) -> None:
        if self._producer is None:
            self._renew()
        opening(self)

    def committed(self: Broker, group: str, partitions: Collection[Any]) -> Positions:
        return {tp: self.group(group).positions.get(tp, 0) for tp in sorted(partitions)}

    patch.setattr(Session, "start", lambda self: None)
    patch.setattr(Session, "_open", fence_then_open)
    patch.setattr(Broker, "committed", committed)


@MUTATIONS.add("torn", "duplicate")
def commit_of_partitions_that_were_taken_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "revoke", lambda self: None)


@MUTATIONS.add("torn", "duplicate", "positions", struck=[(Fault.SLOW, "returned"), (Fault.DOUBLED, "commit")])
def seat_asked_for_by_a_plain_commit(patch: pytest.MonkeyPatch) -> None:
    """The first way that hold_seat went: a late copy of this commit puts the group back."""

    def hold_seat(self: MemoryConsumer) -> None:
        if self._positions:
            self.commit(self.committed(self._positions))

    patch.setattr(MemoryConsumer, "hold_seat", hold_seat)
    patch.setattr(MemoryConsumer, "taint", lambda self, request: None)


@MUTATIONS.add("foreign", "hash", "lost", "torn", kinds=[Kind.JOIN])
def records_of_before_a_rewind_kept(patch: pytest.MonkeyPatch) -> None:
    assign, clear = Tasks.assign, Tasks.clear

    def assign_on_top(self: Tasks, *arguments: Any) -> list[str]:
        buffers = self._buffers
        dropped = assign(self, *arguments)
        self._buffers = buffers
        return dropped

    def clear_but_buffers(self: Tasks) -> None:
        buffers = self._buffers
        clear(self)
        self._buffers = buffers

    patch.setattr(Tasks, "assign", assign_on_top)
    patch.setattr(Tasks, "clear", clear_but_buffers)


# Delivery hashes and choices.


@MUTATIONS.add("hash")
def delivery_hash_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """A hash that says when a record was read, beside which."""
    prefix, attempts = task.hash_prefix, iter(range(10**9))
    patch.setattr(task, "hash_prefix", lambda name, *where: prefix(f"{name}.{next(attempts)}", *where))


@MUTATIONS.add("choices", kinds=[Kind.ALTS])
def choices_not_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_journal", lambda self, topic, intake: None)


@MUTATIONS.add("choices", kinds=[Kind.ALTS], struck=[(Fault.FROZEN, "add_partition"), (Fault.DIES, "returned")])
def choices_journaled_without_asking_the_group(patch: pytest.MonkeyPatch) -> None:
    """A zombie that has lost its partitions could then overwrite the choices of who has them now."""
    send_offsets = MemoryProducer.send_offsets

    def send_if_any(self: MemoryProducer, positions: Positions, consumer: MemoryConsumer) -> None:
        if positions:
            send_offsets(self, positions, consumer)

    patch.setattr(MemoryProducer, "send_offsets", send_if_any)
    patch.setattr(Intake, "starts", lambda self: {})


# The other guarantees.


@MUTATIONS.add("position too early", "lost", guarantee=ALO)
def positions_before_the_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    flush = MemoryProducer.flush
    patch.setattr(MemoryProducer, "flush", lambda self: flush(self) if self._id else None)


@MUTATIONS.add("position too late", "duplicate", guarantee=AMO)
def positions_after_the_functions(patch: pytest.MonkeyPatch) -> None:
    prepare, write = Session.prepare, Session.write

    def write_then_save(self: Session, plan: Plan) -> None:
        write(self, plan)
        prepare(self, self.late_intake)  # type: ignore[attr-defined]

    patch.setattr(Session, "prepare", lambda self, intake: setattr(self, "late_intake", intake))
    patch.setattr(Session, "write", write_then_save)


@MUTATIONS.add("position too late", "positions", "duplicate", guarantee=AMO, struck=[(Fault.DOUBLED, "commit")])
def no_new_member_after_a_commit_that_may_be_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryConsumer, "taint", lambda self, request: None)
