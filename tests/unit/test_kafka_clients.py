"""ports/kafka/clients.py: what no broker does on request; the rest is in tests/contract/."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.errors import Abortable, OutcomeUnknown, Replaced, Retriable
from kstreams_py.ports.kafka import clients
from kstreams_py.ports.kafka.clients import KafkaConsumer, KafkaProducer
from kstreams_py.record import TopicPartition
from tests.unit.fakes import Read

SETTINGS = {"group.id": "g", "group.instance.id": "g.0"}


class Client:
    """A consumer's client: what each `consume` does and returns is told beforehand."""

    def __init__(self, *, member: str = "me") -> None:
        self.answers: list[Callable[[], list[Any]]] = []
        self.member = member
        self.joined = 0

    def subscribe(self, topics: list[str], **callbacks: Callable[[Any, list[Any]], None]) -> None:
        self.on_assign, self.on_revoke = callbacks["on_assign"], callbacks["on_revoke"]
        self.joined += 1

    def consume(self, limit: int, timeout: float) -> list[Any]:
        return self.answers.pop(0)() if self.answers else []

    def memberid(self) -> str:
        return self.member


class Fetched(Read):
    def error(self) -> None:
        return None


def consumer_of(client: Client, monkeypatch: pytest.MonkeyPatch, *, held: str | None = None) -> KafkaConsumer:
    monkeypatch.setattr(clients, "made", lambda *_: client)
    return KafkaConsumer(SETTINGS, 1.0, "earliest", lambda group, seat: held)


@pytest.mark.parametrize("rebalance", ["revoked", "revoked and assigned again", "none"])
def test_record_from_before_a_rebalance_is_not_handed_out(rebalance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client, events = Client(), list[str]()
    consumer = consumer_of(client, monkeypatch)
    consumer.subscribe(
        ["a"],
        lambda partitions: events.append("assigned"),
        lambda: events.append("revoked"),
        lambda: events.append("lost"),
    )
    first, second = Fetched("a", 0), Fetched("a", 1)

    def rebalancing() -> list[Any]:
        if rebalance != "none":
            client.on_revoke(client, [])
        if "assigned" in rebalance:
            client.on_assign(client, [SimpleNamespace(topic="a", partition=0)])
        return [second]

    client.answers = [lambda: [first], rebalancing]
    found = consumer.consume(10, 0.1)
    assert found == ([first, second] if rebalance == "none" else [second])
    assert events == {"none": [], "revoked": ["revoked"]}.get(rebalance, ["revoked", "assigned"])


@pytest.mark.parametrize(
    ("held", "member", "fenced", "outcome"),
    [
        ("me", "me", False, None),
        ("other", "me", False, Replaced),
        ("other", "", True, Replaced),
        ("other", "", False, Retriable),  # it may be our own, which we have not been told yet
        (None, "me", False, Retriable),
        (None, "", True, Retriable),
    ],
)
def test_seat_is_held_lost_or_not_known(
    held: str | None, member: str, fenced: bool, outcome: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(member=member)
    consumer = consumer_of(client, monkeypatch, held=held)
    client.answers = [fencing(consumer, fenced)]
    if outcome is None:
        consumer.hold_seat()
    else:
        with pytest.raises(outcome):
            consumer.hold_seat()


def fencing(consumer: KafkaConsumer, fenced: bool = True) -> Callable[[], list[Any]]:
    """What the client's log tells as it is served."""

    def told() -> list[Any]:
        consumer._log.fenced = fenced
        return []

    return told


def fatal() -> list[Any]:
    raise ck.KafkaException(ck.KafkaError(ck.KafkaError._FATAL))


@pytest.mark.parametrize(
    ("held", "member", "assigned", "times", "outcome"),
    [
        ("other", "me", True, 1, Replaced),
        ("other", "", True, 1, Replaced),
        ("me", "", True, 1, Abortable),  # librdkafka #3437: its session timed out, and it has forgotten its id
        (None, "", True, 1, Abortable),
        ("me", "newer", True, 1, Abortable),  # the coordinator died before it wrote the newer id down
        ("before", "newer", False, 1, Abortable),  # the same, where another process had the seat before
        ("other", "newer", False, 2, Replaced),
    ],
)
def test_fencing_is_replacement_only_if_the_group_says_so(
    held: str | None,
    member: str,
    assigned: bool,
    times: int,
    outcome: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the seat is taken with a new client."""
    client, events = Client(), list[str]()
    consumer = consumer_of(client, monkeypatch, held=held)
    consumer.subscribe(
        ["a"], lambda _: events.append("assigned"), lambda: events.append("revoked"), lambda: events.append("lost")
    )
    if assigned:
        client.on_assign(client, [SimpleNamespace(topic="a", partition=0)])
    client.member = member
    for _ in range(times - 1):
        client.answers = [fatal, fencing(consumer)]
        with pytest.raises(Abortable):
            consumer.consume(1, 0.1)
    client.answers = [fatal, fencing(consumer)]
    with pytest.raises(outcome):
        consumer.consume(1, 0.1)
    joined = times if outcome is Replaced else times + 1
    assert client.joined == joined
    assert events == ["assigned"] * assigned + ["revoked"] * (joined - 1)


def test_seat_is_held_by_a_client_that_has_forgotten_its_member_id(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    consumer = consumer_of(client, monkeypatch, held="me")
    consumer.subscribe(["a"], lambda _: None, lambda: None, lambda: None)
    client.on_assign(client, [])
    client.member = ""
    consumer.hold_seat()


def test_call_that_outlasts_its_own_limit_is_given_up_with_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's send_offsets_to_transaction may wait for a coordinator without end."""
    released = threading.Event()
    stuck = SimpleNamespace(
        send_offsets_to_transaction=lambda *_: released.wait(),
        flush=lambda _: 1,
        purge=lambda **_: None,
    )
    monkeypatch.setattr(clients, "made", lambda *_: stuck)
    monkeypatch.setattr(clients, "CALL_GRACE_SECONDS", 0.05)
    monkeypatch.setattr(KafkaConsumer, "group_metadata", lambda _: None)
    producer, consumer = KafkaProducer({}, 0.05), consumer_of(Client(), monkeypatch)
    with pytest.raises(OutcomeUnknown, match=r"adding positions .*: the client did not return within its own limit of"):
        producer.send_offsets({TopicPartition("a", 0): 1}, consumer)
    producer.drop()
    released.set()


class Queue:
    """A producer's client with records of which each flush sends one; its calls wait until all are sent, or never."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.did: list[str] = []
        self._sent = threading.Event()

    def flush(self, _: float) -> int:
        if self.records:
            self.records -= 1
            self.did.append("sent")
        if not self.records:
            self._sent.set()
        return self.records

    def send_offsets_to_transaction(self, *_: object) -> None:
        assert self._sent.wait(10)
        self.did.append("positions")

    def commit_transaction(self, _: float) -> None:
        self.did.append("commit")


def producer_of(client: object, monkeypatch: pytest.MonkeyPatch, limit: float = 10.0) -> KafkaProducer:
    monkeypatch.setattr(clients, "made", lambda *_: client)
    return KafkaProducer({}, limit)


def test_records_are_sent_while_positions_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    client, consumer = Queue(3), consumer_of(Client(), monkeypatch)
    monkeypatch.setattr(KafkaConsumer, "group_metadata", lambda _: None)
    producer_of(client, monkeypatch).send_offsets({TopicPartition("a", 0): 1}, consumer)
    assert client.did == ["sent", "sent", "sent", "positions"]


def test_commit_waits_until_every_record_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Queue(3)
    producer_of(client, monkeypatch).commit_transaction()
    assert client.did == ["sent", "sent", "sent", "commit"]


@pytest.mark.parametrize("call", [KafkaProducer.commit_transaction, KafkaProducer.flush])
def test_records_that_are_not_acknowledged_in_time_are_an_abort(
    call: Callable[[KafkaProducer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = SimpleNamespace(flush=lambda _: 2)
    with pytest.raises(Abortable, match=r"2 records were not acknowledged within 0\.05 s"):
        call(producer_of(stuck, monkeypatch, 0.05))
