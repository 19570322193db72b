"""Sessions of Spark with Delta Lake, in a process that later has sessions without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from kstreams_py.embedded.jars import delta_jars, spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import delta_conf, session
from tests.spark_sessions import OF_TESTS

ONE_PARTITION: Final = {"spark.databricks.delta.snapshotPartitions": "1"}
"""Each partition of a log is a task of every look at a table, and the logs of tests have a few files."""


@contextmanager
def delta_session(name: str) -> Iterator[SparkSession]:
    """A session with Delta Lake, ended with its settings."""
    delta_jars()
    conf = {**OF_TESTS, **delta_conf(), **ONE_PARTITION}
    made = session(name, jars=spark_jars(), java=find_java(for_spark=True), **conf)
    try:
        yield made
    finally:
        jvm = made.sparkContext._jvm
        assert jvm is not None
        made.stop()
        # a JVM keeps the settings of its first session as properties, and later sessions of the process have them
        for each in conf:
            jvm.java.lang.System.clearProperty(each)
