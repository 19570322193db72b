"""Fixtures of every test: one real broker for the whole session, and a fresh topic name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath

THREE_BROKERS: Final = "tests/system/three_brokers/"

ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1"


def pytest_configure() -> None:
    """Sets what the processes that tests start inherit: there are many, and none lives for long."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each worker compiles the whole package
    # measured: a broker's start takes 8.4 s of a processor, and 6.3 without the second compiler
    if ONE_COMPILER not in (options := os.environ.get("JAVA_TOOL_OPTIONS", "")):
        os.environ["JAVA_TOOL_OPTIONS"] = f"{options} {ONE_COMPILER}".strip()


@dataclass(frozen=True)
class RunningBroker:
    """Where the broker of this test session is."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    """The broker at KSTREAMS_TEST_BOOTSTRAP if that is set, else an embedded one for the session."""
    given = os.environ.get("KSTREAMS_TEST_BOOTSTRAP")
    if given:
        yield RunningBroker(given)
        return
    with EmbeddedKafka(kafka_classpath(), find_java()) as kafka:
        yield RunningBroker(kafka.bootstrap_servers)


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic is not there yet."""
    return f"test-{uuid.uuid4().hex[:12]}"


class OneClusterAtATime(LoadScopeScheduling):
    """Each file is one worker's; those of three brokers are together, for they share them."""

    def _split_scope(self, nodeid: str) -> str:
        return THREE_BROKERS if nodeid.startswith(THREE_BROKERS) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, beside all the others."""
    items.sort(key=lambda item: not item.nodeid.startswith(THREE_BROKERS))
