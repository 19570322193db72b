"""Real clusters that a test opens, which are closed with it; and the clients of librdkafka that a file leaves open."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

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

SECONDS: Final = 20.0
"""How long a thread of a test may take to end with its client."""

_OPENED: Final[list[KafkaCluster]] = []

_THREADS: Final = Path("/proc/self/task")

_ITERATOR: Final[type] = type(iter([]))


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


_REPORTED: Final[set[int]] = set()
"""The ids of clients that an earlier file has left open."""


def clients_left_open() -> list[str]:
    """Describes the clients that nobody has closed, and what holds them; empty where the system shows no threads.

    Such a client connects to a broker that ends later, and prints that it cannot, again and again. One that nothing
    holds was closed, and librdkafka has not ended it yet (see kafka/clients.py); one that waits for a coordinator ends
    with its answer (kafka/group_description.py).
    """
    deadline = time.monotonic() + SECONDS
    while _has_clients():
        gc.unfreeze()  # a slot that runs in this process freezes what is garbage by then, too
        gc.collect()  # a failed test's traceback, and a fixture that was torn down, may hold clients in a cycle
        kinds = (ck.Producer, ck.Consumer, AdminClient)
        found = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
        new = [each for each in found if id(each) not in _REPORTED]
        held = [
            (each, holders) for each in new if (holders := _holders(each, found, new)) and "_Asked" not in holders[0]
        ]
        described = [f"{each!r}, held by {', '.join(holders)}" for each, holders in held]
        is_over = not described or time.monotonic() > deadline
        _REPORTED.update(id(each) for each, _ in held if is_over)
        del found, new, held
        gc.freeze()  # and what is frozen is not among the objects
        if is_over:
            return described
        time.sleep(0.1)  # a thread of the test may still end
    return []


def _holders(held: object, *own: object, depth: int = 3) -> list[str]:
    """Describes what refers to an object: frames by their functions, dictionaries by their names, others by type.

    `own`: what this search itself has made.
    """
    found = []
    referrers = gc.get_referrers(held)
    for each in referrers:
        is_own = any(each is other for other in (*own, referrers)) or type(each) is _ITERATOR
        if is_own or (isinstance(each, FrameType) and each.f_code.co_filename == __file__):
            continue
        if isinstance(each, FrameType):
            found.append(f"{each.f_code.co_qualname}, line {each.f_lineno}")
            continue
        is_dict = isinstance(each, dict)
        name = f"a dictionary of {', '.join(map(str, [*each][:5]))}" if is_dict else type(each).__qualname__
        above = _holders(each, *own, referrers, depth=depth - 1) if depth > 1 else []
        found.append(f"{name} < ({'; '.join(above)})" if above else name)
    return found


def _has_clients() -> bool:
    """Whether there are clients of librdkafka in this process: each has one thread of this name."""
    return any(_name(thread) == "rdk:main" for thread in _THREADS.glob("*"))


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
