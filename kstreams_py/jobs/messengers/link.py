"""The link to one other peer: it neither loses nor duplicates anything while both peers live.

Frames travel in two lanes, each numbered from 1. The receiver accepts frames in order, drops those that it already has,
and asks again when a number is missing. The sender keeps a frame until it is accepted, and sends it again after a
time-out (go-back-N). So a messenger may lose, duplicate and reorder frames.

The receiver answers a few frames at a time, or soon after the first one: at a thousand single segments a second, an
answer to each would be half of all frames. It answers at once if a frame is missing or is one that it already has.

- The lane for data has credit: each task takes only as many segments as it can hold. The sender keeps the others, and
  reports how many wait. The credit belongs to one task: if tasks shared it, the tasks of two peers could wait for each
  other, each peer full of segments for a task that waits for the other peer.
- The lane for control is never refused. Its content is bounded by the inputs that may be under way. Acknowledgements
  behind data could wait for ever: the data waits for credit, and the credit waits for the acknowledgements.

Segments of an epoch older than the receiver's come back through the lane for control. The receiver keeps segments of a
newer epoch until it has that epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kstreams_py.errors import DecodeError, SettingsError
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.frames import (
    PROTOCOL,
    SEGMENTS_MAX,
    ControlFrame,
    Frame,
    Granted,
    Hello,
    Item,
    Received,
    Returned,
    SegmentFrame,
    decode_frame,
    encode_frame,
    size_of,
    split_item,
)
from kstreams_py.jobs.messengers.lanes import (
    ANSWER_PART,
    SEND_AGAIN,
    IncomingLane,
    LinkCounts,
    OutgoingLane,
    OwedAnswer,
    Send,
)

TaskKey = tuple[str, str]
"""A task: the ids of job and task."""

DATA, CONTROL = 1, 2
"""The lanes, as bits."""

ENDED: Final = 1 << 63
"""Stands for the epoch of a job that has ended: all its frames go back."""

RESENT: Final = Backoff(initial=0.5, factor=2.0, longest=5.0, jitter=0.2)
"""The waits before frames are sent again. A busy peer answers late: a shorter first wait would send frames twice."""


@dataclass(frozen=True, kw_only=True)
class LinkLimits:
    """The limits of a link.

    - `credit`: the most segments from one peer that wait for one task. A frame must fit.
    - `window`: the most frames of a lane that are sent and not yet accepted.
    - `window_bytes`: the most bytes of these frames; one frame is always sent.
    - `frame_segments`: the most segments of a frame.

    Raises SettingsError if a frame does not fit into the credit.
    """

    credit: int = 4 * SEGMENTS_MAX
    window: int = 64
    window_bytes: int = 32 << 20
    frame_segments: int = SEGMENTS_MAX

    def __post_init__(self) -> None:
        if not (1 <= self.frame_segments <= self.credit and self.window >= 1 and self.window_bytes >= 1):
            raise SettingsError(f"{self}: give a credit of at least the segments of a frame, and a window of 1 or more")


class LinkRest(NamedTuple):
    """The segments whose delivery a closed link cannot confirm.

    - `unsent`: frames that were never sent, or came back.
    - `unknown`: frames that were sent and may have been accepted.
    """

    unsent: list[SegmentFrame]
    unknown: list[SegmentFrame]


class Flow:
    """The segments for one task of the other peer."""

    def __init__(self) -> None:
        self.sent = 0
        """The number of segments sent, counted from the beginning."""
        self.granted = 0
        """The number of segments that may be sent, likewise; 0 if the other peer has not named the task yet."""
        self.waiting = deque[SegmentFrame]()
        self.count = 0
        """The number of segments in these frames."""

    def take_back(self) -> list[SegmentFrame]:
        """Removes the frames that were never sent, and returns them."""
        frames, self.waiting, self.count = [*self.waiting], deque(), 0
        return frames


class _Inbox:
    """The segments for one task of this peer."""

    def __init__(self) -> None:
        self.released = 0
        """The number of segments that the task has taken, counted from the beginning."""
        self.held = deque[SegmentFrame]()


class Link:
    """The link to one other peer. The clock comes in as `now`: seconds that never decrease.

    - `flows`: the segments that wait to be sent, by task.
    """

    def __init__(
        self,
        names: tuple[str, str, str],
        chance: Callable[[], float],
        limits: LinkLimits | None = None,
        backoff: Backoff = RESENT,
    ) -> None:
        """Sends nothing.

        - `names`: the name of the cluster, the id of this peer, the id of the other peer.
        - `chance`: returns a random number from 0 to 1, which varies the waits.
        - `backoff`: the waits before frames are sent again.
        """
        self._cluster, self._own, self.other = names
        self._chance, self._limits, self._backoff = chance, limits or LinkLimits(), backoff
        self.counts = LinkCounts()
        self.refusal = ""
        """Why frames of the other peer are dropped, such as another version or cluster; "" if they are not."""
        self.is_open = False
        """Whether the other peer has answered since the link began or last lost its connection."""
        self.heard_at: float | None = None
        """When the last frame that was not refused came; None if none has come."""
        self._is_known = False
        """Whether the other peer has sent a Hello."""
        self._data, self._control = OutgoingLane(), OutgoingLane()
        self._from_data, self._from_control = IncomingLane(), IncomingLane()
        self.flows: dict[TaskKey, Flow] = {}
        self._credit = 0
        """The credit of a task that the other peer has not named."""
        self._inboxes: dict[TaskKey, _Inbox] = {}
        self._items = deque[Item]()
        """The items that have no number yet."""
        self._taken = list[Item]()
        self._returned = list[SegmentFrame]()
        own = self._limits
        self._owed = OwedAnswer(own.window // ANSWER_PART, own.credit // ANSWER_PART)
        self._asks, self._ask_due = 0, 0.0
        """How many questions had no answer, and when the next one is due: for an open link, or for credit."""

    # What this peer sends.

    def offer(self, frame: SegmentFrame) -> None:
        """Takes a frame to send, no matter how many wait; see `waiting`."""
        flow = self._flow(frame.job, frame.reader)
        flow.waiting.append(frame)
        flow.count += len(frame)

    def offer_items(self, items: Iterable[Item]) -> None:
        """Takes items of the lane for control, with any number of ids."""
        for item in items:
            self._items += split_item(item)

    def waiting(self, job: str, reader: str) -> int:
        """Returns how many segments for a task of the other peer wait for credit."""
        flow = self.flows.get((job, reader))
        return 0 if flow is None else flow.count

    @property
    def unaccepted(self) -> int:
        """The number of frames and items that the other peer has not accepted."""
        waiting = sum(len(flow.waiting) for flow in self.flows.values())
        return waiting + len(self._items) + len(self._data.frames) + len(self._control.frames)

    def flush(self, now: float, send: Send) -> None:
        """Sends what is due: answers, then control, then as much data as the credit allows."""
        for lane in (self._control, self._data):
            self.counts.resent += lane.expire(now)
        if not self.is_open:
            self._ask(now, send)
        if self._is_known and self._owed.is_due(now):
            if not send(encode_frame(self._answer())):
                self._control.offer_due = self._owed.due = now + SEND_AGAIN
                return
            self._from_data.is_missing = self._from_control.is_missing = False
            self._owed.clear()
        if self.is_open and self._flush_control(send, now) and self._flush_data(send, now):
            self._ask_for_credit(now, send)

    def next_due(self) -> float | None:
        """Returns when `flush` will have something to do even if nothing comes; None if it will not."""
        lanes = self._data, self._control
        dues = [lane.due for lane in lanes if lane.due is not None]
        offers = [lane.offer_due for lane in lanes if lane.offer_due is not None]
        if not self.is_open or (self._is_blocked and not offers):
            dues.append(self._ask_due)
        dues += offers
        if self._owed.due is not None:
            dues.append(self._owed.due)
        return min(dues, default=None)

    def reconnect(self) -> None:
        """Begins again after a lost connection: asks the other peer which frames it has accepted."""
        self.is_open, self._asks, self._ask_due = False, 0, 0.0
        for lane in (self._data, self._control):
            lane.restart()

    # What the other peer sends.

    def take(self, frame: Frame, now: float) -> None:
        """Takes a frame. `ready`, `items` and `returned` then return its contents."""
        if isinstance(frame, Hello):
            self._greet(frame, now)
        elif not self._is_known or self.refusal:
            self.counts.unexpected += 1
            return
        elif isinstance(frame, SegmentFrame):
            if self._accept(self._from_data, frame.number, now):
                self._inbox(frame.job, frame.reader).held.append(frame)
        elif isinstance(frame, ControlFrame):
            if self._accept(self._from_control, frame.number, now):
                self._take_items(frame.items)
        else:
            self._hear(frame)
        if not self.refusal:
            self.heard_at = now

    def ready(self, epochs: Mapping[str, int], tasks: Collection[TaskKey] | None = None) -> list[SegmentFrame]:
        """Returns the frames of the current epoch of their job; for each task, in the order in which they came.

        Frames of an older epoch go back to the other peer. Frames are kept if their epoch is newer, their task is not
        in `tasks` (None for all), or their job is not in `epochs`. The epoch of a job that has ended is ENDED.
        """
        found = list[SegmentFrame]()
        for key, inbox in self._inboxes.items():
            if not inbox.held or (epoch := epochs.get(key[0])) is None:
                continue
            kept = deque[SegmentFrame]()
            for frame in inbox.held:
                if frame.epoch == epoch and (tasks is None or key in tasks):
                    found.append(frame)
                elif frame.epoch >= epoch:
                    kept.append(frame)
                else:
                    self._give_back(frame)
            inbox.held = kept
        return found

    def items(self) -> list[Item]:
        """Returns the items that have come, except for frames that came back."""
        taken, self._taken = self._taken, []
        return taken

    def returned(self) -> list[SegmentFrame]:
        """Returns the frames that the other peer gave back.

        Send their segments again once this peer has a newer epoch: before that, they would come back again.
        """
        returned, self._returned = self._returned, []
        return returned

    def release(self, job: str, reader: str, count: int) -> None:
        """Gives credit back for segments that a task has taken."""
        self._inbox(job, reader).released += count
        self._owed.note_credit(count)

    def frames(self, *, to_send: bool = True, here: bool = True) -> list[SegmentFrame]:
        """Returns frames of segments.

        - `to_send`: whether to include frames that the other peer has not accepted.
        - `here`: whether to include frames that it has given back, and frames from it that wait here.
        """
        found = list[SegmentFrame]()
        if to_send:
            found += (frame for data in self._data.frames if isinstance(frame := decode_frame(data), SegmentFrame))
            found += (frame for flow in self.flows.values() for frame in flow.waiting)
        if here:
            found += (*self._returned, *(frame for inbox in self._inboxes.values() for frame in inbox.held))
        return found

    # The ends.

    def forget(self, job: str) -> None:
        """Drops what waits to be sent or taken for a job that has ended. The id of the job must never be used again."""
        for keyed in (self.flows, self._inboxes):
            for key in [each for each in keyed if each[0] == job]:
                del keyed[key]

    def close(self) -> LinkRest:
        """Returns the segments that may not have been delivered. The link must not be used afterwards."""
        unknown = [frame for data in self._data.frames if isinstance(frame := decode_frame(data), SegmentFrame)]
        waiting = [frame for flow in self.flows.values() for frame in flow.waiting]
        return LinkRest([*self._returned, *waiting], unknown)

    # Parts.

    def _flow(self, job: str, reader: str) -> Flow:
        key = job, reader
        if (flow := self.flows.get(key)) is None:
            flow = self.flows[key] = Flow()
        return flow

    def _inbox(self, job: str, reader: str) -> _Inbox:
        key = job, reader
        if (inbox := self._inboxes.get(key)) is None:
            inbox = self._inboxes[key] = _Inbox()
        return inbox

    def _wait(self, attempts: int) -> float:
        return self._backoff.wait(attempts, self._chance())

    def _accept(self, lane: IncomingLane, number: int, now: float) -> bool:
        """Returns whether a frame is the next one of a lane."""
        is_next = lane.take(number, self.counts)
        self._owed.note_frame(now, is_next=is_next)
        return is_next

    def _answer(self) -> Received:
        credit = self._limits.credit
        granted = [Granted(*key, credit + inbox.released) for key, inbox in self._inboxes.items() if inbox.released]
        again = DATA * self._from_data.is_missing + CONTROL * self._from_control.is_missing
        return Received(self._from_data.accepted, self._from_control.accepted, again, credit, granted)

    def _ask(self, now: float, send: Send) -> None:
        """Asks the other peer for an answer, at most once until the next wait has passed."""
        if now < self._ask_due:
            return
        if send(encode_frame(Hello(PROTOCOL, self._cluster, self._own, self.other))):
            self._asks += 1
            self._ask_due = now + self._wait(self._asks)
        else:
            self._ask_due = now + SEND_AGAIN

    def _ask_for_credit(self, now: float, send: Send) -> None:
        """Asks for credit while no frame is under way that will be answered: the last answer may be lost."""
        if not self._is_blocked:
            self._asks, self._ask_due = 0, now + self._backoff.initial
        else:
            self._ask(now, send)

    @property
    def _is_blocked(self) -> bool:
        """Whether segments wait, and none is under way."""
        return not self._data.frames and any(flow.waiting for flow in self.flows.values())

    def _flush_control(self, send: Send, now: float) -> bool:
        lane, limits = self._control, self._limits
        while self._items and len(lane.frames) < limits.window and lane.bytes < limits.window_bytes:
            items, size = [self._items.popleft()], 0
            size = size_of(items[0])
            while self._items and size + size_of(self._items[0]) <= SEGMENTS_MAX:
                items.append(self._items.popleft())
                size += size_of(items[-1])
            lane.last += 1
            lane.add(encode_frame(ControlFrame(lane.last, items)))
        return lane.flush(send, now, self._wait)

    def _flush_data(self, send: Send, now: float) -> bool:
        lane, limits = self._data, self._limits
        blocked = [flow for flow in self.flows.values() if flow.waiting]
        while blocked:
            left = list[Flow]()
            for flow in blocked:  # a frame of each task in turn
                frame = flow.waiting[0]
                if len(lane.frames) >= limits.window or lane.bytes >= limits.window_bytes:
                    return lane.flush(send, now, self._wait)
                if flow.sent + len(frame) > max(flow.granted, self._credit):
                    continue
                flow.waiting.popleft()
                flow.count -= len(frame)
                flow.sent += len(frame)
                lane.last = frame.number = lane.last + 1
                lane.add(encode_frame(frame))
                if flow.waiting:
                    left.append(flow)
            blocked = left
        return lane.flush(send, now, self._wait)

    def _greet(self, hello: Hello, now: float) -> None:
        self.refusal = self._refuse(hello)
        if self.refusal:
            self.counts.unexpected += 1
        else:
            self._is_known = True
            self._owed.note_frame(now, is_next=False)

    def _refuse(self, hello: Hello) -> str:
        """Returns why frames of a peer cannot be taken; "" if they can."""
        if hello.protocol != PROTOCOL:
            return (
                f"peer {hello.sender} has version {hello.protocol} of the frames, and this peer {PROTOCOL}: start both "
                "with the same version of kstreams_py"
            )
        if hello.cluster != self._cluster:
            return (
                f"peer {hello.sender} belongs to cluster {hello.cluster!r}, and this peer to {self._cluster!r}: give "
                "each cluster addresses of its own"
            )
        if (hello.sender, hello.receiver) != (self.other, self._own):
            return (
                f"peer {hello.sender} looks for {hello.receiver} at the address of {self._own}, which knows it as "
                f"{self.other}: another peer has taken the address"
            )
        return ""

    def _take_items(self, items: Sequence[Item]) -> None:
        for item in items:
            if not isinstance(item, Returned):
                self._taken.append(item)
                continue
            try:
                frame = decode_frame(item.frame)
            except DecodeError:
                self.counts.unexpected += 1
                continue
            if isinstance(frame, SegmentFrame):
                self.counts.came_back += 1
                self._returned.append(frame)

    def _hear(self, received: Received) -> None:
        """Takes the answer of the other peer."""
        self.counts.answers += 1
        progress = False
        for lane, number, bit in (
            (self._data, received.data, DATA),
            (self._control, received.control, CONTROL),
        ):
            found = lane.accept(number)
            if found is None:
                self.counts.unexpected += 1
                return
            progress |= found
            if received.again & bit:
                self.counts.resent += lane.begin_again()
        self.is_open = True
        self._credit = max(self._credit, received.credit)
        for each in received.granted:
            if (flow := self.flows.get((each.job, each.reader))) is not None and each.segments > flow.granted:
                flow.granted = each.segments
                progress = True
        if progress:
            self._asks = 0

    def _give_back(self, frame: SegmentFrame) -> None:
        self.counts.returned += 1
        self.release(frame.job, frame.reader, len(frame))
        self._items.append(Returned(frame.job, encode_frame(frame)))
