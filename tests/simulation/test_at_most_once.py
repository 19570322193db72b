"""At most once in the simulation: no fault duplicates a record, or lets an output be written before its offset."""

from __future__ import annotations

import pytest

from tests.simulation.plan import AMO, Kind, Plan
from tests.simulation.suite import ATTEMPTS, crash_everywhere, guaranteed, run, run_all, seeds_of


@seeds_of("guarantee")
def test_at_most_once_random_faults_doubles_nothing(seeds: range) -> None:
    run_all(guaranteed(seeds, AMO))


@pytest.mark.parametrize("kind", Kind)
def test_at_most_once_fault_at_each_point_by_turns_doubles_nothing(kind: Kind) -> None:
    assert crash_everywhere(kind, AMO, by_turns=len(Kind)) > 20


@pytest.mark.long
@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("kind", Kind)
def test_at_most_once_fault_at_every_point_doubles_nothing(kind: Kind, attempt: int) -> None:
    assert crash_everywhere(kind, AMO, attempt) > 50


@pytest.mark.parametrize(
    "plan",
    [
        "map:at_most_once:597:lost@7:stalled@4:dies@17:expired@10",
        "fork:at_most_once:2277:dies_after@8:dies@14:late@1:expired@4",
        "alts:at_most_once:2839:stalled@2:expired@16",
        "map:at_most_once:4690:dies@11:expired@18",  # with auto_offset_reset=latest
    ],
)
def test_at_most_once_group_that_dies_as_it_begins_is_recorded_before_offsets_expire(plan: str) -> None:
    """Offsets were committed and steps were run before the group was recorded: it began again without a word."""
    run(Plan.parse(plan))


def test_at_most_once_join_gives_back_a_step_in_all_of_its_inputs_or_in_none() -> None:
    """A worker was frozen while a step waited; another had advanced one input past a marker: the records parted."""
    run(Plan.parse("join:at_most_once:1/1~:frozen@35"))


@pytest.mark.parametrize(
    "plan",
    [
        "fork:at_most_once:5779:frozen@37:joined@32",  # dead letters were lost, and later outputs were not counted
        "fork:at_most_once:100520:late@35:frozen@3:joined@5:dies_after@16",  # refused outputs were lost
        "generator:at_most_once:101944:joined@36:frozen@30:replaced@38",
    ],
)
def test_at_most_once_outputs_lost_with_their_partitions_are_not_counted(plan: str) -> None:
    run(Plan.parse(plan))
