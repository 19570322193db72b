"""One cluster for all tests of this directory; they are one process's (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath


@pytest.fixture(scope="package")
def brokers() -> Iterator[EmbeddedKafka]:
    """Three brokers that soon miss one that was killed; each test leaves all of them running, and in sync."""
    settings = {"broker.session.timeout.ms": "3000"}
    with EmbeddedKafka(kafka_classpath(), find_java(), brokers=3, settings=settings) as kafka:
        yield kafka
