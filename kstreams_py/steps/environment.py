"""The environment of the engine: a cluster, settings, a clock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kstreams_py.formats.registry import Registry
from kstreams_py.graph.declarations import Processor
from kstreams_py.graph.loading import UNKNOWN
from kstreams_py.graph.names import group_of
from kstreams_py.graph.sink import Inspectable, Sink, SinkConnection
from kstreams_py.graph.topology import Graph
from kstreams_py.kafka.contracts import Cluster, TopicInfo
from kstreams_py.kafka.sizes import record_limits
from kstreams_py.settings import Settings
from kstreams_py.steps.calls import OpenCalls, open_calls
from kstreams_py.steps.dead_letters import DeadLetters
from kstreams_py.steps.outputs import encoder
from kstreams_py.steps.tracing import OpenTracing, Tracing

OUTPUTS_HELD: Final = 500
"""How many outputs may wait for their commit, so that a small transaction sends its offsets first (ARCHITECTURE.md).

Measured at 1,000 records a second: a transaction takes 20 ms (37 ms without this). A large one sends outputs early.
"""


def inspect_sink(sink: Sink) -> None:
    """Raises the error that opening the target would raise, and changes nothing; skips a sink without `inspect`."""
    if isinstance(sink, Inspectable):
        sink.inspect()


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of the engine; a simulation replaces the cluster, the clock and `sleep`.

    - `clock`: returns seconds that never decrease.
    - `sleep`: waits for a number of seconds.
    - `outputs_held`: see OUTPUTS_HELD.
    - `chance`: returns a random number between 0 and 1, which varies the waits before retries.
    - `open_calls`: makes the object that runs overlapping calls of a function.
    - `tracing`: makes the spans of a worker; None for no tracing.
    - `target`: how the commands in remedies name the graph.
    - `open_sink`: connects to the target of a sink; takes the processor's full name, `graph.processor`.
    - `inspect_sink`: raises the error that `open_sink` would raise, and changes nothing.
    """

    cluster: Cluster
    registry: Registry
    settings: Settings
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    outputs_held: int = OUTPUTS_HELD
    chance: Callable[[], float] = random.random
    open_calls: OpenCalls = open_calls
    tracing: OpenTracing | None = None
    target: str = UNKNOWN
    open_sink: Callable[[Sink, str], SinkConnection] = lambda sink, consumer: sink.open(consumer)
    inspect_sink: Callable[[Sink], None] = inspect_sink


def open_tracing(settings: Settings, provider: Any = None) -> OpenTracing | None:
    """Returns the function that makes the spans of a worker; None if the settings have no `tracing`.

    - `provider`: the tracer provider for the spans; None for the program's own.

    Raises MissingSoftware without OpenTelemetry.
    """
    if not settings.tracing:
        return None
    from kstreams_py.steps.otel import WorkerTracing  # noqa: PLC0415, only tracing pays for importing OpenTelemetry

    return partial(WorkerTracing, provider=provider)


def open_dead_letters(
    graph: Graph,
    processor: Processor,
    topics: Mapping[str, TopicInfo],
    environment: Environment,
    tracing: Tracing | None,
) -> DeadLetters | None:
    """Returns the dead letters of a processor, within the limits of topic and client; None if it declares none."""
    if processor.errors is None:
        return None
    topic = graph.topics[processor.errors]
    encode = encoder(topic.value, environment.registry, f"{topic.name}-value")
    limits = record_limits(topics.get(topic.name), environment.settings.kafka)
    trace = tracing.headers if tracing else None
    return DeadLetters(group_of(graph.name, processor.id), topic.name, encode, time.time, limits, trace)
