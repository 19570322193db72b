"""One cluster for all tests of this directory, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstreams_py.embedded import EmbeddedKafka
from tests.system.three_brokers.brokers import BROKERS


@pytest.fixture(scope="package")
def cluster_of_three() -> Iterator[EmbeddedKafka]:
    """Three brokers; the controller detects a killed one after three seconds."""
    with EmbeddedKafka(brokers=BROKERS, settings={"broker.session.timeout.ms": "3000"}) as kafka:
        yield kafka


@pytest.fixture
def brokers(cluster_of_three: EmbeddedKafka) -> EmbeddedKafka:
    """The cluster with all its brokers running: a failed test may have left one down."""
    if away := [broker for broker in range(BROKERS) if broker not in cluster_of_three._running]:
        cluster_of_three.restart(*away)
    return cluster_of_three
