"""kafka/errors.py: one table of every error code of the client with its exception."""

from __future__ import annotations

import confluent_kafka as ck
import pytest

from kstreams_py.errors import (
    Abortable,
    Fatal,
    Fenced,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    Retriable,
    SettingsError,
)
from kstreams_py.kafka.errors import classify
from tests.tables import each_case

E = ck.KafkaError

TABLE: dict[str, tuple[type[KStreamsError], str]] = {
    "the cluster is unreachable or busy": (
        Retriable,
        """
        _TRANSPORT _RESOLVE _ALL_BROKERS_DOWN _TIMED_OUT _TIMED_OUT_QUEUE _DESTROY_BROKER REQUEST_TIMED_OUT
        NETWORK_EXCEPTION KAFKA_STORAGE_ERROR NOT_ENOUGH_REPLICAS
        NOT_ENOUGH_REPLICAS_AFTER_APPEND THROTTLING_QUOTA_EXCEEDED
        """,
    ),
    "a leader or coordinator is moving": (
        Retriable,
        """
        _WAIT_COORD COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR
        LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE LISTENER_NOT_FOUND
        FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH OFFSET_NOT_AVAILABLE NOT_CONTROLLER
        """,
    ),
    "a transaction before this one is not over": (Retriable, "CONCURRENT_TRANSACTIONS UNSTABLE_OFFSET_COMMIT"),
    "the group has changed, or the broker asks for an abort": (
        Abortable,
        "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS TRANSACTION_ABORTABLE",
    ),
    "another producer or member has taken over": (
        Fenced,
        "_FENCED INVALID_PRODUCER_EPOCH PRODUCER_FENCED FENCED_INSTANCE_ID",
    ),
    "the broker has forgotten the producer, or the client its state": (
        OutcomeUnknown,
        "_STATE INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING UNKNOWN_PRODUCER_ID",
    ),
    "a right is missing": (
        NotAuthorized,
        """
        TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        """,
    ),
    "the credentials are refused": (
        Fatal,
        """
        _AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE
        SECURITY_DISABLED DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTH_DISABLED
        DELEGATION_TOKEN_NOT_FOUND DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        DELEGATION_TOKEN_EXPIRED INVALID_PRINCIPAL_TYPE UNACCEPTABLE_CREDENTIAL PRINCIPAL_DESERIALIZATION_FAILURE
        """,
    ),
    "a record is refused each time, in the report of its delivery": (
        Fatal,
        """
        INVALID_RECORD INVALID_TIMESTAMP POLICY_VIOLATION UNSUPPORTED_FOR_MESSAGE_FORMAT _INVALID_DIFFERENT_RECORD
        MSG_SIZE_TOO_LARGE INVALID_MSG_SIZE RECORD_LIST_TOO_LARGE
        """,
    ),
    "a delivery failed": (
        Fatal,
        """
        _MSG_TIMED_OUT _QUEUE_FULL _PURGE_QUEUE _PURGE_INFLIGHT _RETRY _ISR_INSUFF
        INVALID_MSG OUT_OF_ORDER_SEQUENCE_NUMBER DUPLICATE_SEQUENCE_NUMBER
        """,
    ),
    "a setting or name is wrong, or a topic is missing": (
        Fatal,
        """
        UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID INCONSISTENT_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION TOPIC_EXCEPTION
        TOPIC_ALREADY_EXISTS TOPIC_DELETION_DISABLED INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
        INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUIRED_ACKS
        UNSUPPORTED_COMPRESSION_TYPE
        INVALID_SESSION_TIMEOUT INVALID_GROUP_ID INCONSISTENT_GROUP_PROTOCOL GROUP_MAX_SIZE_REACHED
        GROUP_SUBSCRIBED_TO_TOPIC OFFSET_METADATA_TOO_LARGE INVALID_COMMIT_OFFSET_SIZE _UNKNOWN_GROUP _NOT_CONFIGURED
        _INVALID_ARG
        """,
    ),
    "the broker takes no transaction of such a time-out": (SettingsError, "INVALID_TRANSACTION_TIMEOUT"),
    "the broker or the client is of another version, or broken": (
        Fatal,
        """
        UNKNOWN UNSUPPORTED_VERSION INVALID_REQUEST _UNSUPPORTED_FEATURE _FATAL _INCONSISTENT _GAPLESS_GUARANTEE
        _BAD_MSG _BAD_COMPRESSION _DESTROY _FAIL _CRIT_SYS_RESOURCE _FS _INTR _CONFLICT _IN_PROGRESS _PREV_IN_PROGRESS
        _INVALID_TYPE _NOOP _OUTDATED _PARTIAL _READ_ONLY _UNDERFLOW _UNKNOWN_BROKER _UNKNOWN_PROTOCOL _NOT_IMPLEMENTED
        """,
    ),
    "no call of this project ends with it": (
        Fatal,
        """
        NO_ERROR OFFSET_OUT_OF_RANGE STALE_CTRL_EPOCH STALE_BROKER_EPOCH TRANSACTION_COORDINATOR_FENCED
        OPERATION_NOT_ATTEMPTED LOG_DIR_NOT_FOUND REASSIGNMENT_IN_PROGRESS NON_EMPTY_GROUP GROUP_ID_NOT_FOUND
        FETCH_SESSION_ID_NOT_FOUND INVALID_FETCH_SESSION_EPOCH MEMBER_ID_REQUIRED PREFERRED_LEADER_NOT_AVAILABLE
        ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS RESOURCE_NOT_FOUND
        DUPLICATE_RESOURCE INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION FEATURE_UPDATE_FAILED FENCED_MEMBER_EPOCH
        UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH MISMATCHED_ENDPOINT_TYPE
        UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION
        INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY
        DUPLICATE_VOTER VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED STREAMS_INVALID_TOPOLOGY
        STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED SHARE_SESSION_LIMIT_REACHED
        _APPLICATION _ASSIGNMENT_LOST _ASSIGN_PARTITIONS _REVOKE_PARTITIONS _AUTO_OFFSET_RESET _EXISTING_SUBSCRIPTION
        _KEY_DESERIALIZATION _KEY_SERIALIZATION _VALUE_DESERIALIZATION _VALUE_SERIALIZATION _LOG_TRUNCATION
        _MAX_POLL_EXCEEDED _NODE_UPDATE _NOENT _NO_OFFSET _PARTITION_EOF _WAIT_CACHE
        """,
    ),
}
"""The reason, the exception and the codes: each code of the client once. Flags of an error override the table."""


def codes() -> dict[str, int]:
    """Every code of the client by its name."""
    return {
        name: value
        for name, value in vars(E).items()
        if isinstance(value, int) and name.lstrip("_")[:1].isupper() and not name.startswith("__")
    }


def test_every_code_of_the_client_is_in_the_table_once() -> None:
    named = [name for _, names in TABLE.values() for name in names.split()]
    assert sorted(named) == sorted(codes())


@each_case("why", TABLE)
def test_error_code_maps_to_its_exception(why: str) -> None:
    leaf, names = TABLE[why]
    found = {name: type(classify(E(codes()[name]), "committing")) for name in names.split()}
    assert found == dict.fromkeys(found, leaf)


@pytest.mark.parametrize(
    ("fatal", "retriable", "aborts", "leaf"),
    [(True, False, False, Fatal), (False, True, False, Retriable), (False, False, True, Abortable)],
)
def test_flag_of_an_error_overrides_its_code(
    fatal: bool, retriable: bool, aborts: bool, leaf: type[KStreamsError]
) -> None:
    """Except Fenced, OutcomeUnknown, NotAuthorized and SettingsError, which no flag overrides."""
    kept = {Fenced, OutcomeUnknown, NotAuthorized, SettingsError} | ({Abortable} if retriable else set())
    table = {name: own for own, names in TABLE.values() for name in names.split()}
    found = {n: type(classify(E(c, "why", fatal, retriable, aborts), "committing")) for n, c in codes().items()}
    assert found == {name: own if own in kept else leaf for name, own in table.items()}


def test_error_message_names_the_action_and_the_code() -> None:
    message = str(classify(E(E.NOT_COORDINATOR), "committing offsets"))
    assert message == "committing offsets: Broker: Not coordinator (NOT_COORDINATOR)"
