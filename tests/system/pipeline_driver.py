"""A driver that runs pipelines, and is killed at named points of their runs: `FILE SERVERS MASTER`.

It reads lines `ID`, `ID POINT` or `ID POINT ID POINT ...`, and prints the numbers of the runs that were published, as
JSON. With several points each run stands still at its own, and the process is killed once all of them do: one death
shows what a death at each of the points leaves. It ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kstreams_py.embedded import class_archive
from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.graph.loading import load
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta
from kstreams_py.sinks.directory import Directory
from kstreams_py.spark import delta_conf, session
from kstreams_py.spark.pipelines import driver, runner
from kstreams_py.spark.pipelines.delta import DeltaLakeTable
from kstreams_py.spark.pipelines.parquet import ParquetTable
from kstreams_py.spark.pipelines.postgresql import PostgreSQLTable
from kstreams_py.spark.pipelines.runs import PipelineRun
from kstreams_py.spark.sessions import path_of_archive
from tests.spark_sessions import OF_TESTS, ONE_PARTITION

AROUND: Final[dict[str, tuple[Any, str, bool]]] = {
    "before-cut": (runner, "cut", False),
    "after-read": (runner, "call", True),
    "staged": (ParquetTable, "_stage", True),
    "before-publish": (Directory, "replace", False),
    "after-publish": (Directory, "replace", True),
    "copied": (PostgreSQLTable, "_copy", True),
    "before-commit": (PostgreSQLTable, "_move", True),
    "after-commit": (PostgreSQLTable, "publish", True),
    "before-delta": (DeltaLakeTable, "_write", False),
    "after-delta": (DeltaLakeTable, "_write", True),
    "written": (KafkaProducer, "_await_acknowledgements", True),
    "after-commit-of-topic": (KafkaProducer, "commit_transaction", True),
}
"""By the name of a point: the function that the process is killed before, or after."""


def act_at(point: str, act: Callable[[], None], patch: Callable[[Any, str, Any], object] = setattr) -> None:
    """Has `act` called at the point; `patch` sets the attribute."""
    owner, name, after = AROUND[point]
    original: Callable[..., Any] = getattr(owner, name)

    def acting(*arguments: Any, **options: Any) -> Any:
        if not after:
            act()
        found = original(*arguments, **options)
        if after:
            act()
        return found

    patch(owner, name, acting)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Stands:
    """Runs beside each other, each of which stands still at a point of its own."""

    def __init__(self, points: Mapping[str, str]) -> None:
        """`points`: by pipeline."""
        self._points = points
        self._starting = ""
        self._here = threading.local()
        self._arrived = threading.Semaphore(0)
        for point in set(points.values()):
            act_at(point, partial(self._stand, point))

    def _stand(self, point: str) -> None:
        # Spark stores the batches of a stream in threads of its own: then the last one that was started is there
        if getattr(self._here, "point", self._starting) == point:
            self._arrived.release()
            threading.Event().wait()

    def start_each(self, run: Callable[[str], object]) -> None:
        """Starts the runs, one after the other; returns once all stand."""
        for pipeline_id, point in self._points.items():

            def begin(pipeline_id: str = pipeline_id, point: str = point) -> None:
                self._here.point = point
                run(pipeline_id)

            self._starting = point
            threading.Thread(target=begin, daemon=True).start()
            self._arrived.acquire()


def tell(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def run(pipeline: Pipeline, graph: Graph, spark: Any, settings: Settings) -> list[int | None]:
    """The numbers of the runs; None where nothing was new."""
    runs: list[PipelineRun | None] = []
    driver.run_all([pipeline], graph, spark, settings, lambda _, run: runs.append(run), None)
    return [run and run.number for run in runs]


def main() -> None:
    file, servers, master = sys.argv[1:]
    graph = load(f"{file}:graph")
    here = "127.0.0.1"
    options = {"spark.master": master, "spark.driver.host": here, "spark.driver.bindAddress": here}
    # the drivers map the archive by themselves; these are executors on this machine
    options["spark.executor.defaultJavaOptions"] = " ".join(class_archive.to_use(path_of_archive()))
    if any(isinstance(each.target, Delta) for each in graph.pipelines):
        options |= delta_conf() | ONE_PARTITION
    spark = session("driver", jars=spark_jars(), java=find_java(for_spark=True), quiet=False, **options, **OF_TESTS)
    tell({"master": master})

    def run_one(pipeline_id: str) -> list[int | None]:
        (pipeline,) = runner.choose_pipelines(graph, [pipeline_id])
        return run(pipeline, graph, spark, Settings(bootstrap_servers=servers))

    for line in sys.stdin:
        pipeline_id, *points = line.split()
        if len(points) > 1:
            words = line.split()
            Stands(dict(zip(words[::2], words[1::2], strict=True))).start_each(run_one)
            die()
        for point in points:
            act_at(point, die)
        tell(run_one(pipeline_id))
    spark.stop()


if __name__ == "__main__":
    main()
