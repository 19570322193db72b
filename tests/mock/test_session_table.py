"""What a session does: every request, every code that it may be answered with, once and for ever, per guarantee.

`TABLE` is the whole of it, and the tests read it. The codes are those that Kafka's protocol documents for the request
(its *Response.java), those that its brokers answer besides, and a connection that breaks (-195). Each cell is a real
worker on a mock cluster (session.py): its outcome is that of its row, and besides

- answered once, nothing is lost, doubled or out of order, unless the outcome says so, and a record that comes later
  goes through; `at_most_once` never doubles,
- answered for ever, the worker ends with an error that names what is wrong, or says again and again why it waits; once
  the answers are well again, it goes on and all is there,
- whatever was committed when it ended is in the output; `at_most_once` may lose by its end what it could not write.

What a mock cluster cannot show: fencing, and who a membership was lost to (the group's answer is a stub); positions and
outputs of a transaction are hidden or not by a ledger, in which an answer of success is a commit; a commit that was
carried out and answered with an error; DUPLICATE_SEQUENCE_NUMBER, by which a broker says that it has the batch; what
a broker answers to DescribeGroups, DescribeConfigs and LeaveGroup. Codes of ShareFetch and of the new consumer protocol
are left out, as are request-level codes of Metadata, which a mock cluster does not send.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import confluent_kafka as ck
import pytest

from kstreams_py.delivery import Guarantee
from kstreams_py.engine import transaction, worker
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
from kstreams_py.ports import kafka
from kstreams_py.ports.kafka import consumer, producer, silence
from tests.mock.cluster import Api
from tests.mock.session import INPUT, OUTPUT, Cell, Lines, Run, Seen, is_rejoining

E = ck.KafkaError
EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE = Guarantee

AT_ONCE: Final = 100
"""Cells that run side by side; most wait."""

# Outcomes. Answered once:
AGAIN: Final = "asked again"
ABORTS: Final = "aborted and done again"
RENEWS: Final = "the group asked, a new producer, and what was open done again"
REDOES: Final = "a new producer, and what was not committed done again"
RENEWED: Final = "a new producer"
REWRITES: Final = "its outputs are written again, without a call of the function"
REREADS: Final = "the committed positions read again"
REJOINS: Final = "the group asked who holds the membership, and joined again"
REPEATS: Final = "joined again, and outputs written a second time"
COPIES: Final = "a new producer, and outputs written a second time"
DEALT: Final = "partitions are dealt again"
LOSES: Final = "an output is lost, and the log says so"
# Answered for ever:
WAITS: Final = "waits, and says so again and again"
KEEPS_JOINING: Final = "joins again and again, and says so"
PASSES: Final = "goes on all the same"
LETTERS: Final = "each record becomes a dead letter"


class Ends(NamedTuple):
    """The worker ends with this error, whose text has this in it, and this exit status."""

    error: type[KStreamsError]
    named: str
    status: int


BROKEN: Final = Ends(Fatal, r".", 1)
"""At once: nothing that is known mends it. The supervisor starts the slot again."""
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
TOO_LARGE: Final = Ends(RecordTooLarge, r"a record for topic 'out' is larger than it takes", 2)
NO_INPUT: Final = Ends(TopicError, r"topic 'in' does not exist", 2)
NO_OUTPUT: Final = Ends(TopicError, r"topic 'out' does not exist", 2)
NO_MEMBER: Final = Ends(SettingsError, r"the group 'g\.p' takes no member", 2)
NO_SUCH_TIMEOUT: Final = Ends(SettingsError, r"transaction_timeout_ms", 2)
INPUT_LOST: Final = Ends(InputLost, r"in\[0\]: the records at the committed position were deleted", 5)
REPLACED: Final = Ends(Replaced, r"another worker has taken the slot", 4)

Outcome = str | Ends
Outcomes = dict[Cell, Future[Seen]]


class Once(NamedTuple):
    """What one such answer comes to, and what answers without end come to; None: not tried."""

    once: Outcome | None
    forever: Outcome | None


class Row(NamedTuple):
    """Codes with the same outcomes, by guarantee; the seldom ones are tried by scripts/test-long."""

    api: Api
    codes: str
    outcomes: dict[Guarantee, Once]
    seldom: str = ""
    of: str = ""
    letters: bool = True
    taken: bool = False


def all_three(once: Outcome | None, forever: Outcome | None) -> dict[Guarantee, Once]:
    return dict.fromkeys(Guarantee, Once(once, forever))


def each(exactly: Once | None, least: Once | None, most: Once | None) -> dict[Guarantee, Once]:
    found = {EXACTLY_ONCE: exactly, AT_LEAST_ONCE: least, AT_MOST_ONCE: most}
    return {guarantee: outcome for guarantee, outcome in found.items() if outcome is not None}


def exactly(once: Outcome | None, forever: Outcome | None) -> dict[Guarantee, Once]:
    return {EXACTLY_ONCE: Once(once, forever)}


TABLE: Final = (
    # Produce: of the outputs.
    Row(
        Api.Produce,
        "NOT_LEADER_FOR_PARTITION UNKNOWN_TOPIC_OR_PART REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS"
        " NOT_ENOUGH_REPLICAS_AFTER_APPEND KAFKA_STORAGE_ERROR INVALID_MSG",
        each(Once(AGAIN, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
        seldom="LEADER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE"
        " NOT_COORDINATOR",
    ),
    Row(
        Api.Produce,
        "disconnected UNKNOWN_PRODUCER_ID",
        each(Once(RENEWS, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
    ),
    # It may have been written. At most once must not write it again.
    Row(
        Api.Produce,
        "UNKNOWN",
        each(Once(ABORTS, GIVES_UP), Once(REDOES, GIVES_UP), Once(LOSES, LOSES)),
        seldom="NETWORK_EXCEPTION",
    ),
    Row(
        Api.Produce,
        "TOPIC_EXCEPTION INVALID_REQUIRED_ACKS",
        each(Once(ABORTS, GIVES_UP), Once(REDOES, GIVES_UP), Once(REWRITES, GIVES_UP)),
        seldom="THROTTLING_QUOTA_EXCEEDED INVALID_PRINCIPAL_TYPE",
    ),
    Row(
        Api.Produce,
        "INVALID_PRODUCER_EPOCH INVALID_PRODUCER_ID_MAPPING INVALID_TXN_STATE PRODUCER_FENCED",
        each(Once(RENEWS, GIVES_UP), Once(REDOES, GIVES_UP), Once(REWRITES, GIVES_UP)),
    ),
    Row(
        Api.Produce,
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        each(Once(BROKEN, BROKEN), Once(BROKEN, BROKEN), Once(LOSES, LOSES)),
    ),
    Row(
        Api.Produce,
        "INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION MSG_SIZE_TOO_LARGE",
        each(Once(ABORTS, LETTERS), Once(REDOES, LETTERS), Once(AGAIN, LETTERS)),
        seldom="RECORD_LIST_TOO_LARGE UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ),
    Row(
        Api.Produce,
        "INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION",
        each(Once(REFUSED, REFUSED), Once(REFUSED, REFUSED), Once(AGAIN, REFUSED)),
        seldom="UNSUPPORTED_FOR_MESSAGE_FORMAT",
        letters=False,
    ),
    Row(
        Api.Produce,
        "MSG_SIZE_TOO_LARGE",
        each(Once(TOO_LARGE, TOO_LARGE), Once(TOO_LARGE, TOO_LARGE), Once(AGAIN, TOO_LARGE)),
        seldom="RECORD_LIST_TOO_LARGE",
        letters=False,
    ),
    Row(Api.Produce, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_OUTPUT, NO_RIGHT_TO_OUTPUT)),
    Row(Api.Produce, "CLUSTER_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_CLUSTER, NO_RIGHT_TO_CLUSTER)),
    Row(Api.Produce, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", exactly(NO_RIGHT_TO_ID, NO_RIGHT_TO_ID)),
    # Producer ids, with a transactional id and without.
    Row(
        Api.InitProducerId,
        "COORDINATOR_LOAD_IN_PROGRESS CONCURRENT_TRANSACTIONS REQUEST_TIMED_OUT UNKNOWN",
        each(Once(AGAIN, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
        seldom="INVALID_REQUEST INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING NETWORK_EXCEPTION"
        " INVALID_PRINCIPAL_TYPE THROTTLING_QUOTA_EXCEEDED",
    ),
    # librdkafka asks some 2,000 times a second: a processor, for ever.
    Row(Api.InitProducerId, "COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR", all_three(AGAIN, None)),
    Row(Api.InitProducerId, "", exactly(None, GIVES_UP), seldom="COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR"),
    Row(
        Api.InitProducerId,
        "disconnected",
        each(Once(RENEWS, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
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
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE CONCURRENT_TRANSACTIONS",
        exactly(AGAIN, GIVES_UP),
        seldom="REQUEST_TIMED_OUT",
    ),
    Row(Api.AddOffsetsToTxn, "NOT_COORDINATOR", exactly(AGAIN, GIVES_UP)),
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
    # Positions.
    Row(
        Api.OffsetCommit,
        "COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR REQUEST_TIMED_OUT"
        " UNKNOWN_TOPIC_OR_PART",
        each(None, Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
        seldom="NETWORK_EXCEPTION THROTTLING_QUOTA_EXCEEDED",
    ),
    Row(Api.OffsetCommit, "disconnected", each(None, Once(REJOINS, WAITS), Once(REJOINS, WAITS))),
    Row(
        Api.OffsetCommit,
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID FENCED_INSTANCE_ID",
        each(None, Once(REPEATS, GIVES_UP), Once(REJOINS, GIVES_UP)),
    ),
    Row(Api.OffsetCommit, "REBALANCE_IN_PROGRESS", each(None, Once(COPIES, GIVES_UP), Once(REREADS, GIVES_UP))),
    Row(
        Api.OffsetCommit,
        "UNKNOWN OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE",
        each(None, Once(BROKEN, BROKEN), Once(RENEWED, GIVES_UP)),
        seldom="INVALID_GROUP_ID GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH",
    ),
    Row(
        Api.OffsetCommit,
        "TOPIC_AUTHORIZATION_FAILED",
        each(None, Once(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT), Once(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    ),
    Row(
        Api.OffsetCommit,
        "GROUP_AUTHORIZATION_FAILED",
        each(None, Once(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP), Once(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
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
    # The group began with a plain commit on that connection, which may come late.
    Row(Api.OffsetFetch, "disconnected", each(Once(AGAIN, WAITS), Once(REJOINS, WAITS), Once(REJOINS, WAITS))),
    Row(Api.OffsetFetch, "UNKNOWN_MEMBER_ID ILLEGAL_GENERATION", all_three(REREADS, GIVES_UP)),
    Row(Api.OffsetFetch, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    Row(
        Api.OffsetFetch,
        "UNKNOWN",
        each(Once(BROKEN, BROKEN), Once(BROKEN, BROKEN), Once(RENEWED, GIVES_UP)),
        seldom="INVALID_GROUP_ID GROUP_ID_NOT_FOUND STALE_MEMBER_EPOCH",
    ),
    Row(Api.OffsetFetch, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_INPUT, NO_RIGHT_TO_INPUT)),
    Row(Api.OffsetFetch, "GROUP_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_GROUP, NO_RIGHT_TO_GROUP)),
    # Membership.
    Row(
        Api.FindCoordinator,
        "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS UNKNOWN disconnected",
        each(Once(AGAIN, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS)),
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
    # With plain commits it may have carried one: then the member joins again.
    Row(Api.Heartbeat, "disconnected", exactly(AGAIN, None)),
    Row(Api.Heartbeat, "REBALANCE_IN_PROGRESS", all_three(DEALT, WAITS)),
    Row(Api.Heartbeat, "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID", all_three(REJOINS, KEEPS_JOINING)),
    Row(Api.Heartbeat, "FENCED_INSTANCE_ID", all_three(REJOINS, GIVES_UP)),
    # Another worker holds the slot.
    Row(Api.Heartbeat, "FENCED_INSTANCE_ID UNKNOWN_MEMBER_ID", all_three(REPLACED, None), taken=True),
    Row(Api.OffsetCommit, "FENCED_INSTANCE_ID", each(None, *[Once(REPLACED, None)] * 2), taken=True),
    Row(Api.TxnOffsetCommit, "FENCED_INSTANCE_ID PRODUCER_FENCED", exactly(REPLACED, None), taken=True),
    Row(Api.EndTxn, "PRODUCER_FENCED INVALID_PRODUCER_EPOCH disconnected", exactly(REPLACED, None), taken=True),
    # Reading.
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
        all_three(REREADS, WAITS),
        seldom="REPLICA_NOT_AVAILABLE NETWORK_EXCEPTION",
    ),
    # Once: asked again by the client or by the session, as it happens.
    Row(Api.ListOffsets, "disconnected", all_three(None, WAITS)),
    Row(
        Api.ListOffsets,
        "UNKNOWN_TOPIC_OR_PART",
        each(Once(AGAIN, BROKEN), Once(AGAIN, BROKEN), Once(AGAIN, GIVES_UP)),
    ),
    Row(
        Api.ListOffsets,
        "UNKNOWN",
        each(Once(BROKEN, BROKEN), Once(BROKEN, BROKEN), Once(RENEWED, GIVES_UP)),
        seldom="OFFSET_OUT_OF_RANGE UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ),
    Row(Api.ListOffsets, "TOPIC_AUTHORIZATION_FAILED", all_three(NO_RIGHT_TO_BEGINNINGS, NO_RIGHT_TO_BEGINNINGS)),
    # Metadata of a topic; a broken connection is all topics'.
    Row(Api.Metadata, "UNKNOWN_TOPIC_OR_PART", all_three(None, NO_INPUT), of=INPUT),
    Row(Api.Metadata, "UNKNOWN_TOPIC_OR_PART", all_three(None, NO_OUTPUT), of=OUTPUT),
    Row(Api.Metadata, "TOPIC_AUTHORIZATION_FAILED", all_three(None, NO_RIGHT_TO_INPUT), of=INPUT),
    Row(Api.Metadata, "TOPIC_AUTHORIZATION_FAILED", all_three(None, NO_RIGHT_TO_OUTPUT), of=OUTPUT),
    # librdkafka asks some 10,000 times a second.
    Row(Api.Metadata, "", all_three(None, WAITS), seldom="LEADER_NOT_AVAILABLE UNKNOWN TOPIC_EXCEPTION", of=INPUT),
    Row(
        Api.Metadata,
        "LEADER_NOT_AVAILABLE UNKNOWN",
        each(Once(None, GIVES_UP), Once(None, WAITS), Once(None, WAITS)),
        of=OUTPUT,
    ),
    Row(
        Api.Metadata,
        "TOPIC_EXCEPTION",
        each(Once(None, BROKEN), Once(None, GIVES_UP), Once(None, GIVES_UP)),
        of=OUTPUT,
    ),
    Row(Api.Metadata, "disconnected", each(Once(AGAIN, GIVES_UP), Once(AGAIN, WAITS), Once(AGAIN, WAITS))),
)


def cells() -> Iterator[Any]:
    """The cells of the table with their outcomes, as parameters."""
    for row in TABLE:
        often = len(row.codes.split())
        for number, name in enumerate((row.codes + " " + row.seldom).split()):
            marks = [pytest.mark.long] if number >= often else []
            for guarantee, outcomes in row.outcomes.items():
                for forever, outcome in enumerate(outcomes):
                    if outcome is not None:
                        cell = Cell(row.api, code_of(name), bool(forever), guarantee, row.letters, row.taken, row.of)
                        yield pytest.param(cell, outcome, id=str(cell), marks=marks)


def code_of(name: str) -> int:
    if name == "disconnected":
        return E._TRANSPORT
    return int(name) if name.isdigit() else int(getattr(E, name))


@pytest.fixture(scope="module")
def carried_out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """All cells that were selected, carried out side by side; an answer is waited for as its test asks."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [item.callspec.params["cell"] for item in items if item.function is test_session_does_what_the_table_says]
    lines, directory, log = Lines(), tmp_path_factory.mktemp("schemas"), logging.getLogger("kstreams_py")
    log.addHandler(lines)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(AT_ONCE) as pool:
        quicken(patch)
        yield {cell: pool.submit(Run(cell, lines, directory).run) for cell in chosen}
    log.removeHandler(lines)


@pytest.mark.parametrize(("cell", "outcome"), [*cells()])
def test_session_does_what_the_table_says(cell: Cell, outcome: Outcome, carried_out: Outcomes) -> None:
    seen = carried_out[cell].result()
    assert told(cell, seen) == outcome, seen
    check(cell, seen, outcome)


def told(cell: Cell, seen: Seen) -> Outcome:
    """What became of a cell, in a word of the table; a sentence if there is none for it."""
    if seen.ended is not None:
        return next((each for each in ENDS if is_end(seen.ended, each)), f"ends with {seen.ended!r}")
    return told_forever(seen) if cell.forever else told_once(cell, seen)


def told_forever(seen: Seen) -> Outcome:
    if seen.waited:
        return KEEPS_JOINING if sum(map(is_rejoining, seen.warnings)) > 1 else WAITS
    if not seen.done:
        return "stands still without a word"
    if seen.dead:
        return LETTERS
    return LOSES if seen.lost else PASSES


def told_once(cell: Cell, seen: Seen) -> Outcome:
    """In order of what is done about it: the most comes first."""
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
        return DEALT
    if seen.recovered:
        return REWRITES if cell.api is Api.Produce else REREADS
    return AGAIN


ENDS: Final = [each for each in globals().values() if isinstance(each, Ends) and each is not BROKEN] + [BROKEN]


def is_end(error: Exception, end: Ends) -> bool:
    return type(error) is end.error and bool(re.search(end.named, str(error)))


def check(cell: Cell, seen: Seen, outcome: Outcome) -> None:
    """What holds whatever the table says."""
    if isinstance(outcome, Ends):
        assert isinstance(seen.ended, KStreamsError)
        assert seen.ended.exit_status == outcome.status
    may_double = outcome in (COPIES, REPEATS) or (
        cell.guarantee is AT_LEAST_ONCE and outcome in (GIVES_UP, KEEPS_JOINING)
    )
    if not may_double:
        assert seen.doubled == []
        assert seen.outputs == sorted(seen.outputs)
    if outcome is not LOSES and not (cell.guarantee is AT_MOST_ONCE and seen.ended is not None):
        assert seen.lost == []
    if cell.guarantee is AT_MOST_ONCE:
        assert len(seen.calls) == len(set(seen.calls))
    if outcome is LOSES:
        assert any(re.search(r"at most once: (an output is|outputs may be) lost", line) for line in seen.warnings)


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Bounds and pauses of the product as low as they can be."""
    for module, values in {
        transaction: {"ABORTS_WARNED": 1, "ABORTS_MAX": 3, "RENEWALS_MAX": 2, "CALLS_MAX": 2, "END_SECONDS": 1.0},
        worker: {"IDLE_WAIT": 0.1},
        kafka: {"ENDS_SECONDS": 1.5},
        silence: {"STILL_SECONDS": 2.0},
        consumer: {"RETURN_SECONDS": 0.05},
        producer: {
            "ABORT_FLUSH_SECONDS": 0.5,
            "CALL_GRACE_SECONDS": 0.5,
        },
    }.items():
        for name, value in values.items():
            patch.setattr(module, name, value)
