"""Real clusters that a test opens, which are closed with it; and the clients of librdkafka that a file leaves open."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.settings import Settings

OF_BROKERS: Final = {
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings of brokers for tests, whose sessions and transactions are short."""

NEVER_KILLED: Final = {"broker.session.timeout.ms": "60000"}
"""A broker without CPU for 6 s is fenced and refuses topics; one that is killed waits for the end of its session."""

SECONDS: Final = 20.0
"""How long a thread of a test may take to end with its client."""

_OPENED: Final[list[KafkaCluster]] = []

_THREADS: Final = Path("/proc/self/task")


def open_cluster(settings: Settings) -> KafkaCluster:
    """Opens a cluster for the test that runs."""
    _OPENED.append(KafkaCluster(settings))
    return _OPENED[-1]


def close_clusters() -> None:
    """Closes the clusters that were opened since the last call."""
    while _OPENED:
        _OPENED.pop().close()


def clients_left_open() -> list[str]:
    """Describes the clients that nobody has closed, by their main threads; empty where the system does not show them.

    Such a client connects to a broker that ends later, and prints that it cannot, again and again.
    """
    deadline = time.monotonic() + SECONDS
    while count := _main_threads():
        gc.unfreeze()  # a slot that runs in this process freezes what is garbage by then, too
        gc.collect()  # a failed test's traceback, and a fixture that was torn down, may hold clients in a cycle
        kinds = (ck.Producer, ck.Consumer, AdminClient)
        found = [repr(each) for each in gc.get_objects() if issubclass(type(each), kinds)]
        gc.freeze()  # and what is frozen is not among the objects
        if time.monotonic() > deadline:
            return found or [f"{count} of unknown kind"]
        time.sleep(0.1)  # a thread of the test may still end
    return []


def _main_threads() -> int:
    """The number of librdkafka's clients in this process: each has one thread of this name."""
    return sum(_name(thread) == "rdk:main" for thread in _THREADS.glob("*"))


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
