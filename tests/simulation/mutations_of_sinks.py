"""Mutations of what keeps the rows of a target: each removes one thing by which a row is stored once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from kstreams_py.graph.sink import Evidence, Row
from kstreams_py.processing.commits.committer import Committer
from kstreams_py.processing.commits.guarantees import AtLeastOnce, ExactlyOnce
from kstreams_py.processing.commits.storing import StoredOffsets
from kstreams_py.records import Positions, TopicPartition
from kstreams_py.steps import rows
from kstreams_py.steps.target import Target
from kstreams_py.testing import MemoryTarget
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, Fault, Kind

MUTATIONS = Mutations()

KINDS = [kind for kind in Kind if kind is not Kind.FORK]
HASHES: dict[str, Any] = {"kinds": KINDS, "stores": Evidence.HASH}
OFFSETS: dict[str, Any] = {"kinds": KINDS, "stores": Evidence.OFFSETS}


@MUTATIONS.add("lost", "torn transaction", **HASHES)
def offsets_before_the_rows(patch: pytest.MonkeyPatch) -> None:
    commit_before_the_rows(patch, ExactlyOnce)


@MUTATIONS.add("lost", "position too early", guarantee=ALO, **HASHES)
def offsets_before_the_rows_at_least_once(patch: pytest.MonkeyPatch) -> None:
    commit_before_the_rows(patch, AtLeastOnce)


def commit_before_the_rows(patch: pytest.MonkeyPatch, guarantee: type[ExactlyOnce | AtLeastOnce]) -> None:
    commit: Callable[[Any], None] = guarantee._commit

    def commit_first(self: ExactlyOnce | AtLeastOnce) -> None:
        with pytest.MonkeyPatch.context() as without:
            without.setattr(Committer, "_store_rows", lambda *_: None)
            commit(self)
        self._store_rows({}, {})

    patch.setattr(guarantee, "_commit", commit_first)


@MUTATIONS.add("lost", kinds=[Kind.SINK, Kind.GENERATOR], stores=Evidence.HASH)
def one_hash_for_all_rows_of_a_step(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "row_hash", lambda digest, number: digest)


@MUTATIONS.add("duplicate", **HASHES)
def rows_with_a_hash_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    attempts = iter(range(10**9))
    patch.setattr(rows, "row_hash", lambda digest, number: digest + str((number, next(attempts))).encode())


@MUTATIONS.add("lost", "torn transaction", **HASHES)
def rows_dropped_while_the_target_is_away(patch: pytest.MonkeyPatch) -> None:
    store = Target.store

    def store_once(self: Target, positions: Positions, expected: Positions) -> None:
        try:
            store(self, positions, expected)
        finally:
            self.forget()

    patch.setattr(Target, "store", store_once)


@MUTATIONS.add("duplicate", "torn transaction", **OFFSETS)
def offsets_not_compared(patch: pytest.MonkeyPatch) -> None:
    def write(self: MemoryTarget, consumer: str, rows: list[Row], positions: Positions, expected: Positions) -> int:
        stored = self.positions.get(consumer, {})
        return write_if(self, consumer, rows, positions, {tp: stored[tp] for tp in positions if tp in stored})

    write_if = MemoryTarget.write
    patch.setattr(MemoryTarget, "write", write)


@MUTATIONS.add("duplicate", "torn transaction", **OFFSETS)
def offsets_read_from_the_group_alone(patch: pytest.MonkeyPatch) -> None:
    """A worker that takes the target's offsets as they are when it writes, and starts at those of the group."""

    def resume(self: StoredOffsets, positions: Positions, partitions: Collection[TopicPartition]) -> Positions:
        assert self.target is not None
        self._stored = self.target.positions(partitions)
        return positions

    patch.setattr(StoredOffsets, "resume", resume)


@MUTATIONS.add("lost", **OFFSETS, faults=[Fault.REMADE])
def offsets_of_a_topic_by_its_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Target, "_named", lambda self, tp: tp)


@MUTATIONS.add("duplicate", kinds=KINDS, stores=Evidence.OFFSETS)
def dead_letters_written_again_with_each_search(patch: pytest.MonkeyPatch) -> None:
    """Dead letters that were committed are not remembered while the rows beside them are not stored."""
    commit = StoredOffsets._commit

    def commit_all(self: StoredOffsets) -> None:
        self._delivered.clear()
        commit(self)

    patch.setattr(StoredOffsets, "_commit", commit_all)
