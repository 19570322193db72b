"""jobs/peers/routes.py and outbox.py: which peer of a task gets a value."""

from __future__ import annotations

import os
import sys

import pytest

import kstreams_py as ks
from kstreams_py.jobs.cluster.commands import FRAME_MAX, JobId, PeerId
from kstreams_py.jobs.cluster.state import Assignment, JobState, PeerState, Replica
from kstreams_py.jobs.identity import ROOT, Given, new_patterns
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.messengers.pins import pin_ids
from kstreams_py.jobs.peers.outbox import Outbox
from kstreams_py.jobs.peers.routes import Route, Routes, find_routes, go_around, specify_tasks
from kstreams_py.jobs.segments import Segments
from kstreams_py.testing import MemorySource

JOB, PEERS = JobId("shop-1"), [PeerId("b"), PeerId("c")]


@pytest.mark.parametrize("of_source", [False, True])
@pytest.mark.parametrize(("routing", "waiting"), [("least_queued", [5, 5]), ("round_robin", [7, 3])])
def test_peer_of_a_task_gets_a_value_by_the_routing_of_its_channel(
    routing: str, waiting: list[int], *, of_source: bool
) -> None:
    """Four values wait for the first peer, when a second one is ready for the same task."""
    graph = ks.Graph("shop")
    channel = graph.source("rows", MemorySource(), routing=routing if of_source else "least_queued")
    if not of_source:
        rows, channel = channel, graph.channel("priced", routing=routing)
        graph.map(rows, to=channel, id="price")(lambda value: value)
    graph.sink(channel, id="store")(lambda value: None)
    links = Links("shop", "a", lambda: 0.5)
    for peer in PEERS:
        links.add(peer)
    outbox = Outbox(os.urandom, links, "price", FRAME_MAX)
    for ready, sizes in (PEERS[:1], [4]), (PEERS, [1, 3, 2]):
        job = JobState("shop", "f1", specify_tasks(graph.tasks), ready=tuple(ready))
        assigned = {peer: Assignment(JOB, "store", 0) for peer in ready}
        members = {peer: PeerState(number, "", "", {}, "") for number, peer in enumerate(PEERS)}
        routes = find_routes(Replica(peers=members, jobs={JOB: job}, assignments=assigned), JOB, graph.tasks)
        outbox.set_routes(routes)
        for size in sizes:
            ids, patterns = pin_ids(os.urandom, size, [0], 0), new_patterns(os.urandom, size)
            outbox.send(channel, Segments(ids, patterns, [Given(bytes(9))] * size, [ROOT] * size, [*range(size)]))
    assert [links[peer].waiting(JOB, "store") for peer in PEERS] == waiting
    outbox.set_routes(go_around(routes, lambda peers: tuple(peers[1:])), PEERS[:1])
    assert [links[peer].waiting(JOB, "store") for peer in PEERS] == [0, 10]
    assert (outbox.waiting([channel]), outbox.is_stuck([channel], 10)) == (10, False)
    assert len([*outbox.patterns(JOB, {*ids})]) == len(ids)
    outbox.set_routes(go_around(routes, lambda _: ()), PEERS)
    assert (outbox.waiting([channel]), outbox.is_stuck([channel], 10)) == (sys.maxsize, True)
    assert [*outbox.patterns(JOB, {*ids})] == []


def test_peers_of_a_grouped_task_are_kept_and_it_is_cut_if_none_can_be_reached() -> None:
    route = Route("rows", "work", (*PEERS,), slots=(*PEERS,))
    routes = Routes(JOB, 1, {"rows": (route,)})
    assert go_around(routes, lambda peers: tuple(peers[1:])) == routes
    assert go_around(routes, lambda _: ()).by_channel["rows"] == (route._replace(is_cut=True),)
