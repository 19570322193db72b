"""Which silent peers are unreachable: those whose heartbeats say that their main loop turns."""

from __future__ import annotations

import pytest

from kstreams_py.jobs.cluster.commands import PeerId
from kstreams_py.jobs.peers.reachability import Reachability

B = PeerId("b")


@pytest.mark.parametrize(
    ("turns", "lost_at"),
    [
        ([7, 20, 30, 40, 50], [3]),
        ([7, 7, 8, 8, 9, 10], [5]),
        # Kafka was away when it was found silent, and its call began before it was back
        ([7, 90, 90, 90, 90], []),
        ([7, 90, 99, 99, 99], []),
    ],
)
def test_silent_peer_is_unreachable_once_its_heartbeats_show_turns(turns: list[int], lost_at: list[int]) -> None:
    reach = Reachability(PeerId("a"))
    looks = [reach.look(now, [B], lambda _: False, {B: each}.__getitem__) for now, each in enumerate(turns)]
    assert [now for now, look in enumerate(looks) if look.lost == [B]] == lost_at
