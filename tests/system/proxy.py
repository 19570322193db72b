"""A TCP proxy between clients and one broker: it holds, delays, loses or doubles chosen requests and responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal, Self

from kstreams_py.ports import broker as embedded
from kstreams_py.ports.broker import EmbeddedKafka
from kstreams_py.ports.jars import find_java, kafka_classpath

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
    28: "TxnOffsetCommit",
}
"""Kafka's requests by their keys; those that no test names have their number for a name."""

KEPT_BYTES: Final = 1_024
"""Of larger frames only so much is remembered."""

Side = Literal["request", "response"]


class Fate(StrEnum):
    """What became of a frame."""

    PASSED = "passed"
    HELD = "held"
    LOST = "lost"
    DOUBLED = "doubled"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Frame:
    """One request or response, without the length in front; a response has its request's api, version and client."""

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
        """Reads the header that all versions of all requests begin with."""
        key, version, correlation, length = struct.unpack_from(">hhih", body)
        client = body[10 : 10 + max(0, length)].decode()
        return cls("request", APIS.get(key, str(key)), version, correlation, client, connection, body)

    def response(self, body: bytes) -> Frame:
        """The response to this request."""
        return replace(self, side="response", body=body, fate=Fate.PASSED, at=time.monotonic())


class Rule:
    """What happens to chosen frames: `times` of those that match, from the `nth` on since the rule was made.

    `caught` are those it was applied to, `answers` the broker's responses to the requests among them, whether anyone
    still waits for them or not.
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
        """Lets go what is held."""
        self._released.set()

    def lift(self) -> None:
        """From now on the rule is for nothing more; what is held goes on."""
        self._left = 0
        self.release()

    def matches(self, frame: Frame) -> bool:
        """Whether the rule is for this frame, which then counts; the proxy asks, under its lock."""
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
        """Until it is released, or its seconds are over."""
        self._released.wait(self._seconds)


class Proxy:
    """Passes everything between its own port and the broker's, but for what the rules say.

    Bytes are never changed, and a connection keeps its order, as TCP does: behind a frame that is held wait all that
    follow it, and a frame is lost together with its connection. A held request reaches the broker even if its client
    has gone away meanwhile, which is what makes it late.
    """

    def __init__(self, broker_port: int) -> None:
        self.seen: list[Frame] = []
        self._broker_port = broker_port
        self._rules: list[Rule] = []
        self._connections: list[_Connection] = []
        self._lock = threading.Lock()
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
        """The proxy's address, as clients take it."""
        return f"{HOST}:{self.port}"

    def hold(self, api: str, *, side: Side = "request", client: str | None = None, nth: int = 1) -> Rule:
        """Holds one until it is released."""
        return self._add(Rule(Fate.HELD, api, side, client, nth, 1, None))

    def delay(
        self, api: str, seconds: float, *, side: Side = "request", client: str | None = None, nth: int = 1
    ) -> Rule:
        """Holds one for so long, or until it is released."""
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
        """Loses some (`times=None`: all until the rule is lifted), and their connections with them.

        A connection is closed, or if `silent` stays open while nothing passes any more in the frame's direction.
        """
        rule = Rule(Fate.LOST, api, side, client, nth, times, None)
        rule.silent = silent
        return self._add(rule)

    def double(self, api: str, *, side: Side = "request", client: str | None = None, nth: int = 1) -> Rule:
        """Sends one twice. Of the broker's two responses to a doubled request the client gets the first."""
        return self._add(Rule(Fate.DOUBLED, api, side, client, nth, 1, None))

    def refuse(self, *, client: str | None = None, nth: int = 1) -> Rule:
        """Answers one Produce request (of one partition) as a broker that does not lead it, which never sees it."""
        return self._add(Rule(Fate.REFUSED, "Produce", "request", client, nth, 1, None))

    def lift(self) -> None:
        """Ends all rules; what is held goes on."""
        with self._lock:
            for rule in self._rules:
                rule.lift()
            self._rules.clear()

    def requests(self, api: str, client: str) -> list[Frame]:
        """The requests of one client that were seen, whatever became of them."""
        with self._lock:
            return [f for f in self.seen if (f.side, f.api, f.client) == ("request", api, client)]

    def close(self) -> None:
        """Ends all connections."""
        self.lift()
        # a thread that waits in accept() wakes up from this, not from close()
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
                try:
                    broker = socket.create_connection((HOST, self._broker_port))
                except OSError:
                    client.close()
                    continue
                self._connections.append(_Connection(self, len(self._connections), client, broker))

    def judge(self, frame: Frame) -> Rule | None:
        """The rule for a frame, if there is one; a connection asks, once for each frame."""
        with self._lock:
            rule = next((rule for rule in self._rules if rule.matches(frame)), None)
            fate = rule.fate if rule else Fate.PASSED
            seen = replace(frame, body=frame.body[:KEPT_BYTES], fate=fate)
            self.seen.append(seen)
            if rule:
                rule.caught.append(seen)
        return rule


class _Connection:
    """One client's connection and the broker's end of it: a thread for each direction."""

    def __init__(self, proxy: Proxy, number: int, client: socket.socket, broker: socket.socket) -> None:
        self._proxy = proxy
        self._number = number
        self._client = client
        self._broker = broker
        self._asked: deque[tuple[Frame, Rule | None, bool]] = deque()
        """Requests that the broker has not answered: with the rule for each, and whether its client gets the answer."""
        self._deaf = False
        self._answering = threading.Lock()
        self._idle = threading.Condition()
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._requests, self._responses)]
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

    def _requests(self) -> None:
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
                    self._answer(_not_leader(frame))
                    continue
                if rule and rule.fate is Fate.HELD:
                    held = True
                    rule.wait()
                self._ask(frame, rule, answer=True)
                if rule and rule.fate is Fate.DOUBLED:
                    self._ask(frame, rule, answer=False)
        if held:  # the client may have gone because of that; the broker answers all the same
            with self._idle:
                self._idle.wait_for(lambda: not self._asked, 10)
        self.close()

    def _ask(self, frame: Frame, rule: Rule | None, *, answer: bool) -> None:
        with self._idle:
            self._asked.append((frame, rule, answer))
        _write(self._broker, frame.body)

    def _responses(self) -> None:
        with contextlib.suppress(OSError):
            while (body := _read(self._broker)) is not None:
                request, asked, wanted = self._answered(body)
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
                if wanted and not self._deaf:
                    with contextlib.suppress(OSError):  # a client that went away; the broker's answers still count
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

    def _answered(self, body: bytes) -> tuple[Frame, Rule | None, bool]:
        """The request that a response belongs to: they come in order, but to those with acks=0 there is none."""
        (correlation,) = struct.unpack_from(">i", body)
        with self._idle:
            while (asked := self._asked.popleft())[0].correlation != correlation:
                pass
            self._idle.notify()
        return asked


def _not_leader(request: Frame) -> bytes:
    """NOT_LEADER_OR_FOLLOWER to a Produce request of one partition, in the flexible versions 9 to 12."""
    assert 9 <= request.version <= 12, request.version
    body, at = request.body, 10
    at += max(0, struct.unpack_from(">h", body, 8)[0]) + 1  # client id, tags
    at += max(1, body[at]) + 6  # transactional id, acks and time-out
    name = body[at + 2 : at + 1 + body[at + 1]]
    (partition,) = struct.unpack_from(">i", body, at + 2 + len(name) + 1)
    answer = struct.pack(">ihqqq", partition, 6, -1, -1, -1) + b"\x01\x00\x00"  # no record errors, message, tags
    topics = b"\x02" + bytes([len(name) + 1]) + name + b"\x02" + answer + b"\x00"
    return struct.pack(">i", request.correlation) + b"\x00" + topics + struct.pack(">i", 0) + b"\x00"


def _read(end: socket.socket) -> bytes | None:
    """The next frame; None where the stream ends."""
    head = _exactly(end, 4)
    return None if head is None else _exactly(end, *struct.unpack(">i", head))


def _exactly(end: socket.socket, length: int) -> bytes | None:
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
    """A broker with two addresses: its own, for the test itself, and the proxy's, for those that are tested."""
    direct, proxied, controller = embedded._free_ports([None] * 3)
    with Proxy(proxied) as proxy:
        settings = {
            "listeners": f"BROKER://{HOST}:{direct},PROXIED://{HOST}:{proxied},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"BROKER://{HOST}:{direct},PROXIED://{HOST}:{proxy.port}",
            "listener.security.protocol.map": "BROKER:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"0@{HOST}:{controller}",
        }
        with EmbeddedKafka(kafka_classpath(), find_java(), port=direct, settings=settings) as kafka:
            yield kafka, proxy
