"""librdkafka's mock cluster, driven by ctypes: brokers inside the test's process with answers that the test sets.

The library is the one that confluent-kafka has loaded, so client and cluster have the same version. The table shows
what the brokers do; test_cluster.py checks it with plain clients:

=========================  ===========================================================================================
requests                   answer of the brokers
=========================  ===========================================================================================
Produce, Fetch             store and return batches, one batch per partition and Fetch; acks=0 is answered as well.
                           An error has the high watermark, which a broker leaves out: librdkafka reports the end of the
                           partition instead, if that is where it reads and it has not reported it yet.
                           A Produce answered with an error appends nothing
Produce, idempotent        sequence numbers are checked for transactional producers only: a batch that another
                           idempotent producer sends again is stored twice, and a batch that fails while another one is
                           behind it is lost ("ok")
Metadata                   topics, leaders, epochs, topic ids; a producer's request creates a topic (4 partitions)
ListOffsets                first and end offset; by time always -1. The last stable offset is the end
transactions               InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn are answered;
                           read_committed reads open and aborted records too, TxnOffsetCommit stores nothing, and a
                           second producer of the same transactional.id does not fence the first
OffsetCommit, OffsetFetch  committed offsets of a group; members are checked by member id and generation
classic groups             JoinGroup, SyncGroup, Heartbeat, LeaveGroup, session time-outs; a member that joins an
                           existing group waits for its session time-out minus one second
static members             group.instance.id is stored, but not enforced: a second member with the same name is an
                           additional member, and no member is fenced (a test answers FENCED_INSTANCE_ID itself)
FindCoordinator            one broker for a group or transactional.id; `set_coordinator` moves it
DescribeTopics             answered (it is Metadata)
other admin requests       DescribeGroups, DescribeConfigs, CreateTopics, DeleteTopics, DeleteRecords: not supported
=========================  ===========================================================================================

Never fork without exec while a cluster or a client exists: the child has none of its threads.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final, Literal, Self

from tests.librdkafka import Declared, load_librdkafka


class Api(IntEnum):
    """Kafka's requests by API key."""

    Produce = 0
    Fetch = 1
    ListOffsets = 2
    Metadata = 3
    OffsetCommit = 8
    OffsetFetch = 9
    FindCoordinator = 10
    JoinGroup = 11
    Heartbeat = 12
    LeaveGroup = 13
    SyncGroup = 14
    DescribeGroups = 15
    ApiVersions = 18
    CreateTopics = 19
    DeleteRecords = 21
    InitProducerId = 22
    OffsetForLeaderEpoch = 23
    AddPartitionsToTxn = 24
    AddOffsetsToTxn = 25
    EndTxn = 26
    TxnOffsetCommit = 28
    DescribeConfigs = 32
    GetTelemetrySubscriptions = 71


_APIS: Final = {int(api): api for api in Api}

ALWAYS: Final = 20_000
"""The number of answers that no test uses up."""

_PRODUCER: Final = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a broker has received; `at` is its time.monotonic()."""

    broker: int
    api: Api
    at: float


@cache
def _library() -> ctypes.CDLL:
    pointer, text = c_void_p, c_char_p
    declared: Declared = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (c_int, [pointer, text, text, text, c_size_t]),
        "rd_kafka_new": (pointer, [c_int, pointer, text, c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_err2name": (text, [c_int]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, c_int]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_bootstraps": (text, [pointer]),
        "rd_kafka_mock_topic_create": (c_int, [pointer, text, c_int, c_int]),
        "rd_kafka_mock_topic_set_error": (None, [pointer, text, c_int]),
        "rd_kafka_mock_push_request_errors_array": (None, [pointer, c_int16, c_size_t, POINTER(c_int)]),
        "rd_kafka_mock_broker_push_request_error_rtts": (c_int, [pointer, c_int32, c_int16, c_size_t]),
        "rd_kafka_mock_partition_push_request_errors": (c_int, [pointer, text, c_int32, c_int16, c_size_t]),
        "rd_kafka_mock_clear_request_errors": (None, [pointer, c_int16]),
        "rd_kafka_mock_partition_set_leader": (c_int, [pointer, text, c_int32, c_int32]),
        "rd_kafka_mock_coordinator_set": (c_int, [pointer, text, text, c_int32]),
        "rd_kafka_mock_broker_set_down": (c_int, [pointer, c_int32]),
        "rd_kafka_mock_broker_set_up": (c_int, [pointer, c_int32]),
        "rd_kafka_mock_broker_set_rtt": (c_int, [pointer, c_int32, c_int]),
        "rd_kafka_mock_broker_remove_from_metadata": (c_int, [pointer, c_int32]),
        "rd_kafka_mock_set_controller_id": (None, [pointer, c_int32]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, c_int32]),
        "rd_kafka_mock_start_request_tracking": (None, [pointer]),
        "rd_kafka_mock_clear_requests": (None, [pointer]),
        "rd_kafka_mock_get_requests": (POINTER(c_void_p), [pointer, POINTER(c_size_t)]),
        "rd_kafka_mock_request_id": (c_int32, [pointer]),
        "rd_kafka_mock_request_api_key": (c_int16, [pointer]),
        "rd_kafka_mock_request_timestamp": (c_int64, [pointer]),
        "rd_kafka_mock_request_destroy_array": (None, [POINTER(c_void_p), c_size_t]),
    }
    return load_librdkafka(declared)


class MockCluster:
    """Brokers 1 to `brokers` on loopback.

    Errors are codes of KafkaError: 0 is the usual answer, KafkaError._TRANSPORT closes the connection.
    """

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        self._brokers = brokers
        reason = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"0", reason, len(reason))
        self._handle = self._library.rd_kafka_new(_PRODUCER, settings, reason, len(reason))
        assert self._handle, reason.value.decode()
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._handle, brokers)
        assert self._cluster, "no mock cluster"
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self._library.rd_kafka_mock_set_controller_id(self._cluster, 1)
        self.bootstrap_servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops all brokers and closes their connections."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(self._cluster, *arguments)
        assert not code, f"{name}{arguments}: {self._library.rd_kafka_err2name(code).decode()}"

    def create(self, *topics: str, partitions: int = 1, replication: int | None = None, leader: int = 1) -> None:
        """Creates topics with one leader for all partitions; the default replication is the number of brokers."""
        for topic in topics:
            self._call("rd_kafka_mock_topic_create", topic.encode(), partitions, replication or self._brokers)
            for partition in range(partitions if self._brokers > 1 else 0):  # each call waits for the mock's thread
                self.set_leader(topic, partition, leader)

    def set_topic_error(self, topic: str, error: int) -> None:
        """Sets the error of the topic in answers to Metadata and AddPartitionsToTxn; 0 clears it."""
        self._call("rd_kafka_mock_topic_set_error", topic.encode(), error)

    def answer(self, api: Api, *errors: int) -> None:
        """Sets the answers to the next requests of this kind, one each, whichever broker gets them."""
        self._call("rd_kafka_mock_push_request_errors_array", api, len(errors), (c_int * len(errors))(*errors))

    def answer_always(self, api: Api, error: int) -> None:
        """Sets the answer to every request of this kind until `clear`."""
        self.answer(api, *[error] * ALWAYS)

    def clear(self, *apis: Api) -> None:
        """Drops the unused answers of `answer` and `answer_always` for these requests, or for all."""
        for api in apis or Api:
            self._call("rd_kafka_mock_clear_request_errors", api)

    def answer_from(self, broker: int, api: Api, *answers: tuple[int, int]) -> None:
        """Sets the answers of one broker to the next requests: (error, delay in milliseconds), one each.

        From then on `answer` applies to the other brokers only; `clear` keeps these answers.
        """
        flat = [c_int(value) for answer in answers for value in answer]
        self._call("rd_kafka_mock_broker_push_request_error_rtts", broker, api, len(answers), *flat)

    def answer_partition(self, topic: str, partition: int, api: Api, *errors: int) -> None:
        """Sets the answers to the next requests for this partition only; for Produce and Fetch."""
        values = [c_int(error) for error in errors]
        self._call("rd_kafka_mock_partition_push_request_errors", topic.encode(), partition, api, len(values), *values)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Makes a broker the leader of a partition; with -1 the partition has no leader."""
        self._call("rd_kafka_mock_partition_set_leader", topic.encode(), partition, broker)

    def set_coordinator(self, of: Literal["group", "transaction"], key: str, broker: int) -> None:
        """Makes a broker the coordinator of a group or a transactional.id."""
        self._call("rd_kafka_mock_coordinator_set", of.encode(), key.encode(), broker)

    def set_down(self, broker: int) -> None:
        """Closes a broker's connections and refuses new ones; it remains leader and coordinator."""
        self._call("rd_kafka_mock_broker_set_down", broker)

    def set_up(self, broker: int) -> None:
        self._call("rd_kafka_mock_broker_set_up", broker)

    def hide(self, broker: int) -> None:
        """Removes a broker from Metadata, as if it were fenced; its partitions move, its connections stay open."""
        self._call("rd_kafka_mock_broker_remove_from_metadata", broker)

    def set_delay(self, broker: int, milliseconds: int) -> None:
        """Delays every answer of this broker."""
        self._call("rd_kafka_mock_broker_set_rtt", broker, milliseconds)

    def track(self) -> None:
        """Forgets the requests recorded so far, and records those from now on."""
        self._call("rd_kafka_mock_clear_requests")
        self._call("rd_kafka_mock_start_request_tracking")

    def requests(self, *apis: Api) -> list[Request]:
        """The requests of these kinds, or of all, that the brokers have received since `track`."""
        count = c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        received = []
        for each in found[: count.value]:
            if (api := _APIS.get(self._library.rd_kafka_mock_request_api_key(each))) is not None:
                at = self._library.rd_kafka_mock_request_timestamp(each) / 1e6
                received.append(Request(self._library.rd_kafka_mock_request_id(each), api, at))
        self._library.rd_kafka_mock_request_destroy_array(found, count)
        return [r for r in received if not apis or r.api in apis]
