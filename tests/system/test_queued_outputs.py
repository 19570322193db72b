"""At most once: outputs that are queued when another worker joins. Their offsets are committed, so they are written."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

import kstreams_py as ks
from tests.system.app import MakeSettings, read_dead_letters
from tests.system.harness import Cluster, running, wait_until


@pytest.mark.parametrize("refused", [pytest.param((), marks=pytest.mark.long), (50,)], ids=["all taken", "one refused"])
def test_outputs_queued_when_a_second_worker_joins_arrive_once(
    cluster: Cluster, settings: MakeSettings, name: str, refused: tuple[int, ...]
) -> None:
    source, target, dead = f"{name}.in", f"{name}.out", f"{name}.errors"
    cluster.create(source, partitions=2)
    cluster.create(dead)
    cluster.create(target, partitions=2, config={"cleanup.policy": "compact"})
    cluster.partitions(target)
    values = [b"%d" % i for i in range(100)]  # the size of a worker's first batch
    bad = [values[i] for i in refused]
    gate, waiting = threading.Event(), threading.Event()
    graph = ks.Graph(name, guarantee="at_most_once", errors=dead)

    @graph.map(graph.topic(source), to=graph.topic(target), id="step")
    def function(value: bytes) -> bytes | ks.Out:
        if value == b"wait":
            waiting.set()
            assert gate.wait(60)
        return ks.Out(value, key=None) if value in bad else value

    cluster.write(source, [*values, b"wait"], keys=[*values, b"wait"], partition=1)
    around = settings(
        commit_interval_ms=50_000,
        transaction_timeout_ms=60_000,
        session_timeout_ms=60_000,
        kafka={"linger.ms": "60000", "heartbeat.interval.ms": "100"},
    )
    with running(graph, around) as first:
        assert waiting.wait(60)
        found = cluster.values(target)
        assert len(found) <= 2, "all but the first record of each partition are queued"
        assert cluster.committed(f"{name}.step", source)[1] >= 100, "offsets are committed before the functions run"
        with running(graph, around, 1):
            wait_until(lambda: len(cluster.members(f"{name}.step")) == 2, "the second worker joins")
            gate.wait(0.5)  # no client shows when a heartbeat has told the first worker of the rebalance
            gate.set()
            cluster.write(source, [b"later"], keys=[b"later"], partition=1)
            cluster.await_committed(f"{name}.step", source, {0: 0, 1: 102})
            wait_until(lambda: b"later" in cluster.values(target), "the next record is delivered")
        first[0].stop()
    expected = [*values, b"wait", b"later"]
    assert Counter(cluster.values(target)) == Counter(value for value in expected if value not in bad)
    assert read_dead_letters(cluster, dead) == [("RecordRefused", [value]) for value in bad]
