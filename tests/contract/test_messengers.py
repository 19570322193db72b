"""The contract of messengers: frames of members arrive in order, and all others are dropped."""

from __future__ import annotations

import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import zmq

from kstreams_py.errors import MissingSoftware, SettingsError
from kstreams_py.jobs.identity import ROOT, Given, new_patterns
from kstreams_py.jobs.messengers import http as http_messenger
from kstreams_py.jobs.messengers import registry
from kstreams_py.jobs.messengers.backoff import Backoff
from kstreams_py.jobs.messengers.contract import Messenger, MessengerSettings
from kstreams_py.jobs.messengers.http import HttpMessenger
from kstreams_py.jobs.messengers.inproc import InprocMessenger
from kstreams_py.jobs.messengers.links import Links
from kstreams_py.jobs.messengers.packing import Destination, pack_segments, unpack_segments
from kstreams_py.jobs.messengers.pins import pin_ids
from kstreams_py.jobs.messengers.registry import open_messenger, register_messenger
from kstreams_py.jobs.messengers.zmq import ZmqMessenger
from kstreams_py.jobs.segments import Segments
from tests.signing_in import issue, make_certificates
from tests.waiting import wait_until

KINDS: Final = ("inproc", "zmq", "http")

SECONDS: Final = 60.0

FRAME_MAX: Final = 1 << 18


class Peers:
    """The messengers of a test, each with what it has received."""

    def __init__(self, kind: str) -> None:
        self._kind, self._opened = kind, ExitStack()
        self.received: dict[Messenger, list[tuple[str, bytes]]] = {}
        self.names: dict[Messenger, str] = {}

    def open(self, peer: str, cluster: str = "shop", **settings: Any) -> Messenger:
        made = open_messenger(
            self._kind, MessengerSettings(peer=peer, cluster=cluster, **{"frame_max": FRAME_MAX, **settings})
        )
        made.start()
        self._opened.callback(made.close)
        self.received[made], self.names[made] = [], peer
        return made

    def pair(self, **settings: Any) -> tuple[Messenger, Messenger]:
        """Two peers that are connected."""
        first, second = self.open("a", **settings), self.open("b", **settings)
        self.connect(first, second)
        return first, second

    def connect(self, *messengers: Messenger) -> None:
        """Connects each with all others, and waits until frames go through in each direction."""
        pairs = [(each, other) for each in messengers for other in messengers if each is not other]
        for each, other in pairs:
            each.connect(self.names[other], other.address, other.public_key)
        for each, other in pairs:
            self.send(each, other, b"connected")
            self.wait(other, lambda other=other, name=self.names[each]: (name, b"connected") in self.received[other])  # type: ignore[misc]
        for each in messengers:
            self.received[each].clear()

    def send(self, sender: Messenger, receiver: Messenger, *frames: bytes) -> None:
        """Sends frames, as soon as each is taken."""
        for frame in frames:
            self.wait(receiver, lambda frame=frame: sender.send(self.names[receiver], frame))  # type: ignore[misc]

    def wait(self, receiver: Messenger, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        def turn() -> bool:
            for each in self.received:
                self.received[each] += each.receive()
            if condition():
                return True
            receiver.wait(0.01)
            return False

        wait_until(turn, "the condition of this test", seconds, pause=0)

    def turn(self, seconds: float) -> None:
        """Lets all messengers work for some time."""
        until = time.monotonic() + seconds
        receiver = next(iter(self.received))
        self.wait(receiver, lambda: time.monotonic() >= until)

    def got(self, receiver: Messenger, count: int) -> list[tuple[str, bytes]]:
        """Waits for this many frames; returns all that have come."""
        self.wait(receiver, lambda: len(self.received[receiver]) >= count)
        return self.received[receiver]

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peers(kind: str) -> Iterator[Peers]:
    before = descriptors()
    with closing(Peers(kind)) as found:
        yield found
    assert [each.name for each in threading.enumerate() if each.name == "http messenger"] == []
    assert descriptors() - before == set()


def descriptors() -> set[tuple[str, str]]:
    """The open descriptors of this process, with what they refer to."""
    found = set[tuple[str, str]]()
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # that of the directory
            found.add((each.name, str(each.readlink())))
    return found


def test_frames_of_each_size_up_to_the_limit_arrive_in_order(peers: Peers) -> None:
    first, second = peers.pair()
    sizes = [1, 2, 255, 256, 65_535, 65_536, FRAME_MAX - 1, FRAME_MAX, 1, 3]
    frames = [os.urandom(size) for size in sizes]
    peers.send(first, second, *frames)
    assert peers.got(second, len(frames)) == [("a", frame) for frame in frames]
    peers.send(second, first, b"answer")
    assert peers.got(first, 1) == [("b", b"answer")]
    assert (first.counts.dropped, second.counts.dropped) == (0, 0)


def test_frame_above_the_limit_is_refused_at_the_sender(peers: Peers) -> None:
    first, _ = peers.pair()
    with pytest.raises(ValueError, match=f"a frame has {FRAME_MAX + 1} bytes: the limit of all peers is {FRAME_MAX}"):
        first.send("b", bytes(FRAME_MAX + 1))


def test_frames_of_several_senders_keep_the_order_of_each(peers: Peers) -> None:
    messengers = [peers.open(name) for name in "abc"]
    peers.connect(*messengers)
    *senders, receiver = messengers
    count = 300
    for number in range(count):
        for sender in senders:
            peers.send(sender, receiver, number.to_bytes(2, "big"))
    found = peers.got(receiver, 2 * count)
    in_order = [number.to_bytes(2, "big") for number in range(count)]
    assert {name: [frame for sender, frame in found if sender == name] for name in "ab"} == {
        "a": in_order,
        "b": in_order,
    }


def test_full_receiver_refuses_frames_and_loses_none_after_it_drains(peers: Peers) -> None:
    first, second = peers.pair(queue=4, queue_bytes=1 << 20)
    size, sent, refused = FRAME_MAX, list[bytes](), 0
    while refused < 50 and len(sent) < 200:  # nobody receives; a thread of the messenger may still fill the sockets
        frame = len(sent).to_bytes(2, "big") * (size // 2)
        if first.send("b", frame):
            sent.append(frame)
            refused = 0
        else:
            refused += 1
            time.sleep(0.01)
    # the buffers of the system's sockets have up to 6 MB in each direction
    assert 4 <= len(sent) < 100
    assert peers.got(second, len(sent)) == [("a", frame) for frame in sent]
    peers.send(first, second, b"more")
    assert peers.got(second, len(sent) + 1)[-1] == ("a", b"more")


def test_peer_that_is_away_takes_nothing_and_another_port_is_used_at_once(peers: Peers) -> None:
    first, second = peers.pair(queue=4)
    second.close()
    del peers.received[second]
    peers.wait(first, lambda: not first.send("b", b"lost"))
    again = peers.open("b")
    again.connect("a", first.address, first.public_key)
    first.connect("b", again.address, again.public_key)
    peers.send(first, again, b"here")
    assert ("a", b"here") in peers.got(again, 1)


def test_peer_that_connects_before_it_is_known_is_let_in_once_it_is(peers: Peers) -> None:
    first, second = peers.open("a"), peers.open("b")
    first.connect("b", second.address, second.public_key)
    until = time.monotonic() + 0.3
    peers.wait(second, lambda: (first.send("b", b"early"), time.monotonic() > until)[1])
    assert peers.received[second] == []
    second.connect("a", first.address, first.public_key)
    peers.send(first, second, b"late")
    peers.wait(second, lambda: ("a", b"late") in peers.received[second])


def test_frames_of_a_peer_that_has_left_are_dropped_and_counted(peers: Peers) -> None:
    first, second = peers.pair()
    second.disconnect("a")
    peers.wait(second, lambda: (first.send("b", b"late"), second.counts.strangers)[1])
    assert peers.received[second] == []
    assert not second.send("a", b"nobody")


def test_frames_between_two_clusters_are_dropped(peers: Peers) -> None:
    first, second = peers.pair()
    other = peers.open("b", cluster="bank")
    other.connect("a", first.address, first.public_key)
    stranger = peers.open("c")
    stranger.connect("b", other.address, second.public_key)  # the address of another peer
    until = time.monotonic() + 0.3
    peers.wait(first, lambda: (other.send("a", b"x"), stranger.send("b", b"y"), time.monotonic() > until)[2])
    peers.send(second, first, b"good")
    assert peers.got(first, 1) == [("b", b"good")]
    assert peers.received[other] == []


def test_wake_ends_the_wait_from_another_thread(peers: Peers) -> None:
    messenger = peers.open("a")
    messenger.wake()
    threading.Timer(0.05, messenger.wake).start()
    began = time.monotonic()
    messenger.wait(SECONDS)  # the first wake
    messenger.wait(SECONDS)
    assert time.monotonic() - began < SECONDS / 2
    messenger.wait(0.001)


def test_taken_port_is_named_and_is_free_after_close(peers: Peers) -> None:
    first = peers.open("a")
    port = int(first.address.rsplit(":", 1)[1])
    with pytest.raises(SettingsError, match=f"port {port} is in use: .*choose another one, or 0 for a"):
        peers.open("b", port=port)
    first.close()
    del peers.received[first]
    assert peers.open("b", port=port).address == first.address


@pytest.mark.parametrize("kind", ["zmq", "http"])
def test_address_that_does_not_resolve_is_refused_with_the_remedy(peers: Peers) -> None:
    with pytest.raises(SettingsError, match=r"cannot listen at 'nowhere\.invalid', port 0: .*correct host= or port="):
        peers.open("a", host="nowhere.invalid")
    messenger = peers.open("a", advertised="peer-a.example")
    assert messenger.address.split("//")[1].startswith("peer-a.example:")


def test_address_of_another_messenger_is_refused(peers: Peers) -> None:
    messenger = peers.open("a")
    with pytest.raises(SettingsError, match="start all peers with the same messenger"):
        messenger.connect("b", "carrier pigeon", "")


def address_of(messenger: Messenger) -> tuple[str, int]:
    host, port = messenger.address.split("//")[1].split(":")
    return host, int(port)


RAW: Final = {
    "another protocol": b"GET / HTTP/1.0\r\n\r\n",
    "random bytes": bytes(range(256)) * 8,
    "half a greeting": b"\xff\0\0\0\0\0\0\0\1\x7f\3",
    "nothing": b"",
    "a request without end": b"POST /frames HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n" + bytes(1000),
}


@pytest.mark.parametrize("kind", ["zmq", "http"])
def test_bytes_of_strangers_are_dropped_and_counted_while_good_frames_pass(peers: Peers) -> None:
    first, second = peers.pair()
    for number, data in enumerate(RAW.values(), 1):
        with socket.create_connection(address_of(second), SECONDS) as stranger:
            stranger.sendall(data)
            peers.send(first, second, number.to_bytes(1, "big"))
            peers.got(second, number)
        peers.wait(second, lambda number=number: second.counts.dropped >= number)  # type: ignore[misc]
    assert peers.received[second] == [("a", number.to_bytes(1, "big")) for number in range(1, len(RAW) + 1)]


@pytest.mark.parametrize("kind", ["zmq"])
def test_peers_with_other_keys_or_without_encryption_are_dropped(peers: Peers) -> None:
    first, second = peers.pair()
    stranger = peers.open("a")  # the name of a member, with a key of its own
    stranger.connect("b", second.address, second.public_key)
    peers.wait(second, lambda: second.counts.strangers == 1)
    deceived = peers.open("c")
    deceived.connect("b", second.address, first.public_key)  # the key of another server
    peers.wait(second, lambda: second.counts.garbage >= 1)
    garbage = second.counts.garbage
    deceived.disconnect("b")
    with zmq.Context() as context, context.socket(zmq.PUSH) as plain:
        plain.linger = 0
        plain.connect(second.address)
        plain.send(b"x")
        peers.wait(second, lambda: second.counts.garbage > garbage)
    peers.send(first, second, b"good")
    assert peers.got(second, 1) == [("a", b"good")]


@pytest.mark.parametrize("kind", ["zmq"])
def test_frame_that_is_larger_than_the_receivers_limit_ends_its_connection_alone(peers: Peers) -> None:
    first, second = peers.open("a"), peers.open("b", frame_max=4_096)
    peers.connect(first, second)
    for size in (4_097, 5_000):
        peers.send(first, second, bytes(size))
        peers.turn(0.2)
        peers.send(first, second, b"good")
        peers.wait(second, lambda: ("a", b"good") in peers.received[second])
        assert {*map(len, dict(peers.received[second]).values())} == {4}
        peers.received[second].clear()


def request(messenger: HttpMessenger, body: bytes = b"\0\0\0\1x", path: str = "/frames", **changed: Any) -> int:
    """Sends a request, right but for what is changed; returns the status of the answer."""
    names = "shop", "a", messenger.settings.peer
    digest, length = http_messenger._digest(changed.get("digest", body)), changed.get("length", len(body))
    token = changed.get("token", messenger.token)
    headers = {
        "Kstreams-Peer": changed.get("sender", "a"),
        "Kstreams-Digest": digest,
        "Authorization": f"Kstreams {http_messenger._authorize(token, names, length, digest)}",
    }
    with closing(http.client.HTTPConnection(*address_of(messenger), timeout=SECONDS)) as connection:
        connection.request(changed.get("method", "POST"), path, body, headers)
        return connection.getresponse().status


WRONG: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "another token": ({"token": bytes(32)}, 401),
    "another sender": ({"sender": "c"}, 401),
    "another length": ({"length": 9}, 401),
    "another body": ({"digest": b"other"}, 400),
    "another path": ({"path": "/"}, 404),
    "another method": ({"method": "PUT"}, 405),
    "a frame beyond the body": ({"body": b"\0\0\0\2x"}, 400),
    "half a length": ({"body": b"\0\0"}, 400),
    "too large": ({"body": bytes(5 << 20)}, 413),
    "a frame above the limit": ({"body": (FRAME_MAX + 1).to_bytes(4, "big") + bytes(FRAME_MAX + 1)}, 400),
}


@pytest.mark.parametrize("kind", ["http"])
def test_request_that_is_wrong_in_one_way_is_refused_and_counted(peers: Peers) -> None:
    first, second = peers.pair()
    assert isinstance(second, HttpMessenger)
    for number, (changed, status) in enumerate(WRONG.values(), 1):
        try:
            assert request(second, **changed) == status, changed
        except (ConnectionError, http.client.RemoteDisconnected):
            assert status == 413  # the server closes before it has read the body
        assert second.counts.dropped == number, changed
    assert request(second) == 204
    peers.send(first, second, b"good")
    assert peers.got(second, 2) == [("a", b"x"), ("a", b"good")]


@pytest.mark.parametrize("kind", ["http"])
def test_connections_of_strangers_leave_places_for_members(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_messenger, "SPARE_CONNECTIONS", 2)
    first, second = peers.pair()
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.create_connection(address_of(second), SECONDS)) for _ in range(20)]
        peers.wait(second, lambda: second.counts.garbage >= 16)
        assert idle[0].recv(1) == b""  # it was ended
        peers.send(first, second, b"good")
        assert peers.got(second, 1) == [("a", b"good")]


@pytest.mark.parametrize("kind", ["http"])
def test_http_with_an_authority_lets_only_its_certificates_in(
    peers: Peers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_certificates(tmp_path)
    stranger = issue("127.0.0.1")
    (tmp_path / "stranger.pem").write_text(stranger.key + stranger.certificate)
    files = {name: str(tmp_path / f"{name}.pem") for name in ("server", "stranger", "ca")}
    first, second = peers.pair(certificate=files["server"], authority=files["ca"])
    assert isinstance(second, HttpMessenger)
    assert first.address.startswith("https://")
    plain = peers.open("c")
    for here, there in ((plain, second), (second, plain)):
        with pytest.raises(SettingsError, match="start all peers with --certificate and --authority, or none"):
            here.connect(peers.names[there], there.address, there.public_key)
    with suppress(ConnectionError, http.client.RemoteDisconnected):
        request(second)
    refused = peers.open("d", certificate=files["stranger"], authority=files["ca"])
    deceived = peers.open("e", certificate=files["server"], authority=files["stranger"])
    for each, why in ((refused, "unknown ca"), (deceived, "self-signed")):
        each.connect("b", second.address, second.public_key)
        each.send("b", b"x")
        text = f"peer b at {second.address[8:]} cannot be reached by TLS: .*{why}.*: give each peer a certificate"
        peers.wait(second, lambda text=text: re.search(text, caplog.text))  # type: ignore[misc]
    peers.wait(second, lambda: second.counts.garbage >= 3)
    peers.send(first, second, b"good")
    assert peers.got(second, 1) == [("a", b"good")]


def test_certificate_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot use .*none\.pem: No such file or directory: give files in PEM"):
        HttpMessenger(MessengerSettings(peer="a", cluster="c", certificate=str(tmp_path / "none.pem")))


def test_name_that_is_not_registered_is_refused_and_lists_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", {**registry._factories})
    settings = MessengerSettings(peer="a", cluster="c")
    with pytest.raises(SettingsError) as raised:
        open_messenger("zmk", settings)
    assert str(raised.value) == "no messenger is called 'zmk': did you mean zmq?: there are zmq, http"
    register_messenger("zmk", InprocMessenger)
    assert isinstance(open_messenger("zmk", settings), InprocMessenger)
    with pytest.raises(SettingsError, match="a messenger is called 'zmq' already: choose another name"):
        register_messenger("zmq", ZmqMessenger)


@pytest.mark.parametrize(("name", "extra"), [("zmq", "peers"), ("http", "http,peers")])
def test_messenger_without_its_extra_names_it(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, f"kstreams_py.jobs.messengers.{name}", None)
    with pytest.raises(MissingSoftware) as raised:
        open_messenger(name, MessengerSettings(peer="a", cluster="c"))
    assert str(raised.value).endswith(f"pip install 'kstreams_py[{extra}]'")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peer": ""}, "a peer needs an id"),
        ({"port": 65_536}, "port=65536: give a number from 0 to 65535"),
        ({"queue": 0}, "queue=0"),
        ({"key": "k.pem"}, "need certificate="),
        ({"host": "0.0.0.0"}, "give the name of this machine as advertised="),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MessengerSettings(**{"peer": "a", "cluster": "c", **changed})


class Sender:
    """A peer that packs segments, offers them to its link, and takes those of the other."""

    def __init__(self, name: str, other: str, messenger: Messenger) -> None:
        self.messenger, self.got = messenger, list[int]()
        self.links = Links("shop", name, lambda: 0.5, backoff=Backoff(initial=0.1, longest=0.5))
        self.link = self.links.add(other)

    def offer(self, numbers: range) -> None:
        count = len(numbers)
        ids = pin_ids(os.urandom, count, [1], 1)
        made = Segments(ids, new_patterns(os.urandom, count), [Given(b"")] * count, [ROOT] * count, [*numbers])
        for frame in pack_segments(Destination("job", 1, "parsed", "enrich"), made, FRAME_MAX).frames:
            self.link.offer(frame)

    def turn(self) -> None:
        self.links.take(self.messenger.receive(), time.monotonic())
        for frame in self.link.ready({"job": 1}):
            self.got += unpack_segments(frame).values
            self.link.release("job", "enrich", len(frame))
        self.links.flush(time.monotonic(), self.messenger.send)


def test_links_lose_and_double_nothing_while_a_peer_moves_to_another_port(peers: Peers) -> None:
    first, second = Sender("a", "b", peers.open("a")), Sender("b", "a", peers.open("b"))
    first.messenger.connect("b", second.messenger.address, second.messenger.public_key)
    second.messenger.connect("a", first.messenger.address, first.messenger.public_key)
    count = 6_000
    for side in (first, second):
        side.offer(range(count))

    def turn(until: int) -> bool:
        first.turn()
        second.turn()
        return min(len(first.got), len(second.got)) >= until

    wait_until(lambda: turn(count // 3), "a third of the segments", SECONDS, pause=0)
    second.messenger.close()
    del peers.received[second.messenger]
    wait_until(lambda: not first.messenger.send("b", b"lost"), "the end of the connection", SECONDS, pause=0)
    second.messenger = peers.open("b")
    first.messenger.connect("b", second.messenger.address, second.messenger.public_key)
    second.messenger.connect("a", first.messenger.address, first.messenger.public_key)
    for side in (first, second):
        side.links.add(side.link.other)
    wait_until(lambda: turn(count), "all segments", SECONDS, pause=0)
    assert (first.got, second.got) == ([*range(count)], [*range(count)])
    wait_until(lambda: turn(0) and not first.link.unaccepted, "all answers", SECONDS, pause=0)
