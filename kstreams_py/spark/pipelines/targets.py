"""The targets of pipelines: how each is opened, and what Spark needs for them. A new one is one line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from kstreams_py.embedded.downloads import Artifact
from kstreams_py.embedded.jars import cached
from kstreams_py.errors import SettingsError
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import Pipeline, SparkNeeds
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet, PostgreSQL
from kstreams_py.spark.pipelines.delta import DeltaLakeTable
from kstreams_py.spark.pipelines.kafka import KafkaTable
from kstreams_py.spark.pipelines.parquet import ParquetTable
from kstreams_py.spark.pipelines.postgresql import PostgreSQLTable
from kstreams_py.spark.pipelines.runs import PipelineTarget
from kstreams_py.spark.sessions import PACKAGES, artifacts_for, conf_for

LISTS: Final = frozenset({"spark.sql.extensions", PACKAGES})
"""The settings of Spark that several kinds of targets add to."""

OpenSession = Callable[[], Any]
"""Opens a SparkSession, or returns the open one."""


Open = Callable[[Pipeline, Any, Settings, OpenSession], PipelineTarget]
"""Opens a target: takes the pipeline, its declared target, the cluster's settings, and the opener of a session."""

TARGETS: Final[Mapping[type, Open]] = {
    Topic: lambda pipeline, topic, settings, _: KafkaTable(pipeline, topic, settings),
    Parquet: lambda pipeline, directory, *_: ParquetTable(pipeline, directory),
    PostgreSQL: lambda pipeline, table, *_: PostgreSQLTable(pipeline, table),
    Delta: lambda pipeline, table, _, session: DeltaLakeTable(pipeline, table, session),
}
"""How each target is opened, by the class of its declaration."""


def open_target(pipeline: Pipeline, settings: Settings, session: OpenSession) -> PipelineTarget:
    """Opens the target of a pipeline.

    - `settings`: the settings of the cluster, for a topic.
    - `session`: opens a SparkSession, or returns the open one; for a target that only Spark can read.

    Raises SettingsError for a target of another kind, SinkUnavailable, and MissingSoftware.
    """
    if (opens := TARGETS.get(type(pipeline.target))) is None:
        names = ", ".join(each.__name__ for each in TARGETS)
        raise SettingsError(f"{pipeline}: {pipeline.target} is not supported: give a target of a class among {names}")
    return opens(pipeline, pipeline.target, settings, session)


def artifacts_of(pipelines: Iterable[Pipeline]) -> tuple[Artifact, ...]:
    """Returns the jars that Spark needs for the targets of pipelines. Raises MissingSoftware."""
    return tuple(artifact for needs in _needs_of(pipelines) for artifact in artifacts_for(needs))


def cached_jars(pipelines: Iterable[Pipeline]) -> list[Path]:
    """Returns the cached jars for the targets; none for a kind that lacks one of its jars. Raises MissingSoftware."""
    return [jar for needs in _needs_of(pipelines) if needs.jars() for jar in cached(artifacts_for(needs))]


def conf_of(pipelines: Iterable[Pipeline]) -> dict[str, str]:
    """Returns the configuration that a session needs for the targets of pipelines. Raises MissingSoftware."""
    found: dict[str, str] = {}
    for needs in _needs_of(pipelines):
        for name, value in conf_for(needs).items():
            found[name] = f"{found[name]},{value}" if name in LISTS and name in found else value
    return found


def _needs_of(pipelines: Iterable[Pipeline]) -> list[SparkNeeds]:
    """Returns what Spark needs for each kind of target, once."""
    found = list[SparkNeeds]()
    for pipeline in pipelines:
        found += [needs] if (needs := pipeline.spark_needs) not in found else []
    return found
