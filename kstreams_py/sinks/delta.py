"""A table of Delta Lake, which pipelines write."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from typing import ClassVar

from kstreams_py.errors import MissingSoftware
from kstreams_py.graph.pipelines import Mode, SparkNeeds


def _jars() -> Sequence[str]:
    from kstreams_py.embedded.jars import SCALA_VERSION  # noqa: PLC0415 only processes with Spark need it

    try:
        return (f"io.delta:delta-spark_{SCALA_VERSION}:{version('delta-spark')}",)
    except PackageNotFoundError:
        raise MissingSoftware("Delta Lake is not installed: run pip install 'kstreams_py[delta]'") from None


@dataclass(frozen=True)
class Delta:
    """A table of Delta Lake, by its path. Needs delta-spark: `pip install 'kstreams_py[delta]'`.

    Rows and runs are in one commit of the table's log. It takes the rows of pipelines, not of processors.

    - `path`: a directory, or a URL of a file system that Spark can write; created if it is missing.
    """

    path: str
    spark_needs: ClassVar = SparkNeeds(
        _jars,
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "4",  # 50, the default, is for logs of millions of files
        },
        makes_files=True,
    )

    def __init__(self, path: str | PathLike[str]) -> None:
        vars(self).update(path=str(path))

    @property
    def pipeline_modes(self) -> Collection[Mode]:
        """All modes."""
        return tuple(Mode)

    @property
    def checkpoint(self) -> str:
        """The path of a streaming pipeline's checkpoint: Delta ignores names that begin with `_`."""
        return f"{self.path}/_checkpoint"

    def __str__(self) -> str:
        return self.path
