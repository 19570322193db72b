"""Rules of a job over channels, left out in turn (mutations_of_jobs.py): a test of jobs must fail."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from kstreams_py.testing.request_faults import Crash
from tests.simulation import test_job_topics, test_jobs
from tests.simulation.mutations_of_jobs import MUTATIONS
from tests.unit import test_acking

Test = Callable[[], None]


def stores(graph: str) -> Test:
    return partial(test_jobs.test_job_stores_what_its_functions_return_and_acknowledges_every_input, graph)


def under_faults(graph: str) -> Test:
    return partial(test_jobs.test_random_faults_leave_each_effect_once_and_nothing_lost, graph, range(60))


def ends_few_workers() -> None:
    try:
        test_job_topics.test_records_that_end_workers_become_dead_letters_and_others_lose_nothing()
    except Crash as death:
        raise AssertionError("a record ends more workers") from death


SEEN_BY: dict[str, Test] = {
    "opening_that_is_added_instead_of_set": under_faults("chain"),
    "one_pattern_for_all_copies": stores("diamond"),
    "complete_without_an_opening": under_faults("chain"),
    "id_of_an_input_used_again": under_faults("gather"),
    "acknowledged_before_it_is_stored": stores("chain"),
    "acknowledged_when_it_is_read": stores("chain"),
    "rows_of_a_target_that_is_away_counted_as_stored": partial(
        test_jobs.test_request_without_an_answer_at_each_point_is_made_again, "chain"
    ),
    "failed_input_acknowledged": stores("refusals"),
    "nothing_read_again_after_a_death": partial(
        test_jobs.test_death_at_each_point_leaves_each_effect_once_and_nothing_lost, "chain"
    ),
    "one_value_for_all_readers": partial(
        test_jobs.test_value_that_a_function_changes_is_unchanged_for_other_readers_and_attempts, 1
    ),
    "gather_that_never_gives_up": stores("gather"),
    "origin_of_the_attempt": partial(test_jobs.test_worker_that_wakes_up_past_its_lease_changes_nothing, "chain"),
    "refused_row_counted_as_stored": stores("refusals"),
    "inputs_under_way_expire": under_faults("chain"),
    "gather_that_gives_up_while_a_branch_is_under_way": under_faults("gather"),
    "suspects_beside_others": partial(test_jobs.test_input_that_kills_its_workers_is_refused_and_no_other, 7),
    "given_back_without_counting_the_failure": under_faults("chain"),
    "failure_of_the_job_not_counted": partial(
        test_jobs.test_error_that_stops_the_job_gives_the_inputs_back, MemoryError("large"), 1
    ),
    "death_of_a_record_not_noted": ends_few_workers,
    "clean_end_noted_as_the_death_of_a_record": (
        test_job_topics.test_clean_ends_rebalances_and_lost_memberships_count_no_death
    ),
}
"""The test that detects each mutation."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_of_a_job_is_detected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    with pytest.raises(AssertionError):
        SEEN_BY[name]()


@pytest.mark.parametrize("name", ["opening_that_is_added_instead_of_set", "complete_without_an_opening"])
def test_mutation_of_the_acker_is_detected_by_its_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTATIONS[name](monkeypatch)
    with pytest.raises(AssertionError, match="acknowledged before its effects"):
        test_acking.test_model_never_acknowledges_before_all_effects_and_always_without_faults(1, 2)
