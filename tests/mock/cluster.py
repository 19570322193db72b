"""librdkafka's mock cluster, driven by ctypes: brokers inside the test's process that answer as the test says.

The library is the one that confluent-kafka has loaded, so that client and cluster are of one version. What the brokers
do, tried with plain clients (test_cluster.py holds this table):

=========================  ===========================================================================================
requests                   what the brokers do
=========================  ===========================================================================================
Produce, Fetch             store and give back batches; one batch a partition and Fetch; acks=0 is answered as well.
                           An answer with an error never appends
Produce, idempotent        sequence numbers are checked for transactional producers only: what another idempotent
                           producer sends again is stored twice, and a batch is lost ("ok") if it fails while another
                           one is behind it
Metadata                   topics, leaders, epochs, topic ids; a producer's question creates a topic (4 partitions)
ListOffsets                first and end offset; by time always -1. The last stable offset is the end
transactions               InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn are answered;
                           read_committed reads open and aborted records too, TxnOffsetCommit stores nothing, and a
                           second producer of the same transactional.id does not fence the first
OffsetCommit, OffsetFetch  positions of a group; members are checked by member id and generation
classic groups             JoinGroup, SyncGroup, Heartbeat, LeaveGroup, session time-outs; a member that joins an
                           existing group waits for its session time-out less one second
static members             group.instance.id is kept, but not enforced: a second member of the same name is one member
                           more, nobody is fenced (a test answers FENCED_INSTANCE_ID by itself)
FindCoordinator            one broker for a group or transactional.id; `set_coordinator` moves it
DescribeTopics             answered (it is Metadata)
other admin requests       DescribeGroups, DescribeConfigs, CreateTopics, DeleteTopics, DeleteRecords: not supported
=========================  ===========================================================================================

Never fork without exec while a cluster or a client exists: its threads are not in the child.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final, Literal, Self

from confluent_kafka import cimpl


class Api(IntEnum):
    """Kafka's requests by their keys."""

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
"""So many answers are never used up."""

_PRODUCER: Final = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a broker has received, at this time.monotonic()."""

    broker: int
    api: Api
    at: float


@cache
def _library() -> ctypes.CDLL:
    """librdkafka as this process has loaded it: a symbol is looked for in the extension module and what it links to."""
    library = ctypes.CDLL(cimpl.__file__)
    pointer, text = c_void_p, c_char_p
    declared: dict[str, tuple[Any, list[Any]]] = {
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
    for name, (result, arguments) in declared.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class MockCluster:
    """Brokers 1 to `brokers` on loopback.

    An error is a code of KafkaError: 0 is the usual answer, KafkaError._TRANSPORT closes the connection.
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
        """Ends all brokers and their connections."""
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(self._cluster, *arguments)
        assert not code, f"{name}{arguments}: {self._library.rd_kafka_err2name(code).decode()}"

    def create(self, *topics: str, partitions: int = 1, replication: int | None = None, leader: int = 1) -> None:
        """Creates topics, on all brokers if no replication is given, with one leader for all partitions."""
        for topic in topics:
            self._call("rd_kafka_mock_topic_create", topic.encode(), partitions, replication or self._brokers)
            for partition in range(partitions):
                self.set_leader(topic, partition, leader)

    def set_topic_error(self, topic: str, error: int) -> None:
        """Metadata and AddPartitionsToTxn answer this for the topic until it is set to 0."""
        self._call("rd_kafka_mock_topic_set_error", topic.encode(), error)

    def answer(self, api: Api, *errors: int) -> None:
        """Answers the next requests with these, one each, whichever broker gets them."""
        self._call("rd_kafka_mock_push_request_errors_array", api, len(errors), (c_int * len(errors))(*errors))

    def answer_always(self, api: Api, error: int) -> None:
        """Answers every request with this until `clear`."""
        self.answer(api, *[error] * ALWAYS)

    def clear(self, *apis: Api) -> None:
        """Drops what is left of `answer` and `answer_always` for these requests, or for all."""
        for api in apis or Api:
            self._call("rd_kafka_mock_clear_request_errors", api)

    def answer_from(self, broker: int, api: Api, *answers: tuple[int, int]) -> None:
        """Answers this broker's next requests with (error, milliseconds until it is sent), one each.

        From then on `answer` is for the other brokers only; `clear` leaves these answers.
        """
        flat = [c_int(value) for answer in answers for value in answer]
        self._call("rd_kafka_mock_broker_push_request_error_rtts", broker, api, len(answers), *flat)

    def answer_partition(self, topic: str, partition: int, api: Api, *errors: int) -> None:
        """Answers the next requests with these for this partition alone; of Produce and Fetch only."""
        values = [c_int(error) for error in errors]
        self._call("rd_kafka_mock_partition_push_request_errors", topic.encode(), partition, api, len(values), *values)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """Moves a partition to a broker; to -1: it has no leader."""
        self._call("rd_kafka_mock_partition_set_leader", topic.encode(), partition, broker)

    def set_coordinator(self, of: Literal["group", "transaction"], key: str, broker: int) -> None:
        """Moves a group or a transactional.id to a broker."""
        self._call("rd_kafka_mock_coordinator_set", of.encode(), key.encode(), broker)

    def set_down(self, broker: int) -> None:
        """Closes a broker's connections and refuses new ones; what it leads and coordinates stays with it."""
        self._call("rd_kafka_mock_broker_set_down", broker)

    def set_up(self, broker: int) -> None:
        self._call("rd_kafka_mock_broker_set_up", broker)

    def hide(self, broker: int) -> None:
        """Takes a broker out of Metadata for good, as one that is fenced; partitions move, connections stay open."""
        self._call("rd_kafka_mock_broker_remove_from_metadata", broker)

    def set_delay(self, broker: int, milliseconds: int) -> None:
        """Sends every answer of this broker so much later."""
        self._call("rd_kafka_mock_broker_set_rtt", broker, milliseconds)

    def track(self) -> None:
        """Forgets the requests that `requests` knows, and keeps those that come from now on."""
        self._call("rd_kafka_mock_clear_requests")
        self._call("rd_kafka_mock_start_request_tracking")

    def requests(self, *apis: Api) -> list[Request]:
        """What the brokers have received since `track`, of these requests or of all."""
        count = c_size_t()
        found = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        received = []
        for each in found[: count.value]:
            if (api := _APIS.get(self._library.rd_kafka_mock_request_api_key(each))) is not None:
                at = self._library.rd_kafka_mock_request_timestamp(each) / 1e6
                received.append(Request(self._library.rd_kafka_mock_request_id(each), api, at))
        self._library.rd_kafka_mock_request_destroy_array(found, count)
        return [r for r in received if not apis or r.api in apis]
