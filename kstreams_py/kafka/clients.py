"""Makes clients, makes calls that may not return, and ends clients within a time limit.

If a call of confluent-kafka 2.16 fails while another exception is being handled, that exception is never freed, nor are
the frames in its traceback, with all that they hold. So code that repeats makes no such call in an `except` block.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

import confluent_kafka as ck

from kstreams_py.errors import Abortable, BrokerUnavailable, Retriable, SettingsError
from kstreams_py.forks import leave_to_this_process
from kstreams_py.kafka.errors import UNAUTHENTICATED, ClientLog

logger = logging.getLogger(__name__)
C = TypeVar("C")

END_SECONDS: Final = 2.0
"""Seconds that clients may take to end; they usually take milliseconds."""


def new_client(client: Callable[..., C], settings: Mapping[str, Any], log: ClientLog) -> C:
    """Makes a client.

    Raises SettingsError for a setting that librdkafka refuses, without showing its value; raises Retriable if
    `oauth_cb` returns no token.
    """
    if (tokens := settings.get("oauth_cb")) is not None:
        log.tokens = tokens
        try:
            tokens.get()  # the client would wait 10 s for its callback, and report no reason
        except BrokerUnavailable as error:
            raise Retriable(str(error)) from None
    try:
        return client(settings, logger=log.logger)
    except ck.KafkaException as error:
        reason = error.args[0].str()
        if error.args[0].code() in UNAUTHENTICATED:
            raise Retriable(f"a client got no token in time ({reason})") from None
        raise SettingsError(f"librdkafka refuses a setting of [kafka] or KSTREAMS_KAFKA__*: {reason}") from None


class ClientCall:
    """A call of a client, in the thread of a Caller."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call
        self._outcome = SimpleQueue[ck.KafkaError | None]()

    def make(self) -> None:
        """Makes the call, in the thread of a Caller."""
        assert self._call is not None
        error = None
        try:
            self._call()
        except ck.KafkaException as raised:
            error = raised.args[0]  # the exception holds the frames of the call, and so the client, in a cycle
        self._call = None  # it also holds the client
        self._outcome.put(error)

    def is_under_way(self) -> bool:
        """Returns whether the call has not returned yet."""
        return self._outcome.empty()

    def finish(self, seconds: float) -> ck.KafkaError | None:
        """Waits for the call, and returns the error that it raised. Raises queue.Empty if it does not end in time."""
        return self._outcome.get(timeout=seconds)


class Caller:
    """A thread for calls of a client that may exceed their limits; left behind if a call does not return.

    It serves all calls: starting a thread for each took longer than some requests.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[ClientCall | None]()
        threading.Thread(target=_make_calls, args=[self._calls], name="calling a client", daemon=True).start()

    def begin(self, call: Callable[[], object]) -> ClientCall:
        """Queues a call; calls are made one after another."""
        begun = ClientCall(call)
        self._calls.put(begun)
        return begun

    def end(self) -> None:
        """Ends the thread once its calls have returned."""
        self._calls.put(None)


def _make_calls(calls: SimpleQueue[ClientCall | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()


def end(clients: list[Any]) -> None:
    """Ends the clients of a list, which must hold the only references to them, and empties it.

    A client ends with its last reference, and may wait forever for one of librdkafka's threads (measured with 2.16: 1
    in 250 plain consumers whose requests for offsets were all cut off). After END_SECONDS such a client is left behind.
    """
    if not clients:
        return
    thread = threading.Thread(target=clients.clear, name="ending clients", daemon=True)
    thread.start()
    thread.join(END_SECONDS)
    if thread.is_alive():
        logger.warning("a client did not end within %g s: it is left behind, with its threads", END_SECONDS)


class LazyClient(Generic[C]):
    """A client that is made at its first use and ended by its owner.

    A client that is dropped without `end` ends in its own thread, with a ResourceWarning: it might never end (see
    `end`), which would block the thread that happens to collect the garbage. Remaining clients are closed when the
    process exits.
    """

    _all: Final[WeakSet[LazyClient[Any]]] = WeakSet()

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._made: list[C] = []
        self._is_closed = False
        self._all.add(self)
        leave_to_this_process(self)

    def get(self) -> C:
        """Returns the client; the first call, and the first after `end`, makes it. Raises Abortable after `close`."""
        client = next(iter(self._made), None)  # another thread may end it meanwhile
        if client is None and not self._is_closed:
            client = self._make()
            self._made.append(client)
        if client is None or self._is_closed:
            client = None
            self.end()
            raise Abortable("this client was closed")
        return client

    def close(self) -> None:
        """Ends the client for good: otherwise a thread that still asks for it would make a client that never ends."""
        self._is_closed = True
        self.end()

    def end(self) -> None:
        """Ends the client, if there is one."""
        end(self._made)

    def __del__(self) -> None:
        if self._made:
            threading.Thread(target=self._made.clear, name="ending clients", daemon=True).start()
            warnings.warn("a client of Kafka was not closed", ResourceWarning, stacklevel=2, source=self)

    @classmethod
    def close_all(cls) -> None:
        """Closes every client before the exit: during the exit, starting a thread waits forever (Python 3.11)."""
        for client in list(cls._all):
            client.close()


atexit.register(LazyClient.close_all)
os.register_at_fork(after_in_child=LazyClient._all.clear)
