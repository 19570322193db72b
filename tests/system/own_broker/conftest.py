"""One broker for all tests of this directory, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kstreams_py.embedded import EmbeddedKafka
from tests.clusters import OF_BROKERS
from tests.system.harness import FORGETFUL


@pytest.fixture(scope="package")
def broker_of_directory() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(settings=OF_BROKERS | FORGETFUL) as kafka:
        yield kafka


@pytest.fixture
def own_broker(broker_of_directory: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """A broker that a test may freeze or kill; it expires transactional ids and producers after two seconds."""
    yield broker_of_directory
    if 0 in broker_of_directory._running:
        broker_of_directory.resume(0)
    else:
        broker_of_directory.restart(0)
