"""kafka/consumer.py and producer.py on the mock cluster: answers that a real broker does not give on request."""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import suppress
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py import Settings
from kstreams_py.errors import BrokerUnavailable, OutcomeUnknown, Refused, Retriable
from kstreams_py.graph.guarantees import Durability, Guarantee
from kstreams_py.kafka.cluster import KafkaCluster
from kstreams_py.kafka.consumer import PATIENCE_SECONDS, KafkaConsumer
from kstreams_py.kafka.contracts import Output, ProducerMode
from kstreams_py.kafka.producer import KafkaProducer
from kstreams_py.processing.commits.guarantees import producer_mode
from kstreams_py.records import TopicPartition
from kstreams_py.settings import ClientSettings
from tests import waiting
from tests.clusters import open_cluster
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import BOUND, read, wait_until, write

E = ck.KafkaError

PARTITION = TopicPartition("a", 0)


def open_mock(mock: MockCluster, **kafka: object) -> KafkaCluster:
    """Creates the product's clients of the mock cluster; settings of librdkafka are named with underscores."""
    named = {name.replace("_", "."): value for name, value in kafka.items()}
    return open_cluster(
        Settings(bootstrap_servers=mock.bootstrap_servers, request_timeout_ms=10_000, kafka=ClientSettings(named))
    )


def join_group(mock: MockCluster) -> KafkaConsumer:
    """Creates a member of a group and waits until it is assigned partition 0 of topic a, read from the start."""
    consumer = open_mock(mock, fetch_wait_max_ms=50).consumer("group", "group.0", commits=True)
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


def test_commit_that_fails_as_retriable_drops_no_record_that_was_fetched(mock: MockCluster) -> None:
    """The client itself retries twice, so that three error answers make one failed commit."""
    mock.create("a")
    consumer = join_group(mock)
    write(mock, "a", [b"%d" % i for i in range(20)])
    mock.track()
    enough = "all batches are fetched: the broker sends one per Fetch"
    waiting.wait_until(lambda: len(mock.requests(Api.Fetch)) > 20, enough, BOUND, pause=0.05)
    values: list[bytes | None] = []

    def read_on(limit: int) -> list[bytes | None]:
        found = [m.value() for m in consumer.consume(limit, 0.1)]
        values.extend(found)
        return found

    for _ in range(3):
        wait_until(lambda: read_on(1), "a record is read")
        mock.answer(Api.OffsetCommit, *[E.COORDINATOR_LOAD_IN_PROGRESS] * 3)
        with pytest.raises(Retriable):
            consumer.commit({PARTITION: len(values)})
    wait_until(lambda: read_on(100) and values[-1] == b"19", "all is read")
    assert values == [b"%d" % i for i in range(20)]
    consumer.commit({PARTITION: 20})
    assert consumer.committed([PARTITION]) == {PARTITION: 20}
    consumer.close()


def test_unreachable_coordinator_is_given_up_and_a_new_producer_finds_the_next_one() -> None:
    """In nine of ten cases the client waits for its old coordinator: for ever, and so in a process of its own."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    answers = forks.Queue()
    process = forks.Process(target=give_up_coordinator, args=(answers,))
    process.start()
    try:
        given_up = answers.get(timeout=4 * BOUND)
    finally:
        process.kill()
        process.join()
    assert [f"its own limit of {PATIENCE_SECONDS:g} s" in error for error in given_up] == [True]


def give_up_coordinator(answers: Any) -> None:
    """Puts the error of the first producer that its client made to wait; none if five did not wait."""
    given_up: list[str] = []
    for _ in range(5):
        with MockCluster(brokers=2) as mock:
            given_up += send_offsets_to_unreachable_coordinator(mock)
        if given_up:
            break
    answers.put(given_up)


def send_offsets_to_unreachable_coordinator(mock: MockCluster) -> list[str]:
    """Returns the error of the first producer; none in the case where its client asks for the new coordinator."""
    mock.create("a")
    mock.set_coordinator("group", "group", 2)
    mock.set_coordinator("transaction", "id", 1)
    consumer, kafka = join_group(mock), open_mock(mock)

    def start_producer() -> KafkaProducer:
        producer = kafka.producer(producer_mode(Guarantee.EXACTLY_ONCE, Durability.COMMITTED), "id")
        producer.init_transactions()
        producer.begin_transaction()
        return producer

    first = start_producer()
    consumer.patience = 30.0
    first.send_offsets({PARTITION: 1}, consumer)
    first.commit_transaction()
    mock.set_down(2)
    mock.set_coordinator("group", "group", 1)
    first.begin_transaction()
    errors: list[str] = []
    consumer.patience = PATIENCE_SECONDS
    try:
        first.send_offsets({PARTITION: 2}, consumer)
        first.commit_transaction()
    except OutcomeUnknown as error:
        errors.append(str(error))
    first.drop()
    second = start_producer()
    consumer.patience = 30.0
    second.send_offsets({PARTITION: 2}, consumer)
    second.commit_transaction()
    second.drop()
    consumer.close()
    return errors


@pytest.mark.parametrize("moves", [False, True])
def test_at_least_once_durability_leader_keeps_the_order_past_a_refused_batch(moves: bool, mock: MockCluster) -> None:
    """If the partition moves, the client learns of the new leader before the old one refuses the batch in flight.

    With durability none the client gets no refusal, so that the mock cluster cannot break the order there.
    """
    mock.create("a", leader=1)
    mock.create("b", leader=2)
    kafka = open_mock(mock, batch_num_messages=3)
    producer = kafka.producer(producer_mode(Guarantee.AT_LEAST_ONCE, Durability.LEADER), "id")
    producer.write(outputs(range(3)) + outputs(range(1), "b"))
    producer.flush()  # connects to both brokers
    mock.track()
    mock.answer_from(1, Api.Produce, (E.NOT_LEADER_FOR_PARTITION, 3_000))
    producer.write(outputs(range(3, 6)))

    def is_in_flight() -> bool:
        producer._poll(0.01)
        return len(mock.requests(Api.Produce)) > 0

    wait_until(is_in_flight, "a batch is in flight")
    if moves:
        mock.set_leader("a", 0, 2)
        wait_until(lambda: find_leader_of_a(producer) == 2, "the client knows the new leader")
    producer.write(outputs(range(6, 400)))
    producer.flush()
    producer.drop()
    assert [int(value or b"") for value in read(mock, "a")] == list(range(400))


def test_mutation_that_breaks_the_order_with_durability_leader_is_detected(
    mock: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation sends a batch while the one before it may still fail, as max.in.flight=1 alone does."""
    monkeypatch.setattr(KafkaProducer, "_acknowledge", lambda self: None)
    with pytest.raises(AssertionError):
        test_at_least_once_durability_leader_keeps_the_order_past_a_refused_batch(False, mock)


def find_leader_of_a(producer: KafkaProducer) -> int:
    """The leader in the client's metadata; -1 while the broker does not answer."""
    with suppress(ck.KafkaException):
        return int(producer._producer.list_topics("a", 0.2).topics["a"].partitions[0].leader)
    return -1


def test_partition_is_read_in_pages_each_from_its_start_to_its_limit(mock: MockCluster) -> None:
    mock.create("a")
    write(mock, "a", [b"%d" % number for number in range(10)])
    cluster, tp = open_mock(mock), TopicPartition("a", 0)
    try:
        pages = [
            [int(m.value() or b"") for m in cluster.read(tp, start, limit)]
            for start, limit in ((0, 3), (3, 3), (3, 1), (9, 3), (10, 3), (0, None))
        ]
    finally:
        cluster.close()
    assert pages == [[0, 1, 2], [3, 4, 5], [3], [9], [], list(range(10))]


def test_ends_while_all_brokers_are_down_are_refused_as_without_an_answer(mock: MockCluster) -> None:
    """The client itself calls the partitions unknown."""
    mock.create("a")
    kafka = open_mock(mock)
    assert kafka.ends([PARTITION]) == {PARTITION: 0}
    for broker in (1, 2):
        mock.set_down(broker)
    with pytest.raises(BrokerUnavailable, match="no Kafka broker answers at"):
        kafka.ends([PARTITION])
    for broker in (1, 2):
        mock.set_up(broker)

    def are_known() -> bool:
        with suppress(BrokerUnavailable):  # until the client has connected again
            return kafka.ends([PARTITION]) == {PARTITION: 0}
        return False

    wait_until(are_known, "the ends are known again")
    kafka.close()


@pytest.mark.parametrize("durability", [Durability.COMMITTED, Durability.LEADER])
def test_dropped_producer_that_writes_nothing_again_knows_the_topics_of_what_is_lost(
    durability: Durability, mock: MockCluster
) -> None:
    """Records of an unknown topic count as lost outputs and as lost dead letters."""
    mock.create("a", leader=1)
    mock.create("b", leader=2)
    producer = open_mock(mock, batch_num_messages=3).producer(producer_mode(Guarantee.AT_MOST_ONCE, durability), "id")
    producer.write(outputs(range(3)) + outputs(range(1), "b"))
    producer.flush()  # connects to both brokers
    mock.track()
    for broker in (1, 2):
        mock.answer_from(broker, Api.Produce, (0, 3_000))
    producer.write(outputs(range(3, 6)))

    def is_in_flight() -> bool:
        producer._poll(0.01)
        return len(mock.requests(Api.Produce)) > 0

    wait_until(is_in_flight, "a batch is in flight")
    producer._queue(outputs(range(6, 400)) + outputs(range(1, 200), "b"))
    producer.drop()
    assert +producer.lost == {"a": 397, "b": 199}


@pytest.mark.parametrize("mode", [producer_mode(g, Durability.COMMITTED) for g in Guarantee], ids=[*Guarantee])
def test_exception_that_is_kept_keeps_no_client_that_was_dropped(mock: MockCluster, mode: ProducerMode) -> None:
    mock.create("a")
    producer = open_mock(mock, message_max_bytes=2_000).producer(mode, "p")
    if mode.transactional:
        producer.init_transactions()
        producer.begin_transaction()
    with pytest.raises(Refused) as kept:
        producer.write([("a", b"x" * 3_000, None, 0, None, None, 0, None)])
    producer.drop()
    gc.collect()
    assert kept.value.__traceback__ is not None
    assert not [each for each in gc.get_objects() if type(each) is ck.Producer]
