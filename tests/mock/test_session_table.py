"""The outcome of a session for each request, each error code it may get, once and for ever, under each guarantee.

`TABLE` holds all outcomes, and the tests read it. The codes are those that Kafka's protocol documents for the request
(its *Response.java), those that its brokers send besides, and a connection that breaks (-195). Each cell is a real
worker on a mock cluster (session.py). Its outcome is that of its row; besides,

- after one error, nothing is lost, doubled or out of order, unless the outcome says so, and a later record is
  processed; `at_most_once` never doubles a record,
- under endless errors, the worker ends with an error that names the cause, or warns repeatedly why it waits; when the
  errors end, it continues and processes all records,
- the outputs have all that was committed when the worker ended; `at_most_once` may lose what it could not write.

A mock cluster cannot show: fencing, and which worker took a membership (a stub answers for the group); the visibility
of transactions (a ledger decides it, in which a successful answer is a commit); a commit that took place and was
answered with an error; DUPLICATE_SEQUENCE_NUMBER, by which a broker says that it has the batch; the answers to
DescribeGroups, DescribeConfigs and LeaveGroup. The table has no codes of ShareFetch and of the new consumer protocol,
and no request-level codes of Metadata, which a mock cluster does not send.

The quick tier has one cell of each class, the first in the table; the long tier has the others. Two codes are of one
class if kafka/errors.py makes the same exception of them: the worker sees no code. What librdkafka itself does with a
code, before, is a class of its own: a broken connection, and what makes it look for the leader or coordinator. Codes of
one class that end differently in the table are never taken for each other.

- One error of a request that writes or commits: each request x class x guarantee x outcome. One of another request,
  which is made alike under each guarantee: each request x class x outcome, and each class x guarantee x outcome.
- Endless errors repeat the reaction to one until a bound, or a warning, that the worker counts by exception: each
  class x guarantee x outcome, and each request x outcome.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Final, Literal, NamedTuple

import confluent_kafka as ck
import pytest

from kstreams_py.errors import (
    Fatal,
    InputLost,
    KStreamsError,
    NotAuthorized,
    RecordRefused,
    RecordTooLarge,
    Replaced,
    SettingsError,
    TopicError,
)
from kstreams_py.graph.guarantees import Guarantee
from kstreams_py.kafka import consumer, producer, silence
from kstreams_py.kafka.errors import classify as classify_error
from kstreams_py.processing import worker
from kstreams_py.processing.commits import attempts
from kstreams_py.processing.intakes import Pace
from tests.mock.cluster import Api
from tests.mock.session import INPUT, OUTPUT, Cell, Lines, Run, Seen, is_rejoining

E = ck.KafkaError
EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE = Guarantee

AT_ONCE: Final = 32
"""Cells that run in parallel: most of them wait. With 100, a cell may get no CPU for its `max.poll.interval.ms`."""

# Outcomes of one error:
AGAIN: Final = "sends the request again"
ABORTS: Final = "aborts the transaction and repeats it"
RENEWS: Final = "asks the group, creates a new producer, repeats the open transaction"
REDOES: Final = "creates a new producer, repeats the uncommitted records"
RENEWED: Final = "creates a new producer"
REWRITES: Final = "writes its outputs again, without a call of the function"
REREADS: Final = "reads the committed offsets again"
REJOINS: Final = "asks the group who holds the membership, joins again"
REPEATS: Final = "joins again, writes outputs a second time"
COPIES: Final = "creates a new producer, writes outputs a second time"
REASSIGNED: Final = "is assigned partitions again"
LOSES: Final = "loses an output, and logs it"
# Outcomes of endless errors:
WAITS: Final = "waits, with a repeated warning"
KEEPS_JOINING: Final = "joins repeatedly, with a warning each time"
PASSES: Final = "continues normally"
DEAD_LETTERS: Final = "makes a dead letter of each record"


class Ends(NamedTuple):
    """The worker ends with this error, whose text matches `named`, and this exit status."""

    error: type[KStreamsError]
    named: str
    status: int


BROKEN: Final = Ends(Fatal, r".", 1)
"""The worker ends at once, as no remedy is known. The supervisor restarts the slot."""
GIVES_UP: Final = Ends(
    Fatal, r"g\.p\.0: \d+ (attempts in a row failed|producers in a row could not commit), at last by: .", 1
)
NO_RIGHT_TO_GROUP: Final = Ends(NotAuthorized, r"\(?group 'g\.p'.* READ and DESCRIBE on the consumer group", 3)
NO_RIGHT_TO_ID: Final = Ends(NotAuthorized, r"WRITE and DESCRIBE on the transactional id", 3)
NO_RIGHT_TO_CLUSTER: Final = Ends(NotAuthorized, r"IDEMPOTENT_WRITE on the cluster", 3)
NO_RIGHT_TO_INPUT: Final = Ends(NotAuthorized, r"topic 'in'.* READ on the topic", 3)
NO_RIGHT_TO_OUTPUT: Final = Ends(NotAuthorized, r"topic 'out'.*WRITE if it is written", 3)
NO_RIGHT_TO_BEGINNINGS: Final = Ends(NotAuthorized, r"topic '__ks\.g\.beginnings'.* READ on the topic", 3)
REFUSED: Final = Ends(RecordRefused, r"topic 'out' refuses a record", 2)
TOO_LARGE: Final = Ends(RecordTooLarge, r"a record is larger than topic 'out' takes", 2)
NO_INPUT: Final = Ends(TopicError, r"topic 'in' does not exist", 2)
NO_OUTPUT: Final = Ends(TopicError, r"topic 'out' does not exist", 2)
NO_MEMBER: Final = Ends(SettingsError, r"the group 'g\.p' takes no members", 2)
NO_SUCH_TIMEOUT: Final = Ends(SettingsError, r"transaction_timeout_ms", 2)
INPUT_LOST: Final = Ends(InputLost, r"in\[0\]: the records at the committed offset were deleted", 5)
REPLACED: Final = Ends(Replaced, r"another worker has taken the slot", 4)

Outcome = str | Ends
Outcomes = dict[Cell, Future[Seen]]
Tier = Literal["quick", "long", "seldom"]
"""The long tier has the seldom ones, too."""


class Answered(NamedTuple):
    """The outcome of one error and of endless errors; None: not tested."""

    once: Outcome | None
    forever: Outcome | None


class Row(NamedTuple):
    """Error codes of a request with the same outcomes, by guarantee; scripts/test-long tests the `seldom` ones.

    `of`: the topic of Metadata. `dead_letters`: the graph has a dead-letter topic. `taken`: another worker holds the
    slot.
    """

    api: Api
    codes: str
    outcomes: dict[Guarantee, Answered]
    seldom: str = ""
    of: str = ""
    dead_letters: bool = True
    taken: bool = False


def all_three(once: Outcome | None, forever: Outcome | None) -> dict[Guarantee, Answered]:
    return dict.fromkeys(Guarantee, Answered(once, forever))


def each(exactly: Answered | None, least: Answered | None, most: Answered | None) -> dict[Guarantee, Answered]:
    found = {EXACTLY_ONCE: exactly, AT_LEAST_ONCE: least, AT_MOST_ONCE: most}
    return {guarantee: outcome for guarantee, outcome in found.items() if outcome is not None}


def exactly(once: Outcome | None, forever: Outcome | None) -> dict[Guarantee, Answered]:
    return {EXACTLY_ONCE: Answered(once, forever)}


TABLE: Final = (
    # Produce requests with the outputs.
    Row(
        Api.Produce,
        "NOT_LEADER_FOR_PARTITION UNKNOWN_TOPIC_OR_PART REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS"
        " NOT_ENOUGH_REPLICAS_AFTER_APPEND KAFKA_STORAGE_ERROR INVALID_MSG",
        each(Answered(AGAIN, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
        seldom="LEADER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"
        " NOT_COORDINATOR",
    ),
    Row(
        Api.Produce,
        "disconnected UNKNOWN_PRODUCER_ID",
        each(Answered(RENEWS, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
    ),
    # The output may have been written: at_most_once must not write it again.
    Row(
        Api.Produce,
        "UNKNOWN",
        each(Answered(ABORTS, GIVES_UP), Answered(REDOES, GIVES_UP), Answered(LOSES, LOSES)),
        seldom="NETWORK_EXCEPTION",
    ),
    Row(
        Api.Produce,
        "TOPIC_EXCEPTION INVALID_REQUIRED_ACKS",
        each(Answered(ABORTS, GIVES_UP), Answered(REDOES, GIVES_UP), Answered(REWRITES, GIVES_UP)),
        seldom="THROTTLING_QUOTA_EXCEEDED INVALID_PRINCIPAL_TYPE",
    ),
    Row(
        Api.Produce,
        "INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE PRODUCER_FENCED",
        each(Answered(RENEWS, GIVES_UP), Answered(REDOES, GIVES_UP), Answered(REWRITES, GIVES_UP)),
    ),
    Row(
        Api.Produce,
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        each(Answered(BROKEN, BROKEN), Answered(BROKEN, BROKEN), Answered(LOSES, LOSES)),
    ),
    Row(
        Api.Produce,
        "INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION MSG_SIZE_TOO_LARGE",
        each(Answered(ABORTS, DEAD_LETTERS), Answered(REDOES, DEAD_LETTERS), Answered(AGAIN, DEAD_LETTERS)),
        seldom="RECORD_LIST_TOO_LARGE UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ),
    Row(
        Api.Produce,
        "INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION",
        each(Answered(ABORTS, REFUSED), Answered(REDOES, REFUSED), Answered(AGAIN, REFUSED)),
        seldom="UNSUPPORTED_FOR_MESSAGE_FORMAT",
        dead_letters=False,
    ),
    Row(
        Api.Produce,
        "MSG_SIZE_TOO_LARGE",
        each(Answered(ABORTS, TOO_LARGE), Answered(REDOES, TOO_LARGE), Answered(AGAIN, TOO_LARGE)),
        seldom="RECORD_LIST_TOO_LARGE",
        dead_letters=False,
    ),
    Row(Api.Produce, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_OUTPUT, NO_RIGHT_TO_OUTPUT)),
    Row(Api.Produce, "CLUSTER_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_CLUSTER, NO_RIGHT_TO_CLUSTER)),
    Row(Api.Produce, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    # Producer ids, with a transactional id and without.
    Row(
        Api.InitProducerId,
        "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS REQUEST_TIMED_OUT UNKNOWN",
        each(Answered(AGAIN, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
        seldom="INVALID_REQUEST INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING NETWORK_EXCEPTION"
        " INVALID_PRINCIPAL_TYPE THROTTLING_QUOTA_EXCEEDED",
    ),
    # librdkafka sends about 2,000 requests a second, which occupies a CPU under endless errors.
    Row(Api.InitProducerId, "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR", all_three(AGAIN, None)),
    Row(Api.InitProducerId, "", exactly(None, GIVES_UP), seldom="COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"),
    Row(
        Api.InitProducerId,
        "disconnected",
        each(Answered(RENEWS, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
    ),
    Row(Api.InitProducerId, "PRODUCER_FENCED INVALID_PRODUCER_EPOCH", exactly(RENEWED, GIVES_UP)),
    Row(Api.InitProducerId, "INVALID_TRANSACTION_TIMEOUT", exactly(NO_SUCH_TIMEOUT, NO_SUCH_TIMEOUT)),
    Row(Api.InitProducerId, "CLUSTER_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_CLUSTER, NO_RIGHT_TO_CLUSTER)),
    Row(Api.InitProducerId, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    # Transactions.
    Row(
        Api.AddPartitionsToTxn,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR CONCURRENT_TRANSACTIONS"
        " UNKNOWN_TOPIC_OR_PART",
        exactly(AGAIN, GIVES_UP),
    ),
    Row(
        Api.AddPartitionsToTxn,
        "UNKNOWN OPERATION_NOT_ATTEMPTED TRANSACTION_ABORTABLE",
        exactly(ABORTS, GIVES_UP),
        seldom="REQUEST_TIMED_OUT INVALID_PRINCIPAL_TYPE THROTTLING_QUOTA_EXCEEDED",
    ),
    Row(
        Api.AddPartitionsToTxn,
        "disconnected PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
        exactly(RENEWS, GIVES_UP),
    ),
    Row(Api.AddPartitionsToTxn, "TOPIC_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_OUTPUT, NO_RIGHT_TO_OUTPUT)),
    Row(
        Api.AddPartitionsToTxn,
        "",
        exactly(NO_RIGHT_TO_CLUSTER, NO_RIGHT_TO_CLUSTER),
        seldom="CLUSTER_AUTHORIZATION_FAILED",
    ),
    Row(Api.AddPartitionsToTxn, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    Row(
        Api.AddOffsetsToTxn,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR CONCURRENT_TRANSACTIONS",
        exactly(AGAIN, WAITS),
        seldom="REQUEST_TIMED_OUT",
    ),
    Row(
        Api.AddOffsetsToTxn,
        "UNKNOWN TRANSACTION_ABORTABLE",
        exactly(ABORTS, GIVES_UP),
        seldom="THROTTLING_QUOTA_EXCEEDED",
    ),
    Row(
        Api.AddOffsetsToTxn,
        "disconnected PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
        exactly(RENEWS, GIVES_UP),
    ),
    Row(Api.AddOffsetsToTxn, "GROUP_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    Row(Api.AddOffsetsToTxn, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    Row(
        Api.TxnOffsetCommit,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNKNOWN_TOPIC_OR_PART"
        " REQUEST_TIMED_OUT",
        exactly(AGAIN, GIVES_UP),
    ),
    Row(
        Api.TxnOffsetCommit,
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS TRANSACTION_ABORTABLE UNKNOWN"
        " OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
        exactly(ABORTS, GIVES_UP),
        seldom="INVALID_GROUP_ID GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH",
    ),
    Row(
        Api.TxnOffsetCommit,
        "disconnected FENCED_INSTANCE_ID PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_TXN_STATE"
        " INVALID_PRODUCER_ID_MAPPING",
        exactly(RENEWS, GIVES_UP),
    ),
    Row(Api.TxnOffsetCommit, "UNSUPPORTED_FOR_MESSAGE_FORMAT", exactly(BROKEN, BROKEN)),
    Row(Api.TxnOffsetCommit, "TOPIC_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    Row(Api.TxnOffsetCommit, "GROUP_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    Row(Api.TxnOffsetCommit, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    Row(
        Api.EndTxn,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR CONCURRENT_TRANSACTIONS",
        exactly(AGAIN, GIVES_UP),
    ),
    Row(
        Api.EndTxn,
        "UNKNOWN REQUEST_TIMED_OUT TRANSACTION_ABORTABLE",
        exactly(ABORTS, GIVES_UP),
        seldom="INVALID_PRINCIPAL_TYPE THROTTLING_QUOTA_EXCEEDED",
    ),
    Row(
        Api.EndTxn,
        "disconnected PRODUCER_FENCED INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING",
        exactly(RENEWS, GIVES_UP),
    ),
    Row(Api.EndTxn, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    # Committed offsets.
    Row(
        Api.OffsetCommit,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR REQUEST_TIMED_OUT"
        " UNKNOWN_TOPIC_OR_PART",
        each(None, Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
        seldom="NETWORK_EXCEPTION THROTTLING_QUOTA_EXCEEDED",
    ),
    Row(Api.OffsetCommit, "disconnected", each(None, Answered(REJOINS, WAITS), Answered(REJOINS, WAITS))),
    Row(
        Api.OffsetCommit,
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID",
        each(None, Answered(REPEATS, GIVES_UP), Answered(REJOINS, GIVES_UP)),
    ),
    Row(Api.OffsetCommit, "REBALANCE_IN_PROGRESS", each(None, Answered(COPIES, GIVES_UP), Answered(REREADS, GIVES_UP))),
    Row(
        Api.OffsetCommit,
        "UNKNOWN OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
        each(None, Answered(BROKEN, BROKEN), Answered(RENEWED, GIVES_UP)),
        seldom="INVALID_GROUP_ID GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH",
    ),
    Row(
        Api.OffsetCommit,
        "TOPIC_AUTHORIZATION_FAILED",
        each(None, Answered(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT), Answered(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    ),
    Row(
        Api.OffsetCommit,
        "GROUP_AUTHORIZATION_FAILED",
        each(None, Answered(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP), Answered(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    ),
    Row(
        Api.OffsetFetch,
        "COORDINATOR_LOAD_IN_PROGRESS UNSTABLE_OFFSET_COMMIT REQUEST_TIMED_OUT",
        all_three(AGAIN, WAITS),
    ),
    Row(
        Api.OffsetFetch,
        "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNKNOWN_TOPIC_OR_PART",
        all_three(REREADS, WAITS),
        seldom="NETWORK_EXCEPTION",
    ),
    # The group began with a commit of offsets on that connection, which may arrive late.
    Row(
        Api.OffsetFetch,
        "disconnected",
        each(Answered(AGAIN, WAITS), Answered(REJOINS, WAITS), Answered(REJOINS, WAITS)),
    ),
    Row(Api.OffsetFetch, "UNKNOWN_MEMBER_ID ILLEGAL_GENERATION", all_three(REREADS, GIVES_UP)),
    Row(Api.OffsetFetch, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    Row(
        Api.OffsetFetch,
        "UNKNOWN",
        each(Answered(BROKEN, BROKEN), Answered(BROKEN, BROKEN), Answered(RENEWED, GIVES_UP)),
        seldom="INVALID_GROUP_ID GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH",
    ),
    Row(Api.OffsetFetch, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    Row(Api.OffsetFetch, "GROUP_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    # Membership.
    Row(
        Api.FindCoordinator,
        "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS UNKNOWN disconnected",
        each(Answered(AGAIN, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS)),
        seldom="REQUEST_TIMED_OUT INVALID_REQUEST",
    ),
    Row(Api.FindCoordinator, "INVALID_GROUP_ID", all_three(NO_MEMBER, NO_MEMBER)),
    Row(Api.FindCoordinator, "GROUP_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    Row(Api.FindCoordinator, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    Row(
        Api.JoinGroup,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNKNOWN_MEMBER_ID UNKNOWN disconnected",
        all_three(AGAIN, WAITS),
        seldom="ILLEGAL_GENERATION UNSUPPORTED_VERSION",
    ),
    Row(Api.JoinGroup, "MEMBER_ID_REQUIRED", all_three(AGAIN, None)),
    Row(Api.JoinGroup, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    Row(
        Api.JoinGroup,
        "INCONSISTENT_GROUP_PROTOCOL INVALID_SESSION_TIMEOUT GROUP_MAX_SIZE_REACHED INVALID_GROUP_ID",
        all_three(NO_MEMBER, NO_MEMBER),
    ),
    Row(Api.JoinGroup, "GROUP_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    Row(
        Api.SyncGroup,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR REBALANCE_IN_PROGRESS"
        " UNKNOWN_MEMBER_ID ILLEGAL_GENERATION UNKNOWN GROUP_AUTHORIZATION_FAILED disconnected",
        all_three(AGAIN, WAITS),
        seldom="INVALID_GROUP_ID",
    ),
    Row(Api.SyncGroup, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    Row(
        Api.Heartbeat,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR UNKNOWN GROUP_AUTHORIZATION_FAILED",
        all_three(AGAIN, None),
        seldom="INVALID_GROUP_ID",
    ),
    Row(
        Api.Heartbeat,
        "NOT_COORDINATOR",
        all_three(None, KEEPS_JOINING),
        seldom="COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE UNKNOWN GROUP_AUTHORIZATION_FAILED"
        " INVALID_GROUP_ID disconnected",
    ),
    # Outside of transactions the connection may have carried a commit: then the member joins again.
    Row(Api.Heartbeat, "disconnected", exactly(AGAIN, None)),
    Row(Api.Heartbeat, "REBALANCE_IN_PROGRESS", all_three(REASSIGNED, WAITS)),
    Row(Api.Heartbeat, "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID", all_three(REJOINS, KEEPS_JOINING)),
    Row(Api.Heartbeat, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    # Another worker holds the slot.
    Row(Api.Heartbeat, "FENCED_INSTANCE_ID UNKNOWN_MEMBER_ID", all_three(REPLACED, None), taken=True),
    Row(Api.OffsetCommit, "FENCED_INSTANCE_ID", each(None, *[Answered(REPLACED, None)] * 2), taken=True),
    Row(Api.TxnOffsetCommit, "FENCED_INSTANCE_ID PRODUCER_FENCED", exactly(REPLACED, None), taken=True),
    Row(Api.EndTxn, "PRODUCER_FENCED INVALID_PRODUCER_EPOCH disconnected", exactly(REPLACED, None), taken=True),
    # Reading. Under exactly_once the first offsets that are asked for are those of the outputs (leftovers.py).
    Row(
        Api.Fetch,
        "NOT_LEADER_FOR_PARTITION UNKNOWN_TOPIC_OR_PART FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH KAFKA_STORAGE_ERROR"
        " OFFSET_NOT_AVAILABLE UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID INVALID_MSG UNKNOWN disconnected",
        all_three(AGAIN, WAITS),
        seldom="LEADER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE REQUEST_TIMED_OUT NETWORK_EXCEPTION 106"
        " FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH UNSUPPORTED_COMPRESSION_TYPE",
    ),
    Row(Api.Fetch, "OFFSET_OUT_OF_RANGE", all_three(INPUT_LOST, INPUT_LOST)),
    Row(Api.Fetch, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    Row(
        Api.ListOffsets,
        "FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH LEADER_NOT_AVAILABLE",
        all_three(AGAIN, WAITS),
        seldom="REQUEST_TIMED_OUT",
    ),
    Row(
        Api.ListOffsets,
        "NOT_LEADER_FOR_PARTITION KAFKA_STORAGE_ERROR OFFSET_NOT_AVAILABLE",
        each(Answered(AGAIN, WAITS), Answered(REREADS, WAITS), Answered(REREADS, WAITS)),
        seldom="REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION",
    ),
    # Once is not tested: either the client or the session sends the request again.
    Row(Api.ListOffsets, "disconnected", all_three(None, WAITS)),
    Row(
        Api.ListOffsets,
        "UNKNOWN_TOPIC_OR_PART",
        each(Answered(AGAIN, BROKEN), Answered(AGAIN, BROKEN), Answered(AGAIN, GIVES_UP)),
    ),
    Row(
        Api.ListOffsets,
        "UNKNOWN",
        each(Answered(AGAIN, BROKEN), Answered(BROKEN, BROKEN), Answered(RENEWED, GIVES_UP)),
        seldom="OFFSET_OUT_OF_RANGE UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ),
    Row(
        Api.ListOffsets,
        "TOPIC_AUTHORIZATION_FAILED",
        each(Answered(AGAIN, NO_RIGHT_TO_OUTPUT), *[Answered(NO_RIGHT_TO_BEGINNINGS, NO_RIGHT_TO_BEGINNINGS)] * 2),
    ),
    # Metadata of a topic; a broken connection concerns all topics.
    Row(Api.Metadata, "UNKNOWN_TOPIC_OR_PART", all_three(None, NO_INPUT), of=INPUT),
    Row(Api.Metadata, "UNKNOWN_TOPIC_OR_PART", all_three(None, NO_OUTPUT), of=OUTPUT),
    Row(Api.Metadata, "TOPIC_AUTHORIZATION_FAILED", all_three(None, NO_RIGHT_TO_INPUT), of=INPUT),
    Row(Api.Metadata, "TOPIC_AUTHORIZATION_FAILED", all_three(None, NO_RIGHT_TO_OUTPUT), of=OUTPUT),
    # librdkafka sends about 10,000 requests a second.
    Row(Api.Metadata, "", all_three(None, WAITS), seldom="LEADER_NOT_AVAILABLE UNKNOWN TOPIC_EXCEPTION", of=INPUT),
    Row(Api.Metadata, "LEADER_NOT_AVAILABLE UNKNOWN", all_three(None, WAITS), of=OUTPUT),
    # The client reports the error, or an unknown topic, for a record at once or in its delivery report.
    Row(
        Api.Metadata,
        "TOPIC_EXCEPTION",
        each(Answered(None, WAITS), Answered(None, GIVES_UP), Answered(None, GIVES_UP)),
        of=OUTPUT,
    ),
    Row(Api.Metadata, "disconnected", each(Answered(AGAIN, GIVES_UP), Answered(AGAIN, WAITS), Answered(AGAIN, WAITS))),
)


def cells() -> Iterator[tuple[Cell, Outcome, Tier]]:
    """Yields the cells of the table with their outcomes, and where they are run."""
    shown = set[Hashable]()
    for row in TABLE:
        often = len(row.codes.split())
        for number, name in enumerate((row.codes + " " + row.seldom).split()):
            for guarantee, outcomes in row.outcomes.items():
                for forever, outcome in enumerate(outcomes):
                    if outcome is None:
                        continue
                    cell = Cell(row.api, code_of(name), bool(forever), guarantee, row.dead_letters, row.taken, row.of)
                    if number >= often:
                        yield cell, outcome, "seldom"
                    elif classes(cell, outcome) <= shown:
                        yield cell, outcome, "long"
                    else:
                        shown |= classes(cell, outcome)
                        yield cell, outcome, "quick"


def classes(cell: Cell, outcome: Outcome) -> set[Hashable]:
    """The classes of a cell (see above): the quick tier has one cell of each."""
    request, error = (cell.api, cell.topic, cell.dead_letters, cell.taken), class_of(cell.code)
    guarantee = guarantee_that_counts(cell)
    found: set[Hashable] = {(request, error, guarantee)}
    if cell.forever:
        return found | {("endless", cell.guarantee, error, outcome), ("endless", request, outcome)}
    return found | {(request, error, guarantee, outcome), (error, cell.guarantee, outcome)}


OF_GUARANTEE: Final = {
    Api.Produce,
    Api.InitProducerId,
    Api.AddPartitionsToTxn,
    Api.AddOffsetsToTxn,
    Api.TxnOffsetCommit,
    Api.EndTxn,
    Api.OffsetCommit,
}
"""Requests that write or commit, which differ by guarantee."""


def guarantee_that_counts(cell: Cell) -> str:
    """The guarantee of a cell; "" if its request is made alike under each."""
    return cell.guarantee if cell.api in OF_GUARANTEE else ""


def class_of(code: int) -> str:
    """The class of an error: the exception that kafka/errors.py makes of it, or what librdkafka does before."""
    if code == E._TRANSPORT:
        return "disconnected"
    return "moved" if code in MOVED else type(classify_error(E(code), "")).__name__


MOVED: Final = {
    E.NOT_LEADER_FOR_PARTITION,
    E.LEADER_NOT_AVAILABLE,
    E.REPLICA_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
}
"""Codes after which librdkafka asks for the leader or the coordinator again (rd_kafka_err_action)."""


def code_of(name: str) -> int:
    if name == "disconnected":
        return E._TRANSPORT
    return int(name) if name.isdigit() else int(getattr(E, name))


def cell_of(item: pytest.Function) -> Cell:
    cell = item.callspec.params["cell"]
    assert isinstance(cell, Cell)
    return cell


@pytest.fixture(scope="module")
def futures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Runs all selected cells in parallel, the longest first; each test waits for the result of its cell."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [cell_of(item) for item in items if item.function is test_session_outcome_is_that_of_the_table]
    chosen.sort(key=lambda cell: not cell.forever)
    lines, directory, log = Lines(), tmp_path_factory.mktemp("schemas"), logging.getLogger("kstreams_py")
    log.addHandler(lines)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(AT_ONCE) as pool:
        shorten_bounds(patch)
        yield {cell: pool.submit(Run(cell, lines, directory).run) for cell in chosen}
    log.removeHandler(lines)


@pytest.mark.parametrize(
    ("cell", "outcome"),
    [
        pytest.param(cell, outcome, id=str(cell), marks=[] if tier == "quick" else [pytest.mark.long])
        for cell, outcome, tier in cells()
    ],
)
def test_session_outcome_is_that_of_the_table(cell: Cell, outcome: Outcome, futures: Outcomes) -> None:
    seen = futures[cell].result()
    assert classify(cell, seen) == outcome, seen
    check(cell, seen, outcome)


def test_quick_tier_has_each_request_and_each_guarantee_with_each_class_of_error() -> None:
    found = [*cells()]
    assert len(found) == len({cell for cell, *_ in found})
    views: list[Callable[[Cell, Outcome], object]] = [
        lambda cell, _: (cell.api, cell.topic, class_of(cell.code), guarantee_that_counts(cell)),
        lambda cell, outcome: (cell.guarantee, class_of(cell.code), cell.forever, outcome),
        lambda cell, outcome: (cell.api, cell.topic, cell.dead_letters, cell.taken, cell.forever, outcome),
    ]
    for view in views:
        quick = {view(cell, outcome) for cell, outcome, tier in found if tier == "quick"}
        assert {view(cell, outcome) for cell, outcome, tier in found if tier != "seldom"} == quick


def classify(cell: Cell, seen: Seen) -> Outcome:
    """Returns the outcome of a cell; a sentence if the table has no such outcome."""
    if seen.ended is not None:
        return next((each for each in ENDS if matches_end(seen.ended, each)), f"ends with {seen.ended!r}")
    return classify_endless(seen) if cell.forever else classify_once(cell, seen)


def classify_endless(seen: Seen) -> Outcome:
    if seen.waited:
        return KEEPS_JOINING if sum(map(is_rejoining, seen.warnings)) > 1 else WAITS
    if not seen.done:
        return "stands still without a warning"
    if seen.dead:
        return DEAD_LETTERS
    return LOSES if seen.lost else PASSES


def classify_once(cell: Cell, seen: Seen) -> Outcome:
    """The outcome of one error; the strongest reaction decides."""
    again = len(seen.calls) > len(set(seen.calls))
    if seen.lost:
        return LOSES
    if seen.rejoined:
        return REPEATS if seen.doubled else REJOINS
    if seen.producers > 1 and seen.asked:
        return RENEWS
    if seen.producers > 1:
        return COPIES if seen.doubled else REDOES if again else RENEWED
    if seen.aborted:
        return ABORTS
    if seen.assigned > 1:
        return REASSIGNED
    if seen.recovered:
        return REWRITES if cell.api is Api.Produce else REREADS
    return AGAIN


ENDS: Final = [each for each in globals().values() if isinstance(each, Ends) and each is not BROKEN] + [BROKEN]


def matches_end(error: Exception, end: Ends) -> bool:
    return type(error) is end.error and bool(re.search(end.named, str(error)))


def check(cell: Cell, seen: Seen, outcome: Outcome) -> None:
    """Checks what must hold for every outcome."""
    if isinstance(outcome, Ends):
        assert isinstance(seen.ended, KStreamsError)
        assert seen.ended.exit_status == outcome.status
    # under endless errors a session may end before the worker reaches the group: it joins again, and repeats
    may_double = outcome in (COPIES, REPEATS) or (
        cell.guarantee is AT_LEAST_ONCE and (outcome is GIVES_UP or (cell.forever and seen.rejoined))
    )
    if not may_double:
        assert seen.doubled == []
        assert seen.outputs == sorted(seen.outputs)
    # what at_most_once was writing is lost with its membership, too
    may_lose = outcome is LOSES or (
        cell.guarantee is AT_MOST_ONCE and (seen.ended is not None or (cell.forever and seen.rejoined))
    )
    if not may_lose:
        assert seen.lost == []
    if cell.guarantee is AT_MOST_ONCE:
        assert len(seen.calls) == len(set(seen.calls))
    if outcome is LOSES or (seen.lost and seen.ended is None):
        assert any(re.search(r"at most once: (an output is|outputs may be) lost", line) for line in seen.warnings)


def shorten_bounds(patch: pytest.MonkeyPatch) -> None:
    """Sets bounds of counts and pauses as low as possible. Limits of calls stay: what is slow must not look broken."""
    bounds: dict[ModuleType, dict[str, float]] = {
        attempts: {"FAILURES_WARNED": 1, "FAILURES_MAX": 3, "PRODUCERS_MAX": 2, "CALLS_MAX": 2},
        worker: {"IDLE_WAIT": 0.1},
        silence: {"STILL_SECONDS": 2.0},
        consumer: {"JOIN_AGAIN_SECONDS": 0.05, "JOIN_TURN_SECONDS": 0.1},
        producer: {"FLUSH_SECONDS": 0.02},
    }
    for module, values in bounds.items():
        for name, value in values.items():
            patch.setattr(module, name, value)
    patch.setattr(Pace, "FETCH_SECONDS", 1_000.0)  # else a slow step makes the next fetch one record
