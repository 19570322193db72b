"""Mutations of jobs over channels: each removes one thing that keeps an input until all its effects are stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from kstreams_py.errors import RowRefused, SinkAway
from kstreams_py.graph.source import Claim
from kstreams_py.jobs import job, task
from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.copies import Copies
from kstreams_py.jobs.identity import Entropy, Origin, Pattern, SegmentId, new_patterns
from kstreams_py.jobs.inputs import SourceInputs
from kstreams_py.jobs.job import Job
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.task import Made, Readers, Storing
from kstreams_py.jobs.topic_inputs import PartitionProgress
from kstreams_py.sources.suspects import DEATHS_MAX, Choice
from kstreams_py.testing import memory_source
from kstreams_py.testing.memory_source import MemoryConnection

Patch = Callable[[pytest.MonkeyPatch], None]

MUTATIONS: dict[str, Patch] = {}


def mutation(apply: Patch) -> Patch:
    """Adds a mutation by its name."""
    MUTATIONS[apply.__name__] = apply
    return apply


@mutation
def opening_that_is_added_instead_of_set(patch: pytest.MonkeyPatch) -> None:
    open_new = Acker.open

    def add(self: Acker, segments: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        complete = list[SegmentId]()
        for segment, pattern in zip(segments, patterns, strict=True):
            complete += (Acker.ack if self.left(segment) else open_new)(self, [segment], [pattern])
        return complete

    patch.setattr(Acker, "open", add)


@mutation
def one_pattern_for_all_copies(patch: pytest.MonkeyPatch) -> None:
    send = Readers.send

    def send_with_one(self: Readers, channel: Any, made: Segments) -> list[int]:
        drawn: list[list[Pattern]] = []

        def draw_once(entropy: Entropy, count: int) -> list[Pattern]:
            drawn.append(drawn[0] if drawn else new_patterns(entropy, count))
            return [*drawn[0]]

        with pytest.MonkeyPatch.context() as once:
            once.setattr(task, "new_patterns", draw_once)
            return send(self, channel, made)

    patch.setattr(Readers, "send", send_with_one)


@mutation
def complete_without_an_opening(patch: pytest.MonkeyPatch) -> None:
    ack = Acker.ack

    def ack_each(self: Acker, segments: Sequence[SegmentId], patterns: Iterable[int]) -> list[SegmentId]:
        complete = list[SegmentId]()
        for segment, pattern in zip(segments, patterns, strict=True):
            complete += ack(self, [segment], [pattern])
            if self._early.get(segment) == 0:
                complete.append(segment)
        return complete

    patch.setattr(Acker, "ack", ack_each)


@mutation
def id_of_an_input_used_again(patch: pytest.MonkeyPatch) -> None:
    read, claims = MemoryConnection.read, list[Claim]()

    def read_and_remember(self: MemoryConnection, limit: int, *, alone: bool) -> list[Claim]:
        claims[:] = read(self, limit, alone=alone)
        return [*claims]

    patch.setattr(MemoryConnection, "read", read_and_remember)
    patch.setattr(job, "new_ids", lambda *_: [SegmentId(repr(claim.key).encode()) for claim in claims])


@mutation
def acknowledged_before_it_is_stored(patch: pytest.MonkeyPatch) -> None:
    store = Storing.store

    def store_later(self: Storing, segments: Segments, results: Sequence[Any]) -> Made:
        before = vars(self).pop("before", None)
        if before is not None:
            store(self, *before)
        vars(self)["before"] = segments, results
        return Made(len(segments), segments.patterns, ())

    patch.setattr(Storing, "store", store_later)


@mutation
def acknowledged_when_it_is_read(patch: pytest.MonkeyPatch) -> None:
    read = SourceInputs.read

    def read_and_acknowledge(self: SourceInputs, now: float, paused: int = 0, **others: bool) -> Segments:
        segments = read(self, now, paused, **others)
        self.connection.ack([claim for claim, _ in self.pending._inputs.values()])
        return segments

    patch.setattr(SourceInputs, "read", read_and_acknowledge)


@mutation
def rows_of_a_target_that_is_away_counted_as_stored(patch: pytest.MonkeyPatch) -> None:
    write = Storing._write

    def write_or_drop(self: Storing, rows: Any) -> None:
        with suppress(SinkAway):
            write(self, rows)

    patch.setattr(Storing, "_write", write_or_drop)


@mutation
def failed_input_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SourceInputs, "fail", lambda *_: None)


@mutation
def nothing_read_again_after_a_death(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryConnection, "_to_read_again", lambda _: {})


@mutation
def one_value_for_all_readers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task, "copy_values", lambda values: Copies([*values], {}))
    patch.setattr(task, "copy_arguments", lambda _, arguments: arguments)


@mutation
def gather_that_never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "_settle", lambda *_: None)


@mutation
def origin_of_the_attempt(patch: pytest.MonkeyPatch) -> None:
    numbers = count()
    patch.setattr(task, "origins_of", lambda given, _: (Origin(next(numbers).to_bytes(16)) for _ in given))


@mutation
def refused_row_counted_as_stored(patch: pytest.MonkeyPatch) -> None:
    store = Storing.store

    def store_all(self: Storing, segments: Segments, results: Sequence[Any]) -> Made:
        made = store(self, segments, results)
        return made._replace(failed=[each for each in made.failed if not isinstance(each[1], RowRefused)])

    patch.setattr(Storing, "store", store_all)


@mutation
def inputs_under_way_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "_under_way", lambda _: ())


@mutation
def gather_that_gives_up_while_a_branch_is_under_way(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Job, touched: Collection[SegmentId]) -> None:
        for segment in touched:
            for gather in self._gathers:
                if held := gather.patterns(segment):
                    gather.give_up(segment)
                    self._complete(self._acker.ack([segment], [held]))

    patch.setattr(Job, "_settle", settle)


@mutation
def suspects_beside_others(patch: pytest.MonkeyPatch) -> None:
    def choose(deaths: Mapping[Any, int], limit: int, **_: bool) -> Choice[Any]:
        refused = [key for key, count in deaths.items() if count >= DEATHS_MAX]
        read = [key for key in deaths if key not in refused][:limit]
        return Choice(read, refused, are_suspects=False, left=False)

    patch.setattr(memory_source, "choose", choose)


@mutation
def given_back_without_counting_the_failure(patch: pytest.MonkeyPatch) -> None:
    def return_expired(self: SourceInputs) -> None:
        for failed, claims in self._given_up.items():
            if claims:
                self.connection.give_back(claims, failed=False)
                self._given_up[failed] = []

    patch.setattr(SourceInputs, "return_expired", return_expired)


@mutation
def failure_of_the_job_not_counted(patch: pytest.MonkeyPatch) -> None:
    close = SourceInputs.close
    patch.setattr(SourceInputs, "close", lambda self, **_: close(self, failed=False))


@mutation
def death_of_a_record_not_noted(patch: pytest.MonkeyPatch) -> None:
    note_at = PartitionProgress.note_at
    patch.setattr(PartitionProgress, "note_at", lambda self, position, **_: note_at(self, position, lives=True))


@mutation
def clean_end_noted_as_the_death_of_a_record(patch: pytest.MonkeyPatch) -> None:
    note_at = PartitionProgress.note_at
    patch.setattr(PartitionProgress, "note_at", lambda self, position, **_: note_at(self, position, lives=False))
