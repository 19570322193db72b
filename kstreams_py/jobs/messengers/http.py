"""A messenger over HTTP: for networks that let nothing else through.

Each peer has a server, and one connection to the server of each other peer, all in one thread with an event loop. A
request has the frames that wait, up to a limit. A peer is protected as follows:

- Each peer has a random token, which the others know from its `join`. No request contains the token: the head of a
  request has a hash of cluster, sender, receiver, length and digest of the body, keyed by the receiver's token. So a
  request of a stranger is refused before its body is read. The hash proves that the sender is a member, but not which.
- If somebody records a request and sends it again, its frames are ones that the link has accepted already.
- Without `certificate`, values are readable on the network, and a server's answers can be forged. With `authority`,
  only peers with a certificate that it has issued can connect.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import random
import secrets
import socket
import ssl
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPInputError,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
    parse_response_start_line,
)
from tornado.iostream import IOStream

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.contract import MessengerCounts, MessengerSettings, bind_error, check_size
from kstreams_py.jobs.messengers.queues import FrameQueues
from kstreams_py.log_fields import repeated

logger = logging.getLogger(__name__)

PATH: Final = "/frames"

BATCH_BYTES: Final = 1 << 20
"""The most bytes of the frames in a request, unless it has only one frame."""

LENGTH_BYTES: Final = 4
"""Bytes of the length of a frame in a body."""

HEAD_MAX: Final = 1 << 13
"""The most bytes of a request or an answer without its body."""

BUFFER_MAX: Final = 1 << 20
"""The most bytes that a connection buffers."""

REQUEST_SECONDS: Final = 30.0
"""The most seconds for the head of a request, for its body, for its answer, and until the next request."""

SPARE_CONNECTIONS: Final = 64
"""Connections beyond two for each peer. Any further one closes the oldest that has sent no request of a member."""

END_SECONDS: Final = 5.0
"""The most seconds to wait for the end of the thread."""

AWAY: Final = Backoff()
"""The waits before a peer that is away or busy is asked again."""

BUSY, STRANGER = 503, 401


class _Refused(NamedTuple):
    code: int
    is_stranger: bool = False


def _authorize(token: bytes, names: tuple[str, str, str], length: int, digest: str) -> str:
    """Returns the proof that the sender of a request knows the token of the receiver.

    - `names`: the cluster, the sender and the receiver.
    """
    text = "\0".join((*names, str(length), digest)).encode()
    return blake2b(text, key=token, digest_size=32, person=b"ks-frames").hexdigest()


def _digest(body: bytes | bytearray) -> str:
    return blake2b(body, digest_size=32).hexdigest()


def _describe(error: ssl.SSLError) -> str:
    """Returns what OpenSSL says about a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()


def _split(body: bytes) -> list[bytes] | None:
    """Returns the frames of a body; None if it has anything else."""
    frames, start = list[bytes](), 0
    while start < len(body):
        begin = start + LENGTH_BYTES
        start = begin + int.from_bytes(body[start:begin], "big")
        if start > len(body) or start == begin:
            return None
        frames.append(body[begin:start])
    return frames


class _Outbox:
    """The frames for one other peer. The peer's thread adds them, the event loop sends them."""

    def __init__(self, peer: str, address: str, token: bytes) -> None:
        self.peer, self.address, self.token = peer, urlsplit(address), token
        self.frames = deque[bytes]()
        self.bytes = 0
        self.lock = threading.Lock()
        self.is_idle = True
        """Whether the loop waits for a frame."""
        self.filled: asyncio.Event
        self.task: asyncio.Task[None] | None = None
        """Sends the frames."""

    def batch(self) -> list[bytes]:
        """Returns the first frames, as many as fit into one request."""
        with self.lock:
            found, size = list[bytes](), 0
            for frame in self.frames:
                if found and size + len(frame) > BATCH_BYTES:
                    break
                found.append(frame)
                size += len(frame)
            self.is_idle = not found
        return found

    def drop(self, count: int) -> None:
        """Drops the first frames."""
        with self.lock:
            for _ in range(count):
                self.bytes -= len(self.frames.popleft())


class HttpMessenger:
    """See Messenger. A request without an answer is sent again, so frames may come twice."""

    def __init__(self, settings: MessengerSettings) -> None:
        """Makes a token. Listens from `start` on. Raises SettingsError if the files of TLS cannot be used."""
        self.settings = settings
        self.counts = MessengerCounts()
        self.address = ""
        self.public_key = secrets.token_hex(32)
        self.token = bytes.fromhex(self.public_key)
        self.queues = FrameQueues(settings)
        self._server_tls, self._client_tls = _open_contexts(settings)
        self._boxes: dict[str, _Outbox] = {}
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._server: _Server

    # The peer's thread calls these.

    def start(self) -> None:
        """See Messenger."""
        settings = self.settings
        try:
            family, *_, where = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            bound = socket.create_server((str(where[0]), settings.port), family=family, backlog=128)
        except OSError as error:
            raise bind_error(settings, error.errno, str(error)) from None
        bound.setblocking(False)
        host = settings.advertised or settings.host
        scheme = "http" if self._server_tls is None else "https"
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
        started = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(bound, started)), name="http messenger", daemon=True
        )
        self._thread.start()
        started.wait()

    def connect(self, peer: str, address: str, public_key: str) -> None:
        """See Messenger."""
        try:
            box = _Outbox(peer, address, bytes.fromhex(public_key))
            is_right = box.address.scheme in ("http", "https") and box.address.hostname and box.address.port
        except ValueError:
            is_right = False
        if not is_right:
            raise SettingsError(f"{peer}: {address!r} is not an http address: start all peers with the same messenger")
        if (box.address.scheme == "https") != (self._client_tls is not None):
            raise SettingsError(
                f"{peer}: {address!r}: one of the two peers uses TLS, and the other does not: start all peers with "
                "--certificate and --authority, or none"
            )
        self._end(self._boxes.pop(peer, None))
        self._boxes[peer] = box
        self.queues.open(peer)
        self._call(self._begin(box))

    def disconnect(self, peer: str) -> None:
        """See Messenger."""
        self._end(self._boxes.pop(peer, None))
        self.queues.close(peer)

    def send(self, peer: str, frame: bytes) -> bool:
        """See Messenger."""
        check_size(frame, self.settings)
        if (box := self._boxes.get(peer)) is None:
            return False
        with box.lock:
            if len(box.frames) >= self.settings.queue or box.bytes >= self.settings.queue_bytes:
                return False
            box.frames.append(frame)
            box.bytes += len(frame)
            is_idle, box.is_idle = box.is_idle, False
        if is_idle:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(box.filled.set)
        return True

    def receive(self) -> list[tuple[str, bytes]]:
        """See Messenger."""
        return self.queues.take_all()

    def wait(self, seconds: float) -> None:
        """See Messenger."""
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """See Messenger."""
        self._woken.set()

    def close(self) -> None:
        """See Messenger."""
        for peer in [*self._boxes]:
            self.disconnect(peer)
        if self._thread is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(END_SECONDS)
            self._thread = None

    def _end(self, box: _Outbox | None) -> None:
        if box is not None and box.task is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(box.task.cancel)

    def _call(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(END_SECONDS)

    # The thread of the event loop calls these.

    async def _run(self, bound: socket.socket, started: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._server = _Server(
            None,
            messenger=self,
            ssl_options=self._server_tls,
            max_header_size=HEAD_MAX,
            max_body_size=1 << 62,  # each request is judged by its head
            max_buffer_size=BUFFER_MAX,
            idle_connection_timeout=2 * REQUEST_SECONDS,
            body_timeout=REQUEST_SECONDS,
        )
        self._server.add_sockets([bound])
        started.set()
        await self._ended.wait()
        self._server.stop()
        await self._server.close_all_connections()

    async def _begin(self, box: _Outbox) -> None:
        box.filled = asyncio.Event()
        box.task = asyncio.create_task(self._send_all(box))

    async def _send_all(self, box: _Outbox) -> None:
        """Sends the frames for a peer, one request after the other, until the task is cancelled."""
        connection, failures = None, 0
        try:
            while True:
                frames = box.batch()
                if not frames:
                    await box.filled.wait()
                    box.filled.clear()
                    continue
                try:
                    async with asyncio.timeout(REQUEST_SECONDS):
                        if connection is None:
                            connection = await self._connect(box)
                        code, is_kept = await self._post(box, connection, frames)
                except ssl.SSLError as error:
                    logger.warning(
                        "peer %s at %s cannot be reached by TLS: %s: give each peer a certificate for the address that "
                        "the others use, issued by the --authority of all peers",
                        box.peer, box.address.netloc, _describe(error), extra=repeated(f"TLS of peer {box.peer}"),
                    )  # fmt: skip
                    code, is_kept = 0, False
                except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, HTTPInputError) as error:
                    logger.debug("peer %s is away: %s", box.peer, error)
                    code, is_kept = 0, False
                if not is_kept and connection is not None:
                    connection[1].transport.abort()
                    connection = None
                if code == HTTPStatus.NO_CONTENT:
                    failures = 0
                    box.drop(len(frames))
                    continue
                failures += 1
                if code not in (0, BUSY, STRANGER):
                    logger.warning(
                        "peer %s refuses %s frames with status %s: they are dropped", box.peer, len(frames), code,
                        extra=repeated(f"frames that peer {box.peer} refuses"),
                    )  # fmt: skip
                    box.drop(len(frames))
                await asyncio.sleep(AWAY.wait(failures, random.random()))
        finally:
            if connection is not None:  # a TLS connection that is closed waits for its peer, longer than the loop runs
                connection[1].transport.abort()

    async def _connect(self, box: _Outbox) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = box.address.hostname, box.address.port
        reader, writer = await asyncio.open_connection(host, port, ssl=self._client_tls, limit=HEAD_MAX)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reader, writer

    async def _post(
        self,
        box: _Outbox,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        frames: Sequence[bytes],
    ) -> tuple[int, bool]:
        """Sends one request. Returns the status of the answer, and whether the connection is kept."""
        reader, writer = connection
        body = b"".join([part for frame in frames for part in (len(frame).to_bytes(LENGTH_BYTES, "big"), frame)])
        own, digest = self.settings.peer, _digest(body)
        names = self.settings.cluster, own, box.peer
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: {box.address.netloc}\r\nContent-Length: {len(body)}\r\n"
            f"Kstreams-Peer: {quote(own)}\r\nKstreams-Digest: {digest}\r\n"
            f"Authorization: Kstreams {_authorize(box.token, names, len(body), digest)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first, _, rest = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").partition("\r\n")
        headers = HTTPHeaders.parse(rest)
        if int(headers.get("Content-Length", "0")):
            raise HTTPInputError("its answer has a body")
        return parse_response_start_line(first).code, headers.get("Connection", "").lower() != "close"

    def take(self, peer: str, frames: Sequence[bytes]) -> bool:
        """Takes the frames of a request; returns False if too many wait."""
        is_taken = self.queues.put(peer, frames)
        self._woken.set()
        return is_taken


class _Request(HTTPMessageDelegate):
    """One request to the server of a peer, and its answer."""

    def __init__(self, server: _Server, connection: HTTP1Connection) -> None:
        self._server, self._connection, self._stream = server, connection, connection.stream
        self._messenger = server.messenger
        self._peer, self._digest = "", ""
        self._body = bytearray()
        self._is_over = False

    def headers_received(self, start_line: object, headers: HTTPHeaders) -> None:
        """Refuses a request by its head, unless a member sent it and the server can take it."""
        assert isinstance(start_line, RequestStartLine)
        refused = self._judge(start_line, headers)
        if refused is not None:
            counts = self._messenger.counts
            if refused.is_stranger:
                counts.strangers += 1
            elif refused.code != BUSY:
                counts.garbage += 1
            self._server.refuse(self._stream)
            self._answer(refused.code, is_whole=False)

    def _judge(self, start_line: RequestStartLine, headers: HTTPHeaders) -> _Refused | None:
        messenger = self._messenger
        if start_line.path != PATH or start_line.method != "POST":
            return _Refused(404 if start_line.path != PATH else 405)
        try:
            length = int(headers["Content-Length"])
        except (KeyError, ValueError):
            return _Refused(411)
        self._peer, self._digest = unquote(headers.get("Kstreams-Peer", "")), headers.get("Kstreams-Digest", "")
        names = messenger.settings.cluster, self._peer, messenger.settings.peer
        expected = _authorize(messenger.token, names, length, self._digest)
        given = headers.get("Authorization", "").removeprefix("Kstreams ")
        if not hmac.compare_digest(given.encode(), expected.encode()) or self._peer not in messenger.queues:
            return _Refused(STRANGER, is_stranger=True)
        self._server.admit(self._stream)
        if length > max(messenger.settings.frame_max + LENGTH_BYTES, 2 * BATCH_BYTES):
            return _Refused(413)
        return _Refused(BUSY) if messenger.queues.is_full(self._peer) else None

    def data_received(self, chunk: bytes) -> None:
        """Keeps a part of the body, which the head has announced."""
        if not self._is_over:
            self._body += chunk

    def finish(self) -> None:
        """Takes the frames."""
        if self._is_over:
            return
        body, messenger = bytes(self._body), self._messenger
        frames = _split(body) if hmac.compare_digest(_digest(body), self._digest) else None
        if frames is None or any(len(each) > messenger.settings.frame_max for each in frames):
            messenger.counts.garbage += 1
            self._answer(400)
        else:
            self._answer(204 if messenger.take(self._peer, frames) else BUSY)

    def on_connection_close(self) -> None:
        """Forgets the request: its sender is gone."""
        self._is_over = True

    def _answer(self, code: int, *, is_whole: bool = True) -> None:
        self._is_over, self._body = True, bytearray()
        headers = HTTPHeaders({} if code == HTTPStatus.NO_CONTENT else {"Content-Length": "0"})
        if not is_whole:
            headers["Connection"] = "close"
        self._connection.write_headers(ResponseStartLine("HTTP/1.1", code, HTTPStatus(code).phrase), headers)
        self._connection.finish()


class _Server(HTTPServer):
    """The server of a peer, with a limit on its connections."""

    def initialize(self, *arguments: Any, **options: Any) -> None:
        """Takes the arguments of HTTPServer and one of its own. Tornado calls this instead of `__init__`."""
        self.messenger: HttpMessenger = options.pop("messenger")
        super().initialize(*arguments, **options)
        self._unknown: dict[IOStream, bool] = {}
        """The connections without a request of a member, the oldest first, and whether each was counted as dropped."""
        self._count = 0

    def handle_stream(self, stream: IOStream, address: Any) -> None:
        """Takes a new connection. Above the limit, closes the oldest that no member has used, or else the new one."""
        if self._count >= SPARE_CONNECTIONS + 2 * len(self.messenger.queues):
            oldest = next((each for each in self._unknown if not each.closed()), stream)
            oldest.close()
            if oldest is stream:
                return
        self._count += 1
        self._unknown[stream] = False
        super().handle_stream(stream, address)

    def admit(self, stream: IOStream) -> None:
        """Notes that a connection has sent a request of a member."""
        self._unknown.pop(stream, None)

    def refuse(self, stream: IOStream) -> None:
        """Notes that a refused request was counted as dropped."""
        if stream in self._unknown:
            self._unknown[stream] = True

    def start_request(self, _: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Begins to read a request."""
        return _Request(self, cast(HTTP1Connection, request_conn))

    def on_close(self, server_conn: object) -> None:
        """Notes the end of a connection."""
        self._count -= 1
        if self._unknown.pop(cast(HTTP1ServerConnection, server_conn).stream, True) is False:
            self.messenger.counts.garbage += 1  # not HTTP, or not TLS
        super().on_close(server_conn)


def _open_contexts(settings: MessengerSettings) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Returns the TLS contexts of server and clients; None without a certificate. Raises SettingsError."""
    if settings.certificate is None:
        return None, None
    named = [each for each in (settings.certificate, settings.key, settings.authority) if each is not None]
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=settings.authority)
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=settings.authority)
        for context in (server, client):
            # without a password, OpenSSL would ask on the terminal
            context.load_cert_chain(settings.certificate, settings.key, password="")
    except (OSError, ValueError) as error:
        named = [each for each in named if not os.access(each, os.R_OK)] or named
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"cannot use {', '.join(map(str, named))}: {why}: give files in PEM format, with a key without a password"
        ) from None
    if settings.authority is not None:
        server.verify_mode = ssl.CERT_REQUIRED
    return server, client
