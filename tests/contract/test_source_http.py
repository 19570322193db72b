"""Requests over HTTP as a source. It is not among the media of the contract suite: nobody keeps its inputs.

What is given back, or was under way at a death, is read again only if its client sends it again.
"""

from __future__ import annotations

import http.client
import json
import pickle
import re
import socket
import sqlite3
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import kstreams_py as ks
from kstreams_py import sinks, sources
from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.graph.source import Claim
from kstreams_py.jobs import inputs, job
from kstreams_py.jobs.environment import JobEnvironment
from kstreams_py.sources import http_requests, http_server
from kstreams_py.sources.http_server import RequestsConnection
from tests.signing_in import make_certificates
from tests.waiting import wait_until

READER: Final = "shop:orders"

JSON: Final = {"Content-Type": "application/json"}

CLIENT_SECONDS: Final = 30.0

ANOTHER: Final = http_requests.ANOTHER_BODY.reason

DONE: Final = (200, {"status": "done"}, None)


class Answered(NamedTuple):
    code: int
    told: Any
    retry_after: str | None


class Shop:
    """Sources that are open, and clients that wait for their answers."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._pool = self._opened.enter_context(ThreadPoolExecutor(32))

    def open(self, *, begin: bool = True, **options: Any) -> RequestsConnection:
        found = sources.HTTP(**{"port": 0, **options}).open(READER)
        assert isinstance(found, RequestsConnection)
        self._opened.enter_context(closing(found))
        if begin:
            found.read(0, alone=True)  # lets clients in
        return found

    def send(self, to: RequestsConnection, body: Any, key: str | None = None, **options: Any) -> Future[Answered]:
        return self._pool.submit(send, to.url, json.dumps(body).encode(), key, **options)

    def close(self) -> None:
        self._opened.close()


@pytest.fixture
def shop() -> Iterator[Shop]:
    with closing(Shop()) as found:
        yield found
    assert "http source" not in [each.name for each in threading.enumerate()]


def open_socket(url: str) -> socket.socket:
    host, port = url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), CLIENT_SECONDS)


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.split("/")[2], timeout=CLIENT_SECONDS)


def send(
    url: str, body: bytes, key: str | None = None, method: str = "POST", path: str | None = None, **headers: str
) -> Answered:
    """Sends a request, and returns its answer. `path`: in place of that of the URL. `headers`: with _ for -."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    named |= {} if key is None else {"Idempotency-Key": key}
    with closing(connect(url)) as connection:
        connection.request(method, path or f"/{url.split('/', 3)[3]}", body, {**JSON, **named})
        answer = connection.getresponse()
        text = answer.read()
        return Answered(answer.status, json.loads(text) if text else None, answer.headers["Retry-After"])


def take(connection: RequestsConnection, count: int = 1) -> list[Claim]:
    """Reads inputs, as many as there must be."""
    claims = list[Claim]()

    def has_all() -> bool:
        claims.extend(connection.read(count - len(claims), alone=True))
        return len(claims) == count

    wait_until(has_all, f"{count} inputs", CLIENT_SECONDS, pause=0.001)
    return claims


ENDS: dict[str, tuple[Answered, Callable[[RequestsConnection, list[Claim]], object]]] = {
    "acknowledged": (Answered(*DONE), lambda source, claims: source.ack(claims)),
    "refused": (
        Answered(422, {"status": "refused", "reason": "parse: ValueError: <b>\n\u202e"}, None),
        lambda source, claims: source.refuse([(each, "parse: ValueError: <b>\n\u202e") for each in claims]),
    ),
    "given back": (
        Answered(503, {"status": "not done", "reason": http_requests.STOPPED.reason}, "1"),
        lambda source, claims: source.give_back(claims, failed=True),
    ),
    "closed": (
        Answered(503, {"status": "not done", "reason": http_requests.STOPPED.reason}, "1"),
        lambda source, _: source.close(),
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_request_is_answered_when_its_input_has_an_end(shop: Shop, end: str) -> None:
    expected, settle = ENDS[end]
    source = shop.open()
    sent = shop.send(source, {"id": 1})
    (claim,) = take(source)
    assert (claim.value, claim.attempts, source.read(9, alone=True), sent.done()) == ({"id": 1}, 0, [], False)
    settle(source, [claim])
    assert sent.result() == expected
    source.ack([claim])  # late, and ignored


def test_reason_of_a_refusal_can_be_hidden_and_is_cut(shop: Shop) -> None:
    hiding, showing = shop.open(show_reasons=False), shop.open()
    sent = [shop.send(each, 1) for each in (hiding, showing)]
    for each in (hiding, showing):
        each.refuse([(claim, "secret" * 1_000) for claim in take(each)])
    assert [each.result().told["reason"] for each in sent] == [
        "the log of the run has the reason",
        ("secret" * 167)[:1_000],
    ]


def test_request_without_an_end_is_answered_at_its_deadline_and_its_retry_at_its_end(shop: Shop) -> None:
    source = shop.open(deadline=0.2)
    sent = shop.send(source, 1, "k")
    (claim,) = take(source)
    assert sent.result() == (504, {"status": "under way", "reason": http_requests.LATE.reason}, None)
    source.ack([claim])
    assert shop.send(source, 1, "k").result() == DONE
    assert source.read(9, alone=True) == []


NO_INPUTS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "another path": (404, "no source has this path", {"path": "/more"}),
    "GET": (405, "send it with POST", {"method": "GET"}),
    "no JSON": (400, "these bytes are not JSON in UTF-8: Expecting value: line 1 column 1 (char 0)", {"body": b""}),
    "NaN": (400, "these bytes are not JSON in UTF-8: NaN is not a JSON number", {"body": b"NaN"}),
    "too deep": (400, "these bytes are not JSON in UTF-8: maximum recursion depth", {"body": b"[" * 100_000}),
    "a key with a blank": (400, "the Idempotency-Key is not 1 to 255 visible ASCII characters", {"key": "a b"}),
    "a long key": (400, "the Idempotency-Key is not 1 to 255 visible ASCII characters", {"key": "k" * 256}),
    "an encoded body": (415, "send the body without a Content-Encoding", {"Content_Encoding": "gzip"}),
    "a large body": (413, "the body has more than 200000 bytes", {"body": b"1" * 200_001}),
    "a web page": (403, "a page in a browser sent it: the source needs a token= for that", {"Origin": "http://a.b"}),
    "a foreign host": (421, "the host is neither localhost nor an IP address", {"Host": "evil.example"}),
}


@pytest.mark.parametrize("case", NO_INPUTS)
def test_request_that_is_no_input_is_refused_with_the_reason(shop: Shop, case: str) -> None:
    code, reason, request = NO_INPUTS[case]
    source = shop.open(body_max=200_000)
    answer = send(source.url, **{"body": b"1", **request})
    assert (answer.code, answer.told["status"], answer.retry_after) == (code, "invalid", None)
    assert answer.told["reason"].startswith(reason)
    assert send(source.url, b"1", method="HEAD").code == 405
    assert source.read(9, alone=True) == []


def test_source_with_a_token_takes_only_requests_that_have_it(shop: Shop) -> None:
    source = shop.open(token="s3cret")
    for wrong in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}, {"Authorization": "Bearer \xff"}):
        assert send(source.url, b"1", **wrong).code == 401
    sent = shop.send(source, 1, Authorization="bearer s3cret", Origin="http://shop.example", Host="shop.example")
    source.ack(take(source))
    assert sent.result() == DONE
    declared = sources.HTTP(port=1, token="s3cret")
    assert "s3cret" not in f"{declared} {declared!r}"
    assert pickle.loads(pickle.dumps(declared)) == declared


def test_value_is_the_json_of_the_body_or_its_bytes_or_the_whole_request(shop: Shop) -> None:
    plain, whole = shop.open(), shop.open(request=True)
    sent = [
        shop.send(plain, [1], Content_Type="application/vnd.shop+json; charset=utf-8"),
        shop.send(plain, [1], Content_Type="text/plain"),
        shop.send(whole, [1], path="/?a=1&b", Authorization="Basic c2VjcmV0", X_Shop="2"),
    ]
    values = sorted([claim.value for claim in take(plain, 2)], key=str)
    (claim,) = take(whole)
    assert values == [[1], b"[1]"]
    kept = {name: claim.value.headers.get(name) for name in ("x-shop", "content-type", "authorization")}
    assert (claim.value.body, claim.value.query) == ([1], "a=1&b")
    assert ("x-shop", kept["x-shop"].encode()) in claim.headers
    assert "authorization" not in dict(claim.headers)
    assert kept == {"x-shop": "2", "content-type": "application/json", "authorization": None}
    for source in (plain, whole):
        source.close()
    assert {each.result().code for each in sent} == {503}


def test_requests_with_one_key_are_one_input_with_one_answer(shop: Shop) -> None:
    source, other = shop.open(), shop.open()
    sent = [shop.send(source, {"id": 1}, "k") for _ in range(3)]
    (claim,) = take(source)
    assert shop.send(source, {"id": 2}, "k").result() == (422, {"status": "invalid", "reason": ANOTHER}, None)
    wait_until(lambda: len(claim.token.waiting) == 3, "all three wait", CLIENT_SECONDS)
    source.refuse([(claim, "no")])
    sent.append(shop.send(source, {"id": 1}, "k"))
    assert [each.result() for each in sent] == [(422, {"status": "refused", "reason": "no"}, None)] * 4
    assert shop.send(source, {"id": 2}, "k").result().told["reason"] == ANOTHER
    assert source.read(9, alone=True) == []
    same, others = shop.send(other, {"id": 1}, "k"), [shop.send(other, {"id": 1}) for _ in range(2)]
    claims = take(other, 3)
    assert [each.key for each in claims].count(claim.key) == 1, "its origin is the same in any process"
    assert len({each.key for each in claims}) == 3
    names = sorted(inputs.show_key(other, each) for each in claims)
    assert (names[-1], [bool(re.fullmatch("[0-9a-f]{32}", each)) for each in names[:-1]]) == ("k", [True, True])
    other.ack(claims)
    assert [each.result() for each in (same, *others)] == [DONE] * 3


def test_input_that_was_given_back_is_taken_again(shop: Shop) -> None:
    source, keys = shop.open(), list[object]()
    for code, end in ((503, source.give_back), (200, lambda claims, failed: source.ack(claims))):
        sent = shop.send(source, 1, "k")
        (claim,) = take(source)
        keys.append(claim.key)
        end([claim], failed=True)
        assert sent.result().code == code
    assert keys[0] == keys[1]


def test_only_the_last_ends_are_remembered(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "ENDED_MAX", 2)
    source = shop.open()
    for key in "abc":
        sent = shop.send(source, 1, key)
        source.ack(take(source))
        assert sent.result() == DONE
    assert [shop.send(source, 1, key).result() for key in "cb"] == [DONE, DONE]
    sent = shop.send(source, 1, "a")
    source.ack(take(source))
    assert sent.result() == DONE


def test_client_that_hangs_up_ends_its_wait_and_not_its_input(shop: Shop) -> None:
    source = shop.open()
    with closing(connect(source.url)) as connection:
        connection.request("POST", "/", b"1", {**JSON, "Idempotency-Key": "k"})
        (claim,) = take(source)
        assert len(claim.token.waiting) == 1
    wait_until(lambda: not claim.token.waiting, "nobody waits", CLIENT_SECONDS)
    retried = shop.send(source, 1, "k")
    wait_until(lambda: claim.token.waiting, "the retry waits", CLIENT_SECONDS)
    source.ack([claim])
    assert (retried.result(), source.read(9, alone=True)) == (DONE, [])


def test_no_more_requests_wait_than_the_limit(shop: Shop) -> None:
    source = shop.open(max_pending=2)
    sent = [shop.send(source, 1, key) for key in "ab"]
    claims = take(source, 2)
    busy = (503, {"status": "not done", "reason": http_requests.BUSY.reason}, "1")
    assert [shop.send(source, 1, key).result() for key in ("c", None)] == [busy, busy]
    sent.append(shop.send(source, 1, "a"))
    wait_until(lambda: sum(len(each.token.waiting) for each in claims) == 3, "the copy waits too", CLIENT_SECONDS)
    source.ack(claims)
    assert [each.result() for each in sent] == [DONE] * 3
    sent = [shop.send(source, 1)]
    source.ack(take(source))
    assert sent[0].result() == DONE


def test_bodies_hold_no_more_bytes_than_the_limit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "BYTES_MAX", 250)
    source = shop.open(body_max=100)
    for _ in range(2):
        sent = [shop.send(source, "x" * 90) for _ in range(2)]
        claims = take(source, 2)
        assert shop.send(source, "x" * 90).result().told["reason"] == http_requests.BUSY.reason
        source.ack(claims)
        assert [each.result() for each in sent] == [DONE] * 2
    with closing(connect(source.url)) as connection:  # a body that is never whole
        connection.request("POST", "/", b"x" * 80, {"Content-Length": "100"})
        wait_until(lambda: source._path.inputs.held == 80, "it is read", CLIENT_SECONDS)
    wait_until(lambda: source._path.inputs.held == 0, "it is dropped", CLIENT_SECONDS)
    sent = [shop.send(source, "x" * 90) for _ in range(2)]
    source.ack(take(source, 2))
    assert [each.result() for each in sent] == [DONE] * 2


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", f"Content-Length: {1 << 30}"])
def test_body_of_a_gigabyte_is_refused_before_it_is_read(shop: Shop, head: str) -> None:
    source, sent = shop.open(), 0
    block = b"x" * (1 << 16)
    with open_socket(source.url) as client:
        client.sendall(f"POST / HTTP/1.1\r\n{head}\r\n\r\n".encode())
        try:
            while sent < 1 << 30:
                client.sendall(b"%x\r\n%b\r\n" % (len(block), block) if "chunked" in head else block)
                sent += len(block)
        except OSError:  # the server has closed the connection
            pass
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 413 Request Entity Too Large\r\n")
    assert sent < 64 << 20, "what the server did not read is in the buffers of the sockets"
    assert source.read(9, alone=True) == []


@pytest.mark.parametrize(("line", "code"), [("POST / X: 11", 413), ("POST /more X: 1", 404), ("POST / X: 1", 100)])
def test_client_that_expects_a_refusal_is_answered_before_its_body(shop: Shop, line: str, code: int) -> None:
    source = shop.open(body_max=10)
    head = line.replace("X", "HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length")
    with open_socket(source.url) as client:
        client.sendall(f"{head}\r\n\r\n".encode())
        assert client.recv(1 << 16).startswith(f"HTTP/1.1 {code} ".encode())


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HT", b"POST / HTTP/1.1\r\n" + b"X: y\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1"]
)
def test_slow_client_is_ended_and_others_are_answered(shop: Shop, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    source = shop.open()
    with open_socket(source.url) as slow:
        slow.sendall(sent)
        answered = shop.send(source, 1)
        source.ack(take(source))
        assert answered.result() == DONE
        assert slow.recv(100) == b""


def test_head_beyond_the_limit_ends_its_connection(shop: Shop) -> None:
    source = shop.open()
    with open_socket(source.url) as client:
        client.sendall(b"POST / HTTP/1.1\r\nX: " + b"x" * (2 * http_server.HEAD_MAX))
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_idle_connections_end_for_new_ones_and_those_that_wait_do_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SPARE_CONNECTIONS", 2)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 2 * CLIENT_SECONDS)
    source = shop.open(max_pending=1)
    sent = shop.send(source, 1)
    claims = take(source)
    with ExitStack() as opened:
        clients = [opened.enter_context(open_socket(source.url)) for _ in range(50)]
        assert [each.recv(100) for each in clients[:48]] == [b""] * 48
        assert send(source.url, b"1", method="GET").code == 405
        source.ack(claims)
        assert sent.result() == DONE


def test_port_has_several_paths_and_is_free_after_the_last(shop: Shop) -> None:
    orders = shop.open(path="/orders", begin=False)
    port = int(orders.url.split(":")[2].split("/")[0])
    sent = [shop.send(orders, "orders"), shop.send(orders, "payments", path="/payments")]
    with pytest.raises(TimeoutError):  # not yet a path that nobody has
        sent[1].result(0.1)
    payments = shop.open(path="/payments", port=port)
    for each in (orders, payments):
        (claim,) = take(each)
        assert claim.value == each.url.rpartition("/")[2]
        each.ack([claim])
    assert [each.result() for each in sent] == [DONE, DONE]
    with pytest.raises(SettingsError, match=r"/orders: another source has this path: give each a path= of its own"):
        shop.open(path="/orders", port=port)
    orders.close()
    assert send(orders.url, b"1").code == 503, "its client sends it again"
    assert send(orders.url, b"1", path="/more").code == 404
    payments.close()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SettingsError) as refused:
        shop.open(port=port)
    assert str(refused.value) == (
        f"http://127.0.0.1:{port}/: port {port} is in use: end the program that uses it, or choose another port; "
        "a graph with this source runs with one worker (--workers 1)"
    )
    shop.open(port=port)


def test_close_answers_all_who_wait_at_once_and_ends_all_connections(shop: Shop) -> None:
    source = shop.open()
    sent = [shop.send(source, each) for each in range(10)]
    take(source, 5)
    wait_until(lambda: len(source._path.inputs) == 10, "all wait", CLIENT_SECONDS)
    with closing(connect(source.url)) as idle:
        idle.connect()
        began = time.monotonic()
        source.close()
        assert time.monotonic() - began < http_server.END_SECONDS
        assert [each.result().code for each in sent] == [503] * 10
        assert idle.sock.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        send(source.url, b"1")


def test_requests_over_tls_are_taken(shop: Shop, tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    source = shop.open(certificate=made.path("server.pem"))
    context = ssl.create_default_context(cafile=made.path("ca.pem"))
    address = source.url.split("/")[2]
    with closing(http.client.HTTPSConnection(address, timeout=CLIENT_SECONDS, context=context)) as client:
        client.request("POST", "/", b"1", JSON)
        source.ack(take(source))
        assert (source.url[:8], client.getresponse().status) == ("https://", 200)
    (tmp_path / "locked.key").write_text(made.server.encrypted_key("s3cret"), encoding="utf-8")
    with pytest.raises(
        SettingsError, match=r"locked\.key: .*: give files in PEM format, with a key without a password"
    ):
        shop.open(certificate=made.path("server.pem"), key=made.path("locked.key"))


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "port": ("port=65536: give a number from 0 to 65535", {"port": 65536}),
    "path": ("path='orders': give a path that begins with /", {"path": "orders"}),
    "query": ("path='/a?b': give a path that begins with /", {"path": "/a?b"}),
    "host without a token": ("host='0.0.0.0': others can send inputs there: give token=", {"host": "0.0.0.0"}),
    "token": ("token: give visible ASCII characters, and at least one", {"token": ""}),
    "max_pending": ("max_pending=0: give a number above 0", {"max_pending": 0}),
    "body_max": ("body_max=-1: give a number above 0", {"body_max": -1}),
    "deadline": ("deadline=inf: give seconds above 0", {"deadline": float("inf")}),
    "key alone": ("key='a.key': give its certificate= as well", {"key": "a.key"}),
    "no certificate": ("cannot use nowhere.pem: No such file or directory: give", {"certificate": "nowhere.pem"}),
    "no PEM": (f"cannot use {__file__}: [SSL] PEM lib", {"certificate": __file__}),
    "no host": ("cannot listen on port 0 of nowhere.invalid: ", {"host": "nowhere.invalid", "token": "x"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_source_that_is_not_possible_is_refused_with_the_remedy(shop: Shop, case: str) -> None:
    told, options = WRONG[case]
    with pytest.raises(SettingsError) as refused:
        shop.open(**options)
    assert told in str(refused.value)


def test_source_without_tornado_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kstreams_py.sources.http_server", None)
    with pytest.raises(MissingSoftware, match=r"pip install 'kstreams_py\[http\]'"):
        sources.HTTP(port=0).open(READER)


def test_job_is_woken_by_a_request_and_stores_it_before_its_answer(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "IDLE", (2 * CLIENT_SECONDS, 2 * CLIENT_SECONDS))
    monkeypatch.setattr(inputs, "IDLE_FIRST", 2 * CLIENT_SECONDS)
    graph, opened = ks.Graph("shop"), list[Any]()
    stored = sinks.SQLite(tmp_path / "shop.db", table="stored", columns={"id": int})
    graph.sink(graph.source("orders", sources.HTTP(port=0)), to=stored, id="store")(lambda value: (value["id"],))

    def open_source(channel: Any, reader: str) -> Any:
        opened.append(channel.source.open(reader))
        return opened[-1]

    running = job.Job("shop", graph.tasks, JobEnvironment(open_source))
    stopped = threading.Event()
    thread = threading.Thread(target=running.run, args=(stopped.is_set,))
    thread.start()
    try:
        for each in range(3):
            assert shop.send(opened[0], {"id": each}).result() == DONE
            assert read_rows(tmp_path / "shop.db") == [(number,) for number in range(each + 1)]
        refused = shop.send(opened[0], {"number": 1}).result()
        assert refused == (422, {"status": "refused", "reason": "store: KeyError: 'id'"}, None)
    finally:
        stopped.set()
        running._woken.set()
        thread.join()
    assert read_rows(tmp_path / "shop.db") == [(0,), (1,), (2,)]


def read_rows(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT id FROM stored ORDER BY id").fetchall()
