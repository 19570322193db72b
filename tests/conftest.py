"""Fixtures of all tests, what runs in which pytest worker and in which order, and the parts of the long tier."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main
from xdist.scheduler import LoadScopeScheduling

from bench.servers import Server, start_postgresql, start_redis
from kstreams_py.embedded import EmbeddedKafka
from tests.clients_left_open import clients_left_open
from tests.clusters import NEVER_KILLED, OF_BROKERS, close_clusters, shared_broker
from tests.costs import Costs
from tests.tiers import PARTS, part_of

CLUSTERS: Final = ("system/behind_proxy/", "system/own_broker/", "system/three_brokers/")
"""Directories whose tests share a cluster of their own, which they break."""

SPARK: Final = "a session of Spark"

OF_SPARK: Final = {
    "contract/test_pipeline_targets",
    "system/test_cuts",
    "system/test_pipeline_deaths",
    "system/test_pipeline_delta",
    "system/test_pipeline_faults",
    "system/test_pipeline_topics",
    "system/test_pipelines",
    "system/test_sinks_page",
    "system/test_spark",
    "system/test_spark_private_api",
    "system/test_streaming_pipelines",
}
"""The files of the quick tier that share a session, and so an xdist worker: it costs more than what is done in it."""

LONGEST_FIRST: Final = (
    SPARK,
    *CLUSTERS,
    "system/test_pipeline_deaths",
    "system/test_verifier",
    "system/test_grid",
    "system/test_transactions",
    "system/test_diagnosis",
    "system/test_ordering_points",
)
"""The scopes and files that take longest: begun last, one of them would run alone at the end."""

ONLY_FAST_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""The code cache as large as with the second compiler: the code of a Spark does not fit into the 48 MB otherwise, is
thrown away and compiled again (a ninth of the CPU time of 12 tests of Delta Lake)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=sorted(PARTS), help="of the tests marked `long`, only those of this part")


def pytest_configure(config: pytest.Config) -> None:
    """Sets environment variables for the many short processes that tests start."""
    config.stash[OF_SESSION] = ExitStack()
    config.pluginmanager.register(Costs())
    # typer makes the commands of functions at each call of an app: a tenth of the CPU time of the unit tests
    typer.main.get_command = functools.cache(typer.main.get_command)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each process compiles the whole package
    # measured: the start of a broker takes 8.4 s of CPU time, and 6.3 s without the second compiler
    if ONLY_FAST_COMPILER not in (options := os.environ.get("JAVA_TOOL_OPTIONS", "")):
        os.environ["JAVA_TOOL_OPTIONS"] = f"{options} {ONLY_FAST_COMPILER}".strip()


@dataclass(frozen=True)
class RunningBroker:
    """The address of the broker of this test session."""

    bootstrap_servers: str


OF_SESSION: Final = pytest.StashKey[ExitStack]()
"""What ends with the session of a pytest worker, after all of its tests."""


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunningBroker:
    """The broker at KSTREAMS_TEST_BOOTSTRAP if that is set, otherwise one for all pytest workers of the run."""
    address = os.environ.get("KSTREAMS_TEST_BOOTSTRAP")
    if address:
        return RunningBroker(address)
    of_worker = tmp_path_factory.getbasetemp()
    directory = of_worker.parent if "PYTEST_XDIST_WORKER" in os.environ else of_worker
    return RunningBroker(request.config.stash[OF_SESSION].enter_context(shared_broker(directory)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Waits until no other pytest worker uses the broker of this one, then stops it.

    The teardown of a fixture has the time-out of the last test: after ten minutes it took the broker from the others.
    """
    session.config.stash[OF_SESSION].close()


@pytest.fixture(scope="session")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A broker with a listener for each way to sign in: see tests/signing_in.py."""
    from tests.signing_in import broker_of_all_ways  # noqa: PLC0415 few tests need certificates

    with broker_of_all_ways(tmp_path_factory.mktemp("listeners")) as ways:
        yield ways


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[RunningBroker]:
    """A second cluster. Tests that stop it have one of their own."""
    with EmbeddedKafka(settings=OF_BROKERS | NEVER_KILLED) as kafka:
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
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and not item.session.testsfailed:
        funcargs: dict[str, Any] = getattr(item, "funcargs", {})
        for name in funcargs.keys() - {"tmp_path"}:
            del funcargs[name]
        left = clients_left_open()
        assert not left, f"{item.path.name} leaves clients open: {left}"
    return result


@pytest.fixture(autouse=True)
def closing_clusters() -> Iterator[None]:
    """Closes what `open_cluster` opened."""
    yield
    close_clusters()


@pytest.fixture(autouse=True)
def logging_of_test() -> Iterator[None]:
    """Undoes what commands that run in this process do to logging: they write to a stream that is closed by then."""
    root = logging.getLogger()
    before, level = {*root.handlers}, root.level
    yield
    for handler in {*root.handlers} - before:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic does not exist yet."""
    return f"test-{uuid.uuid4().hex[:12]}"


def file_of(nodeid: str) -> str:
    """The file of a test, below tests/ and without its ending."""
    return nodeid.split("::", 1)[0].removeprefix("tests/").removesuffix(".py")


ONE_BY_ONE: Final = ("simulation/", "system/test_grid", "system/test_jobs", "system/test_pipeline_deaths")
"""The files of the long tier that would take most of their part's half an hour, and whose tests share nothing."""


BY_FIRST_VALUE: Final = ("contract/test_cluster",)
"""The files of the long tier whose tests run in one worker with the others of their first parameter's value."""


def scope_of(nodeid: str, *, quick: bool) -> str:
    """What runs in one xdist worker: a file, a part of it, all files that share something, or a single test."""
    file = file_of(nodeid)
    if not quick and file in BY_FIRST_VALUE:
        return f"{file}[{nodeid.partition('[')[2].rstrip(']').split('-')[0]}]"
    if quick and file in OF_SPARK:
        return SPARK
    if not quick and file.startswith(ONE_BY_ONE):
        return nodeid
    return next((directory for directory in CLUSTERS if file.startswith(directory)), file)


def is_quick(config: pytest.Config) -> bool:
    return "not long" in config.option.markexpr


SUMS: Final = """
import time
n, end = 0, time.monotonic() + 0.5
while time.monotonic() < end:
    sum(range(10_000))
    n += 1
print(n)
"""
SUMS_OF_CORE: Final = 1_250
"""How many of them a core makes of the machine on which the times in CONTRIBUTING.md were measured."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two to five pytest workers, by what this machine gets done in half a second.

    Most tests wait for a broker, so that five of them keep two cores busy. With half a core, each would have a tenth,
    and its clients would run into their time-outs.
    """
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", SUMS], stdout=subprocess.PIPE, text=True)
        for _ in range(os.cpu_count() or 1)
    ]
    cores = sum(int(process.communicate()[0]) for process in started) / SUMS_OF_CORE
    return max(2, min(5, round(3.2 * cores)))


class OneClusterAtATime(LoadScopeScheduling):
    """Runs each scope in one xdist worker."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, quick=is_quick(self.config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneClusterAtATime:
    config.option.loadscopereorder = False
    return OneClusterAtATime(config, log)


OF_ONE_MARK: Final = re.compile(r"^pytestmark = \[?pytest\.mark\.(browser|containers|long)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files whose tests all have a mark that is not asked for: each pytest worker imports all others."""
    if collection_path.is_dir():
        mark = collection_path.name
    else:
        found = OF_ONE_MARK.search(collection_path.read_text(encoding="utf-8"))
        mark = found[1] if found else ""
    return True if mark and f"not {mark}" in config.option.markexpr else None


def is_long(marks: Iterable[pytest.Mark]) -> bool:
    return any(mark.name == "long" for mark in marks)


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> list[pytest.Item] | None:
    """Makes no items of a test that is long in the quick tier: an item costs a millisecond in each pytest worker."""
    is_left_out = name.startswith("test_") and is_quick(collector.config) and is_long(getattr(obj, "pytestmark", ()))
    return [] if is_left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Makes no items of cells that are long, either; one is left, and deselected, where all of them are."""
    yield
    if is_quick(metafunc.config):
        cells = metafunc._calls
        cells[:] = [cell for cell in cells if not is_long(cell.marks)] or cells[:1]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs the files that take longest first: the others run beside them, and none runs alone at the end."""
    if (part := config.getoption("--part")) is not None:
        others = [item for item in items if part_of(item.nodeid.split("::", 1)[0]) != part]
        items[:] = [item for item in items if item not in set(others)]
        config.hook.pytest_deselected(items=others)
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}

    def place(item: pytest.Item) -> int:
        scope = scope_of(item.nodeid, quick=is_quick(config))
        return places.get(scope, places.get(file_of(item.nodeid), len(places)))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Takes the collected tests from what the garbage collector visits: all of them live until the end."""
    gc.collect()
    gc.freeze()
