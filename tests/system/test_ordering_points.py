"""Event ordering while real workers are killed at each point of the algorithm, on real stores and a real broker."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from bench.servers import start_redis
from kstreams_py.ordering import Ordering
from kstreams_py.ordering.events import place_of
from kstreams_py.ordering.front_end import open_storage
from tests.system.harness import Cluster
from tests.system.launcher import Launched
from tests.system.ordering_point import NAME, SENDING, STEPS, die_at
from tests.waiting import WAIT, wait_until

OBJECTS: Final = ("a", "b")


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store that forgets nothing."""
    if request.param == "sqlite":
        yield str(tmp_path / "events.db")
        return
    with closing(start_redis("--appendfsync", "always")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


def read_chains(cluster: Cluster, topic: str) -> tuple[dict[str, list[str]], int]:
    """The values of each object in the order of the chain, copies left out; and how many copies there are."""
    found = defaultdict[str, dict[int, tuple[int | None, str]]](dict)
    copies = 0
    for m in cluster.read(topic):
        (number, prev), chain = place_of(m.headers()), found[m.key().decode()]
        event = (prev, m.value().decode())
        if number in chain:
            assert chain[number] == event, "a copy has the same predecessor and the same value"
            copies += 1
        else:  # a copy may come late; the events themselves come in order
            assert prev == max(chain, default=None), (m.key(), number, event)
            chain[number] = event
    for chain in found.values():
        assert [prev for prev, _ in chain.values()][1:] == [before for before, _ in pairwise(chain)]
    return {name: [value for _, value in chain.values()] for name, chain in found.items()}, copies


ALL: Final = (*STEPS, *SENDING)
SOME: Final = ("all is begun at once", "events are taken", "while it is sent", "acknowledged")
"""After these, the next process finds nothing, events, events that were sent, and some that were acknowledged."""


@pytest.mark.parametrize(
    ("store", "points"),
    [("redis", SOME), *(pytest.param(each, ALL, marks=pytest.mark.long) for each in ("sqlite", "redis"))],
    indirect=["store"],
    ids=["redis, some", "sqlite", "redis"],
)
def test_worker_that_is_killed_at_each_point_sends_each_event_in_order(
    cluster: Cluster, store: str, name: str, points: Sequence[str]
) -> None:
    """Each process goes on with what the one before it has left, on its way to its own point."""
    cluster.create(name, partitions=2)
    queued: dict[str, list[str]] = {each: [] for each in OBJECTS}
    with closing(Ordering(store)) as ordering, closing(open_storage(store)) as storage:
        for number, point in enumerate(points):
            for each in (*OBJECTS, *OBJECTS):
                values = [f"{number}.{len(queued[each])}.{part}" for part in ("main", "sub")]
                ordering.enqueue(each, values, values[0], sub_events=values[1:])
                queued[each] += [f'"{value}"' for value in values]
            assert die_at(point, store, name, cluster) == -signal.SIGKILL, point
        (status,) = storage.workers()
        assert (status.name, status.number) == (NAME, len(points))
        words = ("order", "--name", NAME, "--store", store, "--topic", name, "-b", cluster.bootstrap_servers)
        last = Launched(words, os.environ, stdout=1, stderr=2)
        try:
            wait_until(lambda: storage.objects() == [], "all events are sent")
        finally:
            last.terminate()
        assert last.wait(WAIT) == 0
        assert storage.workers()[0].objects == {}
    chains, copies = read_chains(cluster, name)
    assert chains == queued
    assert copies >= 1, "the one that was acknowledged, and not completed"
