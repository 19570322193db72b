"""testing/verdicts.py: counts of records and their order, by any identity of a record."""

from __future__ import annotations

from collections import Counter
from operator import itemgetter

import pytest

from kstreams_py.graph.anomalies import TOLERATED, Kind
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.testing.verdicts import Comparison, compare, overtaken, overtaken_in_every_copy


def test_comparison_counts_copies_that_are_lost_duplicate_and_foreign() -> None:
    comparison = compare(Counter("abbbxx"), Counter("aabc"))
    assert comparison == Comparison(Counter("ac"), Counter("bb"), Counter("xx"))
    assert comparison.totals == {Kind.LOST: 2, Kind.DUPLICATE: 2, Kind.FOREIGN: 2}
    assert [(kind, sorted(items)) for kind, items in comparison.by_kind()] == [
        (Kind.LOST, ["a", "c"]),
        (Kind.DUPLICATE, ["b"]),
        (Kind.FOREIGN, ["x"]),
    ]


def test_comparison_of_equal_multisets_is_empty() -> None:
    comparison = compare(Counter("ab"), Counter("ba"))
    assert (comparison.totals, list(comparison.by_kind())) == ({}, [])


@pytest.mark.parametrize(("found", "kinds"), [(0, {Kind.LOST: 1}), (1, {}), (3, {}), (4, {Kind.DUPLICATE: 1})])
def test_comparison_accepts_counts_between_least_and_most(found: int, kinds: dict[Kind, int]) -> None:
    assert compare({"a": found}, {"a": 1}, {"a": 3}).totals == kinds


def test_comparison_without_an_upper_limit_finds_no_duplicate() -> None:
    assert compare({"a": 1_000, "b": 1}, {"a": 1}, {"a": float("inf"), "b": 0}).totals == {Kind.FOREIGN: 1}


Found = list[tuple[str, int]]


@pytest.mark.parametrize(
    ("found", "once", "copies"),
    [
        ([("a", 1), ("a", 2), ("a", 2), ("a", 3)], [], []),
        ([("a", 2), ("b", 1), ("a", 3), ("b", 2)], [], []),
        ([("a", 1), ("a", 3), ("a", 2)], [(("a", 3), ("a", 2))], [(("a", 3), ("a", 2))]),
        ([("a", 3), ("a", 1), ("a", 2)], [(("a", 3), ("a", 1)), (("a", 3), ("a", 2))], [(("a", 3), ("a", 2))]),
        ([("a", 1), ("a", 2), ("a", 1)], [(("a", 2), ("a", 1))], []),
        ([("a", 2), ("a", 1), ("a", 2)], [(("a", 2), ("a", 1))], []),
        ([("b", 2), ("a", 2), ("a", 1), ("b", 1)],
         [(("a", 2), ("a", 1)), (("b", 2), ("b", 1))], [(("b", 2), ("b", 1)), (("a", 2), ("a", 1))]),
    ],
)  # fmt: skip
def test_overtaken_items_are_those_after_a_higher_rank_of_their_line(
    found: Found, once: list[tuple[object, object]], copies: list[tuple[object, object]]
) -> None:
    """Where items may be repeated, one copy in order is enough."""
    line, rank = itemgetter(0), itemgetter(1)
    assert list(overtaken(found, line, rank)) == once
    assert list(overtaken_in_every_copy(found, line, rank)) == copies


def test_every_guarantee_has_its_tolerated_kinds_and_none_tolerates_aborted_records() -> None:
    assert TOLERATED.keys() == {*Guarantee}
    tolerated = set[Kind]().union(*TOLERATED.values())
    assert tolerated == {Kind.DUPLICATE, Kind.LOST, Kind.TORN_TRANSACTION}
