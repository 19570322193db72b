"""delivery.py: the delivery hash, the choices of alts, the table of guarantees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kstreams_py.delivery import (
    PROMISES,
    Choices,
    Durability,
    Guarantee,
    Promise,
    Start,
    hash_prefix,
    joined_hash,
    pack_offset,
)

HASHES = """
from kstreams_py.delivery import hash_prefix, joined_hash, pack_offset
print((hash_prefix("app.split", "flights", "id-1", 3) + pack_offset(7)).hex())
print(joined_hash("app.zip", [("b", "", 0, 1), ("a", "", 0, 2)]).hex())
"""


def test_delivery_hash_is_the_same_in_every_process_and_under_every_hash_seed() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert seen == {b"8044c2e44019064e0000000000000007\n847be2c73329ec22c8540d3259e93d66\n"}


def test_one_input_hash_is_sixteen_bytes_and_sorted_like_the_offsets() -> None:
    prefix = hash_prefix("app.split", "flights", "id-1", 3)
    hashes = [prefix + pack_offset(offset) for offset in (0, 1, 255, 256, 65_536, 2**40)]
    assert {len(digest) for digest in hashes} == {16}
    assert hashes == sorted(hashes)


@pytest.mark.parametrize(
    "other",
    [
        ("app.other", "flights", "id-1", 3),
        ("app.split", "cancelled", "id-1", 3),
        ("app.split", "flights", "id-2", 3),
        ("app.split", "flights", "id-1", 4),
        ("app.spli", "tflights", "id-1", 3),
    ],
)
def test_hash_prefix_of_another_task_or_topic_differs(other: tuple[str, str, str, int]) -> None:
    assert hash_prefix(*other) != hash_prefix("app.split", "flights", "id-1", 3)


def test_joined_hash_depends_on_every_position_and_not_on_the_order_of_inputs() -> None:
    tailers = [("a", "x", 0, 5), ("b", "y", 0, 7)]
    assert joined_hash("p", tailers) == joined_hash("p", reversed(tailers))
    changed = [
        joined_hash("q", tailers),
        joined_hash("p", [("a", "x", 0, 6), ("b", "y", 0, 7)]),
        joined_hash("p", [("a", "x", 0, 5), ("b", "y", 0, 8)]),
        joined_hash("p", [("a", "x", 1, 5), ("b", "y", 1, 7)]),
        joined_hash("p", [("a", "z", 0, 5), ("b", "y", 0, 7)]),
        joined_hash("p", [("a", "x", 0, 7), ("b", "y", 0, 5)]),
    ]
    assert len({joined_hash("p", tailers), *changed}) == 7


def test_hashes_of_many_positions_do_not_collide() -> None:
    joined = {joined_hash("p", [("a", "x", 0, i), ("b", "y", 0, j)]) for i in range(300) for j in range(300)}
    assert len(joined) == 90_000


def test_choices_survive_encoding_and_refuse_other_bytes() -> None:
    choices = Choices(
        (("flights.ewr", 4), ("flights.jfk", 2**40), ("flights.ewr", 9)),
        (Start("flights.ewr", "id-1", 3), Start("flights.jfk", "", 2**40)),
    )
    assert choices.encode()[:1] == b"\x02"
    assert Choices.decode(choices.encode()) == choices
    for first in (b"", b"\x00", b"\x03"):
        with pytest.raises(ValueError, match=r"a journal record starts with .*, not with a version up to b'\\x02'"):
            Choices.decode(first + choices.encode()[1:] if first else b"")


def test_choices_of_version_1_are_read_as_runs_of_inputs_that_are_not_known() -> None:
    written = b"\x01\x04\x02a\x06\x02b\x02\x00"  # by version 0.1.0
    choices = Choices.decode(written)
    assert choices == Choices((("a", 3), ("b", 1)))
    assert choices.still_valid({"a": 0, "b": 0}, {"a": "id-a", "b": "id-b"}) == (choices, [])
    assert choices.still_valid({"a": 0}, {"a": "id-a"}) == (Choices((("a", 3),)), ["'b' is no input any more"])


@pytest.mark.parametrize(
    ("committed", "left"),
    [
        ({}, (("a", 3), ("b", 1), ("a", 8))),
        ({"a": 2}, (("a", 3), ("b", 1), ("a", 8))),
        ({"a": 4}, (("b", 1), ("a", 8))),
        ({"a": 4, "b": 2}, (("a", 8),)),
        ({"a": 9, "b": 2}, ()),
    ],
)
def test_choices_after_a_commit_are_those_not_delivered(
    committed: dict[str, int], left: tuple[tuple[str, int], ...]
) -> None:
    starts = {"a": Start("a", "id-a", 2), "b": Start("b", "id-b", 1)}
    made = Choices((("a", 3), ("b", 1), ("a", 8)), (*starts.values(),))
    expected = Choices(left, tuple(start for topic, start in starts.items() if topic in dict(left)))
    assert made.after(committed) == expected
    if not committed or min(committed.values()) > 1:
        assert made.still_valid(committed, {"a": "id-a", "b": "id-b"}) == (expected, [])


A, B, C = Start("a", "id-a", 2), Start("b", "id-b", 1), Start("c", "id-c", 0)
SAVED = Choices((("a", 3), ("b", 1), ("c", 0), ("a", 8)), (A, B, C))
IDS = {"a": "id-a", "b": "id-b", "c": "id-c"}


@pytest.mark.parametrize(
    ("committed", "ids", "left", "reasons"),
    [
        ({"a": 2, "b": 1, "c": 0}, IDS, SAVED, []),
        ({"a": 2, "b": 1, "c": 0}, {**IDS, "d": "id-d"}, SAVED, []),  # an input more
        (
            {"a": 2, "c": 0},
            {"a": "id-a", "c": "id-c"},
            Choices((("a", 3), ("c", 0), ("a", 8)), (A, C)),
            ["'b' is no input any more"],
        ),
        (
            {"a": 2, "b": 0, "c": 0},  # a topic that is new begins at 0: nobody has set it back
            {**IDS, "b": "id-2"},
            Choices((("a", 3), ("c", 0), ("a", 8)), (A, C)),
            ["'b' was deleted and created again"],
        ),
        (
            {"a": 4, "c": 0},
            {"a": "id-a", "c": "id-2"},
            Choices((("a", 8),), (A,)),
            ["'b' is no input any more", "'c' was deleted and created again"],
        ),
        ({"b": 2, "c": 1}, {"b": "id-b", "c": "id-c"}, Choices(), ["'a' is no input any more"]),
        ({"a": 9, "b": 2, "c": 1}, {"a": "id-2", "b": "id-2", "c": "id-2"}, Choices(), []),  # all were delivered
        ({"a": 1, "b": 1, "c": 0}, IDS, Choices(), ["the position of 'a' was set back from 2 to 1"]),
        (
            {"a": 0, "b": 0, "c": 0},
            IDS,
            Choices(),
            ["the position of 'a' was set back from 2 to 0", "the position of 'b' was set back from 1 to 0"],
        ),
        ({"a": 1, "b": 1}, {"a": "id-a", "b": "id-b"}, Choices(), ["the position of 'a' was set back from 2 to 1"]),
        ({"a": 9, "b": 1, "c": 0}, IDS, Choices((("b", 1), ("c", 0)), (B, C)), []),  # set forward: as if delivered
        ({"a": 2, "c": 0}, IDS, SAVED, []),  # an input that is not assigned to this worker yet
        ({"a": 2, "b": 1, "c": 0}, {**IDS, "b": ""}, SAVED, []),  # a broker that tells no ids
    ],
)
def test_choices_hold_for_the_topics_and_positions_that_they_were_made_for(
    committed: dict[str, int], ids: dict[str, str], left: Choices, reasons: list[str]
) -> None:
    assert SAVED.still_valid(committed, ids) == (left, reasons)


def test_choices_made_where_topics_had_no_ids_hold_by_name() -> None:
    saved = Choices((("a", 3),), (Start("a", "", 2),))
    assert saved.still_valid({"a": 2}, {"a": "id-a"}) == (saved, [])
    assert saved.still_valid({"a": 1}, {"a": "id-a"}) == (Choices(), ["the position of 'a' was set back from 2 to 1"])


def test_guarantees_keep_the_promises_of_the_table() -> None:
    assert dict(PROMISES) == {
        Guarantee.EXACTLY_ONCE: Promise(transactional=True, saves_first=False, may_repeat=True),
        Guarantee.AT_LEAST_ONCE: Promise(transactional=False, saves_first=False, may_repeat=True),
        Guarantee.AT_MOST_ONCE: Promise(transactional=False, saves_first=True, may_repeat=False),
    }
    assert {d: d.acks for d in Durability} == {"committed": -1, "leader": 1, "none": 0}
