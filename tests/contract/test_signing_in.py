"""Each way to sign in, with each client that asks a broker: a cell of test_cluster.py for each, and what is refused."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from kstreams_py.errors import BrokerUnavailable, KStreamsError, Retriable
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.cluster_admin import ClusterAdmin
from kstreams_py.kafka.contracts import Cluster
from kstreams_py.kafka.groups import GroupOffsets
from kstreams_py.kafka.transaction_admin import TransactionAdmin
from kstreams_py.records import TopicPartition
from kstreams_py.settings import ClientSettings, Settings
from tests.contract.rig import KafkaRig, output, poll_until_held
from tests.signing_in import WAYS, Listeners, jwt
from tests.waiting import wait_until

LIMIT_MS = 6_000


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def settings_of(
    listeners: Listeners, way: str, changed: Mapping[str, str | None] | None = None, servers: str = ""
) -> Settings:
    address, kafka = listeners.clients[way]
    merged = {**kafka, **(changed or {})}
    found = ClientSettings({name: value for name, value in merged.items() if value is not None})
    return Settings(bootstrap_servers=servers or address, kafka=found, request_timeout_ms=LIMIT_MS)


def test_each_client_signs_in_each_way(listeners: Listeners, way: str) -> None:
    """A worker's consumer, producer, reader and admin client, and what kafka-python asks."""
    rig = KafkaRig(listeners.open_servers, listeners.clients[way])
    with contextlib.closing(rig):
        topic = rig.topic()
        tp = TopicPartition(topic, 0)
        member = rig.member(group := rig.name(), "member", topic)
        poll_until_held((member, tp))
        producer = rig.producer("writer")
        producer.begin_transaction()
        producer.write([output(topic, b"a")])
        producer.send_offsets({tp: 7}, member.consumer)
        producer.flush()
        (open_now,) = rig.cluster.open_transactions(tp)
        pending = rig.cluster.pending(group, [tp])
        assert (open_now.transactional_id, pending.partitions) == ("writer", (tp,))
        producer.commit_transaction()
        assert rig.committed(topic) == [(0, 0, b"a")]
        wait_until(lambda: rig.cluster.group_offsets(group, [tp]) == GroupOffsets({tp: 7}), "the offset is stable")
        assert rig.cluster.leave(member.consumer)
        settings = settings_of(listeners, way)
        assert GroupAdmin(settings).describe([group])[group].members == ()
        described = ClusterAdmin(settings).describe([topic])
        assert ([*described.topics], TransactionAdmin(settings).partitions([topic])) == ([topic], {topic: 1})


def refusal(cluster: Cluster, groups: GroupAdmin) -> dict[str, tuple[bool | None, str]]:
    """Whether each client takes it for an outage, and why it signs in to nothing; "kafka-python" says no reason."""
    found: dict[str, tuple[bool | None, str]] = {}
    asked: dict[str, Callable[[], object]] = {
        "confluent-kafka": lambda: cluster.topics(["in"]),
        "kafka-python": lambda: groups.describe(["g"]),
    }
    for name, ask in asked.items():
        try:
            ask()
        except KStreamsError as error:
            found[name] = (getattr(error, "may_return", None), str(error))
    return found


@pytest.mark.parametrize(
    ("way", "changed", "words"),
    [
        ("PLAIN", {"sasl.password": "s3cr3t"}, "Invalid username or password"),
        pytest.param(
            "PLAIN", {"sasl.mechanism": "SCRAM-SHA-512"}, "Unsupported SASL mechanism", marks=pytest.mark.long
        ),
        pytest.param(
            "SCRAM over TLS", {"sasl.password": "s3cr3t"}, "due to invalid credentials", marks=pytest.mark.long
        ),
        pytest.param("SCRAM over TLS", {"ssl.ca.location": None}, "certificate verify failed", marks=pytest.mark.long),
        pytest.param("OIDC", {"sasl.oauthbearer.client.secret": "no"}, "invalid_client", marks=pytest.mark.long),
        pytest.param("OIDC", {"sasl.oauthbearer.scope": "no"}, "invalid_client", marks=pytest.mark.long),
        pytest.param("a callback", {"oauth_cb": "callbacks:forged"}, "invalid_token", marks=pytest.mark.long),
    ],
)
def test_credentials_that_are_refused_are_no_outage_and_do_not_show(
    listeners: Listeners,
    way: str,
    changed: Mapping[str, str | None],
    words: str,
    callbacks: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing but a person corrects them."""
    settings = settings_of(listeners, way, changed)
    with contextlib.closing(KafkaCluster(settings)) as cluster:
        found = refusal(cluster, GroupAdmin(settings))
    assert found.keys() == {"confluent-kafka", "kafka-python"}
    may_return, text = found["confluent-kafka"]
    assert (may_return, "refuses the credentials" in text, words in text) == (False, True, True)
    shown = [text, found["kafka-python"][1], *caplog.messages]
    assert [each for each in shown if "s3cr3t" in each or callbacks.FORGED in each] == []


SASL_HANDSHAKE = (17).to_bytes(2, "big")
"""The API key of the request that names the mechanism; nothing before it is encrypted or signed in."""


class Cutting(socketserver.BaseRequestHandler):
    """Forwards requests, but closes the connection at its handshake, as a broker that is stopped does."""

    port: ClassVar[int]

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as broker:
            while (request := self.request.recv(65_536)) and request[4:6] != SASL_HANDSHAKE:
                broker.sendall(request)
                self.request.sendall(broker.recv(65_536))


def test_connection_lost_while_it_signs_in_is_an_outage(listeners: Listeners) -> None:
    """A worker that took it for refused credentials would end for good in the restart of a broker."""
    Cutting.port = int(listeners.clients["PLAIN"][0].rpartition(":")[2])
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Cutting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = settings_of(listeners, "PLAIN", servers=f"127.0.0.1:{server.server_address[1]}")
        with contextlib.closing(KafkaCluster(settings)) as cluster:
            found = refusal(cluster, GroupAdmin(settings))
        server.shutdown()
    assert {name: may_return for name, (may_return, _) in found.items()} == {
        "confluent-kafka": True,
        "kafka-python": True,
    }


@pytest.fixture
def callbacks() -> Iterator[Any]:
    """A module with callbacks."""
    module: Any = types.ModuleType("callbacks")
    module.FORGED = "ey.forged.token"
    module.forged = lambda _: (module.FORGED, jwt()[1])
    sys.modules["callbacks"] = module
    yield module
    del sys.modules["callbacks"]


@pytest.mark.long  # librdkafka asks again after 10 s; the quick tier has its parts in tests/unit/test_credentials.py
def test_callback_that_raises_while_a_worker_runs_is_waited_for(listeners: Listeners, callbacks: Any) -> None:
    """A member joins and reads, loses its tokens with its client, and goes on once there are some."""
    seen: list[str] = []
    callbacks.is_sealed = False

    def token(_: str) -> tuple[str, float]:
        seen.append("sealed" if callbacks.is_sealed else "given")
        if callbacks.is_sealed:
            raise RuntimeError("the vault is sealed")
        return jwt(10)

    callbacks.token = token
    servers, kafka = listeners.clients["a callback"]
    rig = KafkaRig(listeners.open_servers, (servers, {**kafka, "oauth_cb": "callbacks:token"}))
    with contextlib.closing(rig):
        topic = rig.topic()
        member = rig.member(rig.name(), "member", topic)
        poll_until_held((member, TopicPartition(topic, 0)))
        callbacks.is_sealed = True
        wait_until(lambda: seen.count("sealed") >= 2 and not _has_token(rig), "its token has expired", pause=0.1)
        with pytest.raises(Retriable, match="provides no token: RuntimeError: the vault is sealed"):
            rig.cluster.consumer("another", "member")
        with pytest.raises(Retriable, match="the vault is sealed"):
            member.consumer.rejoin()
        member.consumer.consume(1, 0.1)
        callbacks.is_sealed = False
        member.consumer.rejoin()
        rig.append(topic, b"a")
        wait_until(lambda: member.poll().rows == [(0, 0, b"a")], "it reads on", pause=0.05)


def _has_token(rig: KafkaRig) -> bool:
    try:
        rig.cluster.group_offsets("g", [])
    except BrokerUnavailable:
        return False
    return True
