"""What the engine works in: a cluster, settings, a clock."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kstreams_py.formats.registry import Registry
from kstreams_py.graph.sink import Sink, SinkConnection
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.settings import Settings
from kstreams_py.steps.calls import OpenCalls, open_calls
from kstreams_py.steps.tracing import OpenTracing

OUTPUTS_HELD: Final = 500
"""Outputs that wait for their commit, so that a small transaction sends its offsets before them (ARCHITECTURE.md).

Measured at 1,000 records a second: a transaction takes 20 ms, and 37 without. A large one sends outputs at once.
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the engine works in; a simulation replaces cluster, clock and sleep.

    - `clock`: returns seconds that only grow.
    - `sleep`: waits for a number of seconds.
    - `outputs_held`: see OUTPUTS_HELD.
    - `chance`: returns a number between 0 and 1, by which the waits before retries differ.
    - `open_calls`: opens the calls of a function where they overlap.
    - `tracing`: makes the spans of a worker; None for no tracing.
    - `open_sink`: connects to the target of a sink, for the named processor with its graph.
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
    open_sink: Callable[[Sink, str], SinkConnection] = lambda sink, consumer: sink.open(consumer)


def open_tracing(settings: Settings, provider: Any = None) -> OpenTracing | None:
    """What makes the spans of workers; None without `tracing`. Raises MissingSoftware without OpenTelemetry.

    - `provider`: the tracer provider where they go; None for the program's own.
    """
    if not settings.tracing:
        return None
    from kstreams_py.steps.otel import WorkerTracing  # noqa: PLC0415, only who traces pays for OpenTelemetry

    return partial(WorkerTracing, provider=provider)
