"""processing/tasks/choices.py: how the choices of an alts are encoded, and which of them are still valid."""

from __future__ import annotations

import pytest

from kstreams_py.processing.tasks.choices import Choices, InputStart


def test_choices_decode_as_encoded_and_refuse_unknown_versions() -> None:
    choices = Choices(
        (("flights.ewr", 4), ("flights.jfk", 2**40), ("flights.ewr", 9)),
        (InputStart("flights.ewr", "id-1", 3), InputStart("flights.jfk", "", 2**40)),
    )
    assert choices.encode()[:1] == b"\x02"
    assert Choices.decode(choices.encode()) == choices
    for first in (b"\x00", b"\x03"):
        with pytest.raises(ValueError, match=r"it starts with .*, not with a version up to b'\\x02'"):
            Choices.decode(first + choices.encode()[1:])
    with pytest.raises(ValueError, match="it has bytes after its record"):
        Choices.decode(choices.encode() + b"\0")


def test_choices_of_version_1_decode_without_starts() -> None:
    written = b"\x01\x04\x02a\x06\x02b\x02\x00"  # by version 0.1.0
    choices = Choices.decode(written)
    assert choices == Choices((("a", 3), ("b", 1)))
    assert choices.still_valid({"a": 0, "b": 0}, {"a": "id-a", "b": "id-b"}) == (choices, [])
    assert choices.still_valid({"a": 0}, {"a": "id-a"}) == (Choices((("a", 3),)), ["'b' is no longer an input"])


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
def test_choices_after_a_commit_leave_out_delivered_records(
    committed: dict[str, int], left: tuple[tuple[str, int], ...]
) -> None:
    starts = {"a": InputStart("a", "id-a", 2), "b": InputStart("b", "id-b", 1)}
    choices = Choices((("a", 3), ("b", 1), ("a", 8)), (*starts.values(),))
    expected = Choices(left, tuple(start for topic, start in starts.items() if topic in dict(left)))
    assert choices.after(committed) == expected
    if not committed or min(committed.values()) > 1:
        assert choices.still_valid(committed, {"a": "id-a", "b": "id-b"}) == (expected, [])


A, B, C = InputStart("a", "id-a", 2), InputStart("b", "id-b", 1), InputStart("c", "id-c", 0)
SAVED = Choices((("a", 3), ("b", 1), ("c", 0), ("a", 8)), (A, B, C))
IDS = {"a": "id-a", "b": "id-b", "c": "id-c"}


@pytest.mark.parametrize(
    ("committed", "ids", "left", "reasons"),
    [
        ({"a": 2, "b": 1, "c": 0}, IDS, SAVED, []),
        ({"a": 2, "b": 1, "c": 0}, {**IDS, "d": "id-d"}, SAVED, []),  # one more input
        (
            {"a": 2, "c": 0},
            {"a": "id-a", "c": "id-c"},
            Choices((("a", 3), ("c", 0), ("a", 8)), (A, C)),
            ["'b' is no longer an input"],
        ),
        (
            {"a": 2, "b": 0, "c": 0},  # a new topic begins at 0: its offset was not set back
            {**IDS, "b": "id-2"},
            Choices((("a", 3), ("c", 0), ("a", 8)), (A, C)),
            ["'b' was deleted and created again"],
        ),
        (
            {"a": 4, "c": 0},
            {"a": "id-a", "c": "id-2"},
            Choices((("a", 8),), (A,)),
            ["'b' is no longer an input", "'c' was deleted and created again"],
        ),
        ({"b": 2, "c": 1}, {"b": "id-b", "c": "id-c"}, Choices(), ["'a' is no longer an input"]),
        ({"a": 9, "b": 2, "c": 1}, {"a": "id-2", "b": "id-2", "c": "id-2"}, Choices(), []),  # all are delivered
        ({"a": 1, "b": 1, "c": 0}, IDS, Choices(), ["the committed offset of 'a' was set back from 2 to 1"]),
        (
            {"a": 0, "b": 0, "c": 0},
            IDS,
            Choices(),
            [
                "the committed offset of 'a' was set back from 2 to 0",
                "the committed offset of 'b' was set back from 1 to 0",
            ],
        ),
        (
            {"a": 1, "b": 1},
            {"a": "id-a", "b": "id-b"},
            Choices(),
            ["the committed offset of 'a' was set back from 2 to 1"],
        ),
        ({"a": 9, "b": 1, "c": 0}, IDS, Choices((("b", 1), ("c", 0)), (B, C)), []),  # set forward: counts as delivered
        ({"a": 2, "c": 0}, IDS, SAVED, []),  # input b is not assigned to this worker yet
        ({"a": 2, "b": 1, "c": 0}, {**IDS, "b": ""}, SAVED, []),  # a broker without topic ids
    ],
)
def test_choices_stay_valid_for_the_same_topic_ids_and_committed_offsets(
    committed: dict[str, int], ids: dict[str, str], left: Choices, reasons: list[str]
) -> None:
    assert SAVED.still_valid(committed, ids) == (left, reasons)


def test_choices_without_topic_ids_are_matched_by_topic_name() -> None:
    saved = Choices((("a", 3),), (InputStart("a", "", 2),))
    assert saved.still_valid({"a": 2}, {"a": "id-a"}) == (saved, [])
    assert saved.still_valid({"a": 1}, {"a": "id-a"}) == (
        Choices(),
        ["the committed offset of 'a' was set back from 2 to 1"],
    )
