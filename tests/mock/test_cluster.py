"""Checks the table in cluster.py, which describes the mock cluster, with plain clients."""

from __future__ import annotations

import time
from collections import Counter

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import member, outcome, read, settings_of, wait_until, write

E = ck.KafkaError


def test_records_are_written_and_read_back(mock: MockCluster) -> None:
    mock.create("a")
    producer = ck.Producer(settings_of(mock))
    producer.produce("a", b"value", b"key", headers=[("h", b"1")], timestamp=1_000)
    assert producer.flush(10) == 0
    consumer = member(mock, "a")
    found: list[ck.Message] = []

    def is_read() -> bool:
        found.extend(consumer.consume(1, 0.1))
        return found != []

    wait_until(is_read, "the record is read")
    (m,) = found
    assert (m.partition(), m.offset(), m.value(), m.key()) == (0, 0, b"value", b"key")
    assert (m.headers(), m.timestamp()) == ([("h", b"1")], (ck.TIMESTAMP_CREATE_TIME, 1_000))
    consumer.close()


def test_pushed_answers_are_used_once_and_in_order(mock: MockCluster) -> None:
    mock.create("a")
    mock.track()
    mock.answer(Api.Produce, E.POLICY_VIOLATION, 0, E.INVALID_TIMESTAMP)
    assert [write(mock, "a", [b"%d" % i]) for i in range(4)] == [
        ["POLICY_VIOLATION"],
        ["ok"],
        ["INVALID_TIMESTAMP"],
        ["ok"],
    ]
    assert [r.broker for r in mock.requests(Api.Produce)] == [1, 1, 1, 1]
    assert read(mock, "a") == [b"1", b"3"]


def test_answer_is_always_given_until_it_is_cleared(mock: MockCluster) -> None:
    mock.create("a")
    mock.answer_always(Api.Produce, E.POLICY_VIOLATION)
    assert [write(mock, "a", [b"%d" % i]) for i in range(3)] == [["POLICY_VIOLATION"]] * 3
    mock.clear(Api.Produce)
    assert write(mock, "a", [b"3"]) == ["ok"]
    mock.answer_always(Api.Produce, E.POLICY_VIOLATION)
    mock.clear()
    assert write(mock, "a", [b"4"]) == ["ok"]


def test_connection_is_closed_for_a_transport_error(mock: MockCluster) -> None:
    mock.create("a")
    mock.answer(Api.Produce, E._TRANSPORT)
    assert write(mock, "a", [b"0"], {"retries": 0}) == ["_TRANSPORT"]


def test_answer_of_one_broker_is_delayed(mock: MockCluster) -> None:
    mock.create("a", leader=1)
    mock.create("b", leader=2)
    mock.answer_from(1, Api.Produce, (0, 600), (E.POLICY_VIOLATION, 0))
    assert [write(mock, "b", [b"0"]) for _ in range(2)] == [["ok"], ["ok"]]
    before = time.monotonic()
    assert write(mock, "a", [b"0"]) == ["ok"]
    assert time.monotonic() - before > 0.6
    assert write(mock, "a", [b"1"]) == ["POLICY_VIOLATION"]


def test_every_answer_of_a_broker_is_delayed(mock: MockCluster) -> None:
    mock.create("a")
    mock.set_delay(1, 300)
    before = time.monotonic()
    write(mock, "a", [b"0"])
    assert time.monotonic() - before > 0.3


def test_answer_for_one_partition_leaves_the_others(mock: MockCluster) -> None:
    mock.create("a", partitions=2)
    # a missing right would do for all of the topic: librdkafka sends no more to it
    mock.answer_partition("a", 1, Api.Produce, E.POLICY_VIOLATION)
    codes: dict[int | None, int | None] = {}

    def report(error: ck.KafkaError | None, message: ck.Message) -> None:
        codes[message.partition()] = None if error is None else error.code()

    producer = ck.Producer(settings_of(mock))
    for partition in range(2):
        producer.produce("a", b"", partition=partition, on_delivery=report)
    assert producer.flush(10) == 0
    assert codes == {0: None, 1: E.POLICY_VIOLATION}


def test_partition_moves_to_another_leader_or_to_none(mock: MockCluster) -> None:
    mock.create("a")
    mock.track()
    assert write(mock, "a", [b"0"]) == ["ok"]
    mock.set_leader("a", 0, 2)
    assert write(mock, "a", [b"1"]) == ["ok"]
    assert [r.broker for r in mock.requests(Api.Produce)] == [1, 2]
    mock.set_leader("a", 0, -1)
    assert write(mock, "a", [b"2"], {"message.timeout.ms": 500}) == ["_MSG_TIMED_OUT"]


def test_broker_that_is_down_takes_nothing_until_it_is_up(mock: MockCluster) -> None:
    mock.create("a")
    mock.set_down(1)
    assert write(mock, "a", [b"0"], {"message.timeout.ms": 500}) == ["_MSG_TIMED_OUT"]
    mock.set_up(1)
    assert write(mock, "a", [b"1"]) == ["ok"]
    assert read(mock, "a") == [b"1"]


def test_hidden_broker_is_not_in_the_metadata_and_leads_nothing(mock: MockCluster) -> None:
    mock.create("a")
    mock.hide(1)
    metadata = ck.Producer(settings_of(mock)).list_topics("a", 10)
    assert (sorted(metadata.brokers), metadata.topics["a"].partitions[0].leader) == ([2], 2)


def test_error_of_a_topic_is_in_its_metadata(mock: MockCluster) -> None:
    mock.create("a")
    producer = ck.Producer(settings_of(mock))
    mock.set_topic_error("a", E.TOPIC_AUTHORIZATION_FAILED)
    assert producer.list_topics("a", 10).topics["a"].error.code() == E.TOPIC_AUTHORIZATION_FAILED
    mock.set_topic_error("a", 0)
    assert producer.list_topics("a", 10).topics["a"].error is None


def test_coordinator_is_the_broker_that_was_set(mock: MockCluster) -> None:
    mock.create("a")
    mock.set_coordinator("group", "group", 2)
    mock.set_coordinator("transaction", "id", 1)
    mock.track()
    consumer = member(mock, "a")
    wait_until(lambda: consumer.consume(1, 0.05) or consumer.assignment(), "the group has a member")
    producer = ck.Producer(settings_of(mock, {"transactional.id": "id"}))
    producer.init_transactions(60)
    brokers = {r.api: r.broker for r in mock.requests(Api.JoinGroup, Api.SyncGroup, Api.InitProducerId)}
    assert brokers == {Api.JoinGroup: 2, Api.SyncGroup: 2, Api.InitProducerId: 1}
    consumer.close()


def test_requests_are_kept_in_order_with_their_times(mock: MockCluster) -> None:
    mock.create("a")
    write(mock, "a", [b"0"])
    before = time.monotonic()
    mock.track()
    write(mock, "a", [b"1"])
    kept = mock.requests()
    assert Counter(r.api for r in kept)[Api.Produce] == 1
    times = [before, *(r.at for r in kept), time.monotonic()]
    assert times == sorted(times)
    mock.track()
    assert mock.requests() == []


def test_committed_offsets_are_stored_and_members_checked(mock: MockCluster) -> None:
    mock.create("a")
    write(mock, "a", [b"0", b"1"])
    consumer = member(mock, "a")
    wait_until(lambda: consumer.consume(1, 0.1), "a record is read")
    consumer.commit(offsets=[ck.TopicPartition("a", 0, 1)], asynchronous=False)
    assert [p.offset for p in consumer.committed([ck.TopicPartition("a", 0)], 10)] == [1]
    stranger = ck.Consumer(settings_of(mock, {"group.id": "group"}))
    positions = [ck.TopicPartition("a", 0, 2)]
    assert outcome(lambda: stranger.commit(offsets=positions, asynchronous=False)) == "UNKNOWN_MEMBER_ID"
    consumer.close()


def test_list_offsets_answers_ends_but_no_times(mock: MockCluster) -> None:
    mock.create("a")
    write(mock, "a", [b"0", b"1"])
    consumer = ck.Consumer(settings_of(mock, {"group.id": "group"}))
    assert consumer.get_watermark_offsets(ck.TopicPartition("a", 0), 10) == (0, 2)
    (found,) = consumer.offsets_for_times([ck.TopicPartition("a", 0, 1)], 10)
    assert found.offset == ck.OFFSET_END


def test_transactions_are_answered_but_hide_nothing_and_store_no_offsets(mock: MockCluster) -> None:
    mock.create("a", "b")
    write(mock, "a", [b"0"])
    consumer = member(mock, "a")
    wait_until(lambda: consumer.consume(1, 0.1), "a record is read")
    first, second = (ck.Producer(settings_of(mock, {"transactional.id": "id"})) for _ in range(2))
    first.init_transactions(60)
    first.begin_transaction()
    first.produce("b", b"open")
    assert first.flush(10) == 0
    assert read(mock, "b", {"isolation.level": "read_committed"}) == [b"open"]
    first.send_offsets_to_transaction([ck.TopicPartition("a", 0, 1)], consumer.consumer_group_metadata(), 60)
    first.commit_transaction(60)
    assert [p.offset for p in consumer.committed([ck.TopicPartition("a", 0)], 10)] == [ck.OFFSET_INVALID]
    first.begin_transaction()
    first.produce("b", b"aborted")
    assert first.flush(10) == 0
    first.abort_transaction(60)
    second.init_transactions(60)
    first.begin_transaction()
    first.produce("b", b"of a fenced one")
    first.commit_transaction(60)
    assert read(mock, "b", {"isolation.level": "read_committed"}) == [b"open", b"aborted", b"of a fenced one"]
    consumer.close()


@pytest.mark.parametrize("transactional", [True, False])
def test_sequence_numbers_are_checked_for_transactional_producers_only(transactional: bool, mock: MockCluster) -> None:
    """An answer after the client's time-out makes the client send the batch again."""
    mock.create("a")
    settings: dict[str, object] = {"enable.idempotence": True, "socket.timeout.ms": 1_000}
    if transactional:
        settings |= {"transactional.id": "id", "transaction.timeout.ms": 10_000}
    producer = ck.Producer(settings_of(mock, settings))
    if transactional:
        producer.init_transactions(60)
        producer.begin_transaction()
    mock.track()
    mock.answer_from(1, Api.Produce, (0, 3_000))
    producer.produce("a", b"0")
    assert producer.flush(20) == 0
    sent = len(mock.requests(Api.Produce))
    assert sent >= 2
    assert read(mock, "a") == [b"0"] * (1 if transactional else sent)


def test_second_static_member_with_the_same_name_is_a_second_member(mock: MockCluster) -> None:
    mock.create("a", partitions=2)
    settings = {"group.instance.id": "name", "session.timeout.ms": 1_500, "heartbeat.interval.ms": 100}
    first = member(mock, "a", settings)
    wait_until(lambda: first.consume(1, 0.05) or len(first.assignment()) == 2, "the first has both partitions")
    second = member(mock, "a", settings)
    both = [first, second]

    def each_has_one() -> bool:
        for consumer in both:
            consumer.consume(1, 0.05)
        return [len(consumer.assignment()) for consumer in both] == [1, 1]

    wait_until(each_has_one, "each has a partition")
    for consumer in both:
        consumer.close()


def test_topics_are_described_and_other_admin_requests_are_not_supported(mock: MockCluster) -> None:
    mock.create("a", partitions=2)
    admin = AdminClient(settings_of(mock))
    described = admin.describe_topics(ck.TopicCollection(["a", "none"]), request_timeout=10)
    found = described["a"].result()
    assert (len(found.partitions), len(found.partitions[0].replicas), len(str(found.topic_id))) == (2, 2, 22)
    assert outcome(described["none"].result) == "UNKNOWN_TOPIC_OR_PART"
    futures = [
        *admin.describe_configs([ConfigResource(ResourceType.TOPIC, "a")], request_timeout=10).values(),
        *admin.create_topics([NewTopic("b", 1, 1)], request_timeout=10).values(),
        *admin.delete_topics(["a"], request_timeout=10).values(),
        *admin.delete_records([ck.TopicPartition("a", 0, 1)], request_timeout=10).values(),
        *admin.describe_consumer_groups(["group"], request_timeout=10).values(),
    ]
    assert [outcome(future.result) for future in futures] == ["_UNSUPPORTED_FEATURE"] * 5
