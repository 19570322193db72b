"""create_views(): the topics of a graph as tables of Spark SQL."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from kstreams_py.errors import SchemaError, TopicError
from kstreams_py.formats.registry import Registry
from kstreams_py.graph.pipelines import DROP
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.spark.views import view, view_errors

with suppress(ImportError):  # whoever has a session has PySpark
    from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

DATABASE: Final = "spark.sql.globalTempDatabase"
"""Spark's setting for the database whose views all sessions of an application see; fixed when Spark starts."""

ERRORS: Final = "_errors"
"""The suffix of the view of records that do not decode."""


def create_views(
    spark: SparkSession, graph: Graph, *, registry: Registry | None = None, settings: Settings | None = None
) -> str:
    """Creates a view of each topic of a graph, and one of its records that do not decode; returns their database.

    - `registry`, `settings`: as in view().

    The database is `kstreams` in a session of session(), otherwise the one in Spark's setting
    spark.sql.globalTempDatabase: ``spark.sql("select * from kstreams.`flights.departed`")``. Each query reads the
    records that are committed when it begins; records that do not decode are in ``kstreams.`flights.departed_errors```.
    The views exist until the application ends; a second call replaces them.

    A topic that does not exist, or that Spark cannot decode, is left out with a warning; so are topics on other
    clusters. Raises SettingsError, MissingSoftware and BrokerUnavailable as view() does.
    """
    settings = settings or Settings.load()
    for topic in graph.topics.values():
        if topic.cluster:
            logger.warning("no view of topic %s: it is on cluster %r: give view() its settings", topic, topic.cluster)
            continue
        try:
            found = view(spark, topic, registry=registry, settings=settings, malformed=DROP)
            failed = view_errors(spark, topic, registry=registry, settings=settings)
        except (SchemaError, TopicError) as error:
            logger.warning("no view of topic %s: %s", topic, error)
            continue
        found.createOrReplaceGlobalTempView(f"`{topic.name}`")
        failed.createOrReplaceGlobalTempView(f"`{topic.name}{ERRORS}`")
    try:
        return str(spark.conf.get(DATABASE))
    except PySparkException:
        return "global_temp"
