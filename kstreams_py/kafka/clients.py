"""Makes clients, and ends them within a bound."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import confluent_kafka as ck

from kstreams_py.errors import SettingsError
from kstreams_py.kafka.errors import ClientLog

logger = logging.getLogger(__name__)
C = TypeVar("C")

END_SECONDS: Final = 2.0
"""Seconds that clients may take to end; they usually take milliseconds."""


def new_client(client: Callable[..., C], settings: Mapping[str, Any], log: ClientLog) -> C:
    """Makes a client. Raises SettingsError, without its value, for a setting that librdkafka refuses."""
    try:
        return client(settings, logger=log.logger)
    except ck.KafkaException as error:
        reason = error.args[0].str()
        raise SettingsError(f"librdkafka refuses a setting of [kafka] or KSTREAMS_KAFKA__*: {reason}") from None


def end(clients: list[Any]) -> None:
    """Ends the clients of a list, which must hold the only references to them, and empties it.

    librdkafka ends a client with its last reference, and may wait for one of its threads for ever (measured with 2.16,
    a plain consumer whose requests for offsets were all cut off: 1 in 250). After END_SECONDS such a client is left
    behind.
    """
    if not clients:
        return
    thread = threading.Thread(target=clients.clear, name="ending clients", daemon=True)
    thread.start()
    thread.join(END_SECONDS)
    if thread.is_alive():
        logger.warning("a client did not end within %g s: it is left behind, with its threads", END_SECONDS)
