"""ports/kafka/consumer.py and producer.py on the mock cluster: under answers that no real broker gives on request."""

from __future__ import annotations

from contextlib import suppress

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.delivery import PROMISES, Durability, Guarantee, Output
from kstreams_py.errors import OutcomeUnknown, Retriable
from kstreams_py.ports.kafka import KafkaLog
from kstreams_py.ports.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer
from kstreams_py.ports.kafka.producer import KafkaProducer
from kstreams_py.record import TopicPartition
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import read, wait_until, write

E = ck.KafkaError

PARTITION = TopicPartition("a", 0)


def log_of(mock: MockCluster, **kafka: object) -> KafkaLog:
    """The log on the mock cluster; librdkafka's settings are named with underscores."""
    named = {name.replace("_", "."): value for name, value in kafka.items()}
    return KafkaLog(Settings(bootstrap_servers=mock.bootstrap_servers, request_timeout_ms=10_000, kafka=named))


def joined(mock: MockCluster) -> KafkaConsumer:
    """The member of a group with partition 0 of topic a, which it reads from the start."""
    consumer = log_of(mock).consumer("group", "group.0", commits=True)
    assigned: list[set[TopicPartition]] = []

    def assign(partitions: set[TopicPartition]) -> None:
        assigned.append(partitions)
        consumer.assign(dict.fromkeys(partitions, 0))

    consumer.subscribe(["a"], assign, lambda: None, lambda: None)
    wait_until(lambda: consumer.consume(1, 0.05) or assigned, "the consumer is assigned")
    assert assigned == [{PARTITION}]
    return consumer


def outputs(numbers: range, topic: str = "a") -> list[Output]:
    return [(topic, b"%d" % number, None, 0, None, None, 0, None) for number in numbers]


@pytest.mark.parametrize("times", [1, 5])
def test_commit_that_fails_as_retriable_drops_no_record_that_was_fetched(times: int, mock: MockCluster) -> None:
    """The client asks twice more by itself: three answers are one failed commit."""
    mock.create("a")
    consumer = joined(mock)
    write(mock, "a", [b"%d" % i for i in range(20)])
    mock.track()
    wait_until(lambda: len(mock.requests(Api.Fetch)) > 20, "all batches are fetched: the broker sends one at a time")
    values: list[bytes | None] = []

    def read_on(limit: int) -> list[bytes | None]:
        found = [m.value() for m in consumer.consume(limit, 0.1)]
        values.extend(found)
        return found

    for _ in range(times):
        wait_until(lambda: read_on(1), "a record is read")
        mock.answer(Api.OffsetCommit, *[E.COORDINATOR_LOAD_IN_PROGRESS] * 3)
        with pytest.raises(Retriable):
            consumer.commit({PARTITION: len(values)})
    wait_until(lambda: read_on(100) and values[-1] == b"19", "all is read")
    assert values == [b"%d" % i for i in range(20)]
    consumer.commit({PARTITION: 20})
    assert consumer.committed([PARTITION]) == {PARTITION: 20}
    consumer.close()


def test_coordinator_that_has_gone_is_given_up_and_a_new_producer_finds_its_successor() -> None:
    """Nine times of ten the client waits for the broker that it has once found: ten seconds, its limit, would pass."""
    given_up: list[str] = []
    for _ in range(5):
        with MockCluster(brokers=2) as mock:
            given_up += offsets_sent_to_a_coordinator_that_has_gone(mock)
        if given_up:
            break
    assert [f"its own limit of {PATIENCE_SECONDS:g} s" in error for error in given_up] == [True]


def offsets_sent_to_a_coordinator_that_has_gone(mock: MockCluster) -> list[str]:
    """The error of the producer that had found it; none if it was not connecting again, and asked for the successor."""
    mock.create("a")
    mock.set_coordinator("group", "group", 2)
    mock.set_coordinator("transaction", "id", 1)
    consumer, log = joined(mock), log_of(mock)

    def started() -> KafkaProducer:
        producer = log.producer(PROMISES[Guarantee.EXACTLY_ONCE], Durability.COMMITTED, "id")
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    first = started()
    first.send_offsets({PARTITION: 1}, consumer)
    first.commit_transaction()
    mock.set_down(2)
    mock.set_coordinator("group", "group", 1)
    first.begin_transaction()
    errors: list[str] = []
    try:
        first.send_offsets({PARTITION: 2}, consumer)
        first.commit_transaction()
    except OutcomeUnknown as error:
        errors.append(str(error))
    first.drop()
    second = started()
    second.send_offsets({PARTITION: 2}, consumer)
    second.commit_transaction()
    second.drop()
    consumer.close()
    return errors


@pytest.mark.parametrize("moves", [False, True])
def test_at_least_once_with_durability_leader_keeps_the_order_when_a_batch_is_refused_once(
    moves: bool, mock: MockCluster
) -> None:
    """If the partition moves, the client learns of its new leader before the old one refuses what is on its way.

    With durability none nobody sees the refusal, so that the mock cluster cannot show an order broken there.
    """
    mock.create("a", leader=1)
    mock.create("b", leader=2)
    log = log_of(mock, batch_num_messages=3)
    producer = log.producer(PROMISES[Guarantee.AT_LEAST_ONCE], Durability.LEADER, "id")
    producer.write(outputs(range(3)) + outputs(range(1), "b"))
    producer.flush()  # it is connected to both brokers
    mock.track()
    mock.answer_from(1, Api.Produce, (E.NOT_LEADER_FOR_PARTITION, 3_000))
    producer.write(outputs(range(3, 6)))
    wait_until(lambda: producer._poll(0.01) or mock.requests(Api.Produce), "a batch is on its way")
    if moves:
        mock.set_leader("a", 0, 2)
        wait_until(lambda: leader_of_a(producer) == 2, "the client knows the new leader")
    producer.write(outputs(range(6, 400)))
    producer.flush()
    producer.drop()
    assert [int(value or b"") for value in read(mock, "a")] == list(range(400))


def test_order_that_is_not_kept_with_durability_leader_is_seen(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: a batch is sent while the one before it may still fail, as max.in.flight=1 alone has it."""
    monkeypatch.setattr(KafkaProducer, "_acknowledge", lambda self: None)
    with pytest.raises(AssertionError):
        test_at_least_once_with_durability_leader_keeps_the_order_when_a_batch_is_refused_once(False, mock)


def leader_of_a(producer: KafkaProducer) -> int:
    """As the client knows it; -1 where the broker that it asks does not answer yet."""
    with suppress(ck.KafkaException):
        return producer._producer.list_topics("a", 0.2).topics["a"].partitions[0].leader
    return -1
