"""The brokers of these tests: their number, and the clean stop of one."""

from __future__ import annotations

from typing import Final

from kstreams_py.embedded import EmbeddedKafka

BROKERS: Final = 3

STOP_SECONDS: Final = 60.0
"""How long a broker may take to hand over its partitions on a busy machine."""


def stop(brokers: EmbeddedKafka, broker: int) -> None:
    """Stops one broker cleanly (SIGTERM); fails if it had to be killed."""
    assert brokers.terminate(broker, STOP_SECONDS), f"broker {broker} did not stop within {STOP_SECONDS:g} s"
