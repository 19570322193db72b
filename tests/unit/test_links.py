"""Links between peers: all interleavings of a few frames and faults, long random runs, and each rule on its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Final

import pytest

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.identity import Given, Path, Pattern
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.frames import (
    PROTOCOL,
    Acks,
    ControlFrame,
    Doubts,
    Granted,
    Hello,
    Received,
    Returned,
    SegmentFrame,
    decode_frame,
    encode_frame,
)
from kstreams_py.jobs.messengers.lanes import ANSWER_SECONDS, SEND_AGAIN, IncomingLane, LinkCounts, OutgoingLane
from kstreams_py.jobs.messengers.link import ENDED, Link, LinkLimits
from kstreams_py.jobs.messengers.links import Links
from tests.unit.link_model import Faults, World, explore, half, make_frame, make_id

CASES: Final = [
    ((2, 1), 1, Faults(lose=1, overtake=1)),
    ((2, 1), 1, Faults(lose=1, copy=1)),
    ((2, 1), 1, Faults(lose=1, expire=1)),
    ((2, 2), 2, Faults(lose=1)),
    ((4, 0), 3, Faults(lose=1)),
    ((2, 0), 1, Faults(lose=1, epoch=2)),
    ((1, 1), 2, Faults(copy=1, epoch=2)),
]
"""Frames of each peer, the credit of a task, and the faults."""


@pytest.mark.parametrize(("sent", "credit", "faults"), CASES)
def test_no_interleaving_loses_or_doubles_a_segment_or_ends_in_a_deadlock(
    sent: tuple[int, int], credit: int, faults: Faults
) -> None:
    assert explore(World(sent, credit, faults)) > 100


@pytest.mark.long
@pytest.mark.parametrize(
    ("sent", "credit", "faults"),
    [
        ((2, 2), 1, Faults(lose=2, overtake=1)),
        ((2, 1), 1, Faults(lose=1, copy=1, overtake=1)),
        ((3, 1), 2, Faults(lose=2, copy=1)),
        ((3, 2), 3, Faults(lose=1, overtake=1)),
        ((2, 1), 1, Faults(lose=1, overtake=1, epoch=2)),
        ((2, 2), 2, Faults(copy=1, expire=1)),
    ],
)
def test_no_interleaving_of_more_frames_and_faults_does(sent: tuple[int, int], credit: int, faults: Faults) -> None:
    assert explore(World(sent, credit, faults)) > 1_000


def accept_copies(lane: IncomingLane, number: int, counts: LinkCounts) -> bool:
    lane.accepted = max(lane.accepted, number)
    return True


def accept_before_it_is_there(lane: IncomingLane, number: int, counts: LinkCounts) -> bool:
    is_next = number == lane.accepted + 1
    lane.accepted = max(lane.accepted, number)
    return is_next


def control_behind_data(link: Link, flush: Callable[..., bool], *arguments: Any) -> bool:
    return True if any(flow.waiting for flow in link.flows.values()) else flush(link, *arguments)


def any_epoch(link: Link, epochs: dict[str, int]) -> list[SegmentFrame]:
    found = [frame for inbox in link._inboxes.values() for frame in inbox.held]
    for inbox in link._inboxes.values():
        inbox.held.clear()
    return found


def nothing(*arguments: Any) -> None:
    pass


MUTATIONS: Final[dict[str, tuple[Any, str, Any, tuple[int, int], int, Faults]]] = {
    "one lane for data and control": (
        Link, "_flush_control", partialmethod(control_behind_data, Link._flush_control), (2, 2), 1, Faults(),
    ),
    "copies accepted": (IncomingLane, "take", accept_copies, (2, 1), 1, Faults(copy=1)),
    "accepted before it is there": (IncomingLane, "take", accept_before_it_is_there, (2, 0), 2, Faults(lose=1)),
    "credit not given back": (Link, "release", nothing, (2, 0), 1, Faults()),
    "any epoch accepted": (Link, "ready", any_epoch, (2, 0), 1, Faults(epoch=1)),
    "a lost answer not asked for": (Link, "_ask_for_credit", nothing, (2, 0), 1, Faults(lose=1)),
    "nothing sent again": (OutgoingLane, "expire", lambda *_: False, (1, 0), 1, Faults(lose=1)),
    "frames that come back dropped": (Link, "_give_back", nothing, (1, 0), 1, Faults(epoch=1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_rule_of_a_link_that_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, attribute, changed, sent, credit, faults = MUTATIONS[name]
    monkeypatch.setattr(of, attribute, changed)
    with pytest.raises(AssertionError):
        explore(World(sent, credit, faults))


class Network:
    """Three peers whose frames are lost, copied, late and refused at random; each sends to tasks of all others."""

    LIMITS: Final = LinkLimits(credit=20, frame_segments=5, window=8)

    def __init__(self, seed: int, load: int) -> None:
        self.chance, self.now = random.Random(seed), 0.0
        self.links = {name: Links("c", name, self.chance.random, self.LIMITS) for name in "abc"}
        self.epochs = dict.fromkeys("abc", 1)
        self.left: dict[tuple[str, str], list[int]] = {}
        """The numbers that are not offered yet, by sender and receiver."""
        self.load = load
        self.under_way: list[tuple[str, str, bytes]] = []
        self.got, self.acked = Counter[bytes](), Counter[bytes]()
        self.unreleased: list[tuple[str, str, str, int]] = []
        self.is_faulty = True
        for name, links in self.links.items():
            for other in "abc".replace(name, ""):
                links.add(other)
                self.left[name, other] = [*range(load)]

    def put(self, sender: str, receiver: str, data: bytes) -> bool:
        chance = self.chance.random()
        if self.is_faulty and chance < 0.1:
            return False
        if not self.is_faulty or chance > 0.2:
            self.under_way.append((sender, receiver, data))
        if self.is_faulty and chance > 0.95:
            self.under_way.append((sender, receiver, data))
        return True

    def offer(self, name: str, other: str, numbers: list[int]) -> None:
        job, reader = f"job{numbers[0] % 2}", f"task{numbers[0] % 3}"
        ids = [make_id(name + other, number) for number in numbers]
        count = len(ids)
        fields = ids, [Pattern(1)] * count, [Given(b"")] * count, [Path(b"")]
        self.links[name][other].offer(SegmentFrame(0, job, self.epochs[name], "ch", reader, *fields, [], b""))

    def turn(self) -> None:
        chance = self.chance
        self.now += 0.05
        for name, links in self.links.items():
            if self.is_faulty and chance.random() < 0.01:
                self.epochs[name] = min(self.epochs[name] + 1, max(self.epochs.values()) + 1)
            for link in links:
                left = self.left[name, link.other]
                waiting = sum(link.waiting(f"job{job}", f"task{task}") for job in range(2) for task in range(3))
                if left and waiting < 10:
                    self.offer(name, link.other, [left.pop(0) for _ in range(min(len(left), chance.randrange(1, 6)))])
                for frame in link.returned():
                    self.offer(name, link.other, [int.from_bytes(each[2:], "big") for each in frame.ids])
                for frame in link.ready(dict.fromkeys(("job0", "job1"), self.epochs[name])):
                    assert frame.epoch == self.epochs[name]
                    self.got.update(frame.ids)
                    self.unreleased.append((name, link.other, frame.job, len(frame)))
                    link.release(frame.job, frame.reader, len(frame))
                    link.offer_items([Acks(frame.job, frame.ids, [0] * len(frame))])
                for item in link.items():
                    self.acked.update(item.ids if isinstance(item, Acks) else ())
                self.check(link)
            links.flush(self.now, partial(self.put, name))
        chance.shuffle(self.under_way)
        kept = [each for each in self.under_way if self.is_faulty and chance.random() < 0.3]
        for sender, receiver, data in self.under_way[len(kept) :]:
            self.links[receiver].take([(sender, data)], self.now)
            assert self.links[receiver].garbage == 0
        self.under_way = self.under_way[: len(kept)]

    def check(self, link: Link) -> None:
        assert all(sum(map(len, inbox.held)) <= self.LIMITS.credit for inbox in link._inboxes.values())
        assert max(len(lane.frames) for lane in (link._data, link._control)) <= self.LIMITS.window

    def run(self) -> None:
        for turns in range(1, 5_000):
            self.is_faulty = turns < 400
            if not self.is_faulty:
                self.epochs = dict.fromkeys("abc", max(self.epochs.values()))
            self.turn()
            if (
                not self.is_faulty
                and not any(self.left.values())
                and not any(link.unaccepted for links in self.links.values() for link in links)
            ):
                break
        expected = Counter(make_id(name + other, number) for name, other in self.left for number in range(self.load))
        assert self.got == expected
        assert self.acked == expected
        for links in self.links.values():
            for link in links:
                assert not any(inbox.held for inbox in link._inboxes.values())
                assert (link._data.bytes, link._control.bytes, link._returned, link._taken) == (0, 0, [], [])


@pytest.mark.parametrize("seed", range(4))
def test_random_faults_lose_and_double_nothing_and_memory_is_bounded(seed: int) -> None:
    Network(seed, 300).run()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 204))
def test_more_random_faults_lose_and_double_nothing(seed: int) -> None:
    Network(seed, 600).run()


class Pair:
    """Two links with a network that loses nothing unless a test drops what is under way."""

    def __init__(self, **limits: int) -> None:
        self.now = 0.0
        own = LinkLimits(**{"credit": 2, "frame_segments": 1, **limits})
        wait = Backoff(initial=1, factor=2, longest=8, jitter=0)
        self.first, self.second = (Link(("c", *names), half, own, wait) for names in (("a", "b"), ("b", "a")))
        self.turn()
        self.turn()
        assert self.first.is_open
        assert self.second.is_open

    def turn(self) -> None:
        """Lets both send; what came in the turn before is answered."""
        self.now += ANSWER_SECONDS
        for link, other in ((self.first, self.second), (self.second, self.first)):
            for data in flush(link, self.now):
                other.take(decode_frame(data), self.now)


def flush(link: Link, now: float) -> list[bytes]:
    """What a link sends."""
    sent = list[bytes]()

    def send(data: bytes) -> bool:
        sent.append(data)
        return True

    link.flush(now, send)
    return sent


def test_nothing_but_hello_is_sent_before_the_other_peer_answers() -> None:
    link = Link(("c", "a", "b"), half, backoff=Backoff(initial=1, factor=2, longest=4, jitter=0))
    link.offer(make_frame("a", 0, 1))
    link.offer_items([Doubts("job", [])])
    hello = encode_frame(Hello(PROTOCOL, "c", "a", "b"))
    times = [0.0, 0.5, 1.0, 2.9, 3.0, 7.0, 10.9, 11.0]
    assert [flush(link, now) for now in times] == [[hello], [], [hello], [], [hello], [hello], [], [hello]]
    assert link.next_due() == 15.0


@pytest.mark.parametrize(
    ("hello", "refusal"),
    [
        (
            Hello(2, "c", "b", "a"),
            "peer b has version 2 of the frames, and this peer 1: start both with the same version of kstreams_py",
        ),
        (
            Hello(1, "bank", "b", "a"),
            "peer b belongs to cluster 'bank', and this peer to 'c': give each cluster addresses of its own",
        ),
        (
            Hello(1, "c", "b", "z"),
            "peer b looks for z at the address of a, which knows it as b: another peer has taken the address",
        ),
    ],
)
def test_hello_of_another_version_cluster_or_peer_is_refused_by_name(hello: Hello, refusal: str) -> None:
    link = Link(("c", "a", "b"), half)
    link.take(hello, 1.0)
    link.take(make_frame("b", 0, 1), 1.0)
    link.take(Received(0, 0, 0, 9), 1.0)
    assert (link.refusal, link.counts.unexpected, link.is_open, link.heard_at) == (refusal, 3, False, None)
    assert link.ready({"job": 1}) == []
    link.take(Hello(1, "c", "b", "a"), 2.0)
    assert (link.refusal, link.heard_at) == ("", 2.0)


def test_segments_without_credit_wait_and_those_for_another_task_do_not() -> None:
    pair = Pair(credit=2)
    for number in range(5):
        pair.first.offer(make_frame("a", number, 1, "slow"))
    pair.first.offer(make_frame("a", 9, 1, "fast"))
    pair.turn()
    assert (pair.first.waiting("job", "slow"), pair.first.waiting("job", "fast")) == (3, 0)
    assert [(each.reader, each.number) for each in pair.second.ready({"job": 1})] == [
        ("slow", 1),
        ("slow", 3),
        ("fast", 2),
    ]
    pair.second.release("job", "slow", 1)
    pair.turn()
    pair.turn()
    assert pair.first.waiting("job", "slow") == 2
    assert [each.ids for each in pair.second.ready({"job": 1})] == [[make_id("a", 2)]]


def test_time_out_sends_the_first_frame_again_until_there_is_an_answer() -> None:
    pair = Pair(credit=9)
    for number in range(3):
        pair.first.offer(make_frame("a", number, 1))
    assert len(flush(pair.first, 10.0)) == 3  # they are lost
    times = [10.9, 11.0, 12.9, 13.0, 16.9, 17.0]
    again = [flush(pair.first, now) for now in times]
    assert [[decode_frame(each).number for each in sent] for sent in again] == [[], [1], [], [1], [], [1]]  # type: ignore[union-attr]
    assert (pair.first.counts.resent, pair.first.next_due()) == (3, 25.0)
    pair.second.take(decode_frame(again[-1][0]), 17.0)
    pair.now = 17.0
    for _ in range(3):
        pair.turn()
    assert [each.number for each in pair.second.ready({"job": 1})] == [1, 2, 3]
    assert (pair.first.unaccepted, pair.first.next_due()) == (0, None)


def test_answer_waits_for_more_frames_unless_many_have_come_or_one_that_is_there() -> None:
    pair = Pair(credit=20, window=16)
    for number in range(6):
        pair.first.offer(make_frame("a", number, 1))
    sent = [decode_frame(each) for each in flush(pair.first, 1.0)]
    due = 2 + ANSWER_SECONDS

    def answer(now: float) -> list[Any]:
        return [decode_frame(each) for each in flush(pair.second, now)]

    pair.second.take(sent[0], 2.0)
    assert (answer(2.0), pair.second.next_due()) == ([], due)
    assert (answer(due), pair.second.next_due()) == ([Received(1, 0, 0, 20)], None)
    for each in sent[1:5]:
        pair.second.take(each, 3.0)
    assert answer(3.0) == [Received(5, 0, 0, 20)]
    pair.second.take(sent[4], 4.0)
    assert answer(4.0) == [Received(5, 0, 0, 20)]
    pair.second.release("job", "task", 4)
    assert (answer(5.0), pair.second.next_due()) == ([], 5 + ANSWER_SECONDS)
    pair.second.release("job", "task", 1)
    assert answer(5.0) == [Received(5, 0, 0, 20, [Granted("job", "task", 25)])]


def test_gap_is_asked_for_once_and_copies_are_counted() -> None:
    pair = Pair(credit=9)
    for number in range(4):
        pair.first.offer(make_frame("a", number, 1))
    sent = [decode_frame(each) for each in flush(pair.first, 0.0)]
    for each in (*sent[2:], sent[0], sent[0]):
        pair.second.take(each, 0.0)
    assert (pair.second.counts.missed, pair.second.counts.doubled) == (2, 1)
    (answer,) = flush(pair.second, 0.0)
    assert decode_frame(answer) == Received(1, 0, 1, 9)
    for _ in range(2):
        pair.first.take(decode_frame(answer), 0.0)
    assert [decode_frame(each).number for each in flush(pair.first, 0.0)] == [2, 3, 4]  # type: ignore[union-attr]
    assert pair.first.counts.resent == 1


def test_messenger_that_takes_nothing_is_asked_again_soon_and_control_comes_first() -> None:
    pair = Pair()
    pair.first.offer(make_frame("a", 0, 1))
    pair.first.offer_items([Doubts("job", [])])
    asked = list[bytes]()

    def refuse(data: bytes) -> bool:
        asked.append(data)
        return False

    pair.first.flush(5.0, refuse)
    assert asked == [encode_frame(ControlFrame(1, [Doubts("job", [])]))]
    assert pair.first.next_due() == 5.0 + SEND_AGAIN
    assert [type(decode_frame(each)) for each in flush(pair.first, 5.1)] == [ControlFrame, SegmentFrame]


def test_frames_of_an_older_epoch_come_back_and_those_of_a_newer_one_are_kept() -> None:
    pair = Pair(credit=9)
    frames = [make_frame("a", number, epoch) for number, epoch in enumerate((4, 5, 6, 5))]
    for frame in frames:
        pair.first.offer(frame)
    pair.turn()
    assert pair.second.ready({}) == []
    assert pair.second.ready({"job": 5}) == [frames[1], frames[3]]
    pair.turn()
    assert (pair.first.returned(), pair.first.returned()) == ([frames[0]], [])
    assert (pair.first.counts.came_back, pair.second.counts.returned) == (1, 1)
    assert pair.second.ready({"job": 6}) == [frames[2]]
    pair.first.offer(make_frame("a", 7, 6))
    pair.turn()
    assert pair.second.ready({"job": ENDED}) == []
    pair.turn()
    assert [each.ids for each in pair.first.returned()] == [[make_id("a", 7)]]


def test_garbage_that_comes_back_and_answers_for_what_was_never_sent_are_counted() -> None:
    pair = Pair()
    pair.first.take(ControlFrame(1, [Returned("job", b"garbage")]), 0.0)
    pair.first.take(Received(7, 0, 0, 9), 0.0)
    assert (pair.first.counts.unexpected, pair.first.returned(), pair.first.items()) == (2, [], [])


def test_many_items_travel_in_few_frames_and_in_order() -> None:
    pair = Pair()
    items = [Doubts("job", [make_id("a", number)]) for number in range(1_200)]
    pair.first.offer_items(items)
    pair.turn()
    assert pair.second.items() == items
    assert pair.first._control.last == 3
    large = Acks("job", [make_id("a", number) for number in range(1_200)], [*range(1_200)])
    pair.first.offer_items([large])
    pair.turn()
    found = [item for item in pair.second.items() if isinstance(item, Acks)]
    assert [len(each.ids) for each in found] == [500, 500, 200]
    assert [pattern for each in found for pattern in each.patterns] == large.patterns


def test_reconnected_link_sends_again_only_what_was_not_accepted() -> None:
    pair = Pair(credit=9)
    for number in range(3):
        pair.first.offer(make_frame("a", number, 1))
    sent = flush(pair.first, 0.0)
    pair.second.take(decode_frame(sent[0]), 0.0)  # its answer is lost, as are the others
    flush(pair.second, 0.0)
    pair.first.reconnect()
    assert [type(decode_frame(each)) for each in flush(pair.first, 0.1)] == [Hello]
    pair.now = 5.0
    for _ in range(3):
        pair.turn()
    assert [each.number for each in pair.second.ready({"job": 1})] == [1, 2, 3]
    assert (pair.first.unaccepted, pair.second.counts.doubled) == (0, 0)


def test_closed_link_returns_what_was_not_sent_and_what_may_have_arrived() -> None:
    pair = Pair(credit=2)
    frames = [make_frame("a", number, 1) for number in range(4)]
    for frame in frames:
        pair.first.offer(frame)
    flush(pair.first, 0.0)
    unsent, unknown = pair.first.close()
    assert (unsent, unknown) == (frames[2:], frames[:2])


def test_job_that_has_ended_leaves_nothing_behind() -> None:
    pair = Pair(credit=2)
    for number in range(4):
        pair.first.offer(make_frame("a", number, 1))
    pair.turn()
    for link in (pair.first, pair.second):
        link.forget("job")
    pair.turn()
    assert (pair.first.unaccepted, pair.first.flows, pair.second._inboxes) == (0, {}, {})
    assert pair.second.ready({"job": 1}) == []


def test_frame_must_fit_into_the_credit() -> None:
    with pytest.raises(SettingsError, match="give a credit of at least the segments of a frame"):
        LinkLimits(credit=499)


def test_frames_of_strangers_and_garbage_are_dropped_and_counted() -> None:
    links = Links("c", "a", half)
    link = links.add("b")
    links.take([("z", b"x"), ("b", b"garbage"), ("b", encode_frame(Hello(1, "c", "b", "a")))], 3.0)
    assert (links.strangers, links.garbage, link.heard_at) == (1, 1, 3.0)
    assert (len(links), [*links], links["b"], "z" in links) == (1, [link], link, False)
    sent = list[tuple[str, bytes]]()

    def send(peer: str, data: bytes) -> bool:
        sent.append((peer, data))
        return True

    links.flush(3.0, send)
    assert [(peer, type(decode_frame(data))) for peer, data in sent] == [("b", Hello), ("b", Received)]
    assert links.next_due() == link.next_due() == 3.5
    assert links.add("b") is link
    link.offer(make_frame("a", 0, 1))
    assert len(links.remove("b").unsent) == 1
    assert links.remove("b") == ([], [])
    assert links.next_due() is None


def test_peer_that_does_not_answer_is_found_while_something_waits_for_it() -> None:
    links = Links("c", "a", half)
    link = links.add("b")
    assert [links.find_silent(float(now)) for now in range(100)] == [[]] * 100, "nothing waits for it"
    link.offer(make_frame("a", 0, 1))
    assert [links.find_silent(float(now)) for now in range(100, 132)] == [[]] * 30 + [["b"]] * 2
    assert links.find_silent(131.5) == [], "the last look was just now"
    hello, answer = Hello(1, "c", "b", "a"), Received(0, 0, 0, 1, [])
    links.take([("b", encode_frame(hello))], 132.0)
    assert links.find_silent(132.0) == ["b"], "it does not get what is sent to it"
    links.take([("b", encode_frame(answer))], 133.0)
    assert [links.find_silent(float(now)) for now in range(133, 164)] == [[]] * 30 + [["b"]]
    assert links.find_silent(200.0) == [], "this peer stood still"
    found = [links.find_silent(200.0 + 20 * look) for look in range(1, 7)]
    assert found == [[]] * 5 + [["b"]], "while it is in calls of its own, little counts"


def test_counts_of_links_that_were_removed_stay() -> None:
    links = Links("shop", "a", lambda: 0.5)
    for name in ("b", "c"):
        links.add(name).counts.resent = 3
    links["b"].counts.came_back = 1
    links.remove("b")
    links.remove("d")
    assert links.counts() == LinkCounts(resent=6, came_back=1)
