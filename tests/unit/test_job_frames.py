"""Frames between peers: segments packed and unpacked, limits of bytes and segments, and bytes of any kind."""

from __future__ import annotations

import os
from decimal import Decimal
from typing import Any, Final

import pytest

from kstreams_py.errors import DecodeError, SettingsError
from kstreams_py.jobs.cluster.commands import FRAME_MAX
from kstreams_py.jobs.identity import Given, Path, Pattern, SegmentId
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.frames import (
    SEGMENTS_MAX,
    Acks,
    Answers,
    Asks,
    Completions,
    ControlFrame,
    Doubts,
    FailedSegment,
    Frame,
    GiveUps,
    Granted,
    HeldPatterns,
    Hello,
    Item,
    LostInputs,
    Opened,
    Received,
    Returned,
    SegmentFrame,
    decode_frame,
    encode_frame,
    failed_segment,
    size_of,
    split_item,
)
from kstreams_py.jobs.messengers.packing import Destination, pack_segments, unpack_segments
from kstreams_py.jobs.messengers.pins import acker_of, input_of, pin_ids
from kstreams_py.jobs.segments import Segments
from tests.tables import each_case
from tests.unit.test_job_values import read_hostile

TO: Final = Destination("job-7", 3, "parsed", "enrich")

IDS: Final = pin_ids(lambda count: bytes(range(count)), 2, [5], 9)


def segments(count: int, values: list[Any] | None = None, paths: int = 1) -> Segments:
    return Segments(
        pin_ids(os.urandom, count, [1, 2, 3], 7),
        [Pattern((1 << 64) - 1 - number) for number in range(count)],
        [Given(b"source\0\0" + bytes(number % 9)) for number in range(count)],
        [Path(b"p" * 12 * (number % paths)) for number in range(count)],
        values if values is not None else [b"v" * 100] * count,
    )


def unpack(frames: list[SegmentFrame]) -> list[tuple[Any, ...]]:
    """The segments of frames that travelled."""
    return [each for frame in frames for each in unpack_segments(arrived(frame))]


def arrived(frame: SegmentFrame) -> SegmentFrame:
    found = decode_frame(encode_frame(frame))
    assert isinstance(found, SegmentFrame)
    return found


def test_ids_name_their_acker_and_their_input_and_are_spread_over_the_ackers() -> None:
    ids = pin_ids(os.urandom, 3_000, [4, 2, (1 << 32) - 1], 77)
    assert {*map(len, ids)} == {24}
    assert len({*ids}) == 3_000
    assert {*map(input_of, ids)} == {77}
    found = [*map(acker_of, ids)]
    assert all(900 < found.count(acker) < 1_100 for acker in (4, 2, (1 << 32) - 1))
    assert pin_ids(os.urandom, 0, [1], 1) == []


@pytest.mark.parametrize("count", [1, 2, 499, 500, 501, 1_700])
@pytest.mark.parametrize("paths", [1, 3])
def test_segments_arrive_as_they_were_packed(count: int, paths: int) -> None:
    sent = segments(count, [{"n": number, "price": Decimal(number)} for number in range(count)], paths)
    frames, refused = pack_segments(TO, sent, FRAME_MAX)
    assert refused == {}
    assert [len(frame) for frame in frames] == [min(500, count - start) for start in range(0, count, 500)]
    assert unpack(frames) == [*sent]
    assert {(frame.number, frame.job, frame.epoch, frame.channel, frame.reader) for frame in frames} == {(0, *TO)}
    assert pack_segments(TO, Segments(), FRAME_MAX).frames == []


def test_frames_keep_the_limit_of_bytes_and_one_value_above_it_is_refused_by_name() -> None:
    sizes = [10, 30_000, 100, 70_000, 20_000, 20_000, 20_000, 1]
    sent = segments(len(sizes), [b"v" * size for size in sizes], 2)
    frames, refused = pack_segments(TO, sent, 65_536)
    assert max(len(encode_frame(frame)) for frame in frames) <= 65_536 - 512
    assert unpack(frames) == [each for number, each in enumerate(sent) if number != 3]
    assert {index: str(error) for index, error in refused.items()} == {
        3: "a channel cannot send a value of 70006 bytes to task 'enrich' of another peer: a frame has at most 64512: "
        "return a reference to it, such as the name of a file, or begin another cluster with a larger --frame-max"
    }


def test_values_that_cannot_be_sent_are_refused_by_their_index_and_the_others_arrive() -> None:
    values: list[Any] = [number if number % 100 else object() for number in range(1_001)]
    values[-1] = b"v" * 70_000
    sent = segments(len(values), values)
    frames, refused = pack_segments(TO, sent, 65_536)
    assert [*refused] == [*range(0, 1_001, 100)]
    assert unpack(frames) == [each for number, each in enumerate(sent) if number % 100]


FAILED: Final = FailedSegment(IDS[0], "enrich", "ValueError", "no price", [("traceparent", b"00"), ("x", None)])

ITEMS: Final[list[Item]] = [
    Opened("job", IDS, [0, (1 << 64) - 1]),
    Acks("job", IDS, [1, 2], [FAILED]),
    Completions("job", IDS, [FAILED]),
    Asks("job", IDS, 7),
    Answers("job", IDS, [5, 6], 7),
    Doubts("job", IDS),
    LostInputs("job", []),
    HeldPatterns("job", IDS, [3, 4]),
    GiveUps("job", IDS),
    Returned("job", b"frame"),
]

FRAMES: Final[list[Frame]] = [
    Hello(1, "shop", "a", "b"),
    ControlFrame(9, ITEMS),
    ControlFrame(1, []),
    Received(3, (1 << 63) - 1, 2, 2_000, [Granted("job", "enrich", 2_500)]),
    Received(0, 0, 0, 0),
    pack_segments(TO, segments(5, paths=2), FRAME_MAX).frames[0],
]


@each_case("frame", FRAMES)
def test_frame_arrives_as_it_was_sent(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


def test_hello_of_a_later_version_with_more_fields_can_still_be_read() -> None:
    data = encode_frame(Hello(2, "shop", "a", "b"))
    assert decode_frame(bytes([data[0] + 1]) + data[1:] + b"\x01") == Hello(2, "shop", "a", "b")


def wrong(**changed: Any) -> SegmentFrame:
    """A frame of two segments with other fields."""
    frame = pack_segments(TO, segments(2), FRAME_MAX).frames[0]
    for name, value in changed.items():
        setattr(frame, name, value)
    return frame


WRONG: Final[list[Frame]] = [
    wrong(ids=[]),
    wrong(ids=[IDS[0]]),
    wrong(ids=[SegmentId(b"short"), IDS[0]]),
    wrong(ids=IDS * 251, patterns=[Pattern(1)] * 502, given=[Given(b"")] * 502),
    wrong(patterns=[Pattern(1)]),
    wrong(patterns=[Pattern(-1), Pattern(1)]),
    wrong(given=[]),
    wrong(paths=[]),
    wrong(paths=[Path(b""), Path(b"p")]),
    wrong(at=[0]),
    wrong(at=[0, 1]),
    wrong(epoch=-1),
    wrong(number=1 << 63),
    ControlFrame(1, [Opened("job", IDS, [1])]),
    ControlFrame(1, [HeldPatterns("job", [], [1])]),
    ControlFrame(-1, []),
    Received(0, 0, 4, 0),
]


@each_case("frame", WRONG)
def test_frame_whose_fields_do_not_fit_is_refused(frame: Frame) -> None:
    with pytest.raises(DecodeError, match=r"^a frame of a peer cannot be read: "):
        decode_frame(encode_frame(frame))


def test_frame_with_another_number_of_values_is_refused() -> None:
    with pytest.raises(DecodeError, match="it has 2 segments and 5 values"):
        unpack_segments(wrong(values=pack_segments(TO, segments(5), FRAME_MAX).frames[0].values))


SEEDS: Final = [*map(encode_frame, FRAMES)]


def test_bytes_from_outside_are_a_frame_or_raise_one_error() -> None:
    read_hostile(decode_frame, SEEDS, 1, 5_000)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_more_bytes_from_outside_are_a_frame_or_raise_one_error(seed: int) -> None:
    read_hostile(decode_frame, SEEDS, seed, 50_000)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@each_case(
    ("error", "kind", "text"),
    [
        (ValueError("no price"), "ValueError", "no price"),
        (ValueError("x" * 20_000), "ValueError", "x" * 4_000),
        (ValueError("\ud800"), "ValueError", "\\ud800"),
        (Unreadable(), "Unreadable", "<Unreadable, whose __str__ raised>"),
    ],
)
def test_error_becomes_a_failure_that_fits_into_a_frame(error: Exception, kind: str, text: str) -> None:
    failed = failed_segment(IDS[0], "enrich", error, [("a", None)])
    assert failed == FailedSegment(IDS[0], "enrich", kind, text, [("a", None)])
    encode_frame(ControlFrame(1, [Acks("job", [], [], [failed])]))


@each_case("item", [each for each in ITEMS if not isinstance(each, Returned | Asks | Answers)])
def test_item_with_many_ids_is_split_and_its_failures_come_first(item: Any) -> None:
    ids, patterns = pin_ids(os.urandom, 1_201, [1], 1), [*range(1_201)]
    fields: list[Any] = [ids]
    if hasattr(item, "patterns"):
        fields.append(patterns)
    if hasattr(item, "failed"):
        fields.append([FAILED] * 45)
    parts: list[Any] = [*split_item(type(item)("job", *fields))]
    assert max(map(size_of, parts)) <= SEGMENTS_MAX
    assert [each for part in parts for each in part.ids] == ids
    if hasattr(item, "patterns"):
        assert [each for part in parts for each in part.patterns] == patterns
    if hasattr(item, "failed"):
        assert [len(part.failed) for part in parts] == [20, 20, 5, 0, 0, 0]
    assert split_item(item) == [item]


def test_questions_and_answers_are_not_split_as_each_has_one_answer() -> None:
    ids = pin_ids(os.urandom, 501, [1], 1)
    for item in (Asks("job", ids, 1), Answers("job", ids, [1] * 501, 1)):
        with pytest.raises(TypeError, match="send them with at most 500 ids"):
            split_item(item)


def test_waits_grow_to_the_longest_and_vary_by_the_jitter() -> None:
    backoff = Backoff(initial=0.05, factor=2, longest=5, jitter=0.2)
    assert [round(backoff.wait(attempts, 0.5), 3) for attempts in (1, 2, 3, 4, 7, 8, 1_000_000)] == [
        0.05, 0.1, 0.2, 0.4, 3.2, 5, 5,
    ]  # fmt: skip
    assert [round(backoff.wait(1, chance), 3) for chance in (0, 1)] == [0.04, 0.06]


@each_case("changed", [{"initial": 0}, {"initial": 9}, {"longest": float("inf")}, {"factor": 0.5}, {"jitter": 1}])
def test_waits_that_make_no_sense_are_refused(changed: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match="give an initial wait above 0"):
        Backoff(**changed)
