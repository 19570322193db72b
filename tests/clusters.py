"""The broker of a run, and the clusters that a test opens, which are closed with it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings

OF_BROKERS: Final = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings of brokers for tests, whose sessions and transactions are short."""

NEVER_KILLED: Final = {"broker.session.timeout.ms": "60000"}
"""A broker without CPU for 6 s is fenced and refuses topics; one that is killed waits for the end of its session."""

_OPENED: Final[list[KafkaCluster]] = []

HEAP: Final = "-Xmx1g"
"""Of a broker with the topics of all tests: in its 512 MB it collected garbage for half a minute (measured)."""


@contextmanager
def shared_broker(directory: Path) -> Iterator[str]:
    """The address of the one broker for all processes that share this directory.

    The first that needs one starts it, and stops it once none of the others uses it any more.
    """
    address = directory / "broker"
    with (directory / "broker.users").open("w") as users, (directory / "broker.lock").open("w") as lock:
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if address.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield address.read_text(encoding="utf-8")
            return
        kafka = EmbeddedKafka(settings=OF_BROKERS | NEVER_KILLED)
        os.environ["_JAVA_OPTIONS"] = HEAP  # it is stronger than what the command line says
        try:
            kafka.start()
        finally:
            del os.environ["_JAVA_OPTIONS"]
        try:
            address.write_text(kafka.bootstrap_servers, encoding="utf-8")
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield kafka.bootstrap_servers
            fcntl.flock(users, fcntl.LOCK_EX)  # waits for the others; who comes now waits below
            fcntl.flock(lock, fcntl.LOCK_EX)
            address.unlink()
        finally:
            kafka.stop()


def open_cluster(settings: Settings) -> KafkaCluster:
    """Opens a cluster for the test that runs."""
    _OPENED.append(KafkaCluster(settings))
    return _OPENED[-1]


def close_clusters() -> None:
    """Closes the clusters that were opened since the last call."""
    while _OPENED:
        _OPENED.pop().close()
