"""Waits for a condition, never for a length of time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

WAIT = float(os.environ.get("KSTREAMS_TEST_WAIT", "240"))
"""Seconds after which a test fails whose condition is still false."""


def accept_interrupts() -> None:
    """Lets processes that are started from now on take SIGINT, which those of a background job inherit as ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT, *, pause: float = 0.02) -> None:
    """Returns once the condition is true, and fails after `seconds`. `pause` is 0 for a condition that itself waits."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(pause)
