"""One broker and its proxy for all tests of this directory, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.system.harness import Cluster
from tests.system.proxy import Proxy, proxied_broker


@pytest.fixture(scope="package")
def broker_behind_proxy() -> Iterator[tuple[str, Proxy]]:
    """The address of a broker, and its proxy."""
    with proxied_broker() as (kafka, proxy):
        with closing(Cluster(kafka.bootstrap_servers)) as cluster:
            cluster.create("first")
            cluster.transaction("first", [("first", b"")])  # the broker loads its transaction state now, not in a test
        yield kafka.bootstrap_servers, proxy


@pytest.fixture(scope="module")
def proxied(broker_behind_proxy: tuple[str, Proxy]) -> Iterator[tuple[Cluster, Proxy]]:
    """A broker, and the proxy that the clients under test connect to."""
    address, proxy = broker_behind_proxy
    with closing(Cluster(address)) as cluster:
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].lift()


@pytest.fixture
def cluster(proxied: tuple[Cluster, Proxy]) -> Cluster:
    """The broker, without the proxy."""
    return proxied[0]
