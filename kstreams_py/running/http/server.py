"""The HTTP server of a run: a thread that answers while the workers run.

A connection costs a thread and a file descriptor, which the run needs to start workers. So the number and duration of
connections and the size of a request are bounded.
"""

from __future__ import annotations

import io
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

from kstreams_py.errors import SettingsError
from kstreams_py.hosts import is_own_host
from kstreams_py.running.http.endpoints import Answer

logger = logging.getLogger(__name__)

CONNECTION_SECONDS: Final = 5.0
"""The longest time of a connection, in seconds, from its start to the end of the answer."""

CONNECTIONS_MAX: Final = 64
"""The maximum number of connections. One more ends the oldest, so that a probe is answered despite idle connections."""

REQUEST_MAX: Final = 1 << 14
"""The maximum size of a request with its headers, in bytes."""


@contextmanager
def serving(address: str, answer: Callable[[str], Answer], hosts: str = "") -> Iterator[str]:
    """Answers GET and HEAD at `address` (host:port; port 0 for any free port) inside the block; yields the URL.

    - `hosts`: further host names that requests may use, separated by commas: see `is_own_host`.

    Raises SettingsError if the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    own = {host.lower(), socket.gethostname().lower(), *(each.strip().lower() for each in hosts.split(","))}
    try:
        server = _open(host.strip("[]"), int(port), answer, own)
    except OSError as error:
        raise SettingsError(
            f"http: {address} cannot be served: {error.strerror or error}: choose another address with --http or "
            "KSTREAMS_HTTP"
        ) from None
    with server:
        url = f"http://{host}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True)
        thread.start()
        logger.info("serving the page /, /runbook, /metrics, /livez, /readyz and /status at %s", url)
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    """A server with a thread per connection. http.server's own class first looks up its host name, which may hang."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, float] = {}
        """The open connections, the oldest first, each with its start in monotonic seconds."""
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections[request] = time.monotonic()
            if len(self._connections) > CONNECTIONS_MAX:
                self._end(next(iter(self._connections)))
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the machine allows no more threads
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that are too old: with only a timeout for each read, a slow sender could keep one open."""
        limit = time.monotonic() - CONNECTION_SECONDS
        with self._lock:
            for each in [each for each, begun in self._connections.items() if begun < limit]:
                self._end(each)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002, of its base class
        logger.debug("a connection of %s failed", client_address, exc_info=True)

    def _end(self, connection: socket.socket) -> None:
        """Shuts a connection down, so that its thread closes it."""
        del self._connections[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _open(host: str, port: int, answer: Callable[[str], Answer], own: set[str]) -> _Server:
    """Binds and listens. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = CONNECTION_SECONDS
        server_version = "kstreams"
        sys_version = ""

        def setup(self) -> None:
            super().setup()
            self.rfile = io.BytesIO(_head(self.rfile))

        def do_GET(self) -> None:
            found = answer(self.path) if self._is_for_this() else _MISDIRECTED
            self.send_response(found.status)
            self.send_header("Content-Type", found.content_type)
            self.send_header("Content-Length", str(len(found.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", found.policy)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body)

        do_HEAD = do_GET  # noqa: N815, http.server calls it by this name

        def _is_for_this(self) -> bool:
            """Returns whether all Host headers name this server. A program may send none; a browser sends one."""
            return all(is_own_host(each, own) for each in self.headers.get_all("Host", []))

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002, its parameter
            logger.debug(format, *values)

    family, *_, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return (_Server6 if family is socket.AF_INET6 else _Server)((str(bound[0]), port), Handler)


_MISDIRECTED: Final = Answer(
    421,
    "text/plain; charset=utf-8",
    b"this run does not serve this host: add its name to http_hosts (KSTREAMS_HTTP_HOSTS), or use the IP address\n",
)


def _head(reading: io.BufferedIOBase) -> bytes:
    """Reads a request up to its empty line, or its first REQUEST_MAX bytes."""
    head = b""
    while len(head) < REQUEST_MAX and (line := reading.readline(REQUEST_MAX - len(head))):
        head += line
        if line in (b"\r\n", b"\n"):
            break
    return head
