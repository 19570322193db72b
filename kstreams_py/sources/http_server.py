"""The HTTP server of sources: one thread of the process, for all their ports and paths.

A connection costs a file descriptor, and a body costs memory. So the number of connections, the duration and the size
of a request, and the bytes of all bodies are bounded. Only this thread has the state of requests; the job's thread
takes inputs from a queue, and tells the loop how each one ended.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import threading
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from kstreams_py.errors import DecodeError, SettingsError, SourceUnavailable
from kstreams_py.graph.source import Claim
from kstreams_py.sources.http_requests import (
    BUSY,
    DONE,
    LATE,
    NO_PATH,
    STOPPED,
    Reply,
    RequestInput,
    RequestInputs,
    RequestRules,
    carried_headers,
    hash_request,
)

logger = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 10.0
"""The most seconds for the head of a request, for its body, and until the next request on a connection."""

HEAD_MAX: Final = 1 << 14
"""The most bytes of a request without its body."""

BUFFER_MAX: Final = 1 << 20
"""The most bytes that a connection buffers."""

SPARE_CONNECTIONS: Final = 64
"""Connections in addition to one for each waiting request. One more closes the oldest that has no whole request."""

END_SECONDS: Final = 5.0
"""The most seconds to wait for the end of the server's thread, and of its connections."""

ResultT = TypeVar("ResultT")

_Files = tuple[Path | str | None, Path | str | None]
"""The files of a certificate and of its key."""


def open_requests(
    name: str,
    reader: str,
    rules: RequestRules,
    address: tuple[str, int],
    files: _Files,
) -> RequestsConnection:
    """Opens a path on a port. The first `read` lets clients in.

    - `name`: the source's name in messages.
    - `reader`: the name of the source in its graph, with the graph's name.
    - `address`: host and port.
    - `files`: the certificate and its key, if the server uses TLS.

    Raises SettingsError if the port cannot be bound, or the files cannot be read.
    """
    path = _Path(name, rules)
    listener = _server.open(path, address, files)
    logger.info("%s: requests are taken at %s", reader, path.url)
    return RequestsConnection(path, listener)


class RequestsConnection:
    """See SourceConnection. `url`: the URL at which requests are taken."""

    identity = ""
    lease = float("inf")
    is_exhausted = False
    waits_alone = False
    refused = 0

    def __init__(self, path: _Path, listener: _Listener) -> None:
        self._path, self._listener = path, listener
        self._is_open, self._is_begun = True, False
        self.url = path.url

    def wake_by(self, wake: Callable[[], None]) -> None:
        """See WakingConnection."""
        self._path.wake = wake

    def read(self, limit: int, *, alone: bool) -> list[Claim]:  # noqa: ARG002, of the protocol
        """See SourceConnection. The first call lets clients in: by then, the job has opened all its sources."""
        if not self._is_begun:
            _server.begin(self._listener)
            self._is_begun = True
        waiting, claims = self._path.queue, list[Claim]()
        while waiting and len(claims) < limit:
            claims.append(waiting.popleft())
        if not claims and not _server.is_alive:
            raise SourceUnavailable(f"{self._path.name}: the thread of its server has ended: start the worker again")
        return claims

    def ack(self, claims: Sequence[Claim]) -> None:
        """See SourceConnection."""
        self._end([(claim, DONE) for claim in claims])

    def refuse(self, claims: Sequence[tuple[Claim, str]]) -> None:
        """See SourceConnection. The reason is in the answer."""
        self._end([(claim, self._path.rules.refused(reason)) for claim, reason in claims])

    def give_back(self, claims: Sequence[Claim], *, failed: bool) -> None:  # noqa: ARG002, likewise
        """Tells the client of each request to send it again."""
        self._end([(claim, STOPPED) for claim in claims])

    def name_of(self, claim: Claim) -> str:
        """See NamingConnection: the Idempotency-Key, or the random number of a request without one, in hexadecimal."""
        assert isinstance(claim.key, bytes)
        kind, _, own = claim.key.partition(b" ")
        return own.decode() if kind == b"key" else own.hex()

    def keep(self) -> None:
        """See SourceConnection. No other connection takes claims over."""

    def close(self) -> None:
        """Answers all requests that wait, and takes no more."""
        if self._is_open:
            self._is_open = False
            _server.close(self._path, self._listener)

    def _end(self, ends: Sequence[tuple[Claim, Reply]]) -> None:
        if self._is_open:  # else all were answered
            _server.post(lambda: self._path.end((claim.token, reply) for claim, reply in ends))


class _Path:
    """One path of a port. The server's thread owns all of it except the queue."""

    def __init__(self, name: str, rules: RequestRules) -> None:
        self.name, self.rules = name, rules
        self.url = name
        self.queue = deque[Claim]()
        """The inputs that have not been read yet: the server's thread appends them, the job's thread takes them."""
        self.wake: Callable[[], None] = lambda: None
        self.inputs = RequestInputs[_Exchange](rules)
        self.is_closed = False

    def look(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """Returns the answer to a request that cannot be an input, judging by its head; None if it may be one."""
        refused = self.rules.refuse(method, headers)
        # a request with a key may belong to an input that is under way
        return BUSY if refused is None and self.inputs.is_full and "Idempotency-Key" not in headers else refused

    def take(self, body: bytes, headers: Mapping[str, str], query: str) -> RequestInput[_Exchange] | Reply:
        """Takes a whole request. Returns its input, which may be under way already, or the answer."""
        key = headers.get("Idempotency-Key")
        hashed = hash_request(body, headers, query)
        if key is not None and (found := self.inputs.find(key, hashed)) is not None:
            return found
        if self.is_closed or self.inputs.is_full:
            return STOPPED if self.is_closed else BUSY
        try:
            value = self.rules.decode(body, headers, query)
        except DecodeError as error:
            return Reply(400, "invalid", str(error))
        made = self.inputs.add(key, hashed, len(body))
        own = b"key " + key.encode() if key is not None else b"random " + uuid.uuid4().bytes
        self.queue.append(Claim(own, value, 0, made, headers=carried_headers(headers), size=len(body)))
        self.wake()
        return made

    def end(self, ends: Iterable[tuple[RequestInput[_Exchange], Reply]]) -> None:
        """Answers the requests of inputs that have ended."""
        for ended, reply in ends:
            _answer(self.inputs.end(ended, reply), reply)

    def close(self) -> None:
        """Answers all requests that wait: their inputs were not processed, or not to the end."""
        self.is_closed = True
        self.queue.clear()
        _answer(self.inputs.end_all(STOPPED), STOPPED)


def _answer(exchanges: Iterable[_Exchange], reply: Reply) -> None:
    loop = asyncio.get_running_loop()
    for each in exchanges:  # by the loop, so that an error in one answer does not stop the others
        loop.call_soon(each.answer, reply)


class _Exchange(HTTPMessageDelegate):
    """One request on a connection, and its answer."""

    def __init__(self, listener: _Listener, connection: HTTP1Connection) -> None:
        self._listener, self._connection, self._stream = listener, connection, connection.stream
        self._method, self._query = "", ""
        self._headers: Mapping[str, str] = {}
        self._path: _Path | None = None
        self._body, self._size = bytearray(), 0
        self._held = 0
        """The bytes of the body that the path has counted."""
        self._reply: Reply | None = None
        """The answer, if it is known before the end of the request: the rest of the request is then dropped."""
        self._input: RequestInput[_Exchange] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_whole = self._is_over = False

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> None:
        """Decides by the head whether the request may be an input."""
        assert isinstance(start_line, RequestStartLine)
        path, _, self._query = start_line.path.partition("?")
        self._method, self._headers = start_line.method, headers
        self._path = self._listener.paths.get(path)
        self._reply = NO_PATH if self._path is None else self._path.look(start_line.method, headers)
        with suppress(ValueError):  # Tornado refuses what is not a number
            if int(headers.get("Content-Length", "0")) > self._size_max:
                self.answer(self._reply or self._too_large)
        if self._reply is not None and "Expect" in headers:
            self.answer(self._reply)  # before the client sends the body

    def data_received(self, chunk: bytes) -> None:
        """Keeps a part of the body. If the request has an answer already, drops the part, up to the limit of a body."""
        if self._is_over:
            return
        self._size += len(chunk)
        if self._size > self._size_max:
            self.answer(self._reply or self._too_large)
        elif self._reply is None and self._path is not None:
            if self._path.inputs.hold(len(chunk)):
                self._held += len(chunk)
                self._body += chunk
            else:
                self._reply = BUSY
                self._release()

    def finish(self) -> None:
        """Takes the request, which has arrived completely."""
        if self._is_over:
            return
        self._is_whole = True
        if self._reply is not None or self._path is None:
            self.answer(self._reply or NO_PATH)
            return
        found = self._path.take(bytes(self._body), self._headers, self._query)
        if isinstance(found, Reply):
            self.answer(found)
            return
        self._release()
        self._input = found
        found.waiting.add(self)
        self._listener.resting.pop(self._stream, None)
        self._timer = asyncio.get_running_loop().call_later(self._path.rules.deadline, self.answer, LATE)
        self._connection.set_close_callback(self.on_connection_close)

    def on_connection_close(self) -> None:
        """Forgets the request: its client is gone. The processing of its input goes on."""
        self._is_over = True
        self._forget()

    def answer(self, reply: Reply) -> None:
        """Answers the request, if it has no answer yet."""
        if self._is_over:
            return
        self._is_over = True
        self._forget()
        self._listener.rest(self._stream)
        body = reply.body
        headers = HTTPHeaders(
            {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                **dict(reply.headers),
            }
        )
        if not self._is_whole or (self._path is not None and self._path.is_closed):
            headers["Connection"] = "close"
        start_line = ResponseStartLine("HTTP/1.1", reply.code, HTTPStatus(reply.code).phrase)
        self._connection.write_headers(start_line, headers, None if self._method == "HEAD" else body)
        self._connection.finish()

    @property
    def _size_max(self) -> int:
        return BUFFER_MAX if self._path is None else self._path.rules.body_max

    @property
    def _too_large(self) -> Reply:
        return Reply(413, "invalid", f"the body has more than {self._size_max} bytes")

    def _release(self) -> None:
        """Drops the body."""
        if self._path is not None:
            self._path.inputs.held -= self._held
        self._held, self._body = 0, bytearray()

    def _forget(self) -> None:
        self._release()
        if self._timer is not None:
            self._timer.cancel()
        if self._input is not None:
            self._input.waiting.discard(self)


class _Listener(HTTPServer):
    """A port: its paths, and its connections.

    - `bound`: its socket, which accepts no connection before `begin`.
    - `files`: its certificate and key.
    - `paths`: by name. A closed path stays, and tells clients to send their requests again.
    - `resting`: the connections without a whole request, the longest resting first.
    """

    def initialize(self, *arguments: Any, **options: Any) -> None:
        """Takes the arguments of HTTPServer and two of its own. Tornado calls this instead of `__init__`."""
        self.bound: socket.socket = options.pop("bound")
        self.files: _Files = options.pop("files")
        self._is_begun = False
        super().initialize(*arguments, **options)
        self.paths: dict[str, _Path] = {}
        self.resting: dict[IOStream, None] = {}
        self._count = 0
        self._files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    @property
    def _connections_max(self) -> int:
        """One for each request that may wait, and some more; at most half of the files that the process may open."""
        wanted = SPARE_CONNECTIONS + sum(each.rules.max_pending for each in self.paths.values())
        return wanted if self._files_max == resource.RLIM_INFINITY else min(wanted, self._files_max // 2)

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Takes a new connection. If there are too many, it replaces a resting one, or is closed if there is none."""
        if self._count >= self._connections_max:
            if not self.resting:
                stream.close()
                return
            oldest = next(iter(self.resting))
            del self.resting[oldest]
            oldest.close()
        self._count += 1
        self.rest(stream)
        super().handle_stream(stream, address)

    def start_request(self, _: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Begins to read a request."""
        connection = cast(HTTP1Connection, request_conn)
        self.rest(connection.stream)
        return _Exchange(self, connection)

    def on_close(self, server_conn: object) -> None:
        """Records the end of a connection."""
        self._count -= 1
        self.resting.pop(cast(HTTP1ServerConnection, server_conn).stream, None)
        super().on_close(server_conn)

    def rest(self, stream: IOStream) -> None:
        """Records that a connection has no whole request from now on."""
        self.resting.pop(stream, None)
        if not stream.closed():
            self.resting[stream] = None

    @property
    def is_used(self) -> bool:
        """Whether a path is open."""
        return not all(each.is_closed for each in self.paths.values())

    async def begin(self) -> None:
        """Lets clients in."""
        if not self._is_begun:
            self._is_begun = True
            self.add_sockets([self.bound])

    async def end(self) -> None:
        """Ends all connections, after their answers are sent."""
        self.stop()
        self.bound.close()
        await self.close_all_connections()


class _Server:
    """The thread with the event loop of all listeners. It runs while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ended: asyncio.Event

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def open(self, path: _Path, address: tuple[str, int], files: _Files) -> _Listener:
        """Opens a path. Raises SettingsError."""
        with self._lock:
            if not self.is_alive:
                self._listeners = {}  # after a fork, the listeners belong to the parent
                self._start()
            try:
                return self._open(path, address, files)
            finally:
                self._end_if_unused()

    def begin(self, listener: _Listener) -> None:
        """Lets the clients of a port in."""
        self._call(listener.begin())

    def close(self, path: _Path, listener: _Listener) -> None:
        """Ends a path, and the connections of its port if the port has no other path. Takes END_SECONDS at most."""

        async def close() -> None:
            path.close()
            await asyncio.sleep(0)  # lets the answers be sent
            if not listener.is_used:
                await listener.end()

        with self._lock:
            if self.is_alive:
                try:
                    self._call(close())
                except TimeoutError:
                    logger.warning("%s: its connections do not end", path.name)
            self._listeners = {key: each for key, each in self._listeners.items() if each.is_used}
            self._end_if_unused()

    def post(self, function: Callable[[], None]) -> None:
        """Calls a function in the thread. Raises SourceUnavailable if the thread has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            raise SourceUnavailable("the thread of the HTTP server has ended: start the worker again") from None

    def _open(self, path: _Path, address: tuple[str, int], files: _Files) -> _Listener:
        own = path.rules.path
        listener = self._listeners.get(address)
        if listener is None:
            listener, address = self._listen(path.name, address, files)
        elif listener.files != files:
            raise SettingsError(f"{path.name}: another source has this port with another certificate: use one for both")
        elif own in listener.paths and not listener.paths[own].is_closed:
            raise SettingsError(f"{path.name}: another source has this path: give each a path= of its own")
        scheme = "http" if files[0] is None else "https"
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        path.url = f"{scheme}://{host}:{address[1]}{own}"
        listener.paths = {**listener.paths, own: path}
        self._listeners[address] = listener
        return listener

    def _listen(self, name: str, address: tuple[str, int], files: _Files) -> tuple[_Listener, tuple[str, int]]:
        """Listens on an address; returns the listener, and the address with its actual port."""
        context = _open_context(name, files)
        bound = _bind(name, address)
        made = _Listener(
            None,
            bound=bound,
            files=files,
            ssl_options=context,
            max_header_size=HEAD_MAX,
            max_body_size=1 << 62,  # each path has its own limit
            max_buffer_size=BUFFER_MAX,
            idle_connection_timeout=REQUEST_SECONDS,
            body_timeout=REQUEST_SECONDS,
        )
        return made, (address[0], int(bound.getsockname()[1]))

    def _call(self, call: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Runs a coroutine in the thread. Raises TimeoutError after END_SECONDS."""
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(END_SECONDS)

    def _start(self) -> None:
        started = threading.Event()

        async def serve() -> None:
            self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
            started.set()
            await self._ended.wait()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="http source", daemon=True)
        self._thread.start()
        started.wait()

    def _end_if_unused(self) -> None:
        if not self._listeners and self._thread is not None:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._ended.set)
                self._thread.join(END_SECONDS)
            self._thread = None


_server: Final = _Server()


def _bind(name: str, address: tuple[str, int]) -> socket.socket:
    """Returns a listening socket. Raises SettingsError."""
    try:
        family, *_, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.create_server((str(where[0]), address[1]), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"{name}: port {address[1]} is in use: end the program that uses it, or choose another port; a graph "
                "with this source runs with one worker (--workers 1)"
            ) from None
        why = error.strerror or error
        raise SettingsError(
            f"{name}: cannot listen on port {address[1]} of {address[0]}: {why}: correct host= or port="
        ) from None
    bound.setblocking(False)
    return bound


def _open_context(name: str, files: _Files) -> ssl.SSLContext | None:
    """Returns the TLS context; None without a certificate. Raises SettingsError."""
    certificate, key = files
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password="")  # without it, OpenSSL would ask on the terminal
    except (OSError, ValueError) as error:
        named = " and ".join(str(each) for each in files if each is not None)
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{name}: cannot use {named}: {why}: give files in PEM format, with a key without a password"
        ) from None
    return context
