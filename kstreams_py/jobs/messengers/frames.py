"""The frames that two peers send each other, as MessagePack: each is read as a whole, or refused.

A frame of segments has a list for each field. Measured for each segment: 10 ns to write its id, 24 ns to read it.
Joining the ids into bytes, and cutting these again, takes as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from kstreams_py.errors import DecodeError
from kstreams_py.jobs.identity import Given, Path, Pattern, SegmentId
from kstreams_py.jobs.messengers.pins import PINNED_BYTES
from kstreams_py.steps.dead_letters import format_error

PROTOCOL: Final = 1
"""The version of the frames. Peers of other versions are refused."""

SEGMENTS_MAX: Final = 500
"""The most segments of a frame, and the most ids of an item."""

ENVELOPE: Final = 1 << 10
"""Bytes that a frame of segments leaves free below the limit, so that it fits into the frame that gives it back."""

KIND_MAX: Final = 1_000
"""The most characters of the name of an error's class."""

FAILURE_IDS: Final = 25
"""An error counts as this many ids in the size of a control frame."""

_NUMBER_MAX: Final = (1 << 63) - 1

Count = Annotated[int, Meta(ge=0, le=_NUMBER_MAX)]
Ids = Annotated[
    list[Annotated[SegmentId, Meta(min_length=PINNED_BYTES, max_length=PINNED_BYTES)]], Meta(max_length=SEGMENTS_MAX)
]
Xors = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=SEGMENTS_MAX)]
Patterns = Annotated[list[Annotated[Pattern, Meta(ge=0)]], Meta(max_length=SEGMENTS_MAX)]


class Hello(Struct, array_like=True, tag=0, frozen=True, gc=False):
    """The first frame of a link. It is sent again until there is an answer, and to ask for credit.

    - `protocol`: the version of the frames, PROTOCOL.
    - `cluster`: the name of the cluster.
    - `sender`, `receiver`: the ids of the two peers.
    """

    protocol: int
    cluster: str
    sender: str
    receiver: str


class SegmentFrame(Struct, array_like=True, tag=1, gc=False):
    """Segments of one channel for one task.

    - `number`: its number in the lane for data; 0 before it is sent.
    - `job`: the id of the job, which no other job ever has.
    - `epoch`: the epoch of the job by which the sender has chosen the receiver.
    - `channel`, `reader`: the names of the channel and of the task.
    - `ids`, `patterns`, `given`: see Segments.
    - `paths`: the distinct paths.
    - `at`: for each segment the index of its path; empty if there is only one path.
    - `values`: see `encode_values`.
    """

    number: Count
    job: str
    epoch: Count
    channel: str
    reader: str
    ids: Ids
    patterns: Patterns
    given: Annotated[list[Given], Meta(max_length=SEGMENTS_MAX)]
    paths: Annotated[list[Path], Meta(max_length=SEGMENTS_MAX)]
    at: Annotated[list[Count], Meta(max_length=SEGMENTS_MAX)]
    values: bytes

    def __len__(self) -> int:
        return len(self.ids)


class FailedSegment(Struct, array_like=True, frozen=True):
    """A segment whose task failed: its input is refused once it is complete.

    - `kind`: the name of the exception's class.
    - `text`: the text of the exception; see `failed_segment`.
    - `trace`: the context of its trace, as headers.
    """

    id: Annotated[SegmentId, Meta(min_length=PINNED_BYTES, max_length=PINNED_BYTES)]
    task: str
    kind: str
    text: str
    trace: list[tuple[str, bytes | None]] = []


class Opened(Struct, array_like=True, tag=1, frozen=True):
    """Inputs for an acker, each with the XOR of the patterns of its first copies."""

    job: str
    ids: Ids
    patterns: Xors


class Acks(Struct, array_like=True, tag=2, frozen=True):
    """Acknowledgements for an acker, and the failures of these inputs."""

    job: str
    ids: Ids
    patterns: Xors
    failed: list[FailedSegment] = []


class Completions(Struct, array_like=True, tag=3, frozen=True):
    """Inputs that are complete, for the peer that has read them, and the failures of these inputs."""

    job: str
    ids: Ids
    failed: list[FailedSegment] = []


class Asks(Struct, array_like=True, tag=4, frozen=True):
    """Asks a peer of the job which patterns of these inputs it has. `number`: the number of the question."""

    job: str
    ids: Ids
    number: Count


class Answers(Struct, array_like=True, tag=5, frozen=True):
    """The answer to Asks: the inputs that have segments at the peer, each with the XOR of their patterns.

    - `is_broken`: whether others may wait there for a peer that cannot be reached.
    """

    job: str
    ids: Ids
    patterns: Xors
    number: Count
    is_broken: bool = False


class HeldPatterns(Struct, array_like=True, tag=6, frozen=True):
    """Inputs with segments that wait at a gather, each with the XOR of these segments' patterns."""

    job: str
    ids: Ids
    patterns: Xors


class GiveUps(Struct, array_like=True, tag=7, frozen=True):
    """Inputs whose waiting segments a gather gives up, because no other segment of these inputs is under way."""

    job: str
    ids: Ids


class Returned(Struct, array_like=True, tag=8, frozen=True):
    """A frame of segments that comes back because its epoch is older than the receiver's: the bytes of SegmentFrame."""

    job: str
    frame: bytes


class Doubts(Struct, array_like=True, tag=9, frozen=True):
    """Overdue inputs: their acker is asked whether their segments are still anywhere."""

    job: str
    ids: Ids


class LostInputs(Struct, array_like=True, tag=10, frozen=True):
    """Tells the peer that has read these inputs to read them again: no peer has a segment that they wait for.

    - `is_broken`: whether the segment may be at, or wait for, a peer that another one cannot reach.
    """

    job: str
    ids: Ids
    is_broken: bool = False


class ReaderWish(Struct, array_like=True, tag=11, frozen=True):
    """A wish from one reader of a job's sources to another: see Agreement.

    - `since`, `to`: the epochs in which the sender, and the receiver, got their tasks.
    """

    job: str
    since: Count
    to: Count
    request: Count
    answer: Count


ItemOfInputs = Opened | Acks | Completions | Asks | Answers | HeldPatterns | GiveUps | Doubts | LostInputs
Item = ItemOfInputs | Returned | ReaderWish


class ControlFrame(Struct, array_like=True, tag=2):
    """Items of the lane for control. `number`: its number in this lane."""

    number: Count
    items: list[Item]


class Granted(Struct, array_like=True, frozen=True, gc=False):
    """How many segments a task takes from a peer, counted from the beginning of the link."""

    job: str
    reader: str
    segments: Count


class Received(Struct, array_like=True, tag=3, frozen=True):
    """What a peer has accepted, and will accept. It has no number: a later one replaces it.

    - `data`, `control`: the number of the last accepted frame of each lane; all frames before it were accepted too.
    - `again`: the lanes in which a frame is missing: 1 for data, 2 for control, 3 for both. The sender begins again
      after the last accepted frame.
    - `credit`: how many segments each task may be sent, unless it is in `granted`.
    - `granted`: the tasks that have taken segments.
    """

    data: Count
    control: Count
    again: Annotated[int, Meta(ge=0, le=3)]
    credit: Count
    granted: list[Granted] = []


Frame = Hello | SegmentFrame | ControlFrame | Received

ItemT = TypeVar("ItemT", bound=Item)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Frame).decode


def encode_frame(frame: Frame) -> bytes:
    """Returns a frame as bytes."""
    return _encode(frame)


def decode_frame(data: bytes) -> Frame:
    """Returns the frame that `encode_frame` encoded. Raises DecodeError, and nothing else, for any other bytes."""
    try:
        frame: Frame = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"a frame of a peer cannot be read: {error}") from None
    if isinstance(frame, SegmentFrame):
        _check_segments(frame)
    elif isinstance(frame, ControlFrame):
        for item in frame.items:
            if isinstance(item, Opened | Acks | HeldPatterns | Answers) and len(item.ids) != len(item.patterns):
                raise DecodeError("a frame of a peer cannot be read: an item has not one pattern for each id")
    return frame


def _check_segments(frame: SegmentFrame) -> None:
    count, paths = len(frame.ids), len(frame.paths)
    # one path may stand for all
    at_is_right = len(frame.at) == count and max(frame.at) < paths if frame.at else paths == 1
    if not (count and len(frame.patterns) == len(frame.given) == count and at_is_right):
        raise DecodeError("a frame of a peer cannot be read: it has no segments, or its fields differ in length")


def failed_segment(
    segment: SegmentId, task: str, error: BaseException, trace: Sequence[tuple[str, bytes | None]] = ()
) -> FailedSegment:
    """Returns a failure that fits into a frame: the text is cut, and lone surrogates in it are escaped."""
    kind = type(error).__name__[:KIND_MAX].encode(errors="backslashreplace").decode()
    return FailedSegment(segment, task, kind, format_error(error), [*trace])


def split_item(item: Item) -> Iterable[Item]:
    """Splits an item into items with at most SEGMENTS_MAX ids each. Failures are in the first ones."""
    if isinstance(item, Returned | ReaderWish):
        return [item]
    failed = item.failed if isinstance(item, Acks | Completions) else []
    failures_max = SEGMENTS_MAX // FAILURE_IDS
    if len(item.ids) <= SEGMENTS_MAX and len(failed) <= failures_max:
        return [item]
    found = list[Item]()
    # failures first: the last acknowledgement of an input completes it
    for start in range(0, len(failed), failures_max):
        some = failed[start : start + failures_max]
        found.append(Acks(item.job, [], [], some) if isinstance(item, Acks) else Completions(item.job, [], some))
    for start in range(0, len(item.ids), SEGMENTS_MAX):
        ids = item.ids[start : start + SEGMENTS_MAX]
        if isinstance(item, Opened | Acks | HeldPatterns):
            found.append(type(item)(item.job, ids, item.patterns[start : start + SEGMENTS_MAX]))
        elif isinstance(item, LostInputs):
            found.append(LostInputs(item.job, ids, item.is_broken))
        elif isinstance(item, Asks | Answers):
            raise TypeError(f"{type(item).__name__} answer one another: send them with at most {SEGMENTS_MAX} ids")
        else:
            found.append(type(item)(item.job, ids))
    return found


def size_of(item: Item) -> int:
    """Returns the size of an item as a number of ids; a frame that comes back fills a control frame."""
    if isinstance(item, Returned):
        return SEGMENTS_MAX
    if isinstance(item, ReaderWish):
        return 1
    failed = item.failed if isinstance(item, Acks | Completions) else ()
    return len(item.ids) + FAILURE_IDS * len(failed)
