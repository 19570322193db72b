"""ClientLog recognizes log messages of librdkafka by their wording: the installed librdkafka must still log them.

A request that timed out, or whose connection broke, may reach its coordinator late; only the client's log shows it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka as ck
import pytest

from kstreams_py.kafka.errors import MEMBERSHIP_LOST, ClientLog
from tests.mock.cluster import Api, MockCluster
from tests.mock.plain import NONE, Settings, member, outcome, settings_of, wait_until, write

E = ck.KafkaError

TIMED_OUT = r"REQTMOUT \[.*\] \[thrd:{0}\]: {0}.*: Timed out {1}Request in flight \(after \d+ms, timeout #\d+\)"
BROKEN = r"FAIL \[.*\] \[thrd:{0}\]: {0}: .*Disconnected: .* \(after \d+ms in state UP\)"

SETTINGS = {
    # settings of the product's clients
    "log_level": 6,
    "log.connection.close": True,
    "socket.timeout.ms": 60_000,
    "retry.backoff.ms": 750,  # longer than a consumer needs to find its coordinator again
    "fetch.wait.max.ms": 100,
}


class RecordingLog(ClientLog):
    """A ClientLog that keeps the lines it was given."""

    def __init__(self) -> None:
        super().__init__("kept")
        self.lines: list[str] = []

    def emit(self, record: Any) -> None:
        self.lines.append(record.getMessage())
        super().emit(record)

    def find(self, pattern: str) -> list[str]:
        return [line for line in self.lines if re.fullmatch(pattern, line)]


def join_group(mock: MockCluster, log: RecordingLog, changed: Settings = NONE) -> ck.Consumer:
    """Creates the static member of a group that broker 2 coordinates, and waits for its first record."""
    mock.create("a")
    write(mock, "a", [b"0"])
    mock.set_coordinator("group", "group", 2)
    group = {"group.instance.id": "name", "session.timeout.ms": 30_000, "heartbeat.interval.ms": 100}
    consumer = member(mock, "a", {**SETTINGS, **group, "logger": log.logger, **changed})
    wait_until(lambda: consumer.consume(1, 0.1), "the group's member reads")
    assert not log.tainted
    return consumer


def answer_late(mock: MockCluster, api: Api) -> None:
    mock.answer_from(2, api, (0, 3_500))


def break_connection(mock: MockCluster, api: Api) -> None:
    mock.answer(api, E._TRANSPORT)


FAULTS = pytest.mark.parametrize(
    ("fault", "wording", "changed"),
    [(answer_late, TIMED_OUT, {"socket.timeout.ms": 2_000}), (break_connection, BROKEN, NONE)],
    ids=["late", "broken"],
)


@FAULTS
@pytest.mark.parametrize("api", [Api.OffsetCommit, Api.Heartbeat])
def test_request_to_the_group_coordinator_that_may_arrive_late_is_detected(
    api: Api, fault: Callable[[MockCluster, Api], None], wording: str, changed: Settings, mock: MockCluster
) -> None:
    log = RecordingLog()
    consumer = join_group(mock, log, changed)
    fault(mock, api)
    if api is Api.OffsetCommit:
        positions = [ck.TopicPartition("a", 0, 1)]
        committing = threading.Thread(target=lambda: consumer.commit(offsets=positions, asynchronous=False))
        committing.start()
    line = wording.format("GroupCoordinator", api.name)
    wait_until(lambda: consumer.consume(1, 0.1) or log.find(line), f"the client logs that a {api.name} failed")
    assert (log.tainted, log.coordinator_lost, log.fenced) == (True, True, False)
    if api is Api.OffsetCommit:
        committing.join()
    consumer.close()


@FAULTS
@pytest.mark.parametrize(
    ("api", "thread"),
    [
        (Api.AddPartitionsToTxn, "TxnCoordinator"),
        (Api.AddOffsetsToTxn, "TxnCoordinator"),
        (Api.EndTxn, "TxnCoordinator"),
        (Api.TxnOffsetCommit, r"127\.0\.0\.1:\d+/2"),  # to the group's coordinator, on the connection of that broker
    ],
)
def test_request_of_a_transaction_that_may_arrive_late_is_detected(
    api: Api, thread: str, fault: Callable[[MockCluster, Api], None], wording: str, changed: Settings, mock: MockCluster
) -> None:
    log = RecordingLog()
    mock.create("b")
    mock.set_coordinator("transaction", "id", 2)
    consumer = join_group(mock, RecordingLog())
    settings = {"transactional.id": "id", "transaction.timeout.ms": 60_000, "logger": log.logger}
    producer = ck.Producer(settings_of(mock, {**SETTINGS, **settings, **changed}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.poll(0)  # serves the log
    assert not log.tainted
    fault(mock, api)
    producer.produce("b", b"0")
    producer.send_offsets_to_transaction([ck.TopicPartition("a", 0, 1)], consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)  # the client sends the request again inside
    line = wording.format(thread, api.name)
    wait_until(lambda: producer.poll(0.1) or log.find(line), f"the client logs that an {api.name} failed")
    assert (log.tainted, log.coordinator_lost, log.fenced) == (True, False, False)
    consumer.close()


def test_topic_that_a_transaction_may_not_write_to_is_named(mock: MockCluster) -> None:
    log = RecordingLog()
    mock.create("b")
    settings = {"transactional.id": "id", "transaction.timeout.ms": 60_000, "logger": log.logger}
    producer = ck.Producer(settings_of(mock, {**SETTINGS, **settings}))
    producer.init_transactions(60)
    producer.begin_transaction()
    mock.answer(Api.AddPartitionsToTxn, E.TOPIC_AUTHORIZATION_FAILED)
    producer.produce("b", b"0")
    assert outcome(lambda: producer.commit_transaction(60)) == "TOPIC_AUTHORIZATION_FAILED"
    wait_until(lambda: producer.poll(0.1) or log.refused, "the client logs the topic")
    assert (log.refused, log.tainted) == ({"b"}, False), log.lines
    producer.abort_transaction(60)


@pytest.mark.parametrize("api", [Api.Heartbeat, Api.OffsetCommit])
def test_membership_that_another_member_has_taken_is_detected(api: Api, mock: MockCluster) -> None:
    log = RecordingLog()
    consumer = join_group(mock, log)
    mock.answer(api, E.FENCED_INSTANCE_ID)
    if api is Api.OffsetCommit:
        positions = [ck.TopicPartition("a", 0, 1)]
        assert outcome(lambda: consumer.commit(offsets=positions, asynchronous=False)) == "FENCED_INSTANCE_ID"
    wait_until(lambda: consumer.consume(1, 0.1) or log.fenced, "the client logs that it is fenced")
    assert (log.tainted, log.fenced) == (False, True)
    fatal = rf"FATAL \[.*\] \[thrd:main\]: Fatal error: .*{MEMBERSHIP_LOST}.*"
    assert log.find(fatal), log.lines
    consumer.close()


def test_undisturbed_client_logs_no_late_requests(mock: MockCluster) -> None:
    log = RecordingLog()
    consumer = join_group(mock, log)
    mock.track()
    wait_until(lambda: consumer.consume(1, 0.1) or len(mock.requests(Api.Heartbeat)) > 3, "more heartbeats are sent")
    assert (log.tainted, log.coordinator_lost, log.fenced, log.lines) == (False, False, False, [])
    consumer.close()
