"""A driver that runs pipelines, and is killed at a named point of a run: `FILE SERVERS MASTER`.

It reads lines `ID` or `ID POINT`, and prints the numbers of the runs that were
published, as JSON. It ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
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
from kstreams_py.spark import delta_conf, driver, runner, session
from kstreams_py.spark.runs import Run
from kstreams_py.spark.sessions import path_of_archive
from kstreams_py.spark.targets.delta import DeltaLakeTable
from kstreams_py.spark.targets.parquet import ParquetTable
from kstreams_py.spark.targets.postgresql import PostgreSQLTable
from tests.delta_sessions import ONE_PARTITION
from tests.spark_sessions import OF_TESTS

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


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(point: str) -> None:
    owner, name, after = AROUND[point]
    original: Callable[..., Any] = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        if after:
            original(*arguments, **options)
        die()

    setattr(owner, name, dying)


def tell(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def run(pipeline: Pipeline, graph: Graph, spark: Any, settings: Settings) -> list[int | None]:
    """The numbers of the runs; None where nothing was new."""
    runs: list[Run | None] = []
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
    spark = session("driver", jars=spark_jars(), java=find_java(for_spark=True), **options, **OF_TESTS)
    tell({"master": master})
    for line in sys.stdin:
        pipeline_id, _, point = line.strip().partition(" ")
        if point:
            kill_at(point)
        (pipeline,) = runner.choose_pipelines(graph, [pipeline_id])
        tell(run(pipeline, graph, spark, Settings(bootstrap_servers=servers)))
    spark.stop()


if __name__ == "__main__":
    main()
