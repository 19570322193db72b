"""One cluster for all tests of this directory, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from tests.system.three_brokers.brokers import BROKERS


@pytest.fixture(scope="package")
def cluster_of_three() -> Iterator[EmbeddedKafka]:
    """Three brokers; the controller detects a killed one after three seconds."""
    settings = {"broker.session.timeout.ms": "3000"}
    with EmbeddedKafka(kafka_classpath(), find_java(), brokers=BROKERS, settings=settings) as kafka:
        yield kafka


@pytest.fixture
def brokers(cluster_of_three: EmbeddedKafka) -> EmbeddedKafka:
    """The cluster with all its brokers running: a failed test may have left one down."""
    if away := [broker for broker in range(BROKERS) if broker not in cluster_of_three._running]:
        cluster_of_three.restart(*away)
    return cluster_of_three
