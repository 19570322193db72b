"""The inputs of a pipeline as DataFrames, and the counts of records that its jobs read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kstreams_py.formats.avro import Avro
from kstreams_py.formats.registries import open_registry
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.pipelines import DROP, FAIL, Pipeline
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings
from kstreams_py.spark import private_api
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.pipelines.frames import observe
from kstreams_py.spark.reader_options import Bound
from kstreams_py.spark.views import Inspect, stream, view, view_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

TASK_OFFSETS: Final = 100_000
"""A topic with at most this many offsets per concurrent task is read by no more tasks than run concurrently."""

_RECORDS, _MALFORMED = "records", "malformed"


class Count(NamedTuple):
    """The records that were read from a topic, and how many of them do not decode."""

    records: int
    malformed: int


Counts = Mapping[str, Count]
"""The counts by topic name, without topics that the function does not use."""


class Inputs:
    """Opens the inputs of a pipeline. Spark counts their records while it makes the rows (`Dataset.observe`).

    A task that is run again after its process died may count its records twice: the counts are only for people.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._registry = open_registry(
            settings.schema_registry_url, settings.schema_directory, settings.schema_registry
        )
        self._malformed = DROP if pipeline.drops_malformed else FAIL
        self._decoded: dict[str, DataFrame] = {}
        self._schemas: set[int] = set()
        """The ids of the writers' schemas that the streams know."""

    def read(self, spark: SparkSession, start: Cut | None, end: Cut) -> list[DataFrame]:
        """Returns a DataFrame of each topic: the records in a cut but not in an earlier one. Raises as view() does."""
        return [self._read(spark, topic, start, end) for topic in self._pipeline.inputs]

    def _read(self, spark: SparkSession, topic: Topic, start: Cut | None, end: Cut) -> DataFrame:
        rows = view(
            spark, topic, registry=self._registry, settings=self._settings, start=start, end=end,
            malformed=self._malformed, inspect=self._observe(topic),
        )  # fmt: skip
        # measured: a task, with its consumer and its file, takes as long as about 10,000 records of 100 bytes; for a
        # target without files, rows pass through the driver, one partition at a time
        tasks = spark.sparkContext.defaultParallelism
        is_small = self._pipeline.spark_needs.makes_files and end.count(topic.name, start) <= tasks * TASK_OFFSETS
        return rows.coalesce(tasks) if is_small else rows

    def stream(self, spark: SparkSession) -> list[DataFrame]:
        """Returns a stream of each topic. Raises as stream() does."""
        self._schemas = self._read_ids()  # before the streams: they may know more ids, which does no harm
        return [
            stream(
                spark, topic, registry=self._registry, settings=self._settings,
                malformed=self._malformed, inspect=self._observe(topic),
            )
            for topic in self._pipeline.inputs
        ]  # fmt: skip

    def has_new_schemas(self) -> bool:
        """Returns whether a writer has registered a schema unknown to the streams: its records would be left out."""
        return not self._read_ids() <= self._schemas

    def _read_ids(self) -> set[int]:
        return {
            found
            for topic in self._pipeline.inputs
            for part in ("key", "value")
            if isinstance(getattr(topic, part), Avro)
            for found in self._registry.ids(f"{topic}-{part}")
        }

    def begin_counting(self, rows: DataFrame) -> Callable[[], Counts]:
        """Begins to count before the job that makes these rows; returns a function that waits for the counts after it.

        Jobs that the function itself runs, for example to sample a schema, do not count.
        """
        plan = private_api.optimized_plan(rows)
        used = {name: parent for name, parent in self._decoded.items() if f"CollectMetrics {name}, " in plan}
        observed = {name: observe(name, rows, parent) for name, parent in used.items()}

        def finish() -> Counts:
            found = {name: each.wait() for name, each in observed.items()}
            return {
                name: Count(counts[_RECORDS], counts[_MALFORMED])
                for name, counts in found.items()
                if counts is not None
            }

        return finish

    def counts_of(self, query: StreamingQuery) -> Counts:
        """Returns the counts of a stream's batch while it is stored: the stream's progress has them only later."""
        found = private_api.observed_by_batch(query, [*self._decoded])
        return {name: Count(row.getLong(0), row.getLong(1)) for name, row in found.items()}

    def warn_of_malformed(
        self, spark: SparkSession, counts: Counts, bounds: Callable[[Topic], tuple[Bound | Cut | None, Bound | Cut]]
    ) -> None:
        """Logs how many records were left out, with the reason for the first one.

        - `bounds`: returns the start and the end of the read range of a topic.
        """
        for topic in self._pipeline.inputs:
            malformed = counts[topic.name].malformed if topic.name in counts else 0
            if not malformed:
                continue
            start, end = bounds(topic)
            failed = view_errors(spark, topic, registry=self._registry, settings=self._settings, start=start, end=end)
            first = failed.orderBy("partition", "offset").select("partition", "offset", "error").head()
            where = f"; {topic}[{first[0]}] offset {first[1]}: {first[2]}" if first is not None else ""
            logger.warning(
                "%s: %d records of %s do not decode, and are left out%s", self._pipeline, malformed, topic, where
            )

    def warn_of_compaction(self) -> None:
        """Logs which topics are compacted: runs cannot see records that compaction has deleted."""
        cluster = KafkaCluster(self._settings)
        try:
            found = cluster.topics([topic.name for topic in self._pipeline.inputs])
        finally:
            cluster.close()
        for name, topic in sorted(found.items()):
            if topic.is_compacted:
                logger.warning(
                    "%s: topic %r is compacted: its table is made of what compaction has left when a run reads it",
                    self._pipeline, name,
                )  # fmt: skip

    def _observe(self, topic: Topic) -> Inspect:
        from pyspark.sql import functions as sf  # noqa: PLC0415, an extra

        def observe(decoded: DataFrame, error: Column) -> DataFrame:
            self._decoded[topic.name] = decoded
            counts = sf.count(sf.lit(1)).alias(_RECORDS), sf.count(error).alias(_MALFORMED)
            return decoded.observe(topic.name, *counts)

        return observe


def total(counts: Counts) -> tuple[int | None, int]:
    """Returns the records of all topics (None if Spark reported none), and how many of them do not decode."""
    records = sum(each.records for each in counts.values()) if counts else None
    return records, sum(each.malformed for each in counts.values())
