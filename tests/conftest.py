"""Fixtures of all tests, the order in which files run, and the tiers: `--tier` and `--part`."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from bench.servers import Server, start_postgresql, start_redis
from tests.clusters import clients_left_open, close_clusters
from tests.costs import Costs
from tests.servers import Servers, find_bootstrap_servers
from tests.tiers import PARTS, part_of

THREE_BROKERS: Final = "tests/system/three_brokers/"

SHARING: Final = {
    f"tests/system/test_{file}.py": scope
    for scope, files in {
        "a broker to freeze and kill": ("truths", "faults", "frozen_broker", "two_clusters"),
        "a broker behind a proxy": ("crash_table", "late_requests", "outages", "sources"),
    }.items()
    for file in files
}
"""The files that run in one xdist worker, as they share a broker that only one process can use."""

LONGEST_FIRST: Final = (
    THREE_BROKERS,
    "a broker behind a proxy",
    "a broker to freeze and kill",
    "tests/contract/test_pipeline_targets.py",
    "tests/system/test_verifier.py",
    "tests/simulation/test_retries.py",
    "tests/system/test_streaming_pipelines.py",
    "tests/system/test_pipelines.py",
    "tests/system/test_spark_page.py",
    "tests/system/test_pipeline_topics.py",
    "tests/system/test_grid.py",
    "tests/system/test_pipeline_delta.py",
    "tests/simulation/test_sinks.py",
    "tests/simulation/test_overlap.py",
    "tests/simulation/test_journal.py",
    "tests/system/test_spark.py",
    "tests/system/test_pipeline_faults.py",
    "tests/system/test_pipeline_cluster.py",
    "tests/system/test_wheel.py",
    "tests/system/test_transactions.py",
    "tests/system/test_diagnosis.py",
    "tests/system/test_late_markers.py",
    "tests/system/test_state_faults.py",
    "tests/system/test_ordering_points.py",
)
"""The files that take longest, and the directory of those that share a worker: begun last, one of
them would run alone at the end."""

ONLY_FAST_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""The code cache as large as with the second compiler: the code of a Spark does not fit into the 48 MB otherwise, is
thrown away and compiled again (a ninth of the CPU time of 12 tests of Delta Lake)."""


IS_WORKER: Final = "PYTEST_XDIST_WORKER" in os.environ

SERVERS: Final = pytest.StashKey[Servers]()

COSTS: Final = pytest.StashKey[Costs]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=sorted(PARTS), help="of the tests marked `long`, only those of this part")


def pytest_configure(config: pytest.Config) -> None:
    """Sets environment variables for the many short processes that tests start, and starts what workers share."""
    config.stash[COSTS] = Costs()
    config.pluginmanager.register(config.stash[COSTS])
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each process compiles the whole package
    # measured: the start of a broker takes 8.4 s of CPU time, and 6.3 s without the second compiler
    if ONLY_FAST_COMPILER not in (options := os.environ.get("JAVA_TOOL_OPTIONS", "")):
        os.environ["JAVA_TOOL_OPTIONS"] = f"{options} {ONLY_FAST_COMPILER}".strip()
    if not IS_WORKER:
        config.stash[SERVERS] = Servers()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends what workers share, once all of them have ended."""
    if (servers := session.config.stash.get(SERVERS, None)) is not None:
        session.config.stash[COSTS].add("clusters that workers share", servers.close())


@dataclass(frozen=True)
class RunningBroker:
    """The address of the broker of this test session."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def broker() -> RunningBroker:
    """The broker at KSTREAMS_TEST_BOOTSTRAP if that is set, otherwise one that all workers of a run share."""
    return RunningBroker(os.environ.get("KSTREAMS_TEST_BOOTSTRAP") or find_bootstrap_servers("cluster"))


@pytest.fixture(scope="session")
def elsewhere() -> RunningBroker:
    """A second cluster that all workers of a run share. Tests that stop it have one of their own."""
    return RunningBroker(find_bootstrap_servers("second cluster"))


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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session of Spark of this process, with Delta Lake: see tests/spark_sessions.py."""
    from tests.spark_sessions import shared_session  # noqa: PLC0415 most tests need no PySpark

    with shared_session() as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Fails the last test of a file that leaves clients of Kafka open."""
    result = yield
    # a failed test's frames, and what they hold, live on in its traceback
    if (nextitem is None or nextitem.path != item.path) and not item.session.testsfailed:
        funcargs: dict[str, Any] = getattr(item, "funcargs", {})
        for name in funcargs.keys() - {"tmp_path"}:
            del funcargs[name]
        assert (left := clients_left_open()) == [], f"{item.path.name} leaves clients open: {left}"
    return result


@pytest.fixture(autouse=True)
def closing_clusters() -> Iterator[None]:
    """Closes what `open_cluster` opened."""
    yield
    close_clusters()


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic does not exist yet."""
    return f"test-{uuid.uuid4().hex[:12]}"


def scope_of(nodeid: str) -> str:
    """What runs in one xdist worker: a file, or all files that share a cluster which is theirs alone."""
    file = nodeid.split("::", 1)[0]
    return THREE_BROKERS if file.startswith(THREE_BROKERS) else SHARING.get(file, file)


class OneClusterAtATime(LoadScopeScheduling):
    """Runs each scope in one xdist worker."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs the files that take longest first: the others run beside them, and none runs alone at the end."""
    if (part := config.getoption("--part")) is not None:
        others = [item for item in items if part_of(item.nodeid.split("::", 1)[0]) != part]
        items[:] = [item for item in items if item not in set(others)]
        config.hook.pytest_deselected(items=others)
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        return places.get(scope_of(item.nodeid), len(places))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Takes the collected tests from what the garbage collector visits: all of them live until the end."""
    gc.collect()
    gc.freeze()
