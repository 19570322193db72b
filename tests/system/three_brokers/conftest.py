"""One cluster for all tests of this directory; they are one process's (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath
from tests.system.three_brokers.brokers import BROKERS


@pytest.fixture(scope="package")
def cluster_of_three() -> Iterator[EmbeddedKafka]:
    """Three brokers that soon miss one that was killed."""
    settings = {"broker.session.timeout.ms": "3000"}
    with EmbeddedKafka(kafka_classpath(), find_java(), brokers=BROKERS, settings=settings) as kafka:
        yield kafka


@pytest.fixture
def brokers(cluster_of_three: EmbeddedKafka) -> EmbeddedKafka:
    """The cluster with all its brokers: a test that failed may have left one down."""
    for broker in range(BROKERS):
        if broker not in cluster_of_three._running:
            cluster_of_three.restart(broker)
    return cluster_of_three
