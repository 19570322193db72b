"""Fixtures of the tests on librdkafka's mock cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mock.cluster import MockCluster


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    """Two brokers; broker 1 leads all topics by default."""
    with MockCluster(brokers=2) as cluster:
        yield cluster
