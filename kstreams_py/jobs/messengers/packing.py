"""Packs segments into frames, and unpacks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, EncodeError
from kstreams_py.jobs.messengers.frames import ENVELOPE, SEGMENTS_MAX, SegmentFrame
from kstreams_py.jobs.messengers.values import decode_values, encode_values
from kstreams_py.jobs.segments import Segments

SEGMENT_BYTES: Final = 64
"""An upper bound on the bytes that a segment takes in a frame, without its value, its input and its path."""


class Destination(NamedTuple):
    """Where segments go: see SegmentFrame."""

    job: str
    epoch: int
    channel: str
    reader: str


class Packed(NamedTuple):
    """Segments as frames.

    - `frames`: the segments that are not refused, in order.
    - `refused`: the reason, by the index of each segment that cannot be sent.
    """

    frames: list[SegmentFrame]
    refused: dict[int, EncodeError]


def pack_segments(to: Destination, segments: Segments, frame_max: int) -> Packed:
    """Returns segments as frames. Refuses values of types that cannot be sent, and values that are too large.

    - `frame_max`: the most bytes of a frame.
    """
    packed, limit = Packed([], {}), frame_max - ENVELOPE
    if len(segments) <= SEGMENTS_MAX:
        _pack(packed, to, segments, range(len(segments)), limit)
    else:
        for start in range(0, len(segments), SEGMENTS_MAX):
            indexes = range(start, min(start + SEGMENTS_MAX, len(segments)))
            _pack(packed, to, segments.choose(indexes), indexes, limit)
    return packed


def unpack_segments(frame: SegmentFrame) -> Segments:
    """Returns the segments of a frame. Raises DecodeError."""
    values = decode_values(frame.values)
    count = len(frame.ids)
    if len(values) != count:
        raise DecodeError(f"a frame of a peer cannot be read: it has {count} segments and {len(values)} values")
    paths = [frame.paths[each] for each in frame.at] if frame.at else frame.paths * count
    return Segments(frame.ids, frame.patterns, frame.given, paths, values)


def _pack(packed: Packed, to: Destination, segments: Segments, indexes: Sequence[int], limit: int) -> None:
    """Appends the frames of segments.

    - `indexes`: for each segment, its index among the caller's segments.
    - `limit`: the most bytes of a frame.
    """
    values, refused = encode_values(segments.values)
    if refused:
        packed.refused.update((indexes[number], error) for number, error in refused.items())
        kept = [number for number in range(len(segments)) if number not in refused]
        _pack(packed, to, segments.choose(kept), [indexes[number] for number in kept], limit)
        return
    count = len(segments)
    if count == 0:
        return
    paths, at = segments.paths[:1], list[int]()
    if len({*segments.paths}) > 1:
        numbers = {path: number for number, path in enumerate(dict.fromkeys(segments.paths))}
        paths, at = [*numbers], [numbers[path] for path in segments.paths]
    size = len(values) + SEGMENT_BYTES * count + sum(map(len, segments.given)) + sum(map(len, paths))
    if size <= limit:
        packed.frames.append(SegmentFrame(0, *to, segments.ids, segments.patterns, segments.given, paths, at, values))
    elif count == 1:
        packed.refused[indexes[0]] = EncodeError(
            f"a channel cannot send a value of {len(values)} bytes to task {to.reader!r} of another peer: a frame has "
            f"at most {limit}: return a reference to it, such as the name of a file, or begin another cluster "
            "with a larger --frame-max"
        )
    else:
        half = count // 2
        for part in (range(half), range(half, count)):
            _pack(packed, to, segments.choose(part), [indexes[number] for number in part], limit)
