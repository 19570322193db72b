"""Two peers, their links and a network that loses, copies and reorders frames: all interleavings within a budget.

A peer works whenever a frame has come: it takes what is ready, acknowledges it through the lane for control, and gives
the credit back once the other peer has accepted that acknowledgement. So buffers that hold each other up are found.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kstreams_py.jobs.identity import Given, Path, Pattern, SegmentId
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.frames import Acks, SegmentFrame, decode_frame
from kstreams_py.jobs.messengers.lanes import LinkCounts
from kstreams_py.jobs.messengers.link import Link, LinkLimits

NAMES: Final = ("a", "b")

OTHER: Final = {"a": "b", "b": "a"}

LATER: Final = 1e9
"""A time at which each time-out has passed."""

ROUNDS: Final = 200
"""The most steps of a network without faults until everything is there."""


def half() -> float:
    return 0.5


def make_id(name: str, number: int) -> SegmentId:
    return SegmentId(name.encode() + number.to_bytes(24 - len(name), "big"))


def make_frame(name: str, number: int, epoch: int, reader: str = "task") -> SegmentFrame:
    """A frame of one segment."""
    return SegmentFrame(
        0,
        "job",
        epoch,
        "channel",
        reader,
        [make_id(name, number)],
        [Pattern(1)],
        [Given(b"")],
        [Path(b"")],
        [],
        b"\x91\1",
    )


@dataclass
class Side:
    """One peer."""

    link: Link
    epoch: int = 1
    got: list[SegmentId] = field(default_factory=list)
    acked: list[SegmentId] = field(default_factory=list)
    """The segments that the other peer has acknowledged."""
    unreleased: list[str] = field(default_factory=list)
    """The tasks of segments whose credit is not given back yet."""
    returned: list[SegmentFrame] = field(default_factory=list)
    """What came back, and waits for the newer epoch."""


@dataclass
class Faults:
    """How many faults of each kind may still happen."""

    lose: int = 0
    copy: int = 0
    overtake: int = 0
    expire: int = 0
    epoch: int = 0


class World:
    """Two peers and what is between them."""

    def __init__(self, sent: tuple[int, int], credit: int, faults: Faults) -> None:
        """`sent`: how many frames each peer sends."""
        limits = LinkLimits(credit=credit, frame_segments=1, window=2)
        wait = Backoff(initial=1, factor=1, longest=1, jitter=0)
        self.sides = {name: Side(Link(("c", name, OTHER[name]), half, limits, wait)) for name in NAMES}
        self.net: dict[str, list[bytes]] = {name: [] for name in NAMES}
        """The frames under way, by their receiver."""
        self.credit, self.faults, self.sent = credit, Faults(), dict(zip(NAMES, sent, strict=True))
        while not all(side.link.is_open for side in self.sides.values()):
            self.go_on()
        for name in NAMES:
            self.net[name].clear()
        self.faults = faults
        for name, count in self.sent.items():
            for number in range(count):
                self.sides[name].link.offer(make_frame(name, number, 1))
        for name in NAMES:
            self.work(name)

    def work(self, name: str, now: float = 0.0) -> None:
        """Lets a peer take what has come, and send what is due."""
        side, link = self.sides[name], self.sides[name].link
        for frame in link.ready({"job": side.epoch}):
            assert frame.epoch == side.epoch, "a frame of another epoch is ready"
            side.got += frame.ids
            side.unreleased += [frame.reader] * len(frame)
            link.offer_items([Acks("job", frame.ids, [0] * len(frame))])
        for item in link.items():
            assert isinstance(item, Acks)
            side.acked += item.ids
        side.returned += link.returned()
        left = list[SegmentFrame]()
        for frame in side.returned:
            if side.epoch > frame.epoch:
                link.offer(make_frame(name, int.from_bytes(frame.ids[0][1:], "big"), side.epoch))
            else:
                left.append(frame)
        side.returned = left
        if not link._items and not link._control.frames:
            for reader in side.unreleased:
                link.release("job", reader, 1)
            side.unreleased = []
        link.flush(now, partial(self._put, OTHER[name]))
        normalize(link)
        self.check()

    def _put(self, receiver: str, data: bytes) -> bool:
        if data not in self.net[receiver]:  # a copy of what is under way is a fault of its own
            self.net[receiver].append(data)
        return True

    def check(self) -> None:
        """Asserts what holds at each time."""
        for name, side in self.sides.items():
            assert max(Counter(side.got).values(), default=1) == 1, "a segment is doubled"
            assert max(Counter(side.acked).values(), default=1) == 1, "an acknowledgement is doubled"
            held = sum(len(inbox.held) for inbox in side.link._inboxes.values()) + len(side.unreleased)
            assert held <= self.credit, "a peer holds more than it granted"
            if side.epoch == self.sides[OTHER[name]].epoch == 1:
                assert side.got == sorted(side.got), "segments are not in order"

    @property
    def is_done(self) -> bool:
        everything = {name: [make_id(name, number) for number in range(count)] for name, count in self.sent.items()}
        return all(
            sorted(side.got) == everything[OTHER[name]]
            and sorted(side.acked) == everything[name]
            and not side.unreleased
            and side.link.unaccepted == 0
            for name, side in self.sides.items()
        )

    def steps(self) -> Iterator[tuple[str, str, int]]:
        """The steps that are possible: kind, peer, and number of a frame under way."""
        faults = self.faults
        for name in NAMES:
            for number in range(len(self.net[name])):
                if number == 0 or faults.overtake:
                    yield "overtake" if number else "deliver", name, number
                if faults.lose:
                    yield "lose", name, number
                if faults.copy:
                    yield "copy", name, number
            if faults.expire:
                yield "expire", name, 0
            if faults.epoch and self.sides[name].epoch == 1:
                yield "epoch", name, 0

    def do(self, step: tuple[str, str, int]) -> None:
        """Makes a step."""
        kind, name, number = step
        if kind != "deliver":
            setattr(self.faults, kind, getattr(self.faults, kind) - 1)
        if kind == "epoch":
            self.sides[name].epoch = 2
        if kind in ("deliver", "overtake", "copy", "lose"):
            data = self.net[name][number]
            if kind != "copy":
                del self.net[name][number]
            if kind == "lose":
                return
            self.sides[name].link.take(decode_frame(data), 0.0)
        self.work(name, LATER if kind == "expire" else 0.0)

    def go_on(self) -> None:
        """Makes the next step of a network without faults: what is under way arrives, then time-outs pass."""
        for name in NAMES:
            if self.net[name]:
                self.do(("deliver", name, 0))
                return
        for name in NAMES:
            side = self.sides[name]
            side.epoch = max(each.epoch for each in self.sides.values())
            self.work(name, LATER)


def normalize(link: Link) -> None:
    """Makes states equal that differ in times and counts alone."""
    link.counts, link.heard_at = LinkCounts(), None
    link._asks, link._ask_due = min(link._asks, 1), min(link._ask_due, 1.0)
    for lane in (link._data, link._control):
        lane.attempts, lane.offer_due = min(lane.attempts, 1), None
        lane.due = None if lane.due is None else 1.0


def explore(world: World) -> int:
    """Visits all states that can be reached, and asserts that each leads to the end; returns how many there are."""
    first = pickle.dumps(world)
    seen, waiting, good = {first}, [first], set[bytes]()
    while waiting:
        data = waiting.pop()
        finish(data, good)
        for step in load(data).steps():
            after = load(data)
            after.do(step)
            made = pickle.dumps(after)
            if made not in seen:
                seen.add(made)
                waiting.append(made)
    return len(seen)


def load(data: bytes) -> World:
    world: Any = pickle.loads(data)
    assert isinstance(world, World)
    return world


def finish(data: bytes, good: set[bytes]) -> None:
    """Asserts that a state leads to the end without further faults. `good`: states that are known to."""
    world, passed = load(data), list[bytes]()
    for _ in range(ROUNDS):
        if data in good or world.is_done:
            break
        passed.append(data)
        world.go_on()
        data = pickle.dumps(world)
    else:
        raise AssertionError("the peers wait for each other")
    good.update(passed)
