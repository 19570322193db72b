"""Fixtures of all tests: one real broker for the session, and a new topic name for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from bench.servers import Server, start_postgresql, start_redis
from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.jars import kafka_classpath
from kstreams_py.embedded.java import find_java
from tests.clusters import close_clusters

THREE_BROKERS: Final = "tests/system/three_brokers/"

ONLY_FAST_COMPILER: Final = "-XX:TieredStopAtLevel=1"


def pytest_configure() -> None:
    """Sets environment variables for the many short processes that tests start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each process compiles the whole package
    # measured: the start of a broker takes 8.4 s of CPU time, and 6.3 s without the second compiler
    if ONLY_FAST_COMPILER not in (options := os.environ.get("JAVA_TOOL_OPTIONS", "")):
        os.environ["JAVA_TOOL_OPTIONS"] = f"{options} {ONLY_FAST_COMPILER}".strip()


@dataclass(frozen=True)
class RunningBroker:
    """The address of the broker of this test session."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    """The broker at KSTREAMS_TEST_BOOTSTRAP if that is set, otherwise an embedded one for the session."""
    address = os.environ.get("KSTREAMS_TEST_BOOTSTRAP")
    if address:
        yield RunningBroker(address)
        return
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        yield RunningBroker(kafka.bootstrap_servers)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL of this session, whose commits need not outlive the machine."""
    with closing(start_postgresql(sync=False)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    """A Redis of this session."""
    with closing(start_redis()) as server:
        yield server


@pytest.fixture(autouse=True)
def closing_clusters() -> Iterator[None]:
    """Closes what `open_cluster` opened."""
    yield
    close_clusters()


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic does not exist yet."""
    return f"test-{uuid.uuid4().hex[:12]}"


class OneClusterAtATime(LoadScopeScheduling):
    """Runs each file in one xdist worker, and all files of three brokers in the same one, which share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return THREE_BROKERS if nodeid.startswith(THREE_BROKERS) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the tests of three brokers first: they take longest, and the others run beside them."""
    items.sort(key=lambda item: not item.nodeid.startswith(THREE_BROKERS))
