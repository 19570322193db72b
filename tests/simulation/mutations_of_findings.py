"""What hard use has found (issue 8), put back in turn; and mutants that invariants without bounds could not see."""

from __future__ import annotations

from typing import Any

import pytest

from kstreams_py.delivery import Choices
from kstreams_py.engine.beginning import Beginning
from kstreams_py.engine.transaction import Session
from kstreams_py.engine.worker import Search, Worker
from kstreams_py.errors import LogError, Refused, Retriable
from kstreams_py.record import Positions, TopicPartition
from kstreams_py.task import Plan
from kstreams_py.testing.memory_broker import Partition
from kstreams_py.testing.memory_clients import MemoryConsumer
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, EO, Fault, Kind

MUTATIONS = Mutations()

# 1: plain commits that find no answer.


def _drop_what_was_fetched(patch: pytest.MonkeyPatch) -> None:
    """The client's log is served by a `consume(1, 0)` whose record is dropped."""
    commit = MemoryConsumer.commit

    def commit_and_drop(self: MemoryConsumer, positions: Positions) -> None:
        try:
            commit(self, positions)
        except Retriable:
            any(self._fetch(tp, 1) for tp in sorted(self._positions))
            raise

    patch.setattr(MemoryConsumer, "commit", commit_and_drop)


@MUTATIONS.add("lost", "position too early", guarantee=ALO)
def failed_commit_drops_a_record_at_least_once(patch: pytest.MonkeyPatch) -> None:
    _drop_what_was_fetched(patch)


@MUTATIONS.add("lost", guarantee=AMO)
def failed_commit_drops_a_record_at_most_once(patch: pytest.MonkeyPatch) -> None:
    _drop_what_was_fetched(patch)


# 2, 2b: at most once.


@MUTATIONS.add("duplicate", guarantee=AMO, faults=[Fault.UNANSWERED, Fault.STALLED])
def at_most_once_without_an_idempotent_producer(patch: pytest.MonkeyPatch) -> None:
    """A batch that was written and not answered is sent again, and nobody knows it."""
    append = Partition.append

    def append_unknown(self: Partition, batch: Any, stamp: Any, *, transactional: bool) -> None:
        append(self, batch, stamp if transactional else None, transactional=transactional)

    patch.setattr(Partition, "append", append_unknown)


@MUTATIONS.add("lost", guarantee=AMO, faults=[Fault.JOINED])
def outputs_dropped_with_their_partitions(patch: pytest.MonkeyPatch) -> None:
    def let_go(self: Session) -> None:
        self.revoke()
        self._forget()
        self._renew()

    patch.setattr(Session, "settle", let_go)


@MUTATIONS.add("lost", guarantee=AMO, faults=[Fault.REPLACED])
def outputs_not_awaited_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "_deliver_last", lambda self, apart: None)


@MUTATIONS.add("lost", guarantee=AMO, faults=[Fault.REPLACED])
def outputs_beside_a_refused_one_dropped_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Found by this simulation: a batch comes back as a whole."""
    deliver = Session._deliver_last

    def deliver_once(self: Session, apart: Any) -> None:
        try:
            deliver(self, None)
        except Refused:
            self._forget()

    patch.setattr(Session, "_deliver_last", deliver_once)


# 4: a group whose positions have expired.


@MUTATIONS.add("positions lost", "duplicate", faults=[Fault.EXPIRED])
def group_that_began_before_starts_over(patch: pytest.MonkeyPatch) -> None:
    def nothing_begun(self: Beginning) -> dict[Any, int]:
        self._begun = self._begun or {}
        return self._begun

    patch.setattr(Beginning, "_read", nothing_begun)


# 5: partitions that grow.


@MUTATIONS.add("lost", faults=[Fault.GROWN])
def latest_skips_what_is_in_a_new_partition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Beginning, "_was_added", lambda self, tp: False)


# 6: choices of topics that are not there any more.


def _follow_all_choices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Choices, "still_valid", lambda self, committed, topic_ids: (self.after(committed), []))


@MUTATIONS.add("stuck", kinds=[Kind.ALTS], faults=[Fault.DEPLOYED, Fault.DIES_AFTER, Fault.LOST])
def choices_of_a_missing_input_followed(patch: pytest.MonkeyPatch) -> None:
    _follow_all_choices(patch)


@MUTATIONS.add("stuck", "choices", kinds=[Kind.ALTS], faults=[Fault.REMADE, Fault.DIES_AFTER, Fault.LOST])
def choices_of_a_topic_that_was_created_again_followed(patch: pytest.MonkeyPatch) -> None:
    _follow_all_choices(patch)


# 7: outputs that are always refused.


@MUTATIONS.add("stuck", faults=[Fault.DIES])
def refused_output_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Search, "failed", lambda self, steps: False)


# 8: inputs of a join that differ in partitions.


@MUTATIONS.add("stuck", kinds=[Kind.JOIN], faults=[Fault.GROWN])
def growth_of_one_input_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "_check_growth", lambda self, partitions: None)


# 12: members that wake up.


@MUTATIONS.add("replaced by an older one", "stuck", faults=[Fault.REPLACED])
def member_that_wakes_up_takes_its_place_back(patch: pytest.MonkeyPatch) -> None:
    def take_back(self: MemoryConsumer) -> bool:
        self.rejoin()
        return True

    patch.setattr(MemoryConsumer, "_return", take_back)


# Mutants that have no bound.


@MUTATIONS.add("lost", guarantee=AMO)
def nothing_written_after_the_second_assignment(patch: pytest.MonkeyPatch) -> None:
    assigned, write = Worker._on_assigned, Session.write

    def count(self: Worker, partitions: set[TopicPartition]) -> None:
        vars(self.session)["assignments"] = vars(self.session).get("assignments", 0) + 1
        assigned(self, partitions)

    def write_at_first(self: Session, plan: Plan) -> None:
        if vars(self).get("assignments", 0) > 1:
            plan.outputs.clear()
        write(self, plan)

    patch.setattr(Worker, "_on_assigned", count)
    patch.setattr(Session, "write", write_at_first)


def _write_thrice(patch: pytest.MonkeyPatch) -> None:
    """Any number of copies, once anything has gone wrong."""
    recover, write = Session.recover, Session.write

    def recover_and_remember(self: Session, error: LogError) -> bool:
        vars(self)["thrice"] = True
        return recover(self, error)

    def write_copies(self: Session, plan: Plan) -> None:
        if vars(self).get("thrice"):
            plan.outputs *= 3
        write(self, plan)

    patch.setattr(Session, "recover", recover_and_remember)
    patch.setattr(Session, "write", write_copies)


@MUTATIONS.add("duplicate", guarantee=ALO)
def any_number_of_copies_at_least_once(patch: pytest.MonkeyPatch) -> None:
    _write_thrice(patch)


@MUTATIONS.add("duplicate", guarantee=EO, kinds=[Kind.SINK])
def any_number_of_effects_exactly_once(patch: pytest.MonkeyPatch) -> None:
    """A transaction given up for no reason, again and again."""
    commit = Session.commit

    def commit_in_vain(self: Session) -> None:
        vars(self)["vain"] = vars(self).get("vain", 0) + 1
        if vars(self)["vain"] % 3 == 0 and self.busy:
            raise Retriable("for no reason")
        commit(self)

    patch.setattr(Session, "commit", commit_in_vain)
