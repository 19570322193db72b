"""Mutations of retries: of what keeps a step that is run again in its place, once, and not lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kstreams_py.graph.retry import Retry
from kstreams_py.processing.commits.guarantees import AtMostOnce
from kstreams_py.processing.commits.owed import Owed
from kstreams_py.processing.runners.runner import Runner
from kstreams_py.processing.tasks.intake import Taken
from kstreams_py.processing.tasks.tasks import Tasks
from tests.simulation.mutation import Mutations
from tests.simulation.plan import ALO, AMO, Fault

MUTATIONS = Mutations()


def _pass_the_waiting_step(patch: pytest.MonkeyPatch) -> None:
    """As if the step that waits were done."""
    hold_back = Tasks.hold_back

    def hold_and_pass(self: Tasks, failed: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        self.ledger.advance(Taken(failed).positions())
        return hold_back(self, failed, left)

    patch.setattr(Tasks, "hold_back", hold_and_pass)


@MUTATIONS.add("torn transaction", "lost", away=True)
def commit_past_the_waiting_step(patch: pytest.MonkeyPatch) -> None:
    _pass_the_waiting_step(patch)


@MUTATIONS.add("position too early", "lost", guarantee=ALO, away=True)
def commit_past_the_waiting_step_at_least_once(patch: pytest.MonkeyPatch) -> None:
    _pass_the_waiting_step(patch)


@MUTATIONS.add("order broken", "torn transaction", away=True)
def steps_behind_the_waiting_one_are_run(patch: pytest.MonkeyPatch) -> None:
    """The step that failed waits, and those that were taken with it do not."""
    hold_back = Tasks.hold_back

    def hold_only_the_failed(self: Tasks, failed: Sequence[Any], left: Sequence[Any]) -> list[Any]:
        hold_back(self, failed, left)
        self.held = {number: [] for number in self.held}
        return list(left[len(failed) :])

    patch.setattr(Tasks, "hold_back", hold_only_the_failed)


@MUTATIONS.add("torn transaction", "lost", away=True)
def markers_behind_the_waiting_step_are_passed(patch: pytest.MonkeyPatch) -> None:
    advance = Tasks.advance

    def advance_all(self: Tasks, ends: Any) -> None:
        held, self.held = self.held, {}
        advance(self, ends)
        self.held = held

    patch.setattr(Tasks, "advance", advance_all)


@MUTATIONS.add("lost", guarantee=AMO, away=True)
def at_most_once_gives_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AtMostOnce, "give_back", lambda self, partitions=None: None)


@MUTATIONS.add("lost", guarantee=AMO, away=True, struck=[(Fault.DOUBLED, "commit")])
def at_most_once_gives_back_though_a_commit_may_come_late(patch: pytest.MonkeyPatch) -> None:
    def give_back(self: Owed) -> None:
        if self._tasks.held:
            self._committer.give_back(self._tasks.held.keys())

    patch.setattr(Owed, "give_held_back", give_back)


@MUTATIONS.add("hash", away=True)
def each_attempt_has_its_own_hash(patch: pytest.MonkeyPatch) -> None:
    run, attempts = Runner.run, iter(range(10**9))

    def run_with_another_prefix(self: Runner, intake: Taken) -> Any:
        if intake.repeated:
            for task in self._tasks.by_partition.values():
                number = next(attempts).to_bytes(8, "big")
                task.prefixes = {topic: (number + prefix)[:8] for topic, prefix in task.prefixes.items()}
        return run(self, intake)

    patch.setattr(Runner, "run", run_with_another_prefix)


@MUTATIONS.add("foreign", "lost", "torn transaction", "duplicate", away=True)
def dead_letter_at_the_first_attempt(patch: pytest.MonkeyPatch) -> None:
    """As before there were retries: a service that is away makes dead letters."""
    patch.setattr(Retry, "is_last", lambda self, attempts: True)
