"""Sessions of Spark for tests that have one in their own process, in which many short queries run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import session

OF_TESTS: Final = {
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:CompileThresholdScaling=0.3",
}
"""The JVM compiles its code early: of many short queries, a quarter of the samples were interpreted code.

Commands and scripts that tests start have Spark's own options."""


@contextmanager
def kafka_session(app: str, **conf: str) -> Iterator[SparkSession]:
    """A session that reads Kafka; `conf` as of `session`."""
    made = session(app, jars=spark_jars(), java=find_java(for_spark=True), **{**OF_TESTS, **conf})
    yield made
    made.stop()
