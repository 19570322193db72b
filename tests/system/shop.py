"""A graph with pipelines over two topics, the model of their tables, and processes that run the pipelines and die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow.parquet
import pyspark
import pytest
from pyspark.sql import SparkSession

import kstreams_py as ks
from bench.servers import Server
from kstreams_py.graph.loading import load
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.spark import Cut
from kstreams_py.spark.pipelines import runner
from kstreams_py.spark.pipelines.driver import run_all as drive
from kstreams_py.spark.pipelines.runs import PipelineRun, PipelineTarget, Published
from kstreams_py.spark.pipelines.targets import open_target
from tests.system.command import await_end, is_alive
from tests.system.harness import Cluster
from tests.system.pipeline_driver import act_at
from tests.waiting import WAIT, wait_until

ROOT: Final = Path(__file__).parents[2]

GRAPH: Final = """
from pathlib import Path

from pyspark.sql import functions as sf

import kstreams_py as ks

graph = ks.Graph({name!r})
orders = graph.topic("{name}.orders", key=ks.String(), value=ks.String())
returns = graph.topic("{name}.returns", key=ks.String(), value=ks.String())


def gate(name, column):
    "The column. If there is a file of this name, tasks tell their process ids in another one, until it is removed."
    closed = {directory!r} + "/" + name

    def wait(value):
        import os, time

        while os.path.exists(closed):
            with open(closed + ".waiting", "w") as waiting:
                waiting.write(str(os.getpid()))
            time.sleep(0.02)
        return value

    return (sf.udf(wait, "string")(column) if Path(closed).exists() else column).alias("item")


def count(orders, returns):
    both = orders.select("value").union(returns.select("value"))
    found = both.select(gate("first", sf.col("value"))).groupBy("item").agg(sf.count("*").alias("records"))
    return found.select(gate("last", sf.col("item")), "records")


def find_last(orders):
    found = orders.select(gate("first", sf.col("value")), "offset").groupBy("item").agg(sf.max("offset").alias("at"))
    return found.select(gate("last", sf.col("item")), "at")


def select(orders):
    return orders.select(gate("first", sf.col("value")), "partition", "offset")


def declare(suffix, to):
    graph.pipeline(orders, returns, to=to("totals"), id="totals" + suffix, key=["item"])(count)
    graph.pipeline(orders, to=to("added"), id="added" + suffix, mode="append", every="1 second")(select)
    graph.pipeline(orders, to=to("latest"), id="latest" + suffix, mode="upsert", key=["item"])(find_last)


declare("", lambda name: ks.Parquet({directory!r} + "/" + name))
declare("_rows", lambda name: ks.PostgreSQL({url!r}, table="{table}_" + name))
"""


class Pipelines:
    """A graph with pipelines in a file of its own, which this process runs."""

    def __init__(
        self, cluster: Cluster, spark: SparkSession | None, name: str, directory: Path, text: str, **settings: Any
    ) -> None:
        """`text`: that of the file."""
        self.cluster, self.spark, self.name, self.directory = cluster, spark, name, directory
        self.file = directory / "shop.py"
        self.file.write_text(text, encoding="utf-8")
        self.settings = ks.Settings(bootstrap_servers=cluster.bootstrap_servers, **settings)
        self.graph: ks.Graph = load(f"{self.file}:graph")

    def pipeline(self, pipeline_id: str) -> Pipeline:
        (found,) = runner.choose_pipelines(self.graph, [pipeline_id])
        return found

    def open(self, pipeline_id: str) -> closing[PipelineTarget]:
        """The target."""
        return closing(open_target(self.pipeline(pipeline_id), self.settings, lambda: self.spark))

    def run_once(self, pipeline_id: str, **options: Any) -> PipelineRun | None:
        return runner.run_once(self.pipeline(pipeline_id), self.graph, self.spark, self.settings, **options)

    def run_all(self, pipeline_id: str, given: Cut | None = None) -> list[PipelineRun | None]:
        """As the command does, a stream, too."""
        found: list[PipelineRun | None] = []
        chosen = [self.pipeline(pipeline_id)]
        drive(chosen, self.graph, self.spark, self.settings, lambda _, run: found.append(run), given)
        return found

    def published(self, pipeline_id: str) -> Published:
        """What the target has."""
        found = runner.read_published(self.pipeline(pipeline_id), self.settings, lambda: self.spark)
        assert found is not None
        return found

    def reset(self, pipeline_id: str) -> None:
        with self.open(pipeline_id) as target:
            target.reset()

    def rows(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        """The published rows of a directory or of a table in PostgreSQL, read without Spark."""
        target: Any = self.pipeline(pipeline_id).target
        if isinstance(target, ks.PostgreSQL):
            with psycopg.connect(target.url) as connection:
                return sorted(connection.execute(f"SELECT * FROM {target.table}").fetchall())
        return read_files(target.files())


def read_files(paths: Iterable[Path]) -> list[tuple[Any, ...]]:
    """The rows of files of Parquet, in order."""
    tables = [pyarrow.parquet.ParquetFile(path).read() for path in paths]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def url_of(postgresql: Server) -> str:
    return f"postgresql://postgres:secret@127.0.0.1:{postgresql.port}/postgres"


class Shop(Pipelines):
    """A graph with two topics and pipelines over them, and the model of their tables."""

    def __init__(
        self,
        cluster: Cluster,
        spark: SparkSession | None,
        name: str,
        directory: Path,
        postgresql: Server,
        *,
        more: str = "",
    ) -> None:
        """`spark` is for `run`; `more` is added to the graph."""
        self.url, self.table = url_of(postgresql), f"t{name.replace('-', '_')}"
        text = (GRAPH + more).format(name=name, directory=str(directory), url=self.url, table=self.table)
        super().__init__(cluster, spark, name, directory, text)
        self.written: list[tuple[str, str, int]] = []
        """Topic, value and offset of each committed record."""
        self._ends = Counter[str]()
        cluster.create(f"{name}.orders", f"{name}.returns")

    run = Pipelines.run_once

    def postgresql(self, name: str) -> ks.PostgreSQL:
        return ks.PostgreSQL(self.url, table=f"{self.table}_{name}")

    def write(self, *records: str, commit: bool = True) -> None:
        """Writes a transaction of `topic:value`."""
        pairs = [(topic, value) for topic, _, value in (record.partition(":") for record in records)]
        topics = {topic for topic, _ in pairs}
        values = [(f"{self.name}.{topic}", value.encode()) for topic, value in pairs]
        self.cluster.transaction(f"{self.name}.writer", values, commit=commit)
        self.cluster.await_markers(*(f"{self.name}.{topic}" for topic in topics))
        for topic, value in pairs:
            if commit:
                self.written.append((topic, value, self._ends[topic]))
            self._ends[topic] += 1
        self._ends.update(topics)  # the markers

    def model(self, pipeline_id: str) -> list[tuple[Any, ...]]:
        """The rows that the pipeline has of all that is written."""
        orders = [(value, offset) for topic, value, offset in self.written if topic == "orders"]
        tables: dict[str, list[tuple[Any, ...]]] = {
            "totals": sorted(Counter(value for _, value, _ in self.written).items()),
            "added": sorted((value, 0, offset) for value, offset in orders),
            "latest": sorted(dict(orders).items()),
        }
        return tables[pipeline_id.removesuffix("_rows")]

    def driver(self, master: str) -> AbstractContextManager[Driver]:
        return driver(self.file, self.cluster.bootstrap_servers, master)

    def run_and_die(self, pipeline_id: str, point: str, master: str = "local[2]") -> None:
        run_and_die(self.file, self.cluster.bootstrap_servers, pipeline_id, point, master)

    # Gates: tasks of a run stand still.

    @contextmanager
    def gate(self, name: str) -> Iterator[None]:
        """In the block, tasks of runs that begin wait at this gate: `first`, or `last` after a shuffle."""
        # a task that waited at the gate before may have written it once more
        (self.directory / f"{name}.waiting").unlink(missing_ok=True)
        (self.directory / name).touch()
        try:
            yield
        finally:
            (self.directory / name).unlink()

    def await_task(self, name: str) -> int:
        """Waits until a task is at the gate; returns the id of its Python process."""
        waiting = self.directory / f"{name}.waiting"
        found: list[str] = []

        def has_written() -> bool:
            if waiting.exists():
                found.append(waiting.read_text())  # empty while the task writes it again
            return any(found)

        wait_until(has_written, f"a task waits at the gate {name!r}")
        return int(found[-1])

    def kill_executor(self, running: Driver, gate: str, *, is_busy: bool) -> None:
        """Kills an executor while a task of the run waits at the gate: the one that runs this task, or the other."""
        executors = running.await_executors()
        task = self.await_task(gate)
        (busy,) = [pid for pid in executors if task in list_offspring(pid)]
        os.kill(busy if is_busy else sum(executors) - busy, signal.SIGKILL)


class Driver:
    """A process that runs pipelines of a file, as `pipeline_driver.py` does, and the processes that it starts."""

    def __init__(self, file: Path, servers: str, master: str) -> None:
        log = file.with_name(f"driver-{time.monotonic_ns()}.log")
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        if master.startswith("local-cluster"):
            environment["SPARK_HOME"] = str(make_spark_home(file.with_name("spark")))
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.pipeline_driver", str(file), servers, master],
                cwd=ROOT, env={**os.environ, **environment}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._started: set[int] = set()
        """The processes that it has started, as far as they were looked for."""

    def await_start(self) -> None:
        """Returns once the session of Spark is there."""
        self.result()

    def begin(self, pipeline_id: str, *points: str) -> None:
        """Begins a run; with a point, the process kills itself there. More are other runs, each with its point."""
        assert self.process.stdin is not None
        self._started.update(list_offspring(self.process.pid))
        self.process.stdin.write(f"{' '.join((pipeline_id, *points))}\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        """The numbers of the runs that the last `begin` has published; None for nothing to do."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)

    def run(self, pipeline_id: str) -> Any:
        self.begin(pipeline_id)
        return self.result()

    def await_executors(self) -> list[int]:
        """The process ids of the two executors, once both run."""
        found: list[int] = []

        def are_there() -> bool:
            found[:] = [pid for pid in list_offspring(self.process.pid) if is_executor(pid)]
            return len(found) == 2

        wait_until(are_there, "two executors run")
        return found

    def await_end(self) -> int:
        """Waits until the process has ended, and what it has started; returns its status."""
        self._started.update(list_offspring(self.process.pid))
        status = self.process.wait(WAIT)
        for pid in self._started:
            await_end(pid)
        return status

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.await_end()
        self.process.stdout.close()


@contextmanager
def driver(file: Path, servers: str, master: str = "local[2]") -> Iterator[Driver]:
    """A driver whose processes have ended after the block."""
    made = Driver(file, servers, master)
    try:
        made.await_start()
        yield made
    finally:
        made.close()


def run_and_die(file: Path, servers: str, pipeline_id: str, point: str, master: str = "local[2]") -> None:
    """Runs a pipeline in a process that is killed at the point."""
    with driver(file, servers, master) as dying:
        dying.begin(pipeline_id, point)
        assert dying.await_end() == -signal.SIGKILL


class Died(Exception):
    """Raised at a point of a run in place of a kill."""


def run_and_raise(point: str, run: Callable[[], object]) -> None:
    """Runs in this process, up to the point: directories, tables and checkpoints are left as by a kill."""

    def fail() -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch:
        act_at(point, fail, patch.setattr)
        with pytest.raises(Died):
            run()


def make_spark_home(directory: Path) -> Path:
    """The installed Spark under another name: its workers write into the directory `work` of their SPARK_HOME."""
    directory.mkdir(exist_ok=True)
    for name in ("bin", "jars", "python"):
        if not (directory / name).exists():
            (directory / name).symlink_to(Path(pyspark.__file__).parent / name)
    return directory


def list_offspring(pid: int) -> list[int]:
    """The process ids of a process's living children, of any of its threads, and of theirs."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended
        return []
    children = [int(child) for text in texts for child in text.split()]
    return [found for child in children if is_alive(child) for found in (child, *list_offspring(child))]


def is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
