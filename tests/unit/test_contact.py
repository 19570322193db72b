"""kafka/contact.py: what says early, and once, why no broker answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kstreams_py.errors import BrokerUnavailable
from kstreams_py.kafka import contact
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contact import contacting
from kstreams_py.settings import Settings
from tests import waiting
from tests.clusters import open_cluster

LIMIT = 15.0


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker has answered yet, and no test waits as long as a command does."""
    monkeypatch.setattr(contact, "_answered", set())
    monkeypatch.setattr(contact, "_said", {})
    monkeypatch.setattr(contact, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(contact, "SOON_SECONDS", contact.CONNECT_SECONDS)


@pytest.fixture
def closed() -> str:
    """The address of a port that nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers, as a frozen broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def wait_for(caplog: pytest.LogCaptureFixture, address: str, *, count: int = 1) -> list[str]:
    """Makes a request that no broker answers, until the log has `count` lines; returns them."""
    with contacting(address, LIMIT):
        waiting.wait_until(lambda: len(caplog.records) >= count, "the reason is logged", 10.0, pause=0.01)
        return [f"{r.levelname} {r.getMessage()}" for r in caplog.records]


def test_reason_of_a_request_without_an_answer_is_logged_while_it_waits(
    caplog: pytest.LogCaptureFixture, closed: str
) -> None:
    assert wait_for(caplog, closed) == [
        f"WARNING waiting for a Kafka broker at {closed}, for up to 15 s: Connection refused"
    ]


def test_each_of_several_addresses_has_its_reason(
    caplog: pytest.LogCaptureFixture, closed: str, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that does not resolve, a refused connection, a frozen broker, and no number where a port should be."""

    def look_up(host: str, *rest: object, known: Callable[..., object] = socket.getaddrinfo) -> object:
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *rest)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    address = f"nowhere.invalid, PLAINTEXT://{closed},{silent},127.0.0.1:port"
    (line,) = wait_for(caplog, address)
    prefix = f"WARNING waiting for a Kafka broker at {address}, for up to 15 s: "
    assert line.removeprefix(prefix).split("; ") == [
        "nowhere.invalid: Name or service not known",
        f"PLAINTEXT://{closed}: Connection refused",
        f"{silent}: it takes connections, and answers no request yet",
        "127.0.0.1:port: Port could not be cast to integer value as 'port'",
    ]


def test_address_to_which_no_connection_is_made_is_said_to_be_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing answers behind a firewall, and a look-up of a name may take longer than the time for all addresses."""
    done = threading.Event()
    monkeypatch.setattr(contact, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(socket, "create_connection", lambda *_: done.wait(LIMIT) and socket.socket())
    try:
        (line,) = wait_for(caplog, "kafka:9092")
    finally:
        done.set()
    assert line.endswith("for up to 15 s: no connection within 0.1 s")


def await_watchers() -> None:
    """Waits until all that look for reasons have ended."""
    waiting.wait_until(
        lambda: not any(each.name == "first contact" for each in threading.enumerate()), "they have ended", 10.0
    )


def test_reason_is_logged_once_however_many_requests_wait(caplog: pytest.LogCaptureFixture, closed: str) -> None:
    with suppress(BrokerUnavailable), contacting(closed, LIMIT), contacting(closed, LIMIT):
        await_watchers()
        raise BrokerUnavailable("no answer")
    with contacting(closed, LIMIT):
        await_watchers()
    assert caplog.messages == [f"waiting for a Kafka broker at {closed}, for up to 15 s: Connection refused"]


def test_reason_is_not_looked_for_after_an_answer_or_within_a_short_limit(
    monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(contact, "reasons", looked.append)
    with contacting("short", contact.SOON_SECONDS):
        await_watchers()
    monkeypatch.setattr(contact, "LOOK_SECONDS", LIMIT)
    with contacting(closed, LIMIT):
        pass
    monkeypatch.setattr(contact, "LOOK_SECONDS", 0.0)
    with contacting(closed, LIMIT):
        await_watchers()
    assert looked == []


def test_answer_while_the_reason_is_looked_for_logs_nothing(
    caplog: pytest.LogCaptureFixture, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, answered, looked = threading.Event(), threading.Event(), threading.Event()

    def look(_: str) -> str:
        looking.set()
        answered.wait(LIMIT)
        looked.set()
        return "refused"

    monkeypatch.setattr(contact, "reasons", look)
    with contacting(closed, LIMIT):
        assert looking.wait(LIMIT)
    answered.set()
    assert looked.wait(LIMIT)
    await_watchers()
    assert caplog.messages == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda settings: open_cluster(settings).topics(["orders"]),
        lambda settings: GroupAdmin(settings).members("shop.price"),
    ],
    ids=["librdkafka", "kafka-python"],
)
def test_clients_of_both_kinds_say_the_same_early_and_at_the_end(
    caplog: pytest.LogCaptureFixture, closed: str, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Settings], object]
) -> None:
    monkeypatch.setattr(contact, "SOON_SECONDS", 0.5)
    with pytest.raises(BrokerUnavailable) as raised:
        ask(
            Settings(bootstrap_servers=closed, request_timeout_ms=4_000)
        )  # a busy machine needs more than one for a reason
    assert [r.getMessage() for r in caplog.records if r.name.startswith("kstreams_py")] == [
        f"waiting for a Kafka broker at {closed}, for up to 4 s: Connection refused"
    ]
    assert str(raised.value) == (
        f"no Kafka broker answers at {closed} (Connection refused): start one (`kstreams broker start`), or correct "
        "--bootstrap-servers / KSTREAMS_BOOTSTRAP_SERVERS"
    )


def test_broker_that_takes_connections_or_has_answered_is_told_with_the_details(closed: str, silent: str) -> None:
    with contacting(closed, 1.0):
        pass  # it has answered
    for address in (closed, silent, f"127.0.0.1:1,{silent}"):
        assert contact.no_answer(address, "newest error: none") == (
            f"no Kafka broker answers at {address}: start one (`kstreams broker start`), correct --bootstrap-servers / "
            "KSTREAMS_BOOTSTRAP_SERVERS, or, if it wants credentials, set security.protocol and sasl.* under [kafka] "
            "or in KSTREAMS_KAFKA__*; newest error: none"
        )
