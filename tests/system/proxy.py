"""A TCP proxy between clients and one broker: it holds, delays, drops or doubles chosen requests and responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal, Self

from kstreams_py.embedded import EmbeddedKafka
from kstreams_py.embedded.nodes import Node, free_ports
from tests.clusters import OF_BROKERS

HOST: Final = "127.0.0.1"

APIS: Final = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    14: "SyncGroup",
    18: "ApiVersions",
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    27: "WriteTxnMarkers",
    28: "TxnOffsetCommit",
}
"""Kafka's requests by API key; the name of any other request is its number."""

KEPT_BYTES: Final = 1_024
"""Only this many bytes of a frame are recorded."""

Side = Literal["request", "response"]


class Fate(StrEnum):
    """What the proxy did with a frame."""

    PASSED = "passed"
    HELD = "held"
    LOST = "lost"
    DOUBLED = "doubled"
    REFUSED = "refused"
    EMPTIED = "emptied"


@dataclass(frozen=True, slots=True)
class Frame:
    """One request or response, without the length prefix; a response has the api, version and client of its request."""

    side: Side
    api: str
    version: int
    correlation: int
    client: str
    connection: int
    body: bytes = field(repr=False)
    fate: Fate = Fate.PASSED
    at: float = field(default_factory=time.monotonic)

    @classmethod
    def request(cls, body: bytes, connection: int) -> Frame:
        """Parses the header that every version of every request begins with."""
        key, version, correlation, length = struct.unpack_from(">hhih", body)
        client = body[10 : 10 + max(0, length)].decode()
        return cls("request", APIS.get(key, str(key)), version, correlation, client, connection, body)

    def response(self, body: bytes) -> Frame:
        """Creates the frame of the response to this request."""
        return replace(self, side="response", body=body, fate=Fate.PASSED, at=time.monotonic())


class Rule:
    """Applies a fate to `times` matching frames, from the `nth` one after the rule was added.

    `caught` lists the frames it was applied to. `answers` lists the broker's responses to the requests among them, also
    those that no client waits for any more.
    """

    def __init__(
        self, fate: Fate, api: str, side: Side, client: str | None, nth: int, times: int | None, seconds: float | None
    ) -> None:
        assert api in APIS.values(), f"{api} is not in APIS"
        self.fate = fate
        self.caught: list[Frame] = []
        self.answers: list[Frame] = []
        self.silent = False
        self._chosen = (api, side, client)
        self._skip = nth - 1
        self._left = times
        self._seconds = seconds
        self._released = threading.Event()

    def release(self) -> None:
        """Forwards the frames that are held."""
        self._released.set()

    def lift(self) -> None:
        """Ends the rule, and forwards the frames that are held."""
        self._left = 0
        self.release()

    def matches(self, frame: Frame) -> bool:
        """Whether the rule applies to this frame; counts the frame, so that the proxy calls it under its lock."""
        api, side, client = self._chosen
        if self._left == 0 or (frame.api, frame.side) != (api, side) or client not in (None, frame.client):
            return False
        if self._skip:
            self._skip -= 1
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def wait(self) -> None:
        """Waits until the rule is released or its seconds are over."""
        self._released.wait(self._seconds)


class Proxy:
    """Forwards all frames between its own port and the broker's, except where a rule applies.

    Only `hide_brokers` changes bytes, and a connection keeps its order, as in TCP: frames behind a held frame wait, and
    a frame is lost together with its connection. A held request reaches the broker even if its client has disconnected
    meanwhile: that makes it a late request.
    """

    def __init__(self, broker_port: int) -> None:
        self.seen: list[Frame] = []
        self._broker_port = broker_port
        self._rules: list[Rule] = []
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
        self._is_cut = False
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The proxy's address for clients."""
        return f"{HOST}:{self.port}"

    def hold(
        self, api: str, *, side: Side = "request", client: str | None = None, nth: int = 1, times: int | None = 1
    ) -> Rule:
        """Holds frames (`times=None`: all until the rule is lifted) until the rule is released."""
        return self._add(Rule(Fate.HELD, api, side, client, nth, times, None))

    def delay(
        self, api: str, seconds: float, *, side: Side = "request", client: str | None = None, nth: int = 1
    ) -> Rule:
        """Holds one frame for this many seconds, or until the rule is released."""
        return self._add(Rule(Fate.HELD, api, side, client, nth, 1, seconds))

    def drop(
        self,
        api: str,
        *,
        side: Side = "request",
        client: str | None = None,
        nth: int = 1,
        times: int | None = 1,
        silent: bool = False,
    ) -> Rule:
        """Drops frames (`times=None`: all until the rule is lifted) together with their connections.

        The connection is closed; if `silent`, it stays open and forwards nothing more in the frame's direction.
        """
        rule = Rule(Fate.LOST, api, side, client, nth, times, None)
        rule.silent = silent
        return self._add(rule)

    def double(self, api: str, *, side: Side = "request", client: str | None = None, nth: int = 1) -> Rule:
        """Sends one frame twice. The client gets the first of the broker's two responses to a doubled request."""
        return self._add(Rule(Fate.DOUBLED, api, side, client, nth, 1, None))

    def refuse(self, *, client: str | None = None, nth: int = 1) -> Rule:
        """Answers one Produce request (of one partition) with NOT_LEADER_OR_FOLLOWER; the broker never gets it."""
        return self._add(Rule(Fate.REFUSED, "Produce", "request", client, nth, 1, None))

    def hide_brokers(self, *, client: str | None = None, times: int | None = None) -> Rule:
        """Takes the brokers out of Metadata responses (`times=None`: all until the rule is lifted)."""
        return self._add(Rule(Fate.EMPTIED, "Metadata", "response", client, 1, times, None))

    def cut(self) -> None:
        """Closes all connections, and each new one until `mend` or `lift`."""
        self._is_cut = True
        for connection in list(self._connections):
            connection.close()

    def mend(self) -> None:
        """Ends a cut."""
        self._is_cut = False

    def lift(self) -> None:
        """Ends all rules and a cut, and forwards the frames that are held."""
        self.mend()
        with self._lock:
            for rule in self._rules:
                rule.lift()
            self._rules.clear()

    def requests(self, api: str, client: str) -> list[Frame]:
        """The requests received from one client, also the dropped ones."""
        with self._lock:
            return [f for f in self.seen if (f.side, f.api, f.client) == ("request", api, client)]

    def close(self) -> None:
        """Closes all connections."""
        self.lift()
        # shutdown() wakes a thread that waits in accept(), close() does not
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._connections:
            connection.close()
        for connection in self._connections:
            connection.join()

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                try:
                    broker = socket.create_connection((HOST, self._broker_port))
                except OSError:
                    client.close()
                    continue
                self._connections.append(_Connection(self, len(self._connections), client, broker))

    def judge(self, frame: Frame) -> Rule | None:
        """Records a frame, and finds the rule that applies to it, if any. Called once for each frame."""
        with self._lock:
            rule = next((rule for rule in self._rules if rule.matches(frame)), None)
            fate = rule.fate if rule else Fate.PASSED
            seen = replace(frame, body=frame.body[:KEPT_BYTES], fate=fate)
            self.seen.append(seen)
            if rule:
                rule.caught.append(seen)
        return rule


class _Connection:
    """One connection of a client and the proxy's own connection to the broker, with a thread for each direction."""

    def __init__(self, proxy: Proxy, number: int, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._broker = broker
        self._asked: deque[tuple[Frame, Rule | None, bool]] = deque()
        """Requests that the broker has not answered, each with its rule and whether the client gets the answer."""
        self._deaf = False
        self._answering = threading.Lock()
        self._idle = threading.Condition()
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [
            threading.Thread(target=run, daemon=True) for run in (self._forward_requests, self._forward_responses)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for end in (self._client, self._broker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        self._client.close()
        self._broker.close()

    def _forward_requests(self) -> None:
        held = False
        with contextlib.suppress(OSError):
            while (body := _read(self._client)) is not None:
                frame = Frame.request(body, self._number)
                rule = self._proxy.judge(frame)
                if rule and rule.fate is Fate.LOST:
                    while rule.silent and _read(self._client) is not None:
                        pass
                    break
                if rule and rule.fate is Fate.REFUSED:
                    self._answer(_build_not_leader(frame))
                    continue
                if rule and rule.fate is Fate.HELD:
                    held = True
                    rule.wait()
                self._send_request(frame, rule, answer=True)
                if rule and rule.fate is Fate.DOUBLED:
                    self._send_request(frame, rule, answer=False)
        if held:  # the client may have disconnected meanwhile; the broker answers all the same
            with self._idle:
                self._idle.wait_for(lambda: not self._asked, 10)
        self.close()

    def _send_request(self, frame: Frame, rule: Rule | None, *, answer: bool) -> None:
        with self._idle:
            self._asked.append((frame, rule, answer))
        _write(self._broker, frame.body)

    def _forward_responses(self) -> None:
        with contextlib.suppress(OSError):
            while (body := _read(self._broker)) is not None:
                request, asked, wanted = self._match_response(body)
                frame = request.response(body)
                rule = self._proxy.judge(frame) if wanted else None
                if asked:
                    asked.answers.append(frame)
                if rule and rule.fate is Fate.LOST:
                    if not rule.silent:
                        break
                    self._deaf = True
                if rule and rule.fate is Fate.HELD:
                    rule.wait()
                if rule and rule.fate is Fate.EMPTIED:
                    body = _hide_brokers(frame)
                if wanted and not self._deaf:
                    with contextlib.suppress(OSError):  # the client has disconnected; the answers are still recorded
                        self._answer(body)
                        if rule and rule.fate is Fate.DOUBLED:
                            self._answer(body)
        with self._idle:
            self._asked.clear()
            self._idle.notify()
        self.close()

    def _answer(self, body: bytes) -> None:
        with self._answering:
            _write(self._client, body)

    def _match_response(self, body: bytes) -> tuple[Frame, Rule | None, bool]:
        """Finds the request of a response: responses are in order, and a request with acks=0 has none."""
        (correlation,) = struct.unpack_from(">i", body)
        with self._idle:
            while (asked := self._asked.popleft())[0].correlation != correlation:
                pass
            self._idle.notify()
        return asked


def _build_not_leader(request: Frame) -> bytes:
    """Builds NOT_LEADER_OR_FOLLOWER as the answer to a Produce request of one partition, flexible versions 9 to 12."""
    assert 9 <= request.version <= 12, request.version
    body, at = request.body, 10
    at += max(0, struct.unpack_from(">h", body, 8)[0]) + 1  # client id, tags
    at += max(1, body[at]) + 6  # transactional id, acks and time-out
    name = body[at + 2 : at + 1 + body[at + 1]]
    (partition,) = struct.unpack_from(">i", body, at + 2 + len(name) + 1)
    answer = struct.pack(">ihqqq", partition, 6, -1, -1, -1) + b"\x01\x00\x00"  # no record errors, message, tags
    topics = b"\x02" + bytes([len(name) + 1]) + name + b"\x02" + answer + b"\x00"
    return struct.pack(">i", request.correlation) + b"\x00" + topics + struct.pack(">i", 0) + b"\x00"


def _hide_brokers(response: Frame) -> bytes:
    """Returns a Metadata response, flexible versions 9 to 13, without its brokers."""
    assert 9 <= response.version <= 13, response.version
    body, start = response.body, 9  # correlation id, tags, throttle time
    at = start + 1
    for _ in range(body[start] - 1):
        at += 4  # id
        at += body[at] + 4  # host, port
        at += max(1, body[at]) + 1  # rack, tags
    return body[:start] + b"\x01" + body[at:]


def _read(end: socket.socket) -> bytes | None:
    """Reads the next frame; None at the end of the stream."""
    head = _read_exactly(end, 4)
    return None if head is None else _read_exactly(end, *struct.unpack(">i", head))


def _read_exactly(end: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        some = end.recv(length - len(data))
        if not some:
            return None
        data += some
    return bytes(data)


def _write(end: socket.socket, body: bytes) -> None:
    end.sendall(struct.pack(">i", len(body)) + body)


@contextmanager
def proxied_broker() -> Iterator[tuple[EmbeddedKafka, Proxy]]:
    """A broker with two addresses: its own for the test itself, and the proxy's for the clients under test."""
    direct, proxied, controller = free_ports([None] * 3)
    with Proxy(proxied) as proxy:
        settings = {
            "listeners": f"BROKER://{HOST}:{direct},PROXIED://{HOST}:{proxied},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"BROKER://{HOST}:{direct},PROXIED://{HOST}:{proxy.port}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"0@{HOST}:{controller}",
        }
        with EmbeddedKafka(port=direct, settings=OF_BROKERS | settings) as kafka:
            yield kafka, proxy


class _ReplicatingKafka(EmbeddedKafka):
    """Brokers that reach each other at listeners of their own; the last broker is reached through a proxy."""

    def __init__(self, brokers: int, proxy_of: Callable[[int], Proxy]) -> None:
        # a broker that is slow keeps its leaderships: the proxy is that of the last broker only
        super().__init__(brokers=brokers, settings=OF_BROKERS | {"broker.session.timeout.ms": "60000"})
        self._proxy_of = proxy_of

    def _format(self, cluster_id: str) -> None:
        taken = {number for node in self._nodes for number in (node.port, node.controller_port)}
        ports = (port for port in free_ports([None] * 3 * len(self._nodes)) if port not in taken)
        for node, port in zip(self._nodes, ports, strict=False):
            reached = self._proxy_of(port).port if node is self._nodes[-1] else port
            # of a name that is there twice, the last value counts
            with (node.directory / "server.properties").open("a") as file:
                file.writelines(f"{name}={value}\n" for name, value in _internal_listener(node, port, reached).items())
        super()._format(cluster_id)


def _internal_listener(node: Node, port: int, reached: int) -> dict[str, str]:
    """Settings with which other brokers reach a node at another port than clients; it listens at `port`."""
    clients = f"BROKER://{HOST}:{node.port}"
    return {
        "listeners": f"{clients},INTERNAL://{HOST}:{port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"{clients},INTERNAL://{HOST}:{reached}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }


@contextmanager
def proxied_replication(brokers: int) -> Iterator[tuple[EmbeddedKafka, Proxy]]:
    """A cluster, and the proxy through which all brokers reach the last one; clients reach it directly."""
    with ExitStack() as stack:
        proxies: list[Proxy] = []

        def proxy_of(port: int) -> Proxy:
            proxies.append(stack.enter_context(Proxy(port)))
            return proxies[-1]

        kafka = stack.enter_context(_ReplicatingKafka(brokers, proxy_of))
        yield kafka, proxies[-1]
