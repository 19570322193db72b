"""A driver that runs one pipeline, and is killed at a named point of the run: `FILE ID POINT`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.graph.loading import load
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.settings import Settings
from kstreams_py.sinks.directory import Directory
from kstreams_py.spark import delta_conf, driver, runner, session
from kstreams_py.spark.targets.delta import DeltaLakeTable
from kstreams_py.spark.targets.parquet import ParquetTable
from kstreams_py.spark.targets.postgresql import PostgreSQLTable

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
    "written": (KafkaProducer, "commit_transaction", False),
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


def main() -> None:
    file, pipeline_id, point, servers = sys.argv[1:]
    graph = load(f"{file}:graph")
    conf = {"spark.log.level": "ERROR", **(delta_conf() if point.endswith("delta") else {})}
    spark = session("driver", jars=spark_jars(), java=find_java(for_spark=True), **conf)
    kill_at(point)
    (pipeline,) = runner.choose_pipelines(graph, [pipeline_id])
    driver.run_all([pipeline], graph, spark, Settings(bootstrap_servers=servers), lambda *_: None, None)


if __name__ == "__main__":
    main()
