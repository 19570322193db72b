"""`kstreams jars`: fetches the jars of the broker and of Spark from Maven, once."""

from __future__ import annotations

import sys

from kstreams_py.embedded.broker import archive_classes
from kstreams_py.embedded.jars import cache_directory, kafka_classpath, spark_jars
from kstreams_py.embedded.java import find_java
from kstreams_py.errors import KStreamsError


def jars() -> None:
    """Fetch the broker's and Spark's jars into the cache, and archive the broker's classes for a faster start."""
    kafka = kafka_classpath(print)
    spark_jars(print)
    try:
        archive_classes(kafka, find_java())
    except (KStreamsError, OSError) as error:
        print(f"the broker's classes are not archived, so it starts slower: {error}", file=sys.stderr)
    print(f"jars are in {cache_directory()}")
