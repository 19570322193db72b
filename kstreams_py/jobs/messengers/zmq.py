"""A messenger over ZeroMQ: the default between machines.

A peer listens with one PULL socket, and has a PUSH socket for each other peer. (A ROUTER would put the sender's name
before each frame; here the key of the connection tells who sends.) Each peer has a key pair of its own: a connection is
encrypted, and both sides prove that they have the keys that the cluster knows (CurveZMQ). Connections of strangers fail
in the handshake, which ZeroMQ reports through its monitor.

The peer's thread owns all sockets; ZeroMQ's own thread encrypts and sends.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final, cast

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from kstreams_py.errors import SettingsError
from kstreams_py.jobs.messengers.contract import MessengerCounts, MessengerSettings, bind_error, check_size

HEARTBEAT: Final = (1_000, 10_000)
"""Milliseconds between two heartbeats of a connection, and milliseconds without one after which it is lost."""

RECONNECT: Final = (50, 2_000)
"""Milliseconds between two attempts to connect: the first and the longest wait. Each is twice the one before."""

HANDSHAKE: Final = 10_000
"""Milliseconds for a handshake: it waits for the peer's thread, which may be running a function of the user."""

BACKLOG: Final = 128

REPORTS_MAX: Final = 10_000
"""The most reports of connections that wait: when there are more, ZeroMQ's thread waits for the peer's thread."""

LOOKS: Final = 32
"""Calls of `receive` until it looks for new connections, unless `wait` has found one: a look costs 6 us (measured)."""

CURVE_BYTES: Final = 64
"""An upper bound on the bytes that encryption adds to a frame: ZeroMQ's limit counts them."""

AT_ONCE: Final = 256
"""The most frames of one `receive`."""

WELCOME: Final = b"200"
LATER: Final = b"300"
"""Codes of the ZeroMQ Authentication Protocol. After a 400, a peer would never try again (measured with libzmq 4.3)."""

HELD_MAX: Final = 64
"""The most waiting handshakes: each waits until its peer is connected here, or until it times out."""

REPORTED: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
"""Reported events. Bytes that are not a ZeroMQ greeting end a connection without a failed handshake (libzmq 4.3)."""


class ZmqMessenger:
    """See Messenger. Frames that wait for a peer are lost when the connection to it breaks."""

    def __init__(self, settings: MessengerSettings) -> None:
        """Makes a key pair. Does not listen until `start`."""
        self._settings = settings
        self.counts = MessengerCounts()
        self.address = ""
        public, self._secret = zmq.curve_keypair()
        self.public_key = public.decode()
        self._keys: dict[str, str] = {}
        """The ids of the connected peers, by public key."""
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        """The sockets to other peers, by id."""
        self._held: dict[str, list[bytes]] = {}
        """The handshakes that wait until their peer is connected: ZeroMQ's request for each, by public key."""
        self._looks = 0
        """Calls of `receive` until it looks for new connections."""
        self._greeting = set[int]()
        """The descriptors of connections that have not proved a key yet."""
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None

    def start(self) -> None:
        """See Messenger."""
        self._context, self._poller = zmq.Context(), zmq.Poller()
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        self._poller.register(self._woken, zmq.POLLIN)
        try:
            self._listen()
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        """Opens the sockets that other peers connect to."""
        assert self._context is not None
        # ZeroMQ sends a request about each handshake to this address of the context
        self._judge = self._context.socket(zmq.ROUTER)
        self._judge.linger = 0
        self._judge.bind("inproc://zeromq.zap.01")
        self._incoming = self._new_socket(zmq.PULL)
        self._incoming.curve_server = True
        self._incoming.curve_secretkey = self._secret
        self._incoming.zap_domain = b"kstreams"
        self._incoming.maxmsgsize = self._settings.frame_max + CURVE_BYTES
        self._incoming.rcvhwm = self._settings.queue
        self._incoming.backlog = BACKLOG
        self._reports = self._incoming.get_monitor_socket(REPORTED)
        self._reports.rcvhwm = REPORTS_MAX
        for each in (self._judge, self._incoming, self._reports):
            self._poller.register(each, zmq.POLLIN)
        self._bind()

    def _bind(self) -> None:
        settings = self._settings
        try:
            family, *_, where = socket.getaddrinfo(
                settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._incoming.ipv6 = family == socket.AF_INET6
            self._incoming.bind(f"tcp://{_join(str(where[0]), settings.port)}")
        except (OSError, zmq.ZMQError) as error:
            raise bind_error(settings, error.errno, str(error)) from None
        bound = self._incoming.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        port = int(bound.rstrip(b"\0").rsplit(b":", 1)[1])
        self.address = f"tcp://{_join(settings.advertised or settings.host, port)}"

    def _new_socket(self, kind: int) -> zmq.Socket[bytes]:
        assert self._context is not None
        made = self._context.socket(kind)
        made.linger = 0
        made.handshake_ivl = HANDSHAKE
        made.heartbeat_ivl, made.heartbeat_timeout = HEARTBEAT
        return made

    def connect(self, peer: str, address: str, public_key: str) -> None:
        """See Messenger."""
        self.disconnect(peer)
        made = self._new_socket(zmq.PUSH)
        try:
            made.immediate = True  # otherwise frames wait for a peer that is away, and `send` reports nothing
            made.sndhwm = self._settings.queue
            made.reconnect_ivl, made.reconnect_ivl_max = RECONNECT
            made.ipv6 = "[" in address
            made.curve_publickey = self.public_key.encode()
            made.curve_secretkey = self._secret
            made.curve_serverkey = public_key.encode()
            made.connect(address)
        except (zmq.ZMQError, ValueError) as error:
            made.close()
            raise SettingsError(
                f"{peer}: cannot connect to {address!r} with the key {public_key!r}: {error}: start all peers with the "
                "same messenger, and an advertised= that all can resolve"
            ) from None
        self._keys[public_key] = peer
        self._sockets[peer] = made
        # peers read the join of another peer at different times: that peer may have asked already
        if (held := self._held.pop(public_key, None)) is not None:
            self._answer(held, public_key, WELCOME)

    def disconnect(self, peer: str) -> None:
        """See Messenger."""
        self._keys = {key: each for key, each in self._keys.items() if each != peer}
        if (found := self._sockets.pop(peer, None)) is not None:
            found.close()

    def send(self, peer: str, frame: bytes) -> bool:
        """See Messenger."""
        check_size(frame, self._settings)
        if (found := self._sockets.get(peer)) is None:
            return False
        try:
            found.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[tuple[str, bytes]]:
        """See Messenger."""
        self._looks -= 1
        if self._looks <= 0:
            self._looks = LOOKS
            self._let_in()
            self._count_garbage()
        found = list[tuple[str, bytes]]()
        keys, incoming = self._keys, self._incoming
        # an exception costs 3 us, asking first costs 1 us
        while len(found) < AT_ONCE and cast(int, incoming.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            try:
                frame = incoming.recv(zmq.DONTWAIT, copy=False)
            except zmq.Again:  # seen with a frame of 256 KB that had not fully arrived
                break
            # User-Id is the key that the sender has proved: a peer that has left may still have a connection
            if frame.more or (peer := keys.get(str(frame.get("User-Id")))) is None:
                self.counts.strangers += 1
            elif len(frame) > self._settings.frame_max:
                self.counts.garbage += 1
            else:
                found.append((peer, frame.bytes))
        return found

    def _let_in(self) -> None:
        """Answers ZeroMQ's requests to let connections in. Requests of peers that are not connected wait."""
        with suppress(zmq.Again):
            while True:
                asked = self._judge.recv_multipart(zmq.DONTWAIT)
                key = z85.encode(asked[8]).decode()
                if key in self._keys:
                    self._answer(asked, key, WELCOME)
                    continue
                self.counts.strangers += 1
                self._held.pop(key, None)
                self._held[key] = asked
                if len(self._held) > HELD_MAX:
                    oldest = next(iter(self._held))
                    self._answer(self._held.pop(oldest), oldest, LATER)

    def _answer(self, asked: list[bytes], key: str, code: bytes) -> None:
        route, _, version, request = asked[:4]
        with suppress(zmq.Again):  # the connection has ended
            self._judge.send_multipart([route, b"", version, request, code, b"", key.encode(), b""], zmq.DONTWAIT)

    def _count_garbage(self) -> None:
        """Counts the connections that end before they prove a key."""
        with suppress(zmq.Again):
            while True:
                report = recv_monitor_message(self._reports, zmq.DONTWAIT)
                event, descriptor = report["event"], int(report["value"])
                if event == zmq.EVENT_ACCEPTED:
                    self._greeting.add(descriptor)
                    continue
                self.counts.garbage += event == zmq.EVENT_DISCONNECTED and descriptor in self._greeting
                self._greeting.discard(descriptor)

    def wait(self, seconds: float) -> None:
        """See Messenger."""
        events = self._poller.poll(int(max(seconds, 0) * 1_000 + 0.999))
        for found, _ in events:
            if found in (self._judge, self._reports):
                self._looks = 0
            elif found == self._woken.fileno():
                with suppress(BlockingIOError):
                    while self._woken.recv(1 << 10):
                        pass

    def wake(self) -> None:
        """See Messenger."""
        with suppress(OSError):  # the socket is full, which wakes the peer as well, or it is closed
            self._wake.send(b"\0")

    def close(self) -> None:
        """See Messenger."""
        if self._context is None:
            return
        self._context.destroy(linger=0)
        self._context = None
        self._sockets.clear()
        for each in (self._woken, self._wake):
            each.close()


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port or '*'}" if ":" in host else f"{host}:{port or '*'}"
