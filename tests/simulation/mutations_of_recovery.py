"""Mutations that each remove one thing that the recovery from a journal does, or the order of its records.

The grid has a cell that detects each of them (test_grid.py); those that random runs detect are in MUTATIONS.
"""

from __future__ import annotations

import pytest

from kstreams_py.processing.commits.journaled import Journaled
from kstreams_py.processing.intakes import Intakes
from kstreams_py.processing.journal import deliveries, recovery
from kstreams_py.processing.journal.deliveries import DeliveryJournal
from kstreams_py.processing.journal.recovery import OutputFound
from kstreams_py.processing.tasks.choices import Choices
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.worker import Worker
from kstreams_py.records import Positions
from tests.simulation.mutation import Mutations
from tests.simulation.plan import Kind

MUTATIONS = Mutations()

WRITING = [kind for kind in Kind if kind.outputs]


@MUTATIONS.add("duplicate", batch=2, elsewhere=True, kinds=WRITING)
def no_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveryJournal, "recover", lambda self, positions: self.forget() or (positions, {}))


def no_snapshot_in_force(patch: pytest.MonkeyPatch) -> None:
    """A retry takes another snapshot."""
    recover = DeliveryJournal.recover

    def recover_and_forget(self: DeliveryJournal, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        recovered = recover(self, positions)
        self.snapshots.clear()
        return recovered

    patch.setattr(DeliveryJournal, "recover", recover_and_forget)


@MUTATIONS.add("choices", batch=2, kinds=[Kind.ALTS])
def no_pin(patch: pytest.MonkeyPatch) -> None:
    recover = DeliveryJournal.recover

    def recover_without_choices(self: DeliveryJournal, positions: Positions) -> tuple[Positions, dict[int, Choices]]:
        return recover(self, positions)[0], {}

    patch.setattr(DeliveryJournal, "recover", recover_without_choices)


@MUTATIONS.add("choices", batch=2, kinds=[Kind.ALTS], seeds=800)
def intake_kept_that_another_has_delivered(patch: pytest.MonkeyPatch) -> None:
    """As at most once."""

    def keep(self: Intakes, positions: Positions) -> None:
        taken = self._taken
        if taken is None or not taken.positions().items() <= positions.items():
            self._taken = None
        else:
            taken.saved = True

    patch.setattr(Intakes, "keep_saved", keep)


def fences_after_the_recovery(patch: pytest.MonkeyPatch) -> None:
    """The journal and the outputs are read before the process that may still commit is fenced."""
    rewind = Worker.rewind

    def recover_then_fence(self: Worker) -> None:
        if not self.committer.session.has_producer:
            assert self._journal is not None
            self._journal.recover(self._committed.read(self._assigned or set()))
            self.committer.start()
        rewind(self)

    patch.setattr(
        Worker,
        "start",
        lambda self: self.consumer.subscribe(
            [t.name for t in self.processor.inputs], self._on_assigned, self._on_revoked, self._on_lost
        ),
    )
    patch.setattr(Worker, "rewind", recover_then_fence)


@MUTATIONS.add("undecidable", batch=2)
def attempt_after_the_commit(patch: pytest.MonkeyPatch) -> None:
    """The outputs are committed before the attempt is durable."""

    commit_in_order = Journaled._commit

    def commit(self: Journaled) -> None:
        writing = {part.partition for part in self._parts if part.outputs}
        if not writing:
            return commit_in_order(self)
        self._send()
        self._call(lambda producer: producer.flush())
        positions = self._uncommitted(writing)
        self._call(lambda producer: producer.send_offsets(positions, self._consumer))
        self._call(lambda producer: producer.commit_transaction())
        self._ledger.commit(positions)
        self._record_attempts({part.partition: self._describe(part) for part in self._parts}, writing)
        self._deliveries.deliver(writing)
        return None

    patch.setattr(Journaled, "_commit", commit)


def reads_nothing_back(patch: pytest.MonkeyPatch) -> None:
    """An attempt counts as committed."""
    patch.setattr(recovery, "_is_committed", lambda *_: True)


def takes_any_record_for_the_output(patch: pytest.MonkeyPatch) -> None:
    """The hash at the place of an output is not compared."""
    patch.setattr(deliveries, "_is_of", lambda *_: True)


@MUTATIONS.add("undecidable", batch=2)
def looks_for_no_output(patch: pytest.MonkeyPatch) -> None:
    """An output counts as written, whatever is at its place."""
    patch.setattr(DeliveryJournal, "_look", lambda *_: OutputFound.SAME)


@MUTATIONS.add("choices", batch=2, kinds=[Kind.ALTS])
def records_choices_only_with_a_new_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A retry whose snapshot is in force does not record its choice."""
    unrecorded, in_force = Journaled._unrecorded, set[int]()
    prepare = Journaled.prepare

    def prepare_noting(self: Journaled, intake: Taken) -> None:
        in_force.clear()
        in_force.update(self._deliveries.snapshots)
        prepare(self, intake)

    patch.setattr(Journaled, "prepare", prepare_noting)
    patch.setattr(
        Journaled,
        "_unrecorded",
        lambda self, choices, numbers: {
            number: each for number, each in unrecorded(self, choices, numbers).items() if number not in in_force
        },
    )


@MUTATIONS.add("choices", batch=2, kinds=[Kind.ALTS])
def no_choice_before_the_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journaled, "_unrecorded", lambda *_: {})


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """The transaction of a worker that had the task before is waited for."""
    patch.setattr(DeliveryJournal, "_fence", lambda *_: None)


@MUTATIONS.add("undecidable", batch=2, elsewhere=True, kinds=WRITING)
def no_record_beside_outputs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journaled, "_confirm", lambda *_: None)


@MUTATIONS.add("undecidable", batch=2, elsewhere=True, kinds=WRITING)
def offsets_decide_between_clusters(patch: pytest.MonkeyPatch) -> None:
    """The committed offsets, which follow a commit on another cluster, decide whether that took place."""
    patch.setattr(DeliveryJournal, "_is_confirmed", lambda *_, **__: None)


@MUTATIONS.add("duplicate", batch=2, elsewhere=True, kinds=WRITING)
def goes_on_at_the_committed_offsets(patch: pytest.MonkeyPatch) -> None:
    """What was delivered to another cluster is read again."""
    patch.setattr(recovery, "_same", lambda *_: {})
