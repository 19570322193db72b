"""Mutations of the engine: each removes one thing that it does for its guarantees."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from kstreams_py.errors import ClientError, OutcomeUnknown
from kstreams_py.graph.guarantees import Durability
from kstreams_py.graph.hashes import hash_prefix
from kstreams_py.kafka.leftovers import Leftovers
from kstreams_py.kafka.membership import Membership, Owner
from kstreams_py.metrics import StepCounts
from kstreams_py.processing.commits import states
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.commits.guarantees import AtMostOnce, ExactlyOnce, producer_mode
from kstreams_py.processing.commits.session import Session
from kstreams_py.processing.commits.states import SessionState
from kstreams_py.processing.commits.tally import Tally
from kstreams_py.processing.tasks import tasks
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Positions
from kstreams_py.steps.plan import Plan
from kstreams_py.testing.events import Isolation
from kstreams_py.testing.memory_broker import Broker, GroupMetadata, Partition
from kstreams_py.testing.memory_clients import MemoryConsumer, MemoryProducer
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, Fault, Kind

MUTATIONS = Mutations()

# The transaction.


@MUTATIONS.add("torn transaction", "duplicate", struck=[(Fault.FROZEN, "add_offsets")])
def no_group_metadata(patch: pytest.MonkeyPatch) -> None:
    """Offsets are added to the transaction without the member and its generation."""
    add = Broker.add_positions

    def add_without_member(
        self: Broker, name: str, epoch: int, positions: Positions, membership: GroupMetadata
    ) -> None:
        add(self, name, epoch, positions, membership._replace(instance_id=""))

    patch.setattr(Broker, "add_positions", add_without_member)


@MUTATIONS.add("torn transaction", "lost")
def no_rewind_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    def run_turn(self: Worker) -> None:
        try:
            self.turn()
        except ClientError as error:
            self.committer.recover(error)

    patch.setattr(Worker, "run_turn", run_turn)


@MUTATIONS.add("torn transaction", "duplicate", struck=[(Fault.LATE, "commit_transaction")])
def abort_on_unknown(patch: pytest.MonkeyPatch) -> None:
    """And no look for what is left open: a worker would wait for it, before it is torn."""
    patch.setitem(states.STATE_OF, OutcomeUnknown, SessionState.ABORTABLE)
    patch.setattr(Leftovers, "require_none", lambda _: None)


@MUTATIONS.add("torn transaction", "duplicate", struck=[(Fault.DOUBLED, "commit_transaction")])
def no_new_producer_after_a_timed_out_request(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "taint", lambda self: None)


@MUTATIONS.add("torn transaction", "lost")
def positions_are_those_fetched(patch: pytest.MonkeyPatch) -> None:
    """As a consumer's position(): the offsets after the fetched records, processed or not."""
    commit = Committer.commit

    def commit_fetched(self: Committer) -> None:
        fetched: Positions = self._consumer._positions  # type: ignore[attr-defined]
        self._ledger.advance({tp: fetched.get(tp, at) for tp, at in self._ledger.uncommitted.items()})
        commit(self)

    patch.setattr(Committer, "commit", commit_fetched)


@MUTATIONS.add("torn transaction", "duplicate")
def dead_letters_outside_of_the_transaction(patch: pytest.MonkeyPatch) -> None:
    write = Committer.write

    def write_apart(self: Committer, plan: Plan) -> None:
        dead_letters = [output for output in plan.outputs if output[0] == "dead"]
        plan.outputs = [output for output in plan.outputs if output[0] != "dead"]
        if dead_letters:
            producer = self.session._cluster.producer(producer_mode(ALO, Durability.COMMITTED), "dead letters")
            producer.write(dead_letters)
            producer.flush()
        write(self, plan)

    patch.setattr(Committer, "write", write_apart)


@MUTATIONS.add("torn transaction", "lost")
def failed_deliveries_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "_raise_failed", lambda self: self._failed.clear())


@MUTATIONS.add("torn transaction", "duplicate")
def positions_after_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Commits the outputs in a transaction, then the offsets outside of it."""
    commit_transaction = MemoryProducer.commit_transaction

    def send_offsets(self: MemoryProducer, positions: Positions, consumer: MemoryConsumer) -> None:
        self.later = positions, consumer  # type: ignore[attr-defined]

    def commit(self: MemoryProducer) -> None:
        commit_transaction(self)
        if later := vars(self).pop("later", None):
            later[1].commit(later[0])

    patch.setattr(MemoryProducer, "send_offsets", send_offsets)
    patch.setattr(MemoryProducer, "commit_transaction", commit)


@MUTATIONS.add("torn transaction", "lost")
def positions_before_the_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryProducer, "send_offsets", lambda self, positions, consumer: consumer.commit(positions))


@MUTATIONS.add("order broken")
def outputs_in_another_order(patch: pytest.MonkeyPatch) -> None:
    write = Committer.write

    def write_backwards(self: Committer, plan: Plan) -> None:
        plan.outputs.reverse()
        write(self, plan)

    patch.setattr(Committer, "write", write_backwards)


@MUTATIONS.add("aborted read", "precommitted read")
def inputs_that_are_not_committed(patch: pytest.MonkeyPatch) -> None:
    fetch, read = MemoryConsumer._fetch, Partition.read

    def fetch_all(self: MemoryConsumer, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Partition, "read", lambda self, position, _: read(self, position, Isolation.UNCOMMITTED))
            return fetch(self, *arguments)

    patch.setattr(MemoryConsumer, "_fetch", fetch_all)


# Fencing and membership.


@MUTATIONS.add("torn transaction", "duplicate")
def no_fencing_before_recovery(patch: pytest.MonkeyPatch) -> None:
    """Reads committed offsets before fencing, though some are pending; fences with the first record.

    And no look for what is left open, which would be the first request of a producer that is not there.
    """
    opening = Session.open

    def fence_then_open(self: Session) -> None:
        if self._producer is None:
            self.renew()
        opening(self)

    def committed(self: Broker, group: str, partitions: Collection[Any]) -> Positions:
        return {tp: self.group(group).positions.get(tp, 0) for tp in sorted(partitions)}

    patch.setattr(Session, "start", lambda self: None)
    patch.setattr(Session, "open", fence_then_open)
    patch.setattr(Broker, "committed", committed)
    patch.setattr(Leftovers, "require_none", lambda _: None)


@MUTATIONS.add("torn transaction", "duplicate", "counts")
def commit_of_partitions_that_were_taken_away(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactlyOnce, "lost", lambda self: None)


@MUTATIONS.add(
    "torn transaction", "duplicate", "positions", struck=[(Fault.SLOW, "returned"), (Fault.DOUBLED, "commit")]
)
def membership_asked_for_by_a_plain_commit(patch: pytest.MonkeyPatch) -> None:
    """As an earlier version asked for the membership: a late copy of this commit sets the group back."""

    def membership(self: MemoryConsumer) -> Membership:
        if self._positions:
            self.commit(self.committed(self._positions))
        return Membership(Owner.OURS)

    patch.setattr(MemoryConsumer, "membership", membership)
    patch.setattr(MemoryConsumer, "taint", lambda self, request: None)


@MUTATIONS.add("foreign", "hash", "lost", "torn transaction", kinds=[Kind.JOIN])
def records_of_before_a_rewind_kept(patch: pytest.MonkeyPatch) -> None:
    assign, clear = Tasks.assign, Tasks.clear

    def clear_but_queues(self: Tasks) -> None:
        if self.by_partition:
            vars(self)["queues"] = {number: task.queues for number, task in self.by_partition.items()}
        clear(self)

    def assign_on_top(self: Tasks, *arguments: Any) -> list[str]:
        dropped = assign(self, *arguments)
        for number, task in self.by_partition.items():
            task.queues = vars(self).get("queues", {}).get(number, task.queues)
        return dropped

    patch.setattr(Tasks, "assign", assign_on_top)
    patch.setattr(Tasks, "clear", clear_but_queues)


# Delivery hashes and choices.


@MUTATIONS.add("hash")
def delivery_hash_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """A hash that differs from attempt to attempt."""
    prefix, attempts = hash_prefix, iter(range(10**9))
    patch.setattr(tasks, "hash_prefix", lambda name, *where: prefix(f"{name}.{next(attempts)}", *where))


@MUTATIONS.add("choices", kinds=[Kind.ALTS])
def choices_not_journaled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactlyOnce, "prepare", lambda self, intake: None)


@MUTATIONS.add("choices", kinds=[Kind.ALTS], struck=[(Fault.FROZEN, "add_partition"), (Fault.DIES, "returned")])
def choices_journaled_without_asking_the_group(patch: pytest.MonkeyPatch) -> None:
    """A zombie that has lost its partitions can then overwrite the choices of their new owner."""
    starts = Taken.starts
    patch.setattr(Taken, "starts", lambda self: {} if self.choices else starts(self))


# What is counted.


@MUTATIONS.add("counts")
def steps_counted_before_their_commit(patch: pytest.MonkeyPatch) -> None:
    def count(self: Tally, counts: StepCounts) -> None:
        self._counters.settled(counts)

    patch.setattr(Tally, "ran", count)


@MUTATIONS.add("counts", struck=[(Fault.UNANSWERED, "commit_transaction")])
def commits_without_an_answer_counted_as_rolled_back(patch: pytest.MonkeyPatch) -> None:
    decide = Tally.decide
    patch.setattr(Tally, "decide", lambda self, _: decide(self, {}))


@MUTATIONS.add("counts", struck=[(Fault.LOST, "commit_transaction")])
def commits_without_an_answer_counted_as_committed(patch: pytest.MonkeyPatch) -> None:
    rolled_back = Tally.rolled_back

    def commit(self: Tally) -> None:
        if self._asked:
            self.committed()
        rolled_back(self)

    patch.setattr(Tally, "rolled_back", commit)


# The other guarantees.


@MUTATIONS.add("position too early", "lost", guarantee=ALO)
def positions_before_the_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    flush = MemoryProducer.flush
    patch.setattr(MemoryProducer, "flush", lambda self: flush(self) if self._id else None)


@MUTATIONS.add("position too late", "duplicate", guarantee=AMO)
def positions_after_the_functions(patch: pytest.MonkeyPatch) -> None:
    prepare, write = AtMostOnce.prepare, AtMostOnce.write

    def write_then_save(self: AtMostOnce, plan: Plan) -> None:
        write(self, plan)
        assert isinstance(plan.intake, Taken)
        prepare(self, plan.intake)

    patch.setattr(AtMostOnce, "prepare", lambda self, intake: None)
    patch.setattr(AtMostOnce, "write", write_then_save)


@MUTATIONS.add("position too late", "positions", "duplicate", guarantee=AMO, struck=[(Fault.DOUBLED, "commit")])
def no_new_member_after_a_commit_that_may_be_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryConsumer, "taint", lambda self, request: None)
