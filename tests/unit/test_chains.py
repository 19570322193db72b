"""Which calls may start: as many at once as allowed, and those of a chain one after the other."""

from __future__ import annotations

from collections.abc import Hashable

from kstreams_py.steps.calls import Chains


def chains(limit: int, *calls: tuple[int, Hashable]) -> Chains:
    made = Chains(limit)
    for ticket, chain in calls:
        made.add(ticket, chain)
    return made


def started(made: Chains) -> list[int]:
    """Starts all that may start."""
    return list(iter(made.start, None))


def test_calls_start_in_order_up_to_the_limit() -> None:
    made = chains(2, (1, "a"), (2, "b"), (3, "c"))
    assert started(made) == [1, 2]
    made.end(2)
    assert started(made) == [3]


def test_call_of_a_chain_starts_after_the_one_before_it_has_ended() -> None:
    made = chains(9, (1, "a"), (2, "a"), (3, "b"), (4, "a"))
    assert started(made) == [1, 3]
    made.end(1)
    assert started(made) == [2]
    made.end(3)
    assert started(made) == []
    made.end(2)
    assert started(made) == [4]


def test_chain_that_has_ended_begins_again() -> None:
    made = chains(1, (1, "a"))
    assert started(made) == [1]
    made.end(1)
    made.add(2, "a")
    assert started(made) == [2]


def test_call_that_fails_drops_those_behind_it_in_its_chain_alone() -> None:
    made = chains(9, (1, "a"), (2, "a"), (3, "b"), (4, "b"), (5, "a"))
    assert started(made) == [1, 3]
    assert made.fail(1) == [2, 5]
    made.add(6, "a")
    assert started(made) == [6]
    made.end(3)
    assert started(made) == [4]


def test_drop_leaves_what_runs_and_its_chain_waits_for_its_end() -> None:
    made = chains(1, (1, "a"), (2, "a"), (3, "b"), (4, "b"))
    assert started(made) == [1]
    assert sorted(made.drop()) == [2, 3, 4]
    made.add(5, "a")
    assert started(made) == []
    made.end(1)
    assert started(made) == [5]
