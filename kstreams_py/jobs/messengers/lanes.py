"""One lane of a link: numbers, frames that are not accepted yet, and when they are sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass
from operator import add
from typing import Final

SEND_AGAIN: Final = 0.02
"""Seconds until a frame that the messenger did not take is offered again."""

ANSWER_SECONDS: Final = 0.02
"""Seconds in which a frame is answered: much less than a sender waits until it sends a frame again."""

ANSWER_PART: Final = 4
"""An answer is due at once after a window, or the credit of a task, divided by this number."""

Send = Callable[[bytes], bool]
"""Sends a frame to the other peer; returns False if it cannot be sent now."""


@dataclass
class LinkCounts:
    """What has happened on a link.

    - `doubled`: frames that had been accepted before.
    - `missed`: frames that came before one with a lower number, and are sent again.
    - `resent`: how often frames were sent again, after a time-out or because the other peer asked.
    - `returned`: frames given back to the other peer because of their old epoch.
    - `came_back`: frames that the other peer gave back.
    - `unexpected`: frames before the first Hello, frames of a refused peer, and reports on what was never sent.
    - `answers`: frames that report what the other peer has accepted, or may be sent.
    """

    doubled: int = 0
    missed: int = 0
    resent: int = 0
    returned: int = 0
    came_back: int = 0
    unexpected: int = 0
    answers: int = 0

    def __add__(self, other: LinkCounts) -> LinkCounts:
        return LinkCounts(*map(add, astuple(self), astuple(other)))


class OutgoingLane:
    """The frames of one lane that are numbered and not accepted."""

    def __init__(self) -> None:
        self.last = 0
        """The last number given."""
        self.frames = deque[bytes]()
        self.bytes = 0
        self.sent = 0
        """How many of these frames, from the first, the messenger has taken since sending last began again."""
        self.attempts = 0
        """How many time-outs have passed without an answer: then only the first frame is sent again."""
        self.due: float | None = None
        """When the first frame is sent again; None if the messenger has taken none."""
        self.offer_due: float | None = None
        """When the messenger is asked again; None if it has taken all."""
        self._again_at = 0
        """The number of the first frame when the other peer last asked for it: many frames may come behind a gap."""

    def add(self, data: bytes) -> None:
        """Adds the frame that has the last number."""
        self.frames.append(data)
        self.bytes += len(data)

    def accept(self, number: int) -> bool | None:
        """Drops the frames up to this number. Returns whether there were any; None for a number that was never sent."""
        if number > self.last:
            return None
        count = number - (self.last - len(self.frames))
        if count <= 0:
            return False
        for _ in range(count):
            self.bytes -= len(self.frames.popleft())
        self.sent = max(self.sent - count, 0)
        self.attempts, self.due = 0, None
        return True

    def begin_again(self) -> bool:
        """Lets `flush` send all again, once for each frame that the other peer asks for; returns whether it does."""
        first = self.last - len(self.frames) + 1
        if not self.sent or self._again_at == first:
            return False
        self._again_at, self.sent = first, 0
        return True

    def restart(self) -> None:
        """Lets `flush` send all frames again, after the connection was lost."""
        self.sent, self.attempts, self.due, self._again_at = 0, 0, None, 0

    def expire(self, now: float) -> bool:
        """Lets `flush` send the first frame again if its time-out has passed. Returns whether it has."""
        if self.due is None or now < self.due:
            return False
        self.sent, self.due, self._again_at = 0, None, 0
        self.attempts += 1
        return True

    def flush(self, send: Send, now: float, wait: Callable[[int], float]) -> bool:
        """Sends frames; returns False if the messenger takes no more."""
        # after a time-out one frame asks for an answer, which says whether the others have come
        count = min(len(self.frames), 1) if self.attempts else len(self.frames)
        self.offer_due = None
        while self.sent < count:
            if not send(self.frames[self.sent]):
                self.offer_due = now + SEND_AGAIN
                break
            self.sent += 1
        if self.sent and self.due is None:
            self.due = now + wait(self.attempts + 1)
        return self.offer_due is None


class IncomingLane:
    """The numbers of one lane that were accepted."""

    def __init__(self) -> None:
        self.accepted = 0
        self.is_missing = False
        """Whether a frame came that is not the next one."""

    def take(self, number: int, counts: LinkCounts) -> bool:
        """Returns whether a frame is the next one."""
        if number == self.accepted + 1:
            self.accepted = number
            return True
        if number <= self.accepted:
            counts.doubled += 1
        else:
            counts.missed += 1
            self.is_missing = True
        return False


class OwedAnswer:
    """When the other peer gets an answer to its frames: soon, so that one answer covers several, or at once."""

    def __init__(self, frames_max: int, credit_max: int) -> None:
        """The answer is due at once after `frames_max` frames, or after tasks have taken `credit_max` segments."""
        self._frames_max, self._credit_max = max(1, frames_max), max(1, credit_max)
        self._frames, self._credit = 0, 0
        """The frames that have come, and the segments that tasks have taken, since the last answer."""
        self.due: float | None = None
        """When it is due; None if none is owed, or only for credit since the last look."""

    def note_frame(self, now: float, *, is_next: bool) -> None:
        """Notes a frame. If it is not the next one, the other peer waits for the answer."""
        self._frames += 1
        if not is_next:
            self.due = now
        elif self.due is None:
            self.due = now + ANSWER_SECONDS

    def note_credit(self, segments: int) -> None:
        """Notes that a task has taken segments."""
        self._credit += segments

    def is_due(self, now: float) -> bool:
        """Returns whether the answer is to be sent now."""
        if self._frames >= self._frames_max or self._credit >= self._credit_max:
            return True
        if self.due is None and self._credit:
            self.due = now + ANSWER_SECONDS
        return self.due is not None and now >= self.due

    def clear(self) -> None:
        """Begins again after an answer."""
        self._frames, self._credit, self.due = 0, 0, None
