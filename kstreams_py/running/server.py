"""The HTTP server of a run: a thread that answers while the workers run."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Final

from kstreams_py.errors import SettingsError
from kstreams_py.running.endpoints import Answer

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 5.0
"""Seconds for which a connection may wait for its request."""


@contextmanager
def serving(address: str, answer: Callable[[str], Answer]) -> Iterator[str]:
    """Answers GET and HEAD at `address` (host:port; port 0 for any that is free) inside the block; gives the URL.

    Raises SettingsError if the address cannot be taken.
    """
    host, _, port = address.rpartition(":")
    try:
        server = _open(host.strip("[]"), int(port), answer)
    except OSError as error:
        raise SettingsError(
            f"http: {address} cannot be served: {error.strerror or error}: choose another address with --http or "
            "KSTREAMS_HTTP"
        ) from None
    with server:
        url = f"http://{host}:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True)
        thread.start()
        logger.info("serving the page /, /metrics, /livez, /readyz and /status at %s", url)
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    """A thread for each connection. http.server's own class asks the name service first, which may hang."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002, of its base class
        logger.debug("a connection of %s failed", client_address, exc_info=True)


class _Server6(_Server):
    address_family = socket.AF_INET6


def _open(host: str, port: int, answer: Callable[[str], Answer]) -> _Server:
    """Binds and listens. Raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version = "kstreams"
        sys_version = ""

        def do_GET(self) -> None:
            found = answer(self.path)
            self.send_response(found.status)
            self.send_header("Content-Type", found.content_type)
            self.send_header("Content-Length", str(len(found.body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Content-Security-Policy", found.policy)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body)

        do_HEAD = do_GET  # noqa: N815, likewise

        def log_message(self, format: str, *values: object) -> None:  # noqa: A002, its parameter
            logger.debug(format, *values)

    family, *_, bound = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return (_Server6 if family is socket.AF_INET6 else _Server)((str(bound[0]), port), Handler)
