"""Which peers are silent, and who holds a lease: peers with clocks of their own, one log that may be away."""

from __future__ import annotations

import random
from collections.abc import Iterable

from kstreams_py.jobs.cluster.commands import PeerId
from kstreams_py.jobs.cluster.heartbeats import Heartbeats

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


class Peers:
    """Peers that send heartbeats to one log and read it to its end at each tick of 0.5 s."""

    def __init__(self, *names: PeerId) -> None:
        self.members = [*names]
        self.beats = {name: Heartbeats(name, interval=1.0, silent_after=4) for name in names}
        self.log: list[tuple[PeerId, int]] = []
        self.read = dict.fromkeys(names, 0)
        self.now = 100.0
        self.found: dict[PeerId, list[PeerId]] = {}

    def tick(self, *, frozen: Iterable[PeerId] = (), is_away: bool = False) -> None:
        """One tick of 0.5 s. `frozen`: the peers that stand still. `is_away`: the log takes and gives nothing."""
        self.now += 0.5
        for name, beats in self.beats.items():
            if name in frozen or is_away:
                continue
            if (number := beats.next_number(self.now)) is not None:
                self.log.append((name, number))
            for peer, heard in self.log[self.read[name] :]:
                beats.hear(peer, heard, self.members)
            self.read[name] = len(self.log)
            self.found[name] = beats.silent()

    def run(self, ticks: int, *, frozen: Iterable[PeerId] = (), is_away: bool = False) -> None:
        for _ in range(ticks):
            self.tick(frozen=frozen, is_away=is_away)


def test_peer_that_is_frozen_is_silent_for_the_others() -> None:
    peers = Peers(A, B, C)
    peers.run(10)
    assert peers.found == {A: [], B: [], C: []}
    peers.run(10, frozen=[C])
    assert peers.found == {A: [C], B: [C], C: []}


def test_peer_has_lost_its_lease_before_another_finds_it_silent() -> None:
    peers = Peers(A, B)
    peers.run(10)
    while not peers.found[A]:
        assert peers.now < 200
        had_lease = peers.beats[B].has_lease(peers.now)
        peers.tick(frozen=[B])
    assert not had_lease


def test_peer_that_wakes_up_finds_nobody_silent() -> None:
    peers = Peers(A, B)
    peers.run(10)
    peers.run(100, frozen=[A])
    assert (peers.found, peers.beats[A].has_lease(peers.now)) == ({A: [], B: [A]}, False)
    peers.run(10)
    assert (peers.found, peers.beats[A].has_lease(peers.now)) == ({A: [], B: []}, True)


def test_nobody_is_silent_while_the_log_is_away_or_when_it_is_back() -> None:
    peers = Peers(A, B, C)
    peers.run(10)
    for _ in range(200):
        peers.tick(is_away=True)
        assert not any(peers.found.values())
    assert [beats.has_lease(peers.now) for beats in peers.beats.values()] == [False] * 3
    for number in range(10):
        peers.tick(frozen=[C] if number < 4 else [])  # it needs longer to find the log again
        assert not any(peers.found.values())


def test_heartbeats_that_were_queued_while_the_log_was_away_count_as_one() -> None:
    beats = Heartbeats(A, interval=1.0, silent_after=4)
    numbers = [beats.next_number(float(now)) for now in range(21)]
    assert numbers == [1, *[None] * 4, 2, *[None] * 4, 3, *[None] * 4, 4, *[None] * 4, 5]
    for number in range(1, 5):
        beats.hear(A, number, [A, B])
    assert (beats.silent(), beats.has_lease(20.0)) == ([], False)
    beats.hear(A, 5, [A, B])
    assert (beats.silent(), beats.next_number(21.0)) == ([], 6)
    assert (beats.has_lease(22.9), beats.has_lease(23.0)) == (True, False)


def test_own_heartbeat_counts_once() -> None:
    beats = Heartbeats(A, interval=1.0, silent_after=2)
    beats.next_number(0.0)
    for _ in range(5):
        beats.hear(A, 1, [A, B])
    assert beats.silent() == []


def test_peer_that_has_left_is_not_silent() -> None:
    peers = Peers(A, B)
    peers.run(20, frozen=[B])
    assert peers.found[A] == [B]
    peers.members.remove(B)
    peers.run(3, frozen=[B])
    assert peers.found[A] == []


def test_random_freezes_never_leave_a_lease_to_a_frozen_peer_that_is_found_silent() -> None:
    found = 0
    for seed in range(60):
        chance, peers = random.Random(seed), Peers(A, B, C)
        peers.run(10)
        for _ in range(80):
            frozen = [name for name in peers.members if chance.random() < 0.3]
            is_away = chance.random() < 0.1
            for _ in range(chance.randint(1, 8)):
                peers.tick(frozen=frozen, is_away=is_away)
                looking = [] if is_away else [name for name in peers.members if name not in frozen]
                silent = {each for name in looking for each in peers.found[name]}
                found += len(silent)
                assert not any(peers.beats[each].has_lease(peers.now) for each in silent & {*frozen}), seed
    assert found
