"""Fixtures of the tests on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from kstreams_py import Settings
from tests.system.harness import Cluster

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


@pytest.fixture(scope="module")
def cluster_of_file(broker: Any) -> Iterator[Cluster]:
    """The clients of all tests of a file: to connect costs more than most tests ask for."""
    with closing(Cluster(broker.bootstrap_servers)) as cluster:
        yield cluster


@pytest.fixture
def cluster(cluster_of_file: Cluster) -> Iterator[Cluster]:
    yield cluster_of_file
    cluster_of_file.forget_groups()


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
