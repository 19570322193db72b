"""Waits for a condition, never for a length of time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

WAIT = float(os.environ.get("KSTREAMS_TEST_WAIT", "400"))
"""Seconds after which a test fails whose condition is still false."""


def accept_interrupts() -> None:
    """Lets processes that are started from now on take SIGINT, which those of a background job inherit as ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT, *, pause: float = 0.02) -> None:
    """Returns once the condition is true, and fails after `seconds`. `pause` is 0 for a condition that itself waits.

    Waits twice as long as the condition took, up to half a second: it may be a whole topic that is read.
    """
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(max(pause, min(2 * (now - asked), 0.5)) if pause else 0.0)
