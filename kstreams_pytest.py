"""The pytest plugin: the fixtures `kstreams_driver` and `kstreams_broker`, wherever kstreams_py is installed.

It is outside the package, and imports it in its fixtures only: a project that does not use them pays nothing, and
coverage sees the import of what it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kstreams_py import Graph
    from kstreams_py.testing import TestDriver


@pytest.fixture
def kstreams_driver() -> Iterator[Callable[..., TestDriver]]:
    """Makes a TestDriver of a graph, with its options: kstreams_driver(graph, slots=2). Closes it after the test."""
    from kstreams_py.testing import TestDriver  # noqa: PLC0415, see above

    with ExitStack() as drivers:

        def make(graph: Graph, **options: Any) -> TestDriver:
            return drivers.enter_context(TestDriver(graph, **options))

        yield make


@pytest.fixture(scope="session")
def kstreams_broker() -> Iterator[str]:
    """The bootstrap servers of a real Kafka on this machine, which runs until the end of the session.

    Needs the extra `broker`, or Java and Kafka's jars; raises MissingSoftware without them. Its data is deleted.
    """
    from kstreams_py.embedded import EmbeddedKafka  # noqa: PLC0415, see above

    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers
