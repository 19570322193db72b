"""The targets of pipelines: how each is opened, and what Spark needs for it. A new target is one line in TARGETS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from kstreams_py.embedded.downloads import Artifact
from kstreams_py.embedded.jars import cached, delta_artifacts
from kstreams_py.errors import SettingsError
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.settings import Settings
from kstreams_py.sinks import Delta, Parquet, PostgreSQL
from kstreams_py.spark.pipelines.delta import DeltaLakeTable
from kstreams_py.spark.pipelines.kafka import KafkaTable
from kstreams_py.spark.pipelines.parquet import ParquetTable
from kstreams_py.spark.pipelines.postgresql import PostgreSQLTable
from kstreams_py.spark.pipelines.runs import PipelineTarget
from kstreams_py.spark.sessions import PACKAGES, delta_conf

LISTS: Final = frozenset({"spark.sql.extensions", PACKAGES})
"""The settings of Spark that several kinds of targets add to."""

OpenSession = Callable[[], Any]
"""Opens a SparkSession, or returns the open one."""


class TargetKind(NamedTuple):
    """How pipelines use the targets of one kind.

    - `open`: makes the target; takes the pipeline, its declared target, the settings of the cluster, and a function
      that opens the session, for a target that only Spark can read.
    - `makes_files`: each task of Spark writes a file of its own.
    - `artifacts`: returns the jars that Spark needs for it, besides those for Kafka.
    - `conf`: returns the configuration that a session needs for it.
    """

    open: Callable[[Pipeline, Any, Settings, OpenSession], PipelineTarget]
    makes_files: bool = False
    artifacts: Callable[[], tuple[Artifact, ...]] = tuple
    conf: Callable[[], Mapping[str, str]] = dict


TARGETS: Final[Mapping[type, TargetKind]] = {
    Topic: TargetKind(lambda pipeline, topic, settings, _: KafkaTable(pipeline, topic, settings)),
    Parquet: TargetKind(lambda pipeline, directory, *_: ParquetTable(pipeline, directory), makes_files=True),
    PostgreSQL: TargetKind(lambda pipeline, table, *_: PostgreSQLTable(pipeline, table)),
    Delta: TargetKind(
        lambda pipeline, table, _, session: DeltaLakeTable(pipeline, table, session),
        makes_files=True, artifacts=delta_artifacts, conf=delta_conf,
    ),
}  # fmt: skip
"""The kind of each target, by the class of its declaration."""


def kind_of(pipeline: Pipeline) -> TargetKind:
    """Returns the kind of the target of a pipeline. Raises SettingsError for a target of another kind."""
    if (kind := TARGETS.get(type(pipeline.target))) is None:
        raise SettingsError(
            f"{pipeline}: {pipeline.target} is not supported: give ks.Parquet, ks.PostgreSQL, ks.Delta or a topic"
        )
    return kind


def open_target(pipeline: Pipeline, settings: Settings, session: OpenSession) -> PipelineTarget:
    """Opens the target of a pipeline.

    - `settings`: the settings of the cluster, for a topic.
    - `session`: opens a SparkSession, or returns the open one; for a target that only Spark can read.

    Raises SettingsError for a target of another kind, SinkUnavailable, and MissingSoftware.
    """
    return kind_of(pipeline).open(pipeline, pipeline.target, settings, session)


def artifacts_of(pipelines: Iterable[Pipeline]) -> tuple[Artifact, ...]:
    """Returns the jars that Spark needs for the targets of pipelines. Raises MissingSoftware."""
    return tuple(dict.fromkeys(artifact for pipeline in pipelines for artifact in kind_of(pipeline).artifacts()))


def cached_jars(pipelines: Iterable[Pipeline]) -> list[Path]:
    """Returns the cached jars for the targets; none for a kind that lacks one of its jars. Raises MissingSoftware."""
    needed = dict.fromkeys(artifacts for pipeline in pipelines if (artifacts := kind_of(pipeline).artifacts()))
    return [jar for artifacts in needed for jar in cached(artifacts)]


def conf_of(pipelines: Iterable[Pipeline]) -> dict[str, str]:
    """Returns the configuration that a session needs for the targets of pipelines. Raises MissingSoftware."""
    found: dict[str, str] = {}
    for kind in dict.fromkeys(map(kind_of, pipelines)):
        for name, value in kind.conf().items():
            found[name] = f"{found[name]},{value}" if name in LISTS and name in found else value
    return found
