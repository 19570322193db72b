"""Suspects, whose workers died, while functions are called again: alone, and yet nothing waits for them for ever."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.jobs.cluster.commands import JobId
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.jobs.job import Job
from kstreams_py.steps.calls import open_calls
from kstreams_py.testing.memory_peers import PeerCluster
from kstreams_py.testing.memory_source import FREE, Kept, MemorySource
from kstreams_py.testing.request_faults import Crash

LEASE = 10_000.0
PAUSE = ks.Retry(on=ConnectionError, attempts=2, backoff="1s..2s", then="pause")


class TwoSources:
    """A graph of two sources, each with a function. `Z` kills its worker.

    - `deaths`: at how many the first input of each source was under way.
    """

    def __init__(self, a: list[str], b: list[str], *deaths: int, retry: ks.Retry = PAUSE, seed: int = 0) -> None:
        self.now, self.chance, self.graph = 0.0, random.Random(seed), ks.Graph("g")
        self.failures = dict[str, float]()
        """For an input that finds no service, at how many calls."""
        self.calls, self.done = Counter[object](), list[object]()
        self.sources: dict[str, MemorySource] = {}
        for name, values, count in zip("ab", (a, b), deaths, strict=True):
            self.sources[name] = MemorySource(values, ends=False, lease=LEASE, clock=lambda: self.now)
            self.graph.sink(self.graph.source(name, self.sources[name]), id=f"take-{name}", retry=retry)(self.take)
            self.sources[name].kept[f"g:{name}"] = {0: Kept(FREE, owner=0, deaths=count)} if count else {}

    def take(self, value: Any) -> None:
        self.calls[value] += 1
        if value == "Z":
            raise Crash
        if self.calls[value] <= self.failures.get(value, 0):
            raise ConnectionError("away")
        self.done.append(value)

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def environment(self) -> JobEnvironment:
        return JobEnvironment(
            lambda channel, reader: self.sources[channel.name].open(reader),
            clock=lambda: self.now,
            sleep=self.advance,
            entropy=self.chance.randbytes,
            chance=self.chance.random,
            timeout=6.0,
            open_calls=partial(open_calls, patience=None),
        )

    def begin(self, peers: int) -> None:
        """Starts a process that runs the whole graph, or so many peers."""
        self.job = None if peers else Job("g", self.graph.tasks, self.environment())
        self.cluster = PeerCluster(
            self.graph, lambda *_: self.environment(), lambda: self.now, self.advance, self.chance
        )
        for slot in range(peers):
            self.cluster.start(slot)
            self.run(0.4)
        if peers:
            self.cluster.submit(JobId("g-1"))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            if self.job is None:
                self.cluster.act()
            elif not self.job.turn():
                self.advance(0.05)


@pytest.mark.parametrize("peers", [0, 4, 5])
@pytest.mark.parametrize("deaths", [(2, 2), (2, 0), (0, 2)])
def test_suspects_that_wait_for_a_service_keep_no_others_waiting_for_ever(peers: int, deaths: tuple[int, ...]) -> None:
    """With five peers, two read source a: they take the suspect in turn."""
    plant = TwoSources(["X" if deaths[0] else "a"], ["Y" if deaths[1] else "b"], *deaths)
    plant.failures = {"X" if deaths[0] else "Y": inf}
    plant.begin(peers)
    plant.run(4)
    free = "b" if deaths[0] else "a"
    plant.sources[free].add(*range(30))
    plant.run(50)
    assert {*range(30)} <= {*plant.done}
    assert max(plant.calls.values()) < 150, "each call waits for its time"
    plant.failures.clear()
    plant.run(60)
    assert len({*plant.done}) == 32


@pytest.mark.parametrize("peers", [0, 2])
def test_input_that_waits_for_a_service_does_not_keep_suspects_of_its_source_waiting(peers: int) -> None:
    plant = TwoSources(["P", "a"], [], 0, 0)
    plant.failures = {"P": inf}
    plant.begin(peers and 4)
    plant.run(4)
    plant.sources["a"].add("X")
    plant.sources["a"].kept["g:a"][2] = Kept(FREE, owner=0, deaths=2)  # of another reader
    plant.sources["a"].add("n")
    plant.run(40)
    assert {*plant.done} == {"a", "X", "n"}


def test_nothing_is_read_beside_a_suspect_that_waits_for_another_attempt() -> None:
    plant = TwoSources(["X"], ["Z"], 4, 0, retry=ks.Retry(backoff="1s..2s"))
    plant.failures = {"X": 2}
    for _ in range(6):
        plant.begin(0)
        with suppress(Crash):
            plant.run(20)
        plant.now += 2 * LEASE
    states: dict[Any, Any] = {name: source.kept[f"g:{name}"][0].state for name, source in plant.sources.items()}
    assert (states, plant.done) == ({"a": "done", "b": "refused"}, ["X"])
