"""Sessions of Spark for tests that have one in their own process, in which many short queries run."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j import java_gateway  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import delta_conf, session
from kstreams_py.spark.sessions import table_jars

OF_TESTS: Final = {
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:CompileThresholdScaling=0.3",
    "spark.sql.shuffle.partitions": "2",
}
"""The JVM compiles its code early: of many short queries, a quarter of the samples were interpreted code. Each
partition of a state is files and a task of every batch, and two are as many as run at once.

Commands and scripts that tests start have Spark's own options."""

ONE_PARTITION: Final = {"spark.databricks.delta.snapshotPartitions": "1"}
"""Each partition of a log is a task of every look at a table, and the logs of tests have a few files."""


@contextmanager
def shared_session() -> Iterator[SparkSession]:
    """The one session of this process, with Delta Lake: it costs ten seconds of CPU to start, and as many to warm up.

    If there is one, it is that one, and it stays.
    """
    is_first = SparkSession.getActiveSession() is None
    if is_first:
        # PySpark asks the JVM for the same classes again and again, which looks into each jar: a fifth of the samples
        for names in (java_gateway.JVMView, java_gateway.JavaPackage):
            typed: Any = names
            typed.__getattr__ = functools.cache(typed.__getattr__)
    table_jars()
    conf = {**OF_TESTS, **delta_conf(), **ONE_PARTITION}
    made = session("tests", jars=spark_jars(), java=find_java(for_spark=True), quiet=False, **conf)
    yield made
    if is_first:
        made.stop()


@contextmanager
def kafka_session(app: str, **conf: str) -> Iterator[SparkSession]:
    """The session of this process, for a module; `spark.log.level` is set in it meanwhile."""
    with shared_session() as made:
        level = conf.get("spark.log.level", OF_TESTS["spark.log.level"])
        made.sparkContext.setLogLevel(level)
        yield made
        made.sparkContext.setLogLevel(OF_TESTS["spark.log.level"])
