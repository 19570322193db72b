"""create_views(): the topics of a graph as tables of Spark SQL."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kstreams_py.formats.registry import Registry
from kstreams_py.graph.pipelines import DROP
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.spark.views import view, view_errors

with suppress(ImportError):  # whoever has a session has PySpark
    from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE: Final = "spark.sql.globalTempDatabase"
"""Spark's setting of the database whose views all sessions of an application see; fixed when it starts."""

ERRORS: Final = "_errors"
"""The end of the name of the view of records that do not decode."""


def create_views(
    spark: SparkSession, graph: Graph, *, registry: Registry | None = None, settings: Settings | None = None
) -> str:
    """Creates a view of each topic of a graph, and one of its records that do not decode; returns their database.

    - `registry`, `settings`: as of view().

    The database is `kstreams` in a session of session(), otherwise that of Spark's setting
    spark.sql.globalTempDatabase: ``spark.sql("select * from kstreams.`flights.departed`")``. Each query reads what is
    committed when it begins; records that do not decode are in ``kstreams.`flights.departed_errors```. The views are
    there until the application ends; a second call replaces them.

    Raises what view() raises.
    """
    settings = settings or Settings.load()
    for topic in graph.topics.values():
        found = view(spark, topic, registry=registry, settings=settings, malformed=DROP)
        found.createOrReplaceGlobalTempView(f"`{topic.name}`")
        failed = view_errors(spark, topic, registry=registry, settings=settings)
        failed.createOrReplaceGlobalTempView(f"`{topic.name}{ERRORS}`")
    try:
        return str(spark.conf.get(DATABASE))
    except PySparkException:
        return "global_temp"
