"""The brokers of these tests: how many there are, and how one is stopped in order."""

from __future__ import annotations

from typing import Final

from kstreams_py.ports.broker import EmbeddedKafka

BROKERS: Final = 3

STOP_SECONDS: Final = 60.0
"""How long a broker may take to hand its partitions over, on a machine that is busy besides."""


def stop(brokers: EmbeddedKafka, broker: int) -> None:
    """Stops one broker in order (SIGTERM); fails if it had to be killed."""
    assert brokers.terminate(broker, STOP_SECONDS), f"broker {broker} was stopped in order"
