"""Runs several pipelines: those of batches one after the other, and streams beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from kstreams_py.errors import SettingsError
from kstreams_py.graph.pipelines import Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.settings import Settings
from kstreams_py.spark import private_api
from kstreams_py.spark.cuts import Cut
from kstreams_py.spark.runner import follow, run_once
from kstreams_py.spark.runs import Run
from kstreams_py.spark.streaming import Streaming

Show = Callable[[Pipeline, Run | None], None]
"""Gets each run that was published; None for a pipeline that has found nothing new. Threads may call it."""


def run_all(
    pipelines: Sequence[Pipeline], graph: Graph, session: Any, settings: Settings, show: Show, given: Cut | None
) -> None:
    """Runs each pipeline once, a stream until it has read what there was.

    Raises SettingsError for a cut and a stream, MissingSoftware for another PySpark; otherwise as `run_once` and
    `Streaming` do.
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
    runs: list[Run] = []
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
    """Runs pipelines at their intervals until they are stopped, or a stream has failed.

    What is being stored when they are stopped is stored before. Raises as `run_once` and `Streaming` do.
    """
    private_api.require(session)
    begun: dict[str, float] = {}

    def run_batch(pipeline: Pipeline) -> None:
        since, begun[pipeline.id] = begun.get(pipeline.id), time.time()
        run = run_once(pipeline, graph, session, settings, since=since)
        if run is not None:
            show(pipeline, run)

    streams = list[Streaming]()
    with ExitStack() as stack:
        for pipeline in pipelines:
            if pipeline.checkpoint is not None:
                streams.append(Streaming(pipeline, session, settings, partial(show, pipeline), follows=True))
                stack.callback(streams[-1].stop)
        batches = [each for each in pipelines if each.checkpoint is None]
        follow(batches, run_batch, lambda: is_stopped() or not all(each.is_running() for each in streams))
    for each in streams:
        each.join()
