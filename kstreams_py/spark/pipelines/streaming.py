"""Streaming pipelines: each of Spark's batches is stored with the place in the stream where it ends, in one step.

Spark keeps the state of a stream and the offsets of its next batch in a checkpoint, and runs the last batch again after
a crash. So the target also has the checkpoint's entry for its last batch. A batch that the target has is left out, and
a checkpoint that does not continue the target's last batch is refused. On a local disk, which Spark does not sync, the
entry may be lost; then the batch with the same number has other offsets.

A query decodes by the writers' schemas that it knew at its start. If a batch has records that do not decode and a new
schema was registered, the query is started again before the batch is stored.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Final

from kstreams_py.errors import SettingsError, Unavailable
from kstreams_py.graph.declarations import Topic
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings
from kstreams_py.spark.pipelines.frames import call, columns_of, evaluate, explain, read_text, reported, start_query
from kstreams_py.spark.pipelines.inputs import Inputs, total
from kstreams_py.spark.pipelines.places import BatchPlace
from kstreams_py.spark.pipelines.runs import PipelineRun, Published, check_columns, check_owner
from kstreams_py.spark.pipelines.targets import open_target
from kstreams_py.spark.reader_options import Bound

logger = logging.getLogger(__name__)

OUTPUT_MODES: Final = {Mode.COMPLETE: "complete", Mode.APPEND: "append", Mode.UPSERT: "update"}
"""Spark's output modes."""


class Streaming:
    """A running streaming pipeline. Its batches are stored one after another, in one of Spark's threads."""

    def __init__(
        self,
        pipeline: Pipeline,
        session: Any,
        settings: Settings,
        stored: Callable[[PipelineRun], None],
        *,
        follows: bool,
    ) -> None:
        """Starts the stream.

        - `session`: a SparkSession that reads Kafka.
        - `stored`: gets each published run, in Spark's thread.
        - `follows`: runs at the pipeline's interval until it is stopped; otherwise until all existing records are read.

        Raises GraphError for a function that does not fit, and SettingsError for a target that does not take the rows.
        """
        self._pipeline, self._session, self._settings = pipeline, session, settings
        self._stored = stored
        self._error: Exception | None = None
        self._storing = threading.Lock()
        """Held while a batch is stored: a stop waits for it."""
        self._stopped = self._is_outdated = False
        self._every = pipeline.every if follows else None
        self._seconds = 0.0
        """The seconds of the previous batch: a record may have arrived just after that batch was planned."""
        self._known = threading.Event()
        self._start()

    def _start(self) -> None:
        """Starts the query, which decodes by the schemas that are registered now."""
        pipeline = self._pipeline
        self._error, self._is_outdated = None, False
        self._inputs = Inputs(pipeline, self._settings)
        rows = call(pipeline, self._inputs.stream(self._session))
        with closing(open_target(pipeline, self._settings, lambda: self._session)) as target:
            published = target.read()
        check_owner(pipeline, published)
        check_columns(pipeline, rows.dtypes, published, show_reset(pipeline))
        if published is None:
            self._inputs.warn_of_compaction()
        self._known.clear()
        with reported(pipeline):
            self._query = start_query(rows, OUTPUT_MODES[pipeline.mode], self._checkpoint, self._every, self._store)
        self._known.set()

    def _begin_again(self) -> bool:
        """Starts the query again if it has ended only because of a new schema."""
        if self._stopped or not self._is_outdated:
            return False
        logger.info(
            "%s: a writer has registered a schema: the stream starts again, to decode its records", self._pipeline
        )
        self._start()
        return True

    def is_running(self) -> bool:
        """Returns whether the stream has neither ended nor failed."""
        return bool(self._query.isActive) or self._begin_again()

    def stop(self) -> None:
        """Stops the stream after the batch that is being stored."""
        with self._storing:
            self._stopped = True
        self._query.stop()

    def join(self) -> None:
        """Waits for the end of the stream. Raises the error of a batch; otherwise raises as `run_once` does."""
        with reported(self._pipeline):
            while not self._has_ended():
                pass

    def _has_ended(self) -> bool:
        """Waits for the end of the query; returns False if it was started again."""
        try:
            self._query.awaitTermination()
        except Exception:
            if self._begin_again():
                return False
            if isinstance(self._error, InterruptedError):
                return True
            if self._error is not None:
                raise self._error from None
            raise
        return True

    @property
    def _checkpoint(self) -> str:
        assert self._pipeline.checkpoint is not None
        return self._pipeline.checkpoint

    def _store(self, rows: Any, batch: int) -> None:
        """Stores a batch, unless the target already has it."""
        self._known.wait()
        try:
            with self._storing:
                if self._stopped:
                    raise InterruptedError("the stream was stopped")  # otherwise Spark would count the batch as done
                self._publish(rows, batch)
        except Exception as error:
            self._error = error
            if not self._pipeline.drops_malformed:
                with suppress(Unavailable):
                    self._is_outdated = self._inputs.has_new_schemas()
            raise

    def _publish(self, rows: Any, batch: int) -> None:
        pipeline = self._pipeline
        entry = read_text(rows, f"{self._checkpoint}/offsets/{batch}")
        place = BatchPlace(str(self._query.id), batch, entry, self._topic_ids())
        with closing(open_target(pipeline, self._settings, lambda: rows.sparkSession)) as target, reported(pipeline):
            previous = target.read()
            check_owner(pipeline, previous)
            last = self._check_place(place, previous)
            if last == place:
                evaluate(rows)  # the watermark comes from the rows of the batch
                return
            columns = columns_of(rows)

            plan = explain(rows)

            def finish(count: int) -> Published:
                ended = time.time()
                seconds = ended - place.planned
                lag = None if self._every is None else seconds + max(self._every, self._seconds)
                offsets, (records, malformed) = place.count_offsets(last), self._count(rows, place, last)
                run = PipelineRun(
                    batch + 1, place.encode(), offsets, count, ended, seconds, lag, plan, malformed, records
                )
                return Published.after(previous, pipeline.owner, columns, run)

            run = target.publish(rows, previous, finish).last
            self._seconds = run.seconds
            self._stored(run)

    def _count(self, rows: Any, place: BatchPlace, last: BatchPlace | None) -> tuple[int | None, int]:
        """Returns the records of a batch, and how many of them do not decode; warns of these.

        Raises InterruptedError if they may decode by a schema that was registered since the query began.
        """
        counts = self._inputs.counts_of(self._query)
        records, malformed = total(counts)
        if (malformed or records is None) and self._inputs.has_new_schemas():
            self._is_outdated = True
            raise InterruptedError("a writer has registered a schema that the query does not know")

        def bounds(topic: Topic) -> tuple[Bound | None, Bound]:
            return None if last is None else last.starts(topic.name, place), place.ends(topic.name)

        self._inputs.warn_of_malformed(rows.sparkSession, counts, bounds)
        return records, malformed

    def _topic_ids(self) -> dict[str, str]:
        """Returns the ids of the inputs: Spark compares only offsets, which a topic that was created again also has."""
        cluster = KafkaCluster(self._settings)
        try:
            found = cluster.topics([topic.name for topic in self._pipeline.inputs])
        finally:
            cluster.close()
        return {name: each.topic_id for name, each in sorted(found.items())}

    def _check_place(self, place: BatchPlace, previous: Published | None) -> BatchPlace | None:
        """Returns the target's last batch: this one or the previous one. Raises SettingsError for another."""
        last = None if previous is None else BatchPlace.decode(previous.last.cut)
        remedy = f"restore both, or begin again: delete the checkpoint, and run `{show_reset(self._pipeline)}`"
        if previous is not None and last is None:
            raise SettingsError(f"{self._pipeline}: {self._pipeline.target} was not made by a stream: {remedy}")
        known = {} if last is None else last.topics
        if changed := [name for name, topic_id in known.items() if place.topics.get(name) != topic_id]:
            raise SettingsError(
                f"{self._pipeline}: topic {changed[0]!r} was deleted and created again since the last batch: {remedy}"
            )
        following = 0 if last is None else last.batch + 1
        is_same = last is None or last.stream == place.stream
        if not is_same or (place != last and place.batch != following):
            had = "no batch" if last is None else f"batch {last.batch} of stream {last.stream}"
            raise SettingsError(
                f"{self._pipeline}: the checkpoint {self._checkpoint} is at batch {place.batch} of stream "
                f"{place.stream}, and {self._pipeline.target} has {had}: {remedy}"
            )
        return last
