"""Fixtures of the tests on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from kstreams_py import Settings
from kstreams_py.embedded import EmbeddedKafka
from tests.clusters import OF_BROKERS
from tests.system.harness import FORGETFUL, Cluster
from tests.system.proxy import Proxy, proxied_broker

LOG_SHOWN: Final = 6_000
"""Characters at the end of a process's log that a test shows when it fails."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the logs of a test's processes to the report of its failure."""
    report = yield
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        found = [log for log in Path(directory).rglob("*.log") if not log.stem.isdigit()]  # those are RocksDB's
        for log in sorted(found, key=lambda log: log.stat().st_mtime):
            text = log.read_text(encoding="utf-8", errors="replace")
            report.sections.append((f"end of {log.relative_to(directory)}", text[-LOG_SHOWN:]))
    return report


@pytest.fixture
def cluster(broker: Any) -> Iterator[Cluster]:
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def settings(broker: Any, tmp_path: Path) -> Callable[..., Settings]:
    """Creates settings for the session's broker, with short time-outs and a schema directory of the test's own."""

    def make(**changed: Any) -> Settings:
        values = {
            "bootstrap_servers": broker.bootstrap_servers,
            "schema_directory": tmp_path / "schemas",
            "session_timeout_ms": 10_000,
            "transaction_timeout_ms": 6_000,
        }
        return Settings.load(**(values | changed))

    return make


@pytest.fixture
def name(topic_name: str) -> str:
    """A name that no other test uses, for a graph and as the prefix of its topics."""
    return topic_name


# Brokers that a test may freeze, kill, or meddle with. The files that use one run in one process (tests/conftest.py).


@pytest.fixture(scope="session")
def broker_of_one_process() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(settings=OF_BROKERS | FORGETFUL) as kafka:
        yield kafka


@pytest.fixture
def own_broker(broker_of_one_process: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """A broker that a test may freeze or kill; it expires transactional ids and producers after two seconds."""
    yield broker_of_one_process
    if 0 in broker_of_one_process._running:
        broker_of_one_process.resume(0)
    else:
        broker_of_one_process.restart(0)


@pytest.fixture(scope="session")
def proxied_of_one_process() -> Iterator[tuple[EmbeddedKafka, Proxy]]:
    with proxied_broker() as (kafka, proxy):
        cluster = Cluster(kafka.bootstrap_servers)
        cluster.create("first")
        cluster.transaction("first", [("first", b"")])  # the broker loads its transaction state now, not in a test
        del cluster
        yield kafka, proxy


@pytest.fixture(scope="module")
def proxied(proxied_of_one_process: tuple[EmbeddedKafka, Proxy]) -> Iterator[tuple[Cluster, Proxy]]:
    """A broker, and the proxy that the clients under test connect to."""
    kafka, proxy = proxied_of_one_process
    with closing(Cluster(kafka.bootstrap_servers)) as cluster:
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: tuple[Cluster, Proxy]) -> Iterator[Proxy]:
    yield proxied[1]
    proxied[1].lift()
