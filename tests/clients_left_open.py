"""The clients of librdkafka that a test file leaves open, and what holds them."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from types import FrameType
from typing import Final

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

SECONDS: Final = 20.0
"""How long a thread of a test may take to end with its client."""

_THREADS: Final = Path("/proc/self/task")

_ITERATOR: Final[type] = type(iter([]))

_REPORTED: Final[set[int]] = set()
"""The ids of clients that an earlier file has left open."""

_KNOWN: Final[set[str]] = set()
"""The threads of clients that an earlier search has found to be closed, or has reported: it takes two seconds."""


def clients_left_open() -> list[str]:
    """Describes the clients that nobody has closed, and what holds them; empty where the system shows no threads.

    Such a client connects to a broker that ends later, and prints that it cannot, again and again. One that nothing
    holds was closed, and librdkafka has not ended it yet (see kafka/clients.py); one that waits for a coordinator ends
    with its answer (kafka/group_description.py).
    """
    deadline = time.monotonic() + SECONDS
    _KNOWN.intersection_update(_threads_of_clients())
    while not (threads := _threads_of_clients()) <= _KNOWN:
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
            _KNOWN.update(threads)
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


def _threads_of_clients() -> set[str]:
    """The threads of clients of librdkafka in this process: each has one of this name."""
    return {thread.name for thread in _THREADS.glob("*") if _name(thread) == "rdk:main"}


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
