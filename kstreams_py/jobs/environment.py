"""The environment of a job: its sources and targets, a clock, entropy, and its limits."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.graph.channels import JobTask
from kstreams_py.graph.declarations import Channel
from kstreams_py.graph.loading import UNKNOWN
from kstreams_py.graph.names import group_of, member_of
from kstreams_py.graph.sink import Sink, SinkConnection
from kstreams_py.graph.source import SourceConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.jobs.acker import Acker
from kstreams_py.jobs.identity import Entropy
from kstreams_py.jobs.topic_inputs import TopicConnection
from kstreams_py.jobs.topic_outputs import TopicLetters, TopicOutputs
from kstreams_py.steps.calls import Calls, open_calls
from kstreams_py.steps.environment import Environment
from kstreams_py.steps.tracing import Tracing

MAX_PENDING: Final = 10_000
TIMEOUT: Final = 60.0

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks at a source that has no inputs: each look may be a transaction of the source."""


def open_source(channel: Channel, reader: str) -> SourceConnection:
    """Connects to the source of a channel."""
    assert channel.source is not None
    return channel.source.open(reader)


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The environment of a job; a simulation replaces clock, sleep, entropy, calls and acker.

    - `open_source`, `open_sink`: connect to the source of a channel, or to a sink's target, under a reader's name.
    - `open_letters`: makes the writer of the dead letters of a channel that a topic fills; None if it has none.
    - `open_outputs`: makes the writer to the topics of a task; None if it has none.
    - `clock`: returns seconds that never decrease.
    - `sleep`: waits for a number of seconds.
    - `entropy`: returns random bytes.
    - `chance`: returns a random number between 0 and 1, which varies the waits before retries.
    - `open_calls`: makes the object that runs overlapping calls of a function.
    - `open_acker`: makes the acker.
    - `open_tracing`: makes the spans of a task; None for no tracing.
    - `max_pending`: how many inputs of a source may be under way.
    - `timeout`: seconds after which an input that is neither complete nor under way is read again.
    - `look_seconds`: the longest time between two looks at a source that has no inputs.
    - `target`: how a command names the graph.
    """

    open_source: Callable[[Channel, str], SourceConnection] = open_source
    open_letters: Callable[[Channel], TopicLetters | None] = lambda _: None
    open_outputs: Callable[[JobTask], TopicOutputs | None] = lambda _: None
    open_sink: Callable[[Sink, str], SinkConnection] = lambda sink, consumer: sink.open(consumer)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    entropy: Entropy = os.urandom
    chance: Callable[[], float] = random.random
    open_calls: Callable[[JobTask, Callable[[int, Any], Any]], Calls] = lambda task, finish: open_calls(
        task, finish, patience=0.0
    )
    open_acker: Callable[[], Acker] = Acker
    open_tracing: Callable[[JobTask], Tracing] | None = None
    max_pending: int = MAX_PENDING
    timeout: float = TIMEOUT
    look_seconds: float = LOOK_SECONDS
    target: str = UNKNOWN


def job_environment(graph: Graph, slot: int, environment: Environment) -> JobEnvironment:
    """Returns the environment of a graph's job in a slot, which reads and writes topics of a cluster."""

    def open_input(channel: Channel, reader: str) -> SourceConnection:
        if channel.topic is None:
            return open_source(channel, reader)
        group = group_of(graph.name, channel.name)
        return TopicConnection(channel.topic, group, member_of(group, slot), environment)

    def open_letters(channel: Channel) -> TopicLetters | None:
        if channel.errors is None:
            return None
        reader = next(task.id for task in graph.tasks if channel in task.inputs)
        return TopicLetters(graph.name, graph.topics[channel.errors], environment, reader)

    def open_outputs(task: JobTask) -> TopicOutputs | None:
        return TopicOutputs(graph.name, task, environment) if task.topics else None

    tracing = environment.tracing
    return JobEnvironment(
        open_input,
        open_letters=open_letters,
        open_outputs=open_outputs,
        open_sink=environment.open_sink,
        open_tracing=None if tracing is None else lambda task: tracing(graph.name, task, slot),
        target=environment.target,
    )
