"""Opens the target of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kstreams_py.errors import SettingsError
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet, PostgreSQL
from kstreams_py.spark.pipelines.delta import DeltaLakeTable
from kstreams_py.spark.pipelines.kafka import KafkaTable
from kstreams_py.spark.pipelines.parquet import ParquetTable
from kstreams_py.spark.pipelines.postgresql import PostgreSQLTable
from kstreams_py.spark.pipelines.runs import Target


def open_target(pipeline: Pipeline, settings: Settings, session: Callable[[], Any]) -> Target:
    """Opens the target of a pipeline.

    - `settings`: the settings of the cluster, for a topic.
    - `session`: opens a SparkSession, or returns the open one; for a target that only Spark can read.

    Raises SettingsError for a target of another kind, SinkUnavailable, and MissingSoftware.
    """
    if isinstance(pipeline.target, Delta):
        return DeltaLakeTable(pipeline, pipeline.target, session)
    if isinstance(pipeline.target, Topic):
        return KafkaTable(pipeline, pipeline.target, settings)
    if isinstance(pipeline.target, Parquet):
        return ParquetTable(pipeline, pipeline.target)
    if isinstance(pipeline.target, PostgreSQL):
        return PostgreSQLTable(pipeline, pipeline.target)
    raise SettingsError(
        f"{pipeline}: {pipeline.target} is not supported: give ks.Parquet, ks.PostgreSQL, ks.Delta or a topic"
    )
