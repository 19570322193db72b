"""Real clusters that a test opens: all of them are closed with the test."""

from __future__ import annotations

from typing import Final

from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings

_OPENED: Final[list[KafkaCluster]] = []


def open_cluster(settings: Settings) -> KafkaCluster:
    """Opens a cluster for the test that runs."""
    _OPENED.append(KafkaCluster(settings))
    return _OPENED[-1]


def close_clusters() -> None:
    """Closes the clusters that were opened since the last call."""
    while _OPENED:
        _OPENED.pop().close()
