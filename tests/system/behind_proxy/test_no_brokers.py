"""A Metadata response without brokers, as from a broker that is fenced.

A client of librdkafka may ask no broker for metadata again after it: https://github.com/confluentinc/librdkafka/issues/5301
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import kstreams_py as ks
from kstreams_py import Settings
from tests.system.harness import Cluster, running, wait_until
from tests.system.proxy import Proxy, Rule


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_worker_whose_clients_hear_of_no_brokers_goes_on_and_finds_the_broker_again(
    guarantee: str, cluster: Cluster, proxy: Proxy, settings: Callable[..., Settings], name: str
) -> None:
    cluster.create(f"{name}.in", f"{name}.out")
    graph = ks.Graph(name, guarantee=guarantee)
    graph.map(graph.topic(f"{name}.in"), to=graph.topic(f"{name}.out"), id="copy")(lambda value: value)
    expected = list[bytes]()

    def pass_on(value: bytes) -> None:
        cluster.write(f"{name}.in", [value])
        expected.append(value)
        wait_until(lambda: cluster.values(f"{name}.out") == expected, f"{value!r} is in the output")

    with running(graph, settings(bootstrap_servers=proxy.bootstrap_servers, request_timeout_ms=3_000), 0):
        pass_on(b"first")
        for number in range(3):
            hidden = proxy.hide_brokers()
            proxy.cut()
            proxy.mend()
            wait_until(partial(_has_caught, hidden, 3), "clients hear of no brokers")
            hidden.lift()
            pass_on(b"%d" % number)
            proxy.cut()  # what is sent next needs the addresses of the brokers
            proxy.mend()
            pass_on(b"%d after a cut" % number)


def _has_caught(rule: Rule, count: int) -> bool:
    return len(rule.caught) >= count
