"""A TCP proxy between clients and a Redis: it cuts connections in the middle of what is asked there."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import Final

HOST: Final = "127.0.0.1"

RECEIVED_MAX: Final = 65_536


class Cut(StrEnum):
    """Where a connection is cut."""

    REQUEST = "before the request reaches the server"
    PART = "when a part of the request has reached the server"
    RESPONSE = "after the server has done what it was asked for, before the client hears of it"


class CuttingProxy:
    """Forwards what a client asks for and what the server answers; cuts the connection where `choose` says so.

    - `choose`: called for each request that runs a script; returns where its connection is cut, or None.
    - `cuts`: how many there were of each kind.
    """

    def __init__(self, port: int, choose: Callable[[], Cut | None]) -> None:
        self.cuts = Counter[Cut]()
        self._server_port = port
        self._choose = choose
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Closes all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for end in self._ends:
            _shut(end)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection((HOST, self._server_port))
                except OSError:  # the server is away
                    client.close()
                    continue
                self._ends += [client, server]
                self._threads.append(thread := threading.Thread(target=self._forward, args=[client, server]))
                thread.start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        """Forwards requests; a second thread forwards responses until this one takes an answer to drop it."""
        deaf = threading.Event()
        answering = threading.Thread(target=self._answer, args=[client, server, deaf])
        answering.start()
        with contextlib.suppress(OSError):  # one of the ends is closed
            while request := client.recv(RECEIVED_MAX):
                cut = self._judge(request)
                if cut is Cut.RESPONSE:
                    deaf.set()
                if cut is not Cut.REQUEST:
                    server.sendall(request[: len(request) // 2] if cut is Cut.PART else request)
                if cut is Cut.RESPONSE:
                    answering.join()
                if cut is not None:
                    break
        _shut(client)
        _shut(server)
        answering.join()

    def _answer(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):  # one of the ends is closed
            while (response := server.recv(RECEIVED_MAX)) and not deaf.is_set():
                client.sendall(response)
        _shut(client)

    def _judge(self, request: bytes) -> Cut | None:
        if b"EVALSHA" not in request:
            return None
        with self._lock:
            if (cut := self._choose()) is not None:
                self.cuts[cut] += 1
        return cut


def choose_at_random(seed: int, share: float) -> Callable[[], Cut | None]:
    """Cuts this share of the requests, each in one of the three ways."""
    chance = random.Random(seed)
    return lambda: chance.choice(list(Cut)) if chance.random() < share else None


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
