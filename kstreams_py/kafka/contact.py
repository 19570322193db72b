"""Logs early that no broker has answered yet: a request reports that only after its whole limit."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.5
"""Seconds without an answer after which this module looks for the reason."""

CONNECT_SECONDS: Final = 0.8
"""Seconds for the connections to all addresses together; looking up a name may take longer."""

SOON_SECONDS: Final = 3.0
"""Seconds within which the log has the reason; a request whose limit is no longer reports its failure itself."""

SETTING: Final = "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS"
OPTIONS: Final = "[kafka] or in KSTREAMS_KAFKA__*"

TAKEN: Final = "it takes connections, and answers no request yet"
"""The reason for an address where something listens: a broker that is frozen or overloaded, or another program."""

PORT: Final = 9092
"""The port of an address without one, as in librdkafka."""

_answered: Final = set[str]()
"""The addresses at which a broker has answered a request of this process; a later outage is logged elsewhere."""

_said: Final = dict[str, object]()
"""The addresses for which the log has the reason; later attempts do not repeat it."""


@contextmanager
def contacting(address: str, limit: float) -> Iterator[None]:
    """Surrounds the wait for an answer, and logs once why no broker has answered this process yet.

    - `address`: the addresses of the brokers, as in bootstrap_servers.
    - `limit`: seconds that the request may take.

    A block that raises counts as a request without an answer.
    """
    done = threading.Event()
    if address not in _answered and limit > SOON_SECONDS:
        threading.Thread(target=_watch, args=[address, limit, done], name="first contact", daemon=True).start()
    try:
        yield
        _answered.add(address)
    finally:
        done.set()


def _watch(address: str, limit: float, done: threading.Event) -> None:
    if done.wait(LOOK_SECONDS) or address in _said:
        return
    why = reasons(address)
    if TAKEN in why:  # the broker may be slow
        done.wait(SOON_SECONDS - LOOK_SECONDS - CONNECT_SECONDS)
    if not done.is_set() and _said.setdefault(address, done) is done:
        logger.warning("waiting for a Kafka broker at %s, for up to %g s: %s", address, limit, why)


def no_answer(address: str, details: str, setting: str = SETTING, options: str = OPTIONS) -> str:
    """Returns the message for a request without an answer; it is the same for each client.

    If no broker has answered this process yet, and none accepts a connection, the message has only this reason.

    - `details`: what the client knows about the request; "" for nothing.
    - `setting`: the setting of the address.
    - `options`: where the client's security is set.
    """
    if address not in _answered and TAKEN not in (why := reasons(address)):
        logger.debug("no answer from %s: %s", address, details)
        return (
            f"no Kafka broker answers at {address} ({why}): start one (`kstreams broker start`), or correct {setting}"
        )
    return (
        f"no Kafka broker answers at {address}: start one (`kstreams broker start`), correct {setting}, or, if it "
        f"wants credentials, set security.protocol and sasl.* under {options}{details and f'; {details}'}"
    )


def reasons(address: str) -> str:
    """Returns, for each broker's address, why it does not answer; for a single address, only the reason."""
    addresses = [each.strip() for each in address.split(",")]
    found: dict[str, str] = {}
    threads = [threading.Thread(target=_connect, args=[each, found], daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CONNECT_SECONDS / len(threads))
    named = {each: found.get(each, f"no connection within {CONNECT_SECONDS:g} s") for each in addresses}
    return "; ".join(named.values() if len(named) == 1 else (f"{each}: {why}" for each, why in named.items()))


def _connect(address: str, found: dict[str, str]) -> None:
    try:
        place = urlsplit(f"//{address.rpartition('://')[2]}")
        socket.create_connection((place.hostname or "", place.port or PORT), CONNECT_SECONDS).close()
        found[address] = TAKEN
    except TimeoutError:
        pass
    except (OSError, ValueError) as error:  # ValueError: a port that is not a number
        found[address] = getattr(error, "strerror", None) or str(error)
