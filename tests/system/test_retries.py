"""Retries on a real broker: a service that is away for a while makes no dead letters, and order is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Event

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from kstreams_py.graph.guarantees import Guarantee
from tests.system.harness import Cluster, running, wait_until

FIRST_REFUSED = 50
"""The first value of partition 0 for which the service is away."""

RECORDS = 200
"""Records of each partition."""


@pytest.mark.parametrize(
    "guarantee",
    # the policy of a retry knows no guarantee; tests/simulation/test_retries.py has each of them in memory
    [Guarantee.EXACTLY_ONCE, *(pytest.param(each, marks=pytest.mark.long) for each in [*Guarantee][1:])],
)
def test_service_away_makes_no_dead_letters_and_a_drain_or_rebalance_loses_nothing(
    cluster: Cluster, settings: Callable[..., Settings], name: str, guarantee: Guarantee
) -> None:
    source, target, errors, group = f"{name}.in", f"{name}.out", f"{name}.errors", f"{name}.ask"
    cluster.create(source, partitions=2)
    cluster.create(target, errors)
    values = [[b"%d-%d" % (number, n) for n in range(RECORDS)] for number in (0, 1)]
    for number in (0, 1):
        cluster.write(source, values[number], partition=number)
    is_back, calls = Event(), Counter[bytes]()

    def new_graph(backoff: str) -> ks.Graph:
        graph = ks.Graph(name, guarantee=guarantee, errors=errors, retry=ks.Retry(attempts=10_000, backoff=backoff))

        @graph.map(graph.topic(source), to=graph.topic(target))
        def ask(value: bytes) -> bytes:
            calls[value] += 1
            if value.startswith(b"0-") and int(value[2:]) >= FIRST_REFUSED and not is_back.is_set():
                raise ConnectionError("the service is away")
            return value

        return graph

    refused = values[0][FIRST_REFUSED]
    with running(new_graph("1h..2h"), settings(drain_timeout_ms=20_000)):  # the drain does not wait for an hour
        cluster.await_committed(group, source, {0: FIRST_REFUSED, 1: RECORDS})
    assert (calls[refused], cluster.committed(group, source)) == (1, {0: FIRST_REFUSED, 1: RECORDS})
    with running(new_graph("20ms..100ms"), settings(), 0, 1):
        wait_until(lambda: calls[refused] >= 4, "several attempts have failed")
        cluster.write(source, [b"1-last"], partition=1)
        wait_until(lambda: b"1-last" in cluster.values(target), "the other partition goes on")
        assert calls[values[0][FIRST_REFUSED + 1]] == 0
        is_back.set()
        cluster.await_committed(group, source, {0: RECORDS, 1: RECORDS + 1})
    found = cluster.values(target)
    assert [value for value in found if value is not None and value.startswith(b"0-")] == values[0]
    assert [value for value in found if value is not None and value.startswith(b"1-")] == [*values[1], b"1-last"]
    assert cluster.read(errors) == []
