"""Maps librdkafka's error codes to the exceptions of errors.py, and watches its log for what the codes omit."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from functools import cache
from typing import Final

import confluent_kafka as ck

from kstreams_py.errors import (
    Abortable,
    Fatal,
    Fenced,
    KStreamsError,
    NotAuthorized,
    OutcomeUnknown,
    RecordRefused,
    RecordTooLarge,
    Retriable,
    SettingsError,
)
from kstreams_py.kafka.credentials.tokens import TokenSource

logger = logging.getLogger(__name__)
E = ck.KafkaError  # codes that begin with an underscore are the client's own

FENCED: Final = {
    E._FENCED,
    E.FENCED_INSTANCE_ID,
    E.PRODUCER_FENCED,
    E.INVALID_PRODUCER_EPOCH,
}
_UNKNOWN_PRODUCER: Final = {E.INVALID_PRODUCER_ID_MAPPING, E.UNKNOWN_PRODUCER_ID, E._STATE, E.INVALID_TXN_STATE}
"""The broker has forgotten a producer idle beyond transactional.id.expiration.ms, or a call does not suit its state."""

_MUST_ABORT: Final = {E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID, E.REBALANCE_IN_PROGRESS, E.TRANSACTION_ABORTABLE}
"""The group has rebalanced, or the broker asks for an abort."""

CONNECTION: Final = {E._TRANSPORT, E._RESOLVE, E._SSL, E._AUTHENTICATION}
"""Errors of a connection to a broker; their texts contain the broker's address."""

UNREACHABLE: Final = {E._TRANSPORT, E._ALL_BROKERS_DOWN, E._RESOLVE, E._TIMED_OUT}
_TRANSIENT: Final = {
    E._TIMED_OUT_QUEUE,
    E._WAIT_COORD,
    E._DESTROY_BROKER,
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.COORDINATOR_NOT_AVAILABLE,
    E.NOT_COORDINATOR,
    E.CONCURRENT_TRANSACTIONS,
    E.UNSTABLE_OFFSET_COMMIT,
    E.REQUEST_TIMED_OUT,
    E.NETWORK_EXCEPTION,
    E.LEADER_NOT_AVAILABLE,
    E.NOT_LEADER_FOR_PARTITION,
    E.BROKER_NOT_AVAILABLE,
    E.REPLICA_NOT_AVAILABLE,
    E.LISTENER_NOT_FOUND,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.OFFSET_NOT_AVAILABLE,
    E.NOT_CONTROLLER,
    E.KAFKA_STORAGE_ERROR,
    E.NOT_ENOUGH_REPLICAS,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    E.THROTTLING_QUOTA_EXCEEDED,
}
STALE: Final = {E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH, E.NOT_LEADER_FOR_PARTITION}
UNAUTHENTICATED: Final = {E._AUTHENTICATION, E.SASL_AUTHENTICATION_FAILED, E._SSL}

RIGHTS: Final = {
    E.TOPIC_AUTHORIZATION_FAILED: "READ on the topic if it is read, WRITE if it is written, DESCRIBE and "
    "DESCRIBE_CONFIGS, and CREATE, ALTER and DELETE if its name begins with __ks",
    E.GROUP_AUTHORIZATION_FAILED: "READ and DESCRIBE on the consumer group",
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE and DESCRIBE on the transactional id",
    E.CLUSTER_AUTHORIZATION_FAILED: "WRITE on the topics that it writes (before Kafka 2.8, IDEMPOTENT_WRITE on the "
    "cluster), or CREATE where topics are created",
}

TESTED_CLIENTS: Final = frozenset({"2.16.0"})
"""Versions of librdkafka whose log messages `ClientLog` recognizes (tests/mock/test_client_log.py)."""

JOIN_REFUSED: Final = {
    E.INCONSISTENT_GROUP_PROTOCOL: "another program is a member of this group: stop it, or rename the graph",
    E.INVALID_GROUP_ID: "correct the names of the graph and the processor",
    E.INVALID_SESSION_TIMEOUT: "keep session_timeout_ms between the broker's group.min.session.timeout.ms and "
    "group.max.session.timeout.ms",
    E.GROUP_MAX_SIZE_REACHED: "run fewer slots, or raise the broker's group.max.size",
}
"""Errors that keep a member from joining, each with its remedy; the client only reports and retries them."""

MEMBERSHIP_LOST: Final = "fenced by other consumer"
"""librdkafka's text for FENCED_INSTANCE_ID: the fatal error that it reports does not have this code."""

_NOT_ADDED: Final = re.compile(
    rf'Failed to add partition "(.+)" \[\d+\] to transaction: {ck.KafkaError(E.TOPIC_AUTHORIZATION_FAILED).str()}'
)
"""librdkafka's text for a missing right to a topic of a transaction: the error that it reports names no topic."""

TOO_LARGE: Final = {E.MSG_SIZE_TOO_LARGE, E.INVALID_MSG_SIZE, E.RECORD_LIST_TOO_LARGE}

REFUSED: Final = TOO_LARGE | {
    E.INVALID_RECORD,
    E.INVALID_TIMESTAMP,
    E.POLICY_VIOLATION,
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    E._INVALID_DIFFERENT_RECORD,
}
"""Errors of every attempt at a batch; the last code is reported for the other records of a refused batch."""


NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"
"""The beginning of librdkafka's text if it gets no token; the error has the code of refused credentials."""

WITHOUT_TOKEN_SECONDS: Final = 30.0
"""Seconds for which, after a failure to get a token, a refusal counts as the failure's consequence.

A client tries to get a token every 10 s, and signs in with the previous one until that has expired.
"""

_NOT_REFUSED: Final = re.compile(
    r"not valid in current SASL state|SSL transport error|"
    r"mechanism handshake failed: (?!Broker: Unsupported SASL mechanism)"
)
"""Parts of the messages of errors with a code of refused credentials, although no credentials were refused.

Either the connection was lost while the client signed in, or the client signed in again within a second, as clients do
when a token is about to expire.
"""

_REFUSED_CLIENT: Final = re.compile(
    r"\b(invalid_client|invalid_grant|invalid_scope|unauthorized_client|unsupported_grant_type|access_denied)\b"
)
"""Error codes with which a token endpoint rejects a client (RFC 6749, 5.2); librdkafka does not report the status."""


def has_no_token(error: ck.KafkaError) -> bool:
    """Returns whether the client waits for an OAUTHBEARER token."""
    return error.code() == E._AUTHENTICATION and error.str().startswith(NO_TOKEN)


def refuses_credentials(error: ck.KafkaError) -> bool:
    """Returns whether a broker or token endpoint refuses the credentials. A missing token is an outage: wait for it."""
    if has_no_token(error):
        return bool(_REFUSED_CLIENT.search(error.str()))
    return error.code() in UNAUTHENTICATED and _NOT_REFUSED.search(error.str()) is None


def name_object(
    doing: str, error: ck.KafkaError, *, topics: Iterable[str] = (), group: str = "", transactional_id: str = ""
) -> str:
    """Adds to `doing` the object of a missing right, which the error omits: the topic, group or transactional id."""
    objects = {
        E.TOPIC_AUTHORIZATION_FAILED: " or ".join(f"topic {topic!r}" for topic in sorted(set(topics))),
        E.GROUP_AUTHORIZATION_FAILED: f"group {group!r}" if group else "",
        E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"transactional id {transactional_id!r}" if transactional_id else "",
    }
    return f"{doing} ({found})" if (found := objects.get(error.code())) else doing


def not_authorized(error: ck.KafkaError, doing: str) -> NotAuthorized:
    """Returns the exception for a missing right, with the right's name; `doing` describes the failed call."""
    return NotAuthorized(
        f"{doing}: the broker refuses it ({error.name()}): grant this user {RIGHTS[error.code()]} (kafka-acls --add; "
        "`kstreams acls` prints all of a graph)"
    )


def record_refused(error: ck.KafkaError, topic: str) -> RecordRefused:
    """Returns the exception for a record that a topic refuses, with the reason and the remedy."""
    if error.code() in TOO_LARGE:
        return RecordTooLarge(
            f"a record is larger than topic {topic!r} takes: raise the topic's max.message.bytes and "
            "KSTREAMS_KAFKA__MESSAGE_MAX_BYTES, or make the record (or KSTREAMS_KAFKA__BATCH_SIZE) smaller"
        )
    return RecordRefused(
        f"topic {topic!r} refuses a record ({error.name()}: {error.str()}): correct what the function returns, or the "
        "topic's settings"
    )


def may_be_written(error: ck.KafkaError) -> bool:
    """Returns whether a record may be in its topic though its delivery failed; a code below 0 is the client's own."""
    return error.code() < 0 or error.code() in {E.UNKNOWN, E.NETWORK_EXCEPTION, E.REQUEST_TIMED_OUT} or error.fatal()


def classify(error: ck.KafkaError, doing: str) -> KStreamsError:
    """Maps an error of librdkafka to a ClientError, NotAuthorized or SettingsError; `doing` describes the failed call.

    It does not map the errors of refused records, which come in delivery reports: see record_refused().
    """
    text = f"{doing}: {error.str()} ({error.name()})"
    if error.code() in RIGHTS:
        return not_authorized(error, doing)
    if error.code() == E.INVALID_TRANSACTION_TIMEOUT:
        return SettingsError(
            f"{doing}: transaction_timeout_ms is above what the broker takes: lower it, or raise the broker's "
            "transaction.max.timeout.ms"
        )
    if error.code() in FENCED:
        return Fenced(text)
    if error.code() in _UNKNOWN_PRODUCER:
        return OutcomeUnknown(text)
    if error.fatal():
        return Fatal(text)
    if error.txn_requires_abort() or error.code() in _MUST_ABORT:
        return Abortable(text)
    if error.retriable() or error.code() in UNREACHABLE | _TRANSIENT or has_no_token(error):
        return Retriable(text)
    return Fatal(text)


class ClientLog(logging.Handler):
    """Watches a client's log and errors for failures that its calls do not report.

    - `tainted`: a request timed out or lost its connection, and may still reach the broker.
    - `coordinator_lost`: such a request went to the group's coordinator.
    - `fenced`: another member has taken the membership.
    - `error`: the last error; later errors do not replace a fatal one, or refused credentials.
    - `connection`: the last error of a connection, as text with the broker's address; "" if there is none.
    - `refused`: the topics of a transaction that this user may not write to; the owner clears them.
    - `tokens`: the source of the client's tokens; None if the client gets them itself.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.tainted = False
        self.coordinator_lost = False
        self.fenced = False
        self.error: ck.KafkaError | None = None
        self.connection = ""
        self.refused = set[str]()
        self.tokens: TokenSource | None = None
        self._without_token_at = -WITHOUT_TOKEN_SECONDS
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "REQTMOUT" in text or ("FAIL" in text and ("in state UP" in text or "in state REAUTH" in text)):
            self.tainted = True
            self.coordinator_lost |= "GroupCoordinator" in text
        if MEMBERSHIP_LOST in text:
            self.fenced = True
        if (found := _NOT_ADDED.search(text)) is not None:
            self.refused.add(found[1])
        logger.debug("%s", text)

    def on_error(self, error: ck.KafkaError) -> None:
        if error.code() in CONNECTION:
            self.connection = error.str()
        if has_no_token(error):
            self._without_token_at = time.monotonic()
        elif error.code() in UNAUTHENTICATED and not self.refuses(error):
            return
        seen = self.error
        if seen is None or not (seen.fatal() or seen.code() == E._FATAL or refuses_credentials(seen)):
            self.error = error

    def refuses(self, error: ck.KafkaError) -> bool:
        """Returns whether the credentials are refused, and not merely a token that was not renewed in time."""
        failed_at = max(self._without_token_at, self.tokens.failed_at if self.tokens else self._without_token_at)
        is_without = time.monotonic() - failed_at < WITHOUT_TOKEN_SECONDS
        return refuses_credentials(error) and (has_no_token(error) or not is_without)


def client_version() -> str:
    """Returns the version of librdkafka."""
    return str(ck.libversion()[0])


@cache
def warn_if_untested() -> None:
    """Logs a warning, once in a process, if the version of librdkafka is not among TESTED_CLIENTS."""
    version = client_version()
    if version not in TESTED_CLIENTS:
        logger.warning(
            "librdkafka %s is not among the versions tested with kstreams_py (%s): late requests are recognized by the "
            "wording of its log; install confluent-kafka of a tested version",
            version,
            ", ".join(sorted(TESTED_CLIENTS)),
        )
