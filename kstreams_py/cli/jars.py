"""`kstreams jars`: fetches the broker's jars, and Spark's if PySpark is installed, from a Maven repository."""

from __future__ import annotations

import sys

from kstreams_py.cli.streams import echo
from kstreams_py.embedded.broker import archive_classes
from kstreams_py.embedded.jars import cache_directory, has_pyspark, kafka_classpath, spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import KStreamsError


def jars() -> None:
    """Fetch the broker's jars, and Spark's if PySpark is installed, and archive their classes for a faster start.

    The command fetches the jars from the Maven repository in KSTREAMS_MAVEN_REPOSITORY, by default Maven Central, and
    verifies them.
    """
    kafka = kafka_classpath(print)
    if has_pyspark():
        from kstreams_py.spark.sessions import table_jars  # noqa: PLC0415  PySpark is optional, and slow to import

        spark_jars(print)
        table_jars(print)
    else:
        echo("PySpark is not installed: no jars for Spark")
    try:
        archive_classes(kafka, find_java())
    except (KStreamsError, OSError) as error:
        echo(f"the broker's classes are not archived, so it starts slower: {error}", file=sys.stderr)
    if has_pyspark():
        _archive_spark()
    echo(f"jars are in {cache_directory()}")


def _archive_spark() -> None:
    from kstreams_py.spark import archiving  # noqa: PLC0415  PySpark is optional, and slow to import

    try:
        archiving.archive_classes()
    except (KStreamsError, OSError) as error:
        echo(f"Spark's classes are not archived, so it starts slower: {error}", file=sys.stderr)
