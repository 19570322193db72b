"""Runs pipelines: each run takes the last cut from the target, makes a new one, and stores rows and cut together.

If a process dies before the target's atomic step, others see no change; the next run reads the same records again, from
the cut in the target. Neither Spark's checkpoint nor a consumer group is used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from kstreams_py.errors import InputLost, SettingsError, TopicError, UserMistake
from kstreams_py.graph.loading import show_reset
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.cutting import cut
from kstreams_py.spark.pipelines.frames import begin_explaining, call, columns_of, reported
from kstreams_py.spark.pipelines.inputs import Inputs, total
from kstreams_py.spark.pipelines.runs import PipelineRun, Published, check_columns, check_owner
from kstreams_py.spark.pipelines.targets import open_target

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.2


def choose_pipelines(graph: Graph, names: Sequence[str]) -> tuple[Pipeline, ...]:
    """Returns the pipelines with these names; all if there are no names. Raises SettingsError for an unknown name."""
    known = {pipeline.id: pipeline for pipeline in graph.pipelines}
    if not known:
        raise SettingsError(f"graph {graph.name!r} has no pipelines: declare one with @graph.pipeline")
    if unknown := [name for name in names if name not in known]:
        raise SettingsError(f"graph {graph.name!r} has no pipeline {unknown[0]!r}: it has {', '.join(known)}")
    return tuple(known[name] for name in names) if names else tuple(known.values())


def read_published(pipeline: Pipeline, settings: Settings, session: Callable[[], Any]) -> Published | None:
    """Reads the state of the pipeline's target. `session`: see `open_target`. Raises as `check_owner` does."""
    with closing(open_target(pipeline, settings, session)) as target:
        published = target.read()
    check_owner(pipeline, published)
    return published


def run_once(
    pipeline: Pipeline,
    graph: Graph,
    session: Any,
    settings: Settings,
    *,
    given: Cut | None = None,
    since: float | None = None,
) -> PipelineRun | None:
    """Runs a pipeline once, and returns the run; None if there was nothing to do.

    - `session`: a SparkSession that reads Kafka.
    - `given`: the cut to run at; a new one by default.
    - `since`: the time of this process's last run, in seconds since 1970: a complete table is not made again at the
      same cut, and no new record has waited since before that time. None for the first run.

    Raises GraphError for a function that does not fit, SettingsError for a target that does not take the rows,
    InputLost if records that the table needs were deleted, BrokerUnavailable if no broker answers Spark, PipelineFailed
    if a Spark job fails for another reason, and the errors of cut(), view() and the target.
    """
    began = time.monotonic()
    with closing(open_target(pipeline, settings, lambda: session)) as target:
        previous = target.read()
        check_owner(pipeline, previous)
        old = None if previous is None else _last_cut(pipeline, previous)
        new = given or cut(graph, [topic.name for topic in pipeline.inputs], settings=settings)
        if new == old and (since is not None or pipeline.mode.is_incremental):
            return None
        after = old if pipeline.mode.is_incremental else None
        offsets = _count_offsets(pipeline, new, after)
        if after is not None and not offsets:
            return None
        if after is None and old is not None:
            _report_losses(pipeline, old, new)
        inputs = Inputs(pipeline, settings)
        if previous is None:
            inputs.warn_of_compaction()
        with _named(pipeline):
            frames = inputs.read(session, after, new)
        with reported(pipeline):  # the function may run its own jobs
            rows = call(pipeline, frames)
        columns = columns_of(rows)
        check_columns(pipeline, rows.dtypes, previous, show_reset(pipeline))
        number = previous.last.number + 1 if previous is not None else 1
        known = None if old is None else old.made

        def finish(count: int) -> Published:
            ended = time.time()
            lag = None if known is None else ended - max(known, since or known)
            seconds = time.monotonic() - began
            counts = count_inputs()
            inputs.warn_of_malformed(session, counts, lambda _: (after, new))
            records, malformed = total(counts)
            of_run = (ended, seconds, lag, explained(), malformed, records)
            run = PipelineRun(number, new.encode(), offsets, count, *of_run)
            return Published.after(previous, pipeline.owner, columns, run)

        with reported(pipeline):
            explained, count_inputs = begin_explaining(rows), inputs.begin_counting(rows)
            return target.publish(rows, previous, finish).last


def _last_cut(pipeline: Pipeline, published: Published) -> Cut:
    try:
        return Cut.decode(published.last.cut, f"{pipeline.target}")
    except UserMistake as error:
        raise SettingsError(
            f"{pipeline}: the last run in {pipeline.target} was a stream's, or was changed by hand: declare it with "
            f"streaming=, or begin again with `{show_reset(pipeline)}`"
        ) from error


@contextmanager
def _named(pipeline: Pipeline) -> Iterator[None]:
    """Adds the pipeline and the remedy to errors about topics that have changed since the last run."""
    try:
        yield
    except (InputLost, SettingsError, TopicError) as error:
        raise type(error)(f"{pipeline}: {error}; `{show_reset(pipeline)}` lets it begin again") from error


def _count_offsets(pipeline: Pipeline, new: Cut, after: Cut | None) -> int:
    """Returns the number of offsets that are in the new cut but not in the earlier one."""
    with _named(pipeline):
        return sum(new.count(topic.name, after) for topic in pipeline.inputs)


def follow(
    pipelines: Sequence[Pipeline],
    run: Callable[[Pipeline], None],
    is_stopped: Callable[[], bool],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Runs each pipeline at its interval, one after another, until it is stopped. A run is never interrupted.

    - `run`: runs one pipeline.
    - `is_stopped`: called between runs.
    """
    due = {pipeline.id: clock() for pipeline in pipelines}
    while not is_stopped():
        if not pipelines:
            sleep(POLL_SECONDS)
            continue
        pipeline = min(pipelines, key=lambda each: due[each.id])
        if (now := clock()) < due[pipeline.id]:
            sleep(min(POLL_SECONDS, due[pipeline.id] - now))
            continue
        due[pipeline.id] = now + pipeline.every
        run(pipeline)


def _report_losses(pipeline: Pipeline, old: Cut, new: Cut) -> None:
    """Logs which records are no longer retained: a complete table is made without them."""
    for topic in pipeline.inputs:
        before, after = old.topics.get(topic.name), new.topic(topic.name)
        if before is None:
            continue
        if before.topic_id != after.topic_id:
            logger.warning(
                "%s: topic %r was created again since the last run: the table has only new records",
                pipeline,
                topic.name,
            )
            continue
        for partition, (was, now) in enumerate(zip(before.partitions, after.partitions, strict=False)):
            if now.start > was.start:
                logger.warning(
                    "%s: %s[%d]: the records from offset %d to %d were deleted since the last run: the table is made "
                    "without them",
                    pipeline, topic.name, partition, was.start, now.start - 1,
                )  # fmt: skip
