"""Mutations that bring back the bugs of issue 8, in the order of its findings, and some that only bounds detect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from kstreams_py.errors import ClientError, Retriable
from kstreams_py.processing.beginning import Beginning
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.commits.guarantees import AtLeastOnce, AtMostOnce
from kstreams_py.processing.intakes import Intakes, Search
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.processing.tasks.task import Queue
from kstreams_py.processing.tasks.tasks import Tasks
from kstreams_py.processing.topics import Growth
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps.plan import Plan
from kstreams_py.testing.memory_broker import Partition
from kstreams_py.testing.memory_clients import MemoryConsumer
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, EO, Fault, Kind

MUTATIONS = Mutations()

# 1: commits of offsets that get no answer.


def _drop_what_was_fetched(patch: pytest.MonkeyPatch) -> None:
    """As if a `consume(1, 0)` served the client's log, and its record were dropped."""
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


@MUTATIONS.add("lost", "position too early", guarantee=ALO, faults=[Fault.STALLED])
def step_that_stops_is_passed_while_the_queue_is_full(patch: pytest.MonkeyPatch) -> None:
    def write_and_stop(self: Intakes, plan: Plan, interrupt: Exception) -> None:
        self._committer.write(plan)
        self.commit()
        self._stop(interrupt)

    patch.setattr(Intakes, "_finish_and_stop", write_and_stop)


# 2, 2b: at most once.


@MUTATIONS.add("duplicate", guarantee=AMO, faults=[Fault.UNANSWERED, Fault.STALLED])
def at_most_once_without_an_idempotent_producer(patch: pytest.MonkeyPatch) -> None:
    """A batch that was written without an answer is sent again, and the broker does not drop the copy."""
    append = Partition.append

    def append_unknown(self: Partition, batch: Any, stamp: Any, *, transactional: bool) -> None:
        append(self, batch, stamp if transactional else None, transactional=transactional)

    patch.setattr(Partition, "append", append_unknown)


@MUTATIONS.add("lost", guarantee=AMO, faults=[Fault.JOINED])
def outputs_dropped_with_their_partitions(patch: pytest.MonkeyPatch) -> None:
    def let_go(self: AtMostOnce, run_saved: Callable[[], None]) -> None:
        self.lost()
        self._forget()
        self.session.renew()

    patch.setattr(AtMostOnce, "revoked", let_go)


@MUTATIONS.add("order broken", guarantee=AMO, faults=[Fault.FROZEN])
def outputs_written_after_their_partitions_are_lost(patch: pytest.MonkeyPatch) -> None:
    """The client's queue, and what no client has taken, come behind the outputs of the next owner."""
    patch.setattr(AtMostOnce, "lost", lambda self: self._ledger.reset())


# 4: a group whose positions have expired.


@MUTATIONS.add("positions lost", "duplicate", faults=[Fault.EXPIRED])
def group_that_began_before_starts_over(patch: pytest.MonkeyPatch) -> None:
    def nothing_begun(self: Beginning) -> dict[Any, int]:
        self._begun = self._begun or {}
        return self._begun

    patch.setattr(Beginning, "read", nothing_begun)


# 5: partitions that grow.


@MUTATIONS.add("lost", faults=[Fault.GROWN])
def latest_skips_what_is_in_a_new_partition(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Beginning, "_was_added", lambda self, tp: False)


# 6: choices of topics that are not inputs any more.


def _follow_all_choices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Choices, "still_valid", lambda self, committed, topic_ids: (self.after(committed), []))


@MUTATIONS.add("stuck", kinds=[Kind.ALTS], faults=[Fault.DEPLOYED, Fault.DIES_AFTER, Fault.LOST])
def choices_of_a_missing_input_followed(patch: pytest.MonkeyPatch) -> None:
    _follow_all_choices(patch)
    assign = Tasks.assign

    def assign_with_queues_of_any_topic(self: Tasks, *arguments: Any) -> list[str]:
        reasons = assign(self, *arguments)
        for task in self.by_partition.values():
            task.queues = defaultdict(Queue, task.queues)
        return reasons

    patch.setattr(Tasks, "assign", assign_with_queues_of_any_topic)


@MUTATIONS.add("stuck", "choices", kinds=[Kind.ALTS], faults=[Fault.REMADE, Fault.DIES_AFTER, Fault.LOST])
def choices_of_a_topic_that_was_created_again_followed(patch: pytest.MonkeyPatch) -> None:
    _follow_all_choices(patch)


# 7: outputs that are refused on every attempt.


@MUTATIONS.add("stuck", faults=[Fault.DIES])
def refused_output_not_searched_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Search, "failed", lambda self, steps: False)


# 8: inputs of a join with different numbers of partitions.


@MUTATIONS.add("stuck", kinds=[Kind.JOIN], faults=[Fault.GROWN])
def growth_of_one_input_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Growth, "check", lambda self, partitions: None)


# 12: members that wake up.


@MUTATIONS.add("replaced by an older process", "stuck", faults=[Fault.REPLACED])
def member_that_wakes_up_takes_its_membership_back(patch: pytest.MonkeyPatch) -> None:
    def take_back(self: MemoryConsumer) -> bool:
        self.rejoin()
        return True

    patch.setattr(MemoryConsumer, "_join_again", take_back)


# Mutations without a bound: only invariants that bound losses and copies detect them.


@MUTATIONS.add("lost", guarantee=AMO)
def nothing_written_after_the_second_assignment(patch: pytest.MonkeyPatch) -> None:
    assigned, write = Worker._on_assigned, AtMostOnce.write

    def count(self: Worker, partitions: set[TopicPartition]) -> None:
        vars(self.committer)["assignments"] = vars(self.committer).get("assignments", 0) + 1
        assigned(self, partitions)

    def write_at_first(self: AtMostOnce, plan: Plan) -> None:
        if vars(self).get("assignments", 0) > 1:
            plan.outputs.clear()
        write(self, plan)

    patch.setattr(Worker, "_on_assigned", count)
    patch.setattr(AtMostOnce, "write", write_at_first)


@MUTATIONS.add("duplicate", guarantee=ALO)
def any_number_of_copies_at_least_once(patch: pytest.MonkeyPatch) -> None:
    """Writes three copies of each output after the first error."""
    recover, write = AtLeastOnce.recover, AtLeastOnce.write

    def recover_and_remember(self: AtLeastOnce, error: ClientError) -> bool:
        vars(self)["thrice"] = True
        return recover(self, error)

    def write_copies(self: AtLeastOnce, plan: Plan) -> None:
        if vars(self).get("thrice"):
            plan.outputs *= 3
        write(self, plan)

    patch.setattr(AtLeastOnce, "recover", recover_and_remember)
    patch.setattr(AtLeastOnce, "write", write_copies)


@MUTATIONS.add("duplicate", guarantee=EO, kinds=[Kind.SINK])
def any_number_of_effects_exactly_once(patch: pytest.MonkeyPatch) -> None:
    """Gives up every third transaction without a reason."""
    commit = Committer.commit

    def fail_every_third(self: Committer) -> None:
        vars(self)["commits"] = vars(self).get("commits", 0) + 1
        if vars(self)["commits"] % 3 == 0 and self.busy:
            raise Retriable("without a reason")
        commit(self)

    patch.setattr(Committer, "commit", fail_every_third)
