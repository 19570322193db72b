"""One broker and its proxy for all tests of this directory, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.system.harness import Cluster
from tests.system.proxy import Proxy, proxied_broker


@pytest.fixture(scope="package")
def proxied() -> Iterator[tuple[Cluster, Proxy]]:
    """A broker, and the proxy that the clients under test connect to."""
    with proxied_broker() as (kafka, proxy), closing(Cluster(kafka.bootstrap_servers)) as cluster:
        cluster.create("first")
        cluster.transaction("first", [("first", b"")])  # the broker loads its transaction state now, not in a test
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].lift()
