"""Runs several pipelines: batches one after another, and streams beside them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from kstreams_py.errors import BrokerUnavailable, Retriable, SettingsError, SinkUnavailable
from kstreams_py.graph.loading import show_command
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.topics import no_such_topic
from kstreams_py.settings import Settings
from kstreams_py.spark import private_api
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.pipelines.runner import follow, run_once
from kstreams_py.spark.pipelines.runs import PipelineRun
from kstreams_py.spark.pipelines.streaming import Streaming

logger = logging.getLogger(__name__)

AWAY: Final = (BrokerUnavailable, Retriable, SinkUnavailable)
"""The errors that are raised while brokers, or the target of a pipeline, do not answer."""

Show = Callable[[Pipeline, PipelineRun | None], None]
"""Gets each published run; None for a pipeline that has found nothing new. Several threads may call it."""


def check_inputs(graph: Graph, pipelines: Sequence[Pipeline], settings: Settings) -> None:
    """Checks that the inputs of pipelines exist, before Spark is started for them.

    Raises BrokerUnavailable, and TopicError for a topic that does not exist.
    """
    cluster = KafkaCluster(settings)
    try:
        names = {topic.name for each in pipelines for topic in each.inputs}
        if missing := sorted(names - cluster.topics(names).keys()):
            raise no_such_topic(missing[0], show_command(graph, "topics create"))
    finally:
        cluster.close()


def run_all(
    pipelines: Sequence[Pipeline], graph: Graph, session: Any, settings: Settings, show: Show, given: Cut | None
) -> None:
    """Runs each pipeline once; a stream runs until it has read all records that existed at its start.

    Raises SettingsError for a cut with a stream, MissingSoftware for a PySpark that lacks a part that runs need, and
    the errors of `run_once` and `Streaming`.
    """
    if given is not None and (stream := next((each for each in pipelines if each.checkpoint is not None), None)):
        raise SettingsError(f"{stream} is a stream, and runs at no cut: name the other pipelines")
    private_api.require(session)
    for pipeline in pipelines:
        if pipeline.checkpoint is None:
            show(pipeline, run_once(pipeline, graph, session, settings, given=given))
        else:
            _run_stream(pipeline, session, settings, show)


def _run_stream(pipeline: Pipeline, session: Any, settings: Settings, show: Show) -> None:
    runs: list[PipelineRun] = []
    Streaming(pipeline, session, settings, runs.append, follows=False).join()
    for run in runs or (None,):
        show(pipeline, run)


def follow_all(
    pipelines: Sequence[Pipeline],
    graph: Graph,
    session: Any,
    settings: Settings,
    show: Show,
    is_stopped: Callable[[], bool],
) -> None:
    """Runs pipelines at their intervals until they are stopped or one of them fails.

    A stop waits for the run or batch that is being stored. While no broker answers, pipelines are retried at their
    intervals, each time with a warning.

    Raises BrokerUnavailable if no broker answers the first run or the first start of a stream, because the address
    may be wrong, and if a broker refuses the credentials. Also raises the errors of `run_once` and `Streaming`.
    """
    private_api.require(session)
    begun: dict[str, float] = {}

    def run_batch(pipeline: Pipeline) -> None:
        now = time.time()
        try:
            run = run_once(pipeline, graph, session, settings, since=begun.get(pipeline.id))
        except AWAY as error:
            if not begun or not _may_return(error):
                raise
            _warn_of_absence(pipeline, error)
            return
        begun[pipeline.id] = now
        if run is not None:
            show(pipeline, run)

    streams = list[_FollowedStream]()
    with ExitStack() as stack:
        for pipeline in pipelines:
            if pipeline.checkpoint is not None:
                open_stream = partial(Streaming, pipeline, session, settings, partial(show, pipeline), follows=True)
                streams.append(_FollowedStream(pipeline, open_stream))
                stack.callback(streams[-1].stop)
        batches = [each for each in pipelines if each.checkpoint is None]
        follow(batches, run_batch, lambda: is_stopped() or not all(each.is_running() for each in streams))
    for each in streams:
        each.join()


class _FollowedStream:
    """A stream that is started again when Spark has ended it because brokers did not answer."""

    def __init__(self, pipeline: Pipeline, open_stream: Callable[[], Streaming]) -> None:
        """Starts the stream. Raises the errors of `open_stream`."""
        self._pipeline, self._open = pipeline, open_stream
        self._stream: Streaming | None = open_stream()
        self._due = 0.0

    def is_running(self) -> bool:
        """Returns whether the stream runs, or will be started again. Raises the error with which it has failed."""
        try:
            if self._stream is None and time.monotonic() > self._due:
                self._stream = self._open()
            if self._stream is None or self._stream.is_running():
                return True
            self._stream.join()
        except AWAY as error:
            if not _may_return(error):
                raise
            _warn_of_absence(self._pipeline, error)
            self._stream, self._due = None, time.monotonic() + self._pipeline.every
            return True
        return False

    def stop(self) -> None:
        """Stops the stream after the batch that is being stored."""
        if self._stream is not None:
            self._stream.stop()

    def join(self) -> None:
        """Waits for the end of the stream. Raises the error with which it failed, unless brokers did not answer."""
        if self._stream is not None:
            try:
                self._stream.join()
            except AWAY as error:
                if not _may_return(error):
                    raise


def _may_return(error: Exception) -> bool:
    """Returns whether another attempt may succeed without intervention."""
    return not isinstance(error, BrokerUnavailable | SinkUnavailable) or error.may_return


def _warn_of_absence(pipeline: Pipeline, error: Exception) -> None:
    # errors from Spark already name the pipeline, and say that the table stays
    reason = str(error).removeprefix(f"{pipeline}: ").removesuffix("; the last published table stays")
    logger.warning(
        "%s: %s; the last published table stays, and it is tried again every %g s", pipeline, reason, pipeline.every
    )
