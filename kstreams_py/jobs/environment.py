"""What a job works with: its sources and targets, a clock, entropy, and its limits."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kstreams_py.graph.channels import Channel, JobTask
from kstreams_py.graph.sink import Sink, SinkConnection
from kstreams_py.graph.source import SourceConnection
from kstreams_py.jobs.identity import Entropy
from kstreams_py.steps.calls import Calls, open_calls

MAX_PENDING: Final = 10_000
TIMEOUT: Final = 60.0


def open_source(channel: Channel, reader: str) -> SourceConnection:
    """Connects to the source of a channel."""
    assert channel.source is not None
    return channel.source.open(reader)


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What a job works with; a simulation replaces clock, sleep, entropy and calls.

    - `open_source`, `open_sink`: connect to the source of a channel, or to a sink's target, under the name of who does.
    - `clock`: returns seconds that never decrease.
    - `sleep`: waits for a number of seconds.
    - `entropy`: returns random bytes.
    - `chance`: returns a random number between 0 and 1, which varies the waits before retries.
    - `open_calls`: makes the object that runs overlapping calls of a function.
    - `max_pending`: how many inputs of a source may be under way.
    - `timeout`: seconds after which an input that is neither complete nor under way is read again.
    """

    open_source: Callable[[Channel, str], SourceConnection] = open_source
    open_sink: Callable[[Sink, str], SinkConnection] = lambda sink, consumer: sink.open(consumer)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    entropy: Entropy = os.urandom
    chance: Callable[[], float] = random.random
    open_calls: Callable[[JobTask, Callable[[int, Any], Any]], Calls] = lambda task, finish: open_calls(
        task, finish, patience=0.0
    )
    max_pending: int = MAX_PENDING
    timeout: float = TIMEOUT
