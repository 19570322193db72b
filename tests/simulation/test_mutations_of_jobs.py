"""Rules of a job over channels, left out in turn: a test of jobs must fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from kstreams_py.errors import SinkAway
from kstreams_py.graph.source import Claim
from kstreams_py.jobs import inputs, runners, task
from kstreams_py.jobs.identity import Given, identify
from kstreams_py.jobs.inputs import SourceInputs
from kstreams_py.jobs.job import Job
from kstreams_py.jobs.segments import Segments
from kstreams_py.jobs.task import Storing
from kstreams_py.testing.memory_source import MemoryConnection
from tests.simulation import test_jobs

Patch = Callable[[pytest.MonkeyPatch], None]


def acknowledge_at_the_read(patch: pytest.MonkeyPatch) -> None:
    read: Callable[[SourceInputs, float], Segments] = SourceInputs.read

    def read_and_acknowledge(self: SourceInputs, now: float) -> Segments:
        segments = read(self, now)
        self.connection.ack([claim for claim, _ in self.pending._inputs.values()])
        return segments

    patch.setattr(SourceInputs, "read", read_and_acknowledge)


def acknowledge_the_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SourceInputs, "fail", lambda *_: None)


def name_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """The origin of a row is another one each time that its input is read."""

    def name(source: bytes, keys: Iterable[int | bytes]) -> list[Given]:
        return identify(source + os.urandom(8), keys)

    patch.setattr(inputs, "identify", name)


def take_rows_of_a_target_that_is_away_for_stored(patch: pytest.MonkeyPatch) -> None:
    write: Callable[[Storing, Any], None] = Storing._write

    def write_or_drop(self: Storing, rows: Any) -> None:
        with suppress(SinkAway):
            write(self, rows)

    patch.setattr(Storing, "_write", write_or_drop)


def forget_what_waits_at_a_gather(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Job, "_settle", lambda *_: None)


def read_nothing_again_after_a_death(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryConnection, "_read_again", lambda *_, **__: list[Claim]())


def hand_over_one_value_to_all_readers(patch: pytest.MonkeyPatch) -> None:
    for module in (runners, task):
        patch.setattr(module, "copy_values", list)


DEATHS = partial(test_jobs.test_death_at_each_request_leaves_each_effect_once_and_nothing_lost, "chain")

MUTATIONS: dict[str, tuple[Patch, Callable[[], None]]] = {
    each.__name__: (each, test)
    for each, test in (
        (acknowledge_at_the_read, DEATHS),
        (name_the_attempt, DEATHS),
        (read_nothing_again_after_a_death, DEATHS),
        (acknowledge_the_failed, test_jobs.test_input_whose_function_raises_is_refused_and_the_others_go_on),
        (
            take_rows_of_a_target_that_is_away_for_stored,
            test_jobs.test_inputs_under_way_are_bounded_while_the_target_is_away,
        ),
        (
            forget_what_waits_at_a_gather,
            partial(test_jobs.test_job_stores_what_its_functions_return_and_acknowledges_every_input, "gather"),
        ),
        (
            hand_over_one_value_to_all_readers,
            partial(test_jobs.test_value_that_a_function_changes_is_unchanged_for_other_readers_and_attempts, 1),
        ),
    )
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_of_a_job_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, test = MUTATIONS[name]
    patch(monkeypatch)
    with pytest.raises(AssertionError):
        test()
