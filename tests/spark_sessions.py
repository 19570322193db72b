"""Sessions of Spark for tests that have one in their own process, in which many short queries run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from kstreams_py.embedded.jars import spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.spark import session

SHORT_QUERIES: Final = {
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:CompileThresholdScaling=0.3",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ui.explainMode": "simple",
}
"""For a few rows, to compile code takes longer than to interpret expressions, and nobody sees the pages that plans are
formatted for. The JVM compiles its own code early: a quarter of its samples were interpreted.

Commands and scripts that tests start have Spark's own settings."""


COMPILED: Final = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's own settings, as of sessions of users: its interpreter fails at the rows of `catalog.listTables()`."""


@contextmanager
def kafka_session(app: str, **conf: str) -> Iterator[SparkSession]:
    """A session that reads Kafka; `conf` as of `session`."""
    made = session(app, jars=spark_jars(), java=find_java(for_spark=True), **{**SHORT_QUERIES, **conf})
    yield made
    made.stop()
