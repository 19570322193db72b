"""Readers of one job agree that one of them reads its suspects alone: in any order of messages, joins and leaves."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any, Final

import pytest

from kstreams_py.jobs.cluster.commands import JobId, PeerId
from kstreams_py.jobs.cluster.state import Assignment
from kstreams_py.jobs.peers.agreement import Agreement, ReaderId, Wish
from kstreams_py.jobs.peers.peer import Peer
from tests.tables import each_case

STEPS: Final = 3_000


class World:
    """Readers with links between them, which deliver in order and late; each reader reads as InputTask does.

    Each learns late of who reads, and of the others; the source of some is away for a while.
    """

    def __init__(self, seed: int) -> None:
        self.chance, self.epoch, self.now = random.Random(seed), 0, 0.0
        self.readers: dict[ReaderId, Agreement] = {}
        self.views: dict[ReaderId, frozenset[ReaderId]] = {}
        """The readers that each reader knows."""
        self.links: dict[tuple[ReaderId, ReaderId], deque[Wish]] = {}
        self.under_way = dict[ReaderId, int]()
        self.suspects, self.tried = dict[ReaderId, int](), 0
        """The suspects of each reader that wait or are under way, and how many were read."""
        self.alone: dict[ReaderId, frozenset[ReaderId]] = {}
        """The readers whose suspects are under way, each with those that it knew as it read them."""
        self.away = set[ReaderId]()
        """The readers whose source is away."""

    def join(self) -> None:
        self.epoch += 1
        reader = ReaderId(self.epoch % 7, self.epoch)  # a later one may come before an earlier one in their order
        self.readers[reader] = Agreement(reader)
        self.under_way[reader], self.suspects[reader] = 0, 0
        for other in self.readers:
            self.links[reader, other], self.links[other, reader] = deque(), deque()
        self.adopt(reader)

    def leave(self, reader: ReaderId) -> None:
        del self.readers[reader], self.views[reader], self.under_way[reader], self.suspects[reader]
        self.alone.pop(reader, None)

    def adopt(self, reader: ReaderId) -> None:
        self.views[reader] = frozenset(self.readers)
        self.readers[reader].keep(self.views[reader])

    def step(self, *, ends: bool) -> None:
        """A message arrives, or a reader learns who reads, or has a turn. `ends`: no more inputs come."""
        self.now += 0.01
        waiting = [(sender, to) for (sender, to), link in self.links.items() if link and to in self.readers]
        reader, choice = self.chance.choice([*self.readers]), self.chance.random()
        if waiting and choice < 0.6:
            sender, to = self.chance.choice(waiting)
            self.readers[to].take(sender, self.links[sender, to].popleft())
        elif choice < 0.7:
            self.adopt(reader)
        else:
            (self.away.add if self.chance.random() < 0.02 and not ends else self.away.discard)(reader)
            self.turn(reader, ends=ends)

    def turn(self, reader: ReaderId, *, ends: bool) -> None:
        agreement, chance = self.readers[reader], self.chance
        if self.under_way[reader] and chance.random() < 0.5:
            self.under_way[reader] -= 1
            if reader in self.alone:
                self.suspects[reader] -= 1
                self.alone.pop(reader, None)
        if not ends and not self.suspects[reader] and chance.random() < 0.05:
            self.suspects[reader] = chance.randrange(1, 4)
        asks, is_empty = self.suspects[reader] > 0, not self.under_way[reader]
        is_away = reader in self.away and reader not in self.alone
        for other, wish in agreement.turn(self.now, asks=asks and not is_away, is_empty=is_empty):
            self.links[reader, other].append(wish)
        known = [each for each in self.views[reader] if each in self.readers]
        if asks:
            if is_empty and agreement.is_alone:
                assert not any(self.under_way[each] for each in known), "something is under way beside suspects"
                self.under_way[reader], self.tried = 1, self.tried + 1
                self.alone[reader] = self.views[reader]
        elif not agreement.must_wait and not ends:
            # a reader that has just come may not have heard of a request
            beside = [each for each in known if reader in self.alone.get(each, ())]
            assert not beside, "an input is read beside suspects"
            self.under_way[reader] = min(self.under_way[reader] + 1, 3)


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(10, 300))])
def test_suspects_are_alone_and_all_of_them_have_their_turn(seed: int) -> None:
    world = World(seed)
    for _ in range(world.chance.randrange(1, 5)):
        world.join()
    for _ in range(STEPS):
        world.step(ends=False)
        if world.chance.random() < 0.005:
            if len(world.readers) > 1 and world.chance.random() < 0.5:
                world.leave(world.chance.choice([*world.readers]))
            elif len(world.readers) < 6:
                world.join()
    for _ in range(2 * STEPS):
        world.step(ends=True)
    assert (set(world.suspects.values()), world.alone) == ({0}, {})
    assert world.tried > 20


A, B = ReaderId(1, 1), ReaderId(2, 1)


@each_case(
    ("asks", "is_empty", "request", "answered"),
    [(False, True, 3, 3), (False, False, 3, 0), (True, True, 3, 3), (True, False, 3, 0), (False, True, 0, 0)],
)
def test_reader_answers_once_nothing_is_under_way(*, asks: bool, is_empty: bool, request: int, answered: int) -> None:
    agreement = Agreement(B)
    agreement.keep([A, B])
    agreement.take(A, Wish(request=request))
    told = dict(agreement.turn(0.0, asks=asks, is_empty=is_empty)).get(A, Wish())
    assert (told.answer, agreement.must_wait) == (answered, request > 0)


def test_reader_that_lets_another_one_go_first_needs_all_answers_again() -> None:
    agreement = Agreement(B)
    agreement.keep([A, B])
    agreement.turn(0.0, asks=True, is_empty=True)
    agreement.take(A, Wish(request=0, answer=1))
    assert agreement.is_alone
    agreement.take(A, Wish(request=1, answer=1))
    assert agreement.turn(0.0, asks=True, is_empty=True) == [(A, Wish(request=2, answer=1))]
    assert not agreement.is_alone


def test_reader_asks_and_waits_for_nobody_while_another_one_is_unreachable() -> None:
    agreement = Agreement(A)
    agreement.keep([A, B])
    agreement.take(B, Wish(request=1))
    assert agreement.turn(0.0, asks=True, is_empty=True) == [(B, Wish(request=1))]
    assert agreement.turn(1.0, asks=True, is_empty=True, unreachable=[B.number]) == [(B, Wish())]
    assert agreement.turn(9.0, asks=True, is_empty=True, unreachable=[B.number]) == [], "copies do not pile up"
    assert not agreement.must_wait
    assert agreement.turn(9.0, asks=True, is_empty=True) == [(B, Wish(request=2))]


def test_wish_that_came_before_its_sender_was_known_is_sent_again() -> None:
    asks, answers = Agreement(A), Agreement(B)
    asks.keep([A, B])
    ((_, wish),) = asks.turn(0.0, asks=True, is_empty=True)
    answers.take(A, wish)
    answers.keep([A, B])
    assert (answers.must_wait, asks.turn(0.9, asks=True, is_empty=True)) == (False, [])
    ((_, wish),) = asks.turn(1.0, asks=True, is_empty=True)
    answers.take(A, wish)
    assert answers.turn(1.0, asks=False, is_empty=True) == [(A, Wish(request=0, answer=1))]


def test_reader_of_another_job_forgets_what_readers_of_the_one_before_have_asked() -> None:
    """Both jobs began with their first epoch: a request that was taken back after the move would stand for ever."""
    peer, other = object.__new__(Peer), ReaderId(2, 1)
    peer.__dict__.update(me=PeerId("one"), _agreement=None)
    members = {"one": SimpleNamespace(number=1), "two": SimpleNamespace(number=2)}
    before: Any = SimpleNamespace(assignments={})
    for job, asked in (("first", False), ("first", True), ("second", False)):
        tasks = {"one": Assignment(JobId(job), "read-a", 1), "two": Assignment(JobId(job), "read-b", 1)}
        after: Any = SimpleNamespace(assignments=tasks, peers=members)
        peer._find_readers(before, after)
        assert peer._agreement is not None
        assert peer._agreement.must_wait == asked
        peer._agreement.take(other, Wish(request=1))
        before = after
