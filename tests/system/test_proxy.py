"""tests/system/proxy.py: frames pass unchanged and in order, except those that a rule applies to."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.system.harness import wait_until
from tests.system.proxy import HOST, Fate, Proxy

PRODUCE, END_TXN = 0, 26


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(key: int, correlation: int, client: str = "c", content: bytes = b"") -> bytes:
    """The body of a request: header (key, version 1, correlation id, client id) and content."""
    return struct.pack(">hhih", key, 1, correlation, len(client)) + client.encode() + content


class EchoBroker:
    """Answers each request in order with its correlation id and content, except those that end in `no answer`."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.listener = socket.create_server((HOST, 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        try:
            while True:
                threading.Thread(target=self._serve, args=self.listener.accept()[:1], daemon=True).start()
        except OSError:
            self.listener.close()

    def _serve(self, end: socket.socket) -> None:
        with end, end.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                body = stream.read(*struct.unpack(">i", head))
                self.received.append(body)
                if not body.endswith(b"no answer"):
                    end.sendall(framed(body[4:8] + body))


class Client:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.end = socket.create_connection((HOST, proxy.port), 30)
        self.stream = self.end.makefile("rb")

    def send(self, *bodies: bytes) -> None:
        self.end.sendall(b"".join(map(framed, bodies)))

    def answer(self) -> bytes | None:
        """The request that the next response answers; None at the end of the stream."""
        head = self.stream.read(4)
        return self.stream.read(*struct.unpack(">i", head))[4:] if head else None

    def close(self) -> None:
        self.stream.close()
        self.end.close()


@pytest.fixture
def broker() -> Iterator[EchoBroker]:
    echo = EchoBroker()
    yield echo
    with contextlib.suppress(OSError):
        echo.listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(broker: EchoBroker) -> Iterator[Proxy]:
    with Proxy(broker.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    connection = Client(proxy)
    yield connection
    connection.close()


def test_proxy_passes_frames_unchanged_and_remembers_them(proxy: Proxy, broker: EchoBroker, client: Client) -> None:
    bodies = [request(PRODUCE, 7, "p", b"x" * 300_000), request(END_TXN, 8, "p", b"\x01"), request(999, 9, "")]
    for byte in framed(bodies[1]):  # byte by byte, as TCP may split a stream anywhere
        client.end.sendall(bytes([byte]))
    client.send(bodies[0], bodies[2])
    assert [client.answer() for _ in bodies] == [bodies[1], bodies[0], bodies[2]]
    assert broker.received == [bodies[1], bodies[0], bodies[2]]
    asked = [f for f in proxy.seen if f.side == "request"]
    assert [(f.api, f.version, f.correlation, f.client, f.connection, f.fate) for f in asked] == [
        ("EndTxn", 1, 8, "p", 0, Fate.PASSED),
        ("Produce", 1, 7, "p", 0, Fate.PASSED),
        ("999", 1, 9, "", 0, Fate.PASSED),
    ]
    assert [f.api for f in proxy.seen if f.side == "response"] == ["EndTxn", "Produce", "999"]
    assert [f.body for f in proxy.requests("EndTxn", "p")] == [bodies[1]]


def test_proxy_held_request_keeps_back_those_behind_it_until_released(
    proxy: Proxy, broker: EchoBroker, client: Client
) -> None:
    other = Client(proxy)
    rule = proxy.hold("EndTxn", client="c", nth=2)
    first, held, behind = request(END_TXN, 1), request(END_TXN, 2), request(PRODUCE, 3)
    client.send(first, held, behind)
    assert client.answer() == first
    wait_until(lambda: rule.caught, "the second is caught")
    other.send(request(END_TXN, 4, "other"))
    assert other.answer() == request(END_TXN, 4, "other")
    other.close()
    assert broker.received == [first, request(END_TXN, 4, "other")]
    rule.release()
    assert [client.answer(), client.answer()] == [held, behind]
    assert [(f.correlation, f.fate) for f in rule.caught] == [(2, Fate.HELD)]
    assert [f.body[4:] for f in rule.answers] == [held]


def test_proxy_held_request_reaches_the_broker_after_its_client_has_disconnected(
    proxy: Proxy, broker: EchoBroker
) -> None:
    rule = proxy.hold("EndTxn")
    client = Client(proxy)
    client.send(request(END_TXN, 1))
    wait_until(lambda: rule.caught, "the rule has caught the frame")
    client.close()
    rule.release()
    wait_until(lambda: rule.answers, "the broker has answered")
    assert broker.received == [request(END_TXN, 1)]


def test_proxy_delayed_response_arrives_without_a_release(proxy: Proxy, client: Client) -> None:
    rule = proxy.delay("EndTxn", 0.05, side="response")
    client.send(request(END_TXN, 1), request(PRODUCE, 2))
    assert [client.answer(), client.answer()] == [request(END_TXN, 1), request(PRODUCE, 2)]
    assert [f.fate for f in rule.caught] == [Fate.HELD]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("side", ["request", "response"])
def test_proxy_lost_frame_ends_its_connection(
    side: str, silent: bool, proxy: Proxy, broker: EchoBroker, client: Client
) -> None:
    rule = proxy.drop("EndTxn", side="request" if side == "request" else "response", silent=silent)
    client.send(request(PRODUCE, 1))
    assert client.answer() == request(PRODUCE, 1)
    client.send(request(END_TXN, 2))
    wait_until(lambda: rule.caught, "the rule has caught the frame")
    if silent:  # the proxy forwards nothing more, and closes nothing
        client.send(request(PRODUCE, 3))
        client.end.shutdown(socket.SHUT_WR)
    assert client.answer() is None
    reached = [request(PRODUCE, 1), request(END_TXN, 2), request(PRODUCE, 3)]
    assert broker.received[:2] == reached[: 1 if side == "request" else 2]
    client.close()
    again = Client(proxy)
    again.send(request(END_TXN, 4))
    assert again.answer() == request(END_TXN, 4)
    again.close()


def test_proxy_loses_all_until_the_rule_is_lifted(proxy: Proxy, broker: EchoBroker) -> None:
    rule = proxy.drop("EndTxn", times=None)
    for correlation in (1, 2, 3):
        if correlation == 3:
            rule.lift()
        client = Client(proxy)
        client.send(request(END_TXN, correlation))
        assert client.answer() == (request(END_TXN, 3) if correlation == 3 else None)
        client.close()
    assert broker.received == [request(END_TXN, 3)]
    assert [f.correlation for f in rule.caught] == [1, 2]


def test_proxy_doubled_request_has_one_answer(proxy: Proxy, broker: EchoBroker, client: Client) -> None:
    rule = proxy.double("EndTxn")
    client.send(request(END_TXN, 1), request(PRODUCE, 2))
    assert [client.answer(), client.answer()] == [request(END_TXN, 1), request(PRODUCE, 2)]
    assert broker.received == [request(END_TXN, 1), request(END_TXN, 1), request(PRODUCE, 2)]
    assert len(rule.answers) == 2


def test_proxy_doubled_response_arrives_twice(proxy: Proxy, client: Client) -> None:
    proxy.double("EndTxn", side="response")
    client.send(request(END_TXN, 1), request(PRODUCE, 2))
    assert [client.answer() for _ in range(3)] == [request(END_TXN, 1), request(END_TXN, 1), request(PRODUCE, 2)]


def test_proxy_matches_later_responses_after_a_request_without_an_answer(
    proxy: Proxy, broker: EchoBroker, client: Client
) -> None:
    unanswered = request(PRODUCE, 1, content=b"no answer")
    client.send(unanswered, request(END_TXN, 2))
    assert client.answer() == request(END_TXN, 2)
    assert broker.received == [unanswered, request(END_TXN, 2)]
    assert [f.api for f in proxy.seen if f.side == "response"] == ["EndTxn"]


def test_proxy_closes_a_new_connection_when_the_broker_is_down(
    proxy: Proxy, broker: EchoBroker, client: Client
) -> None:
    client.send(request(PRODUCE, 1))
    assert client.answer() == request(PRODUCE, 1)
    broker.listener.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: broker.listener.fileno() == -1, "the broker has stopped listening")
    another = Client(proxy)
    assert another.answer() is None
    another.close()
